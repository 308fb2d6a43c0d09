"""What objects cost beside bytes: at most 1.5 times what msgspec takes to encode or decode them."""

from __future__ import annotations

from benchmarks.cases import typed_cases as cases
from benchmarks.measuring.contestant import Against
from benchmarks.measuring.load import Load
from benchmarks.measuring.race import Race

RECORDS = 60_000
"""Even: the allowance goes in pairs."""


def test_putting_objects_beside_what_they_may_cost(race: Race) -> None:
    """One by one, so that nothing is shared among them."""
    load = Load(RECORDS, cases.SIZE)
    allowance = Against(cases.put_allowance(RECORDS), 1.0)
    race(f"put(object), json, never(), {cases.SIZE} bytes", load, cases.put(RECORDS), [allowance], rounds=9)


def test_receiving_objects_beside_what_they_may_cost(race: Race) -> None:
    """One by one, each with its acknowledgement."""
    load = Load(RECORDS, cases.SIZE)
    race(
        f"receive(object) + ack, json, never(), {cases.SIZE} bytes",
        load,
        cases.receive(RECORDS),
        [Against(cases.receive_allowance(RECORDS), 1.0)],
        rounds=9,
        prepare=lambda folder: cases.fill(folder, RECORDS),
    )

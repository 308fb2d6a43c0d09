"""A slice of the fault loop: storage calls fail, and threads cannot be started. ``proof.faults`` runs all of it."""

from proof.faults.loop import OPERATIONS, FaultLoop
from proof.faults.world import POLICIES

EVERY = 4
STRIDE = 60


def test_whatever_storage_call_fails_the_error_is_right_and_what_was_said_holds() -> None:
    """A few cases of a few operations, always the same; a violation names its case, to be run again by itself."""
    names = list(POLICIES)
    loop = FaultLoop(stride=STRIDE, place_disks_max=1)
    rows = [loop.run(operation, [names[at % 3]]) for at, operation in enumerate(OPERATIONS[::EVERY])]
    found = [f"{finding.case}: {finding.text}" for row in rows for finding in row.findings]
    assert not found, "\n".join(found)
    assert sum(row.case_count for row in rows) > 20
    assert sum(row.recovery_count for row in rows) > 1


def test_no_call_fails_for_want_of_a_thread_and_what_it_said_holds() -> None:
    """At each start of each operation, once and for ever; each operation under one policy."""
    names = list(POLICIES)
    loop = FaultLoop(chooses=lambda case: ", no thread " in case and "of the recovery" not in case)
    rows = [loop.run(operation, [names[at % 3]]) for at, operation in enumerate(OPERATIONS)]
    found = [f"{finding.case}: {finding.text}" for row in rows for finding in row.findings]
    assert not found, "\n".join(found)
    assert sum(row.case_count for row in rows) > 30
    assert {row.name for row in rows if row.case_count} >= {"put", "ack, a file goes", "open, killed"}


def test_every_operation_has_a_name_of_its_own() -> None:
    """By which its cases can be run again."""
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS) > 60

"""A slice of ``python -m proof.bit_flips``: one bit in 389 of small queues, one in 97 of a prepared log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proof.bit_flips.oracle import Oracle
from proof.bit_flips.places import HARMLESS, Region, regions
from proof.bit_flips.prepared_log import PreparedOracle, build_prepared
from proof.bit_flips.run import Flips, quiet
from proof.bit_flips.victim import AUDIT, Victim, build, build_merged

EVERY = 389
"""A prime, so that it meets all eight bits, and all bytes of every field sooner or later."""


@pytest.fixture(autouse=True)
def still() -> Iterator[None]:
    """Hundreds of damaged queues warn hundreds of times."""
    with quiet():
        yield


@pytest.fixture(
    scope="module",
    params=[build, build_merged, build_prepared],
    ids=["three data files", "a merged file", "a prepared log"],
)
def any_victim(request: pytest.FixtureRequest) -> Victim:
    """Return each of the closed queues; copy them, do not change them."""
    made: Victim = request.param()
    return made


@pytest.fixture(scope="module", params=[build, build_merged], ids=["three data files", "a merged file"])
def victim(request: pytest.FixtureRequest) -> Victim:
    """Return each of the closed queues; copy them, do not change them."""
    made: Victim = request.param()
    return made


def test_one_bit_in_389_is_found_or_does_no_harm(victim: Victim) -> None:
    """Nothing wrong is shown, nothing is lost without a word, and what is reported is exactly what is lost."""
    flips = Flips(Oracle(victim))
    flips.run(every=EVERY)
    assert not flips.violations, "\n".join(map(str, flips.violations))
    assert flips.count > 40


def test_one_bit_in_97_of_a_prepared_log_costs_no_more_than_the_entry_it_hits() -> None:
    """Two readers agree on what is whole: it is committed, the rest is refused, and all messages are accounted for."""
    flips = Flips(PreparedOracle(build_prepared()))
    flips.run(every=97)
    assert not flips.violations, "\n".join(map(str, flips.violations))
    assert flips.count > 150


def test_the_oracle_of_a_prepared_log_sees_what_is_missing_and_not_reported() -> None:
    """What another reader does not find, a message that does not come, and damage without a word."""
    oracle = PreparedOracle(build_prepared())
    (path,) = (each for each in oracle.victim.files() if each.suffix == ".log")
    nothing = Region(path, "segments", HARMLESS, range(1))
    oracle.judge(nothing, oracle.victim.copy(), thorough=True)
    storage = oracle.victim.copy()
    with oracle.victim.open(storage) as queue:
        queue.abort_prepared("puts")
    with pytest.raises(AssertionError, match="who looks is shown"):
        oracle.judge(nothing, storage, thorough=False)
    with pytest.raises(AssertionError, match="verify has missed it"):
        oracle.judge(Region(path, "segments", "frames", range(1)), oracle.victim.copy(), thorough=False)
    oracle._always[AUDIT][10**6, b"never put"] = 1
    with pytest.raises(AssertionError, match="audit is given"):
        oracle.judge(nothing, oracle.victim.copy(), thorough=False)


def test_every_file_of_the_queue_is_among_the_flips(any_victim: Victim) -> None:
    """Each byte belongs to one region, and no file is left out."""
    victim = any_victim
    found: dict[Path, list[Region]] = {}
    for region in regions(victim):
        found.setdefault(region.path, []).append(region)
    for path, content in victim.files().items():
        parts = sorted(found[path], key=lambda region: region.where.start)
        covered = [at for region in parts for at in (region.where.start, region.where.stop)]
        assert covered[0] == 0, path
        assert covered[1:-1:2] == covered[2::2], f"{path}: a gap, or an overlap"
        assert covered[-1] == len(content), path


def test_the_oracle_sees_a_message_that_is_missing_and_not_reported(victim: Victim) -> None:
    """A queue that has lost a message without damage is what it must never pass."""
    oracle, path = Oracle(victim), victim.data_files[-1]
    nothing = Region(path, "data files", HARMLESS, range(1))
    oracle.judge(nothing, victim.copy(), thorough=True)
    storage = victim.copy()
    with victim.open(storage) as queue:
        queue.get(timeout=0)
    with pytest.raises(AssertionError, match="the group is given"):
        oracle.judge(nothing, storage, thorough=False)
    elsewhere = Region(path, "data files", HARMLESS, range(1), frozenset({10**6}))
    with pytest.raises(AssertionError, match="verify names"):
        oracle.judge(elsewhere, victim.copy(), thorough=False)
    with pytest.raises(AssertionError, match="verify has missed it"):
        oracle.judge(Region(path, "data files", "frame", range(1)), victim.copy(), thorough=False)

"""Short runs, cut off after every single change of the disk, in every flavour of crash: each one recovers.

The crash model and the oracle: docs/durability.md; tests/support/models/crash_oracle.py. ``HOLDFAST_TEST_CRASH_FULL=1``
has a kill and a power loss after each change and not one of them in turn, more random losses, and more crashes of
recoveries.
"""

import logging
import os
import random
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from holdfast import FlushPolicy
from proof.second_model.witness import watching
from support.models.crash_oracle import Seen, fingerprint, judge, look, recover_and_look, work_on
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.recorded_run import Moment, RecordedRun, open_queue

POLICIES = (FlushPolicy.every_commit(), FlushPolicy.every(commits=2), FlushPolicy.never())
FULL = bool(os.environ.get("HOLDFAST_TEST_CRASH_FULL"))
RANDOM_CRASHES = 3 if FULL else 1  # for each prefix, half of them with a coin that keeps nearly all
RECOVERIES = 3 if FULL else 1  # of each run and policy, each crashed at each of its operations
NEARLY_ALL = 0.9
LARGE = 4000  # two of them fill a data file

Workload = Callable[[RecordedRun], None]


def puts_and_batches(run: RecordedRun) -> None:
    """Single messages and batches, an empty one among them."""
    run.open()
    run.put(100)
    run.put(0)
    run.put(600, 10, 1200)
    run.put(30)
    run.close()


def takes_of_every_kind(run: RecordedRun) -> None:
    """Get, get_many, receive with ack and nack, out of order."""
    run.open()
    run.put(40, 50, 60, 70, 80)
    run.get()
    run.receive(2)
    run.put(700)
    run.ack(2)
    run.nack(1)
    run.receive()
    run.get(2)
    run.ack(1)
    run.close()


def failures_of_every_kind(run: RecordedRun) -> None:
    """Given back at once and later, released, rejected, wanted again, and in hand at the end."""
    run.open()
    run.put(40, 50, 60, 70, 80)
    run.receive(5)
    run.nack(3, delay=50)
    run.release(1)
    run.reject(0)
    run.nack(2)
    run.ack(4)
    run.receive()
    run.receive()
    run.retry(0)
    run.reject(2)
    run.close()
    run.open()
    run.get(5)
    run.close()


def rolling_and_reclaiming(run: RecordedRun) -> None:
    """Data files fill up, are finished, become spares, and are used again."""
    run.open()
    for _ in range(5):
        run.put(LARGE)
    run.get(4)
    run.get(4)
    run.put(LARGE, LARGE // 2)
    run.put(LARGE)
    run.get(2)
    run.get(4)
    run.put(LARGE)
    run.close()


def closing_and_opening(run: RecordedRun) -> None:
    """A clean close in the middle: the same data file is used again."""
    run.open()
    run.put(300)
    run.put(20)
    run.get()
    run.close()
    run.open()
    run.put(10, 500)
    run.receive()
    run.close()
    run.open()
    run.get()
    run.close()


def killed_and_opened_again(run: RecordedRun) -> None:
    """A process dies, the next one recovers, continues, and dies too."""
    run.open()
    run.put(300)
    run.put(20, 30)
    run.get()
    run.receive()
    run.kill()
    run.open()
    run.receive()
    run.put(50)
    run.kill()
    run.open()
    run.get(3)
    run.put(60)
    run.close()


def two_groups(run: RecordedRun) -> None:
    """Two groups at different places; the slower one is deleted, which frees files."""
    run.open("a")
    run.put(LARGE)
    run.create("b")
    run.put(LARGE, 100)
    run.put(LARGE)
    run.get(2)
    run.get(2)
    run.close()
    run.open("b")
    run.get()
    run.close()
    run.open("a")
    run.delete("b")
    run.put(LARGE)
    run.close()


def a_batch_larger_than_a_data_file(run: RecordedRun) -> None:
    """It gets a file of its own, wholly or not at all."""
    run.open()
    run.put(100)
    run.put(*[LARGE] * 5)
    run.put(100)
    run.get(10)
    run.flush()
    run.put(50)
    run.close()


def acknowledged_together(run: RecordedRun) -> None:
    """Messages that are not neighbours: several entries, across a border of sectors, that count together."""
    run.open()
    run.put(*[20] * 12)
    run.receive(12)
    run.ack_together(0, 2, 4)
    run.ack_together(6, 8, 10, 1)
    run.ack_together(5, 9, 11)
    run.close()


def a_second_generation_of_progress(run: RecordedRun) -> None:
    """So many acknowledgements that the position file is full; only the end is of interest."""
    run.open()
    run.put(*[1] * 200)
    for _ in range(180):
        run.get()
    del run.segments[0].moments[:-1]
    for _ in range(10):
        run.receive()
        run.get()


WORKLOADS = (
    puts_and_batches,
    takes_of_every_kind,
    failures_of_every_kind,
    rolling_and_reclaiming,
    closing_and_opening,
    killed_and_opened_again,
    two_groups,
    a_batch_larger_than_a_data_file,
    acknowledged_together,
    a_second_generation_of_progress,
)


def record(workload: Workload, policy: FlushPolicy) -> RecordedRun:
    """Run a workload without a crash; what it did and what it promised is in the result."""
    run = RecordedRun(policy)
    with watching():  # the second model judges every answer
        workload(run)
    if run.queue is not None:
        run.kill()
        run.segments.pop()
    return run


def crash_points(run: RecordedRun) -> Iterator[tuple[SimulatedStorage, Moment, Moment, str]]:
    """Yield the disk after each single operation, with the moments around it and a name for the trace of a failure."""
    for life, segment in enumerate(run.segments):
        counts = segment.operation_counts()
        for count, storage in enumerate(segment.storage.replay()):
            if count in counts:
                before, under_way = segment.around(count)
                last = segment.storage.log[count - 1] if count else None
                yield storage, before, under_way, f"after {before.call}, life {life}, operation {count} ({last!r:.120})"


def run_length(run: RecordedRun) -> range:
    """Return the numbers of the crash points."""
    return range(sum(len(segment.operation_counts()) for segment in run.segments))


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of recoveries say what they did; a failure would drown in it."""
    caplog.set_level(logging.CRITICAL, "holdfast")


class Explorer:
    """Recovers disks and judges what they show; what a power loss leaves is durable, so equal disks count once."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.crash_count = 0
        self.distinct_count = 0
        self._seen: dict[bytes, Seen] = {}

    def check(self, crashed: SimulatedStorage, before: Moment, under_way: Moment, *, killed: bool = False) -> None:
        """Recover one crashed disk and apply the oracle."""
        self.crash_count += 1
        key = b"" if killed else fingerprint(crashed)
        seen = self._seen.get(key)
        if seen is None:
            queue, seen = recover_and_look(crashed, self.run.policy)
            try:
                work_on(queue, crashed, self.run.policy, seen)
            finally:
                queue.close()
            self.distinct_count += 1
            if not killed:
                self._seen[key] = seen
        judge(self.run, seen, before, under_way, killed=killed)

    def check_recovery(self, crashed: SimulatedStorage, before: Moment, under_way: Moment, rng: random.Random) -> None:
        """Crash the recovery of a disk at every one of its operations, and recover again: it shows the same."""
        queue = open_queue(crashed, self.run.policy)
        count = len(crashed.log)
        expected = look(queue, crashed, self.run.policy)
        queue.close()
        for storage in islice(crashed.replay(), count + 1):
            for again in (storage.crash_dropping_unsynced(), storage.random_crash(rng), storage.crash_keeping_all()):
                queue, seen = recover_and_look(again, self.run.policy)
                queue.close()
                judge(self.run, seen, before, under_way, reported=True)
                assert seen.without_report() == expected.without_report(), "the second recovery shows something else"
                self.crash_count += 1

    def check_killed_recovery(
        self, killed: SimulatedStorage, before: Moment, under_way: Moment, rng: random.Random
    ) -> None:
        """Take the power away while a killed process's pages, never synced, are being recovered."""
        open_queue(killed, self.run.policy).close()
        for storage in killed.replay():
            for again in (storage.crash_dropping_unsynced(), storage.random_crash(rng)):
                queue, seen = recover_and_look(again, self.run.policy)
                queue.close()
                judge(self.run, seen, before, under_way, reported=True)
                self.crash_count += 1


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_recovery_shows_a_prefix_of_what_was_done_after_a_crash_at_any_point(
    workload: Workload, policy: FlushPolicy, record_property: Callable[[str, object], None]
) -> None:
    """A kill, a power loss that takes all it can, and random ones: no message lost, doubled, torn or moved."""
    run = record(workload, policy)
    explorer = Explorer(run)
    rng = random.Random(f"{workload.__name__} {policy}")
    for turn, (storage, before, under_way, where) in enumerate(crash_points(run)):
        flavour = "kill"
        try:
            if FULL or turn % 2:
                explorer.check(storage.crash_keeping_all(), before, under_way, killed=True)
            flavour = "unsynced dropped"
            if FULL or not turn % 2:
                explorer.check(storage.crash_dropping_unsynced(), before, under_way)
            for number in range(turn, turn + RANDOM_CRASHES):
                flavour = f"random crash {number}"
                keep = NEARLY_ALL if number % 2 else 0.5
                explorer.check(storage.random_crash(rng, keep=keep), before, under_way)
        except BaseException as error:
            error.add_note(f"{workload.__name__}, {policy}: {flavour} {where}")
            raise
    tell(record_property, f"{explorer.crash_count} crashes, {explorer.distinct_count} distinct states recovered")


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_recovery_that_is_cut_off_anywhere_shows_the_same_the_next_time(
    workload: Workload, policy: FlushPolicy, record_property: Callable[[str, object], None]
) -> None:
    """Recovery changes files too: crashes inside it, at every operation, are crashes like any other."""
    run = record(workload, policy)
    explorer = Explorer(run)
    rng = random.Random(f"{policy} {workload.__name__}")
    points = list(run_length(run))
    chosen = set(rng.sample(points, min(RECOVERIES, len(points))))
    for number, (storage, before, under_way, where) in enumerate(crash_points(run)):
        if number in chosen:
            try:
                explorer.check_recovery(storage.random_crash(rng, keep=NEARLY_ALL), before, under_way, rng)
                explorer.check_killed_recovery(storage.crash_keeping_all(), before, under_way, rng)
            except BaseException as error:
                error.add_note(f"{workload.__name__}, {policy}: in recovery from a crash {where}")
                raise
    tell(record_property, f"{explorer.crash_count} crashes of recovery")


def tell(record_property: Callable[[str, object], None], result: str) -> None:
    """Leave a count in the test report, and show it with ``pytest -s``."""
    record_property("explored", result)
    print(f" {result}")

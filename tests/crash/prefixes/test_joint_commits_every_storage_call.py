"""A joint commit is all or nothing, and counts once, wherever a crash or a failing disk comes in between.

Its parts are prepared by different transactions; one is so large that its file becomes a data file, one is never
named. After a crash whoever wanted to commit tries again, as Spark does, with the parts that it has or with new ones.
"""

import errno
import logging
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast import HoldfastError, PersistentQueue, TransactionNotFoundError
from holdfast.queue.options.queue_options import Mode
from support.builders.clocks import FakeClock
from support.owners.machine_link import machine_links
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/q")
APPLICATION = "stream"
SIZES = {"small": (3, 40), "large": (16, 400), "other": (2, 60)}  # messages, and bytes of each
FULL = bool(os.environ.get("HOLDFAST_TEST_CRASH_FULL"))
RECOVERY_EVERY = 1 if FULL else 25
RANDOM_EVERY = 1 if FULL else 3
STRIDE = 1 if FULL else 7

FAULTS = {
    "EIO": lambda at: FaultPlan(at, errno.EIO),
    "ENOSPC": lambda at: FaultPlan(at, errno.ENOSPC),
    "EIO for ever": lambda at: FaultPlan(at, errno.EIO, forever=True),
    "a short write": lambda at: FaultPlan(at, errno.ENOSPC, short_write=True),
}


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of failures are logged; one of ours would drown in it."""
    caplog.set_level(logging.CRITICAL, "holdfast")


def opened(storage: SimulatedStorage, mode: Mode = "exclusive") -> PersistentQueue:
    """Open the queue, with data files as small as they can be."""
    return PersistentQueue(ROOT, mode=mode, storage=storage, data_file_bytes=16 * 2**10, clock=FakeClock())


def payloads(version: int, part: str) -> list[bytes]:
    """Return the messages of one part."""
    count, size = SIZES[part]
    return [f"{version}/{part}/{number}/".encode().ljust(size, b".") for number in range(count)]


def messages(version: int) -> list[bytes]:
    """Return the messages of one version, in the order of its parts."""
    return [payload for part in SIZES for payload in payloads(version, part)]


def prepare(queue: PersistentQueue, version: int, part: str, attempt: int) -> str:
    """Prepare one part, as a task does."""
    transaction = queue.begin()
    transaction.put_many(payloads(version, part))
    return transaction.prepare(f"{APPLICATION}-{version}-{part}-{attempt}", part_of=(APPLICATION, version))


def prepare_all(queue: PersistentQueue, version: int, attempt: int = 0) -> list[str]:
    """Prepare all parts of a version, and one more that nobody is going to name."""
    ids = [prepare(queue, version, part, attempt) for part in SIZES]
    prepare(queue, version, "small", attempt + 1)
    return ids


@dataclass
class Run:
    """Commits two versions and gives one up; notes which were committed behind each step."""

    storage: SimulatedStorage
    committed: tuple[int, ...] = ()
    moments: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.note(())

    def note(self, committed: tuple[int, ...]) -> None:
        """Note what is committed now that a step has returned."""
        self.committed = committed
        self.moments.append((len(self.storage.log), committed))

    def steps(self, queue: PersistentQueue) -> Iterator[None]:
        """Do everything; stops between two steps."""
        joint = queue.joint_commits
        joint.commit(APPLICATION, 1, prepare_all(queue, 1))
        self.note((1,))
        yield
        queue.put(b"between")
        prepare_all(queue, 2)
        joint.abort(APPLICATION, 2)
        self.note((1,))
        yield
        joint.commit(APPLICATION, 3, prepare_all(queue, 3))
        self.note((1, 3))
        yield
        joint.commit(APPLICATION, 1, ["whatever"])
        assert queue.prepared() == []
        yield


def look(queue: PersistentQueue) -> tuple[int, ...]:
    """Return the versions that are committed: each of them whole, once, in order, and nothing of any other."""
    found = [message.payload for message in queue.peek(500) if message.payload != b"between"]
    versions = sorted({int(payload.split(b"/")[0]) for payload in found})
    assert found == [payload for version in versions for payload in messages(version)]
    latest = queue.joint_commits.latest(APPLICATION)
    assert (latest or 0) == max(versions, default=0)
    waiting = queue.prepared()
    assert all(each.part_of is not None and not each.damage for each in waiting)
    assert all(each.part_of.version > (latest or 0) for each in waiting if each.part_of), "what was decided is settled"
    return tuple(versions)


def try_again(queue: PersistentQueue, committed: Sequence[int], rng: random.Random) -> None:
    """Commit the next version as whoever was interrupted does: with what is prepared, or with all of it anew."""
    version = max(committed, default=0) + 1
    if rng.random() < 0.5:
        with suppress(TransactionNotFoundError):
            ids = [f"{APPLICATION}-{version}-{part}-0" for part in SIZES]
            queue.joint_commits.commit(APPLICATION, version, ids)
    if queue.joint_commits.latest(APPLICATION) != version:
        queue.joint_commits.commit(APPLICATION, version, prepare_all(queue, version, attempt=10))
    expected = [payload for each in (*committed, version) for payload in messages(each)]
    found = [message.payload for message in queue.peek(500) if message.payload != b"between"]
    assert Counter(found) == Counter(expected)
    queue.joint_commits.abort(APPLICATION, version + 10)
    assert queue.prepared() == []


def judge(left: SimulatedStorage, allowed: Sequence[tuple[int, ...]], rng: random.Random) -> None:
    """Open what a crash has left, look, go on, and look again in a later life."""
    with opened(left) as queue:
        committed = look(queue)
        assert committed in allowed
        shown = left.crash_dropping_unsynced()
        try_again(queue, committed, rng)
    with opened(left) as queue:
        assert look(queue) == (*committed, max(committed, default=0) + 1)
    with opened(shown) as queue:
        assert look(queue) == committed, "what was shown is durable"


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_every_crash_shows_whole_versions_and_what_was_interrupted_can_be_tried_again(mode: Mode) -> None:
    """At each storage call: killed, without power, and with some of what was not synced; in recovery too."""
    storage, rng = SimulatedStorage(), random.Random(7)
    run = Run(storage)
    with machine_links(), opened(storage, mode) as queue:
        for _ in run.steps(queue):
            pass
        assert look(queue) == (1, 3)
    count = 0
    for at, crashed in enumerate(storage.replay()):
        allowed = [versions for operation, versions in run.moments if operation <= at][-1:]
        allowed += [versions for operation, versions in run.moments if operation > at][:1]
        try:
            if FULL or at % 2:
                judge(crashed.crash_keeping_all(), allowed, rng)
            if FULL or not at % 2:
                judge(crashed.crash_dropping_unsynced(), allowed, rng)
            if at % RANDOM_EVERY == 0:
                judge(crashed.random_crash(rng, keep=rng.choice((0.5, 0.9))), allowed, rng)
            if at % RECOVERY_EVERY == 0:
                crash_recovery(crashed.random_crash(rng, keep=0.8), allowed, rng)
        except BaseException as error:
            error.add_note(f"operation {at}: {storage.log[at - 1]!r:.160}")
            raise
        count += 1
    assert count > 150


def crash_recovery(left: SimulatedStorage, allowed: Sequence[tuple[int, ...]], rng: random.Random) -> None:
    """Cut the recovery off at each of its own storage calls."""
    with opened(left) as queue:
        committed = look(queue)
        count = len(left.log)
    for at, again in enumerate(left.replay()):
        if at <= count:
            judge(again.random_crash(rng, keep=0.7), [committed] if committed in allowed else [], rng)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_storage_call_may_fail(fault: str) -> None:
    """The error is ours; the next opening shows whole versions, and what failed can be tried again."""
    at, struck, count = list(FAULTS).index(fault) % STRIDE + 1, True, 0
    rng = random.Random(fault)
    while struck:
        storage = SimulatedStorage()
        run = Run(storage)
        queue = opened(storage)
        plan = FAULTS[fault](at)
        storage.faults = plan
        with suppress(HoldfastError):
            for _ in run.steps(queue):
                pass
        struck = plan.fired_count > 0
        storage.faults = plan if plan.forever else None
        allowed = [run.committed, (1,) if not run.committed else (1, 3)]
        with suppress(HoldfastError):  # the next call finds the handle in order, or is told to reopen
            queue.joint_commits.commit(APPLICATION, 5, prepare_all(queue, 5, attempt=20))
            allowed = [(*each, 5) for each in allowed]
        if allowed[0][-1:] != (5,):
            allowed += [(*each, 5) for each in allowed]
        storage.faults = None
        with suppress(HoldfastError):
            queue.close()
        for left in (storage.crash_keeping_all(), storage.crash_dropping_unsynced()):
            try:
                judge(left, allowed, rng)
            except BaseException as error:
                error.add_note(f"{fault} at call {at}")
                raise
        count += struck
        at += STRIDE
    assert count > 30 / STRIDE

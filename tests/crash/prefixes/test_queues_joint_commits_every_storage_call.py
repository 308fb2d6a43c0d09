"""A joint commit over several queues is in all of them or in none, wherever a crash or a failing disk comes in between.

Parts are files, as tasks of Spark write them. After a crash the queues are opened one after the other, and the power
may fail between them. Then the write is tried again, as Spark does.
"""

from __future__ import annotations

import errno
import logging
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from holdfast import HoldfastError, PersistentQueue
from holdfast.queue.queues_joint_commits import QueuesJointCommits
from support.builders.clocks import FakeClock
from support.builders.joint import file_part
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

DATA = Path("/data")
QUEUES = ("a", "b", "c")
SIZES = {"a": (3, 40), "b": (16, 400), "c": (2, 60)}  # messages, and bytes of each: that of b becomes a data file
FULL = bool(os.environ.get("HOLDFAST_TEST_CRASH_FULL"))
EVERY = 1 if FULL else 9
STRIDE = 7 if FULL else 61
APPLICATION, PREFIX = "job", "job-"

Content = tuple[int, ...]

FAULTS: dict[str, Callable[[int], FaultPlan]] = {
    "EIO": lambda at: FaultPlan(at, errno.EIO),
    "ENOSPC": lambda at: FaultPlan(at, errno.ENOSPC),
    "EIO for ever": lambda at: FaultPlan(at, errno.EIO, forever=True),
}


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of failures are logged; one of ours would drown in it."""
    caplog.set_level(logging.CRITICAL, "holdfast")


def opened(storage: SimulatedStorage, name: str) -> PersistentQueue:
    """Open one of the queues, with data files as small as they can be."""
    return PersistentQueue(
        DATA / name, mode="exclusive", storage=storage, data_file_bytes=16 * 2**10, clock=FakeClock()
    )


def commits_of(storage: SimulatedStorage) -> QueuesJointCommits:
    """Return what commits in all of them."""
    return QueuesJointCommits(DATA, storage, FakeClock(), mode="exclusive")


def payloads(name: str, version: int) -> list[bytes]:
    """Return the messages of one part."""
    count, size = SIZES[name]
    return [f"{version}/{name}/{number}/".encode().ljust(size, b".") for number in range(count)]


def prepare_all(storage: SimulatedStorage, version: int, attempt: int = 0) -> list[str]:
    """Prepare a part in each queue, and one more that no commit is going to name."""
    part_of = commits_of(storage).part_of(APPLICATION, version)
    found = [
        file_part(storage, DATA / name, f"{PREFIX}{version}-{attempt}", part_of, payloads(name, version))
        for name in QUEUES
    ]
    file_part(storage, DATA / "a", f"{PREFIX}{version}-{attempt}-loser", part_of, payloads("a", version))
    return found


@dataclass
class Run:
    """Commits two versions and gives one up; notes which were committed behind each step."""

    storage: SimulatedStorage
    committed: Content = ()
    moments: list[tuple[int, Content]] = field(default_factory=list)

    def note(self, *committed: int) -> None:
        """Note what is committed now that a step has returned."""
        self.committed = committed
        self.moments.append((len(self.storage.log), committed))

    def steps(self) -> Iterator[None]:
        """Do everything; stops between two steps."""
        self.note()
        commits = commits_of(self.storage)
        commits.create()
        commits.commit(APPLICATION, 1, prepare_all(self.storage, 1), id_prefix=PREFIX)
        self.note(1)
        yield
        prepare_all(self.storage, 2)
        commits.abort(APPLICATION, 2, id_prefix=PREFIX)
        self.note(1)
        yield
        commits.commit(APPLICATION, 3, prepare_all(self.storage, 3), id_prefix=PREFIX)
        self.note(1, 3)
        yield


def look(storage: SimulatedStorage, name: str) -> Content:
    """Return the versions in one queue: each of them whole, once and in order; nothing that is decided waits."""
    with opened(storage, name) as queue:
        found = [message.payload for message in queue.peek(500)]
        versions = sorted({int(payload.split(b"/")[0]) for payload in found})
        assert found == [payload for version in versions for payload in payloads(name, version)]
        latest = commits_of(storage).latest(APPLICATION) or 0
        for each in queue.prepared():
            assert each.part_of is not None
            assert each.part_of.version > latest, "what was decided is settled"
    return tuple(versions)


def judge(left: SimulatedStorage, allowed: list[Content], rng: random.Random) -> None:
    """Open the queues in some order, with a power failure or a kill between them; then try again."""
    order = rng.sample(QUEUES, len(QUEUES))
    found: set[Content] = set()
    for name in order:
        found.add(look(left, name))
        left = rng.choice((left.crash_dropping_unsynced, left.crash_keeping_all))()
    assert len(found) == 1, f"in one queue {found}, and not in all"
    (committed,) = found
    assert committed in allowed
    commits = commits_of(left)
    commits.create()
    version = max(committed, default=0) + 1
    commits.commit(APPLICATION, version, prepare_all(left, version, attempt=10), id_prefix=PREFIX)
    commits.abort(APPLICATION, version + 10, id_prefix=PREFIX)
    left = left.crash_dropping_unsynced()
    for name in QUEUES:
        assert look(left, name) == (*committed, version)
        with opened(left, name) as queue:
            assert queue.prepared() == []


def begun() -> SimulatedStorage:
    """Return a disk with three queues."""
    storage = SimulatedStorage()
    for name in QUEUES:
        opened(storage, name).close()
    return storage


def test_every_crash_leaves_each_version_in_all_queues_or_in_none() -> None:
    """At each storage call: killed, without power, and with some of what was not synced."""
    storage, rng = begun(), random.Random(11)
    start = len(storage.log)
    run = Run(storage)
    for _ in run.steps():
        pass
    assert {look(storage, name) for name in QUEUES} == {(1, 3)}
    count = 0
    for at, crashed in enumerate(storage.replay()):
        if at < start or at > run.moments[-1][0] or at % EVERY:
            continue
        allowed = [versions for operation, versions in run.moments if operation <= at][-1:]
        allowed += [versions for operation, versions in run.moments if operation > at][:1]
        ends = (
            crashed.crash_keeping_all,
            crashed.crash_dropping_unsynced,
            partial(crashed.random_crash, rng, keep=0.6),
        )
        try:
            judge(ends[at % len(ends)](), allowed, rng)
        except BaseException as error:
            error.add_note(f"operation {at}: {storage.log[at - 1]!r:.160}")
            raise
        count += 1
    assert count > 150 / EVERY


@pytest.mark.parametrize("fault", FAULTS)
def test_every_storage_call_may_fail(fault: str) -> None:
    """The error is ours; the next openings show whole versions in all queues, and what failed can be tried again."""
    at, struck, count, rng = list(FAULTS).index(fault) + 1, True, 0, random.Random(fault)
    while struck:
        storage = begun()
        run = Run(storage)
        plan = storage.faults = FAULTS[fault](at)
        with suppress(HoldfastError):
            for _ in run.steps():
                pass
        struck = plan.fired_count > 0
        storage.faults = None
        allowed: list[Content] = [run.committed, (1,) if not run.committed else (1, 3)]
        try:
            judge(rng.choice((storage.crash_keeping_all, storage.crash_dropping_unsynced))(), allowed, rng)
        except BaseException as error:
            error.add_note(f"{fault} at call {at}")
            raise
        count += struck
        at += STRIDE
    assert count > 150 / STRIDE

"""A process is killed inside a call, the next one opens the queue and acts, and the power fails anywhere in that.

What is left then is what a kill alone can leave, and all that the second process has acknowledged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast import GroupNotFoundError, PersistentQueue
from proof.crash_states.crashes import AllBut
from proof.crash_states.opening import no_threads
from support.models.crash_choices import CrashChoice, RandomChoice, SameForAll
from support.storages.disk_operations import NameOperation
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/q")
GROUPS = ("default", "slow")
PAYLOAD_BYTES = 3000
"""Five fill a data file."""

NAME_KILLS, OTHER_KILLS, CUTS, ODDS = 6, 2, 3, 2
"""Kills of each call that are drawn, behind a change of a name and elsewhere. For each of them, moments of a loss of
power, and single pieces that differ then."""

Seen = tuple[tuple[bytes, ...], tuple[object, ...], tuple[str, ...]]
"""Of a group: payloads, what is reported, and what is in doubt."""

View = tuple[Seen | None, ...]
Call = Callable[[PersistentQueue], object]


def large(name: str) -> bytes:
    """Return a payload that is known by its first characters."""
    return name.encode().ljust(PAYLOAD_BYTES)


def opened(storage: SimulatedStorage, group: str = "default") -> PersistentQueue:
    """Open the queue with small files."""
    return PersistentQueue(ROOT, mode="exclusive", group=group, storage=storage, data_file_bytes=16_384)


def used() -> SimulatedStorage:
    """Return a queue of several files and two groups; either has finished some messages."""
    storage = SimulatedStorage()
    with opened(storage) as queue:
        queue.groups.create("slow")
        for number in range(9):
            queue.put(large(f"m{number}"))
        queue.get_many(3, timeout=0)
    with opened(storage, "slow") as queue:
        queue.get_many(2, timeout=0)
    return storage.crash_dropping_unsynced()


# -- Calls that a process is killed in -------------------------------------------------------------------------------


def roll(queue: PersistentQueue) -> None:
    """Begin data files."""
    for number in range(7):
        queue.put(large(f"n{number}"))


def drain(queue: PersistentQueue) -> None:
    """Finish messages, and retire a file."""
    queue.get_many(6, timeout=0)


def commit(queue: PersistentQueue) -> None:
    """Take a message and put another one."""
    waiting = queue.begin()
    waiting.ack(waiting.receive(timeout=0))
    waiting.put(b"new")
    waiting.commit()


def prepare(queue: PersistentQueue, size: int, *, commits: bool) -> None:
    """Prepare a transaction, and decide it."""
    waiting = queue.begin()
    waiting.ack(waiting.receive(timeout=0))
    waiting.put_many([b"new1".ljust(size), b"new2".ljust(size)])
    waiting.prepare("t")
    queue.commit_prepared("t") if commits else queue.abort_prepared("t")


def joint(queue: PersistentQueue) -> None:
    """Commit two parts at once."""
    for number in (1, 2):
        waiting = queue.begin()
        waiting.put(b"new%d" % number)
        waiting.prepare(f"p{number}", part_of=("app", 1))
    queue.joint_commits.commit("app", 1, ["p2", "p1"])


def commit_and_seek(queue: PersistentQueue) -> None:
    """Move a group whose last acknowledgement is in the log."""
    commit(queue)
    queue.groups.seek("slow", 6)


def make(queue: PersistentQueue) -> None:
    """Make a group."""
    queue.groups.create("third", "latest")
    queue.put(b"new1")


def configure(queue: PersistentQueue) -> None:
    """Change a setting."""
    queue.configure(max_deliveries=3)
    queue.put(b"new1")


def pause(queue: PersistentQueue) -> None:
    """Pause the group, and resume it."""
    queue.pause(reason="a reason")
    queue.resume()


def close(queue: PersistentQueue) -> None:
    """Close the queue."""
    queue.put(b"new1")
    queue.close()


@dataclass(frozen=True)
class Case:
    """What a process does for a group until it is killed, and for which group the next one opens the queue."""

    name: str
    call: Call
    group: str = "default"
    next_group: str = "default"

    def __str__(self) -> str:
        return f"{self.name}-{self.group}-{self.next_group}"


CASES = [
    Case("roll", roll),
    Case("drain", drain),
    Case("drain", drain, "slow"),
    Case("drain", drain, "default", "slow"),
    Case("commit", commit),
    Case("commit", commit, "slow"),
    Case("commits prepared", lambda queue: prepare(queue, 4, commits=True)),
    Case("commits prepared", lambda queue: prepare(queue, 4, commits=True), "slow"),
    Case("commits prepared", lambda queue: prepare(queue, 4, commits=True), "default", "slow"),
    Case("commits large", lambda queue: prepare(queue, 4000, commits=True)),
    Case("aborts prepared", lambda queue: prepare(queue, 4, commits=False)),
    Case("aborts large", lambda queue: prepare(queue, 4000, commits=False)),
    Case("joint", joint),
    Case("seek", commit_and_seek, "slow"),
    Case("seek", commit_and_seek, "slow", "slow"),
    Case("delete", lambda queue: queue.groups.delete("slow")),
    Case("make", make),
    Case("configure", configure),
    Case("pause", pause),
    Case("compact", lambda queue: queue.compact()),
    Case("close", close),
    Case("close", close, "slow"),
]


# -- What is there ---------------------------------------------------------------------------------------------------


def view(storage: SimulatedStorage) -> View:
    """Return what either group of a copy of the disk would be given, what is in doubt, and what is reported."""
    storage = storage.crash_keeping_all()
    return tuple(view_of(storage, group) for group in GROUPS)


def view_of(storage: SimulatedStorage, group: str) -> Seen | None:
    """Return what is there for one group; None if there is no such group."""
    try:
        with opened(storage, group) as queue:
            payloads = tuple(entry.payload[:4] for entry in queue.peek(1000))
            reports = queue.recovery.damage, queue.recovery.progress_damage, queue.stats().lost
            return payloads, reports, tuple(each.id for each in queue.prepared())
    except GroupNotFoundError:
        return None


def without_put(seen: View) -> View:
    """Return a view without the message that the second process has put."""
    return tuple(None if each is None else (tuple(p for p in each[0] if p != b"put"), *each[1:]) for each in seen)


def some(dice: random.Random, disks: list[SimulatedStorage], count: int) -> list[SimulatedStorage]:
    """Return so many disks that are drawn, or all."""
    return dice.sample(disks, min(count, len(disks)))


def losses(storage: SimulatedStorage, dice: random.Random) -> Iterator[CrashChoice]:
    """Yield what a loss of power takes: all that is not synced, one piece of it, all but one, or some."""
    yield SameForAll(keep=False)
    for odd in dice.sample(range(storage.undecided_count()), min(ODDS, storage.undecided_count())):
        yield AllBut(True, odd)
        yield AllBut(False, odd)
    yield RandomChoice(dice, 0.5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_a_killed_process_left_is_durable_before_the_next_one_acts_upon_it(case: Case) -> None:
    """The next process puts a message; behind that, nothing of what it has seen is taken back."""
    dice, own = random.Random(str(case)), GROUPS.index(case.next_group)
    with no_threads():
        storage = used()
        first = opened(storage, case.group)
        storage.replay_from_here()
        case.call(first)
        killed = [(run.log[-1:], run.crash_keeping_all()) for run in storage.replay()]
        first.close()
        possible = {view(disk) for _, disk in killed}
        named = [disk for last, disk in killed if last and isinstance(last[0], NameOperation)]
        others = [disk for last, disk in killed if not last or not isinstance(last[0], NameOperation)]
        for left in [*some(dice, named, NAME_KILLS), *some(dice, others, OTHER_KILLS)]:
            left.replay_from_here()
            try:
                second = opened(left, case.next_group)
            except GroupNotFoundError:
                continue
            seen = view(left)[own]
            second.put(b"put")
            changes = len(left.log)
            cuts = {*dice.sample(range(changes + 1), min(CUTS, changes + 1)), changes}
            for at, run in enumerate(left.replay()):
                if at not in cuts:
                    continue
                for choice in losses(run, dice):
                    after = view(run.crash(choice))
                    assert without_put(after) in possible
                    if at == changes:  # the put has returned
                        assert without_put(after)[own] == seen
                        assert (after[own] or ((b"put",),))[0][-1] == b"put"
            second.close()

"""Judges a queue after an interruption: the handle that continues, the disk after a kill, and a reopening.

Each message is there once or finished, as the call that was interrupted may have left it, and for all its messages the
same. Nothing is out of reach, no offset is given twice, and what the handle shows is what stands on the disk.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from holdfast import CommitUnknownError, Empty, HoldfastError, PersistentQueue, PoisonedError, StaleReceiptError
from holdfast.queue.transactions.transaction_state import State
from proof.interruptions.locks import locked
from proof.interruptions.operations import COUNT, Operation, World, payload
from support.builders.jobs import Jobs
from support.processes.interruptions import without_hanging

AFTER = b"after the interruption"
HANG_SECONDS = 10.0


class Shown(NamedTuple):
    """All that a queue gives out until there is no more, its dead letters, and the next offset."""

    taken: tuple[bytes, ...]
    dead: tuple[bytes, ...]
    next_offset: int


def judge(operation: Operation, world: World) -> None:
    """Raise AssertionError where anything is not as it should be. Whoever calls holds what has been raised."""
    held = locked(world.queue)
    assert not held, f"left locked: {held}"
    world.settle_first()
    is_done = _is_done_again(operation, world)
    killed = _opened_and_shown(world, world.jobs.killed())
    is_commit = _check(operation, world, killed, "after a kill")
    assert is_commit or not is_done or not operation.goes, "another thread has done it again, and nothing has happened"
    if world.policy.syncs_every_commit:
        _check(operation, world, _opened_and_shown(world, world.jobs.without_power()), "after a loss of power")
    if not operation.closes:
        shown = without_hanging(lambda: _go_on(world), HANG_SECONDS)
        if world.tx.state is State.UNKNOWN:  # says itself that the queue has to be opened anew
            assert shown is None or isinstance(shown, PoisonedError | CommitUnknownError)
        elif isinstance(shown, Shown):
            has_happened = _check(operation, world, shown, "in the handle")
            assert has_happened == is_commit, f"memory and disk are apart: {shown} and {killed}"
            assert shown == killed, f"memory and disk are apart: {shown} and {killed}"
            _close(world)
            again = _opened_and_shown(world, world.jobs)
            assert again == Shown((), shown.dead, shown.next_offset + 1), f"after reopening: {again}"
            return
        else:
            assert isinstance(shown, PoisonedError | CommitUnknownError)
    _close(world)
    reopened = _opened_and_shown(world, world.jobs)
    assert _check(operation, world, reopened, "after reopening") == is_commit, "another verdict"


def _is_done_again(operation: Operation, world: World) -> bool:
    """Have another thread do it again, if it is one to do again; return whether that raised nothing."""
    again = operation.again
    if again is None:
        return False
    try:
        return not isinstance(without_hanging(lambda: again(world), HANG_SECONDS), HoldfastError)
    except StaleReceiptError:
        return False


def _close(world: World) -> None:
    without_hanging(world.close, HANG_SECONDS)
    without_hanging(world.close, HANG_SECONDS)  # one that was interrupted continues, others do nothing


def _go_on(world: World) -> Shown | None:
    """Let all leases run out, flush, and take everything; None where a transaction says that nobody knows."""
    world.queue.flush()
    if world.tx.state is State.UNKNOWN:
        return None
    if world.tx.state.value == "open":
        world.tx.abort()
    return _show(world.queue, world.jobs)


def _opened_and_shown(world: World, jobs: Jobs) -> Shown:
    with world.reopened(jobs) as queue:
        assert not queue.recovery.damage, f"damage where there is none: {queue.recovery}"
        assert not queue.recovery.progress_damage, f"damage where there is none: {queue.recovery}"
        return _show(queue, jobs)


def _show(queue: PersistentQueue, jobs: Jobs) -> Shown:
    """Commit what is in doubt, put one more, and take everything once leases and delays are over."""
    for each in queue.prepared():
        queue.commit_prepared(each.id)
    offset = queue.put(AFTER)
    taken: list[bytes] = []
    offsets: list[int] = []
    for _ in range(2):  # what a transaction gives back to its receiver is leased once more
        jobs.clock.advance(200)
        with suppress(Empty):
            while True:
                delivery = queue.receive(timeout=0)
                taken.append(delivery.payload)
                offsets.append(delivery.offset)
                delivery.ack()
    assert len(set(offsets)) == len(offsets), f"given out twice: {offsets}"
    assert max(offsets) == offset, f"offsets {offsets}, the last is {offset}"
    assert AFTER in taken
    taken.remove(AFTER)
    stats = queue.stats()
    assert (stats.depth, stats.in_flight, stats.delayed) == (0, 0, 0), f"something is out of reach: {stats}"
    return Shown(tuple(sorted(taken)), tuple(sorted(each.payload for each in queue.dead.list())), offset)


def _check(operation: Operation, world: World, shown: Shown, when: str) -> bool:
    """Return whether the operation has happened; raises where it has not, and not not."""
    there = Counter(shown.taken) + Counter(shown.dead)
    before = Counter(payload(number) for number in range(2, COUNT)) + Counter(world.left)
    after = before - Counter(operation.goes) + Counter(operation.comes)
    assert there in (before, after), f"{when}: {sorted(each[:12] for each in there.elements())}"
    assert set(shown.dead) <= set(operation.buries), f"{when}: dead letters {shown.dead}"
    return there == after and (before != after or bool(shown.dead))

"""Threads that share a sync, when one of them is interrupted on its way out."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress

import pytest

from holdfast.queue.threads import group_commit
from holdfast.queue.threads.group_commit import GroupCommit
from support.processes.interruptions import Kind, Point, guarded, interrupted, points_of
from support.processes.threads import Threads


def test_a_leader_that_is_interrupted_on_its_way_out_hands_over_all_the_same(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all others would wait for ever; the interruption reaches its caller."""
    commits = GroupCommit(lambda: 7)
    really = GroupCommit._leave
    interrupted: list[object] = []

    def leave(self: GroupCommit, waiter: group_commit._Waiter) -> None:
        if len(interrupted) < 2:
            interrupted.append(waiter)
            raise KeyboardInterrupt
        really(self, waiter)

    monkeypatch.setattr(GroupCommit, "_leave", leave)
    with pytest.raises(KeyboardInterrupt):
        commits.wait(7)
    assert len(interrupted) == 2
    threads.start(lambda: commits.wait(7))
    threads.join()
    assert commits._durable == 7
    assert not commits._has_leader


def test_one_that_is_interrupted_while_it_lines_up_is_not_waited_for() -> None:
    """The next leader hands over to those who are still there."""
    commits = GroupCommit(lambda: 7)
    commits._has_leader = True
    waiter = group_commit._Waiter(7)
    assert not commits._enter(waiter)
    assert not commits._enter(waiter), "it lines up once"
    commits._leave(waiter)
    assert commits._waiters == []


class Leading(GroupCommit):
    """A thread leads that owes another one its waking; three more line up while it syncs."""

    def __init__(self) -> None:
        super().__init__(self.sync)
        self.owed, *self.late = self.others = [group_commit._Waiter(ticket) for ticket in (5, 9, 7, 8)]
        self.debts: set[group_commit._Waiter] = set()

    def _enter(self, waiter: group_commit._Waiter) -> bool:
        leads = super()._enter(waiter)
        if waiter not in self.others:
            waiter.owed.append(self.owed)
            self.debts.add(self.owed)
        return leads

    def sync(self) -> int:
        """Sync up to 7."""
        for each in self.late:
            assert not self._enter(each)
        return 7

    def check(self) -> None:
        """Fail if one waits for ever: each is awake, or a leader is that owes it its waking, or that is before it."""
        awake = {each for each in self.others if not each.wake.locked()}
        leaders = {each for each in self.others if each.leads}
        behind = {other for each in leaders for other in (*each.owed, *self._waiters)}
        assert len(leaders) == self._has_leader
        assert leaders <= awake
        assert {*self._waiters, *self.debts} <= awake | behind


class TimeIsUp(BaseException):
    """What the handler of a signal raises: no Exception, as what some test runners and libraries raise."""


ALLOCATES = ("BUILD_LIST", "LIST_EXTEND", "LIST_APPEND", "MAKE_FUNCTION", "BUILD_SLICE", "BINARY_S", "GET_ITER")


def is_possible(point: Point, error: type[BaseException]) -> bool:
    """Whether it may be raised there: by a signal's handler, or because memory is short."""
    if point.kind is Kind.ELSEWHERE:
        return error is MemoryError and any(f" {name}" in point.where for name in ALLOCATES)
    return point.kind is Kind.REFUSED or error is KeyboardInterrupt


def points_of_a_leader() -> list[tuple[Point, type[BaseException]]]:
    """Return the points of a wait at which it may be interrupted, or find no memory."""
    leading = Leading()
    points = points_of(lambda: leading.wait(7))
    return [
        (point, error)
        for error in (KeyboardInterrupt, MemoryError, TimeIsUp)
        for point in points
        if is_possible(point, error)
    ]


@pytest.mark.parametrize(("point", "error"), points_of_a_leader())
def test_a_leader_that_is_interrupted_anywhere_leaves_no_thread_that_waits_for_ever(
    point: Point, error: type[BaseException]
) -> None:
    """Each other thread is awake, or owed its waking by one that is, or lined up behind one that is."""
    leading = Leading()
    with guarded():
        assert interrupted(lambda: leading.wait(7), point, error) is not None
        leading.check()


def test_a_thread_that_is_woken_twice_is_woken_once() -> None:
    """Its waking may have been interrupted behind the call that did it."""
    waiter, woken, asleep = (group_commit._Waiter(ticket) for ticket in (1, 2, 3))
    woken.wake.release()
    waiter.owed = [asleep, woken]
    group_commit._wake(waiter)
    assert waiter.owed == []
    assert not woken.wake.locked()
    assert not asleep.wake.locked()


@pytest.mark.parametrize("left", range(1, 40))
def test_a_leader_whose_stack_is_full_hands_over(threads: Threads, left: int) -> None:
    """It gets a RecursionError, if anything, and all others go on."""
    commits = GroupCommit(lambda: 7)

    def down(frames: int) -> None:
        if frames:
            down(frames - 1)
        else:
            commits.wait(7)

    with guarded(), suppress(RecursionError):
        down(sys.getrecursionlimit() - len(inspect.stack(0)) - left)
    threads.start(lambda: commits.wait(7))
    threads.join()
    assert not commits._has_leader

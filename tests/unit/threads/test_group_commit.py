"""Threads that share a sync, when one of them is interrupted on its way out."""

from __future__ import annotations

import pytest

from holdfast.queue.threads import group_commit
from holdfast.queue.threads.group_commit import GroupCommit
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
    assert waiter.has_left
    assert commits._waiters == []

"""Commits over several queues of the mode "shared" while real processes die: nothing is ever half done."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import (
    PersistentQueue,
    RetryableError,
    TransactionNotFoundError,
    TransactionStateError,
    transaction,
)
from holdfast.queue.client.shared_resolver import SharedResolver
from holdfast.queue.transactions import two_phase
from holdfast.queue.transactions.branch import Branch
from holdfast.queue.transactions.shared_branch import SharedBranch
from support.owners.in_processes import drained, hold
from support.processes.children import child
from support.processes.threads import wait_until


def move(first: PersistentQueue, second: PersistentQueue) -> None:
    """Take a message from one queue, and put one into each."""
    with transaction(first, second) as tx:
        tx.ack(first, tx.receive(first, timeout=5))
        tx.put(first, b"b")
        tx.put(second, b"c")


def die(*arguments: object) -> None:
    """Be killed here."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("place", "is_committed"),
    [((SharedBranch, "decide"), False), ((two_phase, "_follow"), True), ((SharedBranch, "end_deciding"), True)],
    ids=["before it decides", "before the others follow", "before it ends"],
)
@pytest.mark.parametrize("other_mode", ["shared", "exclusive"])
def test_a_killed_client_leaves_nothing_half_done(
    tmp_path: Path, place: tuple[object, str], is_committed: bool, other_mode: str
) -> None:
    """The owners live. The part of the other queue follows when it is opened, or looked at, next."""
    paths = tmp_path / "q0", tmp_path / "q1"

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*place, die)
            with (
                PersistentQueue(paths[0], mode="shared", can_own=False) as first,
                PersistentQueue(paths[1], mode=other_mode) as second,  # type: ignore[arg-type]  # one of both
            ):
                move(first, second)

    with PersistentQueue(paths[0], mode="shared") as first:
        first.put(b"a")
        with child(work) as client:
            assert client.wait() == -signal.SIGKILL
        with PersistentQueue(paths[1], mode=other_mode) as second:  # type: ignore[arg-type]  # one of both
            wait_until(lambda: second.prepared() == [])
            assert drained(second) == ([b"c"] if is_committed else [])
        wait_until(lambda: first.prepared() == [])
        assert drained(first) == ([b"b"] if is_committed else [b"a"])


@pytest.mark.parametrize("other_mode", ["shared", "exclusive"])
def test_the_owner_that_decides_is_killed_before_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_mode: str
) -> None:
    """Its successor knows nothing begun, so it refuses: aborted everywhere."""
    paths, ready = (tmp_path / "q0", tmp_path / "q1"), tmp_path / "ready"
    with child(lambda: hold(paths[0], ready)) as owner:
        wait_until(ready.exists)
        with (
            PersistentQueue(paths[0], mode="shared") as first,
            PersistentQueue(paths[1], mode=other_mode) as second,  # type: ignore[arg-type]  # one of both
        ):
            first.put(b"a")
            decide = SharedBranch.decide

            def kill_first(self: SharedBranch, *arguments: object) -> range:
                owner.kill()
                owner.wait()
                return decide(self, *arguments)  # type: ignore[arg-type]  # as they are

            monkeypatch.setattr(SharedBranch, "decide", kill_first)
            with pytest.raises(TransactionStateError, match="was begun with another owner"):
                move(first, second)
            assert first.is_owner
            assert [queue.prepared() for queue in (first, second)] == [[], []]
            assert [drained(queue) for queue in (first, second)] == [[b"a"], []]


@pytest.mark.parametrize("which", [0, 1])
def test_an_owner_is_killed_before_the_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """The one that has decided, or the one that has to follow: the commit counts in both."""
    paths, ready = (tmp_path / "q0", tmp_path / "q1"), tmp_path / "ready"
    with child(lambda: hold(paths[which], ready)) as owner:
        wait_until(ready.exists)
        with (
            PersistentQueue(paths[0], mode="shared") as first,
            PersistentQueue(paths[1], mode="shared") as second,
        ):
            first.put(b"a")
            follow: Callable[..., None] = two_phase._follow

            def kill_first(*arguments: object) -> None:
                owner.kill()
                owner.wait()
                follow(*arguments)

            monkeypatch.setattr(two_phase, "_follow", kill_first)
            move(first, second)
            assert [queue.prepared() for queue in (first, second)] == [[], []]
            assert [drained(queue) for queue in (first, second)] == [[b"b"], [b"c"]]
            monkeypatch.undo()
            first.put(b"a")
            move(first, second)
            assert [drained(queue) for queue in (first, second)] == [[b"b"], [b"c"]]


def test_a_part_stays_in_doubt_while_the_owner_that_decides_is_asked_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client lives, and has not decided yet."""
    paths, ready = (tmp_path / "q0", tmp_path / "q1"), tmp_path / "ready"
    with (
        child(lambda: hold(paths[0], ready)),
        PersistentQueue(paths[1], mode="shared") as other,
    ):
        wait_until(ready.exists)
        with PersistentQueue(paths[0], mode="shared") as first, PersistentQueue(paths[1], mode="shared") as second:
            first.put(b"a")
            seen: list[list[str]] = []
            decide = SharedBranch.decide

            def look_first(self: SharedBranch, *arguments: object) -> range:
                seen.append([each.id for each in other.prepared()])
                return decide(self, *arguments)  # type: ignore[arg-type]  # as they are

            monkeypatch.setattr(SharedBranch, "decide", look_first)
            move(first, second)
            assert [len(each) for each in seen] == [1]
            assert other.prepared() == []
            assert drained(other) == [b"c"]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_part_follows_when_a_handle_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_committed: bool
) -> None:
    """The owner that has decided is in another process. What cannot follow now stays in doubt."""
    paths, ready = (tmp_path / "q0", tmp_path / "q1"), tmp_path / "ready"

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*((two_phase, "_follow") if is_committed else (SharedBranch, "decide")), die)
            with (
                PersistentQueue(paths[0], mode="shared", can_own=False) as first,
                PersistentQueue(paths[1], mode="shared", can_own=False) as second,
            ):
                first.put(b"a")
                move(first, second)

    with child(lambda: hold(paths[0], ready)), PersistentQueue(paths[1], mode="shared") as second:
        wait_until(ready.exists)
        with child(work) as client:
            assert client.wait() == -signal.SIGKILL
        assert second.prepared_count() == 1

        def refuse(*arguments: object) -> None:
            raise RetryableError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(SharedResolver, "_follow_other", refuse)
            assert len(second.prepared()) == 1
            assert "stays in doubt: not now" in caplog.text
        wait_until(lambda: second.prepared() == [])
        assert drained(second) == ([b"c"] if is_committed else [])


def test_a_part_that_is_decided_by_its_id_follows_first(tmp_path: Path) -> None:
    """If the other queue has decided, no other queue does."""
    paths, ready = (tmp_path / "q0", tmp_path / "q1"), tmp_path / "ready"

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(two_phase, "_follow", die)
            with (
                PersistentQueue(paths[0], mode="shared", can_own=False) as first,
                PersistentQueue(paths[1], mode="shared", can_own=False) as second,
            ):
                first.put(b"a")
                move(first, second)

    with child(lambda: hold(paths[0], ready)), PersistentQueue(paths[1], mode="shared") as second:
        wait_until(ready.exists)
        with child(work) as client:
            assert client.wait() == -signal.SIGKILL
        (path,) = (paths[1] / "prepared").glob("*.batch")

        def has_followed() -> bool:
            with suppress(TransactionStateError, TransactionNotFoundError):
                second.abort_prepared(path.stem)
            return not path.exists()

        wait_until(has_followed)
        assert drained(second) == [b"c"]


def test_a_branch_of_another_mode_needs_no_owner(tmp_path: Path) -> None:
    """Of two exclusive queues none is asked."""
    with (
        PersistentQueue(tmp_path / "q0", mode="exclusive") as first,
        PersistentQueue(tmp_path / "q1", mode="exclusive") as second,
    ):
        with transaction(first, second) as tx:
            tx.put(first, b"a")
            tx.put(second, b"b")
            assert all(type(each) is Branch for each in tx._branches)
        assert [drained(queue) for queue in (first, second)] == [[b"a"], [b"b"]]

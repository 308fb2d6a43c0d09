"""A shared handle in a forked child: it opens the queue anew at its first use, and leaves to the parent what it has."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast import ClosedError, ForkedError, PersistentQueue, QueueLockedError
from holdfast.queue.owner import owner
from support.processes.children import Child, Signal, child
from support.processes.threads import wait_until


@pytest.mark.parametrize("is_owner", [True, False])
def test_a_forked_child_is_a_client_and_keeps_nothing_of_its_parent(tmp_path: Path, *, is_owner: bool) -> None:
    """Locks and sockets of the parent end with the parent, although the child lives on, and takes over."""
    path, said = tmp_path / "q", Signal()

    def run_child(queue: PersistentQueue) -> None:
        assert queue.put(b"child") == 1
        assert not queue.is_owner
        said.send("done")
        signal.pause()

    def run_parent() -> None:
        with ExitStack() as opened:
            for _ in range(1 if is_owner else 2):
                queue = opened.enter_context(PersistentQueue(path, mode="shared"))
            queue.put(b"parent")
            grandchild = Child(lambda: run_child(queue))
            said.send(str(grandchild.pid))
            signal.pause()

    with child(run_parent) as parent:
        pid = int(said.wait())
        try:
            assert said.wait() == "done"
            os.kill(pid, signal.SIGSTOP)  # it must not take over, nor hold anything up
            parent.kill()
            parent.wait()
            with PersistentQueue(path, mode="shared") as queue:
                assert queue.is_owner
                assert [queue.get(timeout=5), queue.get(timeout=5)] == [b"parent", b"child"]
        finally:
            os.kill(pid, signal.SIGKILL)
    said.close()


@pytest.mark.parametrize("name", ["OwnedQueue", "ServerLoop"])
def test_a_child_that_is_forked_while_an_owner_begins_uses_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The half of an owner is forgotten, and so are all other handles: whichever comes first."""
    ended: list[int] = []
    really = getattr(owner, name)

    def forking(*arguments: Any) -> object:
        monkeypatch.setattr(owner, name, really)  # first: the child begins an owner, too
        with child(lambda: use(tmp_path / "other", others)) as forked:
            ended.append(forked.wait())
        return really(*arguments)

    with (
        PersistentQueue(tmp_path / "first", mode="exclusive") as first,
        PersistentQueue(tmp_path / "q", mode="shared", can_own=False) as queue,
        PersistentQueue(tmp_path / "last", mode="exclusive") as last,
    ):
        others = [first, last]
        monkeypatch.setattr(owner, name, forking)
        queue.put(b"parent")
        assert ended == [0]
        assert queue.get(timeout=5) == b"parent"


def use(path: Path, others: Sequence[PersistentQueue]) -> None:
    """Put into a queue of one's own, in a child; those of the parent refuse."""
    with PersistentQueue(path, mode="shared") as own:
        own.put(b"child")
    for each in others:
        with pytest.raises(ForkedError):
            each.put(b"child")


def test_a_child_that_has_not_used_its_copy_holds_nothing_of_its_parent(tmp_path: Path) -> None:
    """Neither the lock of the owner, nor the session, nor the socket."""
    path, said = tmp_path / "q", Signal()

    def run_parent() -> None:
        queue = PersistentQueue(path, mode="shared")
        queue.put(b"a")
        kept = queue.receive(timeout=5)
        grandchild = Child(signal.pause)
        said.send(str(grandchild.pid))
        signal.pause()
        kept.ack()

    with child(run_parent) as parent:
        pid = int(said.wait())
        try:
            parent.kill()
            parent.wait()
            with PersistentQueue(path, mode="shared") as queue:
                assert queue.is_owner
                assert queue.get(timeout=5) == b"a"
        finally:
            os.kill(pid, signal.SIGKILL)
    said.close()


def test_what_the_parent_has_in_hand_is_refused_in_the_child(tmp_path: Path) -> None:
    """Deliveries, transactions, and the parts of the handle that were looked at before."""
    with PersistentQueue(tmp_path / "q", mode="shared") as owner:
        owner.put_many([b"a", b"b"])
        queue = PersistentQueue(tmp_path / "q", mode="shared")
        delivery, transaction, groups = queue.receive(timeout=5), queue.begin(), queue.groups
        queue.forget_after_fork()  # as the hook of forks calls it
        for call in (delivery.ack, delivery.nack, transaction.commit, lambda: groups.create("more")):
            with pytest.raises(ForkedError):
                call()
        assert queue.put(b"c") == 2
        with pytest.raises(ForkedError):
            delivery.ack()
        with queue:
            assert type(queue) is PersistentQueue
            assert queue.get(timeout=5) == b"b"
            queue.groups.create("more")


def test_any_look_at_a_copy_opens_it_and_a_name_that_it_has_not_does_not(tmp_path: Path) -> None:
    """Properties as well as verbs."""
    looks: list[Callable[[PersistentQueue], object]] = [
        lambda queue: queue.maxsize,
        lambda queue: queue.groups,
        lambda queue: queue.queue_id,
        lambda queue: queue.depth(),
        lambda queue: queue.peek(),
        lambda queue: queue.unfinished_tasks,
        lambda queue: queue.begin().abort(),
    ]
    with PersistentQueue(tmp_path / "q", mode="shared"):
        for look in looks:
            queue = PersistentQueue(tmp_path / "q", mode="shared")
            queue.forget_after_fork()
            assert not hasattr(queue, "no_such_name")
            assert type(queue) is not PersistentQueue
            assert "open" in repr(queue)
            look(queue)
            assert type(queue) is PersistentQueue
            queue.close()


def test_a_copy_that_is_closed_before_its_first_use_is_never_opened(tmp_path: Path) -> None:
    """As behind the ``with`` block of the parent's code."""
    path = tmp_path / "q"
    queue = PersistentQueue(path, mode="shared", can_own=False)
    queue.forget_after_fork()
    with queue:
        pass
    queue.close()
    for call in (lambda: queue.put(b"a"), queue.stats):
        with pytest.raises(ClosedError):
            call()
    queue.forget_after_fork()  # in a child of the child
    with pytest.raises(ClosedError):
        queue.put(b"a")


@pytest.mark.parametrize("end", ["close", "shutdown"])
def test_a_copy_of_a_handle_that_had_ended_stays_so(tmp_path: Path, end: str) -> None:
    """It is not opened for that."""
    queue = PersistentQueue(tmp_path / "q", mode="shared", can_own=False)
    getattr(queue, end)()
    queue.forget_after_fork()
    with pytest.raises(ForkedError):
        queue.put(b"a")


def test_a_copy_that_cannot_be_opened_is_opened_by_a_later_use(tmp_path: Path) -> None:
    """The error is that of opening."""
    path = tmp_path / "q"
    queue = PersistentQueue(path, mode="shared", can_own=False)
    queue.forget_after_fork()
    with PersistentQueue(path, mode="exclusive"), pytest.raises(QueueLockedError):
        queue.put(b"a")
    with queue:
        assert queue.put(b"a") == 0


def test_a_copy_of_a_copy_opens_the_queue_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was used before, or not, or was being opened by another thread."""
    path = tmp_path / "q"
    with PersistentQueue(path, mode="shared") as owner:
        queue = PersistentQueue(path, mode="shared")
        queue.forget_after_fork()
        queue.forget_after_fork()
        assert queue.put(b"a") == 0
        queue.forget_after_fork()

        def interrupted(queue: PersistentQueue) -> None:
            queue.forget_after_fork()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(PersistentQueue, "_open_parts", interrupted)
            with pytest.raises(KeyboardInterrupt):
                queue.put(b"b")
        assert queue.put(b"b") == 1
        queue.close()
        assert owner.is_owner


def test_a_copy_whose_class_an_interruption_has_kept_works_and_closes(tmp_path: Path) -> None:
    """It is open, and nothing of it is missing."""
    path = tmp_path / "q"
    queue = PersistentQueue(path, mode="shared", can_own=False)
    copy = type(queue)
    queue.forget_after_fork()
    kept = type(queue)
    queue._opening.begin(queue)  # type: ignore[attr-defined]
    queue.__class__ = kept
    assert queue.put(b"a") == 0
    queue._opening.begin(queue)  # type: ignore[attr-defined]  # as a second thread that has waited for the first one
    assert type(queue) is copy
    queue.__class__ = kept
    queue.close()
    assert type(queue) is copy
    with pytest.raises(ClosedError):
        queue.put(b"b")


def test_the_next_owner_is_found_while_a_child_uses_the_queue(tmp_path: Path) -> None:
    """The owner's child is a client like any other, and may own once its parent has ended."""
    path, said = tmp_path / "q", Signal()

    def run_child(queue: PersistentQueue) -> None:
        queue.put(b"a")
        said.send("put")
        wait_until(lambda: queue.put(b"b") > 0 and queue.is_owner)
        said.send("owner")
        signal.pause()

    def run_parent() -> None:
        with PersistentQueue(path, mode="shared") as queue:
            grandchild = Child(lambda: run_child(queue))
            said.send(str(grandchild.pid))
            signal.pause()

    with child(run_parent) as parent:
        pid = int(said.wait())
        try:
            assert said.wait() == "put"
            parent.kill()
            parent.wait()
            assert said.wait() == "owner"
        finally:
            os.kill(pid, signal.SIGKILL)
    said.close()

"""Joint commits in each mode: by the owner, here or in another process, by nobody, and where they are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from holdfast import (
    ClosedError,
    Full,
    PersistentQueue,
    TransactionNotFoundError,
    TransactionStateError,
    UsageError,
    verify,
)
from support.builders.joint import APP, commit, part
from support.builders.transactions import open_queue, prepared_ids, waiting
from support.processes.children import Signal, child
from support.storages.simulated_storage import SimulatedStorage


def _own(path: Path, ready: Signal, done: Signal) -> None:
    with PersistentQueue(path, mode="shared"):
        ready.send()
        done.wait()


@pytest.fixture(params=["exclusive", "owner", "client of us", "client of a process", "alone for each call"])
def putter(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PersistentQueue]:
    """A handle of each kind that puts."""
    path = tmp_path / "orders"
    if request.param == "exclusive":
        with PersistentQueue(path, mode="exclusive") as queue:
            yield queue
        return
    with ExitStack() as stack:
        if request.param == "client of us":
            stack.enter_context(PersistentQueue(path, mode="shared"))
        elif request.param == "client of a process":
            ready, done = Signal(), Signal()
            owner = stack.enter_context(child(partial(_own, path, ready, done)))
            ready.wait()
            stack.callback(owner.wait)
            stack.callback(done.send)
        queue = stack.enter_context(PersistentQueue(path, mode="shared", can_own=request.param == "owner"))
        assert queue.is_owner == (request.param == "owner")
        yield queue


def test_every_mode_that_puts_commits_jointly(putter: PersistentQueue) -> None:
    """With the same results and the same errors, whoever does it."""
    joint = putter.joint_commits
    for name, version in (("a", 1), ("b", 1), ("loser", 1), ("c", 2)):
        part(putter, name, version)
    with pytest.raises(TransactionNotFoundError, match="nothing was committed"):
        commit(putter, 1, "a", "missing")
    with pytest.raises(TransactionStateError, match="not prepared as a part of"):
        commit(putter, 1, "a", "c")
    assert joint.latest(APP) is None
    commit(putter, 1, "b", "a")
    commit(putter, 1, "b", "a")
    assert joint.latest(APP) == 1
    with pytest.raises(TransactionStateError, match="too late"):
        part(putter, "late", 1)
    with pytest.raises(TransactionStateError, match="joint_commits decides it"):
        putter.abort_prepared("c")
    assert prepared_ids(putter) == ["c"]
    joint.abort(APP, 2)
    part(putter, "d", 3)
    joint.collect(3600)
    assert prepared_ids(putter) == ["d"]
    joint.collect(0)
    assert putter.prepared() == []
    with PersistentQueue(putter.path, mode="read_only") as look:
        assert waiting(look) == [b"b", b"a"]
    assert verify(putter.path).ok


def test_who_cannot_put_cannot_commit_but_sees_the_latest(storage: SimulatedStorage) -> None:
    """The error says that another mode is needed, and nothing changes."""
    with open_queue(storage) as queue:
        part(queue, "a", 3)
        commit(queue, 3, "a")
        part(queue, "b", 4)
    files = storage.tree()
    with open_queue(storage, mode="read_only") as queue:
        joint = queue.joint_commits
        assert (joint.latest(APP), joint.latest("nobody")) == (3, None)
        for call in (partial(joint.commit, APP, 4, ["b"]), partial(joint.abort, APP, 4), partial(joint.collect, 0)):
            with pytest.raises(UsageError, match="mode"):
                call()
    assert storage.tree() == files
    with open_queue(storage) as queue:
        assert prepared_ids(queue) == ["b"]


def test_a_closed_handle_decides_nothing(storage: SimulatedStorage) -> None:
    """Nor does it say anything."""
    queue = open_queue(storage)
    queue.close()
    joint = queue.joint_commits
    calls: list[Callable[[], object]] = [partial(joint.latest, APP), partial(joint.commit, APP, 1, [])]
    for call in [*calls, partial(joint.abort, APP, 1), partial(joint.collect, 0)]:
        with pytest.raises(ClosedError):
            call()


def test_a_bounded_queue_has_let_parts_in(storage: SimulatedStorage) -> None:
    """Preparing waits for room, and is refused where there is none; committing never is."""
    with open_queue(storage, maxsize=3) as queue:
        queue.put(b"one")
        part(queue, "a", 1, b"a 1", b"a 2")
        with pytest.raises(Full):
            part(queue, "b", 1, b"1", b"2", b"3", timeout=0.05)
        queue.put_many([b"two", b"three"])
        with pytest.raises(Full):
            part(queue, "b", timeout=0.05)
        commit(queue, 1, "a")
        assert waiting(queue) == [b"one", b"two", b"three", b"a 1", b"a 2"]

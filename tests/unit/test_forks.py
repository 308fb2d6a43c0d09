"""What a forked child forgets of its parent, though it is interrupted there."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from unittest.mock import Mock

import pytest

from holdfast import ForkedError, HoldfastError, PersistentQueue, forks
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.producer.nonces import next_nonce
from holdfast.queue.threads import lifecycle
from holdfast.queue.transport import open_sockets
from holdfast.queue.transport.connection import Connection, ConnectionLostError
from holdfast.service.catalog import database
from holdfast.service.workers.processes import worker_process
from support.processes.children import Child, child
from support.processes.interruptions import Kind, Point, interrupted, points_of, without_hanging

GATES = [locks._gate, open_sockets._gate, database._connecting, worker_process._processes_lock]

BEGINNING = [forks.forget_left, *(each for each in forks._all if isinstance(each, FunctionType | MethodType))]
"""Not those that are written in C, in which Python looks for no signal."""


def go_through(gate: threading.RLock) -> None:
    """Close it and open it."""
    with gate:
        pass


class Striking:
    """Sends Ctrl-C as a function begins: the interpreter delivers it there."""

    def __init__(self, function: Callable[[], object], times: int) -> None:
        self._function = getattr(function, "__func__", function)
        self._left = times

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Watch."""
        if event == "call" and self._left and frame.f_code is self._function.__code__:
            self._left -= 1
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("function", BEGINNING, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_a_child_that_is_interrupted_as_it_forgets_forgets_all_the_same(
    function: Callable[[], object], times: int, tmp_path: Path
) -> None:
    """Five times in a row too: its nonces are other ones, no gate is closed, and its copies are refused."""

    def look() -> None:
        sys.setprofile(None)
        assert forks.left == []
        for gate in GATES:
            without_hanging(partial(go_through, gate))
        assert next_nonce()[:8] != own
        with pytest.raises(ForkedError):
            exclusive.put(b"x")
        assert shared.put(b"x") == 1
        shared.close()

    own = next_nonce()[:8]
    with (
        PersistentQueue(tmp_path / "exclusive", mode="exclusive") as exclusive,
        PersistentQueue(tmp_path / "shared", mode="shared") as shared,
    ):
        shared.put(b"of the parent")
        before = sys.getprofile()
        sys.setprofile(Striking(function, times))
        try:
            with child(look) as forked:
                sys.setprofile(before)
                assert forked.wait() == 0
        finally:
            sys.setprofile(before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("gate", GATES, ids=["locks", "sockets", "catalogue", "worker processes"])
def test_ctrl_c_beside_a_closed_gate_ends_the_wait_of_a_fork_and_leaves_the_gate(gate: threading.RLock) -> None:
    """It is still the other thread's in the parent, and open in the child."""
    is_closed, may_open, failures = threading.Event(), threading.Event(), list[BaseException]()

    def close() -> None:
        try:
            with gate:
                is_closed.set()
                may_open.wait(30)
        except BaseException as error:
            failures.append(error)

    other = threading.Thread(target=close)
    other.start()
    assert is_closed.wait(30)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with child(partial(without_hanging, partial(go_through, gate))) as forked:
            assert forked.wait() == 0
        assert not gate.acquire(blocking=False)
    finally:
        may_open.set()
        other.join()
        timer.join()
    assert failures == []
    without_hanging(partial(go_through, gate))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_call_of_a_child_before_it_has_forgotten_costs_its_parent_nothing(mode: str, tmp_path: Path) -> None:
    """As of a handler of signals; it writes into no file of the parent, and asks its owner nothing in its name."""
    may_go_on, tell = os.pipe()

    def strike(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is forks.forget_left.__code__ and os.getpid() != parent:
            sys.setprofile(None)
            os.read(may_go_on, 1)
            for queue in (owner, client):
                with suppress(HoldfastError):
                    queue.put(b"of the child")

    parent, before = os.getpid(), sys.getprofile()
    with (
        PersistentQueue(tmp_path / "q", mode=mode) as owner,  # type: ignore[arg-type]
        PersistentQueue(tmp_path / "q", mode=mode) if mode == "shared" else nullcontext(owner) as client,  # type: ignore[arg-type]
    ):
        owner.put(b"one")
        client.put(b"two")
        sys.setprofile(strike)
        try:
            forked = Child(lambda: None)
        finally:
            sys.setprofile(before)
        offsets = [queue.put(b"of the parent") for queue in (owner, client)]
        os.write(tell, b"x")
        assert forked.wait() == 0
        offsets.append(owner.put(b"of the parent"))
    with PersistentQueue(tmp_path / "q", mode=mode) as again:  # type: ignore[arg-type]
        found = {each.offset: each.payload for each in again.receive_many(99, timeout=0)}
    assert [found[each] for each in offsets] == [b"of the parent"] * 3
    assert [found[0], found[1]] == [b"one", b"two"]
    for each in (may_go_on, tell):
        os.close(each)


@pytest.mark.parametrize("use", ["write", "sync", "nonce", "ask"])
def test_what_is_left_is_forgotten_before_anything_of_the_parent_is_used(use: str, tmp_path: Path) -> None:
    """Here in this process, which has forgotten nothing."""
    forget = Mock()
    near, far = socket.socketpair()
    with OsStorage().open(tmp_path / "file", create=True) as file, near, far:
        connection = Connection(near)
        connection.close()
        uses: dict[str, Callable[[], object]] = {
            "write": lambda: file.write_at((b"x",), 0),
            "sync": file.sync,
            "nonce": next_nonce,
            "ask": lambda: connection.ask(1, [b"x"]),
        }
        forks.left.append(forget)
        with suppress(ConnectionLostError):
            uses[use]()
        assert forks.left == []
        assert forget.call_count == 1


def test_one_that_fails_for_good_keeps_no_other_from_being_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried as often as there are attempts."""
    fails, works = Mock(side_effect=MemoryError), Mock()
    monkeypatch.setattr(forks, "left", [fails, works])
    for _ in range(3):
        with pytest.raises(MemoryError):
            forks.forget_left()
    assert works.call_count == 1
    fails.side_effect = None
    forks.forget_left()
    forks.forget_left()
    assert fails.call_count == 4


def test_a_handler_that_comes_meanwhile_forgets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way then ends, or fails, as it would have."""
    calls: list[str] = []

    def interrupted_once(name: str, error: BaseException | None) -> None:
        calls.append(name)
        if calls == [name]:
            forks.forget_left()
            if error is not None:
                raise error

    for error in (None, KeyboardInterrupt()):
        calls.clear()
        first, second = partial(interrupted_once, "first", error), Mock()
        monkeypatch.setattr(forks, "left", [first, second])
        with pytest.raises(KeyboardInterrupt) if error is not None else nullcontext():
            forks.forget_left()
        assert calls == ["first", "first"]
        assert second.call_count == 1
        assert forks.left == []


@pytest.mark.parametrize(("mode", "is_owner"), [("exclusive", True), ("shared", True), ("shared", False)])
def test_a_copy_that_is_interrupted_as_it_forgets_can_begin_anew(mode: str, tmp_path: Path, *, is_owner: bool) -> None:
    """Wherever it is: a copy of a shared handle is opened anew then, and any other one refuses all."""
    path = tmp_path / "q"
    told, tell = os.pipe()

    def find() -> None:
        points = [each for each in points_of(queue.forget_after_fork) if each.kind is Kind.DELIVERED]
        os.write(tell, "\n".join(f"{each.number} {each.where}" for each in points).encode())

    def forget_twice(point: Point) -> None:
        interrupted(queue.forget_after_fork, point)
        queue.forget_after_fork()
        if mode == "shared":
            assert queue.put(b"x") > 0
            queue.close()
        else:
            with pytest.raises(ForkedError):
                queue.put(b"x")

    with ExitStack() as opened:
        for _ in range(1 if is_owner else 2):
            queue = opened.enter_context(PersistentQueue(path, mode=mode))  # type: ignore[arg-type]
        queue.put(b"of the parent")
        lifecycle._open.discard(queue)  # the child forgets it by hand
        with child(find) as forked:
            assert forked.wait() == 0
        lines = os.read(told, 2**16).decode().splitlines()
        assert len(lines) > 10
        for line in lines:
            number, _, where = line.partition(" ")
            with child(partial(forget_twice, Point(int(number), Kind.DELIVERED, where))) as forked:
                assert forked.wait() == 0, line
        lifecycle.watch(queue)
    os.close(told)
    os.close(tell)

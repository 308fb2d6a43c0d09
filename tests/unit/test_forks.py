"""What a forked child forgets of its parent, though it is interrupted there."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from unittest.mock import Mock

import pytest

from holdfast import ForkedError, PersistentQueue, forks
from holdfast.persistence.filesystem import locks
from holdfast.queue.producer.nonces import next_nonce
from holdfast.queue.threads import lifecycle
from holdfast.queue.transport import open_sockets
from holdfast.service.catalog import database
from support.processes.children import child
from support.processes.interruptions import Kind, Point, interrupted, points_of, without_hanging

GATES = [locks._gate, open_sockets._gate, database._connecting]

BEGINNING = [forks._forget_left, *(each for each in forks._all if isinstance(each, FunctionType | MethodType))]
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
        assert forks._left == []
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
@pytest.mark.parametrize("gate", GATES, ids=["locks", "sockets", "catalogue"])
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


def test_one_that_fails_for_good_keeps_no_other_from_being_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried as often as there are attempts."""
    fails, works = Mock(side_effect=MemoryError), Mock()
    monkeypatch.setattr(forks, "_left", [fails, works])
    for _ in range(3):
        with pytest.raises(MemoryError):
            forks._forget_left()
    assert works.call_count == 1
    fails.side_effect = None
    forks._forget_left()
    forks._forget_left()
    assert fails.call_count == 4


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

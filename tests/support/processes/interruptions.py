"""KeyboardInterrupt at any point of a call, and calls that may find a lock left locked.

CPython delivers a signal only where it looks for one (``CHECK_EVAL_BREAKER`` in ceval.c): where a Python function
begins, behind a call, and at a jump back; in 3.11 that is RESUME, CALL and the jumps, and a test of the crash suite
holds it to that. A C function that waits or calls the operating system may hear of it by itself, and then raises before
it has done anything. So there are three kinds of points at which an interruption can be, and all bytecodes between them
are points at which there can be none:

- ``DELIVERED``: the interruption is pending, and CPython itself delivers it at its next look;
- ``REFUSED``: a call raises, and has done nothing;
- ``DONE``: a verb of the storage raises, and has done all, or a step of it;
- ``ELSEWHERE``: before any other bytecode. Nothing promises anything here: ``with lock:`` itself is open to it.

Watched are our own bytecodes, and those of the standard library that hold locks and contexts for them.
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import holdfast
from holdfast import CommitUnknownError, HoldfastError, PoisonedError
from support.storages import simulated_storage

SOURCE = str(Path(holdfast.__file__).parent)
WATCHED = (SOURCE, str(threading.__file__), str(contextlib.__file__))
STORAGE = str(simulated_storage.__file__)
HANG_SECONDS = 20.0

_CALLS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW") if name in dis.opmap}
_LOOKS = _CALLS | {number for name, number in dis.opmap.items() if "JUMP_BACKWARD" in name}
_REFUSES = _CALLS | {dis.opmap[name] for name in ("BEFORE_WITH",) if name in dis.opmap}

_RETURNED = " has returned"
_SKIPPED = {"PRECALL", "CACHE", "KW_NAMES"}
_LOADS = {"LOAD_METHOD", "LOAD_ATTR"}


def pending() -> Iterator[object]:
    """Return what makes an interruption pending, as Ctrl-C does, when a loop in the main thread takes from it.

    A call would deliver it on its return; a loop over this makes none.
    """
    return iter(_thread.interrupt_main, pending)


class Kind(Enum):
    """How an interruption comes about: see above."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    DONE = "done"
    ELSEWHERE = "elsewhere"


class Point(NamedTuple):
    """A point of a call: how often its place has been come to, from 1 on, what happens there, and where that is."""

    number: int
    kind: Kind
    where: str = ""

    @property
    def function(self) -> str:
        """The name of the function it is in, as :func:`_where` and what a verb of the storage returns begin."""
        return self.where.removesuffix(_RETURNED).partition(":")[0]


class _Watch:
    """Counts what happens in a call, and interrupts it at a point; without one, it notes all points that there are.

    With a point, only the functions of its name are traced opcode by opcode, which takes less time.
    """

    def __init__(self, point: Point | None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self._point = point
        self._error = error
        self._function = None if point is None else point.function
        self._counts: Counter[str] = Counter()
        self._open = 0  # the number of an opcode that does not look by itself, and may come to call something
        self._where = ""
        self.points: list[Point] = []
        self.is_reached = False
        self._pending = pending()

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if event == "call":
            return self._enter(frame)
        if event == "opcode":
            if self._point is None:
                self._note(frame)
            elif self._is_there(_where(frame)):
                self.is_reached = True
                if self._point.kind is not Kind.DELIVERED:
                    raise self._error
                sys.settrace(None)  # else this function would be where the interpreter looks next, behind a yield too
                for _ in self._pending:
                    return None
        elif event == "return" and name == STORAGE:
            if self._point is None:
                self._where = frame.f_code.co_qualname + _RETURNED
                self._counts[self._where] += 1
                self.points.append(Point(self._counts[self._where], Kind.DONE, self._where))
            elif self._is_there(frame.f_code.co_qualname + _RETURNED):
                self.is_reached = True
                raise self._error
        return self

    def _enter(self, frame: FrameType) -> Any:
        """Return what traces a call that begins; None, nothing."""
        code = frame.f_code
        if self._open:
            self.points.append(Point(self._open, Kind.DELIVERED, self._where))
            self._open = 0
        if self._function not in {None, code.co_qualname}:
            return None
        if code.co_filename.startswith(WATCHED):
            frame.f_trace = self  # from 3.13 on opcodes are traced in frames only that have it by now
            frame.f_trace_lines = False
            frame.f_trace_opcodes = True
            return self
        if code.co_filename == STORAGE:
            frame.f_trace_lines = False
            return self
        return None

    def _is_there(self, where: str) -> bool:
        """Whether this is the point; it is told by how often something has happened in one place."""
        if self._point is None or self.is_reached or where != self._point.where:
            return False
        self._counts[where] += 1
        return self._counts[where] == self._point.number

    def _note(self, frame: FrameType) -> None:
        opcode = frame.f_code.co_code[frame.f_lasti]
        self._where = _where(frame)
        self._counts[self._where] += 1
        count = self._counts[self._where]
        self._open = 0
        if opcode in _LOOKS:
            self.points.append(Point(count, Kind.DELIVERED, self._where))
        elif not dis.opname[opcode].startswith("RETURN_"):  # behind which our own go on without a look
            self._open = count
        kind = (
            Kind.REFUSED if opcode in _REFUSES and frame.f_lasti not in _that_let_go(frame.f_code) else Kind.ELSEWHERE
        )
        self.points.append(Point(count, kind, self._where))


def _where(frame: FrameType) -> str:
    """Return what identifies an opcode, also where calls before it have taken another number of steps."""
    code, at = frame.f_code, frame.f_lasti
    return f"{code.co_qualname}:{frame.f_lineno} {dis.opname[code.co_code[at]]} {at}"


@cache
def _that_let_go(code: CodeType) -> frozenset[int]:
    """Return where calls unlock something, which never refuses: ends of ``with`` blocks, and ``release()``."""
    found = set()
    before: list[dis.Instruction] = []
    for each in dis.get_instructions(code):
        if each.opcode in _REFUSES:
            is_end = [(last.opname, last.argval) for last in before[-3:]] == [("LOAD_CONST", None)] * 3
            is_release = bool(before) and before[-1].opname in _LOADS and before[-1].argval == "release"
            if is_end or is_release:
                found.add(each.offset)
        if each.opname not in _SKIPPED:
            before.append(each)
    return frozenset(found)


def trace_opcodes(watch: Callable[[FrameType, str, Any], Any]) -> None:
    """Trace this thread; 3.12 traces opcodes only if some frame has asked for that before."""
    sys._getframe().f_trace_opcodes = True
    sys.settrace(watch)


def points_of(call: Callable[[], object]) -> list[Point]:
    """Make a call and return all points of it, those of kind ``ELSEWHERE`` too."""
    watch, before = _Watch(None), sys.gettrace()
    trace_opcodes(watch)
    try:
        call()
    finally:
        sys.settrace(before)  # of whoever measures what tests reach
    return watch.points


def interrupted(
    call: Callable[[], object], point: Point, error: type[BaseException] = KeyboardInterrupt
) -> BaseException | None:
    """Make a call, interrupt it at a point, and return what came out; None: it did not come so far.

    ``error``: what is raised there, MemoryError for example; CPython itself delivers nothing but Ctrl-C.

    Where it was interrupted so late that it has returned, that is an interruption behind it. Who holds on to what comes
    out is as one who handles it: the frames of the call are there still. Python's own ``Condition.wait``, by which it
    starts threads, makes a RuntimeError of an interruption; that counts as one.
    """
    assert callable(signal.getsignal(signal.SIGINT)), "Ctrl-C does nothing here"  # Spark has a handler of its own
    watch, before = _Watch(point, error), sys.gettrace()
    try:
        try:
            trace_opcodes(watch)
            call()
        finally:
            sys.settrace(before)  # delivers what is pending still
    except (KeyboardInterrupt, HoldfastError, error) as raised:
        return raised
    except RuntimeError as raised:
        if not isinstance(raised.__context__, KeyboardInterrupt) or "release unlocked lock" not in str(raised):
            raise
        return raised
    return KeyboardInterrupt() if watch.is_reached else None


def interrupt(call: Callable[[], object], at: int) -> bool:
    """Make a call and interrupt it at point number ``at``; return whether it came so far, whatever became of it.

    The points are those where the interpreter looks for signals: where a function of ours begins, and where one that is
    written in C has returned to ours. A loop's jump back is one too; ours call something in every turn.
    """
    count = 0

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        if event in {"call", "c_return"} and frame.f_code.co_filename.startswith(SOURCE):
            count += 1
            if count == at:
                raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return count >= at


class HangError(BaseException):
    """A call does not come to its end; it says where it stands. No handler of errors stops it."""


@contextlib.contextmanager
def guarded(seconds: float = HANG_SECONDS) -> Iterator[None]:
    """Raise :class:`HangError` in the main thread where this takes longer, also while it waits for a lock."""

    def strike(_: int, frame: FrameType | None) -> None:
        stack = traceback.extract_stack(frame, limit=6)
        raise HangError("hangs at " + " < ".join(f"{each.name}:{each.lineno}" for each in reversed(stack)))

    handler = signal.signal(signal.SIGALRM, strike)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def without_hanging(call: Callable[[], object], seconds: float = HANG_SECONDS) -> object:
    """Return what a call returns in a thread of its own; a lock that was left locked fails the test, not the run."""
    results: list[object] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(outcome(call))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the queue hangs after an interruption"
    if failures:
        raise failures[0]
    return results[0]


def outcome(call: Callable[[], object]) -> object:
    """Return what a call returns, or the error of ours that says to reopen."""
    try:
        return call()
    except (PoisonedError, CommitUnknownError) as error:
        return error

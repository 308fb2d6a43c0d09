"""A slice of ``python -m proof.interruptions``: each operation interrupted at some of its points, and real signals."""

import dis
import logging
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast import FlushPolicy
from proof.interruptions.locks import locked
from proof.interruptions.operations import OPERATIONS, Operation
from proof.interruptions.own_operations import OWN_OPERATIONS
from proof.interruptions.signals import Signalled
from proof.interruptions.sweep import find_points, promised, sweep
from proof.interruptions.waiting import WAITS
from support.builders.handles import handle_of
from support.builders.jobs import Jobs
from support.processes.interruptions import HangError, Kind, guarded, pending, trace_opcodes

# An interruption that hits the callback of a weak reference is passed over by the interpreter, which says so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

COUNT = 9
SLICED = {"put", "put_many", "get", "get_many", "receive", "receive_many", "ack", "ack of a batch", "nack", "release"}
SLICED |= {"put without a bound", "put with an id and without a bound"}
SLICED |= {"purge", "purge of deferred ones", "configure", "extend"}
SLICED |= {f"owner: {name}" for name in ("receive", "loop", "extend", "nack, of the owner before")}
SLICED |= {"owner: ack, again by another thread", "owner: ack of what is in other hands, beside a client"}
SLICED |= {"owner: release, beside a thread that waits"}
POLICIES = (FlushPolicy.every_commit(), FlushPolicy.every(commits=3), FlushPolicy.never())


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Poisoning is logged again and again here."""
    caplog.set_level(logging.CRITICAL, "holdfast")


LOCK = threading.Lock()
LOOKS = {"RESUME", "CALL", "JUMP_BACKWARD", "COMPARE_OP", "POP_JUMP_BACKWARD_IF_TRUE"}  # COMPARE_OP: with its jump


EVERY = (*OPERATIONS, *OWN_OPERATIONS)
SLICE = [each for each in EVERY if each.name in SLICED]


@pytest.mark.parametrize("operation", SLICE, ids=lambda each: each.name)
def test_memory_and_disk_agree_or_the_queue_is_poisoned(operation: Operation) -> None:
    """Wherever the interpreter may deliver an interruption; the points are others for each operation."""
    number = EVERY.index(operation)
    policy = POLICIES[number % len(POLICIES)]
    points = promised(find_points(operation, policy))
    assert {Kind.DELIVERED, Kind.REFUSED} <= {each.kind for each in points}, "this interpreter shows no bytecodes"
    step = max(1, len(points) // COUNT)
    swept = sweep(operation, policy, points[number % step :: step])
    assert not swept.violations, swept.violations
    assert swept.judged.total() > COUNT // 2


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("owner: prepare", "WaitingBatches.prepare_in_log:"),
        ("owner: prepare in a file", "WaitingBatches.prepare_staged:"),
        ("configure", "OwnGroup.change:"),
    ],
)
def test_neither_half_a_transaction_nor_a_lock_is_left_at_places_that_once_left_them(name: str, place: str) -> None:
    """Behind what prepares the puts, the vote was aborted alone; at the end of its block a lock stayed taken."""
    (operation,) = (each for each in EVERY if each.name == name)
    points = [each for each in promised(find_points(operation, POLICIES[0])) if each.where.startswith(place)]
    assert points
    swept = sweep(operation, POLICIES[0], points)
    assert not swept.violations, swept.violations


def test_every_operation_has_a_name_of_its_own() -> None:
    """And each of the slice is there."""
    names = [each.name for each in EVERY]
    assert len(set(names)) == len(names)
    assert set(names) >= SLICED


@pytest.mark.parametrize("wait", WAITS, ids=lambda each: each.__name__)
def test_whoever_waits_can_be_interrupted(wait: Callable[[], None]) -> None:
    """The others go on, and so does the queue."""
    wait()


def test_real_signals_lose_and_double_nothing(tmp_path: Path) -> None:
    """On real files, at random moments."""
    run = Signalled(tmp_path / "queue", random.Random(7))
    run.run(0.8)
    assert run.interruption_count > 0


def _sample() -> int:
    """Call, loop, and hold a lock."""
    total = 0
    with LOCK:
        total = total + 1
    for each in (1, 2):
        total = total + each
    while total < 9:
        total = _add(total)
    return total + len("abc")


def _add(number: int) -> int:
    return number + 1


def _data_available() -> Iterator[str]:
    """Make an interruption pending at each bytecode of the sample, and yield the one at which it comes out."""
    codes = {_sample.__code__, _add.__code__}
    count = 0
    while True:
        count += 1
        left = count
        strikes = pending()

        def watch(frame: FrameType, event: str, _: object, strikes: Iterator[int] = strikes) -> Any:
            nonlocal left
            if frame.f_code not in codes:
                return None
            frame.f_trace = watch
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            left -= event == "opcode"
            if left == 0:
                sys.settrace(None)
                for _ in strikes:
                    return None
            return watch

        trace_opcodes(watch)
        try:
            _sample()
            sys.settrace(None)
            return
        except KeyboardInterrupt as error:
            trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        assert trace is not None
        if trace.tb_frame.f_code in codes:  # else the sample was over
            yield dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]]


def test_the_interpreter_delivers_an_interruption_at_calls_and_jumps_back_only() -> None:
    """So no lock that is held by ``with`` stays locked, and the points that are swept are all there are."""
    found = set()
    for name in _data_available():
        assert not LOCK.locked()
        found.add(name)
    assert {"RESUME", "CALL"} < found <= LOOKS


def test_a_call_that_hangs_is_a_failure_that_says_where() -> None:
    """It does not stop the run."""
    lock = threading.Lock()
    with pytest.raises(HangError, match="test_a_call_that_hangs"), guarded(0.01), lock:
        lock.acquire()


def test_a_lock_that_is_left_locked_is_found() -> None:
    """The judge of all this sees one without waiting for it."""
    with Jobs().open() as queue:
        assert not locked(queue)
        with handle_of(queue).require_write_side()._append_lock:
            assert any("_append_lock" in name for name in locked(queue))

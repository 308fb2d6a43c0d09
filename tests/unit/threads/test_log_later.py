"""Records that are made under a lock: said by a thread of their own, or later, in their order and once."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from holdfast import log
from holdfast.clock import SystemClock
from holdfast.queue.threads.poller import unwatch, watch
from holdfast.threads import log_later
from support.processes.children import run_script
from support.processes.interruptions import Kind, interrupted, points_of, without_hanging
from support.processes.log_handlers import is_all_said, messages_said
from support.processes.thread_starts import no_threads
from support.processes.threads import wait_until


class Seen(logging.Handler):
    """Keeps records, and raises once if it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.threads: list[str] = []
        self._error = error

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        self.records.append(record)
        self.threads.append(threading.current_thread().name)


def handled_by(handler: Seen, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Have a handler get the records of this library until the test ends."""
    monkeypatch.setattr(log.logger, "handlers", [*log.logger.handlers, handler])
    return handler


def test_a_record_is_said_by_another_thread_and_names_who_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place, its thread and its traceback are those of the caller."""
    seen = handled_by(Seen(), monkeypatch)
    try:
        raise ValueError("broken")
    except ValueError as error:
        log_later(logging.WARNING, "%s failed", "this", error=error)
    wait_until(lambda: bool(seen.records) and is_all_said())
    (record,) = seen.records
    assert (record.getMessage(), record.filename) == ("this failed", os.path.basename(__file__))
    assert record.funcName == "test_a_record_is_said_by_another_thread_and_names_who_made_it"
    assert record.threadName == threading.current_thread().name
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError
    assert seen.threads == ["holdfast-log"]


def test_records_are_said_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each of them may begin a thread."""
    seen = handled_by(Seen(), monkeypatch)
    for number in range(50):
        log_later(logging.WARNING, "%d", number)
    wait_until(lambda: len(seen.records) == 50)
    assert [record.getMessage() for record in seen.records] == [str(number) for number in range(50)]


def test_a_handler_that_raises_keeps_no_later_record_from_being_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its error is printed, if the module ``logging`` is told to print such errors."""
    seen = handled_by(Seen(ValueError("of a handler")), monkeypatch)
    for number in range(2):
        with no_threads():
            log_later(logging.WARNING, "%d", number)
    log.say_noted()
    wait_until(is_all_said)  # the poller may say them, if it is there
    assert [text for text in (record.getMessage() for record in seen.records) if "no thread" not in text] == ["1"]
    assert "of a handler" in capsys.readouterr().err
    monkeypatch.setattr(logging, "raiseExceptions", False)
    handled_by(Seen(ValueError("of a handler")), monkeypatch)
    log_later(logging.WARNING, "more")
    wait_until(is_all_said)
    assert capsys.readouterr().err == ""


def test_a_record_that_another_thread_says_meanwhile_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two threads may find it, and one is faster."""

    class Late:
        """A lock that another thread has had between the look at the records and this one."""

        def acquire(self, *, blocking: bool) -> bool:
            log._noted.records.clear()
            return True

        def release(self) -> None:
            """Do nothing."""

        def _is_owned(self) -> bool:
            return False

    monkeypatch.setattr(log._noted, "saying", Late())
    with no_threads():
        log_later(logging.WARNING, "one")
    log.say_noted()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interruption_leaves_records_that_others_can_say(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Wherever it is: the lock of who says them is free then."""

    def note_one() -> None:
        handled_by(Seen(), monkeypatch)
        log._noted.records.clear()
        log.note(logging.WARNING, "one")

    note_one()
    points = [each for each in points_of(log.say_noted) if each.kind is Kind.DELIVERED]
    assert len(points) > 5
    for point in points:
        note_one()
        interrupted(log.say_noted, point, error)
        seen = handled_by(Seen(), monkeypatch)
        log.note(logging.WARNING, "two")
        without_hanging(log.say_noted)
        assert [each.getMessage() for each in seen.records][-1:] == ["two"], point.where


def test_a_record_whose_level_is_off_costs_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    """And none is noted."""
    caplog.set_level(logging.ERROR, "holdfast")
    before = threading.active_count()
    log_later(logging.INFO, "nothing")
    assert (threading.active_count(), messages_said(caplog)) == (before, [])


class _Idle:
    def look(self) -> float:
        return 0.01


def test_a_record_without_a_thread_is_said_by_the_poller(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs as long as any queue is open."""
    seen, idle, clock = handled_by(Seen(), monkeypatch), _Idle(), SystemClock()
    watch(idle, clock)
    try:
        with no_threads("holdfast-log"):
            log_later(logging.WARNING, "late")
        wait_until(lambda: bool(seen.records))
    finally:
        unwatch(idle, clock)
    assert set(seen.threads) == {"holdfast-watcher"}


AT_THE_END = """
import atexit, logging, sys
from holdfast.threads import log_later
logging.basicConfig(format="%(message)s", stream=sys.stdout)
atexit.register(lambda: log_later(logging.WARNING, "the last"))  # before the end of our threads
log_later(logging.WARNING, "one")
"""

BEHIND_OUR_END = """
import atexit, logging, sys
logging.basicConfig(format="%(message)s", stream=sys.stdout)
atexit.register(lambda: log_later(logging.WARNING, "the last"))  # it runs behind the end of our threads
from holdfast.threads import log_later
log_later(logging.WARNING, "one")
"""

FORKED = """
import logging, os, sys
from holdfast import log
from support.processes.thread_starts import no_threads
from holdfast.threads import log_later

logging.basicConfig(format="%(message)s", stream=sys.stdout)
with no_threads():
    log_later(logging.WARNING, "of the parent")
child = os.fork()
if child == 0:
    log.say_noted()
    os._exit(0)
os.waitpid(child, 0)
"""

FORKED_BY_A_HANDLER = """
import logging, os
from holdfast import log

class Forking(logging.Handler):
    def handle(self, record):
        self.child = os.fork()

log.logger.addHandler(handler := Forking())
log.note(logging.WARNING, "one")
try:
    log.say_noted()
    os.write(1, b"all is said\\n")  # at once: both say it
finally:
    if handler.child == 0:
        os._exit(0)
os.waitpid(handler.child, 0)
"""


@pytest.mark.parametrize(
    ("script", "said"),
    [(AT_THE_END, ["one", "the last"]), (BEHIND_OUR_END, ["one", "the last"]), (FORKED, ["of the parent"])],
)
def test_all_is_said_before_a_process_ends_and_by_no_forked_child(script: str, said: list[str]) -> None:
    """The interpreter waits for it."""
    lines = run_script(script).splitlines()
    assert [line for line in lines if "no thread" not in line] == said


def test_a_handler_that_forks_raises_neither_here_nor_in_the_child() -> None:
    """The child has a lock of its own for saying records, and the one that it has been in is released too."""
    assert run_script(FORKED_BY_A_HANDLER).splitlines() == ["all is said"] * 2

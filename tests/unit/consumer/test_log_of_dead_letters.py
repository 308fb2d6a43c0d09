"""What the log says of messages that die, in one line each, and without what must not be said."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, PersistentQueue
from holdfast.log import OneLine, indented, printable, text_of
from holdfast.queue.options.failure import (
    SEEN_CHARACTERS_MAX,
    TRACEBACK_CHARACTERS_MAX,
    WITHHELD,
    Failure,
    HandlerError,
    exception_info,
    failure_of,
    redacted,
    shortened,
)
from support.builders.clocks import FakeClock
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/orders")
FORGED = "gone\n2026-01-01 00:00:00 ERROR holdfast: all is well\r\x1b[2J"
SECRET = "password=hunter2"


@pytest.fixture
def text() -> Iterator[Callable[[], str]]:
    """Return what a handler with the standard library's own text formatter has written so far."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("holdfast")
    logger.addHandler(handler)
    before, logger.level = logger.level, logging.DEBUG
    yield stream.getvalue
    logger.level = before
    logger.removeHandler(handler)


def opened(**options: Any) -> PersistentQueue:
    """Open a queue that gives up at the second failure."""
    options = {"max_deliveries": 2, "backoff": [], "storage": SimulatedStorage(), **options}
    return PersistentQueue(ROOT, **{"mode": "exclusive", **options})


def fail(queue: PersistentQueue, error: Exception) -> None:
    """Take a message, and let its handler raise."""
    with pytest.raises(type(error)), queue.receive(timeout=0):
        raise error


def deaths(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the records of dead letters."""
    return [record for record in caplog.records if "is a dead letter" in record.getMessage()]


# -- Dead letters ----------------------------------------------------------------------------------------------------


def test_a_message_that_dies_is_an_error_with_its_traceback_and_fields(caplog: pytest.LogCaptureFixture) -> None:
    """A retry is none: it comes again."""
    with opened() as queue:
        queue.put(b"x")
        fail(queue, ValueError("first"))
        assert not deaths(caplog)
        error = ValueError("second")
        fail(queue, error)
    (record,) = deaths(caplog)
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    fields = {name: getattr(record, name) for name in ("queue", "group", "offset", "delivery_count", "reason")}
    assert fields == {
        "queue": "orders",
        "group": "default",
        "offset": 0,
        "delivery_count": 2,
        "reason": "exception",
    }
    assert "builtins.ValueError: second" in record.getMessage()


def test_a_message_whose_last_lease_runs_out_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """There is no exception to show."""
    clock = FakeClock()
    with opened(max_deliveries=1, clock=clock, lease_seconds=5) as queue:
        queue.put(b"x")
        queue.receive(timeout=0)
        clock.advance(6)
        assert queue.stats().dead == 1
    (record,) = deaths(caplog)
    assert (record.levelno, record.exc_info) == (logging.ERROR, None)
    assert record.reason == "lease_expired"  # type: ignore[attr-defined]


def test_a_message_whose_last_receiver_died_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """Found when the log is read again."""
    storage = SimulatedStorage()
    queue = opened(storage=storage, max_deliveries=1)
    queue.put(b"x")
    queue.receive(timeout=0)
    killed = storage.crash_keeping_all()
    queue.close()
    with opened(storage=killed, max_deliveries=1) as again:
        with pytest.raises(Exception):  # noqa: B017, PT011  # there is nothing left
            again.get(timeout=0)
        again.stats()
    (record,) = deaths(caplog)
    assert record.reason == "max_deliveries"  # type: ignore[attr-defined]
    assert record.levelno == logging.ERROR


def test_what_somebody_has_rejected_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """It was decided, and did not just happen."""
    with opened() as queue:
        queue.put_many([b"x", b"y"])
        queue.receive(timeout=0).reject("no use")
        queue.receive(timeout=0).park(ValueError("what is this"))
    assert [record.levelno for record in deaths(caplog)] == [logging.WARNING] * 2
    assert "(rejected): rejected: no use" in deaths(caplog)[0].getMessage()


def test_an_exception_of_another_process_is_shown_as_its_text() -> None:
    """The exception itself does not travel; its traceback does."""
    try:
        raise ValueError("there")
    except ValueError as error:
        failure = failure_of(error)
    sent = pickle.loads(pickle.dumps(failure))  # just made
    assert sent == failure
    assert sent.cause is None
    info = exception_info(sent)
    assert info is not None
    assert info[0] is HandlerError
    assert "Traceback" in str(info[1])
    assert exception_info(Failure("max_deliveries")) is None


# -- One line --------------------------------------------------------------------------------------------------------


def test_an_exception_with_newlines_forges_no_record(text: Callable[[], str]) -> None:
    """Not in the message, nor in the traceback; nothing steers a terminal."""
    with opened(max_deliveries=1) as queue:
        queue.put_many([b"x", b"y"])
        fail(queue, ValueError(FORGED))
        queue.receive(timeout=0).reject(FORGED)
        queue.pause(reason=FORGED)
    at_margin = [line for line in text().split("\n") if line and not line.startswith("    ")]
    assert at_margin
    assert all(
        line.startswith(("ERROR holdfast: orders", "WARNING holdfast: orders", "INFO holdfast: ")) for line in at_margin
    )
    assert "all is well" in text()
    assert not any(character in text() for character in "\r\x1b")


def test_a_report_of_damage_is_one_record_in_one_line(text: Callable[[], str]) -> None:
    """Whatever recovery has found."""
    storage = SimulatedStorage()
    with opened(storage=storage) as queue:
        queue.put(b"x")
        killed = storage.crash_keeping_all()
    killed.remove(next(ROOT / "data" / name for name in killed.list(ROOT / "data")))
    opened(storage=killed).close()
    assert "; /orders/data: 0 bytes" in text()
    assert all(line.startswith(("WARNING holdfast", "INFO holdfast")) for line in text().splitlines())


class Unspeakable:
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("no")


def test_records_keep_their_template_and_their_numbers() -> None:
    """Tools group records by the template; what needs no escape is passed on as it is."""
    path = Path("/a")
    record = logging.LogRecord("holdfast", 30, "", 0, "%s %d %s %r %s", (path, 5, "a\nb", None, Unspeakable()), None)
    assert OneLine().filter(record)
    assert record.msg == "%s %d %s %r %s"
    assert record.args == (path, 5, "a\\nb", None, "(its text cannot be had)")
    assert record.getMessage() == "/a 5 a\\nb None (its text cannot be had)"
    mapped = logging.LogRecord("holdfast", 30, "", 0, "%(a)s", ({"a": 1},), (None, None, None))
    assert OneLine().filter(mapped)
    assert mapped.getMessage() == "1"


def test_texts_are_made_safe_for_lines() -> None:
    """As the command line shows them too."""
    assert printable("ä\t\u2028") == "ä\\t\\u2028"
    assert indented("a\n\x07b") == "    a\n    \\x07b"
    assert text_of(5) == "5"


# -- Secrets ---------------------------------------------------------------------------------------------------------


def without_secrets(said: str) -> str:
    """Take the secret out."""
    return said.replace(SECRET, "password=***")


def test_a_secret_reaches_neither_disk_nor_log(text: Callable[[], str], caplog: pytest.LogCaptureFixture) -> None:
    """Not as the exception's text, its traceback, or that of its cause; nor as a reason."""
    storage = SimulatedStorage()
    with opened(storage=storage, max_deliveries=1, redact=without_secrets) as queue:
        queue.put_many([b"x", b"y"])
        error = RuntimeError(f"cannot log in with {SECRET}")
        error.__cause__ = ValueError(SECRET)
        fail(queue, error)
        queue.receive(timeout=0).reject(SECRET)
        letters = queue.dead.list()
    assert [letter.detail for letter in letters] == ["cannot log in with password=***", "password=***"]
    assert "password=***" in letters[0].traceback
    said = text() + "".join(str(record.__dict__) for record in caplog.records)
    assert "password=***" in said
    assert SECRET not in said
    assert not any(SECRET.encode() in content for content in storage.tree().values() if content)
    (record,) = [record for record in deaths(caplog) if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], HandlerError)
    assert record.exc_info[2] is not None, "where it was raised is no secret"


def raises(said: str) -> str:
    """Fail, as applications do."""
    raise ValueError(said)


@pytest.mark.parametrize("redact", [raises, lambda said: None, lambda said: said.encode()])
def test_a_hook_that_fails_costs_its_text_and_not_the_message(redact: Any, text: Callable[[], str]) -> None:
    """The text is withheld, from the disk and the log."""
    with opened(max_deliveries=1, redact=redact) as queue:
        queue.put_many([b"x", b"y"])
        fail(queue, ValueError(SECRET))
        (letter,) = queue.dead.list()
        assert (letter.payload, letter.detail, letter.traceback) == (b"x", WITHHELD, WITHHELD)
        assert queue.get(timeout=0) == b"y"
    assert WITHHELD in text()
    assert SECRET not in text()


def test_a_hook_may_use_the_queue() -> None:
    """No lock is held while it runs."""
    seen: list[int] = []

    def look(said: str) -> str:
        seen.append(queue.qsize() + len(queue.peek(5)))
        return said

    with opened(max_deliveries=1, redact=look) as queue:
        queue.put(b"x")
        fail(queue, ValueError("x"))
    assert seen


def test_a_failure_without_texts_is_not_shown_to_the_hook() -> None:
    """There is nothing to take out."""
    failure = Failure("max_deliveries")
    assert redacted(failure, raises) is failure
    assert redacted(Failure("rejected", "a"), None).detail == "a"
    kept = redacted(Failure("exception", "", "x", "trace", None), str.upper)
    assert (kept.detail, kept.trace, kept.cause) == ("", "TRACE", None)


def test_a_hook_that_is_no_function_is_refused() -> None:
    """When the queue is opened."""
    with pytest.raises(ConfigError, match="redact takes a function"):
        opened(redact="secret")


# -- Verbs of operators ----------------------------------------------------------------------------------------------


def verbs(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Return level, verb and result of what operators did."""
    records = [record for record in caplog.records if hasattr(record, "verb")]
    return [(record.levelname, record.verb, record.result) for record in records]


def test_what_an_operator_does_is_logged_with_who_and_what_came_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """By the handle that does it."""
    with caplog.at_level(logging.INFO, "holdfast"), opened(max_deliveries=1) as queue:
        queue.put_many([b"x", b"y", b"z"])
        for _ in range(2):
            queue.receive(timeout=0).reject("no")
        queue.pause(reason="why")
        queue.resume()
        queue.dead.retry(0)
        queue.dead.discard(list(range(100)))
        queue.groups.create("audit", start=0)
        queue.groups.delete("audit")
        with pytest.raises(Exception, match="no transaction"):
            queue.commit_prepared("t", force=True)
        tx = queue.begin()
        tx.put(b"p")
        tx.prepare("t")
        queue.abort_prepared("t")
        queue.joint_commits.abort("app", 1)
        queue.joint_commits.collect(60)
    assert verbs(caplog) == [
        ("INFO", "pause", "{}"),
        ("INFO", "resume", "{}"),
        ("INFO", "dead_retry", "{'count': 1}"),
        ("INFO", "dead_discard", "{'count': 1}"),
        ("INFO", "groups.create", "0"),
        ("INFO", "groups.delete", "done"),
        ("WARNING", "commit_prepared", verbs(caplog)[6][2]),
        ("INFO", "abort_prepared", "done"),
        ("INFO", "abort_jointly", "done"),
        ("INFO", "collect", "done"),
    ]
    assert verbs(caplog)[6][2].startswith("TransactionNotFoundError: ")
    said = [record.getMessage() for record in caplog.records if hasattr(record, "verb")]

    who = f" by user {os.geteuid()}, process {os.getpid()}: "
    assert all(who in line for line in said)
    assert said[0] == f"orders: pause(group='default', reason='why'){who}{{}}"
    assert "offsets=[0, ... 100 of them]" in said[3]
    assert "id='t', force=True" in said[6]


def test_what_a_client_asks_is_logged_by_the_owner(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As what it does itself."""
    root = tmp_path / "orders"
    with caplog.at_level(logging.INFO, "holdfast"), PersistentQueue(root, mode="shared") as queue:
        tx = queue.begin()
        tx.put(b"p")
        tx.prepare("t")
        tx = queue.begin()
        tx.put(b"p")
        tx.prepare("u")
        with PersistentQueue(root, mode="shared", can_own=False) as asking:
            asking.pause(reason="x" * 1000)
            asking.resume()
            asking.commit_prepared("t", force=True)
            asking.abort_prepared("u")
            asking.joint_commits.commit("app", 1, [])
            asking.joint_commits.abort("app", 2)
            asking.joint_commits.collect(60)
        assert json.dumps(queue.stats().depth)
    said = [record.getMessage() for record in caplog.records if hasattr(record, "verb")]
    assert [line.split("(")[0] for line in said] == [
        "orders: pause",
        "orders: resume",
        "orders: commit_prepared",
        "orders: abort_prepared",
        "orders: abort_jointly",
        "orders: collect",
    ]
    assert all(f" by user {os.geteuid()}, process " in line for line in said)
    assert len(said[0]) < 400


def test_a_long_traceback_keeps_whole_lines_for_the_hook() -> None:
    """Half a secret would not be known for one."""

    def deeper(depth: int) -> None:
        if not depth:
            raise ValueError("x" * 100)
        deeper(depth - 1)

    with pytest.raises(ValueError, match="x") as caught:
        deeper(3)
    error = caught.value
    error.add_note("\n".join(f"{number}: {SECRET}" for number in range(1000)))
    seen = failure_of(error)
    for trace, characters_max in ((seen.trace, SEEN_CHARACTERS_MAX), (shortened(seen).trace, TRACEBACK_CHARACTERS_MAX)):
        assert trace.startswith("... ")
        assert len(trace) <= characters_max + len("... ")
        assert all(line.endswith(SECRET) for line in trace.removeprefix("... ").splitlines())

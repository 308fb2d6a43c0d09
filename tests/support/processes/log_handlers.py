"""Handlers of log records that use the queue, as an application's may, and records that are said by a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

import pytest

from holdfast import Empty, HoldfastError, PersistentQueue, ShutDown, log
from support.processes.threads import wait_until

VERBS: tuple[Callable[[PersistentQueue], object], ...] = (
    lambda queue: queue.stats(),
    lambda queue: (queue.qsize(), queue.depth(), queue.empty(), queue.full(), queue.unfinished_tasks),
    lambda queue: (queue.settings, queue.recovery, queue.is_owner, queue.is_shutdown),
    lambda queue: (queue.peek(2), list(queue.browse(limit=2)), queue.dead.list(), queue.groups.list()),
    lambda queue: next(iter(queue.read(start="earliest")), None),
    lambda queue: (queue.prepared(), queue.joint_commits.latest("app")),
    lambda queue: queue.put(b"from a handler"),
    lambda queue: queue.get(timeout=0),
    lambda queue: queue.receive(timeout=0).release(),
    lambda queue: queue.receive(timeout=0).reject("by a handler"),
    lambda queue: queue.receive(timeout=0).ack(),
    lambda queue: queue.pause(),
    lambda queue: queue.resume(),
    lambda queue: queue.configure(lease_seconds=20),
    lambda queue: queue.groups.create("of a handler"),
    lambda queue: queue.groups.delete("of a handler"),
    lambda queue: queue.compact(dry_run=True),
    lambda queue: queue.begin().abort(),
    lambda queue: queue.flush(),
    lambda queue: queue.wake(),
)
"""Each verb of a queue but those that end it: called by a handler, any of them may be refused, and none may hang."""


class NoLock(nullcontext[None]):
    """A lock that excludes none: a handler has to have one from Python 3.13 on."""

    def acquire(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


class CallingHandler(logging.Handler):
    """Calls every verb at each record, in the thread that says it.

    Attributes
    ----------
    said : list of str
        The texts of the records, each once all its calls have returned.
    failures : list of Exception
        What calls have raised that is no refusal.
    """

    def __init__(self, queue: PersistentQueue, verbs: tuple[Callable[[PersistentQueue], object], ...]) -> None:
        super().__init__()
        self._queue = queue
        self._verbs = verbs
        self._inside = threading.local()
        self.said: list[str] = []
        self.failures: list[Exception] = []

    def createLock(self) -> None:  # noqa: N802  # of logging
        """Have one that excludes none: a call of its own may log."""
        self.lock = NoLock()  # type: ignore[assignment]

    def emit(self, record: logging.LogRecord) -> None:
        """Call them all, unless a call of this one has logged."""
        if getattr(self._inside, "is_calling", False):
            return
        self._inside.is_calling = True
        try:
            for verb in self._verbs:
                self._call(verb)
        finally:
            self._inside.is_calling = False
        self.said.append(record.getMessage())

    def _call(self, verb: Callable[[PersistentQueue], object]) -> None:
        try:
            with suppress(HoldfastError, OSError, MemoryError, Empty, ShutDown):
                verb(self._queue)
        except Exception as error:  # the test tells it: a handler's own error is only printed
            self.failures.append(error)


@contextmanager
def calling(
    queue: PersistentQueue, verbs: tuple[Callable[[PersistentQueue], object], ...] = VERBS
) -> Iterator[CallingHandler]:
    """Have every record from INFO on handled by calls on a queue."""
    handler, level = CallingHandler(queue, verbs), log.logger.level
    log.logger.addHandler(handler)
    log.logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        log.logger.setLevel(level)
        log.logger.removeHandler(handler)


def is_all_said() -> bool:
    """Whether no record waits to be said by a thread."""
    if log._noted.records or not log._noted.saying.acquire(blocking=False):
        return False
    log._noted.saying.release()
    return True


def text_said(caplog: pytest.LogCaptureFixture) -> str:
    """Return what was logged, once what waits for a thread is said."""
    log.say_noted()  # no thread may have been started for it
    wait_until(is_all_said)
    return caplog.text


def messages_said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the same without levels and places."""
    text_said(caplog)
    return caplog.messages

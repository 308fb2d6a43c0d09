"""Threads that cannot be started: a fault like those of a storage, at each start of a thread of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

from holdfast import threads

OURS = "holdfast-"
LIMIT = "can't start new thread"


@dataclass
class StartFaults:
    """Which starts fail, and which there were.

    Attributes
    ----------
    fail_at : int
        The start that fails, counted from 1 over those whose thread has a name that begins with ``prefix``.
    forever : bool
        Whether all later ones fail too.
    prefix : str
        What is counted; by default all threads of ours.
    error : BaseException
        What a start raises.
    tried : list of str
        The names of the threads whose starts were counted.
    failed : list of str
        The names of those that failed: a test without any has tested nothing.
    """

    fail_at: int = 1
    forever: bool = True
    prefix: str = OURS
    error: BaseException = field(default_factory=lambda: RuntimeError(LIMIT))
    tried: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def strike(self, thread: threading.Thread, start: Callable[[threading.Thread], None]) -> None:
        """Start a thread, or fail as the interpreter does."""
        if thread.name.startswith(self.prefix):
            self.tried.append(thread.name)
            count = len(self.tried)
            if count == self.fail_at or (self.forever and count > self.fail_at):
                self.failed.append(thread.name)
                raise self.error
        start(thread)


@contextmanager
def starting(faults: StartFaults) -> Iterator[StartFaults]:
    """Have starts of threads fail as told, and counted, inside."""
    start = threading.Thread.start
    threads._starter.has_failed = False  # the next one is told again
    with mock.patch.object(threading.Thread, "start", lambda thread: faults.strike(thread, start)):
        yield faults


@contextmanager
def no_threads(prefix: str = OURS) -> Iterator[StartFaults]:
    """Let no thread of ours be started inside; a block that wants none has tested nothing, and fails."""
    with starting(StartFaults(prefix=prefix)) as faults:
        yield faults
    assert faults.failed, f"nobody wanted a thread {prefix}*"

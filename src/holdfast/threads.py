"""Starts threads: the one place that does, so that a failed start of a thread never loses a message.

There may be no more threads at a limit of the operating system, without memory, and at the end of the interpreter. Each
caller defines the fallback without its thread: the calling thread does the work, or it is done later; or a call is
refused, and may be made again.

At the end of the interpreter daemon threads are stopped wherever they are. One that holds a lock of a queue would keep
it, and a put in a ``__del__`` would wait for ever. So the threads of a queue are ended before that.

One more thing is done here, as it needs a thread: saying the records that are made under a lock.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections.abc import Callable

from holdfast import forks, log
from holdfast.errors import RetryableError

END_SECONDS = 5.0
"""How long the interpreter's end waits for threads of ours: a disk that hangs does not keep a program from ending."""

TROUBLE_SECONDS = 0.1
"""The pause before a thread does again what it had no memory for."""

Work = Callable[[], object]


class _Starter:
    """State of thread starts in this process."""

    def __init__(self) -> None:
        self.is_ending = False
        self.has_failed = False
        self.ends: dict[threading.Thread, Work] = {}


_starter = _Starter()


def start_thread(work: Work, name: str, end: Work | None = None) -> threading.Thread | None:
    """Start a daemon thread; return None if none can be started, which is logged once until one can be.

    Parameters
    ----------
    work : callable
        The function to run.
    name : str
        Its name, for people.
    end : callable or None
        Tells it to end soon, and returns at once: called at the end of the interpreter, which then waits for the
        thread. For those that hold locks of a queue.
    """
    if _starter.is_ending or sys.is_finalizing():  # Python 3.11 would wait for ever for it to begin
        return None

    def run() -> None:
        try:
            work()
        finally:
            _starter.ends.pop(threading.current_thread(), None)

    thread: threading.Thread | None = None
    try:
        thread = threading.Thread(target=run, name=name, daemon=True)
        if end is not None:
            _starter.ends[thread] = end
        thread.start()
    except BaseException as error:
        if thread is not None and not thread.is_alive():
            _starter.ends.pop(thread, None)
        if not isinstance(error, RuntimeError | MemoryError):
            raise
        if not _starter.has_failed:
            text = "%s: no thread can be started (%s); it is done without, slower"
            log.note(logging.WARNING, text, name, error)  # the caller may hold a lock, and no thread says it now
        _starter.has_failed = True
        return None
    _starter.has_failed = False
    return thread


def log_later(level: int, text: str, *arguments: object, error: BaseException | None = None) -> None:
    """Log from a thread of its own, where the caller may hold a lock; ``error``: with its traceback.

    If no thread can be started, it is said with the next record, by the poller, at the end of the interpreter, or at
    that of the module ``logging``.
    """
    if log.note(level, text, *arguments, error=error, depth=2):
        start_thread(log.say_noted, "holdfast-log", _no_end)


def _no_end() -> None:
    """End a thread that ends by itself: the end of the interpreter waits for it."""


def join_thread(thread: threading.Thread | None, seconds: float | None = None) -> None:
    """Wait until a thread has ended, if there is one; not for the caller's own, nor for one that was stopped.

    At most ``seconds``; None: as long as that takes.
    """
    if thread is not None and thread is not threading.current_thread() and not sys.is_finalizing():
        thread.join(seconds)


def no_thread_error(what: str) -> RetryableError:
    """Return the error for what cannot be done without a thread."""
    return RetryableError(
        f"{what}: no thread can be started, at a limit of threads or memory or at the end of the program; nothing was "
        "done. End some threads or raise the limit, then try again"
    )


def _end_all() -> None:
    """At the end of the interpreter: start nothing more, and end what would keep a lock."""
    _starter.is_ending = True
    ends = list(_starter.ends.items())
    for _, end in ends:
        end()
    deadline = time.monotonic() + END_SECONDS
    for thread, _ in ends:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
    log.say_noted()


def _forget_all() -> None:
    """In a forked child: those threads are not there."""
    _starter.ends.clear()


atexit.register(_end_all)
forks.in_child(_forget_all)

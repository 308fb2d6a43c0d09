"""One thread of a process polls all queues that are open in it: regular checks cost no thread for each queue.

A poll is brief: it sees whether there is something to do, and leaves what takes long to a thread of the queue's own. So
200 idle queues cost one round of polls each second, and no queue waits for the work of another.

What is *not* promised: a file system that hangs in a poll delays the polls of all others.
"""

from __future__ import annotations

import logging
import math
import threading
from typing import Protocol

from holdfast import forks, log
from holdfast.clock import Clock, SystemClock
from holdfast.queue.threads.notifier import Flag
from holdfast.threads import join_thread, start_thread

logger = logging.getLogger("holdfast")

_FIRST_SECONDS = 0.0005
"""From opening to the first look."""

_TOGETHER_SECONDS = 0.002
"""Looks that are due so close to each other are one round: waking costs more than a look does."""

_TROUBLE_SECONDS = 0.25
"""The pause after a look that failed by a fault of ours."""


class Polled(Protocol):
    """A part of an open queue that is polled now and then."""

    def look(self) -> float:
        """Do brief work that is due; return how many seconds the next poll may wait."""


class _Entry:
    """A polled object, and the time of its next poll."""

    def __init__(self, watched: Polled, due: float) -> None:
        self._watched = watched
        self._lock = threading.Lock()
        self._is_over = False
        self.due = due

    def look(self, now: float) -> None:
        """Poll once, unless polling has ended."""
        with self._lock:
            if not self._is_over:
                self.due = _next_round(now, _look(self._watched))

    def end(self) -> None:
        """Stop polling; waits for a poll in progress."""
        with self._lock:
            self._is_over = True


class _Poller:
    """The polling thread, for all queues that use the same clock; made for the first of them.

    Its entries and its thread, which is None if it could not be started, change under the lock of the module.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.entries: dict[Polled, _Entry] = {}
        self._wake = Flag()
        self._is_over = False
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if it does not run yet."""
        if self.thread is None:
            self.thread = start_thread(self._run, "holdfast-watcher", self._end_soon)

    def add(self, watched: Polled) -> None:
        """Poll it from now on."""
        self.entries[watched] = _Entry(watched, self._clock.monotonic() + _FIRST_SECONDS)
        self._wake.set()

    def end(self) -> None:
        """End the thread, and wait until it has."""
        self._end_soon()
        join_thread(self.thread)

    def _end_soon(self) -> None:
        self._is_over = True
        self._wake.set()

    def _run(self) -> None:
        with _lock:
            self.thread = self.thread or threading.current_thread()
        if self.thread is not threading.current_thread():  # an interruption of its start has hidden this one
            return
        try:
            self._poll()
        finally:  # over, or without memory: then the next call that may take a moment starts another
            self.thread = None

    def _poll(self) -> None:
        entries: list[_Entry] = []
        while not self._is_over:
            now = self._clock.monotonic()
            pause = min((entry.due for entry in entries), default=now) - now
            if self._clock.wait(self._wake, max(pause, _FIRST_SECONDS)):
                self._wake.clear()
                entries = list(self.entries.values())
                continue
            log.say_noted()  # what no thread could be started for
            now = self._clock.monotonic() + _TOGETHER_SECONDS
            entries = list(self.entries.values())
            for entry in entries:
                if entry.due <= now:
                    entry.look(now)


def _look(watched: Polled) -> float:
    try:
        return watched.look()
    except Exception:  # a bug in one queue must not stop the polling of all others
        logger.exception("%r cannot be polled", watched)
        return _TROUBLE_SECONDS


def _next_round(now: float, seconds: float) -> float:
    """Return when to poll again: at a multiple of ``seconds``, so that queues opened at any time are due together."""
    return (math.floor(now / seconds) + 1) * seconds


_pollers: dict[object, _Poller] = {}
_lock = threading.Lock()


def _key(clock: Clock) -> object:
    """Return what clocks have in common that show the same time: all of the system are one."""
    return SystemClock if type(clock) is SystemClock else clock


def watch(watched: Polled, clock: Clock) -> None:
    """Poll an object, from soon on until :func:`unwatch`; the first one starts the thread.

    If no thread can be started, it is polled once :func:`ensure_watching` could start one.
    """
    try:
        with _lock:
            poller = _pollers.setdefault(_key(clock), _Poller(clock))
            poller.add(watched)
            poller.start()
    except BaseException:  # interrupted: no other code may come to end it
        unwatch(watched, clock)
        raise


def ensure_watching() -> None:
    """Start what could not be started when it was wanted; for calls that may take a moment."""
    for poller in list(_pollers.values()):
        if poller.thread is None:
            with _lock:
                poller.start()


def unwatch(watched: Polled, clock: Clock) -> None:
    """End the polling, once this returns; the last one ends the thread."""
    with _lock:
        poller = _pollers.get(_key(clock))
        entry = poller.entries.pop(watched, None) if poller is not None else None
        if poller is None or entry is None:
            return
        if not poller.entries:
            del _pollers[_key(clock)]
    entry.end()
    if not poller.entries:
        poller.end()


def _forget_all() -> None:
    """In a forked child: its threads do not exist here, and the polled objects are the parent's."""
    global _lock  # noqa: PLW0603  # the copy may be held by a thread that is not there
    _lock = threading.Lock()
    _pollers.clear()


forks.in_child(_forget_all)

"""Threads for tests: what one of them raises, the test raises."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from holdfast.queue.threads.notifier import Notifier

_WAITS = (threading.Condition.wait.__code__, Notifier.wait.__code__)


class Threads:
    """Runs functions in threads and raises what they raised."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []

    def start(self, work: Callable[[], object]) -> threading.Thread:
        """Begin one more."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def join(self, seconds: float = 60) -> None:
        """Wait for all of them, and raise the first failure."""
        for thread in self._threads:
            thread.join(seconds)
        if self.failures:
            raise self.failures[0]
        assert not any(thread.is_alive() for thread in self._threads), "a thread hangs"


def caught_in(threads: Threads, call: Callable[[], object]) -> list[type[BaseException]]:
    """Run a call that blocks in a thread; return a list that gets the type of what it raises."""
    caught: list[type[BaseException]] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            caught.append(type(error))

    thread = threads.start(run)
    wait_until(lambda: is_waiting(thread) or bool(caught))
    time.sleep(0.1)
    assert not caught, "it did not block"
    return caught


def is_waiting(thread: threading.Thread) -> bool:
    """Tell whether a thread stands in a wait for another one."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code in _WAITS


def wait_until(holds: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)

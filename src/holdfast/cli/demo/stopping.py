"""Ctrl-C and other signals that end a program, noted when they come and obeyed where nothing can be left behind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StoppedError(Exception):
    """A signal asked for the end.

    Attributes
    ----------
    number : int
        Of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


@contextmanager
def signals_noted() -> Iterator[Callable[[], None]]:
    """Yield what raises StoppedError if a signal has come; earlier handlers are restored at the end.

    An exception in the middle of ``subprocess.Popen`` could lose a process that has just been started.
    """
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    def check() -> None:
        if received:
            raise StoppedError(received[0])

    before = {number: signal.signal(number, note) for number in ENDING}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

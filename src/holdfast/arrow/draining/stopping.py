"""SIGINT and SIGTERM as a wish to stop: the current batch is finished."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger("holdfast")


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first signal; the second signal has its former effect. Does nothing off the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def on_signal(number: int, _: FrameType | None) -> None:
        restore()
        logger.warning("%s: stops after the batch at hand; again interrupts it", signal.Signals(number).name)
        stop()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()

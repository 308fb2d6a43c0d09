"""Makes closing a queue wait for calls in progress: once it is closed, another process may own the queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from holdfast.errors import ClosedError

Result = TypeVar("Result")


class _Call(NamedTuple):
    lock: threading.Lock  # held during the call; an interruption between two steps cannot leave it held
    thread: int


class OpenCalls:
    """The calls in progress that change an open queue, or tell others what was decided in it.

    Parameters
    ----------
    name : object
        What is open, for the error.

    Attributes
    ----------
    is_over : bool
        Whether :meth:`close` has begun: a long call ends early.
    """

    def __init__(self, name: object) -> None:
        self._name = name
        self._calls: set[_Call] = set()
        self.is_over = False

    def run(self, do: Callable[[], Result]) -> Result:
        """Do something before the queue is closed. Raises ClosedError, and then nothing was done, or as ``do``.

        A call inside of another one of its thread is a part of that, which closing waits for: it is never refused.
        """
        call = _Call(threading.Lock(), threading.get_ident())
        is_part = any(each.thread == call.thread and each.lock.locked() for each in tuple(self._calls))
        with call.lock:
            try:
                self._calls.add(call)  # before it looks: close() sets the flag before it looks for calls
                if not is_part:
                    self.check()
                return do()
            finally:
                self._calls.discard(call)

    def check(self) -> None:
        """Raise ClosedError if the queue is closed."""
        if self.is_over:
            raise ClosedError(f"{self._name} is closed; open it again")

    def close(self) -> None:
        """Refuse calls, and wait for those of other threads: one of this thread was interrupted by a signal handler."""
        self.is_over = True
        for call in tuple(self._calls):
            if call.thread != threading.get_ident():
                with call.lock:
                    pass

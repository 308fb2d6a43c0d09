"""A queue as a worker process has it: it puts as a client of the owner, and is opened when it is used first."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from holdfast.errors import ClosedError, UsageError
from holdfast.queue.persistent_queue import PersistentQueue


class LazyQueue:
    """Represents a :class:`PersistentQueue` of the mode "shared"; nothing is touched before the first call.

    Parameters
    ----------
    path : Path
        The queue's directory.
    open_queue : callable
        Opens it.
    """

    mode = "shared"
    group = "default"
    can_take = False
    is_owner = False

    def __init__(self, path: Path, open_queue: Callable[[], PersistentQueue]) -> None:
        self.path = path
        self._open_queue = open_queue
        self._lock = threading.Lock()
        self._queue: PersistentQueue | None = None
        self._is_closed = False

    def put(self, *arguments: Any, **options: Any) -> int:
        """As :meth:`PersistentQueue.put`."""
        return (self._queue or self._opened()).put(*arguments, **options)

    def put_encoded(self, payload: bytes, headers: bytes, timeout: float | None) -> int:
        """As :meth:`PersistentQueue.put_encoded`."""
        return (self._queue or self._opened()).put_encoded(payload, headers, timeout)

    def receive(self, **_: Any) -> NoReturn:
        """Refuse."""
        raise self._refusal()

    def receive_many(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse."""
        raise self._refusal()

    def consuming(self, *_: Any) -> NoReturn:
        """Refuse."""
        raise self._refusal()

    def consume(self, **_: Any) -> NoReturn:
        """Refuse."""
        raise self._refusal()

    def close(self) -> None:
        """Close it, if it was opened."""
        with self._lock:
            self._is_closed = True
            if self._queue is not None:
                self._queue.close()
        atexit.unregister(self.close)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened(), name)

    def _opened(self) -> PersistentQueue:
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"{self.path} is closed; open it again")
            if self._queue is None:
                self._queue = self._open_queue()
                atexit.register(self.close)
            return self._queue

    def _refusal(self) -> UsageError:
        return UsageError(
            f"a worker process takes nothing from {self.path.name!r} by itself: the process that started it takes "
            "the messages and hands them over; put into queues here, and take from them there"
        )

    def __repr__(self) -> str:
        return f"<LazyQueue {self.path}>"

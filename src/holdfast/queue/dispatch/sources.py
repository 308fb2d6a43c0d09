"""The sources of a read side: the high watermark, and the waiting for more.

From the write side, if that is in this process; else by polling ``write.mark``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from holdfast.persistence.filesystem.storage import File, Storage, storage_error
from holdfast.persistence.format.constants import WRITE_MARK_BYTES
from holdfast.persistence.format.report import UNSYNCED_OR_DAMAGED, Damage
from holdfast.persistence.index.priorities import Priorities
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.persistence.log.watermark import decode_write_mark
from holdfast.queue.threads.notifier import Notifier

_POLL_SECONDS_MIN = 0.001
_POLL_SECONDS_MAX = 0.03
"""A consumer that has waited for long hears of a message 15 ms late, in the middle, for a third of 1 % of a core."""


_UNKNOWN: LogEnd = (0, 0, 0)
_LOOKS = 3
"""How often ``write.mark`` is read before it counts as damaged: its owner overwrites it in place."""

_NOT_SHOWN = "write.mark does not verify: no message is shown until the queue is opened to put or to take"


class Source(Protocol):
    """The write side as the read side sees it: itself, or the state that another process publishes."""

    def end(self) -> LogEnd:
        """Return the current high watermark for consumers."""

    def prioritized_end(self) -> int:
        """Return the offset behind the last message that may have a priority; 0: none ever had.

        To be read behind :meth:`end`: it is above every prioritized message below an end that was read before. The
        other way round one may come in between.
        """

    def wait(self, ready: Callable[[], bool], seconds: float | None) -> None:
        """Sleep until there may be more, or ``wake`` was called; at most ``seconds``. May wake early."""

    def wake(self) -> None:
        """Wake all waiting threads."""

    def leave(self) -> None:
        """Close the open files."""


class RemoteSource:
    """The writer is another process, or there is none now: the high watermark is in ``write.mark``.

    The mark also tells whether messages may have priorities, but not up to which offset: up to the end, as last read.
    """

    def __init__(self, storage: Storage, path: Path, queue_id: bytes, priorities: Priorities) -> None:
        self._storage = storage
        self._path = path
        self._priorities = priorities
        self._has_priorities = False
        self._mark: File | None = None
        self._seen = b""
        self._queue_id = queue_id
        self._notifier = Notifier()
        self._last: LogEnd = _UNKNOWN
        self._delay = _POLL_SECONDS_MIN

    def end(self) -> LogEnd:
        try:
            data = self._read_mark()
            if data != self._seen:  # most polls of a waiting consumer end here
                self._learn(data)
        except OSError as error:
            raise storage_error(error, "looking for the end of the log", self._path) from error
        return self._last

    def _learn(self, data: bytes) -> None:
        mark = decode_write_mark(data, self._queue_id, self._path)
        if mark is not None:
            position, count = mark.visible
            self._last = max(self._last, (mark.sequence, position, mark.first_offset + count))
            self._has_priorities = self._has_priorities or mark.has_priorities
            self._seen = data
        elif self._last[2] and not self._has_priorities:
            self._has_priorities = self._priorities.look()

    def prioritized_end(self) -> int:
        return self._last[2] if self._has_priorities else 0

    def damage(self) -> Damage | None:
        """Return why the end is unknown, if the mark is damaged."""
        if self._last != _UNKNOWN:
            return None
        for _ in range(_LOOKS):
            data = self._read_mark()
            if not data.strip(b"\0") or decode_write_mark(data, self._queue_id, self._path) is not None:
                return None
        return Damage(self._path, 0, len(data), range(0), UNSYNCED_OR_DAMAGED, _NOT_SHOWN)

    def _read_mark(self) -> bytes:
        if self._mark is None:
            try:
                self._mark = self._storage.open(self._path, writable=False)
            except FileNotFoundError:  # there was no write yet
                return b""
        return self._mark.read_at(WRITE_MARK_BYTES, 0)

    def wait(self, ready: Callable[[], bool], seconds: float | None) -> None:
        """Poll with back-off: from 1 ms after the last arrival up to 30 ms."""
        before = self._last
        if self._notifier.poll(ready, lambda: self.end() != before, self._pauses(seconds)):
            self._delay = _POLL_SECONDS_MIN

    def _pauses(self, seconds: float | None) -> Iterator[float]:
        """Yield pauses that add up to ``seconds``."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        left = math.inf if seconds is None else seconds
        while left > 0:
            self._delay = min(self._delay * 2, _POLL_SECONDS_MAX)
            yield min(self._delay, left)
            left = deadline - time.monotonic()

    def wake(self) -> None:
        self._notifier.notify()

    def leave(self) -> None:
        if self._mark is not None:
            self._mark.close()

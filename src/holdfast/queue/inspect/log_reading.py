"""Reads the log without a consumer group: takes nothing, changes nothing, pins nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self
from weakref import finalize

from holdfast.messages import Message
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.constants import NUMBER_MAX
from holdfast.persistence.format.message_headers import readable_headers
from holdfast.persistence.format.report import Damage
from holdfast.persistence.log.log_reader import FILE_MISSING, LEFT_OUT, LogReader
from holdfast.queue.engine.log_starts import find_start
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.log_start import EARLIEST, LAST, LATEST, OFFSET, TIME, LogStart
from holdfast.queue.options.message_filter import MessageFilter

_READ_COUNT = 64
"""Messages decoded at once; their bytes are bounded by one chunk of the reader."""

PAUSE_SECONDS_MIN = 0.001
PAUSE_SECONDS_MAX = 0.02
"""How often a reader that follows looks at the end of the log; the owner publishes it."""


class LogReading(Iterator[Message]):
    """The messages of a log in their order, one after another; made by :meth:`PersistentQueue.read`.

    A thread uses it at a time. It closes its file at its end; ``with`` or :meth:`close` does so before.

    Attributes
    ----------
    next_offset : int
        Where it reads on: the offset behind the last message that was returned, or a later one.
    gaps : list of range
        Offsets that were asked for and are not there: their data file was reclaimed, before or while this was read.
    damage : list of Damage
        What could not be read otherwise, and was passed.
    """

    def __init__(
        self,
        handle: QueueHandle,
        start: LogStart,
        stop: LogStart | None,
        *,
        message_filter: MessageFilter | None,
        follows: bool,
        timeout: float | None,
        is_shutdown: Callable[[], bool],
        check_open: Callable[[], None],
    ) -> None:
        self._log_end = handle.log_end
        self._directory = handle.files.directory
        self._filter = message_filter
        self._timeout = timeout
        self._is_shutdown = is_shutdown
        self._check_open = check_open
        self._messages: deque[Message] = deque()
        self._losses: list[Damage] = []
        self.gaps: list[range] = []
        self.damage: list[Damage] = []
        self.is_over = False
        self._reader = LogReader(handle.files, self._losses.append, recheck=True)
        finalize(self, self._reader.close)
        with storage_errors("reading", self._directory):
            self._first = self.next_offset = find_start(handle, start).offset
            end = self._log_end()
            self._last_end = None if follows else end
            self._stop_offset = _stop_offset(handle, stop)
            self._stop_ns = stop.number if stop is not None and stop.form == TIME else NUMBER_MAX
            self._reader.seek(self._first)
        asked = {OFFSET: start.number, LAST: max(0, end[2] - start.number)}.get(start.form, self._first)
        if asked < self._first:
            self.gaps.append(range(asked, self._first))

    def __next__(self) -> Message:
        if not self._messages and not self.is_over:
            self._wait_for_more()
        if not self._messages:
            raise StopIteration
        return self._messages.popleft()

    def _wait_for_more(self) -> None:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        pause = PAUSE_SECONDS_MIN
        while True:
            before = self.next_offset
            self._messages.extend(self.read_on())
            if self._messages or self.is_over:
                return
            if self.next_offset > before:  # none of those passes the filter
                continue
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                self.close()
                return
            time.sleep(pause if left is None else min(pause, left))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def read_on(self) -> list[Message]:
        """Return some of the messages that come next, without a wait; none if it is over, or none has come.

        None of those that have come may pass the filter: ``next_offset`` tells.
        """
        self._check_open()
        if self.is_over:
            return []
        was_shutdown = self._is_shutdown()  # first: what was put before that is returned
        with storage_errors("reading", self._directory):
            end = self._last_end or self._log_end()
            stop = min(end[2], self._stop_offset)
            found = self._reader.read(_READ_COUNT, (*end[:2], stop))
            while found and found[-1][0] < self._first:  # the index of the file led to a place before the start
                found = self._reader.read(_READ_COUNT, (*end[:2], stop))
            self._note_losses(stop)
            if not found:
                self._end_or_rest(stop, is_last=self._last_end is not None or was_shutdown)
        wanted = [each for each in found if self._first <= each[0] < self._stop_offset and each[1] < self._stop_ns]
        self.next_offset = max(self._first, self._reader.next_offset)
        if found and found[-1][1] >= self._stop_ns:
            self.close()
        return [
            Message(payload, offset, timestamp, readable_headers(headers))
            for offset, timestamp, headers, payload, _, _ in wanted
            if self._filter is None or self._filter.passes(offset, timestamp, headers, len(payload))
        ]

    def _end_or_rest(self, stop: int, *, is_last: bool) -> None:
        """End if nothing more is wanted; else let the file go: as long as it is open, it takes space if reclaimed."""
        if is_last or stop == self._stop_offset:
            if self._reader.next_offset < stop:  # as if the last file is missing
                self.gaps.append(range(max(self._first, self._reader.next_offset), stop))
            self.close()
        else:
            self._reader.rest()

    def _note_losses(self, stop: int) -> None:
        while self._losses:
            loss = self._losses.pop(0)
            offsets = range(max(loss.offsets.start, self._first), min(loss.offsets.stop, stop))
            is_gone = loss.reason in (FILE_MISSING, LEFT_OUT)
            if is_gone and offsets:
                self.gaps.append(offsets)
            elif not is_gone and (offsets or not loss.offsets):
                self.damage.append(replace(loss, offsets=offsets) if offsets else loss)

    def close(self) -> None:
        """End it; its file is closed."""
        self.is_over = True
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stop_offset(handle: QueueHandle, stop: LogStart | None) -> int:
    """Return the offset behind the last message that is wanted; the largest one if it is not known beforehand."""
    if stop is None or stop.form == TIME:
        return NUMBER_MAX
    latest = handle.next_offset()
    numbers = {EARLIEST: handle.files.first_offset, LATEST: latest, LAST: max(0, latest - stop.number)}
    return numbers.get(stop.form, stop.number)

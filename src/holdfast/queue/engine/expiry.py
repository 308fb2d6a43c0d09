"""Finds messages whose ``ttl`` is over, in the log itself: there may be no consumer that comes to them.

The log is read in stretches. Of each stretch that has any message with a ``ttl`` the earliest end is remembered, so
that it is read again once that is over, and not before. Each call reads a bounded number of messages.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.persistence.format.constants import NUMBER_MAX
from holdfast.persistence.format.message_options import decode_options, has_options
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_reader import Record
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.persistence.log.run_reader import RunReader

MESSAGES_MAX = 50_000
"""So many are read in one call: 20 ms for plain ones, and ten times that for those that ask for something."""

_STRETCH_COUNT = 4096
"""Messages of which one time is remembered."""

_READ_COUNT = 64


class Expiries:
    """The messages of a log that expire, as far as it has been read.

    Parameters
    ----------
    files : LogFiles
        The log.
    """

    def __init__(self, files: LogFiles) -> None:
        self._reader = RunReader(files, lambda damage: None, recheck=True)  # who takes it reports it
        self._next_offset = 0
        self._stretches: dict[int, tuple[int, int]] = {}  # by first offset: the end, and the earliest expiry in it
        self._left_count = 0
        self._turn = 0  # first offset of the stretch from which the next call reads again

    def find(
        self, first: int, end: LogEnd, now_ns: int, is_open: Callable[[int], bool | None]
    ) -> list[tuple[Record, int]]:
        """Return messages from ``first`` on that have expired, without their payloads, and when.

        ``is_open``: whether any group could end the message of an offset now; None: not now, and perhaps later. The
        others are left out. The next call finds more, and those again that are open then. Raises ``OSError``,
        StorageError.
        """
        self._left_count = MESSAGES_MAX
        self._stretches = {start: each for start, each in self._stretches.items() if each[0] > first}
        self._next_offset = max(self._next_offset, first)
        found: list[tuple[Record, int]] = []
        try:
            due = sorted(start for start, (_, earliest_ns) in self._stretches.items() if earliest_ns <= now_ns)
            kept_count = MESSAGES_MAX // 2 if self._next_offset < end[2] else 0  # for what was never read
            for start in sorted(due, key=lambda start: start < self._turn):
                if self._left_count <= kept_count:  # those with a message in hand are due in each call
                    self._turn = start
                    break
                stop, _ = self._stretches[start]
                found += self._read(range(max(start, first), stop), end, now_ns, is_open, start)
            while self._next_offset < end[2] and self._left_count > 0:
                start, stop = self._next_offset, min(self._next_offset + _STRETCH_COUNT, end[2])
                found += self._read(range(start, stop), end, now_ns, is_open, start)
                self._next_offset = stop
        finally:
            self._reader.close()
        return found

    def _read(
        self, offsets: range, end: LogEnd, now_ns: int, is_open: Callable[[int], bool | None], key: int
    ) -> list[tuple[Record, int]]:
        """Read a stretch, and remember when the first of its messages expires that is open, or may be again."""
        reader, found, earliest_ns = self._reader, [], NUMBER_MAX
        self._left_count -= len(offsets)
        reader.go_on_to(offsets.start)
        while reader.next_offset < offsets.stop:
            if reader.pass_plain(offsets.stop - reader.next_offset, NUMBER_MAX, end) is not None:
                continue
            records = reader.read(_READ_COUNT, end)
            if not records:
                break
            for offset, timestamp, headers, _, position, sequence in records:
                expires_ns = decode_options(headers).expires_ns if has_options(headers) else 0
                if not expires_ns or offset not in offsets:
                    continue
                is_over, may_end = expires_ns <= now_ns, is_open(offset)
                if may_end is not False or not is_over:  # a dead letter may be retried until then, and be open again
                    earliest_ns = min(earliest_ns, expires_ns)
                if may_end and is_over:
                    found.append(((offset, timestamp, headers, b"", position, sequence), expires_ns))
        self._stretches.pop(key, None)
        if earliest_ns < NUMBER_MAX:
            self._stretches[key] = offsets.stop, earliest_ns
        return found

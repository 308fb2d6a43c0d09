"""Finds messages in data files without reading earlier ones, and the end of a batch of some bytes.

The seal of a file knows a message about every 64 KiB. The file that is being written has none, so the last place is
remembered: a batch begins where the one before it ended. The remembered place only saves time: it may be lost at any
moment, and is when Spark starts another process.

A merged file has no places: an offset that was left out of it is nowhere, and behind the last message is no next one.
Its reader looks the offset up in the seal.
"""

from __future__ import annotations

from bisect import bisect_right

from holdfast.arrow.reading.file_range_reader import ConsumedMeanwhileError, FileRangeReader
from holdfast.persistence.filesystem.layout import DataFileName
from holdfast.persistence.filesystem.storage import MISSING
from holdfast.persistence.format.constants import FRAME_HEADER_BYTES, FRAMES_START
from holdfast.persistence.format.report import Damage
from holdfast.persistence.log.sealed_file import sealed_places
from holdfast.spark.streaming.log import StreamLog

NO_LIMIT = 2**63 - 1

_KNOWN_MAX = 16


class Places:
    """The places of some messages."""

    def __init__(self) -> None:
        self._known: dict[tuple[DataFileName, int], int] = {}

    def note(self, name: DataFileName, offset: int, position: int) -> None:
        """Remember the place of a message, which may not be written yet; not in a merged file."""
        if name.is_merged:
            return
        self._known.pop((name, offset), None)
        self._known[name, offset] = position
        if len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def note_end(self, log: StreamLog) -> None:
        """Remember the place of the next message."""
        if log.mark is not None:
            self.note(DataFileName(log.mark.sequence, log.mark.first_offset), log.end, log.mark.visible[0])

    def position_of(self, log: StreamLog, name: DataFileName, offset: int) -> int:
        """Return the position of a message in a file; 0 if it is unknown or the first one, or the file is merged."""
        if offset == name.first_offset or name.is_merged:
            return 0
        first, position = self._nearest(log, name, offset)
        if first == offset:
            return position
        losses: list[Damage] = []
        part = log.part(name, first, offset, position)
        reader = FileRangeReader(log.storage, log.path(name), log.queue_id, part, losses.append)
        try:
            for _ in reader.walked():
                pass
        except ConsumedMeanwhileError:
            return 0  # reading it reports that
        if losses:  # as above
            return 0
        self.note(name, offset, reader.position)
        return reader.position

    def limited_end(self, log: StreamLog, start: int, end: int, max_messages: int, max_bytes: int) -> int:
        """Return how far a batch goes that begins at ``start``: one message at least, and no further than ``end``.

        Missing messages do not count; so a stream skips a gap in one step.
        """
        is_empty = True
        for name, file_end in log.files_from(start):
            first = max(start, name.first_offset)
            stop = min(end, file_end, first + max_messages)
            if first >= stop:
                continue
            reached = stop
            if max_bytes != NO_LIMIT:
                reached, used = self._within(log, name, first, stop, is_whole=stop == file_end, room=max_bytes)
                max_bytes = max(0, max_bytes - used)
            max_messages -= reached - first
            if reached < stop or not max_messages or not max_bytes:
                return max(reached, first + 1) if is_empty else reached
            is_empty = False
        return end

    def _within(
        self, log: StreamLog, name: DataFileName, first: int, stop: int, *, is_whole: bool, room: int
    ) -> tuple[int, int]:
        """Return which of the messages ``first`` to ``stop`` of a file fit into some bytes, and how many they take.

        Parameters
        ----------
        is_whole : bool
            Whether ``stop`` is the end of the file: then its size alone may show that all do.
        """
        try:
            if name.is_merged:
                return self._walk_within(log, name, first, stop, 0, 0, room)
            begin = self.position_of(log, name, first) or FRAMES_START
            if is_whole and (size := self._end_position(log, name) - begin) <= room:
                return stop, size
            at, position = self._last_entry(log, name, first, stop, begin, begin + room)
            return self._walk_within(log, name, at, stop, position, begin, room)
        except ConsumedMeanwhileError:
            return stop, 0  # reading it reports that

    def _walk_within(
        self, log: StreamLog, name: DataFileName, first: int, stop: int, position: int, begin: int, room: int
    ) -> tuple[int, int]:
        """Return the same by walking over the messages; position and begin are 0 if they are not known."""
        part = log.part(name, first, stop, position)
        reader = FileRangeReader(log.storage, log.path(name), log.queue_id, part, lambda _: None)
        behind = position
        for walked in reader.walked():
            if not behind:
                behind = begin = (
                    reader.position + walked.bounds[0] - FRAME_HEADER_BYTES - len(walked.headers.get(0, b""))
                )
            ends = walked.bounds[1::2]
            fitting = bisect_right(ends, begin + room - reader.position)
            if fitting:
                behind = reader.position + ends[fitting - 1]
            if fitting < len(ends):
                reached = walked.offsets[fitting]
                self.note(name, reached, behind)
                return reached, behind - begin
        self.note(name, stop, reader.position)
        return stop, reader.position - begin if behind else 0

    # -- What the seal knows -----------------------------------------------------------------------------------------

    def _nearest(self, log: StreamLog, name: DataFileName, offset: int) -> tuple[int, int]:
        """Return the last message at or before ``offset`` whose position is known, and that position."""
        known = [(at, where) for (file, at), where in self._known.items() if file == name]
        if (found := max((each for each in known if each[0] <= offset), default=None)) and found[0] == offset:
            return found
        entries = [*known, *_entries(log, name)]
        return max((each for each in entries if each[0] <= offset), default=(name.first_offset, FRAMES_START))

    def _last_entry(
        self, log: StreamLog, name: DataFileName, first: int, stop: int, begin: int, limit: int
    ) -> tuple[int, int]:
        """Return the last message that surely is within the limit."""
        entries = (each for each in _entries(log, name) if first < each[0] < stop and each[1] <= limit)
        return max(entries, default=(first, begin))

    def _end_position(self, log: StreamLog, name: DataFileName) -> int:
        assert log.mark is not None
        if log.is_active(name):
            return log.mark.visible[0]
        try:
            file = log.storage.open(log.path(name), writable=False)
        except MISSING:
            return FRAMES_START  # reading it reports that
        try:
            return file.size()
        finally:
            file.close()


def _entries(log: StreamLog, name: DataFileName) -> list[tuple[int, int]]:
    """Return offsets and positions that are known of a file that is not written any more."""
    return [] if log.is_active(name) else sealed_places(log.storage, log.path(name))

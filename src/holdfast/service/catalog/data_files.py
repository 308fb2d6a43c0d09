"""The contents of each data file of a queue, from its header, its first message and its seal.

The cost follows the number of files. A file that is not the last one is read once in the life of a process, and again
if it has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from holdfast.errors import CorruptionError, StorageError
from holdfast.persistence.filesystem.layout import (
    DataFileName,
    QueueDirectory,
    check_header,
    list_data_files,
    open_if_there,
    read_data_file_header,
)
from holdfast.persistence.filesystem.storage import File, Storage, stamp_of
from holdfast.persistence.format.constants import (
    DATA_MAGIC,
    FLAG_HEADERS,
    FRAMES_START,
)
from holdfast.persistence.format.file_header import DataFileHeader, block_copies, header_damage
from holdfast.persistence.format.framing import Frame
from holdfast.persistence.format.message_headers import decode_headers
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.log.watermark import Watermark, read_write_mark
from holdfast.persistence.recovery.log_recovery import count_unreadable, missing_last_file
from holdfast.persistence.recovery.tail_scan import scan_tail
from holdfast.persistence.segment.frame_scanner import first_message
from holdfast.persistence.segment.frame_trailer import read_seal, seal_position

_LOOKS = 3
"""How often ``write.mark`` is read before it says nothing: its owner overwrites it in place."""


@dataclass(frozen=True, slots=True)
class DataFileFacts:
    """The facts about one data file.

    Attributes
    ----------
    name : DataFileName
        Sequence and first offset.
    state : "active", "sealed", "cut" or "damaged"
        Written to; sealed; ended by recovery after an unclean end; without a header that can be read.
    size_bytes : int
        On the disk, reserved space included.
    message_count : int or None
        How many offsets it has, up to the next file; None if unknown.
    merged_count : int
        How many messages a merged file has; 0 of any other.
    first_ns, last_ns : int or None
        Timestamps of the first and the last message.
    content_type : str or None
        Of the first message.
    recovered_ns : int or None
        Timestamp of the last message before the unclean end; None if there was none.
    damage : tuple of Damage
        What does not verify.
    """

    name: DataFileName
    state: str
    size_bytes: int
    message_count: int | None
    first_ns: int | None = None
    last_ns: int | None = None
    content_type: str | None = None
    recovered_ns: int | None = None
    damage: tuple[Damage, ...] = ()
    merged_count: int = 0

    @property
    def end_offset(self) -> int:
        """Offset behind the last message, as far as is known."""
        return self.name.first_offset + (self.message_count or 0)


class DataFiles:
    """Reads the data files of one queue, again and again.

    Parameters
    ----------
    storage, directory, queue_id
        The queue.

    Attributes
    ----------
    files : list of DataFileFacts
        As of the last :meth:`read`, in log order.
    damage : tuple of Damage
        Of the log as a whole: files at its end that are not there.
    end_offset : int
        Of the message that comes next.
    """

    def __init__(self, storage: Storage, directory: QueueDirectory, queue_id: bytes) -> None:
        self._storage = storage
        self._directory = directory
        self.queue_id = queue_id
        self.files: list[DataFileFacts] = []
        self.damage: tuple[Damage, ...] = ()
        self.end_offset = 0
        self._known: dict[tuple[object, ...], DataFileFacts] = {}
        self._mark: Watermark | None = None

    def read(self) -> None:
        """Read the files as they are now.

        Raises
        ------
        UnsupportedVersionError
            A Holdfast of another format version wrote one of them.
        OSError
            The disk refuses.
        """
        before = self._read_mark()  # names a file only once that is in data/, so a later listing must find it
        names = list_data_files(self._storage, self._directory)
        self._mark = self._read_mark()
        known: dict[tuple[object, ...], DataFileFacts] = {}
        self.files = []
        for name, following in pairwise([*names, None]):
            assert name is not None
            key = (name, following, stamp_of(self._directory.data_file(name))) if following is not None else None
            facts = self._known.get(key) if key is not None else None
            facts = facts or self._look_at(name, following)
            if facts is None:
                continue
            if key is not None and facts.state != "damaged":
                known[key] = facts
            self.files.append(facts)
        self._known = known
        last = self.files[-1] if self.files else None
        sequence, self.end_offset = (last.name.sequence, last.end_offset) if last is not None else (0, 0)
        gone = None
        if not names or sequence == names[-1].sequence:  # else the log has moved on meanwhile
            gone = missing_last_file(before, self._directory.data, sequence, self.end_offset)
        self.damage = () if gone is None else (gone,)
        if gone is not None:
            self.end_offset = max(self.end_offset, gone.offsets.stop)

    def _read_mark(self) -> Watermark | None:
        file = open_if_there(self._storage, self._directory.write_mark)
        if file is None:
            return None
        with file:
            marks = (read_write_mark(file, self.queue_id) for _ in range(_LOOKS))
            return next((mark for mark in marks if mark is not None), None)

    def _look_at(self, name: DataFileName, following: DataFileName | None) -> DataFileFacts | None:
        """Return the facts about one file; None if it was retired meanwhile."""
        path = self._directory.data_file(name)
        file = open_if_there(self._storage, path)
        if file is None:
            return None
        with file:
            start = file.read_at(FRAMES_START, 0)
            try:
                header = DataFileHeader.decode(block_copies(start), str(path))
                check_header(header, name, self.queue_id, path)
            except CorruptionError as error:
                if name not in list_data_files(self._storage, self._directory):
                    return None  # it has begun another life
                return self._unreadable(file, name, following, path, str(error))
            damage = tuple(header_damage(path, start, DATA_MAGIC))
            return self._readable(file, header, name, following, damage)

    def _unreadable(
        self, file: File, name: DataFileName, following: DataFileName | None, path: Path, reason: str
    ) -> DataFileFacts:
        count = _count_between(name, following)
        if following is None:
            count = count_unreadable(file, name.sequence, self._mark)
        size = file.size()
        lost = range(name.first_offset, name.first_offset + (count or 0))
        return DataFileFacts(name, "damaged", size, count, damage=(Damage(path, 0, size, lost, DAMAGED, reason),))

    def _readable(
        self,
        file: File,
        header: DataFileHeader,
        name: DataFileName,
        following: DataFileName | None,
        damage: tuple[Damage, ...],
    ) -> DataFileFacts:
        seal, recovered_ns = read_seal(file, header), None
        count: int | None
        last_ns: int | None
        if seal is not None:
            state, count, last_ns = "sealed", seal.message_count, max(seal.timestamp_max_ns, header.base_timestamp_ns)
        elif following is None:
            state = "active"
            count, last_ns = self._end_of_log(file, header, name)
        else:
            state, count = "cut", _count_between(name, following)
            last_ns = self._base_timestamp_of(following) if count is not None else None
            at = seal_position(file)
            if at is None:
                recovered_ns = last_ns
            else:
                state, path = "sealed", self._directory.data_file(name)
                reason = "the seal does not verify"
                damage += (Damage(path, at, file.size() - at, range(0), DAMAGED, reason),)
        first = first_message(file, header) if count != 0 else None
        if first is None and count is not None:
            first_ns = seal.timestamp_min_ns if seal is not None and count else None
        else:
            first_ns = max(first.timestamp_ns, header.base_timestamp_ns) if first is not None else None
        return DataFileFacts(
            name,
            state,
            file.size(),
            count,
            first_ns,
            last_ns if count else None,
            _content_type(first),
            recovered_ns,
            damage,
            header.merged_count,
        )

    def _end_of_log(self, file: File, header: DataFileHeader, name: DataFileName) -> tuple[int, int]:
        mark = self._mark
        if mark is not None and mark.file_id == header.file_id:
            return mark.visible[1], mark.timestamp_ns
        scan = scan_tail(file, header, self._directory.data_file(name), None)
        return scan.message_count, scan.timestamp_ns

    def _base_timestamp_of(self, following: DataFileName) -> int | None:
        """Return the latest timestamp before a file begins, from its header."""
        try:
            path = self._directory.data_file(following)
            return read_data_file_header(self._storage, path).base_timestamp_ns
        except (StorageError, OSError):  # reported when its turn comes
            return None


def _count_between(name: DataFileName, following: DataFileName | None) -> int | None:
    """Return how many messages a file must have so that the next one begins where it does; None if that is gone."""
    if following is None or not name.is_before(following):
        return None
    return following.first_offset - name.first_offset


def _content_type(first: Frame | None) -> str | None:
    if first is None or not first.flags & FLAG_HEADERS:
        return None
    try:
        return decode_headers(first.headers).get("content-type")
    except ValueError:
        return None

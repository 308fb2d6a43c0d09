"""``write.mark``: the written and the synced end of the log. docs/format.md, "write.mark".

The writer overwrites it in place; it is never synced for its own sake. Other processes read up to the mark, and
recovery starts at its synced end. If the mark does not verify, recovery scans the last file from its first frame.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path

from holdfast.persistence.filesystem.fence import Fence
from holdfast.persistence.filesystem.storage import File, Storage
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    FENCE_BYTES,
    FENCE_POSITION,
    FORMAT_VERSION,
    HEADER_CRC,
    NUMBER_MAX,
    WRITE_MARK,
    WRITE_MARK_BYTES,
    WRITE_MARK_MAGIC,
)
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.format.version import other_version
from holdfast.persistence.log.log_tail import LogEnd

_HERE = Path("write.mark")
_FLAG_SYNCED_ONLY = 0x0001
_OWNER_AT, _OWNER_BYTES = 12, 16


@dataclass(frozen=True, slots=True)
class Watermark:
    """The end of the log.

    Attributes
    ----------
    queue_id, file_id : bytes
        The queue, and this life of the active file.
    sequence, first_offset : int
        The active file, and the offset of its first message.
    written, written_count : int
        Position behind its last whole commit, and the messages below it in this file.
    synced, synced_count : int
        The same for the synced end.
    redo : int
        Commit records before this position are not pending any more; 0 if the last file is an adopted one with some.
    timestamp_ns : int
        Latest timestamp given to a message.
    synced_only : bool
        Whether a record may be shown only once it is synced (``FlushPolicy.every_commit``).
    """

    queue_id: bytes
    file_id: bytes
    sequence: int
    first_offset: int
    written: int
    written_count: int
    synced: int
    synced_count: int
    redo: int
    timestamp_ns: int
    synced_only: bool

    def encode(self) -> bytes:
        """Return the mark's ``WRITE_MARK_BYTES``."""
        *fields, synced_only = astuple(self)
        return _encoded(_FLAG_SYNCED_ONLY * synced_only, *fields)

    @property
    def visible(self) -> tuple[int, int]:
        """Position and message count that consumers may read up to."""
        return (self.synced, self.synced_count) if self.synced_only else (self.written, self.written_count)


def _encoded(*fields: int | bytes) -> bytes:
    """Return a mark: flags and the fields behind them."""
    body = WRITE_MARK.pack(WRITE_MARK_MAGIC, FORMAT_VERSION, *fields)
    return body + HEADER_CRC.pack(crc32c(0, body))


def read_write_mark(file: File, queue_id: bytes, path: Path = _HERE) -> Watermark | None:
    """Return the mark, or None if it does not verify or belongs to another queue.

    Raises
    ------
    UnsupportedVersionError
        It verifies, and has another format version.
    """
    return decode_write_mark(file.read_at(WRITE_MARK_BYTES, 0), queue_id, path)


def decode_write_mark(data: bytes, queue_id: bytes, path: Path = _HERE) -> Watermark | None:
    """As :func:`read_write_mark`, from the bytes of the file."""
    if len(data) < WRITE_MARK_BYTES:
        return None
    magic, version, flags, owner, file_id, *numbers = WRITE_MARK.unpack_from(data)
    if magic != WRITE_MARK_MAGIC or owner != queue_id:
        return None
    if HEADER_CRC.unpack_from(data, WRITE_MARK.size)[0] != crc32c(0, data[: WRITE_MARK.size]):
        return None
    if version != FORMAT_VERSION:
        raise other_version(str(path), version)
    fields = [queue_id, file_id, *numbers, bool(flags & _FLAG_SYNCED_ONLY)]
    mark = Watermark(*fields)
    counted = max(mark.written_count, mark.synced_count)
    return None if max(mark.sequence, mark.first_offset + counted, mark.timestamp_ns) > NUMBER_MAX else mark


def marked(storage: Storage, path: Path) -> Watermark | None:
    """Return what ``write.mark`` has, of any queue; None if it is missing, damaged or empty. Raises ``OSError``."""
    return _decoded(_marked_bytes(storage, path) or b"")


def marked_end(storage: Storage, path: Path) -> int | None:
    """Return the offset behind the last message in ``write.mark``, of any queue; 0 if it is empty.

    None if it is missing or damaged. Raises ``OSError``.
    """
    data = _marked_bytes(storage, path)
    mark = _decoded(data or b"")
    if mark is not None:
        return mark.first_offset + max(mark.written_count, mark.synced_count)
    return None if data is None or data.strip(b"\0") else 0


def _marked_bytes(storage: Storage, path: Path) -> bytes | None:
    try:
        file = storage.open(path, writable=False)
    except FileNotFoundError:
        return None
    with file:
        return file.read_at(WRITE_MARK_BYTES, 0)


def _decoded(data: bytes) -> Watermark | None:
    return decode_write_mark(data, data[_OWNER_AT : _OWNER_AT + _OWNER_BYTES])


class WatermarkFile:
    """Publishes the end of the log in ``write.mark``, for other processes.

    Parameters
    ----------
    storage, path
        Where it is.
    file : File
        Its handle.
    fence : Fence
        The token of this opening, which is behind the mark.
    synced_only : bool
        The visibility in every mark.
    """

    def __init__(self, storage: Storage, path: Path, file: File, fence: Fence, *, synced_only: bool) -> None:
        self._storage = storage
        self._path = path
        self._file: File | None = file
        self._fence = fence
        self._slot = fence.slot
        self._is_closed = False
        self._synced_only = synced_only
        self._published: tuple[LogEnd, LogEnd, int] | None = None
        self._seen: tuple[LogEnd, LogEnd, int] | None = None

    def publish(self, header: DataFileHeader, end: LogEnd, synced: LogEnd, redo: int, timestamp_ns: int) -> None:
        """Write the mark if it has changed; raises ``OSError``.

        A failure costs no durability: other processes see the end a little later, with the next mark.
        """
        if self._published == (end, synced, redo) or self._is_closed:
            return
        first_offset = header.first_offset
        mark = _encoded(  # every sync pays for this: no object is made
            _FLAG_SYNCED_ONLY * self._synced_only,
            header.queue_id,
            header.file_id,
            header.sequence,
            first_offset,
            end[1],
            end[2] - first_offset,
            synced[1],
            synced[2] - first_offset,
            redo,
            timestamp_ns,
        )
        self._opened().write_at((mark,), 0)
        self._published = (end, synced, redo)

    def check_fence(self) -> None:
        """Return if no other owner has opened the queue to write since this opening; every sync pays for it.

        Raises
        ------
        FencedError
            Another owner has.
        OSError
            The disk refuses.
        """
        found = (self._file or self._opened()).read_at(FENCE_BYTES, FENCE_POSITION)
        if found != self._slot:
            raise self._fence.error(found, self._path)

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._storage.open(self._path)
        return self._file

    def rest(self) -> None:
        """Close the handle if nothing was published since the last call; no sync needs it."""
        if self._published == self._seen:
            self._let_go()
        self._seen = self._published

    def close(self) -> None:
        """Close the handle, and publish no more."""
        self._is_closed = True
        self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

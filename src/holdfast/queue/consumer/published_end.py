"""The end of the log as its owner publishes it, for handles that only look: the high watermark in ``write.mark``."""

from __future__ import annotations

from pathlib import Path

from holdfast.persistence.filesystem.storage import File, Storage, storage_error
from holdfast.persistence.format.constants import WRITE_MARK_BYTES
from holdfast.persistence.format.report import UNSYNCED_OR_DAMAGED, Damage
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.persistence.log.watermark import decode_write_mark

_UNKNOWN: LogEnd = (0, 0, 0)
_LOOKS = 3
"""How often ``write.mark`` is read before it counts as damaged: its owner overwrites it in place."""

_NOT_SHOWN = "write.mark does not verify: no message is shown until the queue is opened to put or to take"


class PublishedEnd:
    """Reads ``write.mark``, which never goes back.

    Parameters
    ----------
    storage, path, queue_id
        The file, and its queue.
    """

    def __init__(self, storage: Storage, path: Path, queue_id: bytes) -> None:
        self._storage = storage
        self._path = path
        self._mark: File | None = None
        self._queue_id = queue_id
        self._last: LogEnd = _UNKNOWN

    def end(self) -> LogEnd:
        """Return the high watermark; that of the last look while the mark does not verify. Raises StorageError."""
        try:
            mark = decode_write_mark(self._read_mark(), self._queue_id, self._path)
        except OSError as error:
            raise storage_error(error, "looking for the end of the log", self._path) from error
        if mark is not None:
            position, count = mark.visible
            self._last = max(self._last, (mark.sequence, position, mark.first_offset + count))
        return self._last

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

    def close(self) -> None:
        """Close the file."""
        if self._mark is not None:
            self._mark.close()

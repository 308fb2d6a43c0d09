"""Data files of a queue that this machine does not see, read through a range server.

Reading goes forward, mostly: so bytes come as one stream, and a read that begins elsewhere begins another stream.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.arrow.reading.file_range import FileRange
from holdfast.persistence.filesystem.layout import DataFileName, data_file_name
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.spark.remote.client import RangeClient

_STREAM_BYTES_MIN = 2**20
"""A read of less is not the first one of many: only what it asks for is sent."""


class RemoteFiles:
    """Opens data files. One that is gone is a ``FileNotFoundError``, as on a disk.

    Parameters
    ----------
    client : RangeClient
        Asks the server.
    """

    def __init__(self, client: RangeClient) -> None:
        self._client = client

    def require_log(self, part: FileRange) -> None:
        """Make sure that the server sees the queue, and that its log once held a file. Raises HoldfastError."""
        self._client.require_log(part.name)

    def replacing(self, name: DataFileName) -> DataFileName | None:
        """Return the merged file that has taken the place of a file; None if there is none. Raises HoldfastError."""
        return self._client.replacing(name)

    def open(self, path: Path, *, writable: bool = False) -> RemoteFile:
        """Open a data file, whose path on the server's host this is; only its name is sent."""
        if writable:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        name = data_file_name(path.name)
        assert name is not None, "a plan names data files"
        return RemoteFile(self._client, name, *self._client.open(name))


class RemoteFile:
    """A data file, to be read.

    The header that it shows is never older than any byte that it has shown. So a reader that compares it after a read
    knows whether the bytes are of the planned life of the file.

    Parameters
    ----------
    client, name
        What to ask for, and whom.
    size_bytes : int
        Its size when it was opened.
    header : bytes
        The header that it had then.
    """

    def __init__(self, client: RangeClient, name: DataFileName, size_bytes: int, header: bytes) -> None:
        self._client = client
        self._name = name
        self._size_bytes = size_bytes
        self._header = header
        self._chunks: Iterator[tuple[memoryview, bytes]] = iter(())
        self._shown = b""  # by the last read, whose end the next one mostly begins with
        self._position = 0  # of what was shown
        self._rest = memoryview(b"")  # of the stream, behind what was shown
        self._is_endless = False  # whether the stream continues to the end of the file

    def size(self) -> int:
        """Return the size that the file had when it was opened."""
        return self._size_bytes

    def read_at(self, size: int, position: int) -> bytes:
        """Return up to ``size`` bytes from ``position``, fewer only at the end; raises HoldfastError."""
        if position + size <= FRAMES_START:
            return self._header[position : position + size]
        end = self._position + len(self._shown)
        if not (self._position <= position <= end and (self._is_endless or position + size <= end)):
            self._begin(position, size)
        kept = memoryview(self._shown)[position - self._position :][:size]
        parts, missing = [kept], size - len(kept)
        while missing and (self._rest or self._receive()):
            piece = self._rest[:missing]
            self._rest = self._rest[missing:]
            parts.append(piece)
            missing -= len(piece)
        if len(parts) > 1 or not kept:
            self._shown, self._position = b"".join(parts), position
            return self._shown
        return bytes(kept)

    def _begin(self, position: int, size: int) -> None:
        """Ask for bytes from another position on."""
        self.close()
        self._is_endless = size >= _STREAM_BYTES_MIN
        self._chunks = self._client.chunks(self._name, position, 0 if self._is_endless else size)
        self._position = position

    def _receive(self) -> bool:
        """Take the next chunk of the stream; whether there was one with bytes in it."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._rest, self._header = chunk
        return bool(self._rest)

    def close(self) -> None:
        """End the stream."""
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()
        self._chunks, self._shown, self._rest = iter(()), b"", memoryview(b"")

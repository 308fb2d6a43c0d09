"""The bytes at the end of a file that is being written: gathered in memory, written in large chunks.

Memory stays near one chunk, however much is written. Appended bytes can be taken back by position: bytes behind it, in
memory or in the file, no longer count, and are overwritten.
"""

from __future__ import annotations

from holdfast.persistence.filesystem.storage import File, write_whole

CHUNK_BYTES = 2**20
"""Large enough that the system call does not count, small enough to keep one for each open transaction."""

COPY_BYTES_MAX = 2**17
"""What is larger goes to the file at once: copying it into a chunk would cost more than another system call."""


class FileBuffer:
    """Gathers the bytes appended to one file.

    Parameters
    ----------
    file : File
        The file to write.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._pending = (0, bytearray())  # one assignment moves both: an interruption finds them in step

    @property
    def end(self) -> int:
        """Position behind the last byte that was appended."""
        start, data = self._pending
        return start + len(data)

    @property
    def written(self) -> int:
        """Position below which everything is in the file."""
        return self._pending[0]

    def append(self, *buffers: bytes) -> None:
        """Append bytes; raises ``OSError`` if a full chunk could not be written."""
        size = sum(map(len, buffers))
        if size > COPY_BYTES_MAX:
            self.flush()
            write_whole(self._file, buffers, self.end)
            self._pending = (self.end + size, bytearray())
            return
        data = self._pending[1]
        for buffer in buffers:
            data += buffer
        if len(data) >= CHUNK_BYTES:
            self.flush()

    def overwrite(self, data: bytes, position: int) -> None:
        """Overwrite bytes that one ``append`` has put at ``position``."""
        start, pending = self._pending
        if position >= start:
            pending[position - start : position - start + len(data)] = data
        else:
            write_whole(self._file, (data,), position)

    def rewind(self, position: int) -> None:
        """Take back all bytes appended behind ``position``."""
        start, data = self._pending
        if position < start:
            self._pending = (position, bytearray())
        else:
            del data[position - start :]

    def flush(self) -> None:
        """Write the gathered bytes; raises ``OSError``, and then none of them count as written."""
        start, data = self._pending
        if data:
            write_whole(self._file, (bytes(data),), start)
            self._pending = (start + len(data), bytearray())

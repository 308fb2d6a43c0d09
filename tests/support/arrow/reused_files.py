"""Data files that are consumed and reused while they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.persistence.filesystem.storage import File, Storage
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.format.file_header import DataFileHeader, block_buffers
from holdfast.persistence.format.framing import encode_frame
from support.builders.small_queues import SmallQueue


def begin_anew(queue: SmallQueue, path: Path) -> None:
    """Give a file another life, as a writer does that reuses it: the header first, then frames."""
    old = queue.header(path)
    new = DataFileHeader(old.queue_id, old.sequence, old.first_offset, old.base_timestamp_ns)
    frames = b"".join(
        b"".join(encode_frame(new.salt, b"another life", index=index, durable_mark=0, timestamp_ns=1))
        for index in range(3)
    )
    queue.patch(path, 0, block_buffers(new.encode()))
    queue.patch(path, FRAMES_START, frames)


class OnRead:
    """A storage that does something once, before or after the first read of frames of a data file."""

    def __init__(self, storage: Storage, act: Callable[[], None], *, before: bool) -> None:
        self._storage = storage
        self._act: Callable[[], None] | None = act
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> File:
        """Open a file whose frames are watched."""
        if path.suffix != ".data":
            return self._storage.open(path, create=create, writable=writable)
        file, storage = self._storage.open(path, create=create, writable=writable), self

        class Polled:
            def read_at(self, size: int, position: int) -> bytes:
                act = storage._act if position >= FRAMES_START else None
                storage._act = None if act else storage._act
                if act and storage._before:
                    act()
                data = file.read_at(size, position)
                if act and not storage._before:
                    act()
                return data

            def size(self) -> int:
                return file.size()

            def close(self) -> None:
                file.close()

        return Polled()  # type: ignore[return-value]  # all that a reader calls

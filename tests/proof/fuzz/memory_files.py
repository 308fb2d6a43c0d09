"""Files in memory, to be read only: as fast as a decoder can be given bytes."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from holdfast.persistence.filesystem.storage import DIRECTORY_MODE, DirectoryStatus


class BytesFile:
    """An open file that holds these bytes."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_at(self, size: int, position: int) -> bytes:
        if size < 0 or position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._data[position : position + size]

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getattr__(self, verb: str) -> Any:
        raise AssertionError(f"a reader has called {verb}")


class BytesStorage:
    """A storage with these files; whoever only reads changes nothing of it.

    Parameters
    ----------
    files : mapping of Path to bytes
        What is there, by absolute path.
    """

    def __init__(self, files: Mapping[Path, bytes]) -> None:
        self._files = files

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> BytesFile:
        assert not create, f"a reader makes {path}"
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return BytesFile(self._files[path])

    def list(self, path: Path) -> list[str]:
        depth = len(path.parts)
        return sorted({each.parts[depth] for each in self._files if path in each.parents})

    def directory_status(self, path: Path) -> DirectoryStatus:
        return DirectoryStatus(os.geteuid(), DIRECTORY_MODE)

    def __getattr__(self, verb: str) -> Any:
        raise AssertionError(f"a reader has called {verb}")

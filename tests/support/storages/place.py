"""A directory in some storage, real or simulated, and what tests do in it all the time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.persistence.filesystem.storage import Storage, write_whole


@dataclass(frozen=True)
class Place:
    """A storage and an empty directory in it."""

    storage: Storage
    root: Path

    def make(self, name: str, content: bytes = b"") -> Path:
        """Create a file, close it and return its path."""
        path = self.root / name
        file = self.storage.open(path, create=True)
        write_whole(file, (content,), 0)
        file.close()
        return path

    def content(self, path: Path) -> bytes:
        """Return all of a file."""
        file = self.storage.open(path, writable=False)
        try:
            return file.read_at(file.size(), 0)
        finally:
            file.close()

    def tree(self, directory: Path = Path()) -> dict[str, bytes | None]:
        """Return all that is there by relative path, None for a directory."""
        found: dict[str, bytes | None] = {}
        for name in self.storage.list(self.root / directory):
            path = directory / name
            try:
                found[str(path)] = self.content(self.root / path)
            except OSError:
                found[str(path)] = None
                found |= self.tree(path)
        return found

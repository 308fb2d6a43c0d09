"""A storage whose syncs take a while: long enough for something to happen in the middle of one."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.persistence.filesystem.storage import OsFile, OsStorage

SYNC_SECONDS = 0.2


class SlowFile(OsFile):
    """A file whose syncs take a while."""

    def sync(self) -> None:
        """Sync, in the end."""
        time.sleep(SYNC_SECONDS)
        super().sync()


class SlowStorage(OsStorage):
    """The file system of the operating system, on a slow disk."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> SlowFile:
        """Open a file whose syncs take a while."""
        return SlowFile(super().open(path, create=create, writable=writable)._fd)

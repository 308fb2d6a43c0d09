"""A reader of progress that says what a test says, whatever is in the position files."""

from __future__ import annotations

from pathlib import Path

from holdfast.persistence.filesystem.layout import queue_directory
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.reach import Reach


class KnownProgress(PositionFileReader):
    """Finds the generation that counts, and returns the progress of the test."""

    def __init__(
        self, storage: Storage, directory: Path, queue_id: bytes, group_id: bytes, known: GroupProgress
    ) -> None:
        reach = Reach(storage, queue_directory(directory.parent))
        super().__init__(storage, directory, queue_id, group_id, reach, GroupProgress)
        self._known = known

    def refresh(self) -> GroupProgress:
        super().refresh()
        return self._known

"""Consumer lag: how far the slowest group is behind, which ``maxsize`` bounds."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.groups.group_files import list_groups, progress_reader
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.log.log_files import LogFiles
from holdfast.queue.consumer.read_side import ReadSide

_LOOK_SECONDS = 0.05
"""How old the view of groups in other processes may be."""


class ConsumerLag:
    """Reads the progress of all groups: of those open here from memory, of the others from their position files.

    Parameters
    ----------
    directory, files
        The queue.
    """

    def __init__(self, directory: QueueDirectory, files: LogFiles) -> None:
        self._storage = files.storage
        self._directory = directory
        self._queue_id = files.queue_id
        self._readers: dict[bytes, tuple[str, PositionFileReader]] = {}
        self._looked_at = float("-inf")

    def depth(self, next_offset: int, first_offset: int, readers: Mapping[str, ReadSide]) -> int:
        """Return how many messages, except dead letters, the slowest group has not finished; without a group, all.

        ``readers`` are the read sides that are open beside the write side, by group.
        """
        if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            self._look(readers)
        finished = [
            reader.progress.finished_count + len(reader.progress.dead)
            for name, reader in self._readers.values()
            if name not in readers  # it may have been opened here since
        ]
        finished += [
            side.progress.finished_count + len(side.progress.dead)
            for side in list(readers.values())
            if side.is_started or not finished
        ]
        return max(0, next_offset - min(finished, default=first_offset))

    def _look(self, owned: Collection[str]) -> None:
        readers: dict[bytes, tuple[str, PositionFileReader]] = {}
        with storage_errors("looking at groups", self._directory.groups):
            for group in list_groups(self._storage, self._directory):
                if group.name not in owned:
                    _, reader = self._readers.get(group.group_id) or (
                        group.name,
                        progress_reader(self._storage, self._directory, self._queue_id, group),
                    )
                    reader.refresh()
                    readers[group.group_id] = group.name, reader
        self._readers = readers
        self._looked_at = time.monotonic()

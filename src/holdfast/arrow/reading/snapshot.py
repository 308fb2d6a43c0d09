"""Plans a read: the messages and data files of the queue at this moment. Takes no lock and changes nothing.

The order matters. First ``write.mark`` is read for the end, then the files are listed, and only then is the progress of
groups read: so a file that is not in the list any more is known to have been finished.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from holdfast.arrow.reading.file_range import FileRange, Runs, clipped, without
from holdfast.arrow.reading.selection import NO_END, Selection
from holdfast.errors import StorageError
from holdfast.persistence.filesystem.layout import (
    DataFileName,
    QueueDirectory,
    list_data_files,
    open_directory,
)
from holdfast.persistence.filesystem.storage import MISSING, Storage, storage_errors
from holdfast.persistence.format.report import DAMAGED, Damage, merged
from holdfast.persistence.groups.group_files import (
    DEFAULT_GROUP,
    GroupInfo,
    find_group,
    list_groups,
    progress_reader,
    require_group,
)
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.log_times import files_before
from holdfast.persistence.log.sealed_file import end_offset
from holdfast.persistence.log.watermark import Watermark, read_write_mark

_MARK_TRIES = 100
_MARK_PAUSE_SECONDS = 0.002
"""A mark that is being written just now does not verify; a fifth of a second is long for that."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The plan.

    Attributes
    ----------
    root, queue_id
        The queue.
    parts : list of FileRange
        What to read, in the order of the log.
    deliveries : dict of int to int, or None
        Delivery counts of unfinished messages of the group; None if none was named.
    missing : list of Damage
        Messages that are gone although a group has not finished them.
    """

    root: Path
    queue_id: bytes
    parts: list[FileRange] = field(default_factory=list)
    deliveries: dict[int, int] | None = None
    missing: list[Damage] = field(default_factory=list)


def take_snapshot(storage: Storage, selection: Selection) -> Snapshot:
    """Plan a read.

    Raises
    ------
    QueueNotFoundError, GroupNotFoundError
        There is none of that name.
    StorageError
        ``write.mark`` does not verify, or the disk refuses.

    Notes
    -----
    Cost: two listings; with gaps or given timestamps, also the headers and seals of a few files.
    """
    directory, queue_id, _ = open_directory(storage, selection.path, create=False, writable=False)
    with storage_errors("planning a read", directory.root):
        mark = read_mark(storage, directory, queue_id)
        if mark is None:
            return Snapshot(directory.root, queue_id, deliveries=None if selection.group is None else {})
        names = settled_files(storage, directory)
        wanted, begun = _progress(storage, directory, queue_id, selection.group)
        plan = _Plan(storage, directory, mark, names)
        deliveries = None if wanted is None else dict(wanted.deliveries)
        return Snapshot(
            directory.root, queue_id, plan.parts(selection, wanted), deliveries, plan.missing(selection, begun)
        )


def read_mark(storage: Storage, directory: QueueDirectory, queue_id: bytes) -> Watermark | None:
    """Return ``write.mark``; None if nothing was ever written."""
    for _ in range(_MARK_TRIES):
        try:
            file = storage.open(directory.write_mark, writable=False)
        except MISSING:
            if not list_data_files(storage, directory):
                return None
        else:
            try:
                mark = read_write_mark(file, queue_id, directory.write_mark)
            finally:
                file.close()
            if mark is not None:
                return mark
        time.sleep(_MARK_PAUSE_SECONDS)
    raise StorageError(
        f"{directory.write_mark} does not say where the log ends: open the queue once, which writes it anew",
        path=str(directory.write_mark),
    )


def settled_files(storage: Storage, directory: QueueDirectory) -> list[DataFileName]:
    """Return the data files in log order, once two listings agree.

    One alone proves no loss: in the middle of a merge it may have neither the new file nor those that it has replaced.
    """
    names = list_data_files(storage, directory)
    while (again := list_data_files(storage, directory)) != names:
        names = again
    return names


def visible_end(mark: Watermark) -> int:
    """Return the offset behind the last message that may be read."""
    return mark.first_offset + mark.visible[1]


def visible_files(
    storage: Storage, directory: QueueDirectory, mark: Watermark, names: Sequence[DataFileName]
) -> Iterator[tuple[DataFileName, int]]:
    """Yield the files that may be read, each with the offset behind its last message; the names are in log order.

    The next file's name has that offset. If that file is gone, the file's own seal has it, and only then it is opened.
    """
    last = visible_end(mark)
    for place, name in enumerate(names):
        if name.sequence > mark.sequence or name.first_offset >= last:
            break
        following = names[place + 1] if place + 1 < len(names) else None
        if following is not None and name.is_before(following):
            yield name, min(last, following.first_offset)
        elif name.sequence == mark.sequence:
            yield name, last
        else:
            yield name, min(last, end_offset(storage, directory.data_file(name), name))


def pinned(mark: Watermark, name: DataFileName, runs: Runs, position: int = 0) -> FileRange:
    """Return messages of a file as a task reads them: of the file that is being written, up to the end."""
    limit, file_id = (mark.visible[0], mark.file_id) if name.sequence == mark.sequence else (0, b"")
    return FileRange(name, runs, limit, file_id, position, (mark.sequence, mark.visible[0]))


def _progress(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, group: str | None
) -> tuple[GroupProgress | None, list[GroupProgress]]:
    """Return the progress of the requested group, and of those that may miss the missing messages."""

    def read(info: GroupInfo) -> GroupProgress:
        return progress_reader(storage, directory, queue_id, info).refresh()

    if group is None:
        return None, [read(info) for info in list_groups(storage, directory)]
    if group == DEFAULT_GROUP and find_group(storage, directory, group) is None:
        return GroupProgress(), []  # it begins when it is first used, with the messages of that time
    wanted = read(require_group(storage, directory, group))
    return wanted, [wanted]


class _Plan:
    """The files below the end that the mark names, their messages, and the gaps between them."""

    def __init__(self, storage: Storage, directory: QueueDirectory, mark: Watermark, names: list[DataFileName]) -> None:
        self._storage = storage
        self._directory = directory
        self._mark = mark
        self._files: list[tuple[DataFileName, int]] = []
        self._gaps: list[tuple[int, int]] = []
        expected = 0
        for name, file_end in visible_files(storage, directory, mark, names):
            if name.first_offset > expected:
                self._gaps.append((expected, name.first_offset))
            expected = file_end
            self._files.append((name, expected))
        if expected < visible_end(mark):
            self._gaps.append((expected, visible_end(mark)))

    def parts(self, selection: Selection, progress: GroupProgress | None) -> list[FileRange]:
        """Return what to read: the unfinished messages of a group, or everything."""
        parts = []
        for name, file_end in self._within(selection.timestamp_start_ns, selection.timestamp_end_ns):
            runs = clipped(((name.first_offset, file_end),), selection.offset_start, selection.offset_end)
            if progress is not None:
                runs = _unfinished(runs, progress)
            if runs:
                parts.append(pinned(self._mark, name, runs))
        return parts

    def missing(self, selection: Selection, progresses: list[GroupProgress]) -> list[Damage]:
        """Return the messages that are not there although a group has not finished them: their file was not retired."""
        gaps = clipped(tuple(self._gaps), selection.offset_start, selection.offset_end)
        lost = merged(run for gap in gaps for progress in progresses for run in progress.unfinished_runs(*gap))
        return [Damage(self._directory.data, 0, 0, run, DAMAGED, "a data file is missing") for run in lost]

    def _within(self, start_ns: int, end_ns: int) -> list[tuple[DataFileName, int]]:
        """Return the files that may hold messages of a time. Rows are chosen when they are read."""
        names = [name for name, _ in self._files]
        before = partial(files_before, self._storage, names, self._directory.data_file)
        try:
            low = before(start_ns) if start_ns else 0
            high = before(end_ns) if end_ns != NO_END else None
        except (StorageError, OSError):  # reported when it is read; then all files are
            return self._files
        return self._files[max(0, low - 1) : high]


def _unfinished(runs: Runs, progress: GroupProgress) -> Runs:
    """Return what of the runs a group has neither finished nor given up."""
    dead = sorted(progress.dead)
    return tuple(
        part
        for first, end in runs
        for run in progress.unfinished_runs(first, end)
        for part in without(run.start, run.stop, dead[bisect_left(dead, run.start) : bisect_left(dead, run.stop)])
    )

"""Finds where a start is in the log of a queue, and moves a group there while it is read."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigError, StorageError
from holdfast.persistence.filesystem.layout import read_data_file_header
from holdfast.persistence.filesystem.storage import MISSING, storage_errors
from holdfast.persistence.log.log_times import offset_since
from holdfast.persistence.log.sealed_file import retired_ranges
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.engine.reading import with_reserve
from holdfast.queue.options.log_start import EARLIEST, LAST, LATEST, TIME, LogStart
from holdfast.queue.verbs.verb_log import Asker, logged


@dataclass(frozen=True, slots=True)
class GroupStart:
    """Where a group starts.

    Attributes
    ----------
    offset : int
        The first message that it gets.
    is_complete : bool
        Whether all messages from the requested start on are there: the log is kept back to it, without a gap.
    """

    offset: int
    is_complete: bool


def find_start(handle: QueueHandle, start: LogStart) -> GroupStart:
    """Return where a start is now; data files must not be retired meanwhile, or the result is soon outdated.

    Raises
    ------
    ConfigError
        It is an offset behind the end of the log.
    StorageError, OSError
        As :func:`offset_since`.
    """
    handle.files.refresh()
    latest = handle.next_offset()
    wanted = _wanted(handle, start, latest)
    if wanted > latest:
        raise ConfigError(f"the log ends at offset {latest}: a start is an offset from 0 to that, not {wanted}")
    earliest = handle.files.first_offset
    gaps = retired_ranges(handle.files, wanted)
    offset = max(wanted, earliest)
    if gaps and offset in gaps[0]:
        offset = gaps[0].stop
    return GroupStart(offset, wanted >= earliest and not gaps)


def _wanted(handle: QueueHandle, start: LogStart, latest: int) -> int:
    """Return the offset that is meant, whether or not it is there; a time from before the log is in front of it."""
    first = handle.files.first_offset
    if start.form == TIME:
        return _wanted_since(handle, start.number, first, latest)
    known = {EARLIEST: first, LATEST: latest, LAST: max(0, latest - start.number)}
    return known.get(start.form, start.number)


def _wanted_since(handle: QueueHandle, timestamp_ns: int, first: int, latest: int) -> int:
    files = handle.files
    found = min(latest, offset_since(files, timestamp_ns, handle.log_end()))
    begins = [name for name in files.names() if name.first_offset == found]
    is_behind_gap = found == first or any(gap.stop == found for gap in retired_ranges(files))
    if found == 0 or not is_behind_gap:
        return found
    if not begins:  # inside of a merged file: those of that time may have been left out
        return found - 1
    try:  # no message before a file is younger than its base
        base_ns = read_data_file_header(files.storage, files.path(begins[0])).base_timestamp_ns
    except (StorageError, *MISSING):
        return found - 1
    return found if timestamp_ns > base_ns else found - 1


@dataclass(frozen=True, slots=True)
class Moved:
    """What a seek has done.

    Attributes
    ----------
    started : GroupStart
        Where the group continues.
    task_change : int
        How many more messages than before its consumers will report done.
    """

    started: GroupStart
    task_change: int


def seek(handle: QueueHandle, start: LogStart, asker: Asker) -> Moved:
    """Have the group of a handle with its read side continue at a start; that is logged.

    Raises
    ------
    TransactionStateError
        The group has prepared transactions or reservations; nothing was done.
    ConfigError, StorageError
        As :func:`find_start`; or the disk refuses, and the group is where it was.
    CommitUnknownError, PoisonedError
        It may have moved or not, or an earlier failure has poisoned the read side: reopen the queue and check.
    """
    details = {"group": handle.options.group, "start": str(start)}
    return logged(handle.path, "groups.seek", details, asker, lambda: _seek(handle, start))


def _seek(handle: QueueHandle, start: LogStart) -> Moved:
    side = handle.require_read_side()
    found: list[GroupStart] = []

    def offset() -> int:
        found.append(find_start(handle, start))
        return found[-1].offset

    def begin() -> int:
        with storage_errors("moving a group", handle.directory.group(handle.options.group)):
            return side.seek(lambda: handle.group.begin_life(offset))

    task_change = with_reserve(handle.storage, handle.directory, begin)
    return Moved(found[-1], task_change)

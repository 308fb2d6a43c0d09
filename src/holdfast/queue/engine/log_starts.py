"""Finds where a start is in the log of a queue: the offset, and whether all that was asked for is still there."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigError, StorageError
from holdfast.persistence.filesystem.layout import read_data_file_header
from holdfast.persistence.filesystem.storage import MISSING
from holdfast.persistence.log.log_times import offset_since
from holdfast.persistence.log.sealed_file import retired_ranges
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.log_start import EARLIEST, LAST, LATEST, TIME, LogStart


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
    gaps = [gap for gap in retired_ranges(handle.files) if gap.stop > wanted]
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
    if found > first or found == 0:
        return found
    try:  # no message before a file is younger than its base
        base_ns = read_data_file_header(files.storage, files.path(files.names()[0])).base_timestamp_ns
    except (StorageError, *MISSING):
        return found - 1
    return found if timestamp_ns > base_ns else found - 1

"""Finds the messages of a time: from a few headers, the index of one file, and some records.

Timestamps never go backwards in the log. The base timestamp of a file is no smaller than any timestamp before it, and
no larger than its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path

from holdfast.errors import StorageError
from holdfast.persistence.filesystem.layout import DataFileName, read_data_file_header
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.format.constants import NUMBER_MAX
from holdfast.persistence.format.report import Damage
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_reader import LogReader
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.persistence.log.sealed_file import sealed_places

_READ_COUNT = 256

_CHUNK_BYTES = 2**16
"""Read at once: the index of a file names a record about as often."""

_time_of = itemgetter(1)


def offset_since(files: LogFiles, timestamp_ns: int, end: LogEnd) -> int:
    """Return the first offset below ``end`` whose message was put at a time or later; that of ``end`` if none was.

    Raises
    ------
    UnsupportedVersionError
        A Holdfast of another format version wrote a file.
    OSError
        The disk refuses.

    Notes
    -----
    Cost: one header for each doubling of the number of files, then up to 64 KiB of a sealed file. The file that is
    being written has no index, and is read from its start. A damaged header on the way costs the index: then the log is
    read from its start.
    """
    names = [name for name in files.names() if name.first_offset < end[2]]
    try:
        at = max(0, files_before(files.storage, names, files.path, timestamp_ns) - 1)
    except (StorageError, *MISSING):  # damaged, or reclaimed just now: reading passes it
        at = 0
    if not names:
        return end[2]
    with closing(LogReader(files, _pass, recheck=True, chunk_bytes=_CHUNK_BYTES)) as reader:
        reader.begin_at(names[at])
        places = sealed_places(files.storage, files.path(names[at]))

        def time_at(place: tuple[int, int]) -> int:
            reader.move_to(place[0], names[at].sequence, place[1])
            records = reader.read(1, end)
            return records[0][1] if records else NUMBER_MAX

        begun = bisect_left(places, timestamp_ns, key=time_at)
        if begun:
            reader.move_to(places[begun - 1][0], names[at].sequence, places[begun - 1][1])
        elif places:
            reader.begin_at(names[at])
        while records := reader.read(_READ_COUNT, end):
            if records[-1][1] >= timestamp_ns:
                return records[bisect_left(records, timestamp_ns, key=_time_of)][0]
    return end[2]


def files_before(
    storage: Storage, names: Sequence[DataFileName], path_of: Callable[[DataFileName], Path], timestamp_ns: int
) -> int:
    """Return how many data files, in log order, begin before a time: the last of them may have messages of it, too.

    Raises StorageError for a damaged header, and ``OSError``: for a file that is gone, one of ``MISSING``.
    """

    def base_timestamp_ns(name: DataFileName) -> int:
        return read_data_file_header(storage, path_of(name)).base_timestamp_ns

    return bisect_left(names, timestamp_ns, key=base_timestamp_ns)


def _pass(_: Damage) -> None:
    """Pass damage: readers of these messages report it."""

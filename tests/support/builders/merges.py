"""A log with little that lives, what merges it, and what reads it."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.persistence.compaction.compactor import Compaction, Compactor
from holdfast.persistence.filesystem.layout import DataFileName
from holdfast.persistence.format.constants import ENTRY_DONE
from holdfast.persistence.format.report import Damage
from holdfast.persistence.groups.group_files import GroupInfo, progress_reader, write_group
from holdfast.persistence.groups.position_entry import Change
from holdfast.persistence.groups.position_file_writer import PositionFileWriter
from holdfast.persistence.groups.retention import Retention
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_reader import LogReader, Record
from support.builders.log_parts import LogParts, put

FILE_BYTES = 40_000
NO_RETENTION = Retention()
LIVE = (3, 250, 251, 252, 600, 777)


def with_log(parts: LogParts, count: int = 1000, group: str = "one") -> GroupInfo:
    """Put messages of 200 bytes into several data files, and make a group."""
    writer = parts.writer(file_bytes=FILE_BYTES)
    for number in range(count):
        writer.append(b"%04d" % number + bytes(196), b"\1\0\3\0\1ab" if number % 7 == 0 else b"")
    writer.close()
    return write_group(parts.storage, parts.directory, group, parts.files(), 0, {})


def finish_all_but(parts: LogParts, group: GroupInfo, live: Iterable[int], end: int = 1000) -> None:
    """Note that a group has finished all messages except a few."""
    note(parts, group, [Change(ENTRY_DONE, first, stop - first, (1, 5000)) for first, stop in between(live, end)])


def between(live: Iterable[int], end: int) -> Iterable[tuple[int, int]]:
    """Yield the runs that some offsets leave."""
    first = 0
    for offset in [*sorted(live), end]:
        if first < offset:
            yield first, offset
        first = offset + 1


def note(parts: LogParts, group: GroupInfo, changes: list[Change]) -> None:
    """Note changes of a group's progress."""
    positions = PositionFileWriter(
        parts.storage,
        parts.directory.group(group.name),
        parts.clock,
        progress_reader(parts.storage, parts.directory, parts.queue_id, group),
        file_bytes=16_384,
    )
    positions.append(changes)
    positions.close()


def compact(parts: LogParts, *, dry_run: bool = False, retention: Retention = NO_RETENTION) -> Compaction:
    """Merge what can be merged."""
    return Compactor(parts.directory, parts.files(), parts.clock, retention, FILE_BYTES).run(dry_run=dry_run)


def read_all(parts: LogParts, start: int = 0, files: LogFiles | None = None) -> tuple[list[Record], list[Damage]]:
    """Read the log to its end; return the records, and what was not there."""
    losses: list[Damage] = []
    files = files or parts.files()
    reader = LogReader(files, losses.append, recheck=True)
    reader.seek(start)
    records: list[Record] = []
    end = (files.names()[-1].sequence, 2**31, 1000)
    while found := reader.read(64, end):
        records += [each for each in found if each[0] >= start]
    reader.close()
    return records, losses


def bytes_of(parts: LogParts, name: DataFileName) -> bytes:
    """Return the contents of a data file."""
    with parts.storage.open(parts.directory.data_file(name), writable=False) as file:
        return bytes(file.read_at(file.size(), 0))


def restore(parts: LogParts, name: DataFileName, content: bytes) -> None:
    """Put a data file there."""
    put(parts.storage, parts.directory.data_file(name), content)

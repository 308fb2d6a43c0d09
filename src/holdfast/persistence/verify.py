"""``verify``: a read-only walk over everything a queue has on the disk. It takes no lock and changes nothing.

It reads the log as recovery and the readers do (one scanner, one rule for the end of the log), but all of it. It
reports damaged frames with the offsets lost, missing files, and documents and marks that do not verify.

A queue may be written, drained and merged meanwhile. Bytes that look damaged are read twice: a write in progress has
ended by then, and a file that has begun another life was finished by all groups. A file that was replaced meanwhile is
read as the merged one that has its place.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.document import read_document
from holdfast.persistence.filesystem.layout import (
    DataFileName,
    QueueDirectory,
    check_header,
    list_data_files,
    list_replaced_files,
    open_directory,
    open_if_there,
    position_file,
    read_data_file_header,
    settings_in,
)
from holdfast.persistence.filesystem.storage import MISSING, File, OsStorage, Storage, storage_error
from holdfast.persistence.format.constants import DATA_MAGIC, FRAMES_START, POSITION_MAGIC, WRITE_MARK_BYTES
from holdfast.persistence.format.file_header import DataFileHeader, block_copies, header_damage
from holdfast.persistence.format.report import DAMAGED, UNSYNCED_OR_DAMAGED, Damage, VerifyReport, merged
from holdfast.persistence.groups.group_files import (
    DEFAULT_GROUP,
    GroupInfo,
    find_group,
    list_groups,
    progress_reader,
    set_command,
)
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.log.log_files import WITHDRAWN
from holdfast.persistence.log.watermark import Watermark, read_write_mark
from holdfast.persistence.outcomes.verify_memories import verify_memories
from holdfast.persistence.outcomes.verify_prepared import verify_prepared
from holdfast.persistence.recovery.log_recovery import count_unreadable, missing_last_file
from holdfast.persistence.recovery.tail_scan import scan_tail
from holdfast.persistence.segment.file_walk import FileWalk

_LOOKS = 3
"""How often something is read before it counts as damaged: its owner may overwrite, rename or replace it."""


_sequence_of = attrgetter("sequence")


def verify(path: str | os.PathLike[str], *, storage: Storage | None = None) -> VerifyReport:
    """Read all of a queue and report every damaged frame and every lost offset.

    Parameters
    ----------
    path : str or path-like
        The queue's directory; it may be in use.
    storage : Storage or None
        The port to the operating system; None is the real one.

    Returns
    -------
    VerifyReport
        ``.ok`` if nothing is damaged; reads well when printed.

    Raises
    ------
    QueueNotFoundError, ConfigError
        There is no queue, or the path cannot be one.
    UnsupportedVersionError
        A Holdfast of another format version wrote some of it.
    CorruptionError, StorageError
        Not even the queue's identity can be read, or the disk refuses.

    Notes
    -----
    Cost: reads every byte of the data files once, and keeps at most one frame and 8 bytes per message of one file.
    """
    root = Path(os.path.abspath(path))
    storage = storage or OsStorage()
    directory, queue_id, _ = open_directory(storage, root, create=False, writable=False)
    try:
        return _Verification(storage, directory, queue_id).run()
    except OSError as error:
        raise storage_error(error, "verifying the queue", root) from error


@dataclass(slots=True)
class _Findings:
    """The result of reading one data file; ``end_offset`` is behind its last message, lost ones included."""

    end_offset: int = 0
    end_position: int = 0
    frame_count: int = 0
    message_count: int = 0
    torn_bytes: int = 0
    recovered_count: int = 0
    damage: list[Damage] = field(default_factory=list)


class _Verification:
    """One walk."""

    def __init__(self, storage: Storage, directory: QueueDirectory, queue_id: bytes) -> None:
        self._storage = storage
        self._directory = directory
        self._queue_id = queue_id
        self._damage: list[Damage] = []
        self._notes: list[str] = []
        self._mark: Watermark | None = None

    def run(self) -> VerifyReport:
        self._check_identity()
        self._mark = self._read_mark()
        finished_end = max((reader.refresh().finished_end for reader in self._group_readers()), default=0)
        names = self._list_files()
        files = self._read_files(names)
        self._damage += [damage for _, found in files for damage in found.damage]
        if not names or (files and files[-1][0] == names[-1]):  # else the log has moved on meanwhile
            self._check_end(files, finished_end)
        self._check_groups(files)
        for verify_others in (verify_prepared, verify_memories):
            damage, notes = verify_others(self._storage, self._directory, self._queue_id)
            self._damage += damage
            self._notes += notes
        findings = [found for _, found in files]
        recovered_count = sum(found.recovered_count for found in findings)
        if recovered_count:
            self._notes.append(f"{recovered_count} messages wait for the next opening to make them durable")
        return VerifyReport(
            file_count=len(files),
            frame_count=sum(found.frame_count for found in findings),
            message_count=sum(found.message_count for found in findings),
            damage=tuple(self._damage),
            lost=merged(damage.offsets for damage in self._damage),
            torn_bytes=sum(found.torn_bytes for found in findings),
            notes=tuple(self._notes),
        )

    def _report(self, path: Path, size: int, reason: str, offsets: range = range(0), verdict: str = DAMAGED) -> None:
        self._damage.append(Damage(path, 0, size, offsets, verdict, reason))

    # -- queue.json and write.mark -----------------------------------------------------------------------------------

    def _check_identity(self) -> None:
        path = self._directory.identity
        try:
            fields = read_document(self._storage, path)
            if settings_in(fields, path) is None:
                self._report_lost_settings(path)
        except CorruptionError as error:
            advice = f"or set its settings anew with `{set_command(self._directory.root, '--rebuilt')}`"
            self._report(path, self._size_of(path), f"{error}, {advice}")

    def _report_lost_settings(self, path: Path, group: str = DEFAULT_GROUP) -> None:
        """Report a document that was rebuilt: no owner opens the queue before its settings are set anew."""
        advice = f"set them with `{set_command(self._directory.root, '--rebuilt', group=group)}`"
        self._report(path, 0, f"it was rebuilt without its settings: {advice}")

    def _read_mark(self) -> Watermark | None:
        path = self._directory.write_mark
        try:
            file = self._storage.open(path, writable=False)
        except MISSING:
            self._notes.append(f"{path} is missing; the end of the log is found by reading it")
            return None
        with file:
            for _ in range(_LOOKS):
                mark = read_write_mark(file, self._queue_id, path)
                if mark is not None:
                    return mark
            data = file.read_at(WRITE_MARK_BYTES, 0)
        if data.strip(b"\0"):
            self._report(path, len(data), "write.mark does not verify", verdict=UNSYNCED_OR_DAMAGED)
        else:
            self._notes.append(f"{path} is empty; the end of the log is found by reading it")
        return None

    def _size_of(self, path: Path) -> int:
        with self._storage.open(path, writable=False) as file:
            return file.size()

    # -- Data files --------------------------------------------------------------------------------------------------

    def _list_files(self) -> list[DataFileName]:
        names, notes = self._look_at_names()
        self._notes += sorted(notes & self._look_at_names()[1])  # else it was in between two names
        return names

    def _look_at_names(self) -> tuple[list[DataFileName], set[str]]:
        """Return the data files, and what is to be said of all other names in ``data/``."""
        data = self._directory.data
        names = list_data_files(self._storage, self._directory)
        replaced = set(map(str, list_replaced_files(self._storage, self._directory)))
        others = set(self._storage.list(data)) - set(map(str, names)) - {self._directory.next_merged.name}
        notes = set()
        for other in others:
            if other in replaced:
                notes.add(f"{data / other} was replaced by a merged file: the next opening removes it")
            elif other.endswith(WITHDRAWN):
                notes.add(f"{data / other} was withdrawn because it was damaged: it may be removed")
            else:
                notes.add(f"{data / other} is not a data file")
        return names, notes

    def _read_files(self, names: list[DataFileName]) -> list[tuple[DataFileName, _Findings]]:
        """Read these files, and the merged ones that have taken the place of any of them meanwhile, in log order."""
        found: dict[DataFileName, _Findings] = {}
        tries: Counter[DataFileName] = Counter()
        last = names[-1].sequence if names else 0

        def is_unread(name: DataFileName) -> bool:
            return name.first_sequence <= last and name not in found and tries[name] < _LOOKS

        def counts(name: DataFileName) -> bool:
            if name in names:
                return True
            at = bisect_left(names, name.first_sequence, key=_sequence_of)
            return at == len(names) or names[at].first_sequence > name.sequence

        while any(map(is_unread, names)):
            for name, following in zip(names, [*names[1:], None], strict=True):
                if is_unread(name):
                    tries[name] += 1
                    findings = self._look_twice(name, following)
                    if findings is not None:
                        found[name] = findings
            names = list_data_files(self._storage, self._directory)
        return [(name, found[name]) for name in sorted(found) if counts(name)]

    def _look_twice(self, name: DataFileName, following: DataFileName | None) -> _Findings | None:
        """Read one data file, again if it seems damaged: damage that is gone then was a write in progress."""
        found = self._look_at(name, following)
        if found is None or not found.damage:
            return found
        again = self._look_at(name, following)
        if again is not None:
            places = {(damage.path, damage.position) for damage in found.damage}
            again.damage = [damage for damage in again.damage if (damage.path, damage.position) in places]
        return again

    def _look_at(self, name: DataFileName, following: DataFileName | None) -> _Findings | None:
        """Read one data file; None if it was retired meanwhile."""
        path = self._directory.data_file(name)
        file = open_if_there(self._storage, path)
        if file is None:
            return None
        with file:
            start = file.read_at(FRAMES_START, 0)
            try:
                header = DataFileHeader.decode(block_copies(start), str(path))
                check_header(header, name, self._queue_id, path)
            except CorruptionError as error:
                return self._give_up(file, path, name, following, str(error))
            found = _Findings()
            found.damage += header_damage(path, start, DATA_MAGIC)
            if following is None:
                self._walk_tail(file, path, header, found)
            else:
                self._walk_sealed(file, path, header, following, found)
            if DataFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(path)).file_id != header.file_id:
                return None
            return found

    def _give_up(
        self, file: File, path: Path, name: DataFileName, following: DataFileName | None, reason: str
    ) -> _Findings:
        """Without a good header no frame verifies: all of the file is lost."""
        if following is not None:
            end_offset, verdict = following.first_offset, DAMAGED
        else:
            end_offset = name.first_offset + count_unreadable(file, name.sequence, self._mark)
            verdict = UNSYNCED_OR_DAMAGED
        size = file.size()
        damage = Damage(path, 0, size, range(name.first_offset, end_offset), verdict, reason)
        return _Findings(end_offset, size, damage=[damage])

    def _walk_sealed(
        self, file: File, path: Path, header: DataFileHeader, following: DataFileName, found: _Findings
    ) -> None:
        """Read a file that another one follows: the header of that one names the end of this one."""
        end, count = file.size(), None
        if following.first_sequence == header.sequence + 1:
            count = following.first_offset - header.first_offset
            try:
                next_header = read_data_file_header(self._storage, self._directory.data_file(following))
                check_header(next_header, following, self._queue_id, path)
                end = end if header.is_merged else next_header.previous_end
            except (CorruptionError, OSError):  # reported when its turn comes; retired files are gone
                pass
        self._walk(FileWalk(file, header, path, end, count), found)

    def _walk_tail(self, file: File, path: Path, header: DataFileHeader, found: _Findings) -> None:
        """Read the last file as far as recovery would keep it."""
        mark = self._mark if self._mark is not None and self._mark.file_id == header.file_id else None
        scan = scan_tail(file, header, path, mark)
        verdicts = {damage.position: damage.verdict for damage in scan.damage}
        walk = FileWalk(file, header, path, scan.end, scan.message_count)
        self._walk(walk, found)
        found.damage = [
            replace(damage, verdict=verdicts.get(damage.position, damage.verdict)) for damage in found.damage
        ]
        found.torn_bytes, found.recovered_count = scan.torn_bytes, scan.recovered_count
        if mark is not None and not mark.synced_only and mark.written_count > scan.message_count:
            missing = range(found.end_offset, header.first_offset + mark.written_count)
            reason = "written, but not on the disk"
            found.damage.append(Damage(path, scan.end, 0, missing, UNSYNCED_OR_DAMAGED, reason))
            found.end_offset = missing.stop

    def _walk(self, walk: FileWalk, found: _Findings) -> None:
        walk.run()
        found.end_offset, found.end_position = walk.end_offset, walk.end_position
        found.frame_count, found.message_count = walk.frame_count, walk.message_count
        found.damage += walk.damage

    def _check_end(self, files: list[tuple[DataFileName, _Findings]], finished_end: int) -> None:
        """Compare the end of the log with ``write.mark`` and with the progress of the groups."""
        name, last = files[-1] if files else (DataFileName(0, 0), _Findings())
        mark, data = self._mark, self._directory.data
        end_offset = last.end_offset
        gone = missing_last_file(mark, data, name.sequence, end_offset)
        if gone is not None:
            self._damage.append(gone)
            end_offset = gone.offsets.stop
        elif mark is not None and mark.sequence < name.sequence:
            self._notes.append(f"write.mark names data file {mark.sequence}, the last one is {name.sequence}")
        if finished_end > end_offset:
            missing = range(end_offset, finished_end)
            reason = "finished by a group, but not in the log"
            self._damage.append(Damage(data, last.end_position, 0, missing, UNSYNCED_OR_DAMAGED, reason))

    # -- Groups ------------------------------------------------------------------------------------------------------

    def _group_readers(self) -> list[PositionFileReader]:
        groups = list_groups(self._storage, self._directory)
        return [progress_reader(self._storage, self._directory, self._queue_id, group) for group in groups]

    def _check_groups(self, files: list[tuple[DataFileName, _Findings]]) -> None:
        """Check the files of every group, and that data files are missing only if all groups have finished them."""
        groups = list_groups(self._storage, self._directory)
        progress = []
        for each in groups:
            found = self._read_progress(each)
            if found is None:
                continue
            group, reader = found
            self._damage += group.damage
            if group.settings is None and not group.damage:
                self._report_lost_settings(self._directory.group_document(group.name), group.name)
            if reader.generation or not group.damage:  # else its start is unknown
                progress.append(reader.progress)
            if reader.damage:
                again = progress_reader(self._storage, self._directory, self._queue_id, group)
                again.refresh()
                self._damage += [damage for damage in again.damage if damage in reader.damage]
            self._check_position_header(self._directory.group(group.name), reader.generation)
        places = [(0, 0), *((name.first_offset, found.end_offset) for name, found in files)]
        for (_, end), (first, _) in pairwise(places):
            needed = merged(run for each in progress for run in each.unfinished_runs(end, first))
            if not groups and 0 < end < first:
                needed = (range(end, first),)
            for run in needed:
                self._report(self._directory.data, 0, "a data file is missing", run)

    def _read_progress(self, group: GroupInfo) -> tuple[GroupInfo, PositionFileReader] | None:
        """Read the progress of a group, of its life after this one if it was moved; None if it was deleted."""
        while True:
            reader = progress_reader(self._storage, self._directory, self._queue_id, group)
            reader.refresh()
            if reader.generation and not reader.is_superseded:
                return group, reader
            now = find_group(self._storage, self._directory, group.name)
            if now is None or now.group_id == group.group_id:
                return None if now is None else (now, reader)
            group = now

    def _check_position_header(self, directory: Path, generation: int) -> None:
        if not generation:
            return
        path = position_file(directory, generation)
        file = open_if_there(self._storage, path)
        if file is None:  # the next generation has replaced it
            return
        with file:
            self._damage += header_damage(path, file.read_at(FRAMES_START, 0), POSITION_MAGIC)

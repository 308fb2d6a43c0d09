"""The catalogue of data files, and what becomes of retired ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import StorageError
from holdfast.persistence.filesystem.layout import DataFileName, open_directory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.log.log_files import SPARES_MAX, LogFiles
from support.builders.log_parts import LogParts
from support.storages.refusals import refusing

NAMES = [DataFileName(1, 0), DataFileName(2, 10), DataFileName(4, 30)]


def with_files(parts: LogParts, names: list[DataFileName] = NAMES) -> LogFiles:
    """Return the catalogue of a directory that holds such files."""
    for name in names:
        parts.data_file([], header=parts.header(name.sequence, name.first_offset), behind=bytes(name.sequence))
    return parts.files()


def test_an_empty_directory_is_an_empty_log(parts: LogParts) -> None:
    """Every question has an answer."""
    files = parts.files()
    assert (len(files), files.names(), files.first_offset, files.total_bytes) == (0, [], 0, 0)
    assert files.next_after(0) is None
    assert files.containing(5) is None
    assert files.named(1) is None


def test_files_are_found_by_sequence_and_by_offset(parts: LogParts) -> None:
    """Gaps are no obstacle."""
    files = with_files(parts)
    assert files.names() == NAMES
    assert [files.next_after(sequence) for sequence in (0, 1, 2, 3, 4)] == [*NAMES, NAMES[2], None]
    assert [files.containing(offset) for offset in (0, 9, 10, 29, 30, 99)] == [name for name in NAMES for _ in range(2)]
    assert files.total_bytes == 3 * 4608 + 7


def test_files_of_other_processes_appear_and_go_with_a_look(parts: LogParts) -> None:
    """Asking for a sequence that is not known looks by itself."""
    files = with_files(parts, NAMES[:1])
    with_files(parts, NAMES[1:2])
    assert files.named(2) == NAMES[1]
    parts.storage.remove(parts.directory.data_file(NAMES[0]))
    assert len(files) == 2
    files.refresh()
    assert files.names() == NAMES[1:2]


def test_sizes_are_kept_in_step(parts: LogParts) -> None:
    """What the writer adds and cuts counts at once, and once."""
    files = with_files(parts)
    before = files.total_bytes
    files.add(DataFileName(5, 40), 1000)
    files.add(DataFileName(5, 40), 1200)
    files.resize(5, 700)
    files.resize(99, 5)
    assert files.total_bytes == before + 700


def test_sizes_are_measured_when_they_are_asked_for(parts: LogParts) -> None:
    """Opening a queue of many files measures none; another look measures only the one that was being written."""
    files = with_files(parts)
    measured: list[str] = []
    parts.storage.before_verb = lambda verb, path: measured.append(path.name) if verb == "size" else None
    files.refresh()
    assert measured == []
    assert files.total_bytes == 3 * 4608 + 7
    assert measured == [str(name) for name in NAMES]
    files.refresh()
    assert files.total_bytes == 3 * 4608 + 7
    assert measured == [str(name) for name in (*NAMES, NAMES[-1])]


def test_a_file_that_is_gone_when_it_is_measured_takes_no_room(parts: LogParts) -> None:
    """Another process has retired it."""
    files = with_files(parts)
    parts.storage.remove(parts.directory.data_file(NAMES[0]))
    assert files.total_bytes == 2 * 4608 + 6


def test_a_disk_that_does_not_say_how_large_a_file_is(parts: LogParts) -> None:
    """The error is one of ours, and the next time all is well."""
    files = with_files(parts)
    with refusing(parts.storage, "open", f"{NAMES[1]}"), pytest.raises(StorageError, match="measuring data files"):
        _ = files.total_bytes
    assert files.total_bytes == 3 * 4608 + 7


def test_retired_files_are_kept_as_spares_up_to_a_bound(parts: LogParts) -> None:
    """The rest is removed."""
    names = [DataFileName(sequence, sequence * 10) for sequence in range(1, SPARES_MAX + 3)]
    files = with_files(parts, names)
    for name in names:
        files.retire(name)
    assert len(parts.storage.list(parts.directory.spare)) == SPARES_MAX
    assert parts.storage.list(parts.directory.data) == []
    assert (len(files), files.total_bytes) == (0, 0)


def test_a_file_with_a_second_name_is_never_reused(tmp_path: Path) -> None:
    """The other name is somebody's backup."""
    directory, _, _ = open_directory(OsStorage(), tmp_path / "queue", create=True)
    path = directory.data_file(NAMES[0])
    path.write_bytes(b"precious")
    backup = tmp_path / "backup"
    os.link(path, backup)
    files = LogFiles(OsStorage(), directory, bytes(16))
    files.retire(NAMES[0])
    assert not path.exists()
    assert not list(directory.spare.iterdir())
    assert backup.read_bytes() == b"precious"


def test_retiring_what_is_gone_already_is_no_error(parts: LogParts) -> None:
    """A crash between two steps is gone over again."""
    files = with_files(parts)
    parts.storage.remove(parts.directory.data_file(NAMES[0]))
    files.retire(NAMES[0])
    assert files.names() == NAMES[1:]


def test_a_file_that_cannot_be_retired_stays_in_the_catalogue(parts: LogParts) -> None:
    """It still takes its room, and the next attempt takes it away."""
    files = with_files(parts)
    before = files.total_bytes
    with refusing(parts.storage, "open", f"{NAMES[0]}"), pytest.raises(OSError, match="Input/output error"):
        files.retire(NAMES[0])
    assert (files.names(), files.total_bytes) == (NAMES, before)
    files.retire(NAMES[0])
    assert files.names() == NAMES[1:]


def test_a_file_whose_move_may_be_lost_is_not_used_again(parts: LogParts) -> None:
    """A second sync could succeed over it, and the file come back under its old name with new content."""
    files = with_files(parts)
    with refusing(parts.storage, "sync_directory", "spare"), pytest.raises(OSError, match="Input/output"):
        files.retire(NAMES[0])
    assert parts.storage.list(parts.directory.spare) == []


def test_a_file_that_was_retired_is_measured_and_not_remembered(parts: LogParts) -> None:
    """Who has listed it before may ask at any time; the next listing knows nothing of it."""
    files = with_files(parts)
    files.retire(NAMES[0], is_spare=False)
    assert files.size_of(NAMES[0]) == 0
    files.refresh()
    assert files.names() == NAMES[1:]


def test_a_replaced_file_does_not_give_its_size_to_the_merged_one(parts: LogParts) -> None:
    """Both have the sequence of the last file that was merged."""
    files = with_files(parts)
    merged = DataFileName(2, 0, 1, 1)
    parts.storage.rename(parts.directory.data_file(NAMES[0]), parts.directory.data_file(merged))
    parts.storage.remove(parts.directory.data_file(NAMES[1]))
    files.refresh()
    assert files.size_of(NAMES[1]) == 0
    assert files.size_of(merged) == 4608 + 1

"""Names, documents and directories of a queue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import ConfigError, CorruptionError, QueueNotFoundError, StorageError, UnsupportedVersionError
from holdfast.persistence.filesystem.document import read_document, write_document
from holdfast.persistence.filesystem.layout import (
    DataFileName,
    QueueDirectory,
    check_header,
    check_name,
    is_queue,
    list_batch_files,
    list_data_files,
    list_generations,
    open_directory,
    position_file,
    rebuild_identity,
)
from holdfast.persistence.format.constants import FORMAT_VERSION, HEADER_COPY_POSITIONS
from holdfast.persistence.format.file_header import block_buffers
from holdfast.persistence.log.watermark import Watermark
from support.builders.log_parts import LogParts, put
from support.storages.faults import FaultPlan
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/queue")


@pytest.mark.parametrize("name", ["orders", "a", "A-Z_0.9", "-", "_", "x" * 100, "9"])
def test_names_of_letters_digits_dots_underscores_and_dashes_pass(name: str) -> None:
    """1 to 100 of them."""
    assert check_name(name, "queue") == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../a", "a\0b", "a b", "ü", "x" * 101, "a\n", None, b"a", 5]
)
def test_all_other_names_are_refused(name: str) -> None:
    """The error repeats the name and says what passes."""
    with pytest.raises(ConfigError, match="cannot name a group"):
        check_name(name, "group")


def test_data_files_are_listed_in_log_order_and_strangers_left_out(parts: LogParts) -> None:
    """Sequences of more than ten digits too."""
    names = [DataFileName(2, 25_600), DataFileName(1, 0), DataFileName(10**10, 10**18), DataFileName(10, 30_000)]
    for name in names:
        put(parts.storage, parts.directory.data_file(name), b"")
    for stranger in ("x.data", "0000000001.data", "0000000001-00000000000000000000.data.bak", "1-2.data"):
        put(parts.storage, parts.directory.data / stranger, b"")
    assert list_data_files(parts.storage, parts.directory) == sorted(names)
    assert str(names[0]) == "0000000002-00000000000000025600.data"


def test_batches_in_waiting_are_listed_by_id(parts: LogParts) -> None:
    """None where nothing was ever prepared; the memory of decided ones and strangers are left out."""
    assert list_batch_files(parts.storage, parts.directory) == []
    parts.storage.make_directory(parts.directory.prepared)
    for transaction in ("t2", "a.batch", "t10", "-"):
        put(parts.storage, parts.directory.batch_file(transaction), b"")
    put(parts.storage, parts.directory.outcome_log, b"")
    for stranger in (".hidden.batch", "t.batch.new", "x y.batch", ".batch"):
        put(parts.storage, parts.directory.prepared / stranger, b"")
    assert list_batch_files(parts.storage, parts.directory) == ["-", "a.batch", "t10", "t2"]


def test_directories_that_came_later_belong_to_a_queue_too() -> None:
    """One that was begun and not finished is made whole, whatever of them stands there."""
    storage = SimulatedStorage()
    directory = QueueDirectory(ROOT)
    for path in (ROOT, directory.prepared):
        storage.make_directory(path)
    assert open_directory(storage, ROOT, create=True)[2]


def test_generations_are_listed_oldest_first(parts: LogParts) -> None:
    """The file in waiting is none of them."""
    directory = parts.directory.group("g")
    parts.storage.make_directory(directory)
    for generation in (10, 2):
        put(parts.storage, position_file(directory, generation), b"")
    put(parts.storage, directory / "next.position", b"")
    assert list_generations(parts.storage, directory) == [2, 10]


def test_a_data_file_has_to_be_what_its_name_says(parts: LogParts) -> None:
    """The queue, the sequence and the first offset."""
    header = parts.header(3, 40)
    check_header(header, DataFileName(3, 40), parts.queue_id, Path("f"))
    for name in (DataFileName(4, 40), DataFileName(3, 41)):
        with pytest.raises(CorruptionError, match="give it that name back"):
            check_header(header, name, parts.queue_id, Path("f"))
    with pytest.raises(CorruptionError, match="another queue"):
        check_header(header, DataFileName(3, 40), b"x" * 16, Path("f"))


def test_a_document_comes_back_and_carries_a_checksum(parts: LogParts) -> None:
    """For people and tools: it is JSON."""
    path = parts.directory.root / "some.json"
    fields = {"format": FORMAT_VERSION, "name": "Größe", "count": 7}
    write_document(parts.storage, path, fields)
    assert read_document(parts.storage, path) == fields
    write_document(parts.storage, path, {"format": FORMAT_VERSION})
    assert read_document(parts.storage, path) == {"format": FORMAT_VERSION}


def test_a_document_is_the_old_or_the_new_one_after_every_crash() -> None:
    """Whole and durable, wherever the power goes."""
    base = SimulatedStorage()
    path = Path("/some.json")
    write_document(base, path, {"format": FORMAT_VERSION, "which": "old"})
    storage = base.crash_dropping_unsynced()
    write_document(storage, path, {"format": FORMAT_VERSION, "which": "new"})
    seen = {read_document(crash.storage, path)["which"] for crash in storage.prefix_crashes()}
    assert seen == {"old", "new"}
    assert read_document(storage.crash_dropping_unsynced(), path)["which"] == "new"


def test_a_document_of_a_newer_version_is_not_damage(parts: LogParts) -> None:
    """It says which version to use."""
    write_document(parts.storage, parts.directory.identity, {"format": FORMAT_VERSION + 1})
    with pytest.raises(UnsupportedVersionError) as caught:
        read_document(parts.storage, parts.directory.identity)
    assert caught.value.version == FORMAT_VERSION + 1


def test_a_queue_is_made_once_and_found_again() -> None:
    """With the same id."""
    storage = SimulatedStorage()
    directory, queue_id, is_new = open_directory(storage, ROOT, create=True)
    assert is_new
    assert directory.root == QueueDirectory(ROOT).root == ROOT
    assert open_directory(storage, ROOT, create=True)[1:] == (queue_id, False)
    assert open_directory(storage, ROOT, create=False, writable=False)[1:] == (queue_id, False)


def test_a_queue_exists_whole_or_not_at_all_after_every_crash() -> None:
    """Opening it anew makes it, or finds it."""
    storage = SimulatedStorage()
    queue_id = open_directory(storage, ROOT, create=True)[1]
    for crash in storage.prefix_crashes():
        found, is_new = open_directory(crash.storage, ROOT, create=True)[1:]
        assert is_new or found == queue_id


def test_no_queue_is_an_error_where_none_is_to_be_made() -> None:
    """And nothing is made."""
    storage = SimulatedStorage()
    with pytest.raises(QueueNotFoundError) as caught:
        open_directory(storage, ROOT, create=False)
    assert caught.value.path == str(ROOT)
    assert not storage.mutation_count


def test_a_disk_that_refuses_is_told_as_such() -> None:
    """The operating system's own words are in it."""
    storage = SimulatedStorage()
    storage.faults = FaultPlan(2, verbs=frozenset({"directory_status", "list", "make_directory"}))
    with pytest.raises(Exception, match="opening the queue failed"):
        open_directory(storage, ROOT, create=True)


def test_a_directory_that_cannot_be_looked_at_is_neither_missing_nor_a_link() -> None:
    """Nothing is made in its place."""
    storage = SimulatedStorage()
    with refusing(storage, "directory_status"), pytest.raises(StorageError, match="opening the queue failed"):
        open_directory(storage, ROOT, create=True)
    assert not storage.mutation_count


@pytest.mark.parametrize("unsynced", [ROOT, ROOT.parent], ids=str)
def test_directories_whose_names_could_not_be_synced_are_made_anew(unsynced: Path) -> None:
    """A second sync could succeed over lost names."""
    storage = SimulatedStorage()
    with refusing(storage, "sync_directory", str(unsynced)), pytest.raises(StorageError, match="opening the queue"):
        open_directory(storage, ROOT, create=True)
    assert storage.tree() == {}
    queue_id = open_directory(storage, ROOT, create=True)[1]
    assert open_directory(storage.crash_dropping_unsynced(), ROOT, create=False)[1] == queue_id


def test_a_queue_that_somebody_else_makes_meanwhile_is_that_queue() -> None:
    """Both have found none; one of them makes it, under the lock of the groups."""
    storage = SimulatedStorage()
    made: list[bytes] = []

    def make(verb: str, path: Path) -> None:
        if verb == "sync_directory" and path == ROOT.parent:
            storage.before_verb = None
            made.append(open_directory(storage, ROOT, create=True)[1])

    storage.before_verb = make
    _, queue_id, is_new = open_directory(storage, ROOT, create=True)
    assert made == [queue_id]
    assert not is_new


def test_a_damaged_identity_is_read_from_a_data_file_that_has_a_header(parts: LogParts) -> None:
    """No opening writes it again, as that takes the write lock: another process may be setting its settings anew."""
    parts.data_file([])
    damaged, _ = parts.data_file([], header=parts.header(2, 5))
    file = parts.storage.open(damaged)
    for at in HEADER_COPY_POSITIONS:
        file.write_at((b"\xff" * 8,), at + 40)
    put(parts.storage, parts.directory.identity, b"{}")
    found = open_directory(parts.storage, parts.directory.root, create=False, writable=False)
    assert found[1] == parts.queue_id
    assert parts.storage.tree()[parts.directory.identity] == b"{}"
    assert open_directory(parts.storage, parts.directory.root, create=True)[1] == parts.queue_id
    assert parts.storage.tree()[parts.directory.identity] == b"{}"
    rebuild_identity(parts.storage, parts.directory)
    assert bytes.fromhex(read_document(parts.storage, parts.directory.identity)["queue_id"]) == parts.queue_id


def test_a_damaged_identity_is_the_one_that_most_files_have(parts: LogParts) -> None:
    """A data file of another queue may have been copied behind them; write.mark counts as one file."""
    foreign = bytes(16)
    parts.data_file([])
    parts.data_file([], header=replace(parts.header(2, 5), queue_id=foreign))
    mark = Watermark(foreign, bytes(16), 2, 5, 0, 0, 0, 0, 0, 0, True).encode()
    put(parts.storage, parts.directory.identity, b"{}")
    for content, queue_id in ((mark, foreign), (mark[:-1], parts.queue_id), (mark[:-1] + b"?", parts.queue_id)):
        put(parts.storage, parts.directory.write_mark, content)
        assert open_directory(parts.storage, parts.directory.root, create=False)[1] == queue_id


def test_what_has_lost_its_identity_is_a_queue_still(parts: LogParts) -> None:
    """What cannot be read is none, nor is a directory with other files in it."""
    assert is_queue(parts.storage, parts.directory.root)
    assert not is_queue(parts.storage, Path("/none"))
    parts.storage.remove(parts.directory.identity)
    assert not is_queue(parts.storage, parts.directory.root)
    parts.data_file([])
    assert is_queue(parts.storage, parts.directory.root)
    put(parts.storage, parts.directory.root / "notes", b"")
    assert not is_queue(parts.storage, parts.directory.root)


def test_data_files_alone_are_those_of_a_queue(parts: LogParts) -> None:
    """As if only these came out of a backup: a new queue over them would call them foreign."""
    parts.data_file([])
    parts.storage.remove(parts.directory.identity)
    for name in parts.storage.list(parts.directory.groups):
        parts.storage.remove(parts.directory.groups / name)
    parts.storage.remove_directory(parts.directory.groups)
    assert is_queue(parts.storage, parts.directory.root)
    with pytest.raises(CorruptionError, match=r"no queue\.json"):
        open_directory(parts.storage, parts.directory.root, create=True)


def test_a_queue_that_is_made_at_this_moment_has_not_lost_its_identity(parts: LogParts) -> None:
    """It had none when its names were listed; then it got that, and its first data file."""
    identity = parts.storage.tree()[parts.directory.identity]
    parts.storage.remove(parts.directory.identity)
    parts.data_file([])
    list_names = parts.storage.list

    def list_and_make(path: Path) -> list[str]:
        names = list_names(path)
        if path == parts.directory.root and "queue.json" not in names:
            put(parts.storage, parts.directory.identity, identity)
        return names

    parts.storage.list = list_and_make  # type: ignore[method-assign]
    assert open_directory(parts.storage, parts.directory.root, create=False)[1:] == (parts.queue_id, False)


def test_a_damaged_identity_is_not_guessed_past_a_data_file_of_a_newer_version(parts: LogParts) -> None:
    """That version knows what it is; here it would be written in the old way."""
    parts.data_file([])
    newer = bytearray(parts.header(2, 5).encode())
    newer[8] = FORMAT_VERSION + 1  # the version stands behind the magic
    put(parts.storage, parts.directory.data_file(DataFileName(2, 5)), block_buffers(bytes(newer)))
    put(parts.storage, parts.directory.identity, b"{}")
    with pytest.raises(UnsupportedVersionError):
        open_directory(parts.storage, parts.directory.root, create=True)

"""Files in which batches are written: locked by who makes them, and removed once they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import StorageError
from holdfast.persistence.segment.staged_file import remove_abandoned, stage, staged_path
from support.builders.log_parts import LogParts, put
from support.storages.refusals import refusing

NONCE, OTHER = b"n" * 16, b"o" * 16


def staged(parts: LogParts) -> list[str]:
    """Return the files that are there."""
    return parts.storage.list(parts.directory.prepared)


@pytest.fixture
def prepared(parts: LogParts) -> LogParts:
    """Parts with the directory of the files."""
    parts.storage.make_directory(parts.directory.prepared)
    return parts


def test_only_files_without_a_lock_are_removed(prepared: LogParts) -> None:
    """A process that writes one, or waits for its answer, keeps it; so do files with other names."""
    storage, directory = prepared.storage, prepared.directory
    writer = stage(storage, directory, NONCE, prepared.queue_id)
    put(storage, staged_path(directory, OTHER), b"of a dead process")
    put(storage, directory.prepared / "notes.txt", b"")
    remove_abandoned(storage, directory)
    assert staged(prepared) == [writer.path.name, "notes.txt"]
    writer.close()
    remove_abandoned(storage, directory)
    assert staged(prepared) == ["notes.txt"]


def test_where_nothing_was_ever_prepared_nothing_is_removed(parts: LogParts) -> None:
    """There is no directory."""
    remove_abandoned(parts.storage, parts.directory)


def test_a_file_that_goes_meanwhile_is_not_missed(prepared: LogParts) -> None:
    """Its maker has removed it."""
    path = staged_path(prepared.directory, NONCE)
    put(prepared.storage, path, b"")

    def remove(verb: str, where: Path) -> None:
        if verb == "open" and where == path:
            prepared.storage.before_verb = None
            prepared.storage.remove(path)

    prepared.storage.before_verb = remove
    remove_abandoned(prepared.storage, prepared.directory)
    assert staged(prepared) == []


def test_a_file_that_was_taken_for_a_leftover_is_made_again(prepared: LogParts) -> None:
    """Between its making and its lock an owner has removed it; or holds the lock, because it is about to."""
    storage, path = prepared.storage, staged_path(prepared.directory, NONCE)

    def clear(verb: str, where: Path) -> None:
        if verb == "try_lock" and where == path:
            storage.before_verb = None
            remove_abandoned(storage, prepared.directory)

    storage.before_verb = clear
    with stage(storage, prepared.directory, NONCE, prepared.queue_id).file as file:
        assert staged(prepared) == [path.name]
        assert file.link_count() == 1


def test_a_file_that_can_never_be_locked_is_an_error(prepared: LogParts) -> None:
    """Somebody else holds its lock; or the disk refuses, and then nothing is left of it."""
    storage, path = prepared.storage, staged_path(prepared.directory, NONCE)
    put(storage, path, b"")
    with storage.open(path) as other:
        other.try_lock()
        with pytest.raises(StorageError, match="cannot be locked"):
            stage(storage, prepared.directory, NONCE, prepared.queue_id)
    with refusing(storage, "try_lock", path.name), pytest.raises(StorageError, match="locking a batch"):
        stage(storage, prepared.directory, NONCE, prepared.queue_id)
    assert staged(prepared) == []

"""Giving files their names again, so that a sync of the directory has something new to make durable."""

from __future__ import annotations

from pathlib import Path

from holdfast import PersistentQueue
from holdfast.persistence.filesystem.file_names import finish_naming, name_again
from support.builders.log_parts import put
from support.storages.simulated_storage import SimulatedStorage

FILE = Path("/prepared/a.batch")


def test_a_process_that_dies_between_two_names_loses_none() -> None:
    """After any crash the next one finds the file under its own name, durably once it has synced the directory."""
    storage = SimulatedStorage()
    storage.make_directory(FILE.parent)
    storage.sync_directory(FILE.parent.parent)
    put(storage, FILE, b"batch")
    begun = storage.mutation_count
    name_again(storage, FILE)
    names = set()
    for crash in storage.prefix_crashes():
        if crash.operation_count < begun:
            continue
        names.update(crash.storage.list(FILE.parent))
        finish_naming(crash.storage, FILE.parent)
        crash.storage.sync_directory(FILE.parent)
        assert crash.storage.crash_dropping_unsynced().tree()[FILE] == b"batch"
        assert crash.storage.list(FILE.parent) == [FILE.name]
    assert len(names) == 2, "no crash has fallen between the two names"


def test_a_data_file_between_two_names_is_part_of_the_log_again() -> None:
    """Recovery gives it its name back before it looks for the end of the log."""
    storage, path = SimulatedStorage(), Path("/queue")
    with PersistentQueue(path, mode="exclusive", storage=storage) as queue:
        queue.put_many([b"one", b"two"])
    (name,) = storage.list(path / "data")
    storage.rename(path / "data" / name, path / "data" / f"{name}.again")
    with PersistentQueue(path, mode="exclusive", storage=storage) as queue:
        assert queue.recovery.clean
        assert queue.put(b"three") == 2
        assert [queue.get(timeout=0) for _ in range(3)] == [b"one", b"two", b"three"]
    assert storage.list(path / "data") == [name]

"""Parts of joint commits for tests: prepared, committed, not followed, and damaged."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from holdfast import PersistentQueue, StorageError
from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.format.commit_record import CommitRecord, PartOf
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.segment.staged_file import make_prepared, stage
from holdfast.queue.producer.nonces import next_nonce
from support.storages.simulated_storage import SimulatedStorage

APP = "stream"
JOINT = Path("/orders/prepared/joint.json")


def part(
    queue: PersistentQueue, id: str, version: int = 1, *payloads: bytes, application: str = APP, timeout: float = 60
) -> str:
    """Prepare a part that puts its id, or what is given."""
    transaction = queue.begin(timeout=timeout)
    transaction.put_many(payloads or [id.encode()])
    return transaction.prepare(id, part_of=(application, version))


def commit(queue: PersistentQueue, version: int, *ids: str, application: str = APP) -> None:
    """Commit parts as one."""
    queue.joint_commits.commit(application, version, ids)


def file_part(storage: Storage, path: Path, id: str, part_of: PartOf, payloads: Sequence[bytes] = ()) -> str:
    """Prepare a part as a file, without the owner of the queue, as the tasks of Spark do; return ``queue/id``."""
    directory, queue_id, _ = open_directory(storage, path, create=False, writable=False)
    with storage_errors("preparing", path):
        make_prepared(storage, directory)
        nonce, found = next_nonce(), payloads or [id.encode()]
        writer = stage(storage, directory, nonce, queue_id)
        writer.add_many(found, {}, 1)
        waiting_file = f"prepared/{id}.batch"
        writer.finish(CommitRecord(id, nonce, len(found), 1, waiting_file=waiting_file, part_of=part_of))
        writer.sync()
        writer.move(directory.batch_file(id))
        storage.sync_directory(directory.prepared)
        writer.close()
    return f"{path.name}/{id}"


@contextmanager
def stuck(names: Collection[str]) -> Iterator[None]:
    """Have these queues follow no decision inside."""
    prepared = PersistentQueue.prepared

    def failing(queue: PersistentQueue) -> object:
        if queue.path.name in names:
            raise StorageError("it cannot follow just now")
        return prepared(queue)

    with patch.object(PersistentQueue, "prepared", failing):
        yield


def damage(storage: SimulatedStorage, path: Path, text: bytes | None = None) -> None:
    """Change a byte of a text in a file, or of its start."""
    file = storage.open(path)
    at = 0 if text is None else file.read_at(file.size(), 0).index(text)
    file.write_at((b"#",), at)
    file.close()


def damage_file(path: Path) -> None:
    """Write zeros over both copies of the header of a batch file of this machine."""
    with path.open("r+b") as file:
        file.write(bytes(FRAMES_START))


def clear_header(storage: SimulatedStorage, path: Path) -> None:
    """Write zeros over both copies of a batch file's header."""
    file = storage.open(path)
    file.write_at((bytes(FRAMES_START),), 0)
    file.close()

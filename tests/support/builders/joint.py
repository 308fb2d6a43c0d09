"""Parts of joint commits for tests: prepared, committed, and damaged."""

from __future__ import annotations

from pathlib import Path

from holdfast import PersistentQueue
from holdfast.persistence.format.constants import FRAMES_START
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


def damage(storage: SimulatedStorage, path: Path, text: bytes | None = None) -> None:
    """Change a byte of a text in a file, or of its start."""
    file = storage.open(path)
    at = 0 if text is None else file.read_at(file.size(), 0).index(text)
    file.write_at((b"#",), at)
    file.close()


def clear_header(storage: SimulatedStorage, path: Path) -> None:
    """Write zeros over both copies of a batch file's header."""
    file = storage.open(path)
    file.write_at((bytes(FRAMES_START),), 0)
    file.close()

"""Short ways to a simulated storage worth crashing: one durable file, or a random run of every verb."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

from holdfast.persistence.filesystem.storage import write_whole
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedFile, SimulatedStorage

ROOT = Path("/")
FILE = Path("/file")
OTHER = Path("/other")
PATHS = tuple(map(Path, ("/a", "/b", "/d", "/d/a", "/d/b", "/d/e", "/d/e/a")))  # files and directories at once
FAULT_SHARE = 0.1


def durable_file(content: bytes = b"", path: Path = FILE) -> tuple[SimulatedStorage, SimulatedFile]:
    """Return a storage whose one file is durable with its name, and the open file."""
    storage = SimulatedStorage()
    file = storage.open(path, create=True)
    write_whole(file, (content,), 0)
    file.sync()
    storage.sync_directory(ROOT)
    return storage, file


def random_run(rng: random.Random, step_count: int, *, faults: bool = False) -> SimulatedStorage:
    """Return a storage after a random run that uses every changing verb; with ``faults`` some calls fail with EIO."""
    storage = SimulatedStorage()
    files: list[SimulatedFile] = []
    for _ in range(step_count):
        storage.faults = FaultPlan(1) if faults and rng.random() < FAULT_SHARE else None
        with suppress(OSError):  # half of the calls make no sense, which is part of the run
            if files and rng.random() < 0.6:
                change_file(rng, rng.choice(files))
            else:
                change_names(rng, storage, files)
    storage.faults = None
    return storage


def change_file(rng: random.Random, file: SimulatedFile) -> None:
    """Do one random thing to a file."""
    match rng.randrange(7):
        case 0:
            file.truncate(rng.randrange(3000))
        case 1:
            file.allocate(rng.randrange(3000))
        case 2:
            file.sync()
        case _:
            file.write_at((rng.randbytes(rng.randrange(1, 1500)),), rng.randrange(2000))


def change_names(rng: random.Random, storage: SimulatedStorage, files: list[SimulatedFile]) -> None:
    """Do one random thing to the names; files that were opened go into the list."""
    path = rng.choice(PATHS)
    match rng.randrange(7):
        case 0:
            files.append(storage.open(path, create=True))
        case 1:
            storage.make_directory(path)
        case 2:
            storage.rename(path, rng.choice(PATHS))
        case 3:
            storage.remove(path)
        case 4:
            storage.remove_directory(path)
        case 5:
            storage.sync_directory(path.parent)
        case _:
            storage.sync_directory(ROOT)

"""The verbs in any order, not only in the orders somebody thought of: the same run on both storages."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.persistence.filesystem.storage import File, OsStorage
from support.storages.place import Place
from support.storages.simulated_storage import SimulatedStorage


def random_step(rng: random.Random) -> Callable[[Place, list[File]], Any]:
    """Return one random call, to be made on each twin alike."""
    names = ("a", "b", "d", "d/a", "e", "e/b", "a/x")
    first, second = Path(rng.choice(names)), Path(rng.choice(names))
    flags = {"create": rng.random() < 0.6, "writable": rng.random() < 0.8}
    data, position, which = rng.randbytes(rng.randrange(700)), rng.randrange(2000), rng.randrange(1 << 30)
    on_storage: dict[str, Callable[[Place], object]] = {
        "open": lambda place: place.storage.open(place.root / first, **flags),
        "make_directory": lambda place: place.storage.make_directory(place.root / first),
        "list": lambda place: place.storage.list(place.root / first),
        "rename": lambda place: place.storage.rename(place.root / first, place.root / second),
        "remove": lambda place: place.storage.remove(place.root / first),
        "remove_directory": lambda place: place.storage.remove_directory(place.root / first),
        "sync_directory": lambda place: place.storage.sync_directory(place.root / first),
    }
    on_file: dict[str, Callable[[File], object]] = {
        "write_at": lambda file: file.write_at((data[:100], data[100:]), position),
        "read_at": lambda file: file.read_at(len(data), position),
        "truncate": lambda file: file.truncate(position),
        "allocate": lambda file: file.allocate(position),
        "sync": lambda file: file.sync(),
        "size": lambda file: file.size(),
        "link_count": lambda file: file.link_count(),
        "try_lock": lambda file: file.try_lock(),
    }
    verb = rng.choice([*on_storage, *on_file])

    def step(place: Place, files: list[File]) -> object:
        try:
            if verb in on_storage:
                return on_storage[verb](place)
            return on_file[verb](files[which % len(files)]) if files else None
        except OSError as error:
            return error.errno if sys.platform == "linux" else OSError  # each kernel has its own order of checks

    return step


@pytest.mark.parametrize("seed", range(20))
def test_random_runs_look_the_same_on_both_storages(tmp_path: Path, seed: int) -> None:
    """Each verb returns the same or fails with the same errno, and the same tree is left."""
    rng = random.Random(seed)
    twins = (Place(OsStorage(), tmp_path), Place(SimulatedStorage(), Path("/")))
    handles: list[tuple[File, ...]] = []
    for _ in range(300):
        step = random_step(rng)
        outcomes = [step(place, [pair[side] for pair in handles]) for side, place in enumerate(twins)]
        if all(hasattr(outcome, "write_at") for outcome in outcomes):
            handles.append(tuple(outcomes))
        else:
            assert outcomes[0] == outcomes[1]
    for pair in handles:
        for file in pair:
            file.close()
    assert twins[0].tree() == twins[1].tree()

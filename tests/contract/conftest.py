"""The storages that the contract suites run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.persistence.filesystem.storage import File, OsStorage
from support.storages.place import Place
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture(params=["os", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return an empty place in each kind of storage."""
    if request.param == "os":
        return Place(OsStorage(), tmp_path)
    storage = SimulatedStorage()
    storage.make_directory(Path("/place"))
    return Place(storage, Path("/place"))


@pytest.fixture
def file(place: Place) -> Iterator[File]:
    """Return a new, empty, writable file."""
    file = place.storage.open(place.root / "file", create=True)
    yield file
    file.close()

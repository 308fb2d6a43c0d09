"""A closed queue of three data files to damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.builders.small_queues import SmallQueue, build, tiny_files_allowed
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture(scope="session", autouse=True)
def _tiny_files() -> Iterator[None]:
    """Settings are read again while a queue is open: sizes this small are allowed for as long as these tests run."""
    with tiny_files_allowed():
        yield


@pytest.fixture(scope="session")
def template() -> SmallQueue:
    """Return a closed queue of three data files, three of whose messages were taken; copy it, do not change it."""
    return build(Path("/queue"), SimulatedStorage(), taken_count=3)


@pytest.fixture
def queue(template: SmallQueue) -> SmallQueue:
    """Return such a queue to be damaged."""
    return template.copy()

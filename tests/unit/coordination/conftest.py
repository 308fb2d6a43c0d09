"""Fixtures of the tests with several threads and processes."""

from collections.abc import Iterator

import pytest

from support.simulated_storage import SimulatedStorage
from support.threads import Threads


@pytest.fixture
def threads() -> Iterator[Threads]:
    """Threads that have to end well."""
    group = Threads()
    yield group
    group.join()


@pytest.fixture
def storage() -> SimulatedStorage:
    """A disk."""
    return SimulatedStorage()

"""Fixtures of the tests of the command line."""

from pathlib import Path

import pytest

from holdfast import PersistentQueue


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue, closed and empty."""
    PersistentQueue(tmp_path / "orders", mode="exclusive").close()
    return tmp_path / "orders"

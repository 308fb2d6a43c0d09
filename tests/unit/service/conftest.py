"""Fixtures of the tests of services."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.service.queue_service import QueueService


@pytest.fixture
def service(tmp_path: Path) -> Iterator[QueueService]:
    """A service in a directory of its own, without a catalogue."""
    with QueueService(tmp_path / "data", mode="exclusive", catalog=False) as opened:
        yield opened

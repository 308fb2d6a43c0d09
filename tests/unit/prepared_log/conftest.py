"""A queue whose prepared log is looked into, and the directory of one without a queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.prepared_log.prepared_log import PreparedLog
from support.builders.handles import log_of, without_moves
from support.builders.transactions import open_queue
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture
def queue(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """Open a queue whose entries stay."""
    with without_moves(open_queue(storage)) as opened:
        yield opened


@pytest.fixture
def log(queue: PersistentQueue) -> PreparedLog:
    """Return its prepared log."""
    return log_of(queue)


@pytest.fixture
def directory(tmp_path: Path) -> QueueDirectory:
    """Return a queue's directory without a queue."""
    (tmp_path / "orders" / "prepared").mkdir(parents=True)
    return QueueDirectory(tmp_path / "orders")

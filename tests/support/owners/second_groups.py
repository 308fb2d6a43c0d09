"""A second consumer group of an open queue, in the same process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast import PersistentQueue
from holdfast.clock import Clock
from holdfast.persistence.filesystem.storage import Storage
from holdfast.queue import persistent_queue
from holdfast.queue.local_engine import LocalEngine
from holdfast.queue.options.queue_options import Options


def open_beside(first: PersistentQueue, group: str, **settings: Any) -> PersistentQueue:
    """Open the read side of a group on the write side of an open queue, as an owner does for its clients.

    It has to be closed before the first one.
    """
    engine, beside = vars(persistent_queue)["LocalEngine"], first._engine  # a test may have put another one there

    def of_group(storage: Storage, clock: Clock, path: Path, options: Options) -> LocalEngine:
        assert isinstance(beside, LocalEngine)
        opened: LocalEngine = engine(storage, clock, path, replace(options, mode="read_side"), beside=beside)
        return opened

    with mock.patch.object(persistent_queue, "LocalEngine", of_group):
        return PersistentQueue(
            first.path, mode="exclusive", group=group, storage=first._storage, clock=first._clock, **settings
        )

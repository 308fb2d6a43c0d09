"""The sides of a queue as an owner has them, without handles and their machine: for what owners do to files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.clock import Clock
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.groups.group_files import DEFAULT_GROUP
from holdfast.queue.options.queue_options import Options
from holdfast.queue.owner.owned_queue import OwnedQueue
from support.builders.clocks import FakeClock


@contextmanager
def owned_queue(
    storage: Storage, path: Path, clock: Clock | None = None, living: Collection[int] = ()
) -> Iterator[OwnedQueue]:
    """Open the write side within the block, and groups that are named, while these sessions live."""
    options = Options("shared", DEFAULT_GROUP)
    queue = OwnedQueue(storage, clock or FakeClock(), path, options, living.__contains__)
    try:
        yield queue
    finally:
        queue.close()

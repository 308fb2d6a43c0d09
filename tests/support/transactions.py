"""Short ways to queues for the tests of transactions: opening, killing, and seeing what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast import PersistentQueue
from holdfast.clock import Clock
from support.simulated_storage import SimulatedStorage

ORDERS = Path("/orders")
INVOICES = Path("/invoices")

FILE_BYTES = 64 * 2**10
"""Size of a data file: what is larger than a quarter of this is adopted and not copied."""


def open_queue(
    storage: SimulatedStorage, path: Path = ORDERS, *, clock: Clock | None = None, **options: Any
) -> PersistentQueue:
    """Open a queue in a simulated storage."""
    return PersistentQueue(path, storage=storage, clock=clock, data_file_bytes=FILE_BYTES, **options)


def kill(storage: SimulatedStorage, *queues: PersistentQueue) -> SimulatedStorage:
    """Return what a SIGKILL of the process leaves; its handles end on a disk that nobody looks at any more."""
    left = storage.crash_keeping_all()
    for queue in queues:
        queue.close()
    return left


def cut_power(storage: SimulatedStorage, *queues: PersistentQueue) -> SimulatedStorage:
    """Return what a power loss leaves that takes all it can."""
    left = storage.crash_dropping_unsynced()
    for queue in queues:
        queue.close()
    return left


def waiting(queue: PersistentQueue) -> list[bytes]:
    """Return the payloads that would be taken next, and take nothing."""
    return [message.payload for message in queue.peek(10_000)]


def prepared_ids(queue: PersistentQueue) -> list[str]:
    """Return the ids of what is in doubt, oldest first."""
    return [each.id for each in queue.prepared()]

"""Short ways to queues for the tests of transactions: opening, killing, and seeing what is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import PersistentQueue, Transaction
from holdfast.clock import Clock
from support.storages.simulated_storage import SimulatedStorage

ORDERS = Path("/orders")
INVOICES = Path("/invoices")

FILE_BYTES = 64 * 2**10
"""Size of a data file: what is larger than a quarter of this is adopted and not copied."""


def open_queue(
    storage: SimulatedStorage, path: Path = ORDERS, *, clock: Clock | None = None, **options: Any
) -> PersistentQueue:
    """Open a queue in a simulated storage."""
    return PersistentQueue(
        path, storage=storage, clock=clock, data_file_bytes=FILE_BYTES, **{"mode": "exclusive", **options}
    )


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


KINDS = ("puts", "acks", "both")
"""What a prepared transaction may hold."""


def prepare(queue: PersistentQueue, kind: str, name: str | None = None, *, count: int = 1) -> Transaction:
    """Prepare a transaction that puts, acknowledges the next message, or does both; its id is its kind by default."""
    tx = queue.begin()
    if kind != "puts":
        tx.ack(tx.receive(timeout=0))
    if kind != "acks":
        tx.put_many([b"new".ljust(1000 if count > 1 else 3)] * count)
    assert tx.prepare(name or kind) == tx.id == (name or kind)
    return tx


def after(kind: str, *, committed: bool) -> list[bytes]:
    """Return what waits in a queue of one, two and three once such a transaction was decided."""
    taken = committed and kind != "puts"
    return [b"one", b"two", b"three"][taken:] + [b"new"] * (committed and kind != "acks")


@contextmanager
def failing(kind: type[BaseException] = ZeroDivisionError) -> Iterator[None]:
    """Expect a block of several statements to end in an exception, which it raises itself or something in it does."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def waiting(queue: PersistentQueue) -> list[bytes]:
    """Return the payloads that would be taken next, and take nothing."""
    return [message.payload for message in queue.peek(10_000)]


def prepared_ids(queue: PersistentQueue) -> list[str]:
    """Return the ids of what is in doubt, oldest first."""
    return [each.id for each in queue.prepared()]

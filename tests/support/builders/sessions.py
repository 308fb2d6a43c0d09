"""Clients of a queue and its owner, without a connection between them: requests as the owner's write side sees them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast import FlushPolicy
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import NONCE
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.queue_options import Options
from holdfast.queue.producer.write_side import WriteSide
from support.builders.clocks import FakeClock
from support.builders.transactions import ORDERS
from support.storages.simulated_storage import SimulatedStorage

FILE_BYTES = 16 * 2**10
"""The smallest data file: a few messages of 5,000 bytes fill one."""

SESSION = 0xBEEF
THREAD = b"a thread"


def requested(count: int, *, thread: bytes = THREAD, session: int = SESSION, messages: int = 1) -> CommitRecord:
    """Return the commit record of a thread's request."""
    nonce = NONCE.pack(thread, count)
    return CommitRecord(nonce.hex(), nonce, messages, 1, session=session)


@contextmanager
def owner(
    storage: SimulatedStorage,
    *living: int,
    flush: FlushPolicy | None = None,
    mode: str = "exclusive",
    **settings: object,
) -> Iterator[QueueHandle]:
    """Own the queue while the sessions of these numbers live; at the end it is closed in order."""
    given = {"flush": flush or FlushPolicy.every_commit(), "data_file_bytes": FILE_BYTES, **settings}
    options = Options(mode, "default", given)  # type: ignore[arg-type]  # of a test
    handle = QueueHandle(storage, FakeClock(), ORDERS, options, living=living.__contains__)
    try:
        yield handle
    finally:
        handle.close()


def put(side: WriteSide, request: CommitRecord, payload: bytes = b"x", dedup_id: str = "") -> range:
    """Do one request of a put, as an owner does it in a round of one; return its offsets."""
    done = side.append_requested([payload] * request.count, None, request, dedup_id)
    assert done is not None, "there is space"
    offsets, is_new = done
    if is_new:
        side.settle(offsets.stop, 1)
    else:
        side.confirm(offsets.stop)
    return offsets

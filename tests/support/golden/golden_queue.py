"""Makes the golden queue of the present format version: run once for each version, commit what it makes, never again.

``PYTHONPATH=tests python -m support.golden.golden_queue tests/compat/v2`` leaves a queue with three data files (two
sealed by rolling, one cut short as a killed process leaves it), batches, headers, an empty payload, two groups,
acknowledgements out of order, and transactions: one that committed puts and acknowledgements, one that was prepared and
committed, one that was prepared and aborted, one of acknowledgements only, and one that is prepared and not decided;
then a message that was given back, one that waits after a failure, a dead letter with its note, a delayed
message, one of a priority and one of an order key, and a third group, which is paused. All settings are set.
``tests/compat`` knows what must come out of it, whatever version reads it.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from holdfast import Backoff, DeliveryBatch, FlushPolicy, PersistentQueue
from holdfast.queue.options.settings import GroupSettings, QueueSettings

DATA_FILE_BYTES = 16 * 1024
PLAIN_COUNT = 90
"""Messages that were put without a transaction."""

TRANSACTIONS_END = PLAIN_COUNT + 3
"""Those of committed transactions come behind."""

DELAYED, PRIORITIZED, KEYED = range(TRANSACTIONS_END, TRANSACTIONS_END + 3)
"""Then messages that ask for something."""

MESSAGE_COUNT = KEYED + 1

RETURNED, WAITING, DEAD = 5, 6, 8
"""Offsets of what was given back, at once and for a long time, and of the dead letter."""

QUEUE_SETTINGS: QueueSettings = {
    "flush": FlushPolicy.every_commit(),
    "data_file_bytes": DATA_FILE_BYTES,
    "record_bytes_max": 2**20,
    "maxsize": 10_000,
    "max_bytes": 2**30,
    "dedup_window": 600.0,
    "dedup_max": 1000,
}
GROUP_SETTINGS: GroupSettings = {
    "max_deliveries": 7,
    "backoff": (1.0, 60.0),
    "lease_seconds": 45.5,
    "dead_letter_seconds": 100 * 365 * 86400.0,
    "expired": "dead",
}
PAUSED_SETTINGS: GroupSettings = {"max_deliveries": None, "backoff": Backoff(2, 600, jitter=False)}
"""Of the queue, of the default group, and of the one that is paused: every name, and every kind of value."""

FAR_OFF = datetime(2200, 1, 1, tzinfo=UTC)
LONG_SECONDS = 150 * 365 * 86400
DEAD_DETAIL, PAUSE_REASON = "no use", "not yet"

ACKNOWLEDGED = 15
"""Offset that was acknowledged together with two puts."""

ACKNOWLEDGED_ALONE = 16
"""Offset that was acknowledged by a prepared transaction without puts."""

HELD = 17
"""Offset that the undecided transaction holds; it puts one message."""

COMMITTED_ID, ABORTED_ID, COMMITTED_ACKS_ID, UNDECIDED_ID = "committed", "aborted", "committed-acks", "undecided"


def payload(offset: int) -> bytes:
    """Return what the golden queue holds at an offset."""
    return b"" if offset == 7 else f"message {offset} ".encode() * (1 + offset * 7 % 60)


def run_transactions(queue: PersistentQueue) -> None:
    """Leave every trace that a transaction can leave."""
    with queue.transaction() as transaction:
        delivery = transaction.receive()
        transaction.ack(delivery)
        transaction.put(payload(PLAIN_COUNT), headers={"step": "2"})
        transaction.put(payload(PLAIN_COUNT + 1))
        assert delivery.offset == ACKNOWLEDGED
    transaction = queue.begin()
    transaction.put(payload(PLAIN_COUNT + 2))
    transaction.prepare(COMMITTED_ID)
    assert transaction.commit() == range(PLAIN_COUNT + 2, TRANSACTIONS_END)
    transaction = queue.begin()
    transaction.put(b"never to be seen")
    transaction.prepare(ABORTED_ID)
    transaction.abort()
    for offset, transaction_id in ((ACKNOWLEDGED_ALONE, COMMITTED_ACKS_ID), (HELD, UNDECIDED_ID)):
        transaction = queue.begin()
        delivery = transaction.receive()
        assert delivery.offset == offset
        transaction.ack(delivery)
        if transaction_id == UNDECIDED_ID:
            transaction.put(payload(MESSAGE_COUNT))
        transaction.prepare(transaction_id)
        if transaction_id == COMMITTED_ACKS_ID:
            transaction.commit()


def run_failures(queue: PersistentQueue, deliveries: DeliveryBatch) -> None:
    """Leave every trace that failures and wishes can leave."""
    held = {delivery.offset: delivery for delivery in deliveries}
    held[RETURNED].nack(delay=0)
    held[WAITING].nack(delay=LONG_SECONDS)
    held[DEAD].reject(DEAD_DETAIL)
    assert queue.put(payload(DELAYED), not_before=FAR_OFF) == DELAYED
    assert queue.put(payload(PRIORITIZED), priority=9) == PRIORITIZED
    assert queue.put(payload(KEYED), order_key="customer") == KEYED


def main(path: Path) -> None:
    """Make the queue, and die without closing it."""
    with PersistentQueue(path, mode="exclusive", group="paused", **QUEUE_SETTINGS, **PAUSED_SETTINGS) as queue:
        queue.pause(FAR_OFF, PAUSE_REASON)
    queue = PersistentQueue(path, mode="exclusive", **GROUP_SETTINGS)
    queue.put(payload(0), headers={"tenant": "acme", "größe": "1"})
    queue.put_many([payload(offset) for offset in range(1, 20)])
    for offset in range(20, PLAIN_COUNT):
        queue.put(payload(offset))
    queue.groups.create("audit", start=10)
    assert queue.get_many(5) == [payload(offset) for offset in range(5)]
    deliveries = queue.receive_many(10)
    deliveries.ack([deliveries[2], deliveries[4]])  # offsets 7 and 9; 5, 6, 8 and 10 to 14 were delivered once
    run_transactions(queue)
    run_failures(queue, deliveries)
    for lock in path.rglob("*.lock"):
        lock.unlink()  # they say who made this, which is nobody's business
    (path / "groups" / ".reserve").unlink()  # room, and nothing in it
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The ways to take what comes next, under names to parametrize tests with."""

from __future__ import annotations

from collections.abc import Callable

from holdfast import Empty, PersistentQueue


def by_get(queue: PersistentQueue) -> list[bytes]:
    """One message, acknowledged at once."""
    return [queue.get(timeout=0)]


def by_get_many(queue: PersistentQueue) -> list[bytes]:
    """Several, acknowledged at once."""
    return queue.get_many(100, timeout=0)


def by_receive(queue: PersistentQueue) -> list[bytes]:
    """One delivery, acknowledged at the end of its block."""
    with queue.receive(timeout=0) as delivery:
        return [delivery.payload]


def by_receive_many(queue: PersistentQueue) -> list[bytes]:
    """A batch of deliveries, acknowledged at the end of its block."""
    with queue.receive_many(100, timeout=0) as batch:
        return [delivery.payload for delivery in batch]


def by_transaction(queue: PersistentQueue) -> list[bytes]:
    """One delivery of a transaction, acknowledged with its commit."""
    with queue.transaction() as tx:
        delivery = tx.receive(timeout=0)
        tx.ack(delivery)
        return [delivery.payload]


Take = Callable[[PersistentQueue], list[bytes]]
TAKES: tuple[Take, ...] = (by_get, by_get_many, by_receive, by_receive_many, by_transaction)


def taken(queue: PersistentQueue, take: Take = by_get) -> list[bytes]:
    """Return the payloads of all that can be taken now, in the order in which they come."""
    found: list[bytes] = []
    while True:
        try:
            found += take(queue)
        except Empty:
            return found


def shown(queue: PersistentQueue) -> list[bytes]:
    """Return what could be taken now as ``peek`` has it; what ``empty()`` and ``browse`` say has to agree with that."""
    peeked = [message.payload for message in queue.peek(1000)]
    assert queue.empty() == (not peeked)
    browsed = [message.payload for message in queue.browse("ready", limit=1000)]
    assert set(peeked) <= set(browsed), f"peek shows {peeked}, browse {browsed}"
    return peeked


def states(queue: PersistentQueue) -> dict[bytes, str]:
    """Return the state of each unfinished message, by payload, as ``browse`` has it."""
    pages = {state: queue.browse(state, limit=1000) for state in ("ready", "leased", "delayed", "dead")}
    found = {message.payload: state for state, page in pages.items() for message in page}
    assert sum(map(len, pages.values())) == len(found), f"a message has two states: {pages}"
    return found

"""Figures and memories at the moments when something ends: what the second model of the queue has found."""

import pytest

from holdfast import Empty, PersistentQueue, Put
from support.builders.clocks import FakeClock
from support.storages.simulated_storage import SimulatedStorage


def exhausted(clock: FakeClock) -> PersistentQueue:
    """Return a queue with a message whose last lease has run out, which nobody has noticed yet."""
    queue = PersistentQueue(
        "/q",
        mode="exclusive",
        max_deliveries=1,
        lease_seconds=5,
        data_file_bytes=16 * 2**10,
        storage=SimulatedStorage(),
        clock=clock,
    )
    queue.put_many([b"fails", b"waits"])
    queue.receive(timeout=0)
    clock.advance(6)
    return queue


def test_a_lease_that_ends_in_a_dead_letter_is_counted_once_by_the_look_that_notices_it() -> None:
    """The message is a dead letter in these figures, and not in the depth beside it."""
    with exhausted(FakeClock()) as queue:
        stats = queue.stats()
        assert (stats.depth, stats.in_flight, stats.dead) == (1, 0, 1)


def test_a_lease_that_ends_in_a_dead_letter_leaves_nothing_to_be_taken_behind() -> None:
    """``qsize`` counts what can be taken, also when it is the first to notice."""
    with exhausted(FakeClock()) as queue:
        assert queue.qsize() == 1
        assert queue.get(block=False) == b"waits"
        with pytest.raises(Empty):
            queue.get(block=False)


def test_ids_that_were_forgotten_early_stay_forgotten_after_a_kill() -> None:
    """No more than ``dedup_max`` ids are remembered, also where opening reads them from the messages."""
    clock, storage = FakeClock(), SimulatedStorage()
    killed = PersistentQueue(
        "/q", mode="exclusive", dedup_max=2, data_file_bytes=16 * 2**10, storage=storage, clock=clock
    )
    for name in "abcd":
        killed.put(name.encode(), dedup_id=name)
    left = storage.crash_keeping_all()
    killed.close()
    with PersistentQueue(
        "/q", mode="exclusive", dedup_max=2, data_file_bytes=16 * 2**10, storage=left, clock=clock
    ) as queue:
        assert queue.stats().dedup_forgotten == 2
        assert [queue.put(b"again", dedup_id=name) for name in "cd"] == [2, 3]
        assert queue.put(b"again", dedup_id="a") == 4


def test_a_message_whose_key_a_prepared_transaction_has_finished_can_be_taken_by_the_figures() -> None:
    """``qsize`` does not go on counting it among those that wait, until somebody takes."""
    with PersistentQueue(
        "/q", mode="exclusive", data_file_bytes=16 * 2**10, storage=SimulatedStorage(), clock=FakeClock()
    ) as queue:
        queue.put_many([Put(b"first", order_key="a"), Put(b"second", order_key="a")])
        tx = queue.begin()
        tx.ack(tx.receive(timeout=0))
        tx.prepare("held")
        assert queue.qsize() == 0
        tx.commit()
        assert queue.qsize() == 1
        assert queue.get(block=False) == b"second"

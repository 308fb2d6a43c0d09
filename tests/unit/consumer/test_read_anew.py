"""A group that reads the log anew, because messages were let go of, meets those that are in hand: none comes twice."""

from collections.abc import Callable

import pytest

from holdfast import Delivery, Empty, PersistentQueue, Put
from support.builders.clocks import FakeClock
from support.builders.transactions import open_queue
from support.storages.simulated_storage import SimulatedStorage

AHEAD_COUNT = 300  # more than is read at once
WAIT_SECONDS = 5


def read_anew(queue: PersistentQueue, *, priority: int = 0) -> Delivery:
    """Have reading go back to the first of many messages while the last one is in hand; return that one."""
    queue.put_many([b"early", b"held"])
    early = queue.receive(timeout=0)
    tx = queue.begin()
    tx.ack(tx.receive(timeout=0))
    name = tx.prepare()
    queue.put_many([b"between"] * AHEAD_COUNT)
    assert len(queue.get_many(AHEAD_COUNT, timeout=0)) == AHEAD_COUNT
    queue.put_many([Put(b"last", priority=priority)])
    last = queue.receive(timeout=0)
    queue.put_many([b"behind"] * AHEAD_COUNT)
    early.release()  # is found in its order, so reading stops there
    queue.abort_prepared(name)
    assert {queue.get(timeout=0), queue.get(timeout=0)} == {b"early", b"held"}
    return last


def failed(last: Delivery) -> None:
    """It waits before it comes again."""
    last.nack(delay=WAIT_SECONDS)


def failed_at_once(last: Delivery) -> None:
    """It comes again at once."""
    last.nack(delay=0)


def released(last: Delivery) -> None:
    """It comes again at once, uncounted."""
    last.release()


@pytest.mark.parametrize("priority", [0, 3])
@pytest.mark.parametrize("give_back", [failed, failed_at_once, released])
def test_a_message_given_back_before_reading_comes_by_it_again_is_handed_out_once(
    storage: SimulatedStorage, give_back: Callable[[Delivery], None], priority: int
) -> None:
    """Reading will find it, so it must not wait aside too."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        give_back(read_anew(queue, priority=priority))
        taken = queue.get_many(2 * AHEAD_COUNT, timeout=0)
        clock.advance(WAIT_SECONDS)
        while queue.stats().depth:
            taken += queue.get_many(2 * AHEAD_COUNT, timeout=0)
        with pytest.raises(Empty):
            taken += queue.get_many(2 * AHEAD_COUNT, timeout=0)
        assert sorted(taken) == [b"behind"] * AHEAD_COUNT + [b"last"]


def test_a_message_that_was_acknowledged_is_not_handed_out_again(storage: SimulatedStorage) -> None:
    """Nor to somebody who receives it while another one has it in hand."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        failed(read_anew(queue))
        assert len(queue.get_many(2 * AHEAD_COUNT, timeout=0)) > 0
        clock.advance(WAIT_SECONDS)
        received = []
        while queue.stats().depth:
            delivery = queue.receive(timeout=0)
            delivery.ack()
            received.append(delivery.offset)
        assert len(received) == len(set(received))
        with pytest.raises(Empty):
            queue.receive(timeout=0)

"""Order keys: messages of one key come in the order they were put, one at a time; nobody else waits for them."""

import random

import pytest

from holdfast import Delivery, Empty, PersistentQueue, Put
from support.builders.clocks import FakeClock
from support.builders.takes import TAKES, Take, by_get, shown, states, taken
from support.builders.transactions import kill, open_queue
from support.processes.threads import Threads
from support.storages.simulated_storage import SimulatedStorage


def of(key: str, *names: bytes) -> list[Put]:
    """Return messages of one key."""
    return [Put(name, order_key=key) for name in names]


@pytest.mark.parametrize("take", TAKES)
def test_every_way_of_taking_keeps_the_order_of_a_key(storage: SimulatedStorage, take: Take) -> None:
    """A batch has one message of each key at most; the next one comes when that is finished."""
    with open_queue(storage) as queue:
        queue.put_many([*of("a", b"a1", b"a2"), *of("b", b"b1", b"b2"), b"x", *of("a", b"a3")])
        found = taken(queue, take)
        assert sorted(found) == [b"a1", b"a2", b"a3", b"b1", b"b2", b"x"]
        assert [name for name in found if name.startswith(b"a")] == [b"a1", b"a2", b"a3"]
        assert [name for name in found if name.startswith(b"b")] == [b"b1", b"b2"]


def test_a_batch_has_one_message_of_each_key(storage: SimulatedStorage) -> None:
    """And settling one of them lets the next of its key in, nobody else."""
    with open_queue(storage) as queue:
        queue.put_many([*of("a", b"a1", b"a2"), *of("b", b"b1", b"b2"), b"x"])
        batch = queue.receive_many(10, timeout=0)
        assert [delivery.payload for delivery in batch] == [b"a1", b"b1", b"x"]
        assert queue.empty()
        batch.ack([batch[1]])
        assert shown(queue) == [b"b2"]
        batch.ack([batch[0]])
        assert shown(queue) == [b"a2", b"b2"]


@pytest.mark.parametrize(
    ("verb", "next_up"),
    [
        ("ack", [b"a2", b"x"]),
        ("nack now", [b"a1", b"x"]),
        ("nack later", [b"x"]),
        ("release", [b"a1", b"x"]),
        ("reject", [b"a2", b"x"]),
        ("last nack", [b"a2", b"x"]),
        ("runs out", [b"a1", b"x"]),
    ],
)
@pytest.mark.parametrize("end", ["none", "close", "kill"])
def test_what_becomes_of_the_first_one_decides_who_is_next(
    storage: SimulatedStorage, verb: str, next_up: list[bytes], end: str
) -> None:
    """A message holds its key back until it is finished or a dead letter, also while it waits after a failure."""
    clock = FakeClock()
    options = {"clock": clock, "max_deliveries": 1 if verb == "last nack" else 5, "lease_seconds": 10}
    queue = open_queue(storage, **options)
    queue.put_many([*of("a", b"a1", b"a2", b"a3"), b"x"])
    delivery = queue.receive(timeout=0)
    settle(delivery, verb, clock)
    if end != "none":
        left = kill(storage, queue) if end == "kill" else storage
        queue.close()
        queue = open_queue(left, **options)
    assert shown(queue) == next_up
    if verb == "nack later":
        assert states(queue)[b"a1"] == "delayed"
        clock.advance(60)
        assert shown(queue)[0] == b"a1"
    names = taken(queue)
    assert [name for name in names if name != b"x"] == [b"a1", b"a2", b"a3"][b"a2" in next_up :]
    queue.close()


def settle(delivery: Delivery, verb: str, clock: FakeClock) -> None:
    """Do to a delivery what a name says."""
    if verb == "runs out":
        clock.advance(10)
    elif verb == "reject":
        delivery.reject("no good")
    elif verb.startswith("nack"):
        delivery.nack(delay=60 if verb == "nack later" else 0)
    else:
        getattr(delivery, verb.removeprefix("last "))()


def test_a_delayed_message_holds_back_its_key_only(storage: SimulatedStorage) -> None:
    """Those behind it wait as long; others pass."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put_many([Put(b"a1", order_key="a", delay=10), *of("a", b"a2"), *of("b", b"b1"), b"x"])
        assert taken(queue) == [b"b1", b"x"]
        assert queue.stats().delayed == 2
        clock.advance(10)
        assert taken(queue) == [b"a1", b"a2"]


def test_the_one_behind_is_delayed_for_itself(storage: SimulatedStorage) -> None:
    """Its turn comes first, its time later; who stands behind it waits for both."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put_many([*of("a", b"a1"), Put(b"a2", order_key="a", delay=10), *of("a", b"a3")])
        assert taken(queue) == [b"a1"]
        clock.advance(10)
        assert taken(queue) == [b"a2", b"a3"]


@pytest.mark.parametrize("first_delay", [None, 1])
def test_expired_messages_of_a_key_let_the_next_one_in_at_once(
    storage: SimulatedStorage, first_delay: float | None
) -> None:
    """However many of them follow each other: one take passes them all, and ``empty()`` knows it before."""
    clock = FakeClock()
    with open_queue(storage, clock=clock, expired="dead") as queue:
        queue.put(b"a0", order_key="a", ttl=5, delay=first_delay)
        queue.put_many([Put(b"a%d" % number, order_key="a", ttl=5) for number in range(1, 5)])
        queue.put_many(of("a", b"good", b"better"))
        if first_delay:
            assert queue.empty()
        clock.advance(5)
        assert shown(queue) == [b"good"]
        assert queue.get(timeout=0) == b"good"
        assert len(queue.dead) == 5
        assert taken(queue) == [b"better"]


def test_a_transaction_holds_the_key_until_it_ends(storage: SimulatedStorage) -> None:
    """Commit lets the next one in; an abort gives the first one back."""
    with open_queue(storage) as queue:
        queue.put_many([*of("a", b"a1", b"a2"), b"x"])
        tx = queue.begin()
        assert tx.receive(timeout=0).payload == b"a1"
        assert tx.receive(timeout=0).payload == b"x"
        assert queue.empty()
        with pytest.raises(Empty):
            tx.receive(timeout=0)
        tx.abort()
        assert shown(queue) == [b"a1", b"x"]
        with queue.transaction() as tx:
            tx.ack(tx.receive(timeout=0))
            tx.put(Put(b"a3", order_key="a"))
            assert shown(queue) == [b"x"]
        assert taken(queue) == [b"a2", b"x", b"a3"]


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("end", ["none", "close", "kill"])
def test_a_prepared_transaction_holds_the_key_restarts_included(
    storage: SimulatedStorage, is_committed: bool, end: str
) -> None:
    """Until somebody decides; then the next one, or the same again, comes before the others of its key."""
    queue = open_queue(storage)
    queue.put_many([*of("a", b"a1", b"a2", b"a3"), b"x"])
    tx = queue.begin()
    tx.ack(tx.receive(timeout=0))
    tx.prepare("p")
    if end != "none":
        left = kill(storage, queue) if end == "kill" else storage
        queue.close()
        queue = open_queue(left)
    assert shown(queue) == [b"x"]
    assert states(queue)[b"a1"] == "leased"
    assert taken(queue) == [b"x"]
    if is_committed:
        queue.commit_prepared("p")
    else:
        queue.abort_prepared("p")
    assert shown(queue) == [b"a2" if is_committed else b"a1"]
    assert taken(queue) == [b"a1", b"a2", b"a3"][is_committed:]
    queue.close()


def test_a_retried_dead_letter_takes_its_turn_again(storage: SimulatedStorage) -> None:
    """One at a time holds for it too: it waits for who has the turn."""
    with open_queue(storage) as queue:
        queue.put_many(of("a", b"a1", b"a2", b"a3"))
        queue.receive(timeout=0).reject("no good")
        held = queue.receive(timeout=0)
        assert held.payload == b"a2"
        assert queue.dead.retry(0) == 1
        assert queue.empty()
        held.ack()
        assert len(shown(queue)) == 1
        assert sorted(taken(queue)) == [b"a1", b"a3"]


def test_keys_of_a_message_across_restarts_with_a_hole_before_them(storage: SimulatedStorage) -> None:
    """Finished ones of a key are passed over, and a later one that was never received waits for an earlier one."""
    queue = open_queue(storage, clock=FakeClock())
    queue.put_many([*of("a", b"a1"), *of("b", b"b1"), *of("a", b"a2"), *of("b", b"b2"), *of("a", b"a3")])
    batch = queue.receive_many(2, timeout=0)
    batch.ack([batch[0]])
    with queue.receive(timeout=0) as second:
        assert second.payload == b"a2"
    queue = open_queue(kill(storage, queue), clock=FakeClock())
    assert sorted(shown(queue)) == [b"a3", b"b1"]
    found = taken(queue)
    assert [name for name in found if name.startswith(b"b")] == [b"b1", b"b2"]
    assert b"a3" in found
    queue.close()


def test_several_consumers_never_have_two_messages_of_a_key(storage: SimulatedStorage, threads: Threads) -> None:
    """Threads that ack, nack, release and take in batches: in order, one in flight, all of them in the end."""
    keys, each = 7, 30
    seen: dict[str, list[int]] = {str(key): [] for key in range(keys)}
    in_flight: set[str] = set()
    with open_queue(storage, backoff=[], max_deliveries=None) as queue:
        for number in range(each):
            queue.put_many([Put(b"%d %d" % (key, number), order_key=str(key)) for key in range(keys)])

        def consume(seed: int) -> None:
            choice = random.Random(seed)
            while True:
                try:
                    batch = queue.receive_many(choice.choice([1, 3, 10]), timeout=0.3)
                except Empty:
                    return
                for delivery in batch:
                    key, number = delivery.payload.decode().split()
                    assert key not in in_flight, f"two messages of key {key} are in flight"
                    in_flight.add(key)
                    done = seen[key]
                    assert int(number) == len(done), f"key {key}: {number} came behind {done[-1:]}"
                for delivery in batch:
                    key, number = delivery.payload.decode().split()
                    in_flight.discard(key)
                    what = choice.random()
                    if what < 0.6:
                        seen[key].append(int(number))
                        delivery.ack()
                    elif what < 0.8:
                        delivery.nack(delay=choice.choice([0, 0.01]))
                    else:
                        delivery.release()
                len(queue.browse("ready")), queue.qsize(), queue.stats()

        for seed in range(4):
            threads.start(lambda seed=seed: consume(seed))  # type: ignore[misc]
        threads.join()
        assert {key: numbers == list(range(each)) for key, numbers in seen.items()} == dict.fromkeys(seen, True)
        assert queue.stats().depth == 0


def test_without_a_key_nobody_waits(storage: SimulatedStorage) -> None:
    """A thousand messages behind a held key are there at once."""
    with open_queue(storage) as queue:
        queue.put_many([*of("a", b"a1"), *of("a", b"a2") * 50, *[b"x"] * 1000])
        held = queue.receive(timeout=0)
        assert held.payload == b"a1"
        assert taken(queue, by_get) == [b"x"] * 1000
        assert_waiting(queue, 50)


def assert_waiting(queue: PersistentQueue, count: int) -> None:
    """Hold the figures to a number of messages that wait for their turn beside one in flight."""
    stats = queue.stats()
    assert (stats.depth, stats.delayed, stats.in_flight, queue.qsize()) == (count + 1, count, 1, 0)


def test_what_is_held_behind_a_retried_message_of_its_key_is_counted_once(storage: SimulatedStorage) -> None:
    """It counted as held and as waiting for its key, so ``qsize`` said one message fewer than could be taken."""
    with open_queue(storage) as queue:
        queue.put_many([*of("a", b"a1", b"a2", b"a3"), *of("b", b"b1")])
        queue.receive().reject("retried below")
        prepared = queue.begin()
        prepared.ack(prepared.receive())  # a2
        prepared.prepare("held")
        queue.dead.retry(reason="rejected")
    with open_queue(storage) as queue:
        assert [entry.payload for entry in queue.peek(10)] == [b"a1", b"b1"]
        assert (queue.qsize(), queue.stats().in_flight, queue.stats().delayed) == (2, 1, 1)
        queue.commit_prepared("held")
        assert [entry.payload for entry in queue.peek(10)] == [b"a1", b"b1"]
        assert (queue.qsize(), queue.stats().in_flight, queue.stats().delayed) == (2, 0, 1)
        assert [queue.get() for _ in range(3)] == [b"a1", b"a3", b"b1"]

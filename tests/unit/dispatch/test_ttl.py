"""Time to live: never handed out from then on, whoever asks; then dropped, or a dead letter."""

import pytest

from holdfast import Empty, LeaseExpiredError, Put
from support.builders.clocks import START_NS, FakeClock
from support.builders.takes import TAKES, Take, shown, states, taken
from support.builders.transactions import cut_power, kill, open_queue
from support.storages.simulated_storage import SimulatedStorage

NS = 10**9
EXPIRED = pytest.mark.parametrize("expired", ["drop", "dead"])


@EXPIRED
@pytest.mark.parametrize("take", TAKES)
def test_a_message_is_there_until_its_time_is_over_and_never_from_then_on(
    storage: SimulatedStorage, take: Take, expired: str
) -> None:
    """To the nanosecond; every way of taking and of looking says the same, before anybody has taken anything."""
    clock = FakeClock()
    with open_queue(storage, clock=clock, expired=expired) as queue:
        for name in (b"one", b"two"):
            queue.put(name, ttl=10)
        queue.put(b"other")
        clock.set_time_ns(START_NS + 10 * NS - 1)
        assert shown(queue) == [b"one", b"two", b"other"]
        assert queue.get() == b"one"
        clock.set_time_ns(START_NS + 10 * NS)
        assert shown(queue) == [b"other"]
        assert taken(queue, take) == [b"other"]
        stats = queue.stats()
        assert (stats.depth, stats.dead, stats.dropped) == (0, int(expired == "dead"), int(expired == "drop"))
        assert [(letter.payload, letter.reason) for letter in queue.dead.list()] == [(b"two", "expired")] * stats.dead


@EXPIRED
@pytest.mark.parametrize("end", ["close", "kill", "power"])
def test_it_runs_on_across_restarts_and_what_has_expired_stays_so(
    storage: SimulatedStorage, expired: str, end: str
) -> None:
    """Whether its time is over while nobody has the queue, or before somebody dies."""
    clock = FakeClock()
    options = {"clock": clock, "expired": expired}
    queue = open_queue(storage, **options)
    queue.put_many([Put(b"short", ttl=5), Put(b"long", ttl=15)])
    for expected in ([b"long"], []):
        clock.advance(6 if expected else 10)
        if end == "close":
            queue.close()
        else:
            storage = (kill if end == "kill" else cut_power)(storage, queue)
        queue = open_queue(storage, **options)
        assert shown(queue) == expected
        if expected:
            queue.receive(timeout=0).nack(delay=0)
        else:
            assert taken(queue) == []
    assert queue.stats().depth == 0
    assert len(queue.dead) == (2 if expired == "dead" else 0)
    queue.close()


def test_many_expired_ones_in_front_hide_nothing_behind_them(storage: SimulatedStorage) -> None:
    """``peek`` and ``empty()`` look past all of them, whatever they have been put aside for."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put_many([Put(b"urgent", priority=5, ttl=1)] * 200 + [Put(b"plain", ttl=1)] * 200 + [b"good"])
        clock.advance(2)
        assert not queue.empty()
        assert [message.payload for message in queue.peek(1)] == [b"good"]
        assert queue.get(timeout=0) == b"good"
        assert queue.stats().dropped == 400


@EXPIRED
def test_a_delay_longer_than_its_time_to_live(storage: SimulatedStorage, expired: str) -> None:
    """It is over before it is due, so nobody ever gets it; it does not wait for its delay to end."""
    clock = FakeClock()
    with open_queue(storage, clock=clock, expired=expired) as queue:
        queue.put(b"never", delay=1000, ttl=10)
        queue.put(b"nacked", ttl=20)
        queue.receive(timeout=0).nack(delay=500)
        assert taken(queue) == []
        assert states(queue) == {b"never": "delayed", b"nacked": "delayed"}
        clock.advance(20)
        assert (taken(queue), queue.stats().depth) == ([], 0)
        assert states(queue) == ({b"never": "dead", b"nacked": "dead"} if expired == "dead" else {})


@EXPIRED
@pytest.mark.parametrize("verb", ["ack", "nack", "release", "run out"])
def test_one_in_hand_may_be_finished_but_is_not_handed_out_again(
    storage: SimulatedStorage, expired: str, verb: str
) -> None:
    """Whoever received it in time has his lease; what he gives back too late is over."""
    clock = FakeClock()
    with open_queue(storage, clock=clock, expired=expired, lease_seconds=60) as queue:
        queue.put(b"held", ttl=10)
        delivery = queue.receive(timeout=0)
        clock.advance(20)
        assert states(queue) == {b"held": "leased"}
        if verb == "run out":
            clock.advance(60)
            with pytest.raises(LeaseExpiredError):
                delivery.ack()
        elif verb == "nack":
            delivery.nack(delay=0)
        else:
            getattr(delivery, verb)()
        assert (shown(queue), taken(queue)) == ([], [])
        assert queue.stats().depth == 0
        assert len(queue.dead) == int(expired == "dead" and verb != "ack")


def test_one_that_a_prepared_transaction_holds_stays_held(storage: SimulatedStorage) -> None:
    """Its time is over meanwhile: it is leased as long as nobody decides, and gone whatever is decided."""
    clock = FakeClock()
    with open_queue(storage, clock=clock, expired="dead") as queue:
        queue.put_many([Put(b"committed", ttl=10), Put(b"aborted", ttl=10)])
        for name in ("commit", "abort"):
            tx = queue.begin()
            tx.ack(tx.receive(timeout=0))
            tx.prepare(name)
        clock.advance(20)
        assert states(queue) == {b"committed": "leased", b"aborted": "leased"}
        queue.commit_prepared("commit")
        queue.abort_prepared("abort")
        assert taken(queue) == []
        assert states(queue) == {b"aborted": "dead"}


def test_a_retried_dead_letter_is_handed_out_though_its_time_is_over(storage: SimulatedStorage) -> None:
    """Somebody wants it: everybody who looks sees it, restarts, releases and other modes included."""
    clock = FakeClock()
    with open_queue(storage, clock=clock, expired="dead") as queue:
        queue.put(b"wanted", ttl=10)
        clock.advance(10)
        assert taken(queue) == []
        assert queue.dead.retry(reason="expired") == 1
        assert shown(queue) == [b"wanted"]
        assert states(queue) == {b"wanted": "ready"}
        with open_queue(storage, clock=clock, mode="read_only") as look:
            assert shown(look) == [b"wanted"]
        clock.advance(5)
        queue.receive(timeout=0).release()
        assert shown(queue) == [b"wanted"]
        assert queue.receive(timeout=0).delivery_count == 1  # given back by the close
    with open_queue(storage, clock=clock, expired="dead") as queue:
        assert shown(queue) == [b"wanted"]
        assert taken(queue) == [b"wanted"]
        assert queue.stats().depth == 0


def test_a_take_that_meets_only_expired_messages_is_empty(storage: SimulatedStorage) -> None:
    """``queue.Empty``, and the next put is found."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put_many([Put(b"%d" % number, ttl=1) for number in range(300)])
        clock.advance(1)
        with pytest.raises(Empty):
            queue.receive_many(10, timeout=0)
        queue.put(b"new", ttl=1)
        assert taken(queue) == [b"new"]
        assert queue.stats().dropped == 300


def test_a_retried_dead_letter_is_handed_out_at_once_though_it_was_never_due(storage: SimulatedStorage) -> None:
    """Whoever retries it wants it now: neither its delay nor its time to live counts any more, and all agree."""
    clock = FakeClock()
    with open_queue(storage, clock=clock, expired="dead") as queue:
        queue.put(b"wanted", ttl=10, delay=30)
        clock.advance(10)
        assert taken(queue) == []
        assert queue.dead.retry(reason="expired") == 1
        assert (shown(queue), states(queue)) == ([b"wanted"], {b"wanted": "ready"})
        assert taken(queue) == [b"wanted"]

"""What shutdown waits for, what it leaves behind, and that it says so."""

import pickle
from collections.abc import Callable, Iterator

import pytest

from holdfast import ConfigError, Delivery, Empty, PersistentQueue, Put, ShutDown
from support.builders.clocks import START_NS, FakeClock
from support.builders.takes import TAKES, Take
from support.builders.transactions import open_queue, prepare
from support.owners.machine_link import machine_links
from support.processes.threads import Threads, is_waiting, wait_until
from support.storages.simulated_storage import SimulatedStorage

SECONDS = 30.0  # far more than anything here takes


@pytest.fixture
def clock() -> FakeClock:
    """Time that stands still."""
    return FakeClock()


@pytest.fixture
def queue(storage: SimulatedStorage, clock: FakeClock) -> Iterator[PersistentQueue]:
    """A queue whose back-off is 5 s."""
    with open_queue(storage, clock=clock, backoff=[5]) as opened:
        yield opened


def left_by(call: Callable[[], object]) -> dict[str, int]:
    """Return what a call says is left that ends by ShutDown."""
    with pytest.raises(ShutDown) as caught:
        call()
    assert caught.value.left_count == sum(caught.value.left.values())
    return caught.value.left


def at_once(queue: PersistentQueue) -> dict[str, int]:
    """Return what is left where a take ends without waiting."""
    return left_by(lambda: queue.get(timeout=0))


def receiving(threads: Threads, queue: PersistentQueue) -> list[Delivery]:
    """Take in a thread that has to wait; return a list that gets what it takes."""
    taken: list[Delivery] = []
    thread = threads.start(lambda: taken.append(queue.receive(timeout=SECONDS)))
    wait_until(lambda: is_waiting(thread))
    return taken


def ending(threads: Threads, queue: PersistentQueue) -> list[dict[str, int]]:
    """Take in a thread that has to wait, and to end by ShutDown; return a list that gets what is left then."""
    left: list[dict[str, int]] = []
    thread = threads.start(lambda: left.append(left_by(queue.receive)))
    wait_until(lambda: is_waiting(thread))
    return left


# -- What is waited for ------------------------------------------------------------------------------------------------


def test_takers_of_a_queue_that_was_shut_down_finish_what_fails_meanwhile(storage: SimulatedStorage) -> None:
    """Each message fails once and waits behind that: two takers leave nothing behind."""
    with open_queue(storage, backoff=[0.05]) as queue:
        queue.put_many([b"%d" % number for number in range(50)])
        queue.shutdown()
        done: list[bytes] = []
        ends: list[ShutDown] = []

        def work() -> None:
            while True:
                try:
                    delivery = queue.receive()
                except ShutDown as error:
                    ends.append(error)
                    return
                if delivery.delivery_count == 1:
                    delivery.nack()
                else:
                    delivery.ack()
                    done.append(delivery.payload)

        threads = Threads()
        for _ in range(2):
            threads.start(work)
        threads.join()
        assert len(done) == len(set(done)) == 50
        assert [(str(each), each.left) for each in ends] == [
            ("the queue was shut down, and nothing is left in it", {})
        ] * 2
        assert queue.stats().depth == 0


@pytest.mark.parametrize("give_back", [lambda held: held.nack(0), lambda held: held.release()], ids=["nack", "release"])
def test_a_taker_waits_for_what_another_one_has_in_hand(
    queue: PersistentQueue, threads: Threads, give_back: Callable[[Delivery], None]
) -> None:
    """It may come back, and then it is handed out."""
    queue.put(b"a")
    held = queue.receive()
    queue.shutdown()
    taken = receiving(threads, queue)
    give_back(held)
    wait_until(lambda: bool(taken))
    assert taken[0].payload == b"a"


def test_the_last_acknowledgement_ends_those_who_wait(queue: PersistentQueue, threads: Threads) -> None:
    """They do not sit out the bound."""
    queue.put_many([b"a", b"b"])
    first, second = queue.receive(), queue.receive()
    queue.shutdown(timeout=None)
    endings = [ending(threads, queue) for _ in range(3)]
    first.ack()
    second.ack()
    wait_until(lambda: all(endings))
    assert endings == [[{}]] * 3


def test_the_end_of_a_transaction_ends_those_who_wait(queue: PersistentQueue, threads: Threads) -> None:
    """Committed or prepared, what it has taken is in its hands no more."""
    for end, left in (("commit", {}), ("prepare", {"prepared": 1})):
        queue.put(b"a")
        tx = queue.begin()
        tx.ack(tx.receive(timeout=0))
        if end == "commit":
            tx.commit()
        else:
            queue.shutdown(timeout=None)
            endings = ending(threads, queue)
            tx.prepare("waits")
            wait_until(lambda found=endings: bool(found))
            assert endings == [left]


def test_a_message_that_waits_for_its_order_key_is_waited_for(queue: PersistentQueue, threads: Threads) -> None:
    """While the one before it is in hand; then it is handed out."""
    queue.put_many([Put(b"first", order_key="k"), Put(b"second", order_key="k")])
    held = queue.receive()
    queue.shutdown()
    taken = receiving(threads, queue)
    held.ack()
    wait_until(lambda: bool(taken))
    assert taken[0].payload == b"second"


def test_what_is_ready_before_the_bound_is_waited_for(queue: PersistentQueue, clock: FakeClock) -> None:
    """A failure and a delay alike; a take with a timeout is told that there is nothing yet."""
    queue.put_many([b"fails", Put(b"delayed", delay=19)])
    queue.receive().nack()
    queue.shutdown()
    with pytest.raises(Empty):
        queue.get(timeout=0)
    clock.advance(5)
    assert queue.get(timeout=0) == b"fails"
    with pytest.raises(Empty):
        queue.get(timeout=0.01)
    clock.advance(14)
    assert queue.get(timeout=0) == b"delayed"
    assert at_once(queue) == {}


# -- What is not waited for --------------------------------------------------------------------------------------------


def test_what_is_ready_behind_the_bound_is_not_waited_for(queue: PersistentQueue) -> None:
    """The error says how many there are of what, in one line, and what to do."""
    queue.put_many([b"fails", *[Put(b"later", delay=3600)] * 2, *[Put(b"keyed", delay=3600, order_key="k")] * 3])
    queue.receive().nack(delay=3600)
    queue.shutdown()
    with pytest.raises(ShutDown, match="6 messages left") as caught:
        queue.get()
    assert caught.value.left == {"backing_off": 1, "delayed": 3, "order_key": 2}
    assert str(caught.value) == (
        "the queue was shut down with 6 messages left: 1 waiting after a failure, 3 delayed, "
        "2 waiting for their order key; they stay, open the queue again to take them"
    )
    assert queue.stats().depth == 6
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.left, str(copied)) == (caught.value.left, str(caught.value))


def test_a_paused_group_is_not_waited_for(queue: PersistentQueue, clock: FakeClock) -> None:
    """Not even for what is in hand, which nobody would be given; a pause that ends by itself is one too."""
    queue.put_many([b"a", b"b", b"c"])
    held = queue.receive()
    queue.pause(until=START_NS / 1e9 + 1)
    queue.shutdown()
    assert at_once(queue) == {"in_hand": 1, "paused": 2}
    held.ack()
    assert at_once(queue) == {"paused": 2}
    clock.advance(1)
    assert [queue.get(timeout=0), queue.get(timeout=0)] == [b"b", b"c"]
    assert at_once(queue) == {}


def test_what_a_prepared_transaction_holds_is_not_waited_for(queue: PersistentQueue) -> None:
    """Nobody knows when it is decided."""
    queue.put_many([b"a", b"b"])
    prepare(queue, "acks")
    queue.shutdown()
    assert queue.get() == b"b"
    assert at_once(queue) == {"prepared": 1}


def test_a_transaction_does_not_wait_for_what_it_has_itself(queue: PersistentQueue) -> None:
    """It could not give that back meanwhile; what others have it waits for."""
    queue.put_many([b"a", b"b"])
    held = queue.receive()
    with queue.transaction() as tx:
        mine = tx.receive()
        queue.shutdown(timeout=None)
        with pytest.raises(Empty):
            tx.receive(timeout=0.01)
        held.ack()
        assert left_by(tx.receive) == {"in_hand": 1}
        tx.ack(mine)
    assert at_once(queue) == {}


def test_takers_that_wait_for_each_other_end_at_the_bound(storage: SimulatedStorage, threads: Threads) -> None:
    """Neither gives back what it holds before it is given more: the bound is what ends them."""
    with open_queue(storage) as queue:
        queue.put_many([b"a", b"b"])
        held = [queue.receive(), queue.receive()]
        queue.shutdown(timeout=0.3)
        endings = [ending(threads, queue) for _ in held]
        wait_until(lambda: all(endings))
        assert endings == [[{"in_hand": 2}]] * 2
        for each in held:
            each.ack()
        assert at_once(queue) == {}


def test_the_bound_counts_from_the_call_and_what_is_ready_is_handed_out_behind_it(
    queue: PersistentQueue, clock: FakeClock
) -> None:
    """20 s by default: shorter than a lease. A later call sets another one; one that is no time is refused."""
    queue.put_many([b"a", Put(b"b", delay=30), b"c"])
    held = queue.receive()
    queue.shutdown()
    with pytest.raises(ValueError, match="at least 0 seconds"):
        queue.shutdown(timeout=-1)
    assert queue.get() == b"c"
    clock.advance(19.99)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    clock.advance(0.01)
    assert at_once(queue) == {"in_hand": 1, "delayed": 1}
    queue.shutdown(timeout=20)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    held.nack(0)
    assert queue.get() == b"a"
    clock.advance(10)
    assert queue.get() == b"b"
    assert at_once(queue) == {}


def test_a_drain_without_a_bound_waits_for_any_delay(queue: PersistentQueue, clock: FakeClock) -> None:
    """A month, if that is what was asked for."""
    queue.put(b"a", delay=30 * 86400)
    queue.shutdown(timeout=None)
    with pytest.raises(Empty):
        queue.get(timeout=0)
    clock.advance(30 * 86400)
    assert queue.get() == b"a"


# -- All ways to take --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("take", TAKES)
def test_every_way_to_take_waits_and_says_what_is_left(queue: PersistentQueue, take: Take) -> None:
    """``queue.Empty`` while there is something to wait for, then ShutDown."""
    queue.put_many([b"in hand", Put(b"later", delay=3600)])
    held = queue.receive()
    queue.shutdown()
    with pytest.raises(Empty):
        take(queue)
    held.ack()
    assert left_by(lambda: take(queue)) == {"delayed": 1}


def test_reservations_wait_and_say_what_is_left(queue: PersistentQueue) -> None:
    """None while there is something to wait for, then ShutDown."""
    queue.put_many([b"in hand", Put(b"later", delay=3600)])
    held = queue.receive()
    queue.shutdown()
    assert queue.reservations.take() is None
    held.ack()
    assert left_by(queue.reservations.take) == {"delayed": 1}


def test_iterating_waits_and_logs_what_is_left(
    queue: PersistentQueue, threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop has no error to look at."""
    queue.put_many([b"a", Put(b"later", delay=3600)])
    held = queue.receive()
    queue.shutdown()
    found: list[bytes] = []
    thread = threads.start(lambda: found.extend(queue))
    wait_until(lambda: is_waiting(thread))
    held.nack(0)
    thread.join(SECONDS)
    assert found == [b"a"]
    assert "1 message left: 1 delayed" in caplog.text


def test_iterating_logs_nothing_where_nothing_is_left(queue: PersistentQueue, caplog: pytest.LogCaptureFixture) -> None:
    """A warning would be news."""
    queue.put(b"a")
    queue.shutdown()
    assert list(queue) == [b"a"]
    assert not caplog.records


# -- As queue.Queue ----------------------------------------------------------------------------------------------------


def test_an_immediate_shutdown_says_what_stays(queue: PersistentQueue) -> None:
    """Nothing can be taken any more, so the queue is empty for those who take; on the disk it is not."""
    queue.put_many([b"a", b"b", Put(b"later", delay=3600)])
    held = queue.receive()
    assert not queue.is_shutdown
    queue.shutdown(immediate=True)
    assert queue.is_shutdown
    assert at_once(queue) == {"not_taken": 3}
    assert left_by(queue.reservations.take) == {"not_taken": 3}
    assert held.is_settled
    assert (queue.qsize(), queue.empty(), queue.unfinished_tasks, queue.stats().depth) == (0, True, 0, 3)
    queue.join()
    queue.shutdown()
    assert at_once(queue) == {"not_taken": 3}


def test_join_returns_where_nothing_is_taken_once_it_was_shut_down(storage: SimulatedStorage, threads: Threads) -> None:
    """It has handed out nothing that could be reported done."""
    with open_queue(storage, mode="exclusive") as queue:
        queue.put(b"stays")
        joiner = threads.start(queue.join)
        wait_until(lambda: is_waiting(joiner))
        queue.shutdown(immediate=True)
        joiner.join(SECONDS)
        assert not joiner.is_alive()
        assert queue.unfinished_tasks == 0


def test_an_immediate_shutdown_leaves_those_unfinished_that_were_taken(
    queue: PersistentQueue, threads: Threads
) -> None:
    """As in the standard library: ``join`` waits until these are reported done."""
    queue.put_many([b"a", b"b", b"c"])
    assert queue.get() == b"a"
    assert queue.unfinished_tasks == 3
    joiner = threads.start(queue.join)
    wait_until(lambda: is_waiting(joiner))
    queue.shutdown(immediate=True)
    assert queue.unfinished_tasks == 1
    joiner.join(0.1)
    assert joiner.is_alive()
    queue.task_done()
    joiner.join(SECONDS)
    assert not joiner.is_alive()
    with pytest.raises(ValueError, match="too many"):
        queue.task_done()


def test_join_does_not_wait_for_what_a_shutdown_leaves_behind(queue: PersistentQueue, threads: Threads) -> None:
    """Nobody waits to be given it; what is in hand is waited for, and what is ready as well."""
    queue.put_many([b"a", b"b", Put(b"later", delay=3600)])
    held = queue.receive()
    queue.shutdown()
    joiner = threads.start(queue.join)
    assert queue.get() == b"b"
    queue.task_done()
    assert queue.unfinished_tasks == 2
    held.ack()
    queue.task_done()
    joiner.join(SECONDS)
    assert not joiner.is_alive()
    assert at_once(queue) == {"delayed": 1}


def test_a_bound_on_messages_can_be_read_and_set(queue: PersistentQueue, threads: Threads) -> None:
    """Another one counts from the next put on; who waits sees it too."""
    assert queue.maxsize == 0
    queue.put_many([b"a", b"b"])
    queue.configure(maxsize=2)
    assert queue.maxsize == 2
    assert queue.full()
    putter = threads.start(lambda: queue.put(b"c", timeout=SECONDS))
    wait_until(lambda: is_waiting(putter))
    queue.configure(maxsize=3)
    putter.join(SECONDS)
    assert queue.qsize() == 3
    queue.configure(maxsize=0)
    assert not queue.full()
    with pytest.raises(ConfigError, match="maxsize"):
        queue.configure(maxsize=-1)


# -- Messages that nobody is given -------------------------------------------------------------------------------------


@pytest.mark.parametrize("expired", ["drop", "dead"])
def test_join_does_not_wait_for_messages_that_expired(
    storage: SimulatedStorage, clock: FakeClock, threads: Threads, expired: str
) -> None:
    """Whether anybody takes meanwhile or not; a dead letter that is retried counts again."""
    with open_queue(storage, clock=clock, expired=expired) as queue:
        queue.put_many([Put(b"short", ttl=1), b"long"])
        assert queue.unfinished_tasks == 2
        clock.advance(1)
        assert queue.get() == b"long"
        joiner = threads.start(queue.join)
        wait_until(lambda: is_waiting(joiner))
        queue.task_done()
        joiner.join(SECONDS)
        assert not joiner.is_alive()
        queue.put(b"short too", ttl=1)
        clock.advance(1)
        queue.join()
        if expired == "dead":
            assert queue.dead.retry(queue.dead.list()) == 2
            assert queue.unfinished_tasks == 2
            assert queue.get_many(2) == [b"short", b"short too"]
            queue.task_done()
            queue.task_done()
        assert queue.unfinished_tasks == 0


def test_join_waits_at_a_group_that_has_taken_nothing_yet(storage: SimulatedStorage, clock: FakeClock) -> None:
    """What expired before anybody has taken anything is not waited for either; nor once the queue is closed."""
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"short", ttl=1)
        clock.advance(1)
        queue.join()
        assert queue.stats().dropped == 1
        queue.put(b"more")
    assert queue.unfinished_tasks == 0
    queue.join()


def test_a_handle_joins_what_others_take(storage: SimulatedStorage, threads: Threads) -> None:
    """It counts what is reported to it, and no more."""
    with machine_links(), open_queue(storage, mode="shared") as queue, open_queue(storage, mode="shared") as other:
        queue.put(b"a")
        assert other.get(timeout=0) == b"a"
        joiner = threads.start(queue.join)
        joiner.join(1.5)  # longer than from one look to the next
        assert joiner.is_alive()
        queue.task_done()
        joiner.join(SECONDS)
        assert not joiner.is_alive()
        assert queue.unfinished_tasks == 0


@pytest.mark.parametrize("immediate", [False, True])
def test_a_handle_that_looks_has_nothing_to_end(storage: SimulatedStorage, clock: FakeClock, immediate: bool) -> None:
    """It shuts down, and looks on."""
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"a")
        with open_queue(storage, mode="read_only") as look:
            look.shutdown(immediate=immediate)
            assert look.is_shutdown
            assert [each.payload for each in look.peek()] == [b"a"]
            if immediate:
                look.join()

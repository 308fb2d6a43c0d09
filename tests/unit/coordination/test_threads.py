"""Threads of one process share a queue: nothing is lost or doubled, nobody spins, and everybody wakes when it ends."""

import queue as standard
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes import Signal, child

from holdfast import (
    ClosedError,
    ConfigError,
    Delivery,
    Empty,
    FlushPolicy,
    Full,
    PersistentQueue,
    RecordTooLargeError,
    ShutDown,
)

POLICIES = [FlushPolicy.every_commit(), FlushPolicy.every(commits=10), FlushPolicy.never()]
FILE_BYTES = 16 * 2**10


class Threads:
    """Runs functions in threads and raises what they raised."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []

    def start(self, work: Callable[[], object]) -> threading.Thread:
        """Begin one more."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def join(self, seconds: float = 60) -> None:
        """Wait for all of them, and raise the first failure."""
        for thread in self._threads:
            thread.join(seconds)
        if self.failures:
            raise self.failures[0]
        assert not any(thread.is_alive() for thread in self._threads), "a thread hangs"


@pytest.fixture
def threads() -> Iterator[Threads]:
    """Threads that have to end well."""
    group = Threads()
    yield group
    group.join()


def caught_in(threads: Threads, call: Callable[[], object]) -> list[type[BaseException]]:
    """Run a call that blocks in a thread; return a list that gets the type of what it raises."""
    caught: list[type[BaseException]] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            caught.append(type(error))

    threads.start(run)
    time.sleep(0.1)
    assert not caught, "it did not block"
    return caught


def wait_until(holds: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


# -- All at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_many_producers_and_consumers_at_once_lose_and_double_nothing(tmp_path: Path, policy: FlushPolicy) -> None:
    """Every message comes out once, and those of each producer in the order in which it put them."""
    threads = Threads()
    producers, each = 6, 150
    taken: dict[int, tuple[int, int]] = {}  # offset: producer, number
    got: list[list[tuple[int, int]]] = [[] for _ in range(4)]

    def name(payload: bytes) -> tuple[int, int]:
        producer, number, _ = payload.split(b" ", 2)
        return int(producer), int(number)

    def produce(queue: PersistentQueue, producer: int) -> None:
        number = 0
        while number < each:
            count = 1 if number % 3 else min(5, each - number)
            payloads = [b"%d %d " % (producer, number + at) + bytes(100) for at in range(count)]
            if count == 1:
                queue.put(payloads[0])
            else:
                offsets = queue.put_many(payloads)
                assert len(offsets) == count
            number += count

    def consume(queue: PersistentQueue, consumer: int) -> None:
        try:
            while True:
                if consumer == 0:
                    got[consumer].append(name(queue.get()))
                elif consumer == 1:
                    got[consumer] += map(name, queue.get_many(7))
                elif consumer == 2:
                    with queue.receive() as delivery:
                        keep(delivery)
                else:
                    with queue.receive_many(5) as batch:
                        for delivery in batch:
                            keep(delivery)
        except ShutDown:
            pass

    def keep(delivery: Delivery) -> None:
        assert taken.setdefault(delivery.offset, name(delivery.payload)) == name(delivery.payload)

    with PersistentQueue(tmp_path / "orders", flush=policy, data_file_bytes=FILE_BYTES) as queue:
        for consumer in range(4):
            threads.start(lambda consumer=consumer: consume(queue, consumer))
        writing = Threads()
        for producer in range(producers):
            writing.start(lambda producer=producer: produce(queue, producer))
        writing.join()
        queue.shutdown()
        threads.join()
        assert queue.stats().depth == 0
    everything = [*got[0], *got[1], *taken.values()]
    assert sorted(everything) == [(producer, number) for producer in range(producers) for number in range(each)]
    assert all(map(per_producer_in_order, got))
    assert per_producer_in_order([taken[offset] for offset in sorted(taken)])


def per_producer_in_order(names: list[tuple[int, int]]) -> bool:
    """Whether the numbers of each producer rise."""
    last: dict[int, int] = {}
    for producer, number in names:
        if number <= last.get(producer, -1):
            return False
        last[producer] = number
    return True


def test_offsets_given_to_threads_are_contiguous_and_name_what_was_put(tmp_path: Path, threads: Threads) -> None:
    """The offset that put returns is where the message stands."""
    put: dict[int, bytes] = {}

    def produce(producer: int) -> None:
        for number in range(100):
            payload = b"%d-%d" % (producer, number)
            put[queue.put(payload)] = payload

    with PersistentQueue(tmp_path / "orders") as queue:
        for producer in range(8):
            threads.start(lambda producer=producer: produce(producer))
        threads.join()
        assert sorted(put) == list(range(800))
        assert {message.offset: message.payload for message in queue.peek(1000)} == put


# -- Waiting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["both", "consume"])
def test_a_waiting_consumer_does_not_spin(tmp_path: Path, mode: str) -> None:
    """Half a second of waiting costs next to no processor time."""
    PersistentQueue(tmp_path / "orders").close()
    with PersistentQueue(tmp_path / "orders", mode=mode) as queue:
        with pytest.raises(Empty):
            queue.get(timeout=0.01)
        used = time.process_time()
        started = time.monotonic()
        with pytest.raises(Empty):
            queue.get(timeout=0.5)
        assert time.monotonic() - started >= 0.5
        assert time.process_time() - used < 0.1


def test_a_waiting_producer_does_not_spin(tmp_path: Path) -> None:
    """The same for one that waits for room."""
    with PersistentQueue(tmp_path / "orders", maxsize=1) as queue:
        queue.put(b"x")
        used = time.process_time()
        with pytest.raises(Full):
            queue.put(b"y", timeout=0.5)
        assert time.process_time() - used < 0.1


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_put_wakes_a_waiting_consumer_promptly(tmp_path: Path, policy: FlushPolicy, threads: Threads) -> None:
    """Nobody waits for the end of a polling interval."""
    with PersistentQueue(tmp_path / "orders", flush=policy) as queue:
        delays = []
        for _ in range(10):
            arrived: list[float] = []
            threads.start(lambda arrived=arrived: arrived.append(queue.get(timeout=20) and time.monotonic()))
            time.sleep(0.02)
            started = time.monotonic()
            queue.put(b"wake up")
            wait_until(lambda arrived=arrived: bool(arrived))
            delays.append(arrived[0] - started)
        assert sorted(delays)[5] < 0.1, delays


def test_get_without_waiting_says_empty_at_once(tmp_path: Path) -> None:
    """``block=False``, ``timeout=0`` and get_nowait do not wait; what they raise is the standard library's."""
    with PersistentQueue(tmp_path / "orders") as queue:
        started = time.monotonic()
        for call in (
            lambda: queue.get(block=False),
            lambda: queue.get(timeout=0),
            queue.get_nowait,
            lambda: queue.get_many(5, timeout=0),
            lambda: queue.receive(timeout=0),
            lambda: queue.receive_many(5, timeout=0),
        ):
            with pytest.raises(standard.Empty):
                call()
        assert time.monotonic() - started < 1
        with pytest.raises(ValueError, match="at least 0"):
            queue.get(timeout=-1)


def test_a_message_can_be_taken_only_once_it_is_synced_under_every_commit(tmp_path: Path, threads: Threads) -> None:
    """A consumer never sees what a power cut could still take back."""
    with PersistentQueue(tmp_path / "orders") as queue:
        queue.put(b"first")
        assert queue.get() == b"first"
        side = queue._write_side
        assert side is not None
        with side._writer._sync_lock:  # the disk is busy
            threads.start(lambda: queue.put(b"second"))
            wait_until(lambda: side.next_offset == 2)
            with pytest.raises(Empty):
                queue.get(timeout=0.1)
            assert queue.peek() == []
        assert queue.get(timeout=10) == b"second"


# -- Ending ----------------------------------------------------------------------------------------------------------


def test_close_wakes_blocked_get_put_and_join(tmp_path: Path, threads: Threads) -> None:
    """Callers of a closed queue get ClosedError; join just ends."""
    with PersistentQueue(tmp_path / "orders", maxsize=1) as queue:
        queue.put(b"x")
        assert queue.get() == b"x"
        getter = caught_in(threads, queue.get)
        receiver = caught_in(threads, lambda: queue.receive_many(3))
        joiner = threads.start(queue.join)
        queue.close()
        wait_until(lambda: bool(getter and receiver) and not joiner.is_alive())
        assert getter == receiver == [ClosedError]
    with PersistentQueue(tmp_path / "orders", maxsize=1) as queue:
        queue.put(b"x")
        putter = caught_in(threads, lambda: queue.put(b"y"))
        queue.close()
        wait_until(lambda: bool(putter))
        assert putter == [ClosedError]


def test_shutdown_wakes_blocked_get_and_put(tmp_path: Path, threads: Threads) -> None:
    """They get queue.ShutDown."""
    with PersistentQueue(tmp_path / "orders", maxsize=1) as queue:
        getter = caught_in(threads, queue.get)
        queue.shutdown()
        wait_until(lambda: bool(getter))
        assert getter == [ShutDown]
    with PersistentQueue(tmp_path / "orders", maxsize=1) as queue:
        queue.put(b"x")
        putter = caught_in(threads, lambda: queue.put(b"y"))
        queue.shutdown()
        wait_until(lambda: bool(putter))
        assert putter == [ShutDown]


def test_after_shutdown_what_is_left_can_be_taken_and_nothing_put(tmp_path: Path) -> None:
    """ShutDown comes once the queue is empty, ClosedError once it is closed."""
    with PersistentQueue(tmp_path / "orders") as queue:
        queue.put_many([b"a", b"b"])
        queue.shutdown()
        with pytest.raises(ShutDown):
            queue.put(b"c")
        assert [queue.get(), queue.get()] == [b"a", b"b"]
        with pytest.raises(ShutDown):
            queue.get()
        with pytest.raises(ShutDown):
            queue.get_nowait()
        queue.close()
        for call in (queue.get, lambda: queue.put(b"d"), queue.peek, queue.qsize, queue.stats, queue.flush):
            with pytest.raises(ClosedError):
                call()
        with pytest.raises(ClosedError):
            queue.groups.list()
        queue.close()


def test_an_immediate_shutdown_discards_nothing(tmp_path: Path, threads: Threads) -> None:
    """Waiters wake, deliveries in hand are given back, and the messages are there for the next owner."""
    with PersistentQueue(tmp_path / "orders") as queue:
        queue.put_many([b"a", b"b", b"c"])
        held = queue.receive()
        joiner = threads.start(queue.join)
        queue.shutdown(immediate=True)
        wait_until(lambda: not joiner.is_alive())
        with pytest.raises(ShutDown):
            queue.get()
        assert held.is_settled
    with PersistentQueue(tmp_path / "orders") as queue:
        assert queue.get_many(10, timeout=0) == [b"a", b"b", b"c"]


def test_iteration_ends_at_shutdown(tmp_path: Path, threads: Threads) -> None:
    """It yields what is left first; each payload is acknowledged already."""
    found: list[bytes] = []
    with PersistentQueue(tmp_path / "orders") as queue:
        queue.put_many([b"a", b"b"])
        thread = threads.start(lambda: found.extend(queue))
        wait_until(lambda: queue.qsize() == 0)
        queue.put(b"c")
        queue.shutdown()
        thread.join(10)
        assert found == [b"a", b"b", b"c"]


def test_join_waits_for_every_message_to_be_reported_done(tmp_path: Path, threads: Threads) -> None:
    """Those that waited at opening count too; once too often is a ValueError, as in the standard library."""
    with PersistentQueue(tmp_path / "orders") as queue:
        queue.put_many([b"old", b"older"])
        assert queue.get() == b"old"
    with PersistentQueue(tmp_path / "orders") as queue:
        queue.put(b"new")
        joiner = threads.start(queue.join)
        queue.task_done()
        joiner.join(0.1)
        assert joiner.is_alive()
        queue.task_done()
        joiner.join(10)
        assert not joiner.is_alive()
        with pytest.raises(ValueError, match="too many"):
            queue.task_done()
        assert queue.qsize() == 2, "task_done acknowledges nothing"


# -- Bounds ----------------------------------------------------------------------------------------------------------


def test_a_full_queue_blocks_put_until_something_is_finished(tmp_path: Path, threads: Threads) -> None:
    """Without waiting, or once the time is over, the answer is queue.Full and nothing is written."""
    with PersistentQueue(tmp_path / "orders", maxsize=3) as queue:
        queue.put_many([b"a", b"b"])
        assert not queue.full()
        queue.put(b"c")
        assert queue.full()
        for call in (
            lambda: queue.put_nowait(b"d"),
            lambda: queue.put(b"d", timeout=0.05),
            lambda: queue.put_many([b"d"], timeout=0),
        ):
            with pytest.raises(standard.Full):
                call()
        delivery = queue.receive()
        with pytest.raises(Full):
            queue.put_nowait(b"d")  # in flight is not finished
        putter = threads.start(lambda: queue.put(b"d", timeout=20))
        delivery.ack()
        putter.join(10)
        assert [message.payload for message in queue.peek(10)] == [b"b", b"c", b"d"]
        with pytest.raises(RecordTooLargeError):
            queue.put_many([b"1", b"2", b"3", b"4"])


def test_max_bytes_blocks_put_until_a_data_file_is_retired(tmp_path: Path, threads: Threads) -> None:
    """Data files never take more than was allowed."""
    max_bytes = 3 * FILE_BYTES
    with PersistentQueue(tmp_path / "orders", data_file_bytes=FILE_BYTES, max_bytes=max_bytes) as queue:
        count = 0
        with pytest.raises(Full):
            for count in range(10_000):
                queue.put(bytes(1000), timeout=0)
        assert 30 < count < 48
        assert queue.stats().bytes_on_disk <= max_bytes
        putter = threads.start(lambda: queue.put(bytes(1000), timeout=20))
        time.sleep(0.1)
        assert putter.is_alive()
        assert len(queue.get_many(count, timeout=0)) > 0
        while putter.is_alive():
            queue.get_many(100, timeout=0.1)
        assert queue.stats().bytes_on_disk <= max_bytes
    with pytest.raises(ConfigError):
        PersistentQueue(tmp_path / "other", data_file_bytes=FILE_BYTES, max_bytes=FILE_BYTES)


@pytest.mark.parametrize("bound", ["maxsize", "max_bytes"])
def test_a_producer_waits_for_a_consumer_in_another_process(tmp_path: Path, bound: str) -> None:
    """What that one finishes makes room here."""
    path = tmp_path / "orders"
    bounds = {"maxsize": {"maxsize": 40}, "max_bytes": {"max_bytes": 2 * FILE_BYTES}}[bound]
    queue = PersistentQueue(path, mode="produce", data_file_bytes=FILE_BYTES, **bounds)
    opened, go, done = Signal(), Signal(), Signal()

    def consume() -> None:
        with PersistentQueue(path, mode="consume") as consumer:
            assert consumer.get(timeout=20) is not None
            opened.send()
            go.wait()
            for number in range(1, 200):
                assert int(consumer.get(timeout=20)[:4]) == number
            done.send()

    queue.put(b"%04d" % 0 + bytes(1000))
    with child(consume) as process:
        opened.wait()
        number = 1
        with pytest.raises(Full):
            while True:
                queue.put(b"%04d" % number + bytes(1000), timeout=0.2)
                number += 1
        assert 10 < number < 60
        go.send()
        while number < 200:
            queue.put(b"%04d" % number + bytes(1000), timeout=20)
            number += 1
        done.wait()
        assert process.wait() == 0
    for signal in (opened, go, done):
        signal.close()
    queue.close()

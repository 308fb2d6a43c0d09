"""Threads of one process share a queue: nothing is lost or doubled, nobody spins, and a put wakes who waits."""

import queue as standard
import threading
import time
from pathlib import Path

import pytest

from holdfast import (
    Delivery,
    Empty,
    FlushPolicy,
    PersistentQueue,
    ShutDown,
)
from support.processes.children import run_script
from support.processes.threads import Threads, wait_until

POLICIES = [FlushPolicy.every_commit(), FlushPolicy.every(commits=10), FlushPolicy.never()]
FILE_BYTES = 16 * 2**10


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

    with PersistentQueue(tmp_path / "orders", mode="exclusive", flush=policy, data_file_bytes=FILE_BYTES) as queue:
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

    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        for producer in range(8):
            threads.start(lambda producer=producer: produce(producer))
        threads.join()
        assert sorted(put) == list(range(800))
        assert {message.offset: message.payload for message in queue.peek(1000)} == put


# -- Waiting ---------------------------------------------------------------------------------------------------------


_WAITING = """
import sys, time
from holdfast import Empty, Full, PersistentQueue

path, mode, verb = sys.argv[1:]
with PersistentQueue(path, mode=mode, maxsize=1) as queue:
    if verb == "put":
        queue.put(b"x")
    used, started = time.process_time(), time.monotonic()
    try:
        queue.get(timeout=0.5) if verb == "get" else queue.put(b"y", timeout=0.5)
    except (Empty, Full):
        print(time.monotonic() - started, time.process_time() - used)
"""
"""Waits in a process of its own: threads that other tests have left take no processor time there."""


@pytest.mark.parametrize(
    ("mode", "verb"),
    [("exclusive", "get"), ("shared", "get"), ("exclusive", "put"), ("shared", "put")],
)
def test_who_waits_does_not_spin(tmp_path: Path, mode: str, verb: str) -> None:
    """Half a second of waiting, for a message or for space, costs next to no processor time."""
    PersistentQueue(tmp_path / "orders", mode="exclusive", maxsize=1).close()
    waited, used = map(float, run_script(_WAITING, tmp_path / "orders", mode, verb).split())
    assert waited >= 0.5
    assert used < 0.1


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_put_wakes_a_waiting_consumer_promptly(tmp_path: Path, policy: FlushPolicy, threads: Threads) -> None:
    """Nobody waits for the end of a polling interval."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", flush=policy) as queue:
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


def test_get_without_waiting_says_empty_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``block=False``, ``timeout=0`` and get_nowait do not wait; what they raise is the standard library's."""
    wait = threading.Condition.wait

    def wait_elsewhere(condition: threading.Condition, timeout: float | None = None) -> bool:
        assert threading.current_thread() is not threading.main_thread(), "it waits"
        return wait(condition, timeout)

    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue, monkeypatch.context() as patched:
        patched.setattr(threading.Condition, "wait", wait_elsewhere)
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
        with pytest.raises(ValueError, match="at least 0"):
            queue.get(timeout=-1)


def test_a_message_can_be_taken_only_once_it_is_synced_under_every_commit(tmp_path: Path, threads: Threads) -> None:
    """A consumer never sees what a power cut could still take back."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
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

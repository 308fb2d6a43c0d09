"""Threads that sleep until a lease runs out, in real time."""

import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast import DeliveryBatch, Empty, PersistentQueue
from support.builders.handles import handle_of
from support.processes.threads import Threads, is_waiting, wait_until


@pytest.fixture
def orders(tmp_path: Path) -> PersistentQueue:
    """A queue with one message, in real time."""
    queue = PersistentQueue(tmp_path / "orders", mode="exclusive", backoff=[], lease_seconds=60)
    queue.put(b"a")
    return queue


def test_a_thread_that_waits_is_given_the_message_when_the_lease_runs_out(
    orders: PersistentQueue, threads: Threads
) -> None:
    """Nobody else calls anything; it sleeps until then."""
    with orders:
        orders.receive(lease_seconds=0.2)
        started = time.monotonic()
        assert orders.receive(timeout=20).delivery_count == 2
        assert time.monotonic() - started >= 0.15


def test_threads_that_wait_hear_of_a_lease_that_is_cut_short(orders: PersistentQueue, threads: Threads) -> None:
    """They slept until the old one would have run out."""
    with orders:
        held = orders.receive()
        found: list[int] = []
        threads.start(lambda: found.append(orders.receive(timeout=30).delivery_count))
        side = handle_of(orders).require_read_side()
        wait_until(lambda: len(side._source.data_available.waiting) == 1)  # type: ignore[attr-defined]
        held.extend(0.05)
        threads.join(10)
        assert found == [2]


def test_a_thread_that_waits_without_end_hears_of_a_lease_given_meanwhile(
    orders: PersistentQueue, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look at the queue and its sleep another one took the message, and lets its lease run out."""
    side = handle_of(orders).require_read_side()
    data_available = side._source.data_available  # type: ignore[attr-defined]
    orders.get()
    looked, taken = threading.Event(), threading.Event()
    wait = data_available.wait
    sleeper: list[threading.Thread] = []

    def wait_a_little_later(ready: object, seconds: float | None) -> None:
        if threading.current_thread() in sleeper and not taken.is_set():
            looked.set()
            taken.wait(10)
        wait(ready, seconds)

    monkeypatch.setattr(data_available, "wait", wait_a_little_later)
    found: list[int] = []

    def receive() -> None:
        sleeper.append(threading.current_thread())
        found.append(orders.receive(timeout=15).delivery_count)

    with orders:
        threads.start(receive)
        assert looked.wait(10)
        orders.put(b"b")
        orders.receive(lease_seconds=0.05)
        taken.set()
        threads.join(10)
        assert found == [2]


def test_many_waiters_share_what_runs_out(orders: PersistentQueue, threads: Threads) -> None:
    """Each message goes to one of them, and none is forgotten."""
    with orders:
        orders.put_many([b"%d" % number for number in range(7)])
        held: DeliveryBatch = orders.receive_many(10, lease_seconds=0.2)
        assert len(held) == 8
        found: list[bytes] = []
        for _ in range(8):
            threads.start(lambda: found.append(orders.receive(timeout=30).payload))
        threads.join(20)
        assert sorted(found) == sorted(each.payload for each in held)
        with pytest.raises(Empty):
            orders.receive(timeout=0)


def test_a_taker_that_nothing_has_woken_finds_the_message_soon(
    tmp_path: Path, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that put it was interrupted before it could say so."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        taken: list[bytes] = []
        taker = threads.start(lambda: taken.append(queue.get()))
        wait_until(lambda: is_waiting(taker))
        with monkeypatch.context() as patched:
            patched.setattr(handle_of(queue).require_write_side(), "_tell", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                queue.put(b"x")
        threads.join(10)
        assert taken == [b"x"]

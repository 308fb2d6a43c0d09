"""close and shutdown: everybody who waits wakes, what is left can be taken, and nothing is discarded."""

from pathlib import Path

import pytest

from holdfast import (
    ClosedError,
    PersistentQueue,
    ShutDown,
)
from support.processes.threads import Threads, caught_in, wait_until


def test_close_wakes_blocked_get_put_and_join(tmp_path: Path, threads: Threads) -> None:
    """Callers of a closed queue get ClosedError; join just ends."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", maxsize=1) as queue:
        queue.put(b"x")
        assert queue.get() == b"x"
        getter = caught_in(threads, queue.get)
        receiver = caught_in(threads, lambda: queue.receive_many(3))
        joiner = threads.start(queue.join)
        queue.close()
        wait_until(lambda: bool(getter and receiver) and not joiner.is_alive())
        assert getter == receiver == [ClosedError]
    with PersistentQueue(tmp_path / "orders", mode="exclusive", maxsize=1) as queue:
        queue.put(b"x")
        putter = caught_in(threads, lambda: queue.put(b"y"))
        queue.close()
        wait_until(lambda: bool(putter))
        assert putter == [ClosedError]


def test_shutdown_wakes_blocked_get_and_put(tmp_path: Path, threads: Threads) -> None:
    """They get queue.ShutDown."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", maxsize=1) as queue:
        getter = caught_in(threads, queue.get)
        queue.shutdown()
        wait_until(lambda: bool(getter))
        assert getter == [ShutDown]
    with PersistentQueue(tmp_path / "orders", mode="exclusive", maxsize=1) as queue:
        queue.put(b"x")
        putter = caught_in(threads, lambda: queue.put(b"y"))
        queue.shutdown()
        wait_until(lambda: bool(putter))
        assert putter == [ShutDown]


def test_after_shutdown_what_is_left_can_be_taken_and_nothing_put(tmp_path: Path) -> None:
    """ShutDown comes once the queue is empty, ClosedError once it is closed."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
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
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put_many([b"a", b"b", b"c"])
        held = queue.receive()
        joiner = threads.start(queue.join)
        queue.shutdown(immediate=True)
        wait_until(lambda: not joiner.is_alive())
        with pytest.raises(ShutDown):
            queue.get()
        assert held.is_settled
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        assert queue.get_many(10, timeout=0) == [b"a", b"b", b"c"]


def test_iteration_ends_at_shutdown(tmp_path: Path, threads: Threads) -> None:
    """It yields what is left first; each payload is acknowledged already."""
    found: list[bytes] = []
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put_many([b"a", b"b"])
        thread = threads.start(lambda: found.extend(queue))
        wait_until(lambda: queue.qsize() == 0)
        queue.put(b"c")
        queue.shutdown()
        thread.join(10)
        assert found == [b"a", b"b", b"c"]


def test_join_waits_for_every_message_to_be_reported_done(tmp_path: Path, threads: Threads) -> None:
    """Those that waited at opening count too; once too often is a ValueError, as in the standard library."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put_many([b"old", b"older"])
        assert queue.get() == b"old"
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
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

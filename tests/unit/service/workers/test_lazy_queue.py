"""A queue as a worker process has it."""

from pathlib import Path
from typing import cast

import pytest

from holdfast import ClosedError, PersistentQueue, TypedQueue, UsageError
from holdfast.serializers.codec import Codec
from holdfast.serializers.registry import Registry
from holdfast.service.failover import FailoverSource
from holdfast.service.workers.processes.lazy_queue import LazyQueue


def test_it_is_opened_by_its_first_put_and_not_before(tmp_path: Path) -> None:
    """A worker process imports modules that open queues it may never put into."""
    opened: list[PersistentQueue] = []

    def open_queue() -> PersistentQueue:
        opened.append(PersistentQueue(tmp_path / "orders", mode="shared", can_own=False))
        return opened[-1]

    lazy = LazyQueue(tmp_path / "orders", open_queue)
    raw = cast(PersistentQueue, lazy)
    orders: TypedQueue[int] = TypedQueue("orders", raw, Codec(Registry(), type=int), FailoverSource(raw, _no_other))
    assert not opened
    assert not (tmp_path / "orders").exists()
    assert [orders.put(1), orders.put(2, priority=1), orders.put_many([3, 4])] == [0, 1, range(2, 4)]
    assert len(opened) == 1
    with pytest.raises(UsageError, match="worker process takes nothing"):
        orders.receive(timeout=0)
    with pytest.raises(UsageError, match="worker process takes nothing"):
        orders.receive_many(2, timeout=0)
    orders.close()
    with pytest.raises(ClosedError):
        orders.put(5)


def test_one_that_was_closed_unused_is_not_opened_any_more(tmp_path: Path) -> None:
    """Nothing is made."""
    lazy = LazyQueue(tmp_path / "orders", lambda: PersistentQueue(tmp_path / "orders", mode="shared"))
    lazy.close()
    with pytest.raises(ClosedError):
        lazy.put(b"1")
    assert not (tmp_path / "orders").exists()


def test_a_worker_process_takes_nothing_by_itself(tmp_path: Path) -> None:
    """In no way, and it opens nothing for that."""
    lazy = LazyQueue(tmp_path / "orders", lambda: _no_other(tmp_path, "shared"))
    for take in (lazy.receive, lazy.receive_many, lazy.consume, lambda: lazy.consuming(1, None, None)):
        with pytest.raises(UsageError, match="takes nothing from 'orders'"):
            take()


def _no_other(path: Path, mode: str) -> PersistentQueue:
    raise AssertionError("no node has died")

"""What a commit over several queues promises, for every mixture of modes: alone, as the owner, or as a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, Empty, Full, PersistentQueue, TransactionStateError, transaction
from support.owners.machine_link import machine_links

Open = Callable[..., PersistentQueue]

LARGE = 2**20 + 1
"""Bytes; too large for one frame."""

WAYS = [
    ("exclusive", "exclusive"),
    ("exclusive", "owner"),
    ("owner", "exclusive"),
    ("owner", "owner"),
    ("exclusive", "socket"),
    ("socket", "exclusive"),
    ("owner", "socket"),
    ("socket", "owner"),
    ("socket", "socket"),
    ("machine", "machine"),
    ("machine", "exclusive"),
    ("exclusive", "machine"),
]


@pytest.fixture(params=WAYS, ids="-".join)
def ways(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Return how handles of the two queues go to them."""
    first, second = request.param
    return first, second


@pytest.fixture
def open_queue(ways: tuple[str, str], tmp_path: Path) -> Iterator[Open]:
    """Return what opens a queue by its number; everything is closed at the end, the last one first."""
    with ExitStack() as opened:
        if "machine" in ways:
            opened.enter_context(machine_links())

        def open_queue(number: int, **options: Any) -> PersistentQueue:
            path, way = tmp_path / f"q{number}", ways[number]
            if way == "exclusive":
                return opened.enter_context(PersistentQueue(path, **{"mode": "exclusive", **options}))
            if way == "socket":
                opened.enter_context(PersistentQueue(path, mode="shared", **options))
                options["can_own"] = False
            return opened.enter_context(PersistentQueue(path, mode="shared", **options))

        yield open_queue


@pytest.fixture
def queues(open_queue: Open) -> tuple[PersistentQueue, PersistentQueue]:
    """Return both queues; the first one has a and b."""
    first, second = open_queue(0), open_queue(1)
    first.put_many([b"a", b"b"])
    return first, second


def drained(queue: PersistentQueue) -> list[bytes]:
    """Return all that can be taken now."""
    found: list[bytes] = []
    while True:
        try:
            found += queue.get_many(100, timeout=0)
        except Empty:
            return found


@pytest.mark.parametrize("size", [1, LARGE])
def test_what_is_taken_from_one_queue_is_put_into_the_other(
    queues: tuple[PersistentQueue, PersistentQueue], size: int
) -> None:
    """As one; the thread may put meanwhile."""
    first, second = queues
    tx = transaction(first, second)
    tx.ack(first, tx.receive(first, timeout=5))
    tx.put(second, bytes(size), headers={"kind": "x"})
    second.put(b"between")
    offsets = tx.commit()
    assert tx.commit() == offsets
    assert offsets[second] == range(1, 2)
    assert len(offsets[first]) == 0
    assert drained(first) == [b"b"]
    assert drained(second) == [b"between", bytes(size)]
    for queue in queues:
        assert queue.prepared() == []
        assert queue.stats().depth == 0


@pytest.mark.parametrize("size", [1, LARGE])
def test_both_queues_put_and_acknowledge(
    queues: tuple[PersistentQueue, PersistentQueue], open_queue: Open, size: int
) -> None:
    """Whichever of them decides; and it stays so behind a closing."""
    first, second = queues
    second.put(b"c")
    with transaction(first, second) as tx:
        for queue in queues:
            tx.ack(queue, tx.receive(queue, timeout=5))
            tx.put_many(queue, [b"new", bytes(size)])
    first.close()
    second.close()
    assert [drained(open_queue(number)) for number in (0, 1)] == [[b"b", b"new", bytes(size)], [b"new", bytes(size)]]


def test_an_aborted_transaction_leaves_no_trace(queues: tuple[PersistentQueue, PersistentQueue]) -> None:
    """In either queue."""
    first, second = queues
    tx = transaction(first, second)
    tx.ack(first, tx.receive(first, timeout=5))
    tx.put(second, b"c")
    tx.abort()
    with pytest.raises(TransactionStateError):
        tx.commit()
    assert drained(first) == [b"a", b"b"]
    assert drained(second) == []


@pytest.mark.parametrize("full", [0, 1])
def test_a_full_queue_leaves_the_transaction_open(open_queue: Open, full: int) -> None:
    """It commits once there is space."""
    queues = [open_queue(number, maxsize=1 if number == full else 100) for number in (0, 1)]
    queues[full].put(b"a")
    tx = transaction(*queues, timeout=1)
    for queue in queues:
        tx.put(queue, b"b")
    with pytest.raises((Full, TransactionStateError)):
        tx.commit()
    again = transaction(*queues)
    for queue in queues:
        again.put(queue, b"b")
    assert queues[full].get(timeout=5) == b"a"
    again.commit()
    assert [drained(queue) for queue in queues] == [[b"b"], [b"b"]]


def test_many_commits_one_after_the_other(queues: tuple[PersistentQueue, PersistentQueue]) -> None:
    """Their commit records end: none is carried for ever."""
    first, second = queues
    drained(first)
    for number in range(20):
        with transaction(first, second) as tx:
            tx.put(first, b"%d" % number)
            tx.put(second, b"%d" % number)
    assert drained(first) == drained(second) == [b"%d" % number for number in range(20)]
    assert [queue.prepared_count() for queue in queues] == [0, 0]


def test_one_queue_has_one_part(tmp_path: Path) -> None:
    """Two handles of a shared queue are one queue."""
    with (
        PersistentQueue(tmp_path / "q", mode="shared") as first,
        PersistentQueue(tmp_path / "q", mode="shared") as second,
        pytest.raises(ConfigError, match="one queue has one part"),
    ):
        transaction(first, second)

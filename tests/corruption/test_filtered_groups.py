"""Damage in front of a group with a filter is reported and lost: no filter judges what does not verify."""

from __future__ import annotations

import pytest

from holdfast import Empty, PersistentQueue
from support.builders.small_queues import SmallQueue
from support.builders.transactions import ORDERS, open_queue
from support.storages.simulated_storage import SimulatedStorage

pytestmark = pytest.mark.extra("filter")


def taken(queue: PersistentQueue) -> list[bytes]:
    """Take all there is."""
    try:
        return queue.get_many(100, timeout=0)
    except Empty:
        return []


@pytest.mark.parametrize("damaged", [b"paid", b"message 1"])
@pytest.mark.parametrize("kind", ["paid", "open"])
def test_a_damaged_message_is_lost_and_reported_whatever_its_filter_would_say(kind: str, damaged: bytes) -> None:
    """In its headers, which then say something else, and in its payload."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.groups.create("some", filter=f"has(headers.kind) && headers.kind == '{kind}'")
        for number in range(3):
            queue.put(b"message %d" % number, headers={"kind": "paid" if number == 1 else "open"})
    small = SmallQueue(ORDERS, storage, 3)
    (path,) = small.data_files()
    position = small.read(path).index(damaged)
    small.patch(path, position, b"open" if damaged == b"paid" else b"x")
    with open_queue(storage, group="some") as queue:
        assert taken(queue) == ([] if kind == "paid" else [b"message 0", b"message 2"])
        stats = queue.stats()
        assert (stats.depth, stats.lost, stats.filtered) == (0, 1, 2 if kind == "paid" else 0)
        assert [offset for each in queue.recovery.damage for offset in each.offsets] == [1]

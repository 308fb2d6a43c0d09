"""Processes of one queue start in any order: who comes first makes it."""

import time
from itertools import permutations
from pathlib import Path

import pytest

from holdfast import GroupNotFoundError, PersistentQueue
from support.builders.transactions import open_queue
from support.owners.machine_link import machine_links
from support.processes.children import Child, Signal
from support.storages.simulated_storage import SimulatedStorage

SECONDS = 60.0
WORKS = ("first", "second", "takes")


def work(path: Path, name: str, opened: Signal, taken: Signal) -> None:
    """Open the queue; put two messages, or take four. The one that takes ends once it has all of them."""
    with PersistentQueue(path, mode="shared") as queue:
        opened.send()
        if name == "takes":
            taken.send(" ".join(sorted(queue.get(timeout=SECONDS).decode() for _ in range(4))))
            return
        for number in range(2):
            queue.put(f"{name}-{number}".encode(), timeout=SECONDS)
        time.sleep(SECONDS)  # the test ends it: until then it serves the others, if it owns the queue


@pytest.mark.parametrize("order", list(permutations(WORKS)), ids="-".join)
@pytest.mark.parametrize("is_in_turn", [True, False], ids=["in turn", "together"])
def test_processes_start_in_any_order(tmp_path: Path, order: tuple[str, ...], *, is_in_turn: bool) -> None:
    """All six orders, each process behind the one before it, or all at once: the one that takes gets every message."""
    opened, taken = Signal(), Signal()
    processes: list[Child] = []
    try:
        for name in order:
            processes.append(Child(lambda name=name: work(tmp_path / "orders", name, opened, taken)))
            if is_in_turn:
                opened.wait(SECONDS)
        assert taken.wait(SECONDS) == "first-0 first-1 second-0 second-1"
        assert processes[order.index("takes")].wait(SECONDS) == 0
    finally:
        for each in processes:
            each.kill()
            each.wait()
        opened.close()
        taken.close()


def test_a_queue_that_its_consumer_has_made_is_as_its_producer_says(storage: SimulatedStorage) -> None:
    """Who makes it decides nothing that a later program could not."""
    with (
        machine_links(),
        open_queue(storage, mode="shared") as consumer,
        open_queue(storage, mode="shared", maxsize=2, dedup_max=1) as producer,
    ):
        assert not consumer.peek()
        producer.put_many([b"a", b"b"])
        assert producer.full()
        assert consumer.get_many(2, timeout=5) == [b"a", b"b"]
        assert producer.stats().file_count == 1


def test_a_consumer_that_makes_a_queue_makes_its_group_with_it(storage: SimulatedStorage) -> None:
    """Later ones need groups.create, from any process."""
    with machine_links(), open_queue(storage, mode="shared", group="audit") as audit:
        with open_queue(storage, mode="shared") as other:
            other.put(b"a")
            with pytest.raises(GroupNotFoundError):
                open_queue(storage, mode="shared", group="billing")
            assert other.get(timeout=5) == b"a"
        assert audit.get(timeout=5) == b"a"

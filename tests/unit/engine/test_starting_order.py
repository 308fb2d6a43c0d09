"""Processes of one queue start in any order: who comes first makes it."""

import time
from itertools import permutations
from pathlib import Path

import pytest

from holdfast import GroupNotFoundError, PersistentQueue
from support.builders.clocks import FakeClock
from support.builders.transactions import open_queue
from support.processes.children import Child, Signal
from support.storages.simulated_storage import SimulatedStorage

SECONDS = 60.0
MODES = ("produce", "consume", "submit")


def work(path: Path, mode: str, opened: Signal, taken: Signal) -> None:
    """Open the queue; put two messages, or take four; a consumer ends when it has all, the others with the queue."""
    with PersistentQueue(path, mode=mode) as queue:
        opened.send()
        if mode == "consume":
            taken.send(" ".join(sorted(queue.get(timeout=SECONDS).decode() for _ in range(4))))
            return
        for number in range(2):
            queue.put(f"{mode}-{number}".encode(), timeout=SECONDS)
        time.sleep(SECONDS)  # the test ends it: until then a producer serves those who submit


@pytest.mark.parametrize("order", list(permutations(MODES)), ids="-".join)
@pytest.mark.parametrize("is_in_turn", [True, False], ids=["in turn", "together"])
def test_processes_start_in_any_order(tmp_path: Path, order: tuple[str, ...], *, is_in_turn: bool) -> None:
    """All six orders, each process behind the one before it, or all at once: the consumer gets every message."""
    opened, taken = Signal(), Signal()
    processes: list[Child] = []
    try:
        for mode in order:
            processes.append(Child(lambda mode=mode: work(tmp_path / "orders", mode, opened, taken)))
            if is_in_turn:
                opened.wait(SECONDS)
        assert taken.wait(SECONDS) == "produce-0 produce-1 submit-0 submit-1"
        assert processes[order.index("consume")].wait(SECONDS) == 0
    finally:
        for each in processes:
            each.kill()
            each.wait()
        opened.close()
        taken.close()


def test_a_queue_that_its_consumer_has_made_is_as_its_producer_says(storage: SimulatedStorage) -> None:
    """Sizes and policies are those of handles; a consumer decides nothing that a producer could not."""
    clock = FakeClock()
    with (
        open_queue(storage, clock=clock, mode="consume") as consumer,
        open_queue(storage, clock=clock, mode="produce", maxsize=2, dedup_max=1) as producer,
    ):
        assert not consumer.peek()
        producer.put_many([b"a", b"b"])
        assert producer.full()
        assert consumer.get_many(2, timeout=5) == [b"a", b"b"]
        assert producer.stats().file_count == 1


def test_a_consumer_that_makes_a_queue_makes_its_group_with_it(storage: SimulatedStorage) -> None:
    """As a handle with both sides does; later ones need groups.create, from whichever process."""
    with open_queue(storage, mode="consume", group="audit") as audit:
        with open_queue(storage, mode="produce") as producer:
            producer.put(b"a")
            with pytest.raises(GroupNotFoundError):
                open_queue(storage, mode="consume", group="billing")
            with open_queue(storage, mode="consume") as consumer:
                assert consumer.get(timeout=5) == b"a"
        assert audit.get(timeout=5) == b"a"

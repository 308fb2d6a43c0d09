"""Transactions over several queues that one of them cannot take part in: nothing happens in any."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Full, HoldfastError, PersistentQueue, QueuesTransaction, ShutDown
from holdfast.queue.transactions.transaction_state import State
from support.builders.transactions import INVOICES, open_queue, waiting
from support.processes.threads import Threads
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

Queues = tuple[PersistentQueue, PersistentQueue]


@pytest.fixture
def queues(storage: SimulatedStorage) -> Iterator[Queues]:
    """Open two queues of two messages each."""
    with open_queue(storage) as first, open_queue(storage, INVOICES) as second:
        for queue in (first, second):
            queue.put_many([b"one", b"two"])
        yield first, second


def work(tx: QueuesTransaction, queue: PersistentQueue, deed: str, put: bytes = b"new") -> None:
    """Do what a deed says."""
    if "a" in deed:
        tx.ack(queue, tx.receive(queue, timeout=0))
    if "p" in deed:
        tx.put(queue, put)


def test_a_queue_without_room_stops_the_commit_and_not_the_transaction(storage: SimulatedStorage) -> None:
    """Full: nothing was prepared anywhere, and it can be tried again."""
    with open_queue(storage) as orders, open_queue(storage, INVOICES, maxsize=1) as invoices:
        orders.put(b"one")
        invoices.put(b"full")
        tx = holdfast.transaction(orders, invoices, timeout=0.2)
        work(tx, orders, "a")
        tx.put(invoices, b"new")
        with pytest.raises(Full):
            tx.commit()
        tx.abort()
        tx = holdfast.transaction(orders, invoices)
        work(tx, orders, "a")
        tx.put(invoices, b"new")
        assert invoices.get() == b"full"
        tx.commit()
        assert [waiting(orders), waiting(invoices)] == [[], [b"new"]]


@pytest.mark.parametrize("which", [0, 1])
def test_a_queue_that_was_shut_down_aborts_everything(queues: Queues, which: int) -> None:
    """Whichever it is, and whoever decides: nothing is left in doubt."""
    tx = holdfast.transaction(*queues)
    for queue in queues:
        work(tx, queue, "pa")
    queues[which].shutdown()
    with pytest.raises(ShutDown):
        tx.commit()
    assert tx.state is State.ABORTED
    assert [queue.prepared() for queue in queues] == [[], []]
    assert [waiting(queue) for queue in queues] == [[b"one", b"two"]] * 2


@pytest.mark.parametrize("verbs", [{"write_at", "allocate"}, {"sync"}, {"sync_directory"}, {"rename", "open"}])
@pytest.mark.parametrize("root", [Path("/orders"), INVOICES])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_disk_that_fails_anywhere_leaves_all_or_nothing(
    storage: SimulatedStorage, verbs: set[str], root: Path, at: int
) -> None:
    """In either queue; what the commit said agrees with what is there after a loss of power."""
    paths = (Path("/orders"), INVOICES)
    queues = [open_queue(storage, path) for path in paths]
    for queue in queues:
        queue.put_many([b"one", b"two"])
    tx = holdfast.transaction(*queues)
    for queue in queues:
        work(tx, queue, "pa")

    class Plan(FaultPlan):
        def strike(self, verb: str, path: Path) -> bool:
            return path.is_relative_to(root) and super().strike(verb, path)

    storage.faults = Plan(at, verbs=frozenset(verbs))
    said: bool | None = True
    try:
        tx.commit()
    except HoldfastError:
        said = {State.ABORTED: False, State.UNKNOWN: None}[tx.state]
    storage.faults = None
    if said is False:
        for queue in queues:
            assert queue.path == root or queue.prepared() == [], "aborted, and still in doubt"
    left_over = storage.crash_dropping_unsynced()
    for queue in queues:
        try:
            queue.close()
        except HoldfastError:
            continue
    queues = [open_queue(left_over, path) for path in paths]
    found = [waiting(queue) for queue in queues]
    assert [queue.prepared() for queue in queues] == [[], []]
    assert found in ([[b"one", b"two"]] * 2, [[b"two", b"new"]] * 2), "half of it"
    assert said is None or said == (found[0] == [b"two", b"new"])
    for queue in queues:
        queue.close()


def test_threads_may_move_messages_in_both_directions(storage: SimulatedStorage, threads: Threads) -> None:
    """Who names which queue first makes no difference, and nothing is lost, doubled, or waited for in a circle."""
    with open_queue(storage) as first, open_queue(storage, INVOICES) as second:
        for queue, name in ((first, b"a"), (second, b"b")):
            queue.put_many([b"%s%d" % (name, number) for number in range(20)])

        def move(source: PersistentQueue, target: PersistentQueue, *queues: PersistentQueue) -> None:
            for _ in range(40):
                with holdfast.transaction(*queues) as tx:
                    message = tx.receive(source, timeout=5)
                    tx.put(target, message.payload)
                    tx.ack(source, message)

        for queues in ((first, second), (second, first)):
            threads.start(lambda queues=queues: move(first, second, *queues))  # type: ignore[misc]
            threads.start(lambda queues=queues: move(second, first, *queues))  # type: ignore[misc]
        threads.join()
        assert len(waiting(first)) == len(waiting(second)) == 20
        expected = [b"%s%d" % (name, number) for name in (b"a", b"b") for number in range(20)]
        assert sorted(waiting(first) + waiting(second)) == sorted(expected)

"""Transactions in bounded queues, of one handle and of several, and of handles that only look."""

from pathlib import Path

import pytest

import holdfast
from holdfast import (
    Full,
    PersistentQueue,
    RecordTooLargeError,
    UsageError,
)
from holdfast.queue.transactions.transaction_state import State
from support.builders.transactions import INVOICES, failing, open_queue, waiting
from support.owners.machine_link import machine_links
from support.processes.threads import Threads
from support.storages.simulated_storage import SimulatedStorage


def test_a_bounded_queue_makes_commit_wait_for_room(tmp_path: Path, threads: Threads) -> None:
    """Until the transaction's own time is over; then it says Full, and the transaction has ended in no way yet."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", maxsize=2) as queue:
        queue.put(b"a")
        tx = queue.begin(timeout=1)
        tx.put_many([b"b", b"c"])
        with pytest.raises(Full):
            tx.commit()
        tx.abort()
        tx = queue.begin(timeout=20)
        tx.put_many([b"b", b"c"])
        threads.start(tx.commit)
        assert queue.get(timeout=5) == b"a"
        threads.join()
        assert waiting(queue) == [b"b", b"c"]
        with pytest.raises(RecordTooLargeError), queue.transaction() as tx:
            tx.put_many([b"1", b"2", b"3"])


def test_a_block_whose_commit_is_refused_aborts(storage: SimulatedStorage) -> None:
    """Its messages are available again at once: no later code commits it, and none waits for its timeout."""
    with open_queue(storage) as orders, open_queue(storage, INVOICES, maxsize=1) as invoices:
        orders.put_many([b"taken over", b"received"])
        invoices.put(b"full")
        taken_over = orders.receive(timeout=0)
        with failing(Full), holdfast.transaction(orders, invoices, timeout=1) as tx:
            tx.ack(orders, [taken_over, tx.receive(orders, timeout=0)])
            tx.put(invoices, b"new")
        assert tx.state is State.ABORTED
        taken_over.release()
        assert [each.delivery_count for each in orders.receive_many(5, timeout=0)] == [1]
        assert (orders.stats().delayed, waiting(invoices)) == (1, [b"full"])


def test_what_a_transaction_finishes_makes_room_for_what_it_puts(storage: SimulatedStorage) -> None:
    """A full queue takes a transaction that takes as much as it puts."""
    with open_queue(storage, maxsize=2) as queue:
        queue.put_many([b"a", b"b"])
        with queue.transaction(timeout=1) as tx:
            tx.ack(tx.receive(timeout=0))
            tx.put(b"c")
        assert waiting(queue) == [b"b", b"c"]


def test_the_room_of_a_bounded_queue_is_shared_by_transactions_of_all_handles(storage: SimulatedStorage) -> None:
    """Full for one client while another one has taken the last place; nothing of it is there, and it may try again."""
    with (
        machine_links(),
        open_queue(storage, mode="shared", maxsize=2) as one,
        open_queue(storage, mode="shared") as two,
    ):
        late = two.begin(timeout=1)
        late.put_many([b"c", b"d"])
        with one.transaction() as tx:
            tx.put(b"a")
        with pytest.raises(Full):
            late.commit()
        assert waiting(two) == [b"a"]
        late.abort()
        with two.transaction(timeout=5) as tx:
            tx.ack(tx.receive(timeout=0))
            tx.put_many([b"c", b"d"])
        assert waiting(one) == [b"c", b"d"]


def test_a_handle_that_looks_begins_no_transaction(storage: SimulatedStorage) -> None:
    """It changes nothing."""
    with open_queue(storage), open_queue(storage, mode="read_only") as look:
        for call in (look.begin, look.transaction):
            with pytest.raises(UsageError, match="read_only"):
                call()

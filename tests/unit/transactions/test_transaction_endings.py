"""Transactions whose queue closes, or whose process dies or forks."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import ClosedError, HoldfastError, PersistentQueue, TransactionStateError
from holdfast.queue.transactions.transaction_state import State
from support.builders.transactions import INVOICES, open_queue, prepared_ids, waiting
from support.processes.children import Signal, child, run_script
from support.processes.threads import Threads, caught_in
from support.storages.simulated_storage import SimulatedStorage


@pytest.mark.parametrize("count", [1, 100], ids=["in memory", "in a file"])
def test_closing_aborts_what_is_open(count: int) -> None:
    """Its messages are ready for the next owner; its puts leave nothing behind."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.put(b"one")
        tx = queue.begin()
        tx.ack(tx.receive(timeout=0))
        tx.put_many([bytes(1000)] * count)
    assert tx.state is State.ABORTED
    with open_queue(storage) as queue:
        assert waiting(queue) == [b"one"]
        assert not [path for path in storage.tree() if path.suffix in {".staging", ".batch"}]


@pytest.mark.parametrize("ending", [lambda queue: queue.close(), lambda queue: queue.commit_prepared("a")])
def test_an_exception_comes_out_of_a_block_that_cannot_be_aborted_any_more(
    ending: Callable[[PersistentQueue], object],
) -> None:
    """It has a note of why the prepared transaction is not aborted."""
    with open_queue(SimulatedStorage()) as queue:
        tx = queue.begin()
        tx.prepare("a")
        ending(queue)
        with pytest.raises(ZeroDivisionError) as caught, tx:
            raise ZeroDivisionError
        (note,) = caught.value.__notes__
        assert note.startswith("transaction a is not aborted: ")


def test_closing_leaves_what_is_prepared() -> None:
    """The transaction of a closed queue decides nothing more; whoever opens the queue does."""
    storage = SimulatedStorage()
    transactions = []
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two"])
        for name in ("puts", "acks", "both"):
            tx = queue.begin()
            if name != "puts":
                tx.ack(tx.receive(timeout=0))
            if name != "acks":
                tx.put(b"by " + name.encode())
            tx.prepare(name)
            transactions.append(tx)
    files = storage.tree()
    for tx in transactions:
        assert tx.state is State.PREPARED
        for verb in (tx.commit, tx.abort):
            with pytest.raises(ClosedError):
                verb()
    assert storage.tree() == files
    with open_queue(storage) as queue:
        assert prepared_ids(queue) == ["puts", "acks", "both"]
        for tx in transactions:
            with pytest.raises(ClosedError):
                tx.commit()
        for name in prepared_ids(queue):
            queue.commit_prepared(name)
        assert waiting(queue) == [b"by puts", b"by both"]


BLOCKING: dict[str, Callable[[PersistentQueue], object]] = {
    "receive": lambda queue: queue.begin(timeout=30).receive(),
    "commit": lambda queue: commit_into(queue),  # noqa: PLW0108  # it stands below
}


def commit_into(queue: PersistentQueue) -> None:
    """Commit into a queue that is full."""
    tx = queue.begin(timeout=30)
    tx.put(b"x")
    tx.commit()


@pytest.mark.parametrize("verb", BLOCKING)
def test_closing_waits_for_no_transaction(tmp_path: Path, threads: Threads, verb: str) -> None:
    """One that waits for a message, or for room, is woken."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", maxsize=1) as queue:
        if verb == "commit":
            queue.put(b"full")
        caught = caught_in(threads, lambda: BLOCKING[verb](queue))
        queue.close()
        threads.join()
        assert caught == [ClosedError]  # not Empty or Full, which come when its own time is over


def test_closing_one_of_two_queues_aborts_the_transaction_in_both() -> None:
    """The other queue has its messages back at once."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue, open_queue(storage, INVOICES) as other:
        other.put(b"uno")
        tx = holdfast.transaction(queue, other)
        tx.receive(other, timeout=0)
        tx.put(queue, b"new")
        queue.close()
        assert waiting(other) == [b"uno"]
        with pytest.raises(TransactionStateError, match="its queue was closed"):
            tx.commit()


def test_a_killed_process_has_aborted_what_it_had_not_prepared(tmp_path: Path) -> None:
    """Whoever opens the queue next has the messages, and the verdict over what was prepared."""
    ready = Signal()

    def work() -> None:
        queue = PersistentQueue(tmp_path / "orders", mode="exclusive", data_file_bytes=2**16)
        queue.put_many([b"one", b"two", b"three"])
        opened, prepared = queue.begin(), queue.begin()
        opened.ack(opened.receive(timeout=0))
        opened.put_many([bytes(1000)] * 100)
        prepared.ack(prepared.receive(timeout=0))
        prepared.put(b"new")
        prepared.prepare("p")
        ready.send()
        time.sleep(60)

    with child(work) as process:
        ready.wait()
        process.kill()
        assert process.wait() == -9
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        assert waiting(queue) == [b"one", b"three"]
        assert prepared_ids(queue) == ["p"]
        assert queue.commit_prepared("p") == range(3, 4)
        assert waiting(queue) == [b"one", b"three", b"new"]
        assert not list((tmp_path / "orders" / "prepared").glob("*.staging"))
    ready.close()


FORKING = """
import os, sys, warnings
from holdfast import ForkedError, PersistentQueue

warnings.filterwarnings("ignore", category=DeprecationWarning)
queue = PersistentQueue(sys.argv[1], mode="exclusive", data_file_bytes=2**16)
queue.put_many([b"one", b"two", b"three"])
spilled, prepared, acks = queue.begin(), queue.begin(), queue.begin()
spilled.put_many([b"x" * 1000] * 100)
spilled.ack(spilled.receive(timeout=0))
prepared.put(b"new")
prepared.ack(prepared.receive(timeout=0))
prepared.prepare("p")
acks.ack(acks.receive(timeout=0))
acks.prepare("a")

def tree():
    return {name: open(os.path.join(folder, name), "rb").read() for folder, _, names in os.walk(sys.argv[1])
            for name in names}

before = tree()
pid = os.fork()
if pid == 0:
    status = 1
    try:
        for tx in (spilled, prepared, acks):
            for verb in (tx.commit, tx.abort, tx.prepare, lambda: tx.put(b"y"), lambda: tx.receive(timeout=0)):
                try:
                    verb()
                except ForkedError:
                    continue
                raise AssertionError(verb)
        try:
            with spilled:
                raise SystemExit
        except SystemExit:
            pass
        assert tree() == before, "the child has changed something"
        status = 0
    finally:
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert tree() == before
spilled.commit()
prepared.commit()
acks.abort()
assert [each.payload for each in queue.peek(1000)] == [b"three"] + [b"x" * 1000] * 100 + [b"new"]
queue.close()
print("done")
"""


def test_a_forked_child_leaves_transactions_to_its_parent(tmp_path: Path) -> None:
    """Its copies answer ForkedError and touch nothing; the parent's commit as if nobody had forked."""
    assert run_script(FORKING, tmp_path / "orders") == "done\n"


def test_a_transaction_that_nobody_keeps_holds_its_messages_until_its_time_is_over() -> None:
    """Dropping it is no abort; closing the queue is."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.put(b"one")
        queue.begin().receive(timeout=0)
        assert waiting(queue) == []
    with open_queue(storage) as queue:
        assert waiting(queue) == [b"one"]


def test_beginning_on_a_closed_queue_is_refused() -> None:
    """As every other call is."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        pass
    for call in (
        queue.begin,
        queue.transaction,
        queue.prepared,
        lambda: queue.commit_prepared("t"),
        lambda: queue.abort_prepared("t"),
        lambda: holdfast.transaction(queue),
    ):
        with pytest.raises(ClosedError) as error:
            call()
        assert isinstance(error.value, HoldfastError)

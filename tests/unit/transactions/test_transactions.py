"""Transactions of one queue: puts and acknowledgements happen together at commit, or not at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Empty, FlushPolicy, PersistentQueue, RecordTooLargeError
from support.builders.transactions import cut_power, failing, kill, open_queue, waiting
from support.processes.children import Signal, child
from support.processes.threads import Threads
from support.storages.simulated_storage import SimulatedStorage

POLICIES = [FlushPolicy.every_commit(), FlushPolicy.every(commits=100), FlushPolicy.never()]


@pytest.fixture
def queue(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """Open an empty queue."""
    with open_queue(storage) as opened:
        yield opened


# -- Puts ------------------------------------------------------------------------------------------------------------


def test_puts_are_invisible_to_everybody_before_commit(queue: PersistentQueue, storage: SimulatedStorage) -> None:
    """Not by get, peek, qsize, stats, nor through a handle that looks."""
    queue.put(b"before")
    with open_queue(storage, mode="read_only") as look:
        tx = queue.begin()
        tx.put(b"a")
        tx.put_many([b"b", b"c"])
        assert waiting(queue) == waiting(look) == [b"before"]
        assert queue.qsize() == look.qsize() == queue.stats().depth == look.stats().depth == 1
        assert queue.stats().next_offset == look.stats().next_offset == 1
        assert queue.get(timeout=0) == b"before"
        with pytest.raises(Empty):
            queue.get(timeout=0)
        tx.commit()
        assert waiting(queue) == waiting(look) == [b"a", b"b", b"c"]


def test_a_consumer_in_another_process_gets_nothing_before_commit(tmp_path: Path) -> None:
    """It waits, and has everything once the transaction has committed: of the owner, or of a client."""
    opened, found = Signal(), Signal()

    def consume() -> None:
        with PersistentQueue(tmp_path / "orders", mode="shared") as consumer:
            try:
                consumer.get(timeout=0.1)
            except Empty:
                opened.send("nothing")
            found.send(repr([consumer.get(timeout=20), consumer.get(timeout=20)]))

    with PersistentQueue(tmp_path / "orders", mode="shared") as producer:
        tx = producer.begin()
        tx.put_many([b"a", b"b"])
        with child(consume) as process:
            assert opened.wait() == "nothing"
            tx.commit()
            assert found.wait() == "[b'a', b'b']"
            assert process.wait() == 0
    opened.close()
    found.close()


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_commit_returns_the_offsets_and_keeps_the_order(storage: SimulatedStorage, policy: FlushPolicy) -> None:
    """Puts have no offset before; afterwards they stand one behind the other, in the order of the calls."""
    with open_queue(storage, flush=policy) as queue:
        queue.put(b"before")
        tx = queue.begin()
        assert tx.put(b"a", headers={"n": "1"}) is None  # type: ignore[func-returns-value]
        assert tx.put_many([b"b", b"c"]) is None  # type: ignore[func-returns-value]
        tx.put(bytearray(b"d"), headers={"n": "4"})  # type: ignore[arg-type]
        queue.put(b"meanwhile")
        assert tx.commit() == range(2, 6)
        assert tx.commit() == range(2, 6), "again"
        found = queue.peek(10)
        assert [each.payload for each in found] == [b"before", b"meanwhile", b"a", b"b", b"c", b"d"]
        assert [each.headers.get("n") for each in found] == [None, None, "1", None, None, "4"]
        assert [each.offset for each in found] == list(range(6))
        assert queue.put(b"after") == 6


def test_a_clean_with_block_commits_and_an_exception_aborts(queue: PersistentQueue) -> None:
    """What the block raises comes out of it."""
    with queue.transaction() as tx:
        tx.put(b"done")
    with failing(), queue.transaction() as tx:
        tx.put(b"never")
        raise ZeroDivisionError
    assert waiting(queue) == [b"done"]


def test_a_with_block_may_decide_for_itself(queue: PersistentQueue) -> None:
    """Its end then does nothing more, not even by an exception."""
    with queue.transaction() as tx:
        tx.put(b"never")
        tx.abort()
    with failing(), queue.transaction() as tx:
        tx.put(b"done")
        tx.commit()
        raise ZeroDivisionError
    assert waiting(queue) == [b"done"]


def test_an_empty_transaction_commits_to_nothing(queue: PersistentQueue, storage: SimulatedStorage) -> None:
    """It writes nothing either."""
    queue.put(b"before")
    written = storage.mutation_count
    with queue.transaction() as tx:
        pass
    with queue.transaction() as other:
        other.put_many([])
    assert tx.commit() == other.commit() == range(1, 1)
    assert storage.mutation_count == written


def test_what_cannot_be_put_leaves_the_transaction_as_it_was(storage: SimulatedStorage) -> None:
    """Of a batch with one such payload nothing is added."""
    with open_queue(storage, record_bytes_max=100) as queue, queue.transaction() as tx:
        tx.put(b"a")
        for wrong in ("text", 7, None):
            with pytest.raises(TypeError):
                tx.put(wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                tx.put_many([b"x", wrong])  # type: ignore[list-item]
        with pytest.raises(TypeError):
            tx.put_many(b"several")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            tx.put(b"x", headers={"n": 1})  # type: ignore[dict-item]
        with pytest.raises(RecordTooLargeError):
            tx.put(bytes(101))
        with pytest.raises(RecordTooLargeError):
            tx.put_many([b"x", bytes(101)])
        tx.put(b"b")
        assert tx.commit() == range(2)
        assert waiting(queue) == [b"a", b"b"]


def test_a_transaction_larger_than_memory_should_hold_commits_as_any_other(queue: PersistentQueue) -> None:
    """What goes beyond a bound waits in a file, headers and order included."""
    contents = [(b"%03d" % number) * 500 for number in range(100)]
    tx = queue.begin()
    for number, content in enumerate(contents):
        tx.put(content, headers={"n": str(number)} if number % 3 == 0 else None)
    assert waiting(queue) == []
    assert tx.commit() == range(100)
    found = queue.peek(1000)
    assert [each.payload for each in found] == contents
    assert [each.headers.get("n") for each in found] == [str(n) if n % 3 == 0 else None for n in range(100)]


@pytest.mark.parametrize("count", [3, 100], ids=["in memory", "in a file"])
def test_an_aborted_transaction_never_comes_back(storage: SimulatedStorage, count: int) -> None:
    """Not now, and not after a restart; it leaves nothing on the disk."""
    queue = open_queue(storage)
    queue.put(b"before")
    tx = queue.begin()
    tx.put_many([bytes(1000)] * count)
    tx.abort()
    tx.abort()
    assert waiting(queue) == [b"before"]
    after = kill(storage, queue)
    with open_queue(after) as queue:
        assert waiting(queue) == [b"before"]
        assert queue.prepared() == []
        assert not [path for path in after.tree() if path.suffix in {".staging", ".batch"}]


@pytest.mark.parametrize("count", [3, 100], ids=["in memory", "in a file"])
def test_the_death_of_the_process_aborts_what_was_not_prepared(storage: SimulatedStorage, count: int) -> None:
    """Puts are gone, also from the disk; messages taken are ready again."""
    queue = open_queue(storage)
    queue.put_many([b"one", b"two"])
    tx = queue.begin()
    tx.ack(tx.receive(timeout=0))
    tx.put_many([bytes(1000)] * count)
    after = kill(storage, queue)
    with open_queue(after) as queue:
        assert waiting(queue) == [b"one", b"two"]
        assert not [path for path in after.tree() if path.suffix == ".staging"]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("count", [3, 100], ids=["in memory", "in a file"])
def test_a_commit_of_puts_and_acks_survives_a_power_loss(
    storage: SimulatedStorage, policy: FlushPolicy, count: int
) -> None:
    """Whatever the flush policy: a decision is always synced."""
    queue = open_queue(storage, flush=policy)
    queue.put_many([b"one", b"two"])
    queue.flush()
    with queue.transaction() as tx:
        tx.ack(tx.receive(timeout=0))
        tx.put_many([b"x" * 1000] * count)
    with open_queue(cut_power(storage, queue)) as queue:
        assert waiting(queue) == [b"two", *[b"x" * 1000] * count]


# -- Several at once -------------------------------------------------------------------------------------------------


def test_concurrent_transactions_are_independent(queue: PersistentQueue, threads: Threads) -> None:
    """Each thread's batch stands together; those of the aborted ones are nowhere."""

    def work(number: int) -> None:
        for turn in range(20):
            tx = queue.begin()
            tx.put_many([b"%d %d" % (number, turn)] * 3)
            if turn % 4:
                tx.commit()
            else:
                tx.abort()

    for number in range(4):
        threads.start(lambda number=number: work(number))  # type: ignore[misc]
    threads.join()
    found = waiting(queue)
    assert len(found) == 4 * 15 * 3
    batches = [found[at : at + 3] for at in range(0, len(found), 3)]
    assert all(len(set(batch)) == 1 for batch in batches), "a batch was torn apart"
    assert {batch[0] for batch in batches} == {b"%d %d" % (n, turn) for n in range(4) for turn in range(20) if turn % 4}


def test_one_that_waits_for_a_message_holds_up_nobody(queue: PersistentQueue, threads: Threads) -> None:
    """Other transactions put, take and commit meanwhile; plain puts and takes go on."""
    waiter = queue.begin(timeout=30)
    received: list[bytes] = []
    thread = threads.start(lambda: received.append(waiter.receive(timeout=20).payload))
    with queue.transaction() as tx:
        tx.put_many([b"first", b"second", b"third"])
    thread.join(5)
    assert not thread.is_alive()
    taken = queue.get(timeout=1)
    with queue.transaction() as tx:
        message = tx.receive(timeout=1)
        tx.ack(message)
    assert {*received, taken, message.payload} == {b"first", b"second", b"third"}
    waiter.abort()
    assert waiting(queue) == received

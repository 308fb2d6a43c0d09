"""One large message in pieces: written as they come, never in memory as a whole, and nothing of it before commit."""

import errno
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import (
    DiskFullError,
    PersistentQueue,
    RecordTooLargeError,
    Transaction,
    TransactionStateError,
    UsageError,
)
from support.builders.transactions import cut_power, open_queue, waiting
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

MIB = 2**20


@pytest.fixture
def queue(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """Open an empty queue."""
    with open_queue(storage) as opened:
        yield opened


def broken(*pieces: bytes) -> Iterator[bytes]:
    """Yield pieces, then fail."""
    yield from pieces
    raise ZeroDivisionError


@pytest.mark.parametrize("pieces", [[], [b""], [b"one"], [b"a", b"", b"bc"], [bytes(5000)] * 9], ids=len)
def test_a_stream_is_a_put_of_all_its_pieces(queue: PersistentQueue, pieces: list[bytes]) -> None:
    """Headers too; it returns the size, and commit the offset."""
    with queue.transaction() as tx:
        assert tx.put_stream(pieces, headers={"k": "v"}) == sum(map(len, pieces))
        assert waiting(queue) == []
    queue.put(b"".join(pieces), headers={"k": "v"})
    streamed, plain = queue.peek(2)
    assert streamed.payload == plain.payload
    assert streamed.headers == plain.headers == {"k": "v"}
    assert (streamed.offset, plain.offset) == (0, 1)


def test_pieces_may_be_anything_bytes_like(queue: PersistentQueue) -> None:
    """Of any size of item, and with gaps."""
    with queue.transaction() as tx:
        tx.put_stream(iter([bytearray(b"ab"), memoryview(b"cd"), memoryview(b"e-f-")[::2]]))
    assert waiting(queue) == [b"abcdef"]


@pytest.mark.parametrize("large", [False, True])
def test_puts_before_and_after_keep_their_order(queue: PersistentQueue, large: bool) -> None:
    """Whatever waits in memory, and whatever in the file."""
    fill = bytes(20_000) if large else b""
    contents = [b"before" + fill, b"many" + fill, b"stream" + fill, b"after" + fill, b"second stream", b"last" + fill]
    tx = queue.begin()
    tx.put(contents[0], headers={"n": "0"})
    tx.put_many([contents[1]])
    tx.put_stream([contents[2][:3], contents[2][3:]], headers={"n": "2"})
    tx.put(contents[3])
    tx.put_stream([contents[4]])
    tx.put(contents[5], headers={"n": "5"})
    assert tx.commit() == range(6)
    found = queue.peek(10)
    assert [each.payload for each in found] == contents
    assert [each.headers.get("n") for each in found] == ["0", None, "2", None, None, "5"]


def test_a_producer_that_raises_leaves_nothing_of_its_message(queue: PersistentQueue) -> None:
    """The transaction continues."""
    tx = queue.begin()
    tx.put(b"before")
    for pieces in ([], [b"a"], [bytes(2 * MIB)], [bytes(100_000)] * 30):
        with pytest.raises(ZeroDivisionError):
            tx.put_stream(broken(*pieces))
    tx.put_stream([b"whole"])
    tx.put(b"after")
    assert tx.commit() == range(3)
    assert waiting(queue) == [b"before", b"whole", b"after"]


def test_it_is_bounded(storage: SimulatedStorage) -> None:
    """By the queue's bound or by the call's own; the transaction continues."""
    with open_queue(storage, record_bytes_max=1000) as queue:
        tx = queue.begin()
        with pytest.raises(RecordTooLargeError) as error:
            tx.put_stream([bytes(500)] * 3)
        assert (error.value.size_bytes, error.value.max_bytes) == (1500, 1000)
        with pytest.raises(RecordTooLargeError):
            tx.put_stream([b"abc"], max_bytes=2)
        assert tx.put_stream([b"ab"], max_bytes=2) == 2
        assert tx.put_stream([bytes(500)] * 3, max_bytes=1500) == 1500
        assert tx.commit() == range(2)
        assert waiting(queue) == [b"ab", bytes(1500)]


def test_an_endless_producer_is_stopped_at_the_bound(queue: PersistentQueue) -> None:
    """It is asked for no more than one piece too many."""
    asked = 0

    def endless() -> Iterator[bytes]:
        nonlocal asked
        while True:
            asked += 1
            yield bytes(1000)

    tx = queue.begin()
    with pytest.raises(RecordTooLargeError):
        tx.put_stream(endless(), max_bytes=10_000)
    assert asked == 11


def test_pieces_of_text_are_refused(queue: PersistentQueue) -> None:
    """Also a string in the place of the pieces, and numbers; bytes themselves are numbers when taken apart."""
    tx = queue.begin()
    for wrong in (["text"], [b"good", "text"], "text", [1], b"bytes"):
        with pytest.raises(TypeError, match="bytes-like"):
            tx.put_stream(wrong)
    with pytest.raises(TypeError):
        tx.put_stream([b"x"], headers={"k": 1})  # type: ignore[dict-item]
    assert tx.commit() == range(0)
    assert waiting(queue) == []


def test_a_stream_that_only_one_crash_separates_from_its_commit_is_gone(storage: SimulatedStorage) -> None:
    """And leaves no file; committed, it survives a loss of power."""
    queue = open_queue(storage)
    tx = queue.begin()
    tx.put_stream([bytes(1000)] * 100)
    before = storage.crash_keeping_all()
    tx.commit()
    with open_queue(cut_power(storage, queue)) as queue:
        assert waiting(queue) == [bytes(100_000)]
    with open_queue(before) as queue:
        assert waiting(queue) == []
        assert not [path for path in before.tree() if path.suffix == ".staging"]


def test_a_disk_that_is_full_leaves_the_transaction_usable(queue: PersistentQueue, storage: SimulatedStorage) -> None:
    """The room that the message took is given back."""
    tx = queue.begin()
    tx.put_stream([b"first"])
    storage.faults = FaultPlan(2, error=errno.ENOSPC, forever=True, verbs=frozenset({"write_at"}))
    with pytest.raises(DiskFullError):
        tx.put_stream([bytes(MIB)] * 5)
    storage.faults = None
    (staged,) = [content for path, content in storage.tree().items() if path.suffix == ".staging"]
    assert staged is not None
    assert len(staged) < MIB
    tx.put(b"second")
    assert tx.commit() == range(2)
    assert waiting(queue) == [b"first", b"second"]


def reenter_by_stream(tx: Transaction) -> Iterator[bytes]:
    """Begin a stream in the middle of another."""
    yield b"a"
    tx.put_stream([b"inner"])
    yield b"b"


def reenter_by_put(tx: Transaction) -> Iterator[bytes]:
    """Put more than fits into memory in the middle of a stream."""
    yield b"a"
    tx.put_many([bytes(20_000)])
    yield b"b"


def reenter_by_commit(tx: Transaction) -> Iterator[bytes]:
    """Commit in the middle of a stream."""
    yield b"a"
    tx.commit()
    yield b"b"


@pytest.mark.parametrize("producer", [reenter_by_stream, reenter_by_put, reenter_by_commit])
def test_a_producer_cannot_use_the_transaction_that_reads_it(queue: PersistentQueue, producer) -> None:  # type: ignore[no-untyped-def]
    """Nothing gets between the pieces of a message; the transaction continues."""
    tx = queue.begin()
    tx.put(b"before")
    with pytest.raises(UsageError, match="put_stream"):
        tx.put_stream(producer(tx))
    tx.put_stream([b"after"])
    assert tx.commit() == range(2)
    assert waiting(queue) == [b"before", b"after"]


def test_a_producer_may_take_messages_in_the_transaction(queue: PersistentQueue) -> None:
    """As a pipeline does that joins many messages into one."""
    queue.put_many([b"a", b"b", b"c"])
    with queue.transaction() as tx:

        def joined() -> Iterator[bytes]:
            for _ in range(3):
                with tx.receive(timeout=0) as message:
                    yield message.payload

        tx.put_stream(joined())
    assert waiting(queue) == [b"abc"]


def test_a_transaction_that_was_aborted_takes_no_stream(queue: PersistentQueue) -> None:
    """Its producer is not even asked."""
    tx = queue.begin()
    tx.abort()
    with pytest.raises(TransactionStateError):
        tx.put_stream(broken())


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """24 MiB pass through a few; a large transaction of small puts does too."""
    piece = bytes(MIB // 4)
    with PersistentQueue(
        tmp_path / "orders", mode="exclusive", data_file_bytes=MIB, record_bytes_max=32 * MIB
    ) as queue:
        tracemalloc.start()
        try:
            tx = queue.begin()
            tx.put_stream(piece for _ in range(96))
            for number in range(2000):
                tx.put(b"%06d" % number + bytes(4090))
            tx.commit()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 6 * MIB
        assert len(queue.get(timeout=0)) == 24 * MIB

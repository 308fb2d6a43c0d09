"""Transactions on a real full disk: prepare says so, and what is prepared needs no room to be decided."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty

import pytest

from holdfast import DiskFullError, PersistentQueue, Transaction, TransactionStateError
from support.builders.transactions import prepared_ids, waiting
from support.storages.small_disk import small_disk, take_all_room

FILE_BYTES = 256 * 2**10
DISK_BYTES = 3 * 2**20
LARGE = [b"%03d" % number + bytes(997) for number in range(200)]
KINDS = ("puts", "acks", "both", "large")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    with small_disk(tmp_path / "disk", DISK_BYTES) as place:
        yield place


def open_queue(disk: Path) -> PersistentQueue:
    """Open the queue that lives on the small disk."""
    return PersistentQueue(disk / "orders", mode="exclusive", data_file_bytes=FILE_BYTES)


def prepare(queue: PersistentQueue, kind: str) -> list[bytes]:
    """Prepare a transaction of one kind; return what it puts."""
    tx = queue.begin()
    puts = {"acks": [], "large": LARGE}.get(kind, [b"new"])
    if kind in ("acks", "both"):
        tx.ack(tx.receive(timeout=0))
    tx.put_many(puts)
    tx.prepare("t")
    return puts


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_committing_what_is_prepared_takes_no_room(disk: Path, kind: str, restarts: bool) -> None:
    """What waits in the log has a reserve, and a file of its own is adopted; the answer is remembered too."""
    queue = open_queue(disk)
    queue.put_many([b"one", b"two"])
    puts = prepare(queue, kind)
    other = take_all_room(disk)
    if restarts:
        queue.close()
        queue = open_queue(disk)
    assert len(queue.commit_prepared("t")) == len(puts)
    left = [b"one", b"two"][kind in ("acks", "both") :]
    assert waiting(queue) == [*left, *puts]
    queue.commit_prepared("t")
    queue.close()
    with open_queue(disk) as queue:
        assert waiting(queue) == [*left, *puts]
        queue.commit_prepared("t")
        other.unlink()
        queue.put(b"after")
        assert waiting(queue)[-1] == b"after"


def test_space_that_comes_back_is_reserved_again_before_puts_get_any(tmp_path: Path) -> None:
    """Consumers make room, and producers take it: what is prepared has its own all the same."""
    with small_disk(tmp_path / "large", 8 * 2**20) as disk:
        queue = PersistentQueue(disk / "orders", mode="exclusive", data_file_bytes=FILE_BYTES)
        ids = [prepare_puts(queue, b"p" * 1000) for _ in range(60)]
        put_till_full(queue)
        take_all_room(disk)
        put_till_full(queue)
        for each in ids:
            assert len(queue.commit_prepared(each)) == 1
            queue.get_many(400)
            put_till_full(queue)
        queue.close()


@pytest.mark.parametrize("size", [50, 5000])
def test_what_an_opening_has_moved_is_committed_on_a_full_disk(disk: Path, size: int) -> None:
    """It is adopted, and the data file before it can be sealed."""
    with open_queue(disk) as queue:
        queue.put(b"one")
        transaction_id = prepare_puts(queue, b"p" * size)
    with open_queue(disk) as queue:
        take_all_room(disk)
        put_till_full(queue)
        assert len(queue.commit_prepared(transaction_id)) == 1


def test_an_opening_on_a_full_disk_moves_nothing(disk: Path) -> None:
    """What waits is committed where it is, though a little space was left."""
    queue = PersistentQueue(disk / "orders", mode="exclusive")
    queue.put_many([bytes(1000)] * 100)
    ids = [prepare_puts(queue, b"p" * 2000) for _ in range(20)]
    queue.close()
    other = take_all_room(disk)
    os.truncate(other, other.stat().st_size - 40_000)
    with PersistentQueue(disk / "orders", mode="exclusive") as queue:
        assert not list((disk / "orders" / "prepared").glob("*.batch"))
        for each in ids:
            assert len(queue.commit_prepared(each)) == 1
            put_till_full(queue)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("sizes", [(50,) * 20, (2000,) * 10, (300_000, 50, 50, 50), (70_000, 5000)])
def test_all_that_is_prepared_is_committed_though_puts_take_what_they_can(
    tmp_path: Path, sizes: tuple[int, ...], restarts: bool
) -> None:
    """What is given back for one transaction serves no put: each has its own reserve, of whatever size."""
    with small_disk(tmp_path / "large", 24 * 2**20) as disk:
        queue = PersistentQueue(disk / "orders", mode="exclusive")
        ids = [prepare_puts(queue, b"p" * size) for size in sizes * 10]
        put_till_full(queue)
        take_all_room(disk)
        put_till_full(queue)
        if restarts:
            queue.close()
            queue = PersistentQueue(disk / "orders", mode="exclusive")
        assert prepared_ids(queue) == ids
        for each in reversed(ids):
            assert len(queue.commit_prepared(each)) == 1
            put_till_full(queue)
        queue.close()
        with PersistentQueue(disk / "orders", mode="exclusive") as again:
            assert prepared_ids(again) == []
            drained: list[bytes] = []
            with suppress(Empty):
                while True:
                    drained += again.get_many(1000, timeout=0)
            assert sorted(len(each) for each in drained if each.startswith(b"p")) == sorted(sizes * 10)


def prepare_puts(queue: PersistentQueue, payload: bytes) -> str:
    """Prepare a put in the prepared log; return the id."""
    tx = queue.begin()
    tx.put(payload)
    return tx.prepare()


def put_till_full(queue: PersistentQueue) -> None:
    """Put until the disk refuses."""
    for size in (1000, 10):
        with suppress(DiskFullError):
            while True:
                queue.put(bytes(size))


def test_a_disk_without_space_for_a_larger_segment_takes_a_smaller_one(tmp_path: Path) -> None:
    """Segments grow while they fill up; what prepares little needs little."""
    with small_disk(tmp_path / "large", 11 * 2**20) as disk:
        queue = PersistentQueue(disk / "orders", mode="exclusive")
        for _ in range(1500):
            queue.commit_prepared(prepare_puts(queue, bytes(2000)))
            queue.get()
        queue.close()


@pytest.mark.parametrize("kind", KINDS)
def test_aborting_what_is_prepared_takes_no_room_and_gives_some_back(disk: Path, kind: str) -> None:
    """The answer is remembered too."""
    with open_queue(disk) as queue:
        queue.put_many([b"one", b"two"])
        prepare(queue, kind)
        take_all_room(disk)
        queue.abort_prepared("t")
        queue.abort_prepared("t")
        with pytest.raises(TransactionStateError):
            queue.commit_prepared("t")
        assert waiting(queue) == [b"one", b"two"]


def test_a_batch_that_fits_nowhere_else_gets_a_data_file_however_small(disk: Path) -> None:
    """A data file that is full, and a disk that has no room for the next one."""
    with open_queue(disk) as queue:
        queue.put(b"one")
        prepare(queue, "both")
        other = take_all_room(disk)
        for size in (1000, 0):
            with suppress(DiskFullError):
                while True:
                    queue.put(bytes(size))
        refused = queue.stats().next_offset
        assert refused > 100, "the data file was not reserved"
        before = {path.name for path in (disk / "orders" / "data").iterdir()}
        assert queue.commit_prepared("t") == range(refused, refused + 1)
        newest = max((disk / "orders" / "data").iterdir())
        assert newest.name not in before, "it was to have another"
        other.unlink()
        assert len(waiting(queue)) == refused


@pytest.mark.parametrize("verb", ["put", "put_stream", "prepare"])
def test_no_room_is_a_clear_error_and_costs_the_room_nothing(disk: Path, verb: str) -> None:
    """The transaction can be aborted, or is; what it had taken of the disk is given back, and the queue continues."""
    with open_queue(disk) as queue:
        queue.put_many([b"one", b"two"])
        assert queue.get() == b"one"
        other = take_all_room(disk)
        tx = queue.begin()
        tx.ack(tx.receive(timeout=0))
        calls: dict[str, Callable[[], object]] = {
            "put": lambda: tx.put_many(LARGE * 10),
            "put_stream": lambda: tx.put_stream([bytes(100_000)] * 30),
            "prepare": lambda: tx.prepare("t"),
        }
        if verb == "prepare":
            tx.put(b"new")
        with pytest.raises(DiskFullError, match="free disk space") as error:
            calls[verb]()
        assert str(disk) in str(error.value)
        tx.abort()
        assert waiting(queue) == [b"two"]
        assert prepared_ids(queue) == []
        assert queue.get(timeout=0) == b"two"
        other.unlink()
        prepare(queue, "large")
        assert queue.commit_prepared("t") == range(2, 202)


def put_and_commit(tx: Transaction, payloads: list[bytes]) -> None:
    """Put, and commit: where there is no room either says so."""
    tx.put_many(payloads)
    tx.commit()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_commit_that_finds_no_room_has_not_happened_and_one_that_only_acknowledges_needs_none(
    disk: Path, restarts: bool
) -> None:
    """What it took comes again, what it put is nowhere, and draining by transactions makes the room that it needs."""
    queue = open_queue(disk)
    put = []
    with suppress(DiskFullError):
        while True:
            queue.put(b"%06d" % len(put) + bytes(994))
            put.append(b"%06d" % len(put) + bytes(994))
    assert len(put) > 1000
    for payloads in ([bytes(1000)], LARGE):
        tx = queue.begin()
        tx.ack(tx.receive(timeout=0))
        with pytest.raises(DiskFullError):
            put_and_commit(tx, payloads)
        tx.abort()
    if restarts:
        queue.close()
        queue = open_queue(disk)
    taken = []
    while queue.qsize():
        with queue.transaction() as tx:
            for _ in range(min(50, queue.qsize())):
                delivery = tx.receive(timeout=0)
                tx.ack(delivery)
                taken.append(delivery.payload)
    assert taken == put
    with queue.transaction() as tx:
        tx.put_many(LARGE)
    assert waiting(queue) == LARGE
    queue.close()

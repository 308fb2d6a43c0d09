"""Transactions on a real full disk: prepare says so, and what is prepared needs no room to be decided."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

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
    """Where a copy has no room the file itself is adopted; the answer is remembered too."""
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


def test_a_batch_that_fits_nowhere_else_is_adopted_however_small(disk: Path) -> None:
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
        assert newest.name not in before, "it was to be adopted"
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

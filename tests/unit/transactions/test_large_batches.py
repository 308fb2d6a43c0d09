"""Large transactions: their file becomes a data file as it is; nothing is copied."""

from pathlib import Path

import pytest

from holdfast import PersistentQueue, verify
from holdfast.queue.owner.owned_queue import PAYLOAD_BYTES_MAX
from support.builders.transactions import FILE_BYTES, cut_power, open_queue, waiting
from support.processes.children import Signal, child
from support.storages.simulated_storage import SimulatedStorage

SMALL = [b"%02d" % number + bytes(998) for number in range(10)]
LARGE = [b"%02d" % number + bytes(998) for number in range(40)]


def open_real(path: Path, mode: str = "exclusive") -> PersistentQueue:
    """Open a queue in a real directory."""
    return PersistentQueue(path, mode=mode, data_file_bytes=FILE_BYTES)


def data_files(path: Path) -> list[Path]:
    """Return the data files in log order."""
    return sorted((path / "data").iterdir())


def prepare(queue: PersistentQueue, puts: list[bytes], name: str = "t") -> None:
    """Prepare these puts, and the next message as acknowledged."""
    tx = queue.begin()
    tx.ack(tx.receive(timeout=0))
    tx.put_many(puts)
    tx.prepare(name)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("puts", [SMALL, LARGE], ids=["small", "large"])
def test_a_prepared_batch_of_more_than_a_quarter_of_a_data_file_is_renamed(
    tmp_path: Path, puts: list[bytes], restarts: bool
) -> None:
    """A smaller one is copied, from the prepared log or, behind a restart, from a file."""
    path = tmp_path / "orders"
    queue = open_real(path)
    queue.put_many([b"one", b"two"])
    prepare(queue, puts)
    file = path / "prepared" / "t.batch"
    assert file.exists() == (puts is LARGE)
    inode = file.stat().st_ino if file.exists() else 0
    if restarts:
        queue.close()
        queue = open_real(path)
    assert queue.commit_prepared("t") == range(2, 2 + len(puts))
    is_renamed = inode in [each.stat().st_ino for each in data_files(path)]
    assert is_renamed == (puts is LARGE)
    assert not file.exists()
    assert queue.put(b"after") == 2 + len(puts)
    assert waiting(queue) == [b"two", *puts, b"after"]
    queue.close()
    assert verify(path).ok
    with open_real(path) as queue:
        assert waiting(queue) == [b"two", *puts, b"after"]
        assert queue.get_many(1000) == [b"two", *puts, b"after"]


def test_a_large_transaction_that_was_not_prepared_is_renamed_too(tmp_path: Path) -> None:
    """Its puts are in a file already."""
    path = tmp_path / "orders"
    with open_real(path) as queue:
        tx = queue.begin()
        tx.put_many(LARGE)
        (staged,) = (path / "prepared").glob("*.staging")
        inode = staged.stat().st_ino
        tx.commit()
        assert [each.stat().st_ino for each in data_files(path)][-1] == inode


def test_an_adopted_batch_larger_than_a_data_file_stays_whole(tmp_path: Path) -> None:
    """It is one file, however large."""
    path = tmp_path / "orders"
    with open_real(path) as queue:
        queue.put(b"one")
        prepare(queue, LARGE * 10)
        before = len(data_files(path))
        queue.commit_prepared("t")
        assert len(data_files(path)) == before + 1
        assert data_files(path)[-1].stat().st_size > 5 * FILE_BYTES
        assert waiting(queue) == LARGE * 10


@pytest.mark.parametrize("count", [1, 3])
def test_decisions_that_have_not_ended_are_carried_into_an_adopted_file(count: int) -> None:
    """A loss of power behind the adoption loses no acknowledgement of the transactions before it."""
    storage = SimulatedStorage()
    queue = open_queue(storage)
    queue.put_many([b"%d" % number for number in range(6)])
    prepare(queue, LARGE)
    for _ in range(count):
        with queue.transaction() as tx:
            tx.ack(tx.receive(timeout=0))
            tx.put(b"result")
    queue.commit_prepared("t")
    with open_queue(cut_power(storage, queue)) as queue:
        left = [b"%d" % number for number in range(1 + count, 6)]
        assert waiting(queue) == [*left, *[b"result"] * count, *LARGE]
        assert queue.put(b"after") == 6 + count + len(LARGE)
        assert queue.recovery.damage == ()


def test_several_adoptions_in_a_row(tmp_path: Path) -> None:
    """Each file names the one before it."""
    path = tmp_path / "orders"
    with open_real(path) as queue:
        for number in range(4):
            tx = queue.begin()
            tx.put_many(LARGE)
            tx.prepare(f"t{number}")
        for number in (2, 0, 3, 1):
            queue.commit_prepared(f"t{number}")
    assert verify(path).ok
    with open_real(path) as queue:
        assert waiting(queue) == LARGE * 4


@pytest.mark.parametrize("puts", [LARGE, [bytes(PAYLOAD_BYTES_MAX + 1)] * 3], ids=["many", "large ones"])
def test_a_consumer_in_another_process_reads_an_adopted_file(tmp_path: Path, puts: list[bytes]) -> None:
    """Once it is committed, and not before; from the owner of the queue, and from the log itself."""
    path = tmp_path / "orders"
    ready = Signal()

    def consume() -> None:
        with open_real(path, "shared") as consumer:
            ready.send()
            found: list[bytes] = []
            while len(found) < 2 + len(puts):
                found += consumer.get_many(100, timeout=20)
            assert found == [b"one", *puts, b"last"]

    with open_real(path, "shared") as producer:
        assert producer.is_owner
        producer.put(b"one")
        tx = producer.begin()
        tx.put_many(puts)
        tx.prepare("t")
        with child(consume) as process:
            ready.wait()
            tx.commit()
            producer.put(b"last")
            assert process.wait() == 0
    ready.close()

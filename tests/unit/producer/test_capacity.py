"""maxsize and max_bytes: producers wait for room, here and across processes, or get queue.Full."""

import queue as standard
import time
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import (
    ConfigError,
    Full,
    PersistentQueue,
    RecordTooLargeError,
)
from holdfast.queue.options.queue_options import Mode
from support.processes.children import Signal, child
from support.processes.threads import Threads

FILE_BYTES = 16 * 2**10


def test_a_full_queue_blocks_put_until_something_is_finished(tmp_path: Path, threads: Threads) -> None:
    """Without waiting, or once the time is over, the answer is queue.Full and nothing is written."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", maxsize=3) as queue:
        queue.put_many([b"a", b"b"])
        assert not queue.full()
        queue.put(b"c")
        assert queue.full()
        for call in (
            lambda: queue.put_nowait(b"d"),
            lambda: queue.put(b"d", timeout=0.05),
            lambda: queue.put_many([b"d"], timeout=0),
        ):
            with pytest.raises(standard.Full):
                call()
        delivery = queue.receive()
        with pytest.raises(Full):
            queue.put_nowait(b"d")  # in flight is not finished
        putter = threads.start(lambda: queue.put(b"d", timeout=20))
        delivery.ack()
        putter.join(10)
        assert [message.payload for message in queue.peek(10)] == [b"b", b"c", b"d"]
        with pytest.raises(RecordTooLargeError):
            queue.put_many([b"1", b"2", b"3", b"4"])


def test_max_bytes_blocks_put_until_a_data_file_is_retired(tmp_path: Path, threads: Threads) -> None:
    """Data files never take more than was allowed."""
    max_bytes = 3 * FILE_BYTES
    with PersistentQueue(
        tmp_path / "orders", mode="exclusive", data_file_bytes=FILE_BYTES, max_bytes=max_bytes
    ) as queue:
        count = 0
        with suppress(Full):
            while count < 1000:
                queue.put(bytes(1000), timeout=0)
                count += 1
        assert 30 < count < 48
        assert queue.stats().bytes_on_disk <= max_bytes
        putter = threads.start(lambda: queue.put(bytes(1000), timeout=20))
        time.sleep(0.1)
        assert putter.is_alive()
        assert len(queue.get_many(count, timeout=0)) > 0
        while putter.is_alive():
            queue.get_many(100, timeout=0.1)
        assert queue.stats().bytes_on_disk <= max_bytes
    with pytest.raises(ConfigError):
        PersistentQueue(tmp_path / "other", mode="exclusive", data_file_bytes=FILE_BYTES, max_bytes=FILE_BYTES)


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_max_bytes_bounds_a_transaction_that_finishes_as_many_messages_as_it_puts(tmp_path: Path, mode: Mode) -> None:
    """Their data files are there still; and one that only acknowledges needs no space."""
    max_bytes = 2 * FILE_BYTES
    with PersistentQueue(tmp_path / "q", mode=mode, data_file_bytes=FILE_BYTES, max_bytes=max_bytes) as queue:
        with suppress(Full):
            while True:
                queue.put(bytes(1000), timeout=0)
        with queue.transaction(timeout=5) as tx:
            tx.ack(tx.receive(timeout=0))
        tx = queue.begin(timeout=1)
        tx.ack(tx.receive(timeout=0))
        tx.put(bytes(1000))
        with pytest.raises(Full):
            tx.commit()
        assert queue.stats().bytes_on_disk <= max_bytes


def test_a_transaction_that_frees_its_own_space_commits_above_a_bound_that_was_lowered(tmp_path: Path) -> None:
    """It makes nothing worse."""
    with PersistentQueue(tmp_path / "q", mode="exclusive", maxsize=3) as queue:
        queue.put_many([b"a", b"b", b"c"])
        queue.configure(maxsize=1)
        with queue.transaction() as tx:
            tx.ack(tx.receive(timeout=0))
            tx.put(b"d")
        assert queue.get_many(9, timeout=0) == [b"b", b"c", b"d"]


@pytest.mark.parametrize("owner", ["producer", "consumer"])
@pytest.mark.parametrize("bound", ["maxsize", "max_bytes"])
def test_a_producer_waits_for_a_consumer_in_another_process(tmp_path: Path, bound: str, owner: str) -> None:
    """What that one finishes makes room here, whichever of them owns the queue."""
    path = tmp_path / "orders"
    bounds = {"maxsize": {"maxsize": 40}, "max_bytes": {"max_bytes": 2 * FILE_BYTES}}[bound]
    queue = PersistentQueue(
        path,
        mode="shared",
        can_own=owner == "producer",
        data_file_bytes=FILE_BYTES,
        **bounds,  # type: ignore[arg-type]
    )
    opened, go, done = Signal(), Signal(), Signal()

    def consume() -> None:
        with PersistentQueue(path, mode="shared", can_own=owner == "consumer") as consumer:
            assert consumer.get(timeout=20) is not None
            assert consumer.is_owner == (owner == "consumer")
            opened.send()
            go.wait()
            for number in range(1, 200):
                assert int(consumer.get(timeout=20)[:4]) == number
            done.send()

    queue.put(b"%04d" % 0 + bytes(1000))
    with child(consume) as process:
        opened.wait()
        number = 1
        with suppress(Full):
            while number < 200:
                queue.put(b"%04d" % number + bytes(1000), timeout=0.2)
                number += 1
        assert 10 < number < 60
        go.send()
        while number < 200:
            queue.put(b"%04d" % number + bytes(1000), timeout=20)
            number += 1
        done.wait()
        assert process.wait() == 0
    for signal in (opened, go, done):
        signal.close()
    queue.close()

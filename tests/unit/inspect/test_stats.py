"""``stats()``: what a queue says of itself, for metrics and for people."""

import dataclasses
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import FlushPolicy, PersistentQueue, QueueStats
from holdfast.persistence.format.constants import FRAMES_START
from support.builders.clocks import FakeClock
from support.processes.children import Child

FILE_BYTES = 16 * 2**10
FIGURES_AGE_SECONDS = 0.11  # what another process has done with data files may be 0.1 seconds old


def disk_bytes(path: Path) -> int:
    """Return what the data files take."""
    return sum(file.stat().st_size for file in (path / "data").iterdir())


def test_a_new_queue_has_nothing(tmp_path: Path) -> None:
    """All figures are zero, and there is no oldest message."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        assert queue.stats() == QueueStats(
            depth=0,
            in_flight=0,
            leased=0,
            oldest_age_seconds=None,
            clock_back_seconds=0.0,
            bytes_on_disk=0,
            file_count=0,
            first_offset=0,
            next_offset=0,
            recovered=0,
            lost=0,
            delayed=0,
            dead=0,
            dropped=0,
            filtered=0,
            filter_failed=0,
            paused=None,
            dedup_forgotten=0,
            skipped=0,
            oldest_prepared_seconds=None,
        )


def test_stats_are_a_frozen_dataclass(tmp_path: Path) -> None:
    """A snapshot, which does not change under whoever holds it."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        stats = queue.stats()
        queue.put(b"x")
        assert stats.next_offset == 0
        with pytest.raises(dataclasses.FrozenInstanceError):
            stats.depth = 1  # type: ignore[misc]
        assert dataclasses.asdict(queue.stats())["depth"] == 1


def test_depth_counts_what_is_in_flight_and_qsize_what_can_be_taken(tmp_path: Path) -> None:
    """Acknowledging takes a message out of both."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put_many([b"x"] * 10)
        queue.get_many(2)
        batch = queue.receive_many(3)
        stats = queue.stats()
        assert (stats.depth, stats.in_flight, queue.qsize()) == (8, 3, 5)
        batch.ack([batch[1]])
        batch.nack([batch[0]], delay=0)
        stats = queue.stats()
        assert (stats.depth, stats.in_flight, queue.qsize()) == (7, 1, 6)
        batch.nack(delay=60)
        stats = queue.stats()
        assert (stats.depth, stats.in_flight, stats.delayed, queue.qsize()) == (7, 0, 1, 6)
        queue.receive().reject("no use")
        stats = queue.stats()
        assert (stats.depth, stats.in_flight, stats.dead, queue.qsize()) == (6, 0, 1, 5)
        assert (stats.first_offset, stats.next_offset) == (0, 10)


@pytest.mark.parametrize("mode", ["exclusive", "shared", "read_only"])
def test_bytes_and_files_are_those_on_the_disk(tmp_path: Path, mode: str) -> None:
    """Reserved space counts, retired files do not; every mode of opening says the same."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        for _ in range(100):
            queue.put(bytes(1000))
        assert queue.stats().bytes_on_disk == disk_bytes(path)
        assert queue.stats().file_count == len(list((path / "data").iterdir())) > 5
        for _ in range(80):
            queue.get()
        stats = queue.stats()
        assert stats.bytes_on_disk == disk_bytes(path)
        assert 0 < stats.first_offset <= 80
        assert stats.next_offset == 100
    with PersistentQueue(path, mode=mode) as queue:
        stats = queue.stats()
        assert stats.bytes_on_disk == disk_bytes(path)
        assert stats.file_count == len(list((path / "data").iterdir()))
        assert stats.next_offset == 100
        assert stats.depth == 20


def test_a_second_handle_sees_files_come_and_go(tmp_path: Path) -> None:
    """A consumer's figures follow a producer in another handle, and the other way round."""
    path = tmp_path / "orders"
    with (
        PersistentQueue(path, mode="shared", data_file_bytes=FILE_BYTES) as producer,
        PersistentQueue(path, mode="shared", data_file_bytes=FILE_BYTES) as consumer,
    ):
        for _ in range(100):
            producer.put(bytes(1000))
        time.sleep(FIGURES_AGE_SECONDS)
        assert consumer.stats().bytes_on_disk == producer.stats().bytes_on_disk == disk_bytes(path)
        assert consumer.stats().depth == 100
        for _ in range(100):
            consumer.get(timeout=5)
        time.sleep(FIGURES_AGE_SECONDS)
        assert consumer.stats().bytes_on_disk == producer.stats().bytes_on_disk == disk_bytes(path) <= 2 * FILE_BYTES
        assert consumer.stats().depth == 0


def test_the_oldest_age_is_that_of_the_oldest_unfinished_message(tmp_path: Path) -> None:
    """In flight is not finished; a clock that goes backwards makes no age negative."""
    clock = FakeClock()
    with PersistentQueue(tmp_path / "orders", mode="exclusive", clock=clock) as queue:
        queue.put(b"old")
        clock.advance(10)
        queue.put(b"new")
        clock.advance(5)
        assert queue.stats().oldest_age_seconds == pytest.approx(15)
        with queue.receive():
            assert queue.stats().oldest_age_seconds == pytest.approx(15)
        assert queue.stats().oldest_age_seconds == pytest.approx(5)
        queue.get()
        assert queue.stats().oldest_age_seconds is None


def test_what_a_kill_left_unsynced_is_counted_as_recovered(tmp_path: Path) -> None:
    """It was kept, written again and synced."""
    path = tmp_path / "orders"

    def work() -> None:
        queue = PersistentQueue(path, mode="exclusive", flush=FlushPolicy.never())
        for _ in range(7):
            queue.put(b"x")
        os.kill(os.getpid(), 9)

    assert Child(work).wait() == -9
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.stats().recovered == queue.recovery.recovered_count == 7
        assert queue.stats().lost == 0
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.stats().recovered == 0


def test_messages_lost_to_damage_are_counted_and_stay_counted(tmp_path: Path) -> None:
    """Once given up they are not part of the depth any more."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        for _ in range(50):
            queue.put(bytes(1000))
        assert queue.get() == bytes(1000)
    first = min((path / "data").iterdir())
    with first.open("r+b") as file:
        file.seek(FRAMES_START + 3500)
        file.write(b"rot")
    for _ in range(2):
        with PersistentQueue(path, mode="exclusive") as queue:
            queue.receive_many(20, timeout=0)
            queue.receive_many(20, timeout=0)
            assert queue.stats().lost == 1
            assert queue.stats().depth == 48


def lines_run(call: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs: its cost, whatever else the machine does."""
    count = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_gathering_stats_costs_the_same_whatever_the_backlog(tmp_path: Path) -> None:
    """A hundred times the messages in one file are not one line of code more."""
    counts = []
    for number, count in enumerate((1_000, 100_000)):
        with PersistentQueue(tmp_path / f"orders{number}", mode="exclusive", flush=FlushPolicy.never()) as queue:
            for _ in range(count // 1000):
                queue.put_many([b"x" * 100] * 1000)
            queue.stats()
            counts.append(lines_run(queue.stats))
    assert counts[0] > 0
    assert counts[1] < 1.5 * counts[0], counts

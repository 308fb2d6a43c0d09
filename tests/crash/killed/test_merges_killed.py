"""Owners are killed in a merge, beside a consumer and a reader in another process; and merges meet each other."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Empty, PersistentQueue, verify
from holdfast.persistence.filesystem.layout import QueueDirectory, list_data_files
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.inspect.log_reading import LogReading
from support.processes.children import Signal, child
from support.processes.disk_deaths import killed_at

FILE_BYTES = 128 * 2**10
COUNT = 1200
BATCH = 100
DEAD = (3, 400, 401, 700)
LEFT = (5, 402, 900)
"""What has failed in the second group."""

CALLS_MAX = 200


def payload_of(offset: int) -> bytes:
    """Return the payload of a message."""
    return b"%06d" % offset + bytes(1000)


def make(path: Path) -> None:
    """Make a queue with little that lives but for the last messages: dead letters, and what a second group needs."""
    with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES, backoff=[]) as queue:
        queue.groups.create("slow")
        for first in range(0, COUNT, BATCH):
            queue.put_many([payload_of(offset) for offset in range(first, first + BATCH)])
        for delivery in queue.receive_many(COUNT - BATCH, timeout=0):
            if delivery.offset in DEAD:
                delivery.reject("kept")
            else:
                delivery.ack()
    with PersistentQueue(path, mode="exclusive", group="slow") as slow:
        deliveries = slow.receive_many(COUNT - BATCH, timeout=0)
        deliveries.ack([each for each in deliveries if each.offset not in LEFT])
        deliveries.nack([each for each in deliveries if each.offset in LEFT], delay=0)


def taken_from(queue: PersistentQueue) -> list[tuple[int, bytes, int]]:
    """Take all that there is, with how often it was delivered."""
    found: list[tuple[int, bytes, int]] = []
    with suppress(Empty):
        while True:
            for each in queue.receive_many(COUNT, timeout=0):
                found.append((each.offset, each.payload, each.delivery_count))
                each.ack()
    return found


def check_read(reading: LogReading, first: int) -> None:
    """Make sure that a reading has all that lives behind its first message, once and in order, and tells no damage."""
    offsets = [first, *(each.offset for each in reading)]
    assert offsets == sorted(set(offsets))
    assert {*DEAD, *LEFT, *range(COUNT - BATCH, COUNT)} - {*range(first)} <= set(offsets)
    assert reading.damage == []
    gone = {offset for gap in reading.gaps for offset in gap}
    assert gone.isdisjoint(offsets)


def check_whole(path: Path) -> None:
    """Make sure that both groups have what they had, and that the next merge does what was left."""
    with PersistentQueue(path, mode="shared") as queue:
        queue.compact()
        names = list_data_files(OsStorage(), QueueDirectory(path))
        assert any(name.is_merged for name in names)
        assert [(each.offset, each.payload, each.delivery_count) for each in queue.dead.list()] == [
            (offset, payload_of(offset), 1) for offset in DEAD
        ]
        assert queue.stats().lost == 0
    assert verify(path).ok


@pytest.mark.timeout(300)
def test_an_owner_that_is_killed_anywhere_in_a_merge_leaves_all_that_lives(tmp_path: Path) -> None:
    """At each change of the disk; a client of it takes, and another process reads, what they would have without."""
    endings: list[int] = []
    while 0 not in endings:
        call = len(endings) + 1
        assert call < CALLS_MAX
        path, ready, goes = tmp_path / f"q{call}", Signal(), Signal()
        make(path)

        def own(path: Path = path, ready: Signal = ready, goes: Signal = goes, call: int = call) -> None:
            with PersistentQueue(path, mode="shared") as queue:
                ready.send()
                goes.wait()
                with killed_at(call):
                    queue.compact()

        with child(own) as owner:
            ready.wait()
            with PersistentQueue(path, mode="shared", group="slow") as slow, slow.read() as reading:
                first = next(reading).offset
                goes.send()
                endings.append(owner.wait())
                check_read(reading, first)
                expected = [(offset, payload_of(offset), 2) for offset in LEFT]
                expected += [(offset, payload_of(offset), 1) for offset in range(COUNT - BATCH, COUNT)]
                assert taken_from(slow) == expected
        ready.close()
        goes.close()
        check_whole(path)
    assert set(endings) == {-signal.SIGKILL, 0}
    assert len(endings) > 10


def test_two_processes_and_two_threads_that_merge_at_once_lose_nothing(tmp_path: Path) -> None:
    """One merge is done at a time, whoever asks for it."""
    path, ready = tmp_path / "queue", Signal()
    make(path)
    merged: list[int] = []

    def merge(queue: PersistentQueue) -> None:
        for _ in range(3):
            merged.append(queue.compact().merged_count)

    def beside() -> None:
        with PersistentQueue(path, mode="shared", can_own=False) as queue:
            ready.send()
            merge(queue)

    with PersistentQueue(path, mode="shared") as queue, child(beside) as other:
        ready.wait()
        threads = [threading.Thread(target=merge, args=(queue,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert other.wait() == 0
        assert sum(merged) <= 1  # the other process may have done it
    ready.close()
    check_whole(path)

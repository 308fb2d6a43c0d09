"""Owners are killed in a merge, beside a consumer and a reader in another process; and merges meet each other."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path

import pytest

from holdfast import Empty, PersistentQueue, verify
from holdfast.persistence.filesystem.layout import QueueDirectory, list_data_files
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.inspect.log_reading import LogReading
from support.processes.children import Signal, child
from support.processes.cli import started
from support.processes.disk_deaths import killed_at

FILE_BYTES = 128 * 2**10
COUNT = 1200
BATCH = 100
DEAD = (3, 400, 401, 700)
LEFT = (5, 402, 900)
"""What has failed in the second group."""

CALLS_MAX = 200
LINE_BYTES = 2048
"""More than a message takes as JSON."""


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
    check_offsets(reading, [first, *(each.offset for each in reading)])


def check_following(reading: LogReading, first: int) -> None:
    """Make sure of the same of a reading that does not end, up to the message behind all of them."""
    offsets = [first]
    while offsets[-1] < COUNT:
        offsets.append(next(reading).offset)
    check_offsets(reading, offsets)


def check_offsets(reading: LogReading, offsets: list[int]) -> None:
    """Make sure that what was read is all that lives, and that its gaps are what was not."""
    check_lives(offsets)
    assert reading.damage == []
    gone = {offset for gap in reading.gaps for offset in gap}
    assert gone.isdisjoint(offsets)


def check_lives(offsets: list[int]) -> None:
    """Make sure that offsets are in order, and those of all messages that live are among them."""
    assert offsets == sorted(set(offsets))
    assert {*DEAD, *LEFT, *range(COUNT - BATCH, COUNT)} - {*range(offsets[0])} <= set(offsets)


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
            with (
                PersistentQueue(path, mode="shared", group="slow") as slow,
                slow.read() as reading,
                slow.read(follow=True) as following,
            ):
                first, followed = next(reading).offset, next(following).offset
                goes.send()
                endings.append(owner.wait())
                check_read(reading, first)
                assert slow.put(payload_of(COUNT)) == COUNT
                check_following(following, followed)
                expected = [(offset, payload_of(offset), 2) for offset in LEFT]
                expected += [(offset, payload_of(offset), 1) for offset in range(COUNT - BATCH, COUNT + 1)]
                assert taken_from(slow) == expected
        ready.close()
        goes.close()
        check_whole(path)
    assert set(endings) == {-signal.SIGKILL, 0}
    assert len(endings) > 10


@pytest.mark.timeout(300)
def test_a_tail_that_follows_shows_all_that_lives_while_one_owner_after_the_other_is_killed_in_a_merge(
    tmp_path: Path,
) -> None:
    """It reads on between them; each owner continues what the one before has left."""
    path, endings = tmp_path / "queue", list[int]()
    make(path)

    def own() -> None:
        with PersistentQueue(path, mode="exclusive") as queue, killed_at(len(endings) + 1):
            queue.compact()

    with started("tail", path, "--from", "earliest", "--follow", "--json") as tail:
        assert isinstance(tail.stdout, FileIO)
        lines = BufferedReader(tail.stdout, LINE_BYTES)  # what is not read yet keeps it in an old file
        offsets = [json.loads(lines.readline())["offset"]]
        while 0 not in endings:
            assert len(endings) < CALLS_MAX
            with child(own) as owner:
                endings.append(owner.wait())
            offsets += [json.loads(lines.readline())["offset"] for _ in range(5)]
        with PersistentQueue(path, mode="exclusive") as queue:
            assert queue.put(payload_of(COUNT)) == COUNT
        while offsets[-1] < COUNT:
            offsets.append(json.loads(lines.readline())["offset"])
        assert tail.poll() is None
    check_lives(offsets)
    assert set(endings) == {-signal.SIGKILL, 0}
    assert len(endings) > 5
    check_whole(path)


def test_two_processes_and_two_threads_that_merge_at_once_lose_nothing(tmp_path: Path) -> None:
    """One merge is done at a time, whichever process or thread asks for it."""
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

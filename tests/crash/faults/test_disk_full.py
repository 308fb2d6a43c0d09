"""A real full disk: puts are refused whole, consumers go on, and puts work again once there is room.

A small tmpfs is mounted for it, which takes root on Linux; ``test_every_storage_call_may_fail.py`` says the
same through the storage port everywhere.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import DiskFullError, Empty, FlushPolicy, PersistentQueue
from holdfast.queue.options.queue_options import Mode
from support.processes.children import Child
from support.storages.loop_disk import LoopDiskError, loop_disk
from support.storages.small_disk import small_disk, take_all_room

FILE_BYTES = 256 * 2**10
DISK_BYTES = 2 * 2**20
POLICIES = [FlushPolicy.every_commit(), FlushPolicy.every(commits=10), FlushPolicy.never()]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    with small_disk(tmp_path / "disk", DISK_BYTES) as place:
        yield place


def open_queue(disk: Path, policy: FlushPolicy = POLICIES[0], mode: Mode = "exclusive") -> PersistentQueue:
    """Open the queue that lives on the small disk."""
    return PersistentQueue(disk / "orders", mode=mode, flush=policy, data_file_bytes=FILE_BYTES)


def message(number: int) -> bytes:
    """Return message ``number``, 1,000 bytes of it."""
    return b"%06d" % number + bytes(994)


def fill(queue: PersistentQueue, number: int = 0) -> int:
    """Put messages from ``number`` on until the disk is full; return the number of the one that was refused."""
    try:
        while True:
            queue.put(message(number))
            number += 1
    except DiskFullError:
        return number


def drain(queue: PersistentQueue) -> list[int]:
    """Receive and acknowledge all that is there; return the numbers."""
    numbers: list[int] = []
    while True:
        try:
            with queue.receive_many(50, timeout=0) as batch:
                numbers += [int(delivery.payload[:6]) for delivery in batch]
                assert all(delivery.payload == message(int(delivery.payload[:6])) for delivery in batch)
        except Empty:
            return numbers


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_full_disk_refuses_puts_whole_and_consumers_make_room_again(disk: Path, policy: FlushPolicy) -> None:
    """Nothing partial is visible, draining and acknowledging go on, the space returns, and puts work again."""
    with open_queue(disk, policy) as queue:
        number = fill(queue)
        assert number > 1000
        for _ in range(3):
            with pytest.raises(DiskFullError):
                queue.put(message(number))
        with pytest.raises(DiskFullError):
            queue.put_many([message(number)] * 300)
        assert [int(found.payload[:6]) for found in queue.peek(10_000)] == list(range(number))
        assert queue.qsize() == queue.stats().next_offset == number
        assert drain(queue) == list(range(number))
        assert queue.put(message(number)) == number
        again = fill(queue, number + 1)
        assert again - number > 1000, "the space has not come back"
        assert drain(queue) == list(range(number, again))


def test_get_takes_and_acknowledges_on_a_full_disk(disk: Path) -> None:
    """The room for a group's progress was there before it was needed."""
    with open_queue(disk) as queue:
        queue.put(message(0))
        assert queue.get() == message(0)
        number = fill(queue, 1)
        take_all_room(disk)
        assert [int(queue.get(timeout=0)[:6]) for _ in range(1, number)] == list(range(1, number))


def test_a_group_begins_on_a_full_disk_and_drains_it(disk: Path) -> None:
    """The first take of all needs a little room, which was set aside when the queue was made."""
    with open_queue(disk) as queue:
        number = fill(queue)
        take_all_room(disk)
        assert drain(queue) == list(range(number))


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_group_begins_behind_a_reopening_on_a_full_disk(disk: Path, mode: Mode) -> None:
    """Its lock file and its document need that room too, and what a shared queue has beside them."""
    with open_queue(disk, mode="exclusive") as queue:
        number = fill(queue)
        take_all_room(disk)
    with open_queue(disk, mode=mode) as queue:
        assert drain(queue) == list(range(number))


def test_a_group_that_cannot_begin_says_so_and_begins_once_there_is_room(disk: Path) -> None:
    """Where even the room set aside is gone the answer is DiskFullError, and nothing is lost."""
    with open_queue(disk) as queue:
        number = fill(queue)
        next(disk.rglob(".reserve")).unlink()
        other = take_all_room(disk)
        for _ in range(2):
            with pytest.raises(DiskFullError):
                queue.get(timeout=0)
        other.unlink()
        assert drain(queue) == list(range(number))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_queue_reopens_on_a_full_disk_and_drains(disk: Path, policy: FlushPolicy) -> None:
    """After an orderly end."""
    with open_queue(disk, policy) as queue:
        queue.put(message(0))
        assert queue.get(timeout=0) == message(0)
        number = fill(queue, 1)
        take_all_room(disk)
    with open_queue(disk, policy) as queue:
        assert drain(queue) == list(range(1, number))
        assert queue.put(message(number)) == number


def test_a_queue_reopens_on_a_full_disk_after_a_kill(disk: Path) -> None:
    """Recovery needs no room either, and nothing that was put or acknowledged is forgotten."""

    def work() -> None:
        queue = open_queue(disk, FlushPolicy.never())
        for number in range(10):
            queue.put(message(number))
        assert [int(payload[:6]) for payload in queue.get_many(5)] == [0, 1, 2, 3, 4]
        number = fill(queue, 10)
        take_all_room(disk)
        (disk / "somebody-elses").open("r+b").write(b"%06d" % number)
        os.kill(os.getpid(), 9)

    assert Child(work).wait() == -9
    number = int((disk / "somebody-elses").read_bytes()[:6])
    with open_queue(disk, FlushPolicy.never()) as queue:
        assert drain(queue) == list(range(5, number))
        assert not queue.recovery.damage
        assert queue.put(message(number)) == number


def test_a_disk_that_somebody_else_fills_stops_puts_at_the_end_of_a_data_file(disk: Path) -> None:
    """The room of a data file is reserved when it is begun, so puts go on to its end; then they are refused whole."""
    with open_queue(disk) as queue:
        for number in range(10):
            queue.put(message(number))
        queue.get_many(3)
        other = take_all_room(disk)
        refused = fill(queue, 10)
        assert refused > 200, "the data file was not reserved"
        assert queue.stats().next_offset == refused
        assert [int(found.payload[:6]) for found in queue.peek(10_000)] == list(range(3, refused))
        with pytest.raises(DiskFullError) as full:
            queue.put_many([message(refused), message(refused + 1)])
        assert "free disk space" in str(full.value)
        other.unlink()
        assert queue.put_many([message(refused), message(refused + 1)]) == range(refused, refused + 2)
        assert drain(queue) == list(range(3, refused + 2))
    with open_queue(disk) as queue:
        assert queue.recovery.clean
        assert queue.qsize() == 0


def test_a_consumer_process_drains_while_the_producer_is_refused(disk: Path) -> None:
    """They do not share their troubles; space that the consumer frees is the producer's at once."""
    with open_queue(disk, mode="shared") as producer:
        producer.put(message(0))
        assert producer.get() == message(0)
        number = fill(producer, 1)
        take_all_room(disk)

        def work() -> None:
            with open_queue(disk, mode="shared") as consumer:
                assert not consumer.is_owner
                assert drain(consumer) == list(range(1, number))

        assert Child(work).wait() == 0
        assert producer.put(message(number)) == number


@pytest.mark.parametrize("policy", POLICIES[::2], ids=str)
def test_progress_is_kept_on_a_full_disk_through_many_position_files(disk: Path, policy: FlushPolicy) -> None:
    """Settling one by one and in every way begins one position file after the other, and a reopening remembers it."""
    with PersistentQueue(
        disk / "orders", mode="exclusive", flush=policy, data_file_bytes=FILE_BYTES, max_deliveries=None
    ) as queue:
        queue.put(message(0))
        assert queue.get(timeout=0) == message(0)
        number = fill(queue, 1)
        take_all_room(disk)
        started = max((disk / "orders" / "groups" / "default").glob("0*.position"))
        for each in range(1, number - 100):
            if each % 3 == 0:
                queue.receive(timeout=0).release()
            if each % 3 == 1:
                queue.receive(timeout=0).nack(delay=0)
            with queue.receive(timeout=0) as delivery:
                assert delivery.payload == message(each)
        assert max((disk / "orders" / "groups" / "default").glob("0*.position")) > started, "one file was enough"
    with open_queue(disk, policy) as queue:
        assert queue.recovery.clean
        assert drain(queue) == list(range(number - 100, number))


def test_a_full_ext4_loses_nothing_over_an_unmount_and_gives_its_space_back(tmp_path: Path) -> None:
    """It finds room for what was written only when that goes to the disk: what was accepted has some by then."""
    try:
        with loop_disk(tmp_path, size_bytes=8 * 2**20) as disk:
            with open_queue(disk.root, FlushPolicy.never()) as queue:
                first = fill(queue)
                other = take_all_room(disk.root)
            disk.unmount()
            disk.mount()
            with open_queue(disk.root, FlushPolicy.never()) as queue:
                assert queue.recovery.clean
                assert drain(queue) == list(range(first))
                other.unlink()
                second = fill(queue, first)
                assert second - first >= first * 0.9, "the space has not come back"
                assert drain(queue) == list(range(first, second))
    except LoopDiskError as error:
        pytest.skip(f"no ext4 can be mounted here: {error}")

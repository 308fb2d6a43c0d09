"""``compact()`` of a queue: in each mode, in the background, and beside readers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from holdfast import (
    ClosedError,
    CommitUnknownError,
    ConfigError,
    PersistentQueue,
    PoisonedError,
    UsageError,
    verify,
)
from holdfast.persistence.compaction import compactor
from holdfast.persistence.compaction.compactor import ACTIVE, HELD, RETAINED
from support.builders.handles import handle_of, pass_over
from support.builders.transactions import ORDERS
from support.owners.second_groups import open_beside
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

COUNT = 1200
PAYLOAD = bytes(1000)
LIVE = (3, 400, 401, 700)
FILE_BYTES = 128 * 2**10


def payload_of(number: int) -> bytes:
    """Return the payload of a message."""
    return b"%06d" % number + PAYLOAD


def fill(queue: PersistentQueue, live: tuple[int, ...] = LIVE) -> None:
    """Put messages, and finish most of those that are not in the last data file; the others are dead letters."""
    for first in range(0, COUNT, 100):
        queue.put_many([payload_of(number) for number in range(first, first + 100)])
    for delivery in queue.receive_many(1000, timeout=0):
        if delivery.offset in live:
            delivery.reject("kept")
        else:
            delivery.ack()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where to make a queue."""
    return tmp_path / "orders"


@pytest.fixture(params=["exclusive", "shared"])
def queue(path: Path, request: pytest.FixtureRequest) -> Iterator[PersistentQueue]:
    """Return a queue with four messages that live before the last files."""
    with PersistentQueue(path, mode=request.param, data_file_bytes=FILE_BYTES) as queue:
        fill(queue)
        yield queue


def taken_from(queue: PersistentQueue) -> dict[int, bytes]:
    """Take all that there is; what was delivered before comes alone."""
    taken: dict[int, bytes] = {}
    try:
        while True:
            for each in queue.receive_many(COUNT, timeout=0):
                taken[each.offset] = each.payload
                each.ack()
    except Empty:
        return taken


def dead_of(queue: PersistentQueue) -> list[tuple[int, bytes]]:
    """Return the dead letters."""
    return [(each.offset, each.payload[:6]) for each in queue.dead.list()]


def test_a_queue_is_compacted_by_its_owner_and_loses_nothing(queue: PersistentQueue, path: Path) -> None:
    """A handle that shares it has the owner do so."""
    before, left, told = dead_of(queue), queue.qsize(), queue.compact(dry_run=True)
    assert told.merged_count
    done = queue.compact()
    assert done.merged_count == told.merged_count
    assert 0 < done.written_bytes * 3 <= done.freed_bytes
    assert done.kept[ACTIVE] == 1
    assert dead_of(queue) == before
    assert [offset for offset, _ in before] == list(LIVE)
    assert queue.qsize() == left
    for offset in LIVE:
        queue.dead.retry(offset)
    assert taken_from(queue) == {offset: payload_of(offset) for offset in [*LIVE, *range(1000, COUNT)]}
    assert verify(path).ok


def test_a_reopened_queue_and_a_later_group_get_what_is_there(queue: PersistentQueue, path: Path) -> None:
    """What was left out is no loss to either."""
    queue.compact()
    queue.close()
    with PersistentQueue(path) as again:
        assert again.recovery.damage == ()
        assert [offset for offset, _ in dead_of(again)] == list(LIVE)
        again.groups.create("late", start="earliest")
        assert again.stats().depth == COUNT - 1000
    with PersistentQueue(path, group="late") as late:
        offsets = set(taken_from(late))
        assert set(LIVE) <= set(offsets)
        assert late.recovery.damage == ()
    assert verify(path).ok


def test_a_read_without_a_group_tells_what_was_left_out_as_gaps(queue: PersistentQueue) -> None:
    """As it does with files that were retired."""
    queue.compact()
    with queue.read(start="earliest") as reading:
        offsets = [message.offset for message in reading]
        gone = {offset for gap in reading.gaps for offset in gap}
        assert not reading.damage
    assert set(LIVE) <= set(offsets)
    assert gone.isdisjoint(offsets)
    assert {*gone, *offsets} == set(range(COUNT)) - set(range(min([*gone, *offsets])))


def test_a_group_that_is_moved_back_gets_what_lives(path: Path) -> None:
    """What was merged away is behind it for ever."""
    with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        fill(queue)
        queue.compact()
        queue.groups.seek("default", "earliest")
        offsets = set(taken_from(queue))
        assert not offsets & set(range(4, 300))
        assert queue.stats().lost == 0


def test_a_handle_that_only_reads_does_not_compact(path: Path) -> None:
    """It says which mode does."""
    PersistentQueue(path).close()
    with (
        PersistentQueue(path, mode="read_only") as queue,
        pytest.raises(UsageError, match="does not compact; use mode='shared'"),
    ):
        queue.compact()


def test_a_pass_compacts_above_the_ratio(path: Path) -> None:
    """And not by default, or below it."""
    with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        fill(queue)
        names = handle_of(queue).files.names()
        pass_over(queue)
        assert not any(name.is_merged for name in handle_of(queue).files.names())
        queue.configure(compact_ratio=10**6)
        pass_over(queue)
        assert not any(name.is_merged for name in handle_of(queue).files.names())
        queue.configure(compact_ratio=2)
        pass_over(queue)
        assert any(name.is_merged for name in handle_of(queue).files.names())
        assert len(handle_of(queue).files.names()) < len(names)
        assert [offset for offset, _ in dead_of(queue)] == list(LIVE)


@pytest.mark.parametrize("ratio", [0, -1, "much", True, float("nan"), float("inf")])
def test_a_ratio_is_a_number_above_0(path: Path, ratio: object) -> None:
    """Anything else is refused."""
    with pytest.raises(ConfigError, match="compact_ratio is a number above 0, or None for no merges"):
        PersistentQueue(path, compact_ratio=ratio)  # type: ignore[arg-type]


def test_what_is_retained_or_held_stays(path: Path) -> None:
    """The result says why."""
    with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES, retain_messages=10**6) as queue:
        fill(queue)
        assert queue.compact().kept[RETAINED]
        queue.configure(reset=["retain_messages"])
        for offset in LIVE:
            queue.dead.retry(offset)
        tx = queue.transaction()
        held = tx.receive(timeout=0)
        assert held.offset in LIVE
        tx.ack(held)
        tx.prepare("held")
        done = queue.compact()
        assert done.kept[HELD] == 1
        queue.commit_prepared("held")
        assert HELD not in queue.compact().kept


def test_a_consumer_takes_everything_once_while_files_are_merged(path: Path) -> None:
    """Merges in a thread beside it, again and again."""
    with PersistentQueue(path, mode="shared", data_file_bytes=FILE_BYTES) as queue:
        queue.groups.create("slow", start="earliest")
        is_over = threading.Event()
        merged: list[int] = []

        def merge() -> None:
            while not is_over.is_set():
                merged.append(queue.compact().merged_count)
                is_over.wait(0.02)

        thread = threading.Thread(target=merge)
        thread.start()
        try:
            with PersistentQueue(path, mode="shared", group="slow") as slow:
                seen: list[int] = []
                kept: list[int] = []
                for first in range(0, COUNT, 100):
                    queue.put_many([payload_of(number) for number in range(first, first + 100)])
                    for delivery in queue.receive_many(100, timeout=0):
                        delivery.ack()
                    for delivery in slow.receive_many(100, timeout=0):
                        seen.append(delivery.offset)
                        assert delivery.payload == payload_of(delivery.offset)
                        if delivery.offset % 25:
                            delivery.ack()
                        else:
                            kept.append(delivery.offset)
                            delivery.reject("kept")
                assert seen == list(range(COUNT))
                assert [each.offset for each in slow.dead.list(limit=COUNT)] == kept
                assert slow.stats().lost == 0
        finally:
            is_over.set()
            thread.join()
        merged.append(queue.compact().merged_count)
        assert sum(merged) > 0
    assert verify(path).ok


def test_a_start_at_a_time_in_a_merged_file_is_not_said_to_be_complete(path: Path) -> None:
    """Messages of that time may have been left out in front of the one that is found."""
    with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        fill(queue)
        with queue.read(start=400, stop=401) as reading:
            (message,) = reading
        queue.compact()
        microseconds = message.timestamp_ns // 1000  # rounded up, it would be behind the message half of the time
        started = queue.groups.seek("default", start=datetime.fromtimestamp(microseconds / 10**6, UTC))
        assert (started.offset, started.is_complete) == (400, False)


def test_a_compaction_ends_early_while_its_queue_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits for the merge that has begun: behind it another process may merge the same files."""
    queue = PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES)
    fill(queue, live=tuple(range(0, 1000, 8)))
    assert queue.compact(dry_run=True).merged_count > 1
    calls, closer, copy_live = handle_of(queue).calls, threading.Thread(target=queue.close), compactor.copy_live

    def close_meanwhile(*arguments: Any) -> int:
        closer.start()
        while not calls.is_over:
            time.sleep(0.001)
        assert queue.is_owner
        return copy_live(*arguments)

    monkeypatch.setattr(compactor, "copy_live", close_meanwhile)
    assert queue.compact().merged_count == 1
    closer.join(10)
    with pytest.raises(ClosedError):
        queue.compact()
    assert verify(path).ok


def test_a_side_whose_sync_fails_during_the_copy_lets_no_message_go(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second sync, of another handle, could succeed over lost progress."""
    with PersistentQueue(ORDERS, mode="exclusive", data_file_bytes=FILE_BYTES, storage=storage) as queue:
        fill(queue)
        copy_live = compactor.copy_live

        def with_a_failed_sync(*args: Any) -> int:
            with refusing(storage, "sync", ".position"), pytest.raises(CommitUnknownError):
                queue.get()
            return copy_live(*args)

        monkeypatch.setattr(compactor, "copy_live", with_a_failed_sync)
        with pytest.raises((CommitUnknownError, PoisonedError)):
            queue.compact()
        assert not any(name.is_merged for name in handle_of(queue).files.names())


def test_a_group_that_is_opened_during_the_copy_is_asked_for_its_sync(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that were open before; and one that was closed meanwhile is not."""
    with PersistentQueue(ORDERS, mode="exclusive", data_file_bytes=FILE_BYTES, storage=storage) as queue:
        fill(queue)
        queue.groups.create("late", start="latest")
        copy_live, opened = compactor.copy_live, []

        def with_another_group(*args: Any) -> int:
            late = open_beside(queue, "late")
            opened.append(late)
            queue.put(b"one more")
            with refusing(storage, "sync", ".position"), pytest.raises(CommitUnknownError):
                late.get(timeout=0)
            return copy_live(*args)

        monkeypatch.setattr(compactor, "copy_live", with_another_group)
        with pytest.raises((CommitUnknownError, PoisonedError)):
            queue.compact()
        assert not any(name.is_merged for name in handle_of(queue).files.names())
        opened.pop().close()
        monkeypatch.setattr(compactor, "copy_live", copy_live)
        assert queue.compact().merged_count

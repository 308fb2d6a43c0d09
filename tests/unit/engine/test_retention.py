"""The pass of retention: what an owner lets go of while its queue is open, and what it never does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    Empty,
    Full,
    LeaseExpiredError,
    PersistentQueue,
    Put,
    StorageError,
)
from holdfast.persistence.filesystem import locks
from holdfast.persistence.groups.group_files import find_group, progress_reader
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.verify import verify
from holdfast.queue.engine import expiry, retention
from holdfast.threads import start_thread
from support.builders.clocks import START_NS, FakeClock
from support.builders.handles import handle_of, pass_over
from support.builders.transactions import ORDERS, open_queue
from support.owners.second_groups import open_beside
from support.owners.served import Served, close_all
from support.processes.threads import Threads, wait_until
from support.storages.disk_operations import Write
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

HOUR = 3600
DAY = 24 * HOUR


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


@pytest.fixture
def opened(storage: SimulatedStorage, clock: FakeClock) -> Iterator[Any]:
    """Return what opens the queue; it is closed when the test ends."""
    queues: list[PersistentQueue] = []

    def opened(**settings: Any) -> PersistentQueue:
        queues.append(open_queue(storage, clock=clock, **settings))
        return queues[-1]

    yield opened
    for queue in queues:
        queue.close()


@pytest.fixture
def owners() -> Iterator[None]:
    """Close the owners of a test."""
    yield
    close_all()


def put_hourly(queue: PersistentQueue, clock: FakeClock, hours: int) -> None:
    """Put a message each hour, and let the background look after each."""
    for number in range(hours):
        queue.put(str(number).encode())
        clock.advance(HOUR)
        pass_over(queue)


def first_offset(queue: PersistentQueue) -> int:
    """Return the offset of the oldest message that is still there."""
    return queue.stats().first_offset


# -- Data files by age -----------------------------------------------------------------------------------------------


def test_a_data_file_is_left_once_its_oldest_message_is_that_old(opened: Any, clock: FakeClock) -> None:
    """By the clock alone: leaving a file loses nothing. One without messages is not left."""
    queue = opened(data_file_max_age=timedelta(hours=2))
    put_hourly(queue, clock, 1)
    assert queue.stats().file_count == 1
    put_hourly(queue, clock, 1)
    assert queue.stats().file_count == 2
    clock.advance(DAY)
    pass_over(queue)
    assert queue.stats().file_count == 2
    assert queue.get_many(2) == [b"0", b"0"]
    assert queue.put(b"next") == 2


def test_a_file_that_is_left_early_is_followed_by_one_of_its_size(opened: Any, clock: FakeClock) -> None:
    """A queue with few messages does not take more space from file to file."""
    queue = opened(data_file_max_age=HOUR)
    put_hourly(queue, clock, 3)
    sizes = [handle_of(queue).files.size_of(name) for name in handle_of(queue).files.names()]
    queue.put_many([b"x" * 60_000])
    queue.put_many([b"x" * 60_000])
    assert sizes[-1] <= handle_of(queue).files.size_of(handle_of(queue).files.names()[-1])


def test_a_closed_queue_is_not_rolled(opened: Any, clock: FakeClock) -> None:
    """The pass that comes too late does nothing."""
    queue = opened(data_file_max_age=HOUR)
    queue.put(b"a")
    side = handle_of(queue).require_write_side()
    queue.close()
    assert not side.roll_if_old(1, clock.time_ns() + 10**12)
    pass_over(queue)


def test_a_shorter_age_counts_from_the_next_pass_on(opened: Any, clock: FakeClock) -> None:
    """Although a handle beside the owner's has set it."""
    queue = opened()
    put_hourly(queue, clock, 1)
    assert queue.stats().file_count == 1
    queue.configure(data_file_max_age=60)
    pass_over(queue)
    assert queue.stats().file_count == 2


# -- Keeping ---------------------------------------------------------------------------------------------------------


def test_finished_files_are_kept_as_long_as_asked_and_can_be_read_again(opened: Any, clock: FakeClock) -> None:
    """A group that is made meanwhile begins with them."""
    queue = opened(retain_age=3 * HOUR, data_file_max_age=HOUR)
    put_hourly(queue, clock, 3)
    assert queue.get_many(9) == [b"0", b"1", b"2"]
    pass_over(queue)
    assert queue.groups.create("audit") == 0
    with open_beside(queue, "audit") as audit:
        assert audit.get_many(9) == [b"0", b"1", b"2"]
    put_hourly(queue, clock, 4)
    assert first_offset(queue) == 3  # those that nobody has read
    queue.get_many(9)
    with open_beside(queue, "audit") as audit:
        audit.get_many(9)
    pass_over(queue)
    assert first_offset(queue) == 3
    put_hourly(queue, clock, 1)
    assert first_offset(queue) == 4


def test_what_no_group_has_finished_is_kept_whatever_its_age(opened: Any, clock: FakeClock) -> None:
    """Also while there is no group."""
    queue = opened(retain_age=HOUR, data_file_max_age=HOUR)
    put_hourly(queue, clock, 5)
    assert first_offset(queue) == 0
    assert queue.get_many(9) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_clock_that_jumps_forward_removes_nothing(opened: Any, clock: FakeClock) -> None:
    """Retention is by the newest message then."""
    queue = opened(retain_age=2 * HOUR, data_file_max_age=HOUR)
    queue.groups.create("slow", max_lag_age=2 * HOUR)
    put_hourly(queue, clock, 3)
    queue.get_many(3)
    clock.set_time_ns(START_NS + 10**9 * DAY)
    pass_over(queue)
    assert first_offset(queue) == 0
    assert queue.groups.list() == ["default", "slow"]


def test_a_commit_without_messages_is_no_put_for_a_clock_that_jumps(opened: Any, clock: FakeClock) -> None:
    """A prepared transaction has only acknowledged; also once the queue is opened again."""
    queue = opened(retain_age=2 * HOUR, data_file_max_age=HOUR)
    queue.groups.create("slow", max_lag_age=2 * HOUR)
    put_hourly(queue, clock, 3)
    clock.set_time_ns(START_NS + 10**9 * DAY)
    tx = queue.begin()
    tx.receive(timeout=0)
    tx.prepare("export")
    tx.commit()
    pass_over(queue)
    queue.close()
    queue = opened()
    queue.get_many(3)
    pass_over(queue)
    assert first_offset(queue) == 0
    queue.close()
    assert opened(group="slow").stats().skipped == 0


def test_puts_never_wait_for_what_is_only_kept(storage: SimulatedStorage, clock: FakeClock) -> None:
    """Kept files leave room for puts below max_bytes."""
    with PersistentQueue(
        ORDERS,
        mode="exclusive",
        storage=storage,
        clock=clock,
        data_file_bytes=16_384,
        max_bytes=6 * 16_384,
        retain_age=DAY,
    ) as queue:
        for _ in range(100):
            queue.put(b"x" * 3000, block=False)
            queue.get(block=False)
            pass_over(queue)
        assert queue.stats().file_count > 2
        with suppress(Full):
            while queue.qsize() < 100:
                queue.put(b"x" * 3000, block=False)
        assert 4 <= queue.qsize() < 25  # what nobody has read is bounded as ever


def test_a_put_that_is_larger_than_data_files_waits_for_nothing_that_is_only_kept(
    storage: SimulatedStorage, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass makes the space as soon as it is asked for, whatever the sizes of the files, and for no more than that."""
    started: list[Any] = []

    def start(work: Any, name: str, end: Any) -> object:
        started.append(work)
        return work

    monkeypatch.setattr(retention, "start_thread", start)
    with PersistentQueue(
        ORDERS,
        mode="exclusive",
        storage=storage,
        clock=clock,
        data_file_bytes=16_384,
        max_bytes=10 * 16_384,
        retain_age=DAY,
    ) as queue:
        full_count = 0
        for size in [3000] * 40 + [60_000] * 5 + [3000] * 40 + [60_000] * 2:
            for is_last in (False, True):
                try:
                    queue.put(b"x" * size, block=False)
                    break
                except Full:
                    assert not is_last, "the pass has made no space"
                    full_count += 1
                    look(queue)
                    started.pop()()
            queue.get()
            assert queue.stats().file_count > 1 or size < 60_000
        assert full_count > 4
        assert handle_of(queue).capacity.wanted_bytes == 0


# -- Groups that are too far behind ----------------------------------------------------------------------------------


def test_a_group_that_is_open_is_moved_on_and_says_how_many_it_has_skipped(
    opened: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It continues with the first file inside of its bound; a restart does not forget the count."""
    queue = opened(data_file_max_age=HOUR, max_lag_age=2 * HOUR)
    put_hourly(queue, clock, 1)
    assert queue.get() == b"0"
    put_hourly(queue, clock, 6)
    assert queue.stats().skipped == 3
    assert next(each for each in caplog.messages if "skipped" in each) == (
        "/orders: group 'default' was further behind than max_lag_age or max_lag_bytes allows: 1 messages were skipped"
    )
    assert first_offset(queue) == 4
    assert queue.stats().depth == 3
    assert queue.get_many(9) == [b"3", b"4", b"5"]
    queue.close()
    again = opened()
    assert again.stats().skipped == 3
    assert verify(ORDERS, storage=again._storage).ok


def test_a_group_without_an_owner_is_moved_on_too(opened: Any, clock: FakeClock) -> None:
    """A group that sleeps cannot fill the disk."""
    queue = opened(data_file_max_age=HOUR)
    queue.groups.create("asleep", max_lag_age=HOUR)
    queue.groups.create("patient")
    put_hourly(queue, clock, 4)
    queue.get_many(9)
    assert first_offset(queue) == 0
    queue.groups.delete("patient")
    put_hourly(queue, clock, 1)
    assert first_offset(queue) == 3
    with open_beside(queue, "asleep") as asleep:
        assert asleep.stats().skipped == 3
        assert asleep.get_many(9) == [b"3", b"0"]


def test_without_a_group_the_bound_of_the_default_group_counts(opened: Any, clock: FakeClock) -> None:
    """A queue that is a log of events: nobody takes from it."""
    queue = opened(data_file_max_age=HOUR, max_lag_age=2 * HOUR, retain_age=HOUR)
    put_hourly(queue, clock, 6)
    assert first_offset(queue) == 3
    assert queue.get_many(9) == [b"3", b"4", b"5"]


def test_a_lag_in_bytes_bounds_what_is_on_the_disk(storage: SimulatedStorage, clock: FakeClock) -> None:
    """The bound, one file more, and the one that is written."""
    with PersistentQueue(
        ORDERS, mode="exclusive", storage=storage, clock=clock, data_file_bytes=16_384, max_lag_bytes=40_000
    ) as queue:
        queue.put(b"first")
        queue.get()
        for _ in range(100):
            queue.put(b"x" * 3000)
            pass_over(queue)
        assert queue.stats().bytes_on_disk <= 40_000 + 2 * 16_384
        assert queue.stats().skipped > 80


def test_a_message_in_hand_is_skipped_and_its_receiver_is_told(opened: Any, clock: FakeClock) -> None:
    """Inside of a with block too: the clean exit would acknowledge it."""
    queue = opened(data_file_max_age=HOUR, max_lag_age=HOUR, lease_seconds=DAY)
    queue.put_many([b"a", b"b"])
    first, second = queue.receive_many(2)
    told = pytest.raises(LeaseExpiredError, match="offset 0 was skipped: its group was further behind than max_lag")
    with told, first:
        put_hourly(queue, clock, 3)
    with pytest.raises(LeaseExpiredError, match="offset 1 was skipped"):
        second.nack()
    assert queue.stats().skipped == 3
    assert queue.stats().in_flight == 0
    assert [delivery.payload for delivery in queue.receive_many(9)] == [b"1", b"2"]


@pytest.mark.usefixtures("owners")
def test_a_client_is_told_of_each_message_when_it_settles_it(clock: FakeClock) -> None:
    """By the owner, however late, and by the next one if this one dies."""
    served = Served(clock=clock, data_file_max_age=HOUR, max_lag_age=HOUR, lease_seconds=DAY)
    client = served.connect()
    client.put(1, b"a", b"b")
    assert client.take(1, 2) == [b"a", b"b"]
    idle_handles = served.queue._writes.idle_handles
    assert idle_handles is not None
    assert idle_handles.retention is not None
    for number in range(2, 5):
        client.put(number, b"later")
        clock.advance(HOUR)
        idle_handles.retention.run()
    with pytest.raises(
        LeaseExpiredError, match="offset 0 was taken away and is finished: its group was moved by seek, or skipped it"
    ):
        client.settle("ack", 1, 0)
    again = served.killed().connect(client.session)
    with pytest.raises(
        LeaseExpiredError, match="offset 1 was taken away and is finished: its group was moved by seek, or skipped it"
    ):
        again.settle("nack", 1, 1)


def test_an_open_transaction_keeps_what_it_has_taken(opened: Any, clock: FakeClock) -> None:
    """It is not skipped under its hands; once it is over, what it gives back is."""
    queue = opened(data_file_max_age=HOUR, max_lag_age=HOUR)
    queue.put(b"a")
    queue.put(b"b")
    with queue.transaction(timeout=DAY) as tx:
        tx.ack(tx.receive())
        put_hourly(queue, clock, 3)
        assert queue.stats().skipped == 2  # b, and the first of those
    assert queue.stats().skipped == 2
    pass_over(queue)
    assert first_offset(queue) == 3


def test_a_prepared_transaction_keeps_its_file_however_old_it_is(
    opened: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no timeout: it is told of once it is a day old, and shown. Its commit finds everything."""
    queue = opened(data_file_max_age=HOUR, max_lag_age=HOUR, retain_age=HOUR)
    queue.put(b"held")
    tx = queue.begin()
    tx.ack(tx.receive())
    tx.prepare("forgotten")
    assert queue.stats().oldest_prepared_seconds == 0
    put_hourly(queue, clock, 30)
    assert first_offset(queue) == 0
    assert queue.stats().oldest_prepared_seconds == 30 * HOUR
    (told,) = [each for each in caplog.messages if "is prepared since" in each]
    assert "transaction 'forgotten' is prepared since 24 hours and keeps messages of group 'default'" in told
    queue.abort_prepared("forgotten")
    pass_over(queue)
    assert queue.stats().skipped == 28 + 1
    assert queue.stats().oldest_prepared_seconds is None
    assert first_offset(queue) == 29


def test_the_prepared_batch_of_a_group_without_an_owner_is_kept_and_told_of(
    opened: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that is open here."""
    queue = opened(data_file_max_age=HOUR)
    queue.groups.create("asleep", max_lag_age=HOUR)
    queue.put(b"held")
    with open_beside(queue, "asleep") as asleep:
        tx = asleep.begin()
        tx.ack(tx.receive())
        tx.prepare("forgotten")
    put_hourly(queue, clock, 26)
    queue.get_many(99)
    pass_over(queue)
    assert first_offset(queue) == 0
    assert len([each for each in caplog.messages if "is prepared since" in each]) == 1
    with open_beside(queue, "asleep") as asleep:
        assert asleep.stats().skipped == 24
        asleep.commit_prepared("forgotten")
        assert asleep.get_many(9) == [b"24", b"25"]


def test_join_does_not_wait_for_what_was_skipped(opened: Any, clock: FakeClock) -> None:
    """Nobody will be given it."""
    queue = opened(data_file_max_age=HOUR, max_lag_age=HOUR)
    queue.groups.create("default")
    put_hourly(queue, clock, 3)
    queue.get_many(9)
    for _ in range(queue.unfinished_tasks):
        queue.task_done()
    queue.join()


# -- Dead letters ----------------------------------------------------------------------------------------------------


def test_dead_letters_are_let_go_without_a_consumer(opened: Any, clock: FakeClock) -> None:
    """Of a group that is open here, and of one that is not; until then their lag does not matter."""
    queue = opened(data_file_max_age=HOUR, dead_letter_seconds=DAY)
    queue.groups.create("asleep", dead_letter_seconds=2 * DAY, max_lag_age=HOUR)
    queue.put(b"bad")
    queue.receive().reject("no good")
    with open_beside(queue, "asleep") as asleep:
        asleep.receive().reject("no good")
    put_hourly(queue, clock, 23)
    queue.get_many(99)
    assert (queue.stats().dead, first_offset(queue)) == (1, 0)
    clock.advance(HOUR)
    pass_over(queue)
    assert (queue.stats().dead, first_offset(queue)) == (0, 0)
    clock.advance(DAY)
    pass_over(queue)
    assert first_offset(queue) == 22
    with open_beside(queue, "asleep") as asleep:
        assert asleep.stats().dead == 0


# -- Messages whose time to live is over -----------------------------------------------------------------------------


def roll(queue: PersistentQueue, clock: FakeClock) -> None:
    """Begin the next data file."""
    handle_of(queue).require_write_side().roll_if_old(0, clock.time_ns())


def test_expired_messages_are_finished_without_a_consumer(opened: Any, clock: FakeClock) -> None:
    """Wherever they are, and in groups that are not open; others stay, and a later time is waited for."""
    queue = opened()
    queue.groups.create("asleep")
    for ttl in (None, 60, 3 * HOUR, 60, None):
        queue.put(b"a", ttl=ttl)
    roll(queue, clock)
    queue.put_many([Put(b"b", ttl=60)] * 70)
    assert queue.receive().offset == 0
    pass_over(queue)
    assert queue.stats().depth == 75
    clock.advance(HOUR)
    pass_over(queue)
    assert (queue.stats().depth, queue.stats().dropped) == (3, 72)
    clock.advance(3 * HOUR)
    pass_over(queue)
    assert (queue.stats().depth, queue.stats().dropped) == (2, 73)
    with open_beside(queue, "asleep") as asleep:
        assert [each.offset for each in asleep.browse()] == [0, 4]


def test_expired_messages_become_dead_letters_without_a_consumer(
    opened: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """If the group keeps them so, open or not. A retried one does not end again."""
    caplog.set_level(logging.INFO)
    queue = opened(expired="dead")
    queue.groups.create("asleep", expired="dead")
    queue.put_many([Put(b"a", ttl=60), Put(b"b", ttl=60)])
    queue.receive(lease_seconds=DAY)
    clock.advance(HOUR)
    pass_over(queue)
    pass_over(queue)
    assert [(each.offset, each.reason) for each in queue.dead.list()] == [(1, "expired")]
    assert len([each for each in caplog.messages if "offset 1 is a dead letter" in each]) == 1
    with open_beside(queue, "asleep") as asleep:
        assert [(each.offset, each.reason) for each in asleep.dead.list()] == [(0, "expired"), (1, "expired")]
        asleep.dead.retry(reason="expired")
        pass_over(queue)
        assert asleep.get_many(9) == [b"a", b"b"]


@pytest.mark.extra("filter")
@pytest.mark.parametrize("expired", ["drop", "dead"])
@pytest.mark.parametrize("is_open", [True, False])
def test_of_a_group_with_a_filter_a_pass_ends_what_was_handed_out(
    opened: Any, clock: FakeClock, expired: str, is_open: bool
) -> None:
    """Who reads the others knows whether it gets them: what does not match is no dead letter, nor dropped."""
    queue = opened()
    queue.groups.create("large", filter="size > 1", expired=expired)
    queue.put_many([Put(payload, ttl=60) for payload in (b"a", b"bb")])
    with open_beside(queue, "large") as large:
        large.receive().nack(0)
    queue.put_many([Put(payload, ttl=60) for payload in (b"c", b"dd")])
    beside = [open_beside(queue, "large")] if is_open else []
    clock.advance(HOUR)
    pass_over(queue)
    for each in beside:
        each.close()
    with open_beside(queue, "large") as large:
        assert [each.offset for each in large.dead.list()] == ([1] if expired == "dead" else [])
        assert large.stats().depth == 2
        with pytest.raises(Empty):
            large.get(timeout=0)
        assert [each.offset for each in large.dead.list()] == ([1, 3] if expired == "dead" else [])
        assert (large.stats().filtered, large.stats().depth) == (1, 0)


def test_a_message_in_hand_ends_once_it_is_given_back(opened: Any, clock: FakeClock) -> None:
    """Not in its receiver's hands, and not while a transaction holds it."""
    queue = opened(lease_seconds=DAY, backoff=[0])
    queue.put_many([Put(b"in hand", ttl=60), Put(b"held", ttl=60)])
    in_hand = queue.receive()
    tx = queue.begin()
    tx.ack(tx.receive())
    tx.prepare("p")
    clock.advance(HOUR)
    pass_over(queue)
    assert queue.stats().depth == 2
    in_hand.nack()
    pass_over(queue)
    assert queue.stats().depth == 1
    queue.commit_prepared("p")
    assert queue.stats().dropped == 1


def test_a_message_that_a_transaction_lets_go_of_ends_in_a_group_without_a_consumer(
    opened: Any, clock: FakeClock
) -> None:
    """However often a pass has looked at it while it was held; it is behind a message that waits."""
    queue = opened()
    queue.groups.create("asleep")
    queue.put_many([Put(b"waits"), Put(b"held", ttl=60)])
    with open_beside(queue, "asleep") as asleep:
        asleep.receive().nack(delay=DAY)
        tx = asleep.begin()
        tx.ack(tx.receive())
        tx.prepare("p")
    clock.advance(HOUR)
    for _ in range(2):
        pass_over(queue)
    queue.abort_prepared("p")
    pass_over(queue)
    with open_beside(queue, "asleep") as asleep:
        assert asleep.stats().depth == 1


def test_a_dead_letter_that_is_retried_ends_with_its_time(opened: Any, clock: FakeClock) -> None:
    """Though it was none that could end as the pass has read it: the log is read again at that time."""
    queue = opened(backoff=[0])
    queue.put_many([Put(b"waits"), Put(b"dead", ttl=HOUR)])
    first = queue.receive()
    queue.receive().reject("not now")
    pass_over(queue)
    queue.dead.retry(1)
    first.nack(delay=DAY)
    clock.advance(2 * HOUR)
    pass_over(queue)
    assert (queue.stats().depth, queue.stats().dropped) == (1, 1)


def test_the_order_of_a_key_moves_on_when_a_message_expires(opened: Any, clock: FakeClock) -> None:
    """The next message of the key is ready, although the expired one had its turn."""
    queue = opened()
    queue.put(b"a", order_key="k", ttl=60)
    queue.put(b"b", order_key="k")
    queue.groups.create("default")
    assert [each.payload for each in queue.peek(9)] == [b"a"]
    clock.advance(HOUR)
    pass_over(queue)
    assert queue.stats().dropped == 1
    assert [each.payload for each in queue.peek(9)] == [b"b"]


def test_a_pass_reads_a_bounded_number_of_messages(
    opened: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one continues."""
    monkeypatch.setattr(expiry, "MESSAGES_MAX", 20)
    monkeypatch.setattr(expiry, "_STRETCH_COUNT", 10)
    queue = opened()
    queue.groups.create("default")
    queue.put_many([Put(b"later", ttl=DAY)] * 10)
    queue.put_many([Put(b"a", ttl=60)] * 50)
    queue.put(b"stays")
    clock.advance(HOUR)
    depths = []
    for _ in range(8):
        pass_over(queue)
        depths.append(queue.stats().depth)
    assert depths[:5] == [51, 41, 31, 21, 11]  # those of the pass before are looked at once more
    assert depths[-1] == 11
    clock.advance(DAY)
    pass_over(queue)
    assert queue.stats().depth == 1


@pytest.mark.parametrize("is_open", [True, False])
def test_messages_that_come_again_by_a_seek_expire_again(opened: Any, clock: FakeClock, is_open: bool) -> None:
    """The pass has seen them, and they were ended then."""
    queue = opened()
    for name in ("moved", "default"):
        queue.groups.create(name)
    queue.put_many([Put(b"a", ttl=60)] * 5)
    queue.put(b"stays")
    clock.advance(HOUR)
    pass_over(queue)
    pass_over(queue)
    name = "default" if is_open else "moved"
    queue.groups.seek(name, 0)
    assert progress_of(queue, name).live_count(6) == 6
    pass_over(queue)
    progress = progress_of(queue, name)
    assert (progress.floor, progress.live_count(6)) == (5, 1)


def test_messages_expire_in_a_group_that_is_made_later(opened: Any, clock: FakeClock) -> None:
    """The others have finished them."""
    queue = opened(retain_messages=1000)
    queue.put_many([Put(b"a", ttl=60)] * 5)
    queue.put(b"stays")
    queue.get_many(6)
    pass_over(queue)
    clock.advance(HOUR)
    queue.groups.create("new", max_deliveries=3)
    pass_over(queue)
    assert progress_of(queue, "new").live_count(6) == 1


def progress_of(queue: PersistentQueue, name: str) -> GroupProgress:
    """Return the progress of a group as the disk has it."""
    handle = handle_of(queue)
    group = find_group(handle.storage, handle.directory, name)
    assert group is not None
    return progress_reader(handle.storage, handle.directory, handle.queue_id, group).refresh()


def test_messages_in_hand_do_not_keep_a_pass_from_what_is_behind_them(
    opened: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their stretches are read again in each pass, and take turns."""
    monkeypatch.setattr(expiry, "MESSAGES_MAX", 20)
    monkeypatch.setattr(expiry, "_STRETCH_COUNT", 10)
    queue = opened()
    queue.put_many([Put(b"a", ttl=60)] * 50)
    in_hand = [queue.receive_many(10, lease_seconds=DAY * 9)[0] for _ in range(5)]
    for each in range(5):
        queue.put(str(each).encode())
    queue.put_many([Put(b"b", ttl=60)] * 15)
    clock.advance(HOUR)
    for _ in range(6):
        pass_over(queue)
    assert [each.offset for each in in_hand] == [0, 10, 20, 30, 40]
    assert queue.stats().dropped == 15
    for each in in_hand:
        each.release()
    for _ in range(6):
        pass_over(queue)
    assert queue.stats().dropped == 20


def test_a_group_without_a_consumer_ends_all_that_a_pass_has_found(
    opened: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In steps of a bounded number of entries."""
    monkeypatch.setattr(retention, "_EXPIRED_VISIT_MAX", 10)
    queue = opened(expired="dead")
    queue.groups.create("asleep", expired="dead")
    queue.put_many([Put(b"a", ttl=60)] * 25)
    clock.advance(HOUR)
    pass_over(queue)
    assert len(progress_of(queue, "asleep").dead) == 25


def test_damage_does_not_keep_others_from_expiring(opened: Any, storage: SimulatedStorage, clock: FakeClock) -> None:
    """The consumer that comes to it reports it."""
    queue = opened()
    queue.groups.create("default")
    queue.put_many([Put(b"a" * 100, ttl=60)] * 3)
    queue.put(b"stays")
    queue.put(b"last" * 9)
    (name,) = handle_of(queue).files.names()
    with storage.open(handle_of(queue).files.path(name)) as file:
        data = file.read_at(file.size(), 0)
        at = data.index(b"a" * 100, data.index(b"a" * 100) + 100)
        file.write_at((b"x",), at)
        file.write_at((b"x",), data.index(b"last" * 9))
    clock.advance(HOUR)
    pass_over(queue)
    assert queue.stats().dropped == 2
    assert queue.get_many(2) == [b"stays"]
    with pytest.raises(Empty):
        queue.get(block=False)
    assert queue.stats().lost == 2


def test_an_error_while_reading_has_the_log_read_again(
    opened: Any, storage: SimulatedStorage, clock: FakeClock
) -> None:
    """Nothing that it has passed is forgotten."""
    queue = opened()
    queue.groups.create("default")
    queue.put(b"a", ttl=60)
    roll(queue, clock)
    queue.put(b"b", ttl=60)
    clock.advance(HOUR)
    with refusing(storage, "read_at", "1.data"), pytest.raises(StorageError):
        pass_over(queue)
    pass_over(queue)
    assert queue.stats().depth == 0


def test_a_data_file_that_is_gone_holds_nothing_that_expires(opened: Any, storage: SimulatedStorage) -> None:
    """Its consumer reports it, or every group has finished it meanwhile."""
    queue = opened()
    queue.put(b"a", ttl=60)
    files, end = handle_of(queue).files, handle_of(queue).require_write_side().end()
    found = expiry.Expiries(files).find(0, end, 2**62, lambda offset: True)
    assert [record[0] for record, _ in found] == [0]
    assert expiry.Expiries(files).find(0, end, 2**62, lambda offset: False) == []
    storage.remove(files.path(files.names()[0]))
    assert expiry.Expiries(files).find(0, end, 2**62, lambda offset: True) == []


# -- When a pass is done, and what stops it --------------------------------------------------------------------------


def test_a_pass_is_done_each_minute_in_a_thread(opened: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not between two of them."""
    monkeypatch.setattr(retention, "start_thread", start_thread)
    queue = opened(data_file_max_age=1)
    queue.put(b"a")
    clock.advance(retention.PASS_SECONDS - 1)
    look(queue)
    assert queue.stats().file_count == 1
    clock.advance(1)
    look(queue)
    wait_until(lambda: handle_of(queue).files.names()[-1].sequence == 2)


def look(queue: PersistentQueue) -> None:
    """Let the background see whether a pass is due."""
    pass_of(queue).look()


def pass_of(queue: PersistentQueue) -> retention.RetentionPass:
    """Return the passes over a queue."""
    idle_handles = queue._engine.idle_handles  # type: ignore[union-attr]
    assert idle_handles is not None
    assert idle_handles.retention is not None
    return idle_handles.retention


def test_a_new_data_file_calls_for_a_pass_if_the_queue_is_bounded_in_bytes(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a put could wait for a minute for what is only kept."""
    started: list[str] = []
    monkeypatch.setattr(retention, "start_thread", lambda work, name, end: started.append(name))
    queue = opened()
    handle_of(queue).require_write_side().roll_if_old(0, START_NS)
    queue.put(b"a")
    handle_of(queue).require_write_side().roll_if_old(0, START_NS)
    look(queue)
    assert started == []
    queue.configure(max_bytes=10**9)
    look(queue)
    assert started == ["holdfast-retention"]  # and it could not be started
    look(queue)
    assert len(started) == 1


def test_one_pass_is_under_way_at_a_time(opened: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes."""
    started: list[Any] = []

    def start(work: Any, name: str, end: Any) -> object:
        started.append((work, end))
        return object()

    monkeypatch.setattr(retention, "start_thread", start)
    queue = opened()
    clock.advance(retention.PASS_SECONDS)
    look(queue)
    clock.advance(retention.PASS_SECONDS)
    look(queue)
    assert len(started) == 1
    work, end = started[0]
    work()
    look(queue)
    assert len(started) == 2
    end()  # the interpreter ends
    queue.put(b"a")
    queue.configure(data_file_max_age=1)
    clock.advance(5)
    started[1][0]()
    assert queue.stats().file_count == 1


def test_a_step_that_fails_stops_no_other_and_is_told_once(
    opened: Any, storage: SimulatedStorage, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The next pass does it."""
    queue = opened(data_file_max_age=HOUR, max_lag_age=HOUR)
    queue.put(b"a")
    queue.get()
    put_hourly(queue, clock, 2)
    queue.put(b"last")
    clock.advance(HOUR)
    with refusing(storage, "open", "next.data"):
        with pytest.raises(StorageError):
            pass_over(queue)
        assert queue.stats().skipped == 1
        passes = pass_of(queue)
        with caplog.at_level(logging.WARNING):
            passes._run_logged()
            passes._run_logged()
        assert len([each for each in caplog.messages if "the next pass tries again" in each]) == 1
    passes._run_logged()
    assert first_offset(queue) == 2


def test_a_group_that_cannot_be_looked_at_keeps_no_other_from_being_moved_on(
    opened: Any, storage: SimulatedStorage, clock: FakeClock
) -> None:
    """The pass raises, and looks at it again the next time; no data file goes until then."""
    queue = opened(data_file_max_age=HOUR, max_lag_age=HOUR)
    queue.put(b"a")
    queue.get()
    queue.groups.create("asleep")
    put_hourly(queue, clock, 2)
    queue.put(b"last")
    clock.advance(HOUR)
    with refusing(storage, "list", "asleep"), pytest.raises(StorageError):
        pass_over(queue)
    assert queue.stats().skipped == 1


def test_what_a_dead_consumer_had_in_hand_is_not_read_again_by_each_pass(
    opened: Any, storage: SimulatedStorage, clock: FakeClock
) -> None:
    """It ends once a consumer comes; until then its stretch would use up what a pass may read."""
    queue = opened()
    queue.groups.create("asleep")
    queue.put_many([Put(b"a", ttl=HOUR), Put(b"b", ttl=HOUR)])
    queue.get_many(2)
    info = find_group(storage, handle_of(queue).directory, "asleep")
    assert info is not None
    attended = pass_of(queue)._attended(info)
    assert [attended.may_expire(offset) for offset in (0, 1)] == [True, True]
    attended.progress.deliver(0, 1, 1)
    assert [attended.may_expire(offset) for offset in (0, 1)] == [False, True]


def test_settings_of_a_group_that_were_lost_let_nothing_go(
    opened: Any, storage: SimulatedStorage, clock: FakeClock
) -> None:
    """Nobody knows what they keep."""
    queue = opened(data_file_max_age=HOUR)
    queue.groups.create("asleep", max_lag_age=HOUR)
    document = handle_of(queue).directory.group_document("asleep")
    with storage.open(document) as file:
        file.write_at((b"x",), 0)
    put_hourly(queue, clock, 4)
    queue.get_many(9)
    pass_over(queue)
    assert first_offset(queue) == 0


def test_settings_of_a_queue_that_were_lost_let_nothing_go(
    opened: Any, storage: SimulatedStorage, clock: FakeClock
) -> None:
    """What is finished is kept until they are set anew."""
    queue = opened()
    queue.put_many([b"a", b"b"])
    queue.get()
    handle_of(queue).require_write_side().roll_if_old(0, clock.time_ns())
    with storage.open(handle_of(queue).directory.identity) as file:
        file.write_at((b"x",), 0)
    queue.get()
    pass_over(queue)
    assert first_offset(queue) == 0


def test_a_group_that_another_process_has_just_taken_is_left_to_it(opened: Any, clock: FakeClock) -> None:
    """The next pass finds it free, or its owner does it."""
    queue = opened(data_file_max_age=HOUR)
    queue.groups.create("asleep", max_lag_age=HOUR)
    lock = locks.try_acquire(queue._storage, handle_of(queue).directory.group_lock("asleep"))
    assert lock is not None
    put_hourly(queue, clock, 4)
    lock.release()
    with open_beside(queue, "asleep") as asleep:
        assert asleep.stats().skipped == 0
    pass_over(queue)
    with open_beside(queue, "asleep") as asleep:
        assert asleep.stats().skipped == 2


def test_a_side_that_is_closed_is_left_alone(opened: Any, clock: FakeClock) -> None:
    """A pass may have begun before."""
    queue = opened()
    queue.put(b"a", ttl=1)
    queue.peek()
    side = handle_of(queue).require_read_side()
    assert side.move_on(1) == 0  # it has not begun
    side.expire([((0, 1, b"", b"", 5000, 1), 1)])
    queue.close()
    side.sweep()
    assert side.move_on(1) == 0
    side.expire([((0, 1, b"", b"", 5000, 1), 1)])
    assert not side.progress.is_finished(0)


def test_a_queue_that_closes_does_not_wait_for_the_rest_of_a_pass(
    opened: Any, storage: SimulatedStorage, clock: FakeClock
) -> None:
    """Groups that were not looked after yet are left to the next owner."""
    queue = opened(data_file_max_age=HOUR)
    queue.groups.create("asleep", max_lag_age=HOUR)
    put_hourly(queue, clock, 2)
    queue.put(b"last")
    clock.advance(HOUR)
    storage.before_verb = lambda verb, path: pass_of(queue)._end_soon() if path.name == "group.json" else None
    pass_over(queue)
    storage.before_verb = None
    pass_of(queue)._is_over = False
    with open_beside(queue, "asleep") as asleep:
        assert asleep.stats().skipped == 0


@pytest.mark.parametrize("message", ["were skipped", "is a dead letter"])
def test_a_logging_handler_may_close_the_queue_in_the_middle_of_a_pass(
    storage: SimulatedStorage, clock: FakeClock, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The pass ends with it, and progress is kept."""
    caplog.set_level(logging.INFO)
    queue = open_queue(storage, clock=clock, data_file_max_age=HOUR, max_lag_age=HOUR, expired="dead")
    queue.groups.create("default")
    put_hourly(queue, clock, 1)
    queue.put_many([b"skipped", b"last"])
    clock.advance(HOUR)
    pass_over(queue)
    queue.put(b"newer", ttl=HOUR / 2)
    clock.advance(HOUR)
    closed: list[str] = []

    class Closing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if message in record.getMessage():
                queue.close()
                closed.append(message)

    handler, threads = Closing(), Threads()
    logger = logging.getLogger("holdfast")
    logger.addHandler(handler)
    try:
        threads.start(pass_of(queue)._run_logged)
        threads.join(20)
    finally:
        logger.removeHandler(handler)
    assert closed
    with open_queue(storage, clock=clock) as again:
        assert again.stats().lost == 0


def test_what_a_group_without_an_owner_skips_makes_its_file_small_at_once(
    opened: Any, storage: SimulatedStorage, clock: FakeClock
) -> None:
    """A full disk may have no space for all that the group remembers; that it skips is what makes space."""
    queue = opened(data_file_max_age=HOUR)
    queue.groups.create("slow", max_lag_age=HOUR)
    queue.put_many([b"x"] * 2001)
    with open_beside(queue, "slow") as slow:
        for delivery in slow.receive_many(2001)[::2]:
            delivery.ack()
    before = len(storage.log)
    put_hourly(queue, clock, 3)
    written = [len(each.data) for each in storage.log[before:] if isinstance(each, Write)]
    assert 0 < max(written) < 2**13
    with open_beside(queue, "slow") as slow:
        assert slow.stats().skipped == 1001


def test_no_file_goes_by_progress_whose_sync_has_failed(
    opened: Any, storage: SimulatedStorage, clock: FakeClock
) -> None:
    """A second sync could succeed over lost data: the progress is written again first, into a new file."""
    queue = opened(data_file_max_age=HOUR)
    queue.groups.create("asleep", max_lag_age=HOUR)
    put_hourly(queue, clock, 1)
    queue.get()
    with refusing(storage, "sync", ".position"), refusing(storage, "remove", "next.position"):
        for _ in range(3):
            queue.put(b"more")
            clock.advance(HOUR)
            with suppress(StorageError):
                pass_over(queue)
    assert handle_of(queue).doubtful == {"asleep"}
    assert first_offset(queue) == 0
    handle_of(queue).reclaim()
    assert first_offset(queue) == 0
    left = storage.crash_dropping_unsynced()
    assert verify(ORDERS, storage=left).ok


def test_doubt_ends_when_the_progress_was_written_again(
    opened: Any, storage: SimulatedStorage, clock: FakeClock
) -> None:
    """By the next pass, or by an opening; or the group is deleted."""
    queue = opened(data_file_max_age=HOUR)
    for name in ("asleep", "woken", "deleted"):
        queue.groups.create(name, max_lag_age=HOUR)
    put_hourly(queue, clock, 3)
    queue.get_many(9)
    handle_of(queue).doubtful.update(["asleep", "woken", "deleted"])
    queue.groups.delete("deleted")
    with open_beside(queue, "woken"):
        pass_over(queue)
    assert handle_of(queue).doubtful == set()
    assert first_offset(queue) == 1


def test_a_side_whose_sync_has_failed_lets_no_file_go(opened: Any, storage: SimulatedStorage, clock: FakeClock) -> None:
    """However often a pass tries: the queue has to be opened again."""
    queue = opened(data_file_max_age=HOUR, max_lag_age=HOUR)
    queue.put(b"a")
    queue.get()
    put_hourly(queue, clock, 2)
    queue.put(b"last")
    clock.advance(HOUR)
    with refusing(storage, "sync", ".position"), pytest.raises(StorageError):
        pass_over(queue)
    for _ in range(2):
        with pytest.raises(StorageError):
            pass_over(queue)
    with suppress(StorageError):
        queue.close()
    left = storage.crash_dropping_unsynced()
    assert verify(ORDERS, storage=left).ok
    with open_queue(left, clock=clock) as again:
        assert again.stats().lost == 0

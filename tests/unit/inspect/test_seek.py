"""Moving a group: back and ahead, while it is read, in every mode; what stays of the life before, and what goes."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    GroupNotFoundError,
    LeaseExpiredError,
    PersistentQueue,
    PoisonedError,
    QueueLockedError,
    StorageError,
    TransactionStateError,
    UsageError,
    verify,
)
from holdfast.errors import Empty
from holdfast.persistence.filesystem import locks
from holdfast.persistence.groups import own_group
from holdfast.persistence.groups.group_files import change_group
from holdfast.queue.engine import handle_settings, log_starts
from holdfast.queue.engine.log_starts import GroupStart
from holdfast.queue.options.log_start import LogStart
from holdfast.queue.options.queue_options import Mode
from holdfast.queue.producer.write_side import WriteSide
from support.builders.clocks import NS_PER_SECOND, START_NS, FakeClock
from support.builders.handles import handle_of
from support.builders.transactions import open_queue
from support.processes.children import child
from support.processes.threads import Threads, wait_until
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

FILE_BYTES = 16 * 2**10
MODES: tuple[Mode, ...] = ("exclusive", "shared")


@pytest.fixture(params=[*MODES, "client"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PersistentQueue]:
    """A queue of small data files: owned alone, shared, and as the client of another handle."""
    path = tmp_path / "orders"
    if request.param == "client":
        with (
            PersistentQueue(path, data_file_bytes=FILE_BYTES, max_deliveries=3, backoff=[0.0]),
            PersistentQueue(path, can_own=False) as client,
        ):
            yield client
        return
    with PersistentQueue(
        path, mode=request.param, data_file_bytes=FILE_BYTES, max_deliveries=3, backoff=[0.0]
    ) as opened:
        yield opened


def put_numbers(queue: PersistentQueue, first: int, end: int) -> None:
    """Put messages of 1,000 bytes; about 15 make a data file."""
    for number in range(first, end):
        queue.put(b"%06d" % number + bytes(994))


def numbers_left(queue: PersistentQueue) -> list[int]:
    """Take all that is there."""
    numbers = []
    while True:
        try:
            numbers += [int(payload[:6]) for payload in queue.get_many(100, timeout=0)]
        except Empty:
            return numbers


# -- Where it goes -----------------------------------------------------------------------------------------------------


def test_a_group_that_is_moved_back_gets_its_messages_again(queue: PersistentQueue) -> None:
    """From the offset on, in their order, and what is put behind them."""
    queue.groups.create("keeps")
    put_numbers(queue, 0, 40)
    assert numbers_left(queue) == list(range(40))
    started = queue.groups.seek("default", 7)
    assert (started.offset, started.is_complete) == (7, True)
    put_numbers(queue, 40, 42)
    assert queue.stats().depth == 35
    assert numbers_left(queue) == list(range(7, 42))


def test_a_group_that_is_moved_ahead_skips_messages_and_their_files_go(queue: PersistentQueue) -> None:
    """The space is there at once: no consumer has to reach them."""
    put_numbers(queue, 0, 100)
    assert queue.peek(1)[0].offset == 0
    queue.get_nowait()
    before = len(list((queue.path / "data").iterdir()))
    assert queue.groups.seek("default", "latest").offset == 100
    assert queue.stats().depth == 0
    assert queue.stats().first_offset > 70
    assert len(list((queue.path / "data").iterdir())) < before
    put_numbers(queue, 100, 101)
    assert numbers_left(queue) == [100]


def test_the_last_messages_are_counted_from_the_end(queue: PersistentQueue) -> None:
    """More than there are means all."""
    queue.groups.create("keeps")
    put_numbers(queue, 0, 10)
    assert queue.groups.seek("default", -3).offset == 7
    assert numbers_left(queue) == [7, 8, 9]
    assert queue.groups.seek("default", -30).offset == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_group_is_moved_to_a_time_or_so_long_ago(tmp_path: Path, mode: Mode) -> None:
    """To the first message that was put then or later."""
    clock = FakeClock()
    with PersistentQueue(tmp_path / "q", mode=mode, clock=clock, data_file_bytes=FILE_BYTES) as queue:
        for number in range(40):
            put_numbers(queue, number, number + 1)
            clock.advance(60)
        at = datetime.fromtimestamp(START_NS / NS_PER_SECOND, UTC)
        queue.groups.create("keeps")
        assert queue.groups.create("late", at + timedelta(minutes=12)) == 12
        assert queue.groups.seek("default", at + timedelta(minutes=33.5)).offset == 34
        assert queue.groups.seek("default", timedelta(minutes=5)).offset == 35
        assert queue.groups.seek("default", at + timedelta(days=1)).offset == 40
        started = queue.groups.seek("default", at - timedelta(days=1))
        assert (started.offset, started.is_complete) == (0, True)


def test_a_log_that_is_not_kept_so_far_back_says_how_far_it_is(queue: PersistentQueue) -> None:
    """The group starts at the oldest message that is there."""
    put_numbers(queue, 0, 100)
    assert len(numbers_left(queue)) == 100
    oldest = queue.stats().first_offset
    assert oldest > 0
    for asked in (0, -100, timedelta(days=1)):
        started = queue.groups.seek("default", asked)
        assert (started.offset, started.is_complete) == (oldest, False)
        assert queue.peek(1)[0].offset == oldest
    started = queue.groups.seek("default", "earliest")
    assert (started.offset, started.is_complete) == (oldest, True)
    assert numbers_left(queue) == list(range(oldest, 100))
    assert queue.recovery.damage == ()


def test_a_gap_in_the_middle_of_the_log_is_passed_and_told(queue: PersistentQueue) -> None:
    """One message that was kept keeps its file only."""
    put_numbers(queue, 0, 100)
    pinned = queue.receive()
    while queue.stats().depth > 1:
        queue.get_many(100)
    with pytest.raises(ConfigError, match="not 101"):
        queue.groups.seek("default", 101)
    started = queue.groups.seek("default", 30)
    assert started.offset > 70
    assert not started.is_complete
    with pytest.raises(LeaseExpiredError):
        pinned.ack()
    started = queue.groups.seek("default", "earliest")
    assert not started.is_complete or started.offset > 70
    there = numbers_left(queue)
    assert there[-1] == 99
    assert queue.stats().lost == 0
    assert verify(queue.path).ok


# -- What goes with it -------------------------------------------------------------------------------------------------


def test_messages_in_hand_are_taken_away(queue: PersistentQueue) -> None:
    """Each verb of their deliveries says so, and changes nothing; they come again by themselves."""
    put_numbers(queue, 0, 6)
    deliveries = [queue.receive() for _ in range(6)]
    queue.groups.seek("default", 0)
    stale = dict(enumerate(deliveries))
    verbs = (
        stale[0].ack,
        stale[1].nack,
        lambda: stale[2].reject("no"),
        stale[3].release,
        lambda: stale[4].extend(60),
        lambda: stale[5].park(ValueError("no")),
    )
    for verb in verbs:
        with pytest.raises(LeaseExpiredError, match="moved by seek"):
            verb()
    assert queue.stats().in_flight == 0
    assert len(queue.dead.offsets()) == 0
    assert numbers_left(queue) == [0, 1, 2, 3, 4, 5]


def test_a_block_that_is_open_at_a_seek_ends_with_an_error(queue: PersistentQueue) -> None:
    """Its message comes again, although its lease would not run out."""
    put_numbers(queue, 0, 1)
    with pytest.raises(LeaseExpiredError, match="moved by seek"), queue.receive():
        queue.groups.seek("default", "earliest")
    assert numbers_left(queue) == [0]


def test_delivery_counts_and_delays_go(queue: PersistentQueue) -> None:
    """A message that failed twice, and waits for an hour, is as if it was never delivered."""
    put_numbers(queue, 0, 1)
    queue.receive().nack(delay=0)
    with queue.receive() as second:
        assert second.delivery_count == 2
        second.nack(delay=3600)
    with pytest.raises(Empty):
        queue.receive(timeout=0)
    queue.groups.seek("default", 0)
    with queue.receive(timeout=0) as again:
        assert again.delivery_count == 1


@pytest.mark.parametrize("start", [0, 3, "latest"])
def test_dead_letters_stay(queue: PersistentQueue, start: int | str) -> None:
    """In front of the start, and behind it: they are not delivered, and can be retried."""
    put_numbers(queue, 0, 6)
    for number in range(6):
        delivery = queue.receive()
        if number in {1, 4}:
            delivery.reject(f"number {number}")
        else:
            delivery.ack()
    started = queue.groups.seek("default", start)
    letters = queue.dead.list()
    assert [(each.offset, each.detail, each.delivery_count) for each in letters] == [
        (1, "number 1", 1),
        (4, "number 4", 1),
    ]
    rest = [number for number in range(started.offset, 6) if number not in {1, 4}]
    assert queue.stats().depth == len(rest)
    assert numbers_left(queue) == rest
    assert queue.dead.retry([1]) == 1
    assert numbers_left(queue) == [1]
    assert queue.dead.offsets() == [4]


def test_dead_letters_in_front_of_a_group_keep_their_files_only(queue: PersistentQueue) -> None:
    """What lies between them and the start is finished."""
    put_numbers(queue, 0, 100)
    queue.receive().reject("broken")
    assert queue.groups.seek("default", "latest").offset == 100
    stats = queue.stats()
    assert (stats.depth, stats.dead, stats.first_offset) == (0, 1, 0)
    assert len(list((queue.path / "data").iterdir())) == 2
    assert queue.dead.retry([0]) == 1
    assert numbers_left(queue) == [0]


def test_settings_and_a_pause_stay(queue: PersistentQueue) -> None:
    """They are the group's, whatever it has read."""
    queue.groups.create("keeps")
    put_numbers(queue, 0, 3)
    queue.configure(lease_seconds=77)
    queue.pause(reason="closed")
    queue.groups.seek("default", "earliest")
    assert queue.settings["lease_seconds"] == 77
    with pytest.raises(Empty):
        queue.get(timeout=0)
    queue.resume()
    assert numbers_left(queue) == [0, 1, 2]


def test_what_was_moved_is_moved_after_a_restart(tmp_path: Path) -> None:
    """Twice: the next position files are of the same life."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        queue.groups.create("keeps")
        put_numbers(queue, 0, 30)
        assert len(numbers_left(queue)) == 30
        queue.groups.seek("default", 20)
    for first in (20, 23):
        with PersistentQueue(path, mode="exclusive") as queue:
            assert [int(each[:6]) for each in queue.get_many(3)] == [first, first + 1, first + 2]
    with PersistentQueue(path, mode="exclusive") as queue:
        assert numbers_left(queue) == [26, 27, 28, 29]
        assert queue.recovery.clean
    assert verify(path).ok


# -- What stands in the way --------------------------------------------------------------------------------------------


def test_a_group_with_a_reservation_is_not_moved(queue: PersistentQueue) -> None:
    """Once it is decided, the group is; and no later one has an id that was used before."""
    queue.groups.create("keeps")
    put_numbers(queue, 0, 10)
    first = queue.reservations.take(max_messages=5)
    assert first is not None
    with pytest.raises(TransactionStateError, match="1 prepared transactions or reservations"):
        queue.groups.seek("default", 0)
    assert [each.id for each in queue.reservations.held()] == [first.id]
    queue.reservations.commit(first)
    queue.groups.seek("default", 0)
    again = queue.reservations.take(max_messages=5)
    assert again is not None
    assert again.runs[0][:2] == first.runs[0][:2] == (0, 5)
    assert again.id != first.id


def test_a_group_with_a_prepared_transaction_is_not_moved(queue: PersistentQueue) -> None:
    """Its messages are held until it is decided."""
    put_numbers(queue, 0, 2)
    tx = queue.begin()
    tx.ack(tx.receive(timeout=1))
    transaction_id = tx.prepare()
    with pytest.raises(TransactionStateError, match="then seek"):
        queue.groups.seek("default", "latest")
    queue.commit_prepared(transaction_id)
    assert queue.groups.seek("default", 0).offset == 0
    assert numbers_left(queue) == [0, 1]


def test_a_transaction_that_is_open_at_a_seek_cannot_commit(queue: PersistentQueue) -> None:
    """What it puts is not there: it belongs to messages that were taken away from it."""
    put_numbers(queue, 0, 2)
    tx = queue.begin()
    tx.ack(tx.receive(timeout=1))
    tx.put(b"%06d" % 9)
    queue.groups.seek("default", 1)
    with pytest.raises(LeaseExpiredError, match="moved by seek"):
        tx.commit()
    assert numbers_left(queue) == [1]


def test_a_mode_that_only_looks_moves_nothing(tmp_path: Path) -> None:
    """It sees that another handle has moved the group."""
    with (
        PersistentQueue(tmp_path / "q", mode="exclusive", data_file_bytes=FILE_BYTES) as queue,
        PersistentQueue(tmp_path / "q", mode="read_only") as looking,
    ):
        queue.groups.create("keeps")
        put_numbers(queue, 0, 5)
        assert len(numbers_left(queue)) == 5
        with pytest.raises(UsageError, match="change groups"):
            looking.groups.seek("default", 0)
        assert looking.peek(9) == []
        queue.groups.seek("default", 2)
        assert [each.offset for each in looking.peek(9)] == [2, 3, 4]
        assert (looking.stats().depth, looking.qsize()) == (3, 3)
        assert int(queue.get_nowait()[:6]) == 2
        assert [each.offset for each in looking.peek(9)] == [3, 4]


def test_a_group_that_is_not_there_is_not_moved(queue: PersistentQueue) -> None:
    """Nor is one made; the default group begins."""
    put_numbers(queue, 0, 2)
    with pytest.raises(GroupNotFoundError):
        queue.groups.seek("nightly", 0)
    with pytest.raises(ConfigError):
        queue.groups.seek("no/name", 0)
    assert queue.groups.list() == []
    queue.groups.seek("default", 1)
    assert queue.groups.list() == ["default"]
    assert numbers_left(queue) == [1]


def test_another_group_than_the_handles_is_moved(queue: PersistentQueue) -> None:
    """Without a handle of its own, and again; its next reader finds it there."""
    queue.groups.create("audit")
    put_numbers(queue, 0, 5)
    assert queue.groups.seek("audit", 4).offset == 4
    assert queue.groups.seek("audit", 3).offset == 3
    assert numbers_left(queue) == [0, 1, 2, 3, 4]
    queue.close()
    if queue.mode == "exclusive" or queue.is_owner:
        with PersistentQueue(queue.path, mode="exclusive", group="audit") as audit:
            assert numbers_left(audit) == [3, 4]
        return
    with PersistentQueue(queue.path, group="audit") as audit:
        assert numbers_left(audit) == [3, 4]


def test_two_threads_may_move_one_group_that_is_not_the_handles(queue: PersistentQueue) -> None:
    """One after the other; neither is told that the group has an owner."""
    queue.groups.create("audit")
    put_numbers(queue, 0, 5)
    threads = Threads()
    for _ in range(4):
        threads.start(lambda: [queue.groups.seek("audit", start) for start in (1, 2, 3)])
    threads.join()
    assert queue.groups.seek("audit", 4).offset == 4


def test_a_seek_that_is_refused_leaves_nothing_open(tmp_path: Path) -> None:
    """The group has an owner, which it stays with."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        queue.groups.create("audit")
        put_numbers(queue, 0, 5)
        handle = handle_of(queue)
        groups = list(handle.open_groups)
        lock = locks.try_acquire(handle.storage, handle.directory.group_lock("audit"))
        assert lock is not None
        with pytest.raises(QueueLockedError):
            queue.groups.seek("audit", 1)
        lock.release()
        assert handle.open_groups == groups
        queue.groups.seek("audit", 1)
        assert handle.open_groups == groups


def test_a_group_that_another_process_owns_is_not_moved_past_its_lock(tmp_path: Path) -> None:
    """As a stream's process does for a moment: the error names it."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        queue.groups.create("audit")
        lock = queue.path / "groups" / "audit" / "read.lock"
        with lock.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(QueueLockedError):
                queue.groups.seek("audit", 0)
        assert queue.groups.seek("audit", 0).offset == 0


def test_a_seek_keeps_the_settings_that_another_program_has_stored(tmp_path: Path) -> None:
    """The handle that moves the group has not asked for them, and may not have seen them."""
    path = tmp_path / "orders"
    with PersistentQueue(path) as queue:
        queue.put(b"a")
        assert queue.get(timeout=0) == b"a"
        with PersistentQueue(path, max_deliveries=77):
            queue.groups.seek("default", 0)
    with PersistentQueue(path, mode="read_only") as look:
        assert look.settings["max_deliveries"] == 77


def test_the_document_of_a_group_is_written_under_the_lock_of_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each that changes settings: else one could write the life before a seek again, and unfinished messages go."""
    path, changes = tmp_path / "orders", list[bool]()

    def change(*arguments: Any) -> Any:
        with (path / "groups" / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                changes.append(True)
            else:
                changes.append(False)
        return change_group(*arguments)

    with PersistentQueue(path) as queue:
        queue.put(b"a")
        assert queue.get(timeout=0) == b"a"
        monkeypatch.setattr(own_group, "change_group", change)
        monkeypatch.setattr(handle_settings, "change_group", change)
        queue.configure(dead_letter_seconds=99)
        with PersistentQueue(path, max_deliveries=77):
            assert changes == [True, True]


# -- While others work -------------------------------------------------------------------------------------------------


def test_a_thread_that_waits_for_a_message_gets_the_first_one_of_the_new_life(queue: PersistentQueue) -> None:
    """Nothing has to be put for it to wake."""
    queue.groups.create("keeps")
    put_numbers(queue, 0, 3)
    assert len(numbers_left(queue)) == 3
    found: list[bytes] = []
    threads = Threads()
    threads.start(lambda: found.append(queue.get(timeout=30)))
    queue.groups.seek("default", 1)
    threads.join()
    assert [int(each[:6]) for each in found] == [1]


def test_join_waits_for_what_comes_again(queue: PersistentQueue) -> None:
    """And for nothing that was skipped."""
    queue.groups.create("keeps")
    put_numbers(queue, 0, 4)
    for _ in range(4):
        queue.get_nowait()
        queue.task_done()
    queue.join()
    queue.groups.seek("default", 1)
    assert queue.unfinished_tasks == 3
    queue.get_nowait()
    queue.groups.seek("default", "latest")
    queue.task_done()
    queue.join()
    with pytest.raises(ValueError, match="too many"):
        queue.task_done()


def test_a_loop_that_consumes_learns_of_a_seek(queue: PersistentQueue) -> None:
    """It ends with the error of the message that was in its hands, and the next loop begins at the start."""
    queue.groups.create("keeps")
    put_numbers(queue, 0, 5)

    def loop() -> None:
        for delivery in queue.consume(prefetch=2, timeout=0):
            if delivery.offset == 3:
                queue.groups.seek("default", 2)

    with pytest.raises(LeaseExpiredError, match="moved by seek"):
        loop()
    assert [each.offset for each in queue.consume(timeout=0)] == [2, 3, 4]


def test_consumers_of_several_threads_get_each_message_of_the_last_life_once(queue: PersistentQueue) -> None:
    """Seeks come in between; what was in hand then is stale, and every other message is finished by one of them."""
    queue.groups.create("keeps")
    put_numbers(queue, 0, 60)
    finished: list[tuple[int, int]] = []
    lives = [0]
    lock = threading.Lock()

    def work() -> None:
        while True:
            try:
                delivery = queue.receive(timeout=0.5)
            except Empty:
                return
            life = lives[-1]
            try:
                delivery.ack()
            except LeaseExpiredError:
                continue
            with lock:
                finished.append((life, delivery.offset))

    threads = Threads()
    for _ in range(3):
        threads.start(work)
    for life in range(1, 4):
        queue.groups.seek("default", 10)
        lives.append(life)
    threads.join()
    of_last = [offset for life, offset in finished if life == 3]
    assert len(of_last) == len(set(of_last))
    assert {offset for _, offset in finished if offset >= 10} == set(range(10, 60))
    assert queue.stats().depth == 0


def _consume(path: Path, notes: Path) -> None:
    """Own the queue, and finish what comes; note each message once its acknowledgement has returned."""
    with PersistentQueue(path) as queue, notes.open("a") as file:
        while True:
            try:
                delivery = queue.receive(timeout=1)
                delivery.ack()
            except Empty:
                return
            except LeaseExpiredError:
                continue
            file.write(f"{delivery.offset}\n")
            file.flush()


def test_a_client_moves_a_group_while_another_process_owns_the_queue_and_consumes(tmp_path: Path) -> None:
    """From the last seek on each message is finished once more, in order."""
    path, notes = tmp_path / "orders", tmp_path / "notes"
    with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        queue.groups.create("keeps")
        put_numbers(queue, 0, 80)
    notes.touch()
    with child(partial(_consume, path, notes)):
        wait_until(lambda: notes.read_text().count("\n") >= 30)
        with PersistentQueue(path, can_own=False) as client:
            for start in (5, 0, 10):
                assert client.groups.seek("default", start).offset == start
            wait_until(lambda: client.stats().depth == 0)
        finished = [int(line) for line in notes.read_text().split()]
    last = max(at for at, offset in enumerate(finished) if offset == 10)
    assert finished[last:] == list(range(10, 80))


# -- Where the disk refuses, and in the middle of others' work ---------------------------------------------------------


def test_a_seek_that_the_disk_refuses_leaves_the_group_where_it_was() -> None:
    """Consumers continue with what they have in hand; a handle that only looks sees the group as it is."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue, open_queue(storage, mode="read_only") as looking:
        queue.groups.create("keeps")
        for number in range(4):
            queue.put(b"%d" % number)
        queue.get_nowait()
        held = queue.receive()
        assert looking.peek(9)
        for name in ("next.position", "group.json.new"):
            with refusing(storage, "rename", name), pytest.raises(StorageError, match=r"a group|position file"):
                queue.groups.seek("default", 0)
        assert [each.offset for each in looking.peek(9)] == [1, 2, 3]
        held.ack()
        assert queue.get_nowait() == b"2"
        assert [each.offset for each in looking.peek(9)] == [3]
        queue.groups.seek("default", 1)
        assert [each.offset for each in looking.peek(9)] == [1, 2, 3]


def test_a_seek_of_which_nobody_knows_poisons_the_group() -> None:
    """Another handle finds the one life or the other, whole."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.groups.create("keeps")
        queue.put(b"one")
        queue.put(b"two")
        queue.get_nowait()
        named: list[Path] = []

        def refuse(verb: str, path: Path) -> None:
            if named and verb in {"sync_directory", "rename"}:
                raise OSError(5, "Input/output error", str(path))
            if verb == "rename" and path.name == "group.json.new":
                named.append(path)

        storage.before_verb = refuse
        with pytest.raises(CommitUnknownError):
            queue.groups.seek("default", 0)
        storage.before_verb = None
        for verb in (queue.get_nowait, lambda: queue.groups.seek("default", 0)):
            with pytest.raises(PoisonedError):
                verb()
        for left, count in ((storage.crash_keeping_all(), 2), (storage.crash_dropping_unsynced(), 1)):
            with open_queue(left) as again:
                assert again.stats().depth == count


def test_a_commit_that_a_seek_comes_into_finishes_nothing_of_the_new_life(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It had been decided before: what it puts is there, once, also after a restart that redoes it; nothing is due."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.groups.create("keeps")
        queue.put(b"one")
        queue.put(b"two")
        tx = queue.begin()
        tx.ack(tx.receive(timeout=1))
        tx.put(b"result")
        decide = WriteSide.decide

        def decide_and_move(side: WriteSide, *arguments: Any) -> range:
            offsets = decide(side, *arguments)
            queue.groups.seek("default", 0)
            return offsets

        monkeypatch.setattr(WriteSide, "decide", decide_and_move)
        assert tx.commit() == range(2, 3)
        assert [each for each in caplog.records if each.levelname == "ERROR"] == []
        assert [each.offset for each in queue.peek(9)] == [0, 1, 2]
        crashed = storage.crash_dropping_unsynced()
        queue.get_nowait()
    with open_queue(crashed) as again:
        assert [each.offset for each in again.peek(9)] == [0, 1, 2]


def test_a_start_that_another_version_sends_is_refused() -> None:
    """It says what it does not know."""
    for fields in (None, [], ["offset"], ["offset", -1], ["offset", True], ["moon", 1], ["time", 2**63]):
        with pytest.raises(UsageError, match="this version knows no start"):
            LogStart.from_fields(fields)
    assert str(LogStart.from_fields(["last", 3])) == "last 3"
    assert str(LogStart("latest")) == "latest"


@pytest.mark.parametrize("error", [CorruptionError("damaged"), FileNotFoundError()])
def test_a_log_whose_first_header_cannot_be_read_may_be_incomplete(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Nothing says when the messages before it were put."""
    put_numbers(queue, 0, 100)
    assert len(numbers_left(queue)) == 100
    oldest = queue.stats().first_offset

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(log_starts, "read_data_file_header", refuse)
    started = queue.groups.seek("default", timedelta(days=1))
    assert (started.offset, started.is_complete) == (oldest, False)


def test_a_time_just_behind_what_is_gone_has_all_its_messages(tmp_path: Path) -> None:
    """The header of the oldest file says that nothing before it is younger."""
    clock = FakeClock()
    with PersistentQueue(tmp_path / "q", mode="exclusive", clock=clock, data_file_bytes=FILE_BYTES) as queue:
        for number in range(100):
            put_numbers(queue, number, number + 1)
            clock.advance(60)
        assert len(numbers_left(queue)) == 100
        oldest = queue.stats().first_offset
        at = datetime.fromtimestamp(START_NS / NS_PER_SECOND, UTC) + timedelta(minutes=oldest)
        assert queue.groups.seek("default", at) == GroupStart(oldest, is_complete=True)
        assert queue.groups.seek("default", at - timedelta(seconds=59)) == GroupStart(oldest, is_complete=True)
        assert queue.groups.seek("default", at - timedelta(seconds=61)) == GroupStart(oldest, is_complete=False)


def test_a_time_whose_messages_are_gone_in_the_middle_of_the_log_is_not_complete(tmp_path: Path) -> None:
    """The header of the file behind the gap says whether a message that is gone was put then or later."""
    clock = FakeClock()
    with PersistentQueue(tmp_path / "q", mode="exclusive", clock=clock, data_file_bytes=FILE_BYTES) as queue:
        put_numbers(queue, 0, 1)
        pinned = queue.receive()
        pinned.reject("it keeps the first data file")
        clock.advance(60)
        for number in range(1, 100):
            put_numbers(queue, number, number + 1)
            clock.advance(60)
        assert len(numbers_left(queue)) == 99
        reading = queue.read("earliest")
        behind = next(message.offset for message in reading if message.offset > 20)
        at = datetime.fromtimestamp(START_NS / NS_PER_SECOND, UTC) + timedelta(minutes=behind)
        assert queue.groups.seek("default", at) == GroupStart(behind, is_complete=True)
        assert queue.groups.seek("default", at - timedelta(seconds=61)) == GroupStart(behind, is_complete=False)
        assert queue.groups.seek("default", at - timedelta(minutes=20)).is_complete is False


def test_a_life_that_does_not_begin_leaves_the_group_where_it_is(tmp_path: Path) -> None:
    """What is in hand stays so, and is acknowledged."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put_many([b"a", b"b"])
        delivery = queue.receive(timeout=0)
        queue._handle.require_read_side().seek(lambda: None)
        delivery.ack()
        assert queue.get(timeout=0) == b"b"

"""Ids, priorities and order keys beside something else: a large batch, a dead letter, reading the log anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Empty, Full, PersistentQueue, Put, RecordTooLargeError
from support.builders.clocks import FakeClock
from support.builders.takes import by_receive, taken
from support.storages.simulated_storage import SimulatedStorage

QUEUE = Path("/queue")
FILE_BYTES = 16 * 2**10
LARGE = bytes(3000)
LARGE_COUNT = 4  # in one transaction: more than a quarter of a data file, so its file becomes part of the log as it is


def open_queue(storage: SimulatedStorage, **options: object) -> PersistentQueue:
    """Open the queue of these tests; time stands still, and what fails once is a dead letter."""
    return PersistentQueue(
        QUEUE,
        storage=storage,
        clock=FakeClock(),
        data_file_bytes=FILE_BYTES,
        **{"mode": "exclusive", **{"max_deliveries": 1, "backoff": [], **options}},  # type: ignore[arg-type]
    )


def put_large_batch(queue: PersistentQueue, *more: Put) -> None:
    """Commit a transaction that is adopted, and not copied."""
    with queue.transaction() as tx:
        tx.put_many([*[LARGE] * LARGE_COUNT, *more])


@pytest.mark.parametrize("is_killed", [False, True], ids=["power loss", "kill"])
@pytest.mark.parametrize("is_prepared", [False, True], ids=["committed", "prepared"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["at once", "later"])
def test_ids_in_front_of_a_large_batch_are_remembered_behind_it(
    is_killed: bool, is_prepared: bool, goes_on: bool
) -> None:
    """The batch becomes a data file of its own, and the one that says the ids is not the last one any more."""
    storage = SimulatedStorage()
    queue = open_queue(storage)
    offsets = {name: queue.put(name.encode(), dedup_id=name) for name in ("first", "second")}
    if is_prepared:
        tx = queue.begin()
        tx.put_many([LARGE] * LARGE_COUNT)
        tx.prepare("large")
        queue.commit_prepared("large")
    else:
        put_large_batch(queue)
    if goes_on:
        offsets["third"] = queue.put(b"third", dedup_id="third")
    left = storage.crash_keeping_all() if is_killed else storage.crash_dropping_unsynced()
    queue.close()
    with open_queue(left) as queue:
        assert {name: queue.put(b"again", dedup_id=name) for name in offsets} == offsets
        assert taken(queue) == [b"first", b"second", *[LARGE] * LARGE_COUNT, *[b"third"] * goes_on]


@pytest.mark.parametrize("is_reopened", [False, True], ids=["at once", "after a loss of power"])
def test_a_prioritized_message_of_a_large_batch_comes_first(is_reopened: bool) -> None:
    """Though the messages of a batch that is adopted are not looked at."""
    storage = SimulatedStorage()
    queue = open_queue(storage)
    queue.put(b"in front")
    put_large_batch(queue, Put(b"urgent", priority=5))
    if is_reopened:
        left = storage.crash_dropping_unsynced()
        queue.close()
        queue = open_queue(left)
    assert queue.get(timeout=0) == b"urgent"
    assert taken(queue) == [b"in front", *[LARGE] * LARGE_COUNT]
    queue.close()


def test_a_prioritized_message_comes_first_after_a_loss_of_power() -> None:
    """The first of a queue that never had one; that it has priorities is as durable as the message."""
    storage = SimulatedStorage()
    queue = open_queue(storage)
    queue.put(b"plain")
    queue.put(b"urgent", priority=5)
    left = storage.crash_dropping_unsynced()
    queue.close()
    with open_queue(left) as queue:
        assert taken(queue) == [b"urgent", b"plain"]


@pytest.mark.parametrize("is_reopened", [False, True], ids=["at once", "after a kill"])
def test_a_retried_dead_letter_waits_for_the_message_of_its_key_that_is_in_hand(is_reopened: bool) -> None:
    """And is next once that one is finished, in front of the others of its key."""
    storage = SimulatedStorage()
    queue = open_queue(storage)
    for number in range(3):
        queue.put(b"key %d" % number, order_key="key")
    with pytest.raises(ZeroDivisionError), queue.receive(timeout=0):
        raise ZeroDivisionError
    (letter,) = queue.dead.list()
    if is_reopened:
        left = storage.crash_keeping_all()
        queue.close()
        queue = open_queue(left)
    in_hand = queue.receive(timeout=0)
    assert in_hand.payload == b"key 1"
    assert queue.dead.retry(letter) == 1
    with pytest.raises(Empty):
        queue.receive(timeout=0)
    in_hand.ack()
    assert sorted(taken(queue, by_receive)) == [b"key 0", b"key 2"]
    queue.close()


def abort_one(queue: PersistentQueue) -> None:
    """Abort a prepared transaction, which has the log read again from the oldest unfinished message on."""
    tx = queue.begin()
    tx.ack(tx.receive(timeout=0))
    tx.prepare("undecided")
    queue.abort_prepared("undecided")


def test_reading_the_log_anew_gives_no_second_message_of_a_key_that_is_in_hand() -> None:
    """Neither one that stands behind it, nor one in front of it that was a dead letter."""
    storage = SimulatedStorage()
    with open_queue(storage, max_deliveries=None) as queue:
        for number in range(3):
            queue.put(b"key %d" % number, order_key="key")
        queue.receive(timeout=0).reject("for now")
        in_hand = queue.receive(timeout=0)
        assert in_hand.payload == b"key 1"
        queue.put(b"other")
        abort_one(queue)
        queue.dead.retry(queue.dead.list())
        assert taken(queue) == [b"other"]
        in_hand.ack()
        assert sorted(taken(queue)) == [b"key 0", b"key 2"]


def test_who_waited_for_the_queue_has_the_settings_that_were_changed_meanwhile() -> None:
    """They are read again once the lock is held: the owner before could change them up to then."""
    storage = SimulatedStorage()
    first = open_queue(storage)
    first.put(b"one")

    def change_and_leave(verb: str, path: Path) -> None:
        if (verb, path.name) == ("try_lock", "write.lock"):
            storage.before_verb = None
            first.configure(maxsize=2, record_bytes_max=100)
            first.close()

    storage.before_verb = change_and_leave
    with open_queue(storage, lock_timeout=5) as second:
        assert storage.before_verb is None
        assert (second.settings["maxsize"], second.settings["record_bytes_max"]) == (2, 100)
        second.put(b"two")
        with pytest.raises(Full):
            second.put(b"three", block=False)
        with pytest.raises(RecordTooLargeError):
            second.put(bytes(101), block=False)

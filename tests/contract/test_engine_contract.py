"""What a queue promises, whichever way a handle goes to it: alone, as the owner, or as a client.

The ways: the mode "exclusive"; a handle of the mode "shared" that owns the queue; one that steps the machine of an
owner without a socket; and one that is a client through a real socket. What differs is in the last section.
"""

from __future__ import annotations

import queue as standard
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ConfigError,
    Delivery,
    Empty,
    Full,
    LeaseExpiredError,
    PersistentQueue,
    Put,
    RecordTooLargeError,
    ShutDown,
    StaleReceiptError,
    TransactionNotFoundError,
    TransactionStateError,
    UsageError,
)
from holdfast.errors import ClosedError
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.format.constants import FRAME_HEADER_BYTES, FRAMES_START
from holdfast.persistence.format.report import DAMAGED
from support.owners.machine_link import machine_links
from support.processes.threads import wait_until

Open = Callable[..., PersistentQueue]

LEASE = 0.05
"""Seconds; over within a test."""


@pytest.fixture(params=["exclusive", "owner", "machine", "socket"])
def way(request: pytest.FixtureRequest) -> str:
    """Return how handles of this test go to the queue."""
    return str(request.param)


@pytest.fixture
def open_queue(way: str, tmp_path: Path) -> Iterator[Open]:
    """Return what opens the queue; everything is closed at the end, the last one first."""
    with ExitStack() as opened:
        if way == "machine":
            opened.enter_context(machine_links())

        def open_queue(**options: Any) -> PersistentQueue:
            if way == "exclusive":
                return opened.enter_context(PersistentQueue(tmp_path / "q", **{"mode": "exclusive", **options}))
            if way == "socket":
                opened.enter_context(PersistentQueue(tmp_path / "q", mode="shared", **options))
                options["can_own"] = False
            return opened.enter_context(PersistentQueue(tmp_path / "q", mode="shared", **options))

        yield open_queue


@pytest.fixture
def queue(open_queue: Open) -> PersistentQueue:
    """Return a queue whose failed messages come again at once."""
    return open_queue(backoff=[])


def payloads(deliveries: Any) -> list[bytes]:
    """Return what was delivered, or is shown."""
    return [each.payload for each in deliveries]


def drained(queue: PersistentQueue) -> list[bytes]:
    """Return all that can be taken now."""
    found: list[bytes] = []
    while True:
        try:
            found += queue.get_many(100, timeout=0)
        except Empty:
            return found


# -- Putting and taking ----------------------------------------------------------------------------------------------


def test_messages_come_in_the_order_in_which_they_were_put(queue: PersistentQueue) -> None:
    """With their offsets, alone and in batches."""
    assert queue.put(b"a") == 0
    assert queue.put_many([b"b", b"c"]) == range(1, 3)
    assert queue.put(b"") == 3
    assert queue.put_many([]) == range(4, 4)
    assert queue.get(timeout=5) == b"a"
    assert queue.get_many(2, timeout=5) == [b"b", b"c"]
    assert queue.get_nowait() == b""
    with pytest.raises(Empty):
        queue.get(timeout=0)
    with pytest.raises(standard.Empty):
        queue.get_many(5, timeout=0.01)


def test_headers_come_with_their_message(queue: PersistentQueue) -> None:
    """Of a single one, and of those in a batch that have some."""
    queue.put(b"a", headers={"kind": "x"})
    queue.put_many([b"b", Put(b"c", headers={"kind": "y"})])
    with queue.receive_many(3, timeout=5) as batch:
        assert [dict(each.headers) for each in batch] == [{"kind": "x"}, {}, {"kind": "y"}]


def test_a_dedup_id_is_put_once(queue: PersistentQueue) -> None:
    """The second one has the offset of the first."""
    assert [queue.put(b"a", dedup_id="x"), queue.put(b"b", dedup_id="y"), queue.put(b"c", dedup_id="x")] == [0, 1, 0]
    assert drained(queue) == [b"a", b"b"]


def test_a_delay_a_priority_and_a_time_to_live_count(queue: PersistentQueue) -> None:
    """A delayed message waits, an urgent one comes first, and one whose time is over never comes."""
    queue.put(b"late", delay=1)
    queue.put(b"gone", ttl=0.001)
    queue.put(b"normal")
    queue.put(b"urgent", priority=9)
    time.sleep(0.002)
    assert [queue.get(timeout=0), queue.get(timeout=0)] == [b"urgent", b"normal"]
    assert queue.get(timeout=30) == b"late"
    assert drained(queue) == []


def test_messages_of_one_order_key_come_one_after_the_other(queue: PersistentQueue) -> None:
    """The second one behind the end of the first; other keys are not held up."""
    queue.put(b"1", order_key="k")
    queue.put(b"2", order_key="k")
    queue.put(b"3")
    first = queue.receive(timeout=5)
    assert queue.get(timeout=5) == b"3"
    with pytest.raises(Empty):
        queue.get(timeout=0)
    first.ack()
    assert queue.get(timeout=5) == b"2"


def test_a_record_that_is_too_large_is_refused(open_queue: Open) -> None:
    """Before it goes anywhere."""
    queue = open_queue(record_bytes_max=10)
    with pytest.raises(RecordTooLargeError):
        queue.put(b"x" * 11)
    with pytest.raises(RecordTooLargeError):
        queue.put_many([b"a", b"x" * 11])
    assert queue.qsize() == 0


def test_a_taker_that_waits_has_the_message_of_another_thread(queue: PersistentQueue) -> None:
    """As soon as it is put."""
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(queue.get(timeout=30)))
    thread.start()
    queue.put(b"a")
    thread.join(30)
    assert found == [b"a"]


# -- Deliveries ------------------------------------------------------------------------------------------------------


def test_a_delivery_is_acknowledged_once(queue: PersistentQueue) -> None:
    """A second verb is stale."""
    queue.put_many([b"a", b"b"])
    delivery = queue.receive(timeout=5)
    delivery.ack()
    for verb in (delivery.ack, delivery.nack, delivery.release):
        with pytest.raises(StaleReceiptError):
            verb()
    assert drained(queue) == [b"b"]


def test_a_block_acknowledges_or_gives_back(queue: PersistentQueue) -> None:
    """By whether it ends with an exception."""
    queue.put_many([b"a", b"b"])
    with queue.receive(timeout=5):
        pass
    with pytest.raises(ZeroDivisionError), queue.receive(timeout=5):
        raise ZeroDivisionError
    again = queue.receive(timeout=5)
    assert (again.payload, again.delivery_count) == (b"b", 2)
    again.ack()


def test_a_batch_is_settled_one_by_one_or_together(queue: PersistentQueue) -> None:
    """What is left at the end of its block is acknowledged."""
    queue.put_many([b"a", b"b", b"c"])
    with queue.receive_many(3, timeout=5) as batch:
        list(batch)[1].nack()
    assert drained(queue) == [b"b"]


@pytest.mark.parametrize(("verb", "count"), [("nack", 2), ("release", 1)])
def test_a_message_that_is_given_back_comes_again(queue: PersistentQueue, verb: str, count: int) -> None:
    """A failure counts as a delivery, a release does not."""
    queue.put(b"a")
    getattr(queue.receive(timeout=5), verb)()
    again = queue.receive(timeout=5)
    assert again.delivery_count == count
    again.ack()


def test_a_nack_with_a_delay_comes_later(queue: PersistentQueue) -> None:
    """Not before."""
    queue.put(b"a")
    queue.receive(timeout=5).nack(delay=1)
    with pytest.raises(Empty):
        queue.receive(timeout=0)
    queue.receive(timeout=30).ack()


def test_a_lease_that_runs_out_gives_the_message_back(queue: PersistentQueue) -> None:
    """The verbs of the first delivery say so; the second is another one."""
    queue.put(b"a")
    first = queue.receive(timeout=5, lease_seconds=LEASE)
    second = queue.receive(timeout=5)
    assert second.delivery_count == 2
    with pytest.raises(LeaseExpiredError):
        first.ack()
    second.ack()
    assert drained(queue) == []


def test_an_extended_lease_runs_out_later(queue: PersistentQueue) -> None:
    """The message stays in hand meanwhile."""
    queue.put(b"a")
    delivery = queue.receive(timeout=5, lease_seconds=1)
    delivery.extend(60)
    with pytest.raises(Empty):
        queue.receive(timeout=1.5)
    delivery.ack()


def test_a_delivery_in_use_is_renewed(queue: PersistentQueue) -> None:
    """As long as its block is open."""
    queue.put(b"a")
    with queue.receive(timeout=5, lease_seconds=1.5), pytest.raises(Empty):
        queue.receive(timeout=2)
    assert drained(queue) == []


def test_a_message_that_fails_too_often_is_a_dead_letter(open_queue: Open) -> None:
    """With its reason; it can be tried again, or discarded."""
    queue = open_queue(max_deliveries=1, backoff=[])
    queue.put_many([b"a", b"b", b"c"])
    with pytest.raises(ZeroDivisionError), queue.receive(timeout=5):
        raise ZeroDivisionError("a reason")
    queue.receive(timeout=5).reject("not wanted")
    queue.receive(timeout=5).ack()
    letters = list(queue.dead.list())
    assert [(each.payload, each.reason) for each in letters] == [(b"a", "exception"), (b"b", "rejected")]
    assert queue.dead.discard([1]) == 1
    assert queue.dead.retry(reason="exception") == 1
    assert drained(queue) == [b"a"]
    assert len(queue.dead) == 0


# -- Loops -----------------------------------------------------------------------------------------------------------


def fill(queue: PersistentQueue, count: int) -> list[bytes]:
    """Put so many messages; return their payloads."""
    batch = [b"%d" % number for number in range(count)]
    queue.put_many(batch)
    return batch


def counts(queue: PersistentQueue) -> dict[bytes, int]:
    """Return what is left and how often each was handed out, and finish it."""
    return {each.payload: each.delivery_count for each in queue.consume(timeout=0)}


def leave_at(payload: bytes, queue: PersistentQueue, error: BaseException) -> None:
    """Leave a loop by an exception, with this message in hand."""
    for each in queue.consume(timeout=0):
        if each.payload == payload:
            raise error


@pytest.mark.parametrize("prefetch", [1, 2, 100])
def test_a_loop_finishes_each_message_by_coming_back_for_the_next(queue: PersistentQueue, prefetch: int) -> None:
    """All of them, also those behind the last full batch; nothing is in hand behind it."""
    batch = fill(queue, 5)
    assert payloads(queue.consume(prefetch=prefetch, timeout=0)) == batch
    assert counts(queue) == {}
    assert queue.depth() == 0


def test_a_loop_that_is_left_has_finished_what_it_came_back_from(queue: PersistentQueue) -> None:
    """The message in hand has failed, and those taken ahead go back uncounted."""
    fill(queue, 5)
    with pytest.raises(ZeroDivisionError):
        leave_at(b"2", queue, ZeroDivisionError())
    assert counts(queue) == {b"2": 2, b"3": 1, b"4": 1}


def test_a_loop_that_is_interrupted_has_finished_what_it_came_back_from(queue: PersistentQueue) -> None:
    """As by any other exception."""
    fill(queue, 3)
    with pytest.raises(KeyboardInterrupt):
        leave_at(b"1", queue, KeyboardInterrupt())
    assert counts(queue) == {b"1": 2, b"2": 1}


def test_a_loop_that_breaks_off_behind_an_ack_leaves_no_failure(queue: PersistentQueue) -> None:
    """Messages that were settled by hand are not settled again."""
    fill(queue, 4)
    for each in queue.consume(timeout=0):
        if each.payload == b"0":
            each.release()
        elif each.payload == b"1":
            each.nack()
        elif each.payload == b"2":
            each.ack()
            break
    assert counts(queue) == {b"0": 1, b"1": 2, b"3": 1}


def test_a_loop_takes_no_more_ahead_than_it_is_told(queue: PersistentQueue) -> None:
    """Others have the rest."""
    fill(queue, 4)
    loop = queue.consume(prefetch=2, timeout=0)
    assert next(loop).payload == b"0"
    assert queue.get_many(9, timeout=5) == [b"2", b"3"]
    assert payloads(loop) == [b"1"]
    assert queue.depth() == 0


def test_a_loop_waits_for_messages(queue: PersistentQueue) -> None:
    """As long as it is told to."""
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.extend(payloads(queue.consume(timeout=60))))
    thread.start()
    fill(queue, 3)
    wait_until(lambda: queue.depth() == 0)
    queue.shutdown()
    thread.join(30)
    assert found == [b"0", b"1", b"2"]


def test_a_loop_has_the_turns_of_an_order_key_one_after_the_other(queue: PersistentQueue) -> None:
    """The next one is ready for the take that finishes the one before."""
    queue.put_many([Put(b"%d" % number, order_key="k") for number in range(3)])
    assert payloads(queue.consume(timeout=0)) == [b"0", b"1", b"2"]


def test_a_loop_keeps_what_it_has_taken_ahead(queue: PersistentQueue) -> None:
    """Its leases do not run out while it works on others, nor do those of what it has finished."""
    fill(queue, 3)
    for each in queue.consume(timeout=0, lease_seconds=1.5):
        if each.payload == b"1":
            with pytest.raises(Empty):
                queue.receive(timeout=2)
    assert counts(queue) == {}


def test_a_queue_that_is_closed_in_a_loop_has_what_was_finished(
    queue: PersistentQueue, open_queue: Open, way: str
) -> None:
    """The rest comes again uncounted, the message in hand too."""
    other = queue if way == "exclusive" else open_queue()
    fill(queue, 4)
    messages = queue.consume(timeout=0)
    assert [next(messages).payload, next(messages).payload] == [b"0", b"1"]
    queue.close()
    with pytest.raises(ClosedError):
        next(messages)
    again = open_queue() if other is queue else other
    assert counts(again) == {b"1": 1, b"2": 1, b"3": 1}


def test_an_immediate_shutdown_ends_a_loop_behind_what_it_has_finished(
    queue: PersistentQueue, open_queue: Open, way: str
) -> None:
    """Without an error; the rest comes again uncounted."""
    fill(queue, 4)
    for each in queue.consume():
        if each.payload == b"1":
            queue.shutdown(immediate=True)
    if way == "exclusive":
        queue.close()
    assert counts(open_queue()) == {b"1": 1, b"2": 1, b"3": 1}


def test_a_shutdown_ends_a_loop_behind_the_last_message(queue: PersistentQueue) -> None:
    """Its own messages are not what it waits for."""
    batch = fill(queue, 3)
    queue.shutdown(timeout=None)
    assert payloads(queue.consume(prefetch=2)) == batch
    assert queue.depth() == 0


def test_a_transaction_takes_a_message_of_a_loop(queue: PersistentQueue) -> None:
    """The loop leaves it to the transaction, whichever way that ends."""
    fill(queue, 2)
    with queue.transaction() as tx:
        for each in queue.consume(timeout=0):
            tx.ack(each)
    assert queue.depth() == 0


def test_wrong_arguments_of_a_loop_are_refused_at_once(queue: PersistentQueue) -> None:
    """Not only when it begins."""
    with pytest.raises(ValueError, match="at least 1"):
        queue.consume(prefetch=0)
    with pytest.raises(ValueError, match="timeout"):
        queue.consume(timeout=-1)


# -- The group as a whole --------------------------------------------------------------------------------------------


def test_a_purge_finishes_what_is_ready(queue: PersistentQueue) -> None:
    """What is in hand stays."""
    queue.put_many([b"a", b"b", b"c"])
    delivery = queue.receive(timeout=5)
    assert queue.purge() == 2
    delivery.release()
    assert drained(queue) == [b"a"]


def test_a_queue_that_was_shut_down_at_once_is_not_purged(queue: PersistentQueue) -> None:
    """What is left stays on the disk."""
    queue.put_many([b"a", b"b"])
    queue.shutdown(immediate=True)
    with pytest.raises(ShutDown):
        queue.purge()
    assert queue.stats().depth == 2


def test_a_paused_group_hands_nothing_out(queue: PersistentQueue) -> None:
    """Until it is resumed, or its time is over."""
    queue.put_many([b"a", b"b"])
    queue.pause(reason="a reason")
    assert queue.stats().paused == "a reason"
    with pytest.raises(Empty):
        queue.get(timeout=0)
    queue.resume()
    assert queue.get(timeout=5) == b"a"
    queue.pause(until=time.time() + 0.05)
    assert queue.get(timeout=5) == b"b"


def test_another_group_has_all_messages_too(queue: PersistentQueue, open_queue: Open, way: str) -> None:
    """From where it starts."""
    queue.put_many([b"a", b"b"])
    assert queue.groups.create("audit") == 0
    assert queue.groups.create("later", start="latest") == 2
    assert sorted(queue.groups.list()) in (["audit", "later"], ["audit", "default", "later"])
    assert drained(queue) == [b"a", b"b"]
    if way == "exclusive":  # no other handle opens it beside this one
        queue.close()
    assert drained(open_queue(group="audit")) == [b"a", b"b"]


def test_settings_are_changed_while_the_queue_is_open(queue: PersistentQueue) -> None:
    """And set back; a second value in a program is refused."""
    queue.configure(maxsize=2, max_deliveries=1)
    assert (queue.settings["maxsize"], queue.settings["max_deliveries"]) == (2, 1)
    queue.put_many([b"a", b"b"])
    with pytest.raises(Full):
        queue.put(b"c", timeout=0)
    queue.receive(timeout=5).nack()
    assert len(queue.dead) == 1
    queue.configure(reset=["maxsize"])
    assert queue.maxsize == 0


@pytest.mark.parametrize("wrong", [{"max_bytes": 1}, {"lease_seconds": -1}, {"dedup_max": 0}], ids=str)
def test_a_setting_that_cannot_work_is_refused(queue: PersistentQueue, wrong: dict[str, Any]) -> None:
    """With the error that says so, and nothing is changed."""
    before = queue.settings
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        queue.configure(**wrong)
    assert queue.settings == before


def test_another_setting_than_the_queue_has_is_refused(queue: PersistentQueue, open_queue: Open, way: str) -> None:
    """When a handle is opened."""
    queue.configure(max_deliveries=3)
    if way == "exclusive":
        queue.close()
    with pytest.raises(ConfigError, match="max_deliveries"):
        open_queue(max_deliveries=4)


# -- Bounds ----------------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_and_has_space_again(open_queue: Open) -> None:
    """A put that waits has it."""
    queue = open_queue(maxsize=2)
    assert not queue.full()
    queue.put_many([b"a", b"b"])
    assert queue.full()
    for put in (lambda: queue.put(b"c", timeout=0), lambda: queue.put_many([b"c"], timeout=0.01)):
        with pytest.raises(Full):
            put()
    with pytest.raises(RecordTooLargeError):
        queue.put_many([b"x"] * 3)
    put_at: list[int] = []
    thread = threading.Thread(target=lambda: put_at.append(queue.put(b"c", timeout=30)))
    thread.start()
    assert queue.get(timeout=5) == b"a"
    thread.join(30)
    assert put_at == [2]
    assert drained(queue) == [b"b", b"c"]
    assert not queue.full()


def test_a_transaction_needs_the_space_that_it_does_not_make(open_queue: Open) -> None:
    """What it acknowledges counts."""
    queue = open_queue(maxsize=1)
    queue.put(b"a")
    with queue.transaction() as tx:
        tx.ack(tx.receive(timeout=5))
        tx.put(b"b")
    assert drained(queue) == [b"b"]


# -- Transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_puts_and_acknowledges_as_one(queue: PersistentQueue) -> None:
    """Puts alone, acknowledgements alone, and both."""
    queue.put_many([b"a", b"b"])
    with queue.transaction() as tx:
        tx.put(b"c", headers={"kind": "x"})
        tx.put_many([b"d"])
    with queue.transaction() as tx:
        tx.ack(tx.receive(timeout=5))
    with queue.transaction() as tx:
        tx.ack(tx.receive(timeout=5))
        tx.put(b"e")
    assert drained(queue) == [b"c", b"d", b"e"]


def test_a_delivery_goes_into_a_transaction(queue: PersistentQueue) -> None:
    """One that was received outside of it."""
    queue.put(b"a")
    delivery = queue.receive(timeout=5)
    with queue.transaction() as tx:
        tx.ack(delivery)
        tx.put(b"b")
    with pytest.raises(StaleReceiptError):
        delivery.ack()
    assert drained(queue) == [b"b"]


@pytest.mark.parametrize("size", [1, 2**20 + 1])
def test_a_thread_puts_while_its_transaction_is_open(queue: PersistentQueue, size: int) -> None:
    """Its commit is a request of its own, behind those that the thread has made since it began."""
    queue.put(b"a")
    with queue.transaction() as tx:
        tx.put(bytes(size))
        tx.ack(tx.receive(timeout=5))
        assert queue.put(b"between") == 1
    assert drained(queue) == [b"between", bytes(size)]


def test_an_aborted_transaction_leaves_no_trace(queue: PersistentQueue) -> None:
    """Its messages come again."""
    queue.put(b"a")
    with suppress(ZeroDivisionError), queue.transaction() as tx:
        tx.ack(tx.receive(timeout=5))
        tx.put(b"b")
        raise ZeroDivisionError
    tx = queue.begin()
    tx.put(b"c")
    tx.abort()
    with pytest.raises(TransactionStateError):
        tx.commit()
    assert drained(queue) == [b"a"]


def test_a_transaction_whose_time_is_over_is_aborted(queue: PersistentQueue) -> None:
    """Its messages come again without it."""
    queue.put(b"a")
    tx = queue.begin(timeout=1)
    tx.ack(tx.receive(timeout=0.5))
    tx.put(b"b")
    assert queue.get(timeout=30) == b"a"
    with pytest.raises(TransactionStateError):
        tx.commit()
    assert drained(queue) == []


# -- Reservations ----------------------------------------------------------------------------------------------------


def test_a_reservation_holds_what_comes_next(queue: PersistentQueue) -> None:
    """Up to its bounds; it is read where it is, and no other client gets it."""
    queue.put_many([b"a", Put(b"b", headers={"kind": "x"}), b"cc", b"d"])
    first = queue.reservations.take(max_messages=2)
    second = queue.reservations.take(max_bytes=1, prefix="other")
    third = queue.reservations.take(end_offset=3)
    assert first is not None
    assert second is not None
    assert third is None
    assert (first.count, queue.reservations.size_bytes(first)) == (2, 2)
    found = list(queue.reservations.read(first, pytest.fail))
    assert [(each.offset, each.payload, dict(each.headers)) for each in found] == [
        (0, b"a", {}),
        (1, b"b", {"kind": "x"}),
    ]
    assert [queue.reservations.held(), queue.reservations.held("other")] == [[first], [second]]
    assert queue.stats().depth == 4
    assert drained(queue) == [b"d"]
    queue.reservations.commit(first)
    queue.reservations.abort(second)
    assert queue.reservations.held() == queue.reservations.held("other") == []
    assert drained(queue) == [b"cc"]
    assert queue.stats().depth == 0


def test_a_reservation_is_there_for_the_next_one_who_opens(open_queue: Open) -> None:
    """With the same messages, and the counts of their deliveries."""
    queue = open_queue(backoff=[])
    queue.put_many([b"a", b"b", b"c"])
    queue.receive(timeout=5).nack()
    before = queue.reservations.take(max_messages=2)
    assert before is not None
    queue.close()
    again = open_queue()
    (after,) = again.reservations.held()
    assert after == before
    assert again.reservations.size_bytes(after) == 2
    counts = {each.payload: each.delivery_count for each in again.reservations.read(after, pytest.fail)}
    assert counts == {b"a": 1, b"b": 0}
    assert len(again.reservations.data_files(after)) == 1
    again.reservations.commit(after)
    with pytest.raises((TransactionStateError, TransactionNotFoundError)):  # only an owner's clients may ask again
        again.reservations.abort(after)
    assert drained(again) == [b"c"]


def test_a_shutdown_ends_reserving_once_nothing_is_left(queue: PersistentQueue) -> None:
    """What is there is held; what is in hand may come again, so there is nothing now, and not the end."""
    queue.put_many([b"a", b"b"])
    delivery = queue.receive(timeout=5)
    queue.shutdown()
    held = queue.reservations.take()
    assert held is not None
    assert held.count == 1
    assert queue.reservations.take() is None
    delivery.ack()
    with pytest.raises(ShutDown):
        queue.reservations.take()
    queue.reservations.abort(held)
    queue.shutdown(immediate=True)
    with pytest.raises(ShutDown):
        queue.reservations.take()
    queue.close()
    for call in (queue.reservations.take, queue.reservations.held, lambda: queue.reservations.commit(held)):
        with pytest.raises(ClosedError):
            call()


# -- Prepared transactions -------------------------------------------------------------------------------------------

LARGE = 2**20 + 1
"""Bytes; too large for one frame."""


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_prepared_transaction_is_decided_later(queue: PersistentQueue, size: int) -> None:
    """By the transaction itself: its puts come, or do not; what it acknowledges is finished, or comes again."""
    queue.put_many([b"a", b"b"])
    first, second = queue.begin(), queue.begin()
    for tx in (first, second):
        tx.put(bytes(size), headers={"kind": "x"})
        tx.ack(tx.receive(timeout=5))
        assert tx.prepare() == tx.id
    assert drained(queue) == []
    second.abort()
    second.abort()
    assert first.commit() == first.commit() == range(2, 3)
    assert payloads([queue.receive(timeout=5), queue.receive(timeout=5)]) == [b"b", bytes(size)]


@pytest.mark.parametrize("chosen_by", ["put", "ack", "stream"])
@pytest.mark.parametrize("chosen_from", ["put", "ack", "both"])
def test_an_id_that_another_transaction_has_chosen_is_refused(
    queue: PersistentQueue, chosen_by: str, chosen_from: str
) -> None:
    """Also if it is that of a transaction which has none of its own yet: both would wait under one name.

    It stays open, and holds what it has in hand.
    """
    queue.put_many([b"a", b"b"])
    first, second = queue.begin(), queue.begin()
    for tx, kind in ((first, chosen_from), (second, chosen_by)):
        if kind == "stream":  # in a file of its own
            tx.put_stream([b"stream"])
        elif kind != "ack":
            tx.put(kind.encode())
        if kind in ("ack", "both"):
            tx.ack(tx.receive(timeout=5))
    second.prepare(first.id)
    with pytest.raises(TransactionStateError, match="is prepared"):
        first.prepare()
    assert len(queue.prepared()) == 1
    second.commit()
    assert first.prepare("another") == "another"
    first.commit()
    assert queue.depth() == 2 + sum(
        {"put": 1, "ack": -1, "both": 0, "stream": 1}[kind] for kind in (chosen_by, chosen_from)
    )


def test_small_puts_are_prepared_without_a_file_of_their_own(queue: PersistentQueue) -> None:
    """In the prepared log of the owner, whichever process it is."""
    queue.put(b"a")
    for name in ("one", "two"):
        tx = queue.begin()
        tx.put(name.encode())
        tx.prepare(name)
    assert {path.suffix for path in (queue.path / "prepared").iterdir()} == {".log", ""}
    assert queue.commit_prepared("two") == range(1, 2)


def test_a_prepared_transaction_is_decided_by_its_id(queue: PersistentQueue, open_queue: Open, way: str) -> None:
    """Also by another handle, and after the one that prepared it is closed; again it has the same answer."""
    queue.put_many([b"a", b"b"])
    for name in ("both", "puts", "acknowledges"):
        tx = queue.begin()
        if name != "acknowledges":
            tx.put(name.encode())
        if name != "puts":
            tx.ack(tx.receive(timeout=5))
        assert tx.prepare(name) == name
    queue.close()
    again = open_queue()
    assert {(each.id, each.put_count, each.ack_count) for each in again.prepared()} == {
        ("both", 1, 1),
        ("puts", 1, 0),
        ("acknowledges", 0, 1),
    }
    assert again.prepared_count() == 3
    assert again.commit_prepared("both") == again.commit_prepared("both") == range(2, 3)
    again.abort_prepared("puts")
    again.abort_prepared("puts")
    assert again.commit_prepared("acknowledges") == again.commit_prepared("acknowledges") == range(3, 3)
    for wrong in (again.commit_prepared, again.abort_prepared):
        with pytest.raises((TransactionStateError, TransactionNotFoundError)):
            wrong("puts" if wrong == again.commit_prepared else "both")
    with pytest.raises(TransactionNotFoundError):
        again.commit_prepared("unknown")
    assert again.prepared() == []
    assert drained(again) == [b"both"]


def test_an_id_is_prepared_once(queue: PersistentQueue) -> None:
    """The second one stays open, and may have another id."""
    first = queue.begin()
    first.put(b"a")
    first.prepare("same")
    second = queue.begin()
    second.put(b"b")
    with pytest.raises(TransactionStateError, match="is prepared"):
        second.prepare("same")
    second.put(b"c")
    second.prepare("other")
    assert second.commit() == range(0, 2)
    assert first.commit() == range(2, 3)
    assert drained(queue) == [b"b", b"c", b"a"]


def test_a_transaction_without_work_is_prepared_too(queue: PersistentQueue) -> None:
    """It changes nothing."""
    tx = queue.begin()
    tx.prepare("idle")
    assert queue.commit_prepared("idle") == range(0, 0)


def test_a_transaction_is_prepared_only_if_there_is_space(open_queue: Open) -> None:
    """It waits for that until its time is over; committed it needs none."""
    queue = open_queue(maxsize=1)
    tx = queue.begin(timeout=1)
    tx.put(b"b")
    queue.put(b"a")
    with pytest.raises((Full, TransactionStateError)):
        tx.prepare()
    tx = queue.begin()
    tx.put(b"b")
    waiting = threading.Thread(target=lambda: tx.prepare("b"))
    waiting.start()
    assert queue.get(timeout=5) == b"a"
    waiting.join(30)
    queue.put(b"c")
    queue.commit_prepared("b")
    assert drained(queue) == [b"c", b"b"]


def test_a_message_of_a_prepared_transaction_is_not_in_hand(queue: PersistentQueue) -> None:
    """Its delivery is stale, and no other has it."""
    queue.put(b"a")
    delivery = queue.receive(timeout=5)
    with queue.begin() as tx:
        tx.ack(delivery)
        tx.prepare()
        with pytest.raises(StaleReceiptError):
            delivery.ack()
        with pytest.raises(Empty):
            queue.get(timeout=0)
    assert drained(queue) == []


# -- Joint commits ---------------------------------------------------------------------------------------------------


def part(queue: PersistentQueue, payload: bytes, version: int) -> str:
    """Return the id of a part of the application "app"."""
    tx = queue.begin()
    tx.put(payload)
    return tx.prepare(part_of=("app", version))


def test_parts_are_committed_as_one_and_once(queue: PersistentQueue) -> None:
    """In the order in which they are named; the others of the version are aborted."""
    ids = [part(queue, payload, 1) for payload in (b"a", b"b", b"left out")]
    late = part(queue, b"of the next", 2)
    assert queue.joint_commits.latest("app") is None
    queue.joint_commits.commit("app", 1, [ids[1], ids[0]])
    queue.joint_commits.commit("app", 1, [ids[2]])
    assert queue.joint_commits.latest("app") == 1
    assert [each.id for each in queue.prepared()] == [late]
    with pytest.raises(TransactionStateError, match="too late"):
        part(queue, b"late", 1)
    with pytest.raises(TransactionStateError, match="joint_commits decides it"):
        queue.commit_prepared(late)
    queue.joint_commits.commit("app", 2, [late], is_remembered=False)
    assert drained(queue) == [b"b", b"a", b"of the next"]


def test_parts_are_aborted_by_version_and_by_age(queue: PersistentQueue) -> None:
    """No one commits them any more."""
    part(queue, b"a", 1)
    kept = part(queue, b"b", 2)
    queue.joint_commits.abort("app", 1)
    assert [each.id for each in queue.prepared()] == [kept]
    queue.joint_commits.collect(3600)
    assert [each.part_of for each in queue.prepared()] == [PartOf("app", 2)]
    queue.joint_commits.collect(0, id_prefix=kept[:5])
    assert queue.prepared() == []
    with pytest.raises(TransactionNotFoundError):
        queue.joint_commits.commit("app", 2, [kept])
    assert drained(queue) == []


def test_a_part_of_a_joint_commit_only_puts(queue: PersistentQueue) -> None:
    """It may be prepared by a block, which does not commit it."""
    queue.put(b"a")
    with queue.transaction() as tx:
        tx.put(b"b")
        chosen = tx.prepare(part_of=("app", 1))
    tx = queue.begin()
    tx.ack(tx.receive(timeout=5))
    with pytest.raises(UsageError, match="only puts"):
        tx.prepare(part_of=("app", 1))
    tx.abort()
    queue.joint_commits.commit("app", 1, [chosen])
    assert drained(queue) == [b"a", b"b"]


# -- Looking ---------------------------------------------------------------------------------------------------------


def test_what_is_there_is_shown(queue: PersistentQueue) -> None:
    """Without taking anything."""
    queue.put_many([b"a", b"b", b"c"])
    assert payloads(queue.peek(9)) == [b"a", b"b", b"c"]
    delivery = queue.receive(timeout=5)
    assert payloads(queue.browse("ready")) == [b"b", b"c"]
    assert payloads(queue.browse("leased")) == [b"a"]
    delivery.nack(delay=60)
    assert payloads(queue.browse("delayed")) == [b"a"]
    stats = queue.stats()
    assert (stats.depth, stats.delayed, stats.next_offset) == (3, 1, 3)
    assert [queue.qsize(), queue.depth(), queue.empty()] == [2, 3, False]


def test_a_flush_returns(open_queue: Open) -> None:
    """Under any policy; what was put and acknowledged stays."""
    queue = open_queue()
    queue.put_many([b"a", b"b"])
    queue.get(timeout=5)
    queue.flush()
    assert drained(queue) == [b"b"]


def test_damage_that_was_met_is_in_the_report(queue: PersistentQueue) -> None:
    """Any handle that has met it; the messages beside it come."""
    queue.put_many([b"damaged", b"whole"])
    assert queue.recovery.damage == ()
    (path,) = (queue.path / "data").iterdir()
    with path.open("r+b") as file:
        file.seek(FRAMES_START + FRAME_HEADER_BYTES)
        file.write(b"D")
    assert drained(queue) == [b"whole"]
    (damage,) = queue.recovery.damage
    assert (damage.path, damage.offsets, damage.verdict) == (path, range(1), DAMAGED)
    assert queue.recovery.lost_count == 1


def test_what_an_owner_counts_is_in_the_figures_of_each_handle(open_queue: Open) -> None:
    """Of messages that are gone without a delivery, and of ids that were forgotten early."""
    queue = open_queue(dedup_max=1, backoff=[])
    for number in range(3):
        queue.put(b"", ttl=0.001, dedup_id=str(number))
    time.sleep(0.002)
    assert drained(queue) == []
    assert (queue.stats().dropped, queue.stats().dedup_forgotten) == (3, 2)


# -- Ending ----------------------------------------------------------------------------------------------------------


def test_a_drained_queue_hands_out_the_rest(queue: PersistentQueue) -> None:
    """Then takers end; puts are refused at once."""
    queue.put_many([b"a", b"b"])
    queue.shutdown(timeout=0.2)
    with pytest.raises(ShutDown):
        queue.put(b"c")
    assert [queue.get(timeout=5), queue.get(timeout=5)] == [b"a", b"b"]
    with pytest.raises(ShutDown):
        queue.get(timeout=5)


def test_a_drained_queue_waits_for_what_fails_meanwhile(open_queue: Open) -> None:
    """And counts what stays, by reason."""
    queue = open_queue(backoff=[0.3])
    queue.put_many([b"a", Put(b"tomorrow", delay=86400)])
    queue.receive(timeout=5).nack()
    queue.shutdown()
    assert queue.get(timeout=5) == b"a"
    with pytest.raises(ShutDown) as caught:
        queue.get(timeout=5)
    assert caught.value.left == queue.ending().left == {"delayed": 1}


def test_an_immediate_shutdown_gives_back(queue: PersistentQueue) -> None:
    """Deliveries are stale, and takers that wait end."""
    queue.put(b"a")
    delivery = queue.receive(timeout=5)
    ended: list[Exception] = []

    def wait() -> None:
        try:
            queue.get(timeout=30)
        except ShutDown as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    queue.shutdown(immediate=True)
    thread.join(30)
    assert len(ended) == 1
    with pytest.raises(StaleReceiptError):
        delivery.ack()


def test_nothing_can_be_taken_behind_an_immediate_shutdown(queue: PersistentQueue) -> None:
    """Not here: the messages stay, for other handles and the next one."""
    queue.put_many([b"one", b"two"])
    queue.shutdown(immediate=True)
    assert (queue.qsize(), queue.empty(), queue.depth()) == (0, True, 2)


def test_behind_an_immediate_shutdown_what_was_taken_can_be_reported_done(queue: PersistentQueue) -> None:
    """And nothing else, as in the standard library: none of the messages left will be taken."""
    queue.put_many([b"a", b"b", b"c", b"d"])
    assert (queue.get(timeout=5), queue.get_many(2, timeout=5)) == (b"a", [b"b", b"c"])
    queue.task_done()
    queue.shutdown(immediate=True)
    queue.task_done()
    queue.task_done()
    with pytest.raises(ValueError, match="too many"):
        queue.task_done()
    queue.join()


def test_behind_a_close_what_was_taken_can_be_reported_done(queue: PersistentQueue) -> None:
    """By a thread that had a message in hand."""
    queue.put_many([b"a", b"b"])
    queue.get(timeout=5)
    queue.close()
    queue.task_done()
    with pytest.raises(ValueError, match="too many"):
        queue.task_done()


def test_join_does_not_wait_for_what_an_immediate_shutdown_leaves(queue: PersistentQueue) -> None:
    """Neither if it comes before, nor behind; without a shutdown it waits until each message was reported done."""
    queue.put_many([b"a", b"b"])
    queue.get(timeout=5)
    queue.task_done()
    waiting = threading.Thread(target=queue.join, daemon=True)
    waiting.start()
    assert queue.unfinished_tasks == 1
    queue.shutdown(immediate=True)
    waiting.join(30)
    assert not waiting.is_alive()
    queue.join()


def test_a_closed_queue_gives_back_uncounted(queue: PersistentQueue, open_queue: Open) -> None:
    """And refuses every call."""
    queue.put_many([b"a", b"b"])
    queue.receive(timeout=5)
    queue.close()
    for call in (lambda: queue.put(b"c"), lambda: queue.get(timeout=0), queue.stats):
        with pytest.raises(ClosedError):
            call()
    again = open_queue()
    delivery: Delivery = again.receive(timeout=5)
    assert (delivery.payload, delivery.delivery_count) == (b"a", 1)
    delivery.ack()
    assert drained(again) == [b"b"]


def test_wrong_arguments_are_refused_alike(queue: PersistentQueue) -> None:
    """Before anything is asked."""
    with pytest.raises(TypeError):
        queue.put("text")  # type: ignore[arg-type]  # that is tested
    with pytest.raises(ValueError, match="at least 1"):
        queue.get_many(0)
    with pytest.raises(ValueError, match="timeout"):
        queue.get(timeout=-1)
    queue.put(b"a")
    with pytest.raises(TypeError):
        queue.receive(timeout=5).reject(7)  # type: ignore[arg-type]


# -- What differs ----------------------------------------------------------------------------------------------------


def test_a_lease_that_is_over_shows_in_the_owner_first(queue: PersistentQueue, way: str) -> None:
    """A handle of the mode "shared" looks at the files: docs/processes.md. The next take makes the difference end."""
    queue.put(b"a")
    queue.receive(timeout=5, lease_seconds=LEASE)
    if way == "exclusive":
        wait_until(lambda: queue.stats().in_flight == 0)
    else:
        time.sleep(2 * LEASE)
        assert queue.stats().in_flight == 1
    assert queue.get(timeout=5) == b"a"
    assert queue.stats().in_flight == 0


def test_a_message_in_hand_is_peeked_at_by_handles_that_look_at_the_files(queue: PersistentQueue, way: str) -> None:
    """As in the mode "read_only": it may come again. ``browse`` tells."""
    queue.put_many([b"a", b"b"])
    queue.receive(timeout=5)
    assert payloads(queue.peek(9)) == ([b"b"] if way == "exclusive" else [b"a", b"b"])


def test_only_one_handle_may_own(queue: PersistentQueue, way: str) -> None:
    """A client does not."""
    assert queue.is_owner is (way in ("exclusive", "owner"))

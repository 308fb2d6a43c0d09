"""How consumers end: asked to, out of time, or because they cannot go on."""

import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast import Delivery, HoldfastError, Reject, Retry, RetryableError, StorageError
from holdfast.service.queue_service import QueueService
from holdfast.service.workers import engine, patience
from holdfast.service.workers.job import Job
from holdfast.service.workers.settler import Settler
from support.builders.handles import handle_of
from support.processes.threads import Threads, wait_until
from support.service.consumers import SECONDS, running
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage


def counts(path: Path) -> list[int]:
    """Return how often each message that is left was handed out, this time included."""
    with QueueService(path, mode="exclusive", catalog=False) as service:
        queue = service.queue("orders", type=int)
        return [queue.receive(timeout=SECONDS).delivery_count for _ in range(queue.stats().depth)]


def test_stop_lets_handlers_finish_and_gives_back_uncounted_what_they_have_not_begun(tmp_path: Path) -> None:
    """What had been taken ahead is as if it never had been."""
    begun, go_on = threading.Event(), threading.Event()
    threads = Threads()
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders", type=int)

        @service.consumer("orders")
        def handle(order: int) -> None:
            if orders.stats().in_flight > 3:  # quick handlers are given several at a time
                begun.set()
                go_on.wait(SECONDS)

        orders.put_many(range(1000))
        threads.start(service.run)
        assert begun.wait(SECONDS)
        service.stop()
        wait_until(lambda: orders.stats().in_flight == 1)
        left = orders.stats().depth - 1
        go_on.set()
        threads.join()
        assert orders.stats().depth == left
    assert counts(tmp_path) == [1] * left


def test_no_stop_waits_for_what_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that does not answer would keep the thread that hears signals: a second one still ends the grace."""
    begun, go_on, may_release = threading.Event(), threading.Event(), threading.Event()
    threads = Threads()
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders", type=int)

        @service.consumer("orders")
        def handle(order: int) -> None:
            if orders.stats().in_flight > 3:  # quick handlers are given several at a time
                begun.set()
                go_on.wait(SECONDS)

        orders.put_many(range(1000))
        read_side = handle_of(orders.raw).require_read_side()
        release = read_side.release
        releasing = threading.Event()

        def release_later(*arguments: Any) -> None:
            releasing.set()
            assert may_release.wait(SECONDS)
            release(*arguments)

        monkeypatch.setattr(read_side, "release", release_later)
        threads.start(lambda: service.run(grace_seconds=SECONDS))
        assert begun.wait(SECONDS)
        service.stop()
        assert releasing.wait(SECONDS)
        service.workers.hurry()
        wait_until(lambda: not service.workers.is_running)
        may_release.set()
        wait_until(lambda: orders.stats().in_flight == 1)
        go_on.set()
        threads.join()


def test_a_handler_that_outlasts_its_grace_may_run_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """run() returns all the same; its message is given back by close, uncounted, and the late end changes nothing."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders", type=int)

        @service.consumer("orders")
        def handle(order: int) -> None:
            begun.set()
            go_on.wait(SECONDS)
            ended.set()

        orders.put(1)
        with running(service, grace_seconds=0.01):
            assert begun.wait(SECONDS)
        assert orders.stats().in_flight == 1
    assert "a handler still runs" in caplog.text
    assert counts(tmp_path) == [1]
    go_on.set()
    assert ended.wait(SECONDS)
    assert counts(tmp_path) == [1]


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "behind a message"])
def test_without_a_grace_no_handler_is_said_to_run_if_none_does(
    service: QueueService, caplog: pytest.LogCaptureFixture, *, is_idle: bool
) -> None:
    """The threads of consumers need a moment to end, also those that wait for a message."""
    begun = threading.Event()
    orders = service.queue("orders", type=int)
    service.consumer("orders", concurrency=4)(lambda order: begun.set())
    with running(service, grace_seconds=0):
        wait_until(lambda: any(each.name == "holdfast-orders-4" for each in threading.enumerate()))
        if not is_idle:
            orders.put(1)
            assert begun.wait(SECONDS)
            wait_until(lambda: orders.stats().depth == 0)
    assert "a handler still runs" not in caplog.text


def test_a_handler_that_ends_behind_its_grace_is_acknowledged_while_the_queue_is_open(service: QueueService) -> None:
    """The message stays its own for as long."""
    begun, go_on = threading.Event(), threading.Event()
    orders = service.queue("orders", type=int, lease_seconds=0.1)

    @service.consumer("orders")
    def handle(order: int) -> None:
        begun.set()
        go_on.wait(SECONDS)

    orders.put(1)
    with running(service, grace_seconds=0):
        assert begun.wait(SECONDS)
    go_on.set()
    wait_until(lambda: orders.stats().depth == 0)


def test_no_lease_runs_out_while_a_handler_runs_or_its_message_waits_for_it(service: QueueService) -> None:
    """However short it is."""
    seen: list[int] = []
    waited: list[int] = []
    orders = service.queue("orders", type=int, lease_seconds=0.2)

    @service.consumer("orders")
    def handle(order: int) -> None:
        seen.append(order)
        if orders.stats().in_flight > 1 and not waited:  # some wait in the buffer
            waited.append(order)
            threading.Event().wait(0.5)

    orders.put_many(range(200))
    with running(service):
        wait_until(lambda: orders.stats().depth == 0, SECONDS)
    assert waited
    assert seen == list(range(200))
    assert orders.stats().dead == 0


def test_run_ends_when_its_queues_are_shut_down_and_empty(service: QueueService) -> None:
    """There will be nothing more to do."""
    seen: list[int] = []
    orders = service.queue("orders", type=int)
    service.consumer("orders", concurrency=2)(seen.append)
    orders.put_many([1, 2])
    orders.raw.shutdown()
    service.run()
    assert sorted(seen) == [1, 2]
    assert orders.stats().depth == 0


def test_a_stop_that_comes_before_run_ends_it_at_once(service: QueueService) -> None:
    """Whoever says it from another thread need not know how far run() is; the next run is another one."""
    seen: list[int] = []
    orders = service.queue("orders", type=int)
    service.consumer("orders")(seen.append)
    service.stop()
    service.run()
    orders.put(1)
    with running(service):
        wait_until(lambda: seen == [1])


def test_close_stops_the_consumers_first(tmp_path: Path) -> None:
    """And waits for handlers that run."""
    begun, go_on = threading.Event(), threading.Event()
    threads = Threads()
    service = QueueService(tmp_path, mode="exclusive", catalog=False)
    orders = service.queue("orders", type=int)

    @service.consumer("orders")
    def handle(order: int) -> None:
        begun.set()
        go_on.wait(SECONDS)

    orders.put(1)
    threads.start(service.run)
    assert begun.wait(SECONDS)
    threads.start(service.close)
    wait_until(lambda: service.workers.is_running)
    go_on.set()
    threads.join()
    assert counts(tmp_path) == []


def test_a_disk_that_refuses_acknowledgements_stops_run_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    """Said once, loudly; nothing more is handled, and what was not acknowledged comes again."""
    storage = SimulatedStorage()
    handled: list[int] = []
    service = QueueService("/data", mode="exclusive", catalog=False, storage=storage)
    orders = service.queue("orders", type=int)
    orders.put_many(range(2000))

    @service.consumer("orders", concurrency=2)
    def handle(order: int) -> None:
        if not handled:
            storage.faults = FaultPlan(1, errno.EIO, forever=True, verbs=frozenset({"sync"}))
        handled.append(order)

    with pytest.raises(StorageError):
        service.run()
    assert len(handled) < 2000
    assert [record.levelno for record in caplog.records].count(logging.CRITICAL) == 1
    assert "cannot continue" in caplog.text
    storage.faults = None
    service.close()
    with QueueService("/data", mode="exclusive", catalog=False, storage=storage.crash_keeping_all()) as again:
        assert again.queue("orders", type=int).stats().depth > 0


@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_what_a_consumer_that_has_failed_had_in_hand_comes_again_to_others(
    service: QueueService, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """When its lease runs out, though this process lives on."""
    orders = service.queue("orders", type=int, backoff=[], lease_seconds=0.1)
    begun, go_on = threading.Event(), threading.Event()

    @service.consumer("orders", concurrency=2)
    def handle(order: int) -> None:
        if order == 1:  # it ends behind the failure
            begun.set()
            go_on.wait(SECONDS)
            return
        begun.wait(SECONDS)
        if verb == "nack":
            raise ValueError("bad")

    def broken(*_: object) -> None:
        raise StorageError("the disk is gone")

    orders.put_many([0, 1])
    with monkeypatch.context() as patched:
        patched.setattr(handle_of(orders.raw).require_read_side(), verb, broken)
        with pytest.raises(StorageError, match="the disk is gone"):
            service.run(grace_seconds=0)
        go_on.set()
        wait_until(lambda: not any(each.name.startswith("holdfast-orders") for each in threading.enumerate()), SECONDS)
    left = [orders.receive(timeout=SECONDS) for _ in range(orders.stats().depth)]
    assert sorted(each.body for each in left) == ([0, 1] if verb == "ack" else [0])


def test_a_consumer_that_cannot_even_log_its_failure_stops(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else run() would go on, and acknowledge nothing."""
    orders = service.queue("orders", type=int)
    service.consumer("orders")(print)
    orders.put(1)
    monkeypatch.setattr(Job, "handle", Mock(side_effect=HoldfastError("no process to be had")))
    monkeypatch.setattr(engine.logger, "critical", Mock(side_effect=MemoryError))
    monkeypatch.setattr(threading, "excepthook", Mock())
    with pytest.raises(HoldfastError, match="no process"):
        service.run()


def test_a_message_that_could_not_be_handed_to_a_handler_comes_again(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its worker processes die one after another, which stops the consumer: when its lease runs out."""
    orders = service.queue("orders", type=int, lease_seconds=0.1)
    service.consumer("orders")(print)
    orders.put(1)

    def broken(*_: object) -> None:
        raise HoldfastError("no process to be had")

    monkeypatch.setattr(Job, "handle", broken)
    with pytest.raises(HoldfastError, match="no process"):
        service.run()
    assert orders.receive(timeout=SECONDS).delivery_count == 2


def test_a_message_that_a_transaction_holds_stops_no_consumer(service: QueueService) -> None:
    """Though another one of its batch was taken away, and so each is acknowledged alone."""
    orders = service.queue("orders", type=int)
    orders.put_many([0, 1, 2])
    held, stale, good = deliveries = orders.receive_many(3, timeout=0)
    service.transaction().ack(held)
    stale.release()
    stale.has_expired = True  # as a seek or the end of its lease leaves it
    Settler("orders", pytest.fail, pytest.fail).acknowledge(deliveries, patience.AT_ONCE)
    assert good.is_settled
    assert not held.is_settled


def test_a_consumer_that_cannot_take_stops_the_others_too(service: QueueService) -> None:
    """One process that half works helps nobody."""
    orders, invoices = service.queue("orders", type=int), service.queue("invoices", type=int)
    begun = threading.Event()
    service.consumer(orders)(lambda order: begun.set())
    service.consumer(invoices)(lambda invoice: None)
    threads = Threads()
    threads.start(service.run)
    orders.put(1)
    assert begun.wait(SECONDS)
    invoices.raw.close()
    with pytest.raises(HoldfastError, match="closed"):
        threads.join()
    assert not service.workers.is_running


def test_a_message_that_fails_behind_the_shutdown_is_tried_again_though_other_threads_have_ended(
    tmp_path: Path,
) -> None:
    """For them the time was over; the thread that had it in hand takes it again."""
    counts: list[int] = []
    is_alone = threading.Event()
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders", type=int)

        @service.consumer("orders", concurrency=2)
        def handle(order: int, delivery: Delivery[int]) -> None:
            counts.append(delivery.delivery_count)
            if delivery.delivery_count == 1:
                names = ("holdfast-orders-1", "holdfast-orders-2")
                wait_until(lambda: sum(each.name in names for each in threading.enumerate()) == 1)
                is_alone.set()
                raise Retry(0)

        orders.put(1)
        orders.raw.shutdown(timeout=0.1)  # without a bound they would wait for what this one has in hand
        service.run()
        assert is_alone.is_set()
        assert counts == [1, 2]
        assert orders.stats().depth == 0


def test_errors_of_the_program_that_are_verdicts_need_not_call_their_base(tmp_path: Path) -> None:
    """Then they say nothing, and end no consumer."""

    class NoOrder(Reject):
        def __init__(self) -> None:
            pass

    class Later(Retry):
        def __init__(self) -> None:
            pass

    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders", type=int, backoff=[], max_deliveries=2)

        @service.consumer(orders)
        def handle(order: int) -> None:
            raise NoOrder if order == 0 else Later

        orders.put_many([0, 1])
        orders.raw.shutdown()
        service.run()
        found = [(letter.offset, letter.reason, letter.delivery_count) for letter in orders.dead.list()]
        assert found == [(0, "rejected", 1), (1, "max_deliveries", 2)]


class Unspeakable:
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Interrupting(Exception):  # noqa: N818
    """Whose text interrupts."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


class Neither(Exception):  # noqa: N818
    """Is neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("neither")


class RetryAfter(Retry):
    """Takes any delay."""

    def __init__(self, delay: object) -> None:
        self.delay = delay  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("error", "cause", "reason"),
    [
        (Reject(Unspeakable()), None, "rejected"),  # type: ignore[arg-type]
        (Interrupting(), None, "exception"),
        (Neither(), None, "exception"),
        (Retry(0), Neither(), "exception"),
        *((RetryAfter(delay), None, "exception") for delay in ("5", -1, float("nan"), float("inf"))),
    ],
)
def test_a_faulty_error_of_the_program_fails_its_message_and_not_the_consumer(
    service: QueueService, error: Exception, cause: Exception | None, reason: str
) -> None:
    """Else one message would stop all of them, and be the first one again after each start, for it never counted."""
    orders = service.queue("orders", type=int, max_deliveries=1)
    seen: list[int] = []

    @service.consumer(orders)
    def handle(order: int) -> None:
        seen.append(order)
        if order == 0:
            raise error from cause

    orders.put_many([0, 1])
    orders.raw.shutdown()
    service.run()
    assert seen == [0, 1]
    assert [(letter.offset, letter.reason) for letter in orders.dead.list()] == [(0, reason)]


def refused(call: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return a call that is refused so many times, as by an owner that does not answer."""
    left = iter(range(count))

    def refuse_or_call(*arguments: Any, **named: Any) -> Any:
        if next(left, None) is not None:
            raise RetryableError("the owner has not answered within 30 s: try again")
        return call(*arguments, **named)

    return refuse_or_call


@pytest.mark.parametrize("verb", ["receive_many", "ack", "nack"])
def test_an_owner_that_does_not_answer_is_asked_again(
    service: QueueService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    """For messages, for an acknowledgement, for a failure: that is logged once, and no consumer ends."""
    monkeypatch.setattr(patience, "RETRY_SECONDS", 0.001)
    orders = service.queue("orders", type=int, backoff=[], max_deliveries=2)
    counts: list[int] = []

    @service.consumer("orders")
    def handle(order: int, delivery: Delivery[int]) -> None:
        counts.append(delivery.delivery_count)
        if verb == "nack" and delivery.delivery_count == 1:
            raise ValueError("not yet")

    target = orders if verb == "receive_many" else handle_of(orders.raw).require_read_side()
    monkeypatch.setattr(target, verb, refused(getattr(target, verb), 3))
    orders.put(1)
    with running(service):
        wait_until(lambda: orders.stats().depth == 0, SECONDS)
    assert counts == ([1, 2] if verb == "nack" else [1])
    assert caplog.text.count("orders: trying again each second: the owner has not answered") == 1
    assert "cannot continue" not in caplog.text


def test_a_consumer_that_is_stopped_waits_for_no_owner(service: QueueService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was taken, so nothing is lost, and run() returns."""
    orders = service.queue("orders", type=int)
    service.consumer("orders")(lambda order: None)
    monkeypatch.setattr(patience, "RETRY_SECONDS", SECONDS)
    has_asked = threading.Event()

    def refuse(*_: object, **__: object) -> None:
        has_asked.set()
        raise RetryableError("the owner has not answered within 30 s: try again")

    monkeypatch.setattr(orders, "receive_many", refuse)
    with running(service):
        assert has_asked.wait(SECONDS)


@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_a_stop_ends_the_wait_for_an_owner_that_is_to_settle(
    service: QueueService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    """Of a message that failed, or came again: the last thread would wait for itself. It comes again by its lease."""
    orders = service.queue("orders", type=int, backoff=[])
    monkeypatch.setattr(patience, "RETRY_SECONDS", 100 * SECONDS)
    has_asked = threading.Event()
    found: list[Delivery[int]] = []

    @service.consumer("orders")
    def handle(order: int, delivery: Delivery[int]) -> None:
        found.append(delivery)
        if verb == "nack":
            raise ValueError("not yet")

    def refuse(*_: object, **__: object) -> None:
        has_asked.set()
        raise RetryableError("the owner has not answered within 30 s: try again")

    orders.put(1)
    orders.receive(timeout=0).nack(delay=0)
    monkeypatch.setattr(handle_of(orders.raw).require_read_side(), verb, refuse)
    with running(service):
        assert has_asked.wait(SECONDS)
    assert "orders: offset 0 may come again: the owner" in caplog.text
    assert [(each.is_open, each.is_settled) for each in found] == [(False, False)]


def test_what_cannot_be_acknowledged_in_the_end_is_raised(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner is asked no more once all handlers have ended; the message comes again."""
    orders = service.queue("orders", type=int)
    service.consumer("orders")(lambda order: service.stop())
    monkeypatch.setattr(handle_of(orders.raw).require_read_side(), "ack", refused(never, 10_000))
    orders.put(1)
    with pytest.raises(RetryableError, match="has not answered"):
        service.run()
    assert orders.stats().depth == 1


def never(*_: object) -> None:
    """Fail: no call comes here."""
    raise AssertionError("it was called")

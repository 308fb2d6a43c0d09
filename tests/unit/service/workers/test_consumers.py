"""What becomes of a message that a handler was given."""

import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast import Backoff
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.service.queue_service import QueueService
from holdfast.service.typed_queue import TypedQueue
from holdfast.service.workers.handler_errors import Reject, Retry
from support.builders.clocks import FakeClock
from support.processes.threads import wait_until
from support.service.consumers import SECONDS, run_until_finished, running


class Order(msgspec.Struct):
    """What is ordered."""

    number: int


def test_a_handler_that_returns_finishes_its_message(service: QueueService) -> None:
    """Given as an object of the type that its annotation names; the function stays what it is."""
    handled: list[Order] = []

    @service.consumer("orders")
    def handle(order: Order) -> str:
        handled.append(order)
        return "ignored"

    assert handle(Order(0)) == "ignored"
    service.queue("orders", type=Order).put_many([Order(1), Order(2)])
    run_until_finished(service, "orders")
    assert handled == [Order(0), Order(1), Order(2)]


def test_the_queue_is_opened_by_run_with_the_type_of_the_handler(service: QueueService) -> None:
    """And not before: a module may register handlers where it is imported."""
    handled: list[Order] = []
    service.consumer("orders", max_deliveries=1)(handled_by(handled))
    assert not service.path.exists()
    with running(service):
        wait_until(lambda: "orders" in service.queues)
        service.queue("orders", type=Order, max_deliveries=1).put(Order(7))
        wait_until(lambda: handled == [Order(7)])


def handled_by(handled: list[Order]):  # type: ignore[no-untyped-def]
    """Return a handler that only notes."""

    def handle(order: Order) -> None:
        handled.append(order)

    return handle


def test_a_handler_with_a_second_parameter_gets_the_delivery(service: QueueService) -> None:
    """With headers, offset and count."""
    seen: list[tuple[object, ...]] = []

    @service.consumer("orders")
    def handle(order: dict[str, int], delivery: Delivery[dict[str, int]]) -> None:
        seen.append((order, delivery.offset, delivery.delivery_count, delivery.headers["tenant"]))

    service.queue("orders", type=dict[str, int]).put({"number": 1}, headers={"tenant": "acme"})
    run_until_finished(service, "orders")
    assert seen == [({"number": 1}, 0, 1, "acme")]


def test_a_second_parameter_that_has_a_value_is_the_handlers_own(service: QueueService) -> None:
    """A default is nothing to be filled in."""
    seen: list[object] = []

    @service.consumer("orders")
    def handle(order: int, factor: int = 2) -> None:
        seen.append(order * factor)

    service.queue("orders", type=int).put(21)
    run_until_finished(service, "orders")
    assert seen == [42]


def test_a_handler_that_raises_is_given_its_message_again(service: QueueService) -> None:
    """The others go on, and none of them comes twice."""
    seen: list[tuple[int, int]] = []

    @service.consumer("orders", retry=[0])
    def handle(order: int, delivery: Delivery[int]) -> None:
        seen.append((order, delivery.delivery_count))
        if order == 3 and delivery.delivery_count < 3:
            raise ValueError("not yet")

    service.queue("orders", type=int).put_many(range(6))
    run_until_finished(service, "orders")
    assert sorted(seen) == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (4, 1), (5, 1)]


def test_after_its_last_delivery_a_message_is_a_dead_letter_with_the_traceback(service: QueueService) -> None:
    """So that whoever looks sees what happened, and where."""

    @service.consumer("orders", retry=[0])
    def handle(order: int) -> None:
        raise ZeroDivisionError(f"order {order} cannot be divided")

    service.queue("orders", type=int, max_deliveries=2).put(7)
    run_until_finished(service, "orders")
    (letter,) = service.queue("orders").dead.list()
    assert (letter.reason, letter.delivery_count, letter.detail) == ("exception", 2, "order 7 cannot be divided")
    assert letter.exception == "builtins.ZeroDivisionError"
    assert "raise ZeroDivisionError" in letter.traceback


def advance(clock: FakeClock, queue: TypedQueue[int], seconds: float) -> None:
    """Let time pass, and have those look at the clock who sleep until it shows something."""
    clock.advance(seconds)
    queue.failover.wake()


@pytest.mark.parametrize(
    ("retry", "waits"),
    [
        ([60, 600], [60, 600, 600]),
        (Backoff(base=60, cap=150, jitter=False), [60, 120, 150]),
        (None, [5, 7, 7]),
    ],
    ids=["list", "backoff", "the queue's"],
)
def test_a_message_that_failed_waits_as_the_consumer_says_or_else_the_queue(
    tmp_path: Path, retry: Backoff | list[float] | None, waits: list[int]
) -> None:
    """To the second, on a clock that stands still in between."""
    clock = FakeClock()
    seen: list[int] = []
    with QueueService(tmp_path, mode="exclusive", catalog=False, clock=clock) as service:
        orders = service.queue("orders", type=int, backoff=[5, 7])

        @service.consumer("orders", retry=retry)
        def handle(order: int) -> None:
            seen.append(order)
            raise ValueError

        orders.put(1)
        with running(service):
            for count, wait in enumerate(waits, start=1):
                wait_until(lambda: orders.stats().delayed == 1, SECONDS)
                assert len(seen) == count
                advance(clock, orders, wait - 1)
                assert orders.stats().delayed == 1
                advance(clock, orders, 1)
            wait_until(lambda: len(seen) == len(waits) + 1)


def test_reject_makes_a_dead_letter_at_once(service: QueueService) -> None:
    """With its reason."""

    @service.consumer("orders")
    def handle(order: int) -> None:
        raise Reject("nobody sells that")

    service.queue("orders", type=int).put(1)
    run_until_finished(service, "orders")
    (letter,) = service.queue("orders").dead.list()
    assert (letter.reason, letter.detail, letter.delivery_count) == ("rejected", "nobody sells that", 1)


def test_retry_says_how_long_the_message_waits(tmp_path: Path) -> None:
    """Whatever the back-off is."""
    clock = FakeClock()
    seen: list[int] = []
    with QueueService(tmp_path, mode="exclusive", catalog=False, clock=clock) as service:
        orders = service.queue("orders", type=int)

        @service.consumer("orders", retry=[10_000])
        def handle(order: int) -> None:
            seen.append(order)
            raise Retry(3)

        orders.put(1)
        with running(service):
            wait_until(lambda: orders.stats().delayed == 1)
            advance(clock, orders, 2)
            assert orders.stats().delayed == 1
            advance(clock, orders, 1)
            wait_until(lambda: len(seen) == 2)


def test_retry_keeps_the_exception_behind_it(service: QueueService) -> None:
    """For the dead letter: that it was to be retried says nothing about why."""

    @service.consumer("orders")
    def handle(order: int) -> None:
        try:
            raise ConnectionError("no route")
        except ConnectionError as error:
            raise Retry(0) from error

    service.queue("orders", type=int, max_deliveries=2).put(1)
    run_until_finished(service, "orders")
    (letter,) = service.queue("orders").dead.list()
    assert (letter.reason, letter.exception, letter.detail) == ("exception", "builtins.ConnectionError", "no route")


def test_a_handler_that_exits_fails_its_message_and_not_the_worker(service: QueueService) -> None:
    """A library that calls ``sys.exit`` must not stop all others."""
    seen: list[int] = []

    @service.consumer("orders")
    def handle(order: int) -> None:
        seen.append(order)
        if order == 0:
            sys.exit("enough")

    service.queue("orders", type=int, max_deliveries=1).put_many([0, 1])
    run_until_finished(service, "orders")
    assert seen == [0, 1]
    assert [letter.exception for letter in service.queue("orders").dead.list()] == ["builtins.SystemExit"]


async def later(order: int) -> None:
    """Do nothing, if it is awaited."""


def lazily(order: int) -> Iterator[int]:
    """Do nothing before it is asked for the next one."""
    yield order


async def lazily_too(order: int) -> AsyncIterator[int]:
    """Do nothing before it is asked for the next one."""
    yield order


class Awaitable:
    """Does nothing before it is awaited."""

    def __init__(self, order: int) -> None:
        pass

    def __await__(self) -> Iterator[None]:
        yield


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("function", "kind"),
    [(later, "coroutine"), (lazily, "generator"), (lazily_too, "async_generator"), (Awaitable, "Awaitable")],
)
def test_a_handler_that_returns_work_still_to_be_done_has_failed(
    service: QueueService, function: Callable[[int], object], kind: str
) -> None:
    """As behind a decorator, which hides what it calls: its message would be acknowledged, and never handled."""

    @service.consumer("orders")
    def handle(order: int) -> object:
        return function(order)

    service.queue("orders", type=int, max_deliveries=1).put(1)
    run_until_finished(service, "orders")
    (letter,) = service.queue("orders").dead.list()
    assert letter.exception == "builtins.TypeError"
    assert letter.detail.startswith(f"the handler returned before its work was done ({kind}): await it")


def test_what_cannot_be_decoded_never_reaches_the_handler(service: QueueService) -> None:
    """It is parked, uncounted, and the next one comes."""
    seen: list[int] = []
    orders = service.queue("orders", type=int)
    orders.raw.put(b"{")
    orders.put(1)
    service.consumer("orders")(seen.append)
    run_until_finished(service, "orders")
    assert seen == [1]
    assert [(each.reason, each.delivery_count) for each in orders.dead.list()] == [("undecodable", 0)]


def test_a_handler_may_settle_its_message_itself(service: QueueService) -> None:
    """What it does behind that changes nothing any more."""
    orders = service.queue("orders", type=int, backoff=[])

    @service.consumer("orders")
    def handle(order: int, delivery: Delivery[int]) -> None:
        if order == 0:
            delivery.ack()
            raise ValueError("too late")
        if delivery.delivery_count == 1:
            delivery.nack(0)

    orders.put_many([0, 1])
    run_until_finished(service, "orders")
    assert orders.stats().dead == 0


def test_a_handler_may_acknowledge_in_a_transaction(service: QueueService) -> None:
    """With what it puts: both, or neither."""
    orders, invoices = service.queue("orders", type=int, backoff=[]), service.queue("invoices", type=int)

    @service.consumer("orders")
    def handle(order: int, delivery: Delivery[int]) -> None:
        with service.transaction() as tx:
            tx.put(invoices, order * 10 + delivery.delivery_count)
            tx.ack(delivery)
            if delivery.delivery_count == 1:
                raise ValueError("not this time")

    orders.put(1)
    run_until_finished(service, "orders")
    with invoices.receive(timeout=SECONDS) as invoice:
        assert invoice.body == 12
    assert invoices.stats().depth == 0


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_message_comes_again_whose_transaction_finds_no_room(tmp_path: Path, mode: str) -> None:
    """It has failed by that exception, as by any other."""
    with QueueService(tmp_path, mode=mode, catalog=False) as service:
        orders = service.queue("orders", type=int, max_deliveries=2, backoff=[0])
        invoices = service.queue("invoices", type=int, maxsize=1)

        @service.consumer("orders")
        def handle(order: int, delivery: Delivery[int]) -> None:
            with service.transaction(timeout=1) as tx:
                tx.put(invoices, order)
                tx.ack(delivery)

        invoices.put(0)
        orders.put(1)
        run_until_finished(service, "orders")
        (letter,) = orders.dead.list()
        assert (letter.reason, letter.exception) == ("exception", "queue.Full")
        assert invoices.get() == 0
        assert invoices.stats().depth == 0


@pytest.mark.parametrize("is_failing", [True, False], ids=["raises", "returns"])
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_transaction_that_a_handler_leaves_open_does_not_keep_its_message(
    tmp_path: Path, mode: str, is_failing: bool
) -> None:
    """Its time runs out, then the message's lease does, and the message comes again."""
    with QueueService(tmp_path, mode=mode, catalog=False) as service:
        orders = service.queue("orders", type=int, backoff=[], lease_seconds=0.1)
        counts: list[int] = []

        @service.consumer("orders")
        def handle(order: int, delivery: Delivery[int]) -> None:
            counts.append(delivery.delivery_count)
            if delivery.delivery_count == 1:
                service.transaction(timeout=0.1).ack(delivery)
                if is_failing:
                    raise ValueError("before the commit")

        orders.put(1)
        run_until_finished(service, "orders")
        assert counts == [1, 2]


def test_so_many_messages_are_handled_at_a_time(service: QueueService) -> None:
    """All four handlers wait for each other."""
    together = threading.Barrier(4)

    @service.consumer("orders", concurrency=4)
    def handle(order: int) -> None:
        together.wait(SECONDS)

    service.queue("orders", type=int).put_many(range(8))
    run_until_finished(service, "orders")
    assert not together.broken


def test_messages_of_one_key_are_handled_one_after_another(service: QueueService) -> None:
    """However many threads there are."""
    orders = service.queue("orders", type=int)
    seen: list[int] = []
    at_work = threading.Semaphore(1)

    @service.consumer("orders", concurrency=4)
    def handle(order: int) -> None:
        if at_work.acquire(blocking=False):
            seen.append(order)
            at_work.release()

    for number in range(40):
        orders.put(number, order_key="one")
    run_until_finished(service, "orders")
    assert seen == list(range(40))


def test_several_queues_have_a_consumer_each(service: QueueService) -> None:
    """And a handler may put into the queue of another one."""
    invoices = service.queue("invoices", type=int)
    paid: list[int] = []
    service.consumer("orders")(lambda order: invoices.put(order + 1))
    service.consumer(invoices)(paid.append)
    orders = service.queue("orders", type=int)
    with running(service):
        orders.put_many([1, 2])
        wait_until(lambda: sorted(paid) == [2, 3])
        wait_until(lambda: invoices.stats().depth == 0)

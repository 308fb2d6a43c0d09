"""What cannot work as a consumer, and what is said then."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import ConfigError, PersistentQueue, UsageError
from holdfast.service.queue_service import QueueService
from holdfast.service.workers.consumer import check_annotation, make_consumer
from support.processes.threads import wait_until
from support.service.consumers import running

if TYPE_CHECKING:
    from elsewhere import Unknown  # type: ignore[import-not-found]


def handle(order: int) -> None:
    """Do nothing."""


async def handle_async(order: int) -> None:
    """Do nothing, awaited."""


def handle_lazily(order: int) -> Iterator[int]:
    """Do nothing before somebody asks."""
    yield order


async def handle_lazily_too(order: int) -> AsyncIterator[int]:
    """Do nothing before somebody asks."""
    yield order


class Callee:
    """Can be called, with a message and its delivery."""

    def __call__(self, order: int, delivery: object) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"concurrency": 0}, "concurrency is a number from 1 on, not 0"),
        ({"concurrency": 1.5}, "concurrency is a number from 1 on, not 1.5"),
        ({"processes": -1}, "processes is a number from 0 on, not -1"),
        ({"processes": True}, "processes is a number from 0 on, not True"),
        ({"concurrency": 2, "processes": 2}, "not both"),
        ({"retry": "10"}, "retry takes a Backoff or a list of seconds"),
        ({"retry": [-1]}, "retry takes seconds from 0 on"),
    ],
)
def test_options_that_cannot_work_are_refused(service: QueueService, options: dict[str, Any], says: str) -> None:
    """By name, and nothing is registered."""
    with pytest.raises(ConfigError, match=says):
        service.consumer("orders", **options)(handle)
    assert not service.workers.consumers


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (handle_async, "AsyncQueueService"),
        (handle_lazily, "yields"),
        (handle_lazily_too, "yields"),
        (lambda: None, "does not fit"),
        (lambda a, b, c: None, "does not fit"),
        (lambda a, *, b: None, "does not fit"),
        (7, "a handler is a function"),
    ],
    ids=["async", "generator", "async generator", "no parameter", "three", "keyword", "number"],
)
def test_functions_that_do_not_fit_are_refused(service: QueueService, handler: Callable[..., None], says: str) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigError, match=says):
        service.consumer("orders")(handler)


def test_objects_and_methods_are_handlers_too() -> None:
    """As far as they can be called with a message."""

    def made(handler: Callable[..., Any]) -> bool:
        nothing: dict[str, Any] = {"retry": None, "type": None, "settings": {}}
        return make_consumer("orders", handler, concurrency=1, processes=0, **nothing).takes_delivery

    assert made(Callee())
    assert made(Callee().__call__)
    assert not made([].append)
    assert not made(print)


def test_a_queue_has_one_consumer(service: QueueService) -> None:
    """The error names the one that is there."""
    service.consumer("orders")(handle)
    with pytest.raises(ConfigError, match=r"'orders' is handled by .*handle already"):
        service.consumer(service.queue("orders"))(handle)


def test_a_queue_of_another_service_is_refused(service: QueueService, tmp_path: Any) -> None:
    """Its name alone would mean another queue here."""
    with (
        QueueService(tmp_path / "other", mode="exclusive", catalog=False) as other,
        pytest.raises(ConfigError, match="does not belong to this"),
    ):
        service.consumer(other.queue("orders"))(handle)


def test_a_name_that_cannot_be_a_queues_is_refused(service: QueueService) -> None:
    """Where it is written, not where it runs."""
    with pytest.raises(ConfigError, match="cannot name a queue"):
        service.consumer("catalog.db")


def test_annotations_that_cannot_be_made_out_ask_for_the_type(service: QueueService) -> None:
    """Where the queue is opened by the consumer."""

    def handle_unknown(order: "Unknown") -> None:
        """Do nothing."""

    service.consumer("orders")(handle_unknown)
    with pytest.raises(ConfigError, match=r"pass type= to the consumer"):
        service.run()


def test_a_queue_that_takes_nothing_is_refused(service: QueueService) -> None:
    """By run, since it may be opened behind the registration."""
    PersistentQueue(service.path / "orders", mode="exclusive").close()
    service.queue("orders", mode="read_only")
    service.consumer("orders")(handle)
    with pytest.raises(ConfigError, match="mode='read_only', which takes nothing"):
        service.run()


def test_settings_that_are_not_as_the_queue_was_opened_with_are_refused(service: QueueService) -> None:
    """As by queue() itself."""
    service.queue("orders", max_deliveries=2)
    service.consumer("orders", max_deliveries=3)(handle)
    with pytest.raises(
        ConfigError, match=r"max_deliveries=2 \(\S+test_consumer_options.py, line \d+\), not with max_deliveries=3"
    ):
        service.run()


def test_running_nothing_is_an_error(service: QueueService) -> None:
    """It would wait for a signal and do nothing."""
    with pytest.raises(ConfigError, match="nothing to run"):
        service.run()


@pytest.mark.parametrize("grace_seconds", [-1, float("nan")])
def test_a_grace_that_is_none_is_refused(service: QueueService, grace_seconds: float) -> None:
    """Before anything runs."""
    service.consumer("orders")(handle)
    with pytest.raises(ConfigError, match="grace_seconds"):
        service.run(grace_seconds=grace_seconds)


def test_two_runs_at_a_time_are_refused(service: QueueService) -> None:
    """The second one; the first continues."""
    handled = threading.Event()
    orders = service.queue("orders", type=int)
    service.consumer("orders")(lambda order: handled.set())
    with running(service):
        wait_until(lambda: service.workers.is_running)
        with pytest.raises(UsageError, match="run already"):
            service.run()
        orders.put(1)
        assert handled.wait(30)


class Order:
    """What a queue holds."""


class Rush(Order):
    """Which is an order."""


class Refund:
    """What it does not hold."""


def takes_order(_: Order) -> None:
    """Take an order."""


def takes_refund(_: Refund) -> None:
    """Take a refund."""


def takes_either(_: Order | Refund) -> None:
    """Take both."""


def takes_unknown(_: "Unknown") -> None:
    """Take what cannot be found."""


@pytest.mark.parametrize(
    ("kind", "handler"),
    [
        (int, handle),
        (int, lambda body: None),
        (int, takes_unknown),
        (bytes, takes_unknown),
    ],
)
def test_a_handler_whose_annotation_says_nothing_is_taken(
    service: QueueService, kind: type, handler: Callable[..., None]
) -> None:
    """Or cannot be resolved: then type= of the queue counts."""
    queue = service.queue("orders", type=kind)
    assert service.consumer(queue)(handler) is handler


@pytest.mark.parametrize(
    ("types", "handler", "fits"),
    [
        ((Order,), takes_order, True),
        ((Rush,), takes_order, True),
        ((Order,), takes_either, True),
        ((Order, Refund), takes_either, True),
        ((Any,), takes_refund, True),
        ((Order,), takes_refund, False),
        ((Order, Refund), takes_order, False),
    ],
)
def test_an_annotation_has_to_take_all_objects_of_the_queue(
    types: tuple[Any, ...], handler: Callable[..., None], fits: bool
) -> None:
    """A base class, a union, or anything."""
    if fits:
        check_annotation(handler, "orders", types)
        return
    with pytest.raises(ConfigError, match=r"takes (Refund|Order), and queue 'orders' holds Order"):
        check_annotation(handler, "orders", types)


def test_a_handler_of_another_type_is_refused_at_registration(service: QueueService) -> None:
    """Before any message comes; by the name of the queue nothing is known yet."""
    numbers = service.queue("numbers", type=int)

    def takes_text(_: str) -> None:
        """Take a text."""

    with pytest.raises(ConfigError, match="takes_text takes str, and queue 'numbers' holds int: annotate the handler"):
        service.consumer(numbers)(takes_text)
    service.consumer(numbers)(handle)

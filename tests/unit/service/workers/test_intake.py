"""How much a consumer takes ahead."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest

from holdfast import Empty, RetryableError, StorageError
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.service.queue_service import QueueService
from holdfast.service.workers import intake as workers_intake
from holdfast.service.workers import settler as workers_settler
from holdfast.service.workers.intake import BATCH_MAX, BUFFER_SECONDS, Intake
from holdfast.service.workers.settler import UNSETTLED_MAX, Settler
from support.builders.handles import handle_of
from support.processes.threads import wait_until
from support.service.consumers import SECONDS, running


def never(*_: object) -> None:
    """Fail: nobody should come here."""
    raise AssertionError("it was called")


def asked_for(seconds: Sequence[float], thread_count: int) -> int:
    """Return how many messages are asked for when handlers have taken so long."""
    wanted: list[int] = []

    class Source:
        def take(self, count_max: int) -> Sequence[Delivery[Any]]:
            wanted.append(count_max)
            raise Empty

        def wait(self, is_over: Callable[[], bool]) -> None:
            intake.stop()
            assert is_over()

        def wake(self) -> None:
            assert intake.is_stopped

    intake = Intake(Source(), thread_count, Settler("orders", never, never))
    for each in seconds:
        intake.note_seconds(each)
    assert intake.next() is None
    return wanted[0]


@pytest.mark.parametrize(
    ("seconds", "thread_count", "count"),
    [
        ([], 4, 1),
        ([1e-6], 4, 4 * BATCH_MAX),
        ([0.0], 1, BATCH_MAX),
        ([BUFFER_SECONDS / 2.5], 4, 8),
        ([BUFFER_SECONDS * 1.1], 4, 1),
        ([60.0], 4, 1),
        ([1e-6] * 100 + [10.0], 4, 1),
        ([1.0] + [1e-6] * 200, 4, 4 * BATCH_MAX),
    ],
    ids=["unknown", "quick", "immeasurable", "some", "slow", "very slow", "slow now", "quick now"],
)
def test_quick_handlers_get_a_batch_and_slow_ones_each_message_alone(
    seconds: list[float], thread_count: int, count: int
) -> None:
    """Some moments of work are taken ahead, not more."""
    assert asked_for(seconds, thread_count) == count


def test_repeated_messages_are_in_hand_as_many_as_there_are_threads(service: QueueService) -> None:
    """Each alone: the one that kills this process takes a delivery from no more of the others than that."""
    orders = service.queue("orders", type=int, backoff=[])
    orders.put_many(range(40))
    orders.receive_many(40).nack(delay=0)
    at_work, go_on = threading.Semaphore(0), threading.Event()

    @service.consumer("orders", concurrency=3)
    def handle(order: int) -> None:
        if order >= 20:  # by then handlers are known to be quick
            at_work.release()
            go_on.wait(SECONDS)

    with running(service):
        for _ in range(3):
            assert at_work.acquire(timeout=SECONDS)
        wait_until(lambda: orders.stats().in_flight == 3)
        assert orders.stats().depth == 20
        go_on.set()
        wait_until(lambda: orders.stats().depth == 0)


def test_what_waits_behind_a_handler_that_hangs_is_given_back(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uncounted, for other consumers: these may be idle."""
    monkeypatch.setattr(workers_intake, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(workers_settler, "LOOK_SECONDS", 0.02)
    orders = service.queue("orders", type=int)
    hangs, go_on = threading.Event(), threading.Event()

    @service.consumer("orders")
    def handle(order: int) -> None:
        if orders.stats().in_flight > 3:  # quick handlers are given several at a time
            hangs.set()
            go_on.wait(SECONDS)

    orders.put_many(range(1000))
    with running(service):
        assert hangs.wait(SECONDS)
        wait_until(lambda: orders.stats().in_flight == 1)
        assert {each.delivery_count for each in orders.receive_many(1000, timeout=0)} == {1}
        go_on.set()


def test_nothing_is_taken_while_too_much_waits_to_be_acknowledged(service: QueueService) -> None:
    """So much is done again after a crash, not more."""
    orders = service.queue("orders", type=int)
    orders.put_many(range(UNSETTLED_MAX + 1))
    settler = Settler("orders", never, lambda: None)
    for delivery in orders.receive_many(UNSETTLED_MAX):
        settler.add(delivery)
    assert settler.wait_for_space(0)
    settler.add(orders.receive())
    assert not settler.wait_for_space(0)
    settler.start()
    assert settler.wait_for_space(SECONDS)
    settler.end()
    wait_until(lambda: orders.stats().depth == 0)


def test_one_stale_delivery_keeps_no_other_from_being_acknowledged(
    service: QueueService, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, and comes again."""
    orders = service.queue("orders", type=int, backoff=[])
    orders.put_many([1, 2, 3])
    deliveries = orders.receive_many(3, lease_seconds=SECONDS)
    deliveries[2].extend(0.001)
    wait_until(lambda: orders.stats().in_flight == 2)
    ended = threading.Event()
    settler = Settler("orders", never, ended.set)
    for each in deliveries:
        settler.add(each)
    settler.start()
    settler.end()
    assert ended.wait(SECONDS)
    assert "offset 2 was handled, and may come again" in caplog.text
    again = orders.receive(timeout=SECONDS)
    assert (again.body, again.delivery_count, orders.stats().depth) == (3, 2, 1)


@pytest.mark.parametrize("has_thread", [True, False], ids=["with a thread", "without a thread"])
def test_one_stale_delivery_keeps_no_other_from_being_given_back(
    service: QueueService, monkeypatch: pytest.MonkeyPatch, *, has_thread: bool
) -> None:
    """The others come again uncounted; that one has failed."""
    if not has_thread:
        monkeypatch.setattr(workers_settler, "start_thread", lambda *_: None)
    orders = service.queue("orders", type=int, backoff=[])
    orders.put_many([1, 2, 3])
    deliveries = orders.receive_many(3, lease_seconds=SECONDS)
    deliveries[1].extend(0.001)
    wait_until(lambda: orders.stats().in_flight == 2)
    ended = threading.Event()
    settler = Settler("orders", never, ended.set)
    settler.start()
    settler.release(deliveries[:])
    settler.end()
    assert ended.wait(SECONDS)
    assert orders.stats().in_flight == 0
    again = [orders.receive(timeout=0) for _ in range(3)]
    assert sorted((each.body, each.delivery_count) for each in again) == [(1, 1), (2, 2), (3, 1)]


def test_what_cannot_be_given_back_comes_again_when_its_lease_runs_out(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is marked as open until then, so its lease would never end while this process lives."""
    monkeypatch.setattr(workers_settler, "start_thread", lambda *_: None)
    orders = service.queue("orders", type=int)
    orders.put(1)
    deliveries = orders.receive_many(1)
    deliveries[0].is_open = True
    monkeypatch.setattr(handle_of(orders.raw).require_read_side(), "release", refuse)
    settler = Settler("orders", never, lambda: None)
    settler.start()
    settler.release(deliveries[:])
    assert (deliveries[0].is_open, deliveries[0].is_settled) == (False, False)


def test_a_settler_without_a_thread_waits_for_no_owner(
    service: QueueService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would wait in the thread that is to end the wait; the messages come again when their leases run out."""
    monkeypatch.setattr(workers_settler, "start_thread", lambda *_: None)
    orders = service.queue("orders", type=int)
    orders.put_many([1, 2])
    deliveries = orders.receive_many(2)
    for each in deliveries:
        each.is_open = True

    def refuse_once(*_: object) -> None:
        raise RetryableError("the owner has not answered within 30 s: try again")

    for verb in ("ack", "release"):
        monkeypatch.setattr(handle_of(orders.raw).require_read_side(), verb, refuse_once)
    settler = Settler("orders", never, lambda: None)
    settler.start()
    settler.add(deliveries[0])
    settler.release(deliveries[1:])
    assert [(each.is_open, each.is_settled) for each in deliveries] == [(False, False)] * 2
    assert "messages that were handled may come again: the owner" in caplog.text


@pytest.mark.parametrize("verb", ["release", "look"])
def test_a_fault_in_the_thread_that_settles_is_told(
    service: QueueService, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Else the thread would end silently, and messages that were handled would be settled by none."""
    orders = service.queue("orders", type=int)
    orders.put(1)
    deliveries = orders.receive_many(1)
    deliveries[0].is_open = True
    failures: list[BaseException] = []
    ended = threading.Event()

    def fail(*_: object) -> bool:
        raise MemoryError

    settler = Settler("orders", failures.append, ended.set)
    if verb == "look":
        settler.look_after(fail)
    else:
        monkeypatch.setattr(handle_of(orders.raw).require_read_side(), "release", fail)
    settler.release(deliveries[:])
    settler.start()
    settler.end()
    assert ended.wait(SECONDS)
    assert [type(each) for each in failures] == [MemoryError]
    assert not deliveries[0].is_open


def test_a_settler_without_memory_fails_and_leaves_nothing_in_hand(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had, and what is handed in later, comes again when its lease runs out."""
    orders = service.queue("orders", type=int)
    orders.put_many([1, 2])
    deliveries = orders.receive_many(2)
    for each in deliveries:
        each.is_open = True
    failures: list[BaseException] = []
    ended = threading.Event()

    class WithoutMemory(deque[Any]):
        """Is no list any more once."""

        errors: ClassVar = [MemoryError()]

        def __iter__(self) -> Iterator[Any]:
            if self.errors:
                raise self.errors.pop()
            return super().__iter__()

    settler = Settler("orders", failures.append, ended.set)
    monkeypatch.setattr(settler, "_finished", WithoutMemory())
    settler.add(deliveries[0])
    settler.start()
    wait_until(lambda: bool(failures))
    settler.add(deliveries[1])
    settler.end()
    assert ended.wait(SECONDS)
    assert [type(each) for each in failures] == [MemoryError]
    assert not any(each.is_open or each.is_settled for each in deliveries)


@pytest.mark.parametrize("name", ["_settle", "_on_failure"])
def test_a_settler_that_cannot_settle_or_tell_for_a_moment_leaves_nothing_in_hand(
    service: QueueService, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its failure is told once there is memory again."""
    orders = service.queue("orders", type=int)
    orders.put(1)
    deliveries = orders.receive_many(1)
    deliveries[0].is_open = True
    told: list[BaseException] = []
    ended = threading.Event()
    settler = Settler("orders", told.append, ended.set)
    without_memory = [MemoryError()]
    real = getattr(settler, name)

    def fail_once(*arguments: Any) -> None:
        if without_memory:
            raise without_memory.pop()
        real(*arguments)

    monkeypatch.setattr(settler, name, fail_once)
    if name == "_on_failure":
        monkeypatch.setattr(settler, "acknowledge", Mock(side_effect=StorageError("the disk has failed")))
    settler.add(deliveries[0])
    settler.start()
    settler.end()
    assert ended.wait(SECONDS)
    assert [type(each) for each in told] == [MemoryError]
    assert not deliveries[0].is_open


def refuse(*_: object) -> None:
    """Fail, as a disk does."""
    raise StorageError("the disk has failed")

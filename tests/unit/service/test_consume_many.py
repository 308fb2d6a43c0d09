"""Loops over batches: how they fill, when they are acknowledged, and how they end."""

from itertools import count
from pathlib import Path

import pytest

from holdfast import DeliveryBatch, StorageError
from holdfast.service.batches import Batches
from holdfast.service.queue_service import QueueService
from holdfast.service.typed_queue import TypedQueue
from support.builders.clocks import FakeClock
from support.processes.threads import Threads


@pytest.fixture
def numbers(service: QueueService) -> TypedQueue[int]:
    """A queue of ten numbers whose failures come again at once."""
    queue = service.queue("numbers", type=int, backoff=[])
    queue.put_many(range(10))
    return queue


def test_each_batch_is_acknowledged_when_the_next_one_is_asked_for(numbers: TypedQueue[int]) -> None:
    """Not before: whoever dies in the loop has the batch again."""
    depths = []
    for batch in numbers.consume_many(4, max_wait=0, stop_when_empty=True):
        depths.append((len(batch), numbers.stats().depth))
    assert depths == [(4, 10), (4, 6), (2, 2)]
    assert numbers.stats().depth == 0


def test_a_loop_that_is_left_gives_its_batch_back(numbers: TypedQueue[int]) -> None:
    """Also what it has of it; what was settled before stays so."""
    for batch in numbers.consume_many(4, max_wait=0):
        batch.ack(batch[:1])
        break
    assert numbers.stats().depth == 9
    assert numbers.stats().in_flight == 0
    assert [each.delivery_count for each in numbers.browse(limit=4)] == [1, 1, 1, 0]


def test_a_failed_batch_comes_again_one_by_one(numbers: TypedQueue[int]) -> None:
    """Those that failed together come alone, and then the others together."""
    with pytest.raises(ValueError, match="bad"):  # noqa: PT012  # the loop is what raises
        for _ in numbers.consume_many(3, max_wait=0):
            raise ValueError("bad")
    bodies = [batch.bodies for batch in numbers.consume_many(5, max_wait=0, stop_when_empty=True)]
    assert bodies == [[0], [1], [2], [3, 4, 5, 6, 7], [8, 9]]


def test_a_repeated_message_behind_others_comes_alone_too(numbers: TypedQueue[int]) -> None:
    """The batch that was being gathered ends in front of it, and it is not lost where the loop ends there."""
    taken = numbers.receive_many(10, timeout=0)
    taken.ack(taken[:9])
    numbers.put_many([10, 11])
    taken.nack(delay=0)
    loop = numbers.consume_many(5, max_wait=0)
    assert next(iter(loop)).bodies == [9]
    del loop
    assert numbers.stats().in_flight == 0


def test_a_batch_waits_to_become_full(numbers: TypedQueue[int]) -> None:
    """What is put while it waits belongs to it."""
    threads = Threads()
    threads.start(lambda: numbers.put_many([10, 11]))
    batch = next(iter(numbers.consume_many(12, max_wait=60)))
    assert batch.bodies == list(range(12))
    threads.join()


def test_a_loop_ends_when_the_queue_is_shut_down(numbers: TypedQueue[int]) -> None:
    """What is left comes first."""
    numbers.raw.shutdown()
    assert [len(batch) for batch in numbers.consume_many(8, max_wait=0.2)] == [8, 2]


def test_a_loop_without_end_waits_for_more(numbers: TypedQueue[int]) -> None:
    """Nothing for one wait is no reason to stop."""
    rounds = count()
    seen: list[int] = []
    for batch in numbers.consume_many(10, max_wait=0.01):
        seen += batch.bodies
        if next(rounds) == 1:
            batch.ack()
            break
        numbers.put(len(seen))
    assert seen == list(range(11))


@pytest.mark.parametrize("arguments", [{"max_messages": 0}, {"max_messages": 1, "max_wait": -1}])
def test_arguments_that_cannot_work_are_refused_at_once(numbers: TypedQueue[int], arguments: dict[str, int]) -> None:
    """By the call, not by the first step of the loop."""
    with pytest.raises(ValueError, match="at least"):
        numbers.consume_many(**arguments)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageError("the disk refuses")], ids=repr)
def test_what_was_gathered_is_given_back_where_gathering_is_cut_short(
    numbers: TypedQueue[int], error: BaseException
) -> None:
    """Uncounted, and at once: nobody was given it."""
    calls = count()

    def receive_many(max_messages: int, *, timeout: float | None = None) -> DeliveryBatch[int]:
        if next(calls):
            raise error
        return numbers.receive_many(3, timeout=timeout)

    with pytest.raises(type(error)):
        next(Batches("numbers", receive_many, 10, 60).run(stop_when_empty=False))
    assert numbers.stats().in_flight == 0
    assert [each.delivery_count for each in numbers.browse(limit=3)] == [0, 0, 0]


def test_what_was_taken_ahead_is_not_handed_out_once_its_lease_has_run_out(tmp_path: Path) -> None:
    """A batch may take longer than a lease; whoever takes next is given what waited behind it."""
    clock = FakeClock()
    with QueueService(tmp_path / "ahead", mode="exclusive", catalog=False, clock=clock) as service:
        numbers = service.queue("numbers", type=int, lease_seconds=10)
        numbers.put_many([0, 1])
        numbers.receive(timeout=0).nack(delay=5)

        def receive_many(max_messages: int, *, timeout: float | None = None) -> DeliveryBatch[int]:
            taken = numbers.receive_many(max_messages, timeout=0)
            clock.advance(5)
            return taken

        loop = Batches("numbers", receive_many, 5, 60).run(stop_when_empty=False)
        assert next(loop).bodies == [1]
        clock.advance(10)
        assert numbers.stats().in_flight == 1
        again = next(loop)
        assert (again.bodies, again[0].delivery_count) == ([0], 3)
        again.ack()
        loop.close()
        assert numbers.stats().depth == 0

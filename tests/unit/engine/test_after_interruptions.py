"""What is left where somebody presses Control-C: no lock, nothing out of reach, and one verdict for each message."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import TypeVar

import pytest

from holdfast import CommitUnknownError, Delivery, DeliveryBatch, Empty, PersistentQueue, PoisonedError, Transaction
from holdfast.queue.threads.keyed_lock import KeyedLock
from holdfast.queue.threads.notifier import Flag, Notifier
from holdfast.queue.threads.task_count import TaskCount
from proof.interruptions.locks import locked
from proof.interruptions.sweep import promised
from support.builders.handles import handle_of
from support.builders.jobs import Jobs
from support.processes.interruptions import Kind, guarded, interrupted, points_of
from support.processes.threads import Threads, wait_until

# An interruption that hits the callback of a weak reference is passed over by the interpreter, which says so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Made = TypeVar("Made")


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Poisoning is logged again and again here."""
    caplog.set_level(logging.CRITICAL, "holdfast")


def left_by(
    make: Callable[[], Made], call: Callable[[Made], object], stride: int = 1, kinds: Collection[Kind] = tuple(Kind)
) -> Iterator[Made]:
    """Interrupt a call at each of its points, and yield what it was made on while the exception is handled."""
    first = make()
    points = [each for each in promised(points_of(lambda: call(first))) if each.kind in kinds][::stride]
    assert points
    for point in points:
        made = make()
        with guarded():
            error = interrupted(lambda made=made: call(made), point)  # type: ignore[misc]
            if error is not None:
                yield made
        if isinstance(made, Work):  # else its thread would go on
            made.queue.close()


class Work:
    """A queue of three, one of which is in hand and one in a transaction's."""

    def __init__(self) -> None:
        self.jobs = Jobs()
        self.queue: PersistentQueue = self.jobs.open()
        self.queue.put_many([b"one", b"two", b"three"])
        self.delivery: Delivery = self.queue.receive()
        self.tx: Transaction = self.queue.begin(timeout=50)
        self.tx.receive()

    def taken_later(self) -> list[bytes]:
        """Take all that there is once every lease and time is over."""
        found = []
        for _ in range(2):  # what a transaction gives back to its receiver is leased once more
            self.jobs.clock.advance(200)
            try:
                while True:
                    found.append(self.queue.get(timeout=0))
            except Empty:
                pass
        return found


class Batched(Work):
    """One that has a batch in hand as well."""

    def __init__(self) -> None:
        super().__init__()
        self.queue.get()
        self.queue.put_many([bytes(8)] * 8)
        self.batch: DeliveryBatch = self.queue.receive_many(8)
        assert len(self.batch) == 8


def test_a_close_that_was_interrupted_goes_on_when_called_again() -> None:
    """It lets go of the file locks: the next opening is not refused."""
    for work in left_by(Work, lambda work: work.queue.close(), stride=43):
        work.queue.close()
        with work.jobs.open() as again:
            assert again.qsize() == 3


def test_a_close_that_was_interrupted_behind_a_storage_call_goes_on_when_called_again() -> None:
    """The call is over, and its caller has not noted that: a handle that is closed is not used again."""
    for work in left_by(Work, lambda work: work.queue.close(), kinds=[Kind.DONE]):
        work.queue.close()
        with work.jobs.open() as again:
            assert again.qsize() == 3


def test_a_transaction_that_its_queue_ends_leaves_no_lock() -> None:
    """Neither where its time is over."""
    for work in left_by(Work, lambda work: work.tx.end_with_queue(wait=True), stride=3):
        assert not locked(work.tx)
    for work in left_by(Work, lambda work: work.tx.expire()):
        assert not locked(work.tx)


def test_a_transaction_whose_abort_was_interrupted_gives_its_messages_back() -> None:
    """Once its time is over; nothing of it stays in nobody's hands."""
    for work in left_by(Work, lambda work: work.tx.abort(), stride=4):
        work.queue.flush()
        assert sorted(work.taken_later()) == [b"one", b"three", b"two"]


class Prepared(Work):
    """One that has prepared to finish what its transaction has in hand."""

    def __init__(self) -> None:
        super().__init__()
        self.tx.ack(self.tx.receive())
        self.tx.prepare("t")


def test_an_abort_of_a_prepared_one_that_was_interrupted_keeps_or_gives_back_what_it_holds() -> None:
    """Whatever the file says of it, the queue does: nothing is held by a transaction that is not there any more."""
    given_back_count = 0
    for work in left_by(Prepared, lambda work: work.tx.abort(), stride=5):
        with suppress(PoisonedError, CommitUnknownError):
            work.queue.flush()
            for each in work.queue.prepared():
                work.queue.abort_prepared(each.id)
            assert sorted(work.taken_later()) == [b"one", b"three", b"two"]
            given_back_count += 1
    assert given_back_count > 20


@pytest.mark.parametrize(
    "take", [lambda work: work.tx.receive(), lambda work: work.tx.ack(work.delivery)], ids=["receive", "ack"]
)
def test_what_a_transaction_has_taken_unnoticed_goes_back_with_the_rest(take: Callable[[Work], object]) -> None:
    """The interruption came when the message was in its hands, and before it knew."""
    for work in left_by(Work, take, stride=2):
        work.tx.abort()
        assert sorted(work.taken_later()) == [b"one", b"three", b"two"]


class Due(Work):
    """One in which the time of a message has come, and nothing has looked since."""

    def __init__(self) -> None:
        super().__init__()
        self.queue.put(b"four", delay=1)
        self.queue.peek(5)
        self.jobs.clock.advance(2)


def test_a_look_that_was_interrupted_leaves_what_is_due() -> None:
    """It moves messages from those that wait for their time to those that are ready."""
    for work in left_by(Due, lambda work: work.queue.qsize()):
        assert sorted(work.taken_later()) == [b"four", b"one", b"three", b"two"]


def test_a_reject_that_was_interrupted_is_one_or_is_none() -> None:
    """A dead letter is not given back when the lease runs out that it had."""
    poisoned_count, found = 0, set()
    for work in left_by(Work, lambda work: work.delivery.reject("no use"), stride=3):
        was_dead = work.delivery.offset in handle_of(work.queue).require_read_side().progress.dead
        try:
            taken = work.taken_later()
        except PoisonedError:
            poisoned_count += 1
            continue
        assert (b"one" in taken) is not was_dead
        assert len(work.queue.dead) == was_dead
        found.add(was_dead)
    assert found == {True, False}
    assert poisoned_count < 10


@pytest.mark.parametrize(
    "settle",
    [lambda work: work.delivery.nack(0), lambda work: work.delivery.release(), lambda work: work.queue.peek(2)],
    ids=["nack", "release", "peek"],
)
def test_settling_leaves_no_lock(settle: Callable[[Work], object]) -> None:
    """Also while the exception is handled, whose frames are all there still."""
    for work in left_by(Work, settle):
        assert not locked(work.queue)


def test_a_batch_whose_block_was_interrupted_at_its_beginning_is_given_back() -> None:
    """Its leases run out."""
    for work in left_by(Batched, lambda work: work.batch.__enter__()):
        assert not any(each.is_open for each in work.batch)


class Waiting:
    """A bell, and a flag that a thread waits for."""

    def __init__(self) -> None:
        self.notifier = Notifier()
        self.flag = Flag()
        self.thread = threading.Thread(target=self.flag.wait, daemon=True)
        self.thread.start()
        wait_until(lambda: bool(self.flag._notifier.waiting))


def test_a_flag_whose_setting_was_interrupted_can_be_set_again() -> None:
    """The thread that waits for it continues then."""
    for waiting in left_by(Waiting, lambda waiting: waiting.flag.set()):
        assert not locked(waiting.flag)
        waiting.flag.set()
        waiting.thread.join(10)
        assert not waiting.thread.is_alive()


def test_a_wait_that_was_interrupted_waits_no_more() -> None:
    """Whoever rings next forgets it, if it has not itself."""
    for notifier in left_by(Notifier, lambda notifier: notifier.wait(lambda: False, 0.0)):
        notifier.notify()
        assert not notifier.waiting


def test_a_bell_wakes_all_who_wait() -> None:
    """Each of them once, and it keeps none of them."""
    notifier, threads = Notifier(), Threads()
    for _ in range(3):
        threads.start(lambda: notifier.wait(lambda: False, None))
    wait_until(lambda: len(notifier.waiting) == 3)
    notifier.notify()
    threads.join()
    assert not notifier.waiting


def test_a_flag_is_what_it_was_set_to() -> None:
    """As an event is."""
    flag = Flag()
    assert not flag.wait(0)
    flag.set()
    assert flag.wait()
    assert flag.is_set()
    flag.clear()
    assert not flag.wait(0)


def test_a_task_done_that_was_interrupted_leaves_no_lock() -> None:
    """Whoever joins can be let go."""
    for tasks in left_by(lambda: TaskCount(lambda: 2, lambda: None, lambda: 2), lambda tasks: tasks.task_done()):
        assert not locked(tasks)
        tasks.release()
        tasks.join()


def test_a_turn_that_was_interrupted_is_over() -> None:
    """The next one has it, though the exception is handled still."""

    def take(turns: KeyedLock) -> None:
        with turns.alone("t"):
            len("what is decided")

    for turns in left_by(KeyedLock, take):
        assert not locked(turns)
        take(turns)

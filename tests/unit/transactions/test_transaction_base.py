"""What transactions do at their time, where they are called off, and where taking their lock is interrupted."""

import threading

import pytest

from holdfast.queue.transactions.transaction_state import State
from support.builders.clocks import FakeClock
from support.builders.transactions import open_queue, prepare, waiting
from support.processes.threads import Threads
from support.storages.simulated_storage import SimulatedStorage


class InterruptedLock:
    """A lock of whose taking an interruption comes in between, in front of it or behind."""

    def __init__(self, *, behind: bool) -> None:
        self._lock = threading.RLock()
        self._behind = behind

    def acquire(self, blocking: bool = True) -> bool:
        if self._behind:
            self._lock.acquire(blocking=blocking)
        raise KeyboardInterrupt

    def release(self) -> None:
        self._lock.release()

    def _is_owned(self) -> bool:
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def is_free(self) -> bool:
        """Whether a thread that is not interrupted could take it."""
        is_free = self._lock.acquire(blocking=False)
        if is_free:
            self._lock.release()
        return is_free


@pytest.mark.parametrize("behind", [False, True], ids=["in front", "behind"])
def test_an_interruption_at_the_lock_leaves_it_free(storage: SimulatedStorage, threads: Threads, behind: bool) -> None:
    """The transaction continues."""
    with open_queue(storage, clock=FakeClock()) as queue:
        tx = queue.begin()
        lock, really = InterruptedLock(behind=behind), tx._lock
        tx._lock = lock  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            tx.expire()
        found: list[bool] = []
        threads.start(lambda: found.append(lock.is_free()))
        threads.join()
        assert found == [True]
        tx._lock = really
        tx.put(b"one")
        tx.commit()
        assert waiting(queue) == [b"one"]


def test_the_time_of_a_transaction_ends_it_once_it_is_over_and_not_where_it_is_prepared(
    storage: SimulatedStorage,
) -> None:
    """What is prepared waits for its decision."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        tx, prepared = queue.begin(timeout=10), prepare(queue, "puts")
        assert tx.expire()
        assert tx.state is State.OPEN
        clock.advance(100)
        assert tx.expire()
        assert prepared.expire()
        assert (tx.state, prepared.state) == (State.ABORTED, State.PREPARED)


def test_a_transaction_that_is_called_off_gives_back_what_has_not_failed(storage: SimulatedStorage) -> None:
    """It comes again uncounted; calling off what has ended does nothing."""
    with open_queue(storage, clock=FakeClock()) as queue:
        queue.put(b"one")
        tx = queue.begin()
        tx.receive(timeout=0)
        tx.call_off()
        assert tx.state is State.ABORTED
        tx.call_off()
        assert queue.receive(timeout=0).delivery_count == 1

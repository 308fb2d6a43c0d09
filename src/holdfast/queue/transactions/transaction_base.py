"""What transactions of one and of several queues share: the state, the time, and the end. docs/transactions.md.

A transaction is for one thread at a time. Nothing of it is visible before it commits, but that the messages it has
received are not there for others to take.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from holdfast.clock import Clock
from holdfast.errors import CommitUnknownError, Empty, PoisonedError, ShutDown, StorageError, TransactionStateError
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.options.arguments import wait_for
from holdfast.queue.options.failure import GIVEN_BACK, Failure, failure_of
from holdfast.queue.threads.fork import forked_error
from holdfast.queue.transactions.branch import Branch
from holdfast.queue.transactions.transaction_state import State, next_state

Committed = TypeVar("Committed")

TIMEOUT_SECONDS = 60.0
"""How long a transaction may stay open by default."""


class TransactionBase(ABC):
    """A transaction without its verbs.

    Attributes
    ----------
    id : str
        Its name: the one it was prepared under, or until then 32 hexadecimal digits.
    state : State
        What has become of it.
    """

    def __init__(self, clock: Clock, timeout: float) -> None:
        wait_for(True, timeout)  # refuses what is no time
        self._nonce = secrets.token_bytes(16)
        self.id = self._nonce.hex()
        self.state = State.OPEN
        self._reason = ""
        self._failure: Failure | None = GIVEN_BACK
        self._monotonic = clock.monotonic
        self._deadline = clock.monotonic() + timeout
        self._timeout = timeout
        self._lock = threading.RLock()
        self._is_forked = False
        self._is_part = False
        self._branches: list[Branch] = []

    # -- State -------------------------------------------------------------------------------------------------------

    def _check(self, verb: str) -> State:
        """Return the state that ``verb`` leads to; raises TransactionStateError, also where time has run out."""
        if self._is_forked:
            raise forked_error()
        if self.state is State.OPEN and self._monotonic() >= self._deadline and verb != "abort":
            with self._lock:
                self._time_out()
        return next_state(self.state, verb, self.id, self._reason)

    def _end(self, event: str, reason: str) -> None:
        """Abort an open transaction that nobody may go on with."""
        self.state = next_state(self.state, event, self.id)
        self._reason = reason
        self._give_up()

    def _give_up(self) -> None:
        """Forget puts that are not in the log, and give back what was received.

        What is left over when a transaction commits, or its queue is closed, has not failed. After an exception it
        waits as the back-off says.
        """
        delay = None if self._failure is not GIVEN_BACK else 0.0
        for branch in self._branches:
            branch.discard()
            branch.release(self.expire, None if self.state is State.COMMITTED else self._failure, delay)

    def expire(self) -> bool:
        """Abort if the time is over; False where a verb is under way just now, which will see to it."""
        return self._run_alone(self._time_out, wait=False)

    def _run_alone(self, act: Callable[[], object], *, wait: bool) -> bool:
        """Run under the lock; False where another thread has it, and it is not waited for."""
        lock = self._lock
        if lock._is_owned():  # type: ignore[attr-defined]  # as threading.Condition asks
            act()
            return True
        try:
            is_locked = lock.acquire(blocking=wait)
        except BaseException:  # interrupted, maybe with the lock in hand
            if lock._is_owned():  # type: ignore[attr-defined]
                lock.release()
            raise
        if not is_locked:
            return False
        try:
            act()
        finally:
            lock.release()
        return True

    def _time_out(self) -> None:
        if self.state is State.OPEN and self._monotonic() >= self._deadline:
            self._end("timeout", f"its {self._timeout:g} s are over")
        elif self.state in (State.ABORTED, State.COMMITTED):  # its end was interrupted
            self._give_up()

    def end_with_queue(self, *, wait: bool) -> None:
        """Abort if it is open: a queue of it is being closed. What is prepared stays so.

        One that a thread is busy with is waited for, or passed over.
        """
        self._run_alone(self._end_if_open, wait=wait)

    def _end_if_open(self) -> None:
        if self.state is State.OPEN:
            self._failure = None
            self._end("close", "its queue was closed")

    def forget(self) -> None:
        """In a forked child: the transaction is its parent's; every later call raises ForkedError."""
        self._is_forked = True
        self._lock = threading.RLock()
        self.state, self._reason = State.ABORTED, "it is the parent's"
        for branch in self._branches:
            branch.forget()

    def _commit_by(self, commit: Callable[[float], Committed]) -> Committed:
        """Run the commit of an open transaction, and note what has become of it."""
        try:
            result = commit(max(0.0, self._deadline - self._monotonic()))
        except (CommitUnknownError, PoisonedError):
            self._doubt()
            raise
        except (StorageError, ShutDown) as error:  # nothing has happened
            if self.state is State.OPEN:
                self._end("failure", f"commit failed: {str(error) or 'the queue was shut down'}")
            raise
        except Exception:  # nothing has happened, and it may be tried again
            raise
        except BaseException:  # interrupted: it may have happened
            self._doubt()
            raise
        self.state = State.COMMITTED
        self._give_up()  # what is left: messages received and not acknowledged
        return result

    def _doubt(self) -> None:
        self.state = next_state(self.state, "failed sync", self.id)

    def _receive(self, branch: Branch, timeout: float | None) -> Delivery:
        """Take one message into a branch, within ``timeout`` seconds and within the transaction's own time."""
        with self._lock:
            self._check("receive")
            left = max(0.0, self._deadline - self._monotonic())
            branch.expire_at(self._deadline, self.expire)
            try:
                delivery = branch.receive(left if timeout is None else min(left, timeout))
            except Empty:
                self._check("receive")
                raise
            if self.state is not State.OPEN:  # its time ran out while it waited: what came just then goes back too
                self._give_up()
            self._check("receive")
            return delivery

    def _ack(self, branch: Branch, deliveries: Sequence[Delivery]) -> None:
        """Have a branch finish messages at commit; those taken over go back to their receiver at the deadline."""
        with self._lock:
            branch.expire_at(self._deadline, self.expire)
            branch.ack(deliveries)

    # -- What its deliveries see -------------------------------------------------------------------------------------

    def refusal(self) -> TransactionStateError:
        """Return the error for whoever settles a delivery past the transaction that has it."""
        return TransactionStateError(
            f"the message belongs to transaction {self.id}: tx.ack(delivery) finishes it with the transaction, and "
            "what is not acknowledged is given back at its end",
            transaction=self.id,
            state=self.state.value,
        )

    @abstractmethod
    def leave(self, delivery: Delivery, *, is_clean: bool) -> None:
        """Do what the end of a delivery's ``with`` block means: acknowledge it in the transaction, if it was clean."""

    # -- Ending ------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Let go of everything: puts are forgotten, messages taken are ready again. Aborting again does nothing."""
        with self._lock:
            state = self._check("abort")
            if self.state is State.OPEN:
                self.state = state
                self._give_up()

    def call_off(self) -> None:
        """Abort if it is open, because the work was called off: what was received comes again uncounted."""
        with self._lock:
            if self.state is State.OPEN:
                self._failure = None
                self.abort()

    @abstractmethod
    def commit(self) -> object:
        """Make it happen, all of it, once; return the offsets of what was put."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, unless the block ended in an exception or somebody has decided already, or will jointly."""
        if self._is_part:
            return
        if error is None:
            if self.state in (State.OPEN, State.PREPARED) or self._reason:  # one that timed out has not committed
                self.commit()
        elif self.state in (State.OPEN, State.PREPARED):
            self._failure = failure_of(error)
            self.abort()


class OpenTransactions:
    """The transactions of one queue that have not ended, for when it is closed."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[TransactionBase] = weakref.WeakSet()
        self._lock = threading.Lock()  # a set that changes cannot be gone through

    def add(self, transaction: TransactionBase) -> None:
        """Remember one."""
        with self._lock:
            self._open.add(transaction)

    @property
    def is_any_open(self) -> bool:
        """Whether any of them waits for its end."""
        return any(each.state is State.OPEN for each in self._all())

    def close(self, *, wait: bool) -> None:
        """Abort those that are open; ``wait`` for those that a thread is busy with, else leave them."""
        for transaction in self._all():
            transaction.end_with_queue(wait=wait)

    def forget(self) -> None:
        """In a forked child: leave them to the parent."""
        self._lock = threading.Lock()
        for transaction in self._all():
            transaction.forget()

    def _all(self) -> list[TransactionBase]:
        with self._lock:
            return list(self._open)

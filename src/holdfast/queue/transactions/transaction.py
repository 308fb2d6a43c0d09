"""Transactions: puts and acknowledgements that happen together, or not at all. docs/transactions.md.

A transaction is for one thread at a time. Nothing of it is visible before it commits, except that others cannot take
the messages that it has received.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.clock import Clock
from holdfast.errors import (
    CommitUnknownError,
    Empty,
    HoldfastError,
    PoisonedError,
    ShutDown,
    StorageError,
    TransactionStateError,
    UsageError,
)
from holdfast.persistence.format.commit_record import PartOf
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.arguments import DATA_FILE_BYTES_MIN, wait_for
from holdfast.queue.options.failure import GIVEN_BACK, Failure, failure_of
from holdfast.queue.options.put_options import Put
from holdfast.queue.prepared.joint_resolver import check_part_of
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.prepared.reservations import check_transaction_id
from holdfast.queue.producer.nonces import next_nonce
from holdfast.queue.threads.lifecycle import forked_error
from holdfast.queue.transactions.branch import Branch, check_deliveries
from holdfast.queue.transactions.shared_branch import branch_of
from holdfast.queue.transactions.transaction_state import State, next_state

Committed = TypeVar("Committed")

TIMEOUT_SECONDS = 60.0
"""How long a transaction may stay open by default."""

_OPEN = State.OPEN
"""Looking a member up in its class costs every put."""


_MEMORY_BYTES_MIN = DATA_FILE_BYTES_MIN // 4
"""What the transactions of any queue keep in memory."""


class TransactionBase(ABC):
    """The common part of transactions of one and of several queues: state, timeout and end.

    Attributes
    ----------
    id : str
        The id that it was prepared under, or until then 32 hexadecimal digits.
    state : State
        Its state.
    """

    def __init__(self, clock: Clock, timeout: float) -> None:
        wait_for(True, timeout)  # refuses an invalid time
        self._nonce = next_nonce()
        self.id = self._nonce.hex()
        self.state = State.OPEN
        self._reason = ""
        self._failure: Failure | None = GIVEN_BACK
        self._monotonic = clock.monotonic
        self._deadline = clock.monotonic() + timeout
        self._timeout = timeout
        self._lock = threading.RLock()
        self._refusal: Callable[[], Exception] | None = None
        self._is_part = False
        self._branches: list[Branch] = []

    # -- State -------------------------------------------------------------------------------------------------------

    def _check(self, verb: str) -> State:
        """Return the state that ``verb`` leads to; raises TransactionStateError, also after the timeout."""
        if self._refusal is not None:
            raise self._refusal()
        if self.state is State.OPEN and self._monotonic() >= self._deadline and verb != "abort":
            with self._lock:
                self._time_out()
        return next_state(self.state, verb, self.id, self._reason)

    def _end(self, event: str, reason: str) -> None:
        """Abort an open transaction that cannot continue."""
        self.state = next_state(self.state, event, self.id)
        self._reason = reason
        self._give_up()

    def _give_up(self) -> None:
        """Forget puts that are not in the log, and give back received messages.

        Messages left over when a transaction commits, or its queue is closed, have not failed. After an exception they
        wait for the back-off.
        """
        delay = None if self._failure is not GIVEN_BACK else 0.0
        for branch in self._branches:
            branch.discard()
            branch.release(self.expire, None if self.state is State.COMMITTED else self._failure, delay)

    def expire(self) -> bool:
        """Abort after the timeout; False if a verb is in progress, which will do it."""
        return self._run_alone(self._time_out, wait=False)

    def _run_alone(self, act: Callable[[], object], *, wait: bool) -> bool:
        """Run under the lock; False if another thread has it, and it is not waited for."""
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
            self._end("timeout", f"its timeout of {self._timeout:g} s expired")
        elif self.state in (State.ABORTED, State.COMMITTED, State.PREPARED):  # its end was interrupted
            self._give_up()

    def end_with_queue(self, *, wait: bool) -> None:
        """Abort if it is open: a queue of it is being closed. Prepared ones stay prepared.

        If a thread is busy with it, wait for the thread, or skip it.
        """
        self._run_alone(self._end_if_open, wait=wait)

    def _end_if_open(self) -> None:
        if self.state is State.OPEN:
            self._failure = None
            self._end("close", "its queue was closed")

    def forget(self) -> None:
        """In a forked child: the transaction is its parent's; every later call raises ForkedError."""
        self._refusal = forked_error
        self._lock = threading.RLock()
        self.state, self._reason = State.ABORTED, "it belongs to the parent process"
        for branch in self._branches:
            branch.forget()

    def _commit_by(self, commit: Callable[[float], Committed]) -> Committed:
        """Run the commit of an open transaction, and record its state."""
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
        self._give_up()  # the rest: messages received and not acknowledged
        return result

    def _doubt(self) -> None:
        """Leave all on the disk as it is, and no file open: the next opening of the queue decides."""
        self.state = next_state(self.state, "failed sync", self.id)
        for branch in self._branches:
            branch.forget()

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
            if self.state is not State.OPEN:  # its timeout expired meanwhile: a message of that moment goes back too
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
        """Return the error for settling a delivery outside of its transaction."""
        return TransactionStateError(
            f"the message belongs to transaction {self.id}: tx.ack(delivery) finishes it with the transaction, and "
            "what is not acknowledged is given back at its end",
            transaction=self.id,
            state=self.state.value,
        )

    @abstractmethod
    def leave(self, delivery: Delivery, *, is_clean: bool) -> None:
        """Handle the end of a delivery's ``with`` block: acknowledge it in the transaction, if it was clean."""

    # -- Ending ------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Discard everything: puts are forgotten, taken messages are available again. Aborting again does nothing."""
        with self._lock:
            state = self._check("abort")
            if self.state is State.OPEN:
                self.state = state
                self._give_up()

    def call_off(self) -> None:
        """Abort if it is open, because the work was called off: received messages come again uncounted."""
        with self._lock:
            if self.state is State.OPEN:
                self._failure = None
                self.abort()

    @abstractmethod
    def commit(self) -> object:
        """Commit all of it, once; return the offsets of the puts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, unless the block ended in an exception, it is decided already, or a joint commit will decide it.

        If the commit is refused and nothing has happened, abort: no later code may have the transaction. The exception
        comes out: it gets a note if the transaction stays prepared, as it cannot be aborted now.
        """
        if self._is_part:
            return
        if error is None:
            if self.state in (State.OPEN, State.PREPARED) or self._reason:  # one that timed out has not committed
                try:
                    self.commit()
                except BaseException as refusal:
                    if self.state is State.OPEN:
                        self._abort_after(refusal)
                    raise
        elif self.state in (State.OPEN, State.PREPARED):
            self._abort_after(error)

    def _abort_after(self, error: BaseException) -> None:
        self._failure = failure_of(error)
        try:
            self.abort()
        except HoldfastError as refusal:
            error.add_note(f"transaction {self.id} is not aborted: {refusal}")


class Transaction(TransactionBase):
    """A transaction of one queue: see ``PersistentQueue.transaction`` and ``PersistentQueue.begin``.

    A ``with`` block commits on a clean exit, and aborts on an exception.
    """

    def __init__(self, handle: QueueHandle, resolver: PreparedResolver, record_bytes_max: int, timeout: float) -> None:
        super().__init__(handle.clock, timeout)
        self._handle = handle
        self._resolver = resolver
        self._record_bytes_max = record_bytes_max
        self._only_bytes_max = record_bytes_max if record_bytes_max < _MEMORY_BYTES_MIN else _MEMORY_BYTES_MIN
        self._only: bytes | None = None

    @property
    def _branch(self) -> Branch:
        """What it does to its queue; as long as that is a put of one plain message, ``_only`` is all of it."""
        if not self._branches:
            branch = branch_of(self._handle, self, self._nonce, self._record_bytes_max)
            if self._only is not None:
                branch.put(self._only, None)
            self._branches = [branch]
        return self._branches[0]

    # -- Work --------------------------------------------------------------------------------------------------------

    def put(self, payload: bytes | Put, *, headers: Mapping[str, str] | None = None) -> None:
        """Add one message; it has no offset before :meth:`commit`, which returns them. Times of a ``Put`` begin now.

        Raises
        ------
        TypeError, RecordTooLargeError
            As ``PersistentQueue.put``; the transaction is as before.
        TransactionStateError
            The transaction is not open any more; the text names its state.
        DiskFullError, StorageError
            Puts that do not fit into memory could not be written; the transaction can be aborted.
        """
        if self.state is not _OPEN or self._monotonic() >= self._deadline:
            self._check("put")
        if self._branches:
            self._branches[0].put(payload, headers)
        elif (
            self._only is None
            and headers is None
            and type(payload) is bytes
            and len(payload) <= self._only_bytes_max
            and self._handle.producer is None
        ):
            self._only = payload
        else:
            self._branch.put(payload, headers)

    def put_many(self, payloads: Iterable[bytes | Put]) -> None:
        """Add messages in order. Raises as :meth:`put`; then none is added."""
        self._check("put_many")
        self._branch.put_many(payloads)

    def put_stream(
        self, chunks: Iterable[Any], *, headers: Mapping[str, str] | None = None, max_bytes: int | None = None
    ) -> int:
        """Add one large message in pieces, which are written as they come; return its size in bytes.

        Parameters
        ----------
        chunks : iterable of bytes-like
            The payload, in order.
        headers : mapping of str to str
            As for ``put``.
        max_bytes : int or None, bytes
            Bound of the payload; None: the queue's ``record_bytes_max``. The consumer that takes it holds it in memory.

        Raises as :meth:`put`; an exception of ``chunks`` is raised unchanged, and leaves nothing of this message
        behind.
        """
        self._check("put_stream")
        with self._lock:
            return self._branch.put_stream(chunks, headers, max_bytes)

    def receive(self, *, timeout: float | None = None) -> Delivery:
        """Take one message into the transaction: it is finished by :meth:`ack`, or given back when this ends.

        Raises
        ------
        queue.Empty
            No message came within ``timeout`` seconds.
        TransactionStateError
            The transaction is not open any more, or its timeout expired meanwhile.
        """
        return self._receive(self._branch, wait_for(True, timeout))

    def ack(self, items: Delivery | Sequence[Delivery]) -> None:
        """Finish messages when the transaction commits: its own, and those that ``queue.receive`` delivered.

        Raises
        ------
        StaleReceiptError
            One was finished or given back before; none is taken.
        """
        self._check("ack")
        self._ack(self._branch, check_deliveries(items))

    def leave(self, delivery: Delivery, *, is_clean: bool) -> None:
        if is_clean and self.state is State.OPEN:
            self.ack(delivery)

    # -- Ending ------------------------------------------------------------------------------------------------------

    def prepare(self, id: str | None = None, *, part_of: tuple[str, int] | None = None) -> str:  # the word users know
        """Make everything durable and undecided; return the id to decide it by, in this process or a later one.

        Parameters
        ----------
        id : str or None
            1 to 100 of ``A-Z a-z 0-9 . _ -`` without a leading dot, of no other transaction that is in doubt; None: 32
            hexadecimal digits.
        part_of : (str, int) or None
            Application and version of the joint commit that will decide it (``queue.joint_commits``): it only puts.

        Raises
        ------
        ConfigError
            The id cannot be one, or is that of a reservation.
        TransactionStateError
            The id is in doubt already, the transaction is not open, or that version was committed before.
        StaleReceiptError
            A message is not the transaction's any more; it is aborted.
        DiskFullError, StorageError
            It is not prepared, but aborted: nothing has happened. After this returned, committing needs no space.
        CommitUnknownError, PoisonedError
            It may have happened or not, or an earlier failure has poisoned this side: reopen the queue, and check
            whether it is in doubt.
        queue.Full
            A bounded queue has no space for it.

        Notes
        -----
        Durability: power loss, under any flush policy. Cost: one sync for the puts, or two if they are large or a part;
        one for the acknowledgements.
        """
        with self._lock:
            state = self._check("prepare")
            chosen = self.id if id is None else check_transaction_id(id, self._handle.queue_id)
            part = None if part_of is None else check_part_of(*part_of)
            if part is not None and self._branch.acked:
                raise UsageError("a part of a joint commit only puts: acknowledge in a transaction of its own")
            self._branch.wait_for_space(max(0.0, self._deadline - self._monotonic()))
            try:
                self._prepare(chosen, part, state, is_new=id is None)
            except BaseException as error:
                if self.state is State.OPEN and not isinstance(error, TransactionStateError):
                    self._end("failure", f"prepare failed: {error}")
                elif self.state is State.PREPARED:  # interrupted behind it
                    self._give_up()
                raise
            self._give_up()
            return chosen

    def _prepare(self, chosen: str, part_of: PartOf | None, prepared: State, *, is_new: bool) -> None:
        branch, coordinator = self._branch, self._handle.coordinator
        puts = branch.put_count > 0 or not branch.acked
        if coordinator is not None:  # else the owner does that, when it is asked to prepare
            self._resolver.make_ready(chosen, puts=puts, part_of=part_of, is_new=is_new)
            coordinator.begin(self._nonce)
        try:
            branch.prepare(chosen, None, part_of)
            self.id, self.state, self._is_part = chosen, prepared, part_of is not None
        except (CommitUnknownError, PoisonedError):
            self._doubt()
            raise
        except (HoldfastError, ShutDown) as error:
            if isinstance(error, TransactionStateError) and self._handle.producer is not None:
                raise  # the owner has refused the id, and done nothing
            try:
                branch.abort_prepared()
            except HoldfastError:  # some of it may be on the disk
                self._doubt()
                raise error from None
            self._end("failure", f"prepare failed: {error}")
            raise
        except BaseException:  # interrupted, or out of memory: it may be prepared
            self._doubt()
            raise
        finally:
            if coordinator is not None:
                coordinator.end(self._nonce)

    def commit(self) -> range:
        """Commit all of it, once; return the offsets of the puts. Committing again returns them again.

        Raises
        ------
        TransactionStateError
            It was aborted, or its timeout expired.
        queue.Full, StaleReceiptError
            A bounded queue is full, or a message is not the transaction's any more; it stays open.
        DiskFullError, StorageError
            Nothing has happened; it is aborted.
        CommitUnknownError, PoisonedError
            It may have happened or not, or an earlier failure has poisoned this side: reopen the queue and check.

        Notes
        -----
        Durability: as the flush policy; power loss if it both puts and acknowledges, was prepared, or has
        put more than fits into memory. Cost: one write, at most one sync; for the rest docs/transactions.md, "What it
        costs".
        """
        with self._lock:
            if self.state is not _OPEN or self._monotonic() >= self._deadline:
                self._check("commit")
            if self.state is _OPEN:
                self._offsets: range = self._commit_by(self._commit_open)
            elif self.state is State.PREPARED:
                try:
                    self._offsets = self._resolver.commit(self.id, nonce=self._nonce)
                except (CommitUnknownError, PoisonedError):
                    self._doubt()
                    raise
                self.state = State.COMMITTED
            return self._offsets

    def _give_up(self) -> None:
        self._only = None
        super()._give_up()

    def _commit_open(self, left: float) -> range:
        """Commit within ``left`` seconds."""
        only = self._only
        if only is None or self._branches:
            return self._branch.commit(self.id, left)
        offset = self._handle.require_putting().put(only, b"", left)
        return range(offset, offset + 1)

    def abort(self) -> None:
        """Discard everything, prepared or not: puts are gone, taken messages are available again.

        Aborting again does nothing. Raises TransactionStateError if it has committed; if it was prepared, as
        ``PersistentQueue.abort_prepared``.
        """
        with self._lock:
            if self.state is not State.PREPARED:
                super().abort()
                return
            state = self._check("abort")
            self._resolver.abort(self.id, nonce=self._nonce)
            self.state = state

    def __repr__(self) -> str:
        return f"<Transaction {self.id} of {self._handle.path}: {self.state.value}>"


class OpenTransactions:
    """The transactions of one queue that have not ended, for when it is closed."""

    def __init__(self) -> None:
        self._open: set[weakref.ref[TransactionBase]] = set()  # each step is one call, and needs no lock

    def add(self, transaction: TransactionBase) -> None:
        """Remember one, as long as anybody else does."""
        self._open.add(weakref.ref(transaction, self._open.discard))

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
        for transaction in self._all():
            transaction.forget()

    def _all(self) -> list[TransactionBase]:
        found = [known() for known in list(self._open)]
        return [each for each in found if each is not None]

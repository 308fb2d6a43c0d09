"""Transactions of one queue: puts and acknowledgements that happen together, or not at all. docs/transactions.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.errors import CommitUnknownError, HoldfastError, PoisonedError, TransactionStateError, UsageError
from holdfast.persistence.filesystem.layout import check_name
from holdfast.persistence.format.commit_record import PartOf
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.arguments import wait_for
from holdfast.queue.options.put_options import Put
from holdfast.queue.prepared.joint_decisions import check_part_of
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.transactions.branch import Branch, check_deliveries
from holdfast.queue.transactions.transaction_base import TransactionBase
from holdfast.queue.transactions.transaction_state import State

_OPEN = State.OPEN
"""Looking a member up in its class costs every put."""


class Transaction(TransactionBase):
    """A transaction of one queue: see ``PersistentQueue.transaction`` and ``PersistentQueue.begin``.

    A ``with`` block commits on a clean exit, and aborts on an exception.
    """

    def __init__(self, sides: QueueHandle, in_doubt: PreparedResolver, record_bytes_max: int, timeout: float) -> None:
        super().__init__(sides.clock, timeout)
        self._sides = sides
        self._in_doubt = in_doubt
        self._branch = Branch(sides, self, self._nonce, record_bytes_max)
        self._branches = [self._branch]

    # -- Work --------------------------------------------------------------------------------------------------------

    def put(self, payload: bytes | Put, *, headers: Mapping[str, str] | None = None) -> None:
        """Add one message; it has no offset before :meth:`commit`, which returns them. Times of a ``Put`` begin now.

        Raises
        ------
        TypeError, RecordTooLargeError
            As ``PersistentQueue.put``; the transaction is as before.
        TransactionStateError
            The transaction is not open any more; says what it is.
        DiskFullError, StorageError
            What does not fit into memory could not be written; the transaction can be aborted.
        """
        if self.state is not _OPEN or self._monotonic() >= self._deadline:
            self._check("put")
        self._branch.put(payload, headers)

    def put_many(self, payloads: Iterable[bytes | Put]) -> None:
        """Add messages in order. Raises as :meth:`put`; then none is added."""
        self._check("put_many")
        self._branch.put_many(payloads)

    def put_stream(
        self, chunks: Iterable[Any], *, headers: Mapping[str, str] | None = None, max_bytes: int | None = None
    ) -> int:
        """Add one large message that comes in pieces, which are written as they come; return its size in bytes.

        Parameters
        ----------
        chunks : iterable of bytes-like
            The payload, in order.
        headers : mapping of str to str
            As for ``put``.
        max_bytes : int or None, bytes
            Bound of the payload; None: the queue's ``record_bytes_max``. Whoever takes it holds it in memory.

        Raises as :meth:`put`; whatever ``chunks`` raises comes out, and leaves nothing of this message behind.
        """
        self._check("put_stream")
        with self._lock:
            return self._branch.put_stream(chunks, headers, max_bytes)

    def receive(self, *, timeout: float | None = None) -> Delivery:
        """Take one message into the transaction: it is finished by :meth:`ack`, or given back when this ends.

        Raises
        ------
        queue.Empty
            Nothing came within ``timeout`` seconds.
        TransactionStateError
            The transaction is not open any more, or its time ran out meanwhile.
        """
        return self._receive(self._branch, wait_for(True, timeout))

    def ack(self, items: Delivery | Sequence[Delivery]) -> None:
        """Finish messages when the transaction commits: its own, and those that ``queue.receive`` handed out.

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
        TransactionStateError
            The id is in doubt already, the transaction is not open, or that version was committed before.
        DiskFullError, StorageError
            It is not prepared, but aborted: nothing has happened. After this returned, committing needs no room.
        CommitUnknownError, PoisonedError
            Nobody knows, or an earlier failure stands: reopen the queue and look whether it is in doubt.
        queue.Full
            A bounded queue has no room for it.

        Notes
        -----
        Durability: power loss, whatever the flush policy. Cost: two syncs for the puts, one for the acknowledgements.
        """
        with self._lock:
            state = self._check("prepare")
            chosen = self.id if id is None else check_name(id, "transaction")
            part = None if part_of is None else check_part_of(*part_of)
            if part is not None and self._branch.acked:
                raise UsageError("a part of a joint commit only puts: acknowledge in a transaction of its own")
            self._branch.wait_for_room(max(0.0, self._deadline - self._monotonic()))
            try:
                self._prepare(chosen, part)
            except BaseException as error:
                if self.state is State.OPEN and not isinstance(error, TransactionStateError):
                    self._end("failure", f"prepare failed: {error}")
                raise
            self.id, self.state, self._is_part = chosen, state, part is not None
            self._give_up()
            return chosen

    def _prepare(self, chosen: str, part_of: PartOf | None) -> None:
        branch, coordinator = self._branch, self._sides.coordinator
        self._in_doubt.make_ready(chosen, puts=branch.put_count > 0 or not branch.acked, part_of=part_of)
        if coordinator is not None:
            coordinator.begin(self._nonce)
        try:
            branch.prepare(chosen, None, part_of)
        except (CommitUnknownError, PoisonedError):
            self._doubt()
            raise
        except Exception as error:
            try:
                branch.abort_prepared()
            except HoldfastError:  # some of it may be on the disk
                self._doubt()
                raise error from None
            self._end("failure", f"prepare failed: {error}")
            raise
        except BaseException:  # interrupted: it may be prepared
            self._doubt()
            raise
        finally:
            if coordinator is not None:
                coordinator.end(self._nonce)

    def commit(self) -> range:
        """Make it happen, all of it, once; return the offsets of what was put. Committing again returns them again.

        Raises
        ------
        TransactionStateError
            It was aborted, or its time ran out.
        queue.Full, StaleReceiptError
            A bounded queue has no room, or a message is not the transaction's any more; it stays open.
        DiskFullError, StorageError
            Nothing has happened; it is aborted.
        CommitUnknownError, PoisonedError
            Nobody knows, or an earlier failure stands: reopen the queue and look.

        Notes
        -----
        Durability: what the flush policy says; power loss where it puts and acknowledges both, was prepared, or has
        put more than fits into memory. Cost: one write, at most one sync; for the rest docs/transactions.md, "What it
        costs".
        """
        with self._lock:
            self._check("commit")
            if self.state is State.OPEN:
                self._offsets: range = self._commit_by(lambda left: self._branch.commit(self.id, left))
            elif self.state is State.PREPARED:
                try:
                    self._offsets = self._in_doubt.commit(self.id, nonce=self._nonce)
                except (CommitUnknownError, PoisonedError):
                    self._doubt()
                    raise
                self.state = State.COMMITTED
            return self._offsets

    def abort(self) -> None:
        """Let go of everything, prepared or not: puts are gone, messages taken are ready again.

        Aborting again does nothing. Raises TransactionStateError where it has committed; where it was prepared, as
        ``PersistentQueue.abort_prepared``.
        """
        with self._lock:
            if self.state is not State.PREPARED:
                super().abort()
                return
            state = self._check("abort")
            self._in_doubt.abort(self.id, nonce=self._nonce)
            self.state = state

    def __repr__(self) -> str:
        return f"<Transaction {self.id} of {self._sides.path}: {self.state.value}>"

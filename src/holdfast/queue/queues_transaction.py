"""Transactions over several queues: all of it after any crash, or nothing. docs/transactions.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import CommitUnknownError, ConfigError, Full, PoisonedError, UsageError
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.options.arguments import wait_for
from holdfast.queue.options.put_options import Put
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.transactions.branch import Branch, check_deliveries
from holdfast.queue.transactions.transaction import TIMEOUT_SECONDS, TransactionBase
from holdfast.queue.transactions.transaction_state import State
from holdfast.queue.transactions.two_phase import commit_together


def transaction(*queues: PersistentQueue, timeout: float = TIMEOUT_SECONDS) -> QueuesTransaction:
    """Begin a transaction over several queues: a ``with`` block commits on a clean exit, and aborts on an exception.

    Parameters
    ----------
    queues : PersistentQueue
        Those that take part, all opened in this process, in any mode but "read_only". The log of one of them decides.
    timeout : float, seconds
        After so long it aborts.

    Raises
    ------
    ConfigError
        No queue, or one twice.
    UsageError
        A queue that is closed, or was opened in a mode that neither puts nor takes.

    Examples
    --------
    >>> with holdfast.transaction(orders, invoices) as tx:  # doctest: +SKIP
    ...     message = tx.receive(orders)
    ...     tx.put(invoices, invoice_for(message.payload))
    ...     tx.ack(orders, message)
    """
    if not queues or len({id(queue) for queue in queues}) < len(queues):
        raise ConfigError("a transaction is over one queue or several, each named once")
    begun = QueuesTransaction(queues[0]._clock, timeout)
    for queue in queues:
        begun.join(queue)
    return begun


class QueuesTransaction(TransactionBase):
    """A transaction over several queues: see :func:`holdfast.transaction`. Its verbs take the queue first."""

    def __init__(self, clock: Clock, timeout: float) -> None:
        super().__init__(clock, timeout)
        self._by_queue: dict[int, Branch] = {}
        self._queues: list[PersistentQueue] = []

    def join(self, queue: PersistentQueue) -> None:
        """Have a queue take part; one that does already stays as it is.

        Raises
        ------
        UsageError
            The queue is closed, or was opened in a mode that neither puts nor takes.
        TransactionStateError
            The transaction is over.
        """
        with self._lock:
            if id(queue) not in self._by_queue:
                self._check("put")
                if queue.mode == "shared" and any(each.queue_id == queue.queue_id for each in self._queues):
                    raise ConfigError(f"{queue.path} takes part by another handle: one queue has one part")
                branch = queue.join_transaction(self, self._nonce)
                self._queues.append(queue)
                self._branches.append(branch)
                self._by_queue[id(queue)] = branch

    def _branch(self, queue: PersistentQueue) -> Branch:
        branch = self._by_queue.get(id(queue))
        if branch is None:
            raise UsageError(f"{queue!r} takes no part in transaction {self.id}: name it where the transaction begins")
        return branch

    # -- Work --------------------------------------------------------------------------------------------------------

    def put(self, queue: PersistentQueue, payload: bytes | Put, *, headers: Mapping[str, str] | None = None) -> None:
        """Add one message to a queue. Raises as :meth:`Transaction.put`."""
        self._check("put")
        self._branch(queue).put(payload, headers)

    def put_many(self, queue: PersistentQueue, payloads: Iterable[bytes | Put]) -> None:
        """Add messages to a queue, in order. Raises as :meth:`Transaction.put`; then none is added."""
        self._check("put_many")
        self._branch(queue).put_many(payloads)

    def put_stream(
        self,
        queue: PersistentQueue,
        chunks: Iterable[Any],
        *,
        headers: Mapping[str, str] | None = None,
        max_bytes: int | None = None,
    ) -> int:
        """Add one large message to a queue; return its size in bytes. As :meth:`Transaction.put_stream`."""
        self._check("put_stream")
        with self._lock:
            return self._branch(queue).put_stream(chunks, headers, max_bytes)

    def receive(self, queue: PersistentQueue, *, timeout: float | None = None) -> Delivery:
        """Take one message of a queue into the transaction. Raises as :meth:`Transaction.receive`."""
        return self._receive(self._branch(queue), wait_for(True, timeout))

    def ack(self, queue: PersistentQueue, items: Delivery | Sequence[Delivery]) -> None:
        """Finish messages of a queue when the transaction commits. Raises as :meth:`Transaction.ack`."""
        self._check("ack")
        self._ack(self._branch(queue), check_deliveries(items))

    def leave(self, delivery: Delivery, *, is_clean: bool) -> None:
        if is_clean and self.state is State.OPEN:
            for branch in self._branches:
                if branch.has_received(delivery):
                    branch.ack([delivery])

    # -- Ending ------------------------------------------------------------------------------------------------------

    def commit(self) -> dict[PersistentQueue, range]:
        """Make it happen in all queues, or in none; return the offsets of the puts in each queue.

        Raises
        ------
        TransactionStateError
            It was aborted, or its time ran out.
        queue.Full
            A bounded queue is full; the transaction stays open.
        StaleReceiptError, DiskFullError, StorageError
            Nothing has happened; it is aborted.
        CommitUnknownError, PoisonedError
            It may have happened or not: the others stay in doubt until the coordinator is reopened.

        Notes
        -----
        Durability: power loss, under any flush policies; if only one queue has work, as
        :meth:`Transaction.commit`. Cost: docs/transactions.md, "What it costs".
        """
        with self._lock:
            self._check("commit")
            if self.state is State.OPEN:
                self._offsets: dict[PersistentQueue, range] = self._commit_by(self._commit)
            return self._offsets

    def _commit(self, timeout: float) -> dict[PersistentQueue, range]:
        working = [branch for branch in self._branches if not branch.is_idle]
        offsets: dict[Branch, range] = {}
        if len(working) == 1:
            offsets = {working[0]: working[0].commit(self.id, timeout)}
        elif working:
            offsets = self._commit_together(working, timeout)
        return {queue: offsets.get(self._branch(queue), range(0)) for queue in self._queues}

    def _commit_together(self, working: Sequence[Branch], timeout: float) -> dict[Branch, range]:
        try:
            return commit_together(working, self.id, timeout)
        except (CommitUnknownError, PoisonedError, Full):
            raise
        except Exception as error:  # prepared files have been discarded: there is nothing to try again with
            self._end("failure", f"commit failed: {error}")
            raise

    def __repr__(self) -> str:
        return f"<QueuesTransaction {self.id} of {len(self._branches)} queues: {self.state.value}>"

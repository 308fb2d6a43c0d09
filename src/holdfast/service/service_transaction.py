"""Transactions over the queues of a service: puts and acknowledgements of objects, all of them or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.queue.dispatch.delivery import Delivery, by_queue
from holdfast.queue.options.arguments import wait_for
from holdfast.queue.options.put_options import Put, Seconds
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.queues_transaction import QueuesTransaction
from holdfast.queue.transactions.transaction_state import State
from holdfast.service.typed_queue import TypedQueue

Body = TypeVar("Body")


class ServiceTransaction:
    """A transaction over any queues of a service: each takes part from the first verb that names it.

    ``with`` commits on a clean exit and aborts on an exception. For one thread at a time. docs/transactions.md.
    """

    def __init__(self, below: QueuesTransaction, find_queue: Callable[[Delivery], PersistentQueue]) -> None:
        self._below = below
        self._find_queue = find_queue
        self._queues: list[TypedQueue[Any]] = []

    @property
    def id(self) -> str:
        """Its name, 32 hexadecimal digits."""
        return self._below.id

    @property
    def state(self) -> State:
        """Its state."""
        return self._below.state

    # -- Work --------------------------------------------------------------------------------------------------------

    def put(
        self,
        queue: TypedQueue[Body],
        body: Body,
        *,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        not_before: datetime | float | None = None,
        priority: int = 0,
        ttl: Seconds | None = None,
        order_key: str | None = None,
    ) -> None:
        """Add one object to a queue; it has an offset once the transaction has committed.

        Parameters and errors as :meth:`TypedQueue.put`; there is no deduplication inside of transactions.
        """
        wanted = Put(body, headers, delay, not_before, priority, ttl, order_key)  # type: ignore[arg-type]  # an object
        self.put_many(queue, [wanted])

    def put_many(self, queue: TypedQueue[Body], bodies: Iterable[Body | Put]) -> None:
        """Add objects to a queue, in order; none if one of them does not fit. Raises as :meth:`put`."""
        _check_queue(queue)
        encoded = queue.encode_many(bodies)
        self._join(queue)
        self._below.put_many(queue.raw, encoded)

    def receive(self, queue: TypedQueue[Body], *, timeout: float | None = None) -> Delivery[Body]:
        """Take one message of a queue into the transaction: it is given back at the end unless acknowledged.

        Raises
        ------
        queue.Empty, queue.ShutDown, ClosedError
            As :meth:`TypedQueue.receive`.
        TransactionStateError
            The transaction is over.
        """
        self._join(queue)
        deadline = None if timeout is None else time.monotonic() + (wait_for(True, timeout) or 0.0)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            delivery: Delivery[Body] = self._below.receive(queue.raw, timeout=left)
            if queue.decode_delivery(delivery):
                return delivery

    def ack(self, items: Delivery[Any] | Sequence[Delivery[Any]]) -> None:
        """Finish messages when the transaction commits: its own, and those that a queue's ``receive`` has delivered.

        Raises
        ------
        StaleReceiptError
            One was finished or given back before; none of its queue is taken.
        UsageError
            One is of a queue that this service has not open.
        """
        several = (items,) if isinstance(items, Delivery) else items
        for batch in by_queue(several):
            raw = self._find_queue(batch[0])
            self._below.join(raw)
            self._below.ack(raw, batch)

    def _join(self, queue: TypedQueue[Any]) -> None:
        if queue not in self._queues:
            _check_queue(queue)
            self._below.join(queue.raw)
            self._queues.append(queue)

    # -- Ending ------------------------------------------------------------------------------------------------------

    def commit(self) -> dict[TypedQueue[Any], range]:
        """Make it happen in all queues, or in none; return the offsets of the puts, by queue.

        Raises as :meth:`QueuesTransaction.commit`.
        """
        offsets = self._below.commit()
        return {queue: offsets[queue.raw] for queue in self._queues}

    def abort(self) -> None:
        """Discard everything: puts are forgotten, messages taken are ready again."""
        self._below.abort()

    def call_off(self) -> None:
        """Abort if it is open; this is not a failure, so received messages come again uncounted."""
        self._below.call_off()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._below.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<ServiceTransaction {self.id} of {len(self._queues)} queues: {self.state.value}>"


def _check_queue(queue: object) -> None:
    if not isinstance(queue, TypedQueue):
        raise TypeError(f"a transaction takes the queue that service.queue() returned, not {type(queue).__name__}")

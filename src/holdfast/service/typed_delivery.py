"""A message in a consumer's hands, with the object it carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Generic, Self, TypeVar, overload

from holdfast.queue.delivery import Delivery, DeliveryBatch, by_queue
from holdfast.queue.put_options import Seconds

Body = TypeVar("Body")


class TypedDelivery(Generic[Body]):
    """One handing-out of a message. A clean exit from ``with`` acknowledges it, an exception gives it back.

    Attributes
    ----------
    body : object
        What was put.
    delivery : Delivery
        The same as the queue of bytes has it: its receipt.
    """

    __slots__ = ("body", "delivery")

    def __init__(self, delivery: Delivery, body: Body) -> None:
        self.delivery = delivery
        self.body = body

    # -- What was put ------------------------------------------------------------------------------------------------

    @property
    def payload(self) -> bytes:
        """The bytes on the disk."""
        return self.delivery.payload

    @property
    def headers(self) -> Mapping[str, str]:
        """What stands beside the payload, with what says how to read it."""
        return self.delivery.headers

    @property
    def offset(self) -> int:
        """Number of the message in its queue."""
        return self.delivery.offset

    @property
    def timestamp_ns(self) -> int:
        """When it was put, in nanoseconds since the epoch."""
        return self.delivery.timestamp_ns

    @property
    def delivery_count(self) -> int:
        """How often the message has been handed out, this time included."""
        return self.delivery.delivery_count

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged or given back, or its lease has run out."""
        return self.delivery.is_settled

    # -- Verbs -------------------------------------------------------------------------------------------------------

    def ack(self) -> None:
        """Finish the message; as :meth:`Delivery.ack`."""
        self.delivery.ack()

    def nack(self, delay: Seconds | None = None, *, error: BaseException | None = None) -> None:
        """Give the message back: it failed; as :meth:`Delivery.nack`."""
        self.delivery.nack(delay, error=error)

    def reject(self, reason: str) -> None:
        """Make the message a dead letter now; as :meth:`Delivery.reject`."""
        self.delivery.reject(reason)

    def release(self) -> None:
        """Give the message back as if it never had been handed out; as :meth:`Delivery.release`."""
        self.delivery.release()

    def extend(self, seconds: Seconds | None = None) -> None:
        """Have the lease run out ``seconds`` from now; as :meth:`Delivery.extend`."""
        self.delivery.extend(seconds)

    def __enter__(self) -> Self:
        self.delivery.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delivery.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<TypedDelivery of offset {self.offset}, number {self.delivery_count}: {self.body!r}>"


class TypedBatch(Sequence[TypedDelivery[Body]], Generic[Body]):
    """Messages that were handed out together. ``with`` settles those that were not settled one by one.

    Each verb takes some of them, or all that are not settled yet, in one step for each queue they came from; as
    :class:`DeliveryBatch`.
    """

    __slots__ = ("_deliveries", "_raw")

    def __init__(self, raw: Sequence[DeliveryBatch], deliveries: Sequence[TypedDelivery[Body]]) -> None:
        self._raw = raw
        self._deliveries = deliveries

    @property
    def bodies(self) -> list[Body]:
        """What was put."""
        return [each.body for each in self._deliveries]

    def ack(self, items: Sequence[TypedDelivery[Body]] | None = None) -> None:
        """Finish messages."""
        for batch, some in self._parts(items):
            batch.ack(some)

    def nack(self, items: Sequence[TypedDelivery[Body]] | None = None, *, delay: Seconds | None = None) -> None:
        """Give messages back that failed."""
        for batch, some in self._parts(items):
            batch.nack(some, delay=delay)

    def reject(self, reason: str, items: Sequence[TypedDelivery[Body]] | None = None) -> None:
        """Make messages dead letters."""
        for batch, some in self._parts(items):
            batch.reject(reason, some)

    def release(self, items: Sequence[TypedDelivery[Body]] | None = None) -> None:
        """Give messages back that were not tried."""
        for batch, some in self._parts(items):
            batch.release(some)

    def extend(self, seconds: Seconds | None = None, items: Sequence[TypedDelivery[Body]] | None = None) -> None:
        """Lease messages for longer."""
        for batch, some in self._parts(items):
            batch.extend(seconds, some)

    def _parts(
        self, items: Sequence[TypedDelivery[Body]] | None
    ) -> Sequence[tuple[DeliveryBatch, Sequence[Delivery] | None]]:
        if items is None:
            return [(batch, None) for batch in self._raw]
        return [(batch, batch) for batch in by_queue(each.delivery for each in items)]

    @overload
    def __getitem__(self, index: int) -> TypedDelivery[Body]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TypedDelivery[Body]]: ...
    def __getitem__(self, index: int | slice) -> TypedDelivery[Body] | Sequence[TypedDelivery[Body]]:
        return self._deliveries[index]

    def __len__(self) -> int:
        return len(self._deliveries)

    def __enter__(self) -> Self:
        for batch in self._raw:
            batch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:  # each is settled, whatever becomes of the others
            for batch in self._raw:
                stack.callback(batch.__exit__, kind, error, trace)

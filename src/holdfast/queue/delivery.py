"""A message in a consumer's hands: leased, until it is acknowledged or given back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, overload

from holdfast.persistence.data_file_reader import Record
from holdfast.persistence.message_headers import decode_headers


class Deliverer(Protocol):
    """The read side as a delivery sees it."""

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Finish them all, in one step; nothing happens where one of them is stale."""

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Make them all ready again; nothing happens where one of them is stale."""


class Holder(Protocol):
    """A transaction as one of its deliveries sees it."""

    def refusal(self) -> Exception:
        """Return the error for whoever settles the delivery past the transaction."""

    def leave(self, delivery: Delivery, *, is_clean: bool) -> None:
        """Do what the end of the delivery's ``with`` block means."""


class Delivery:
    """One handing-out of a message. A clean exit from ``with`` acknowledges it, an exception gives it back.

    Attributes
    ----------
    offset : int
        Number of the message in its queue.
    timestamp_ns : int
        When it was put, in nanoseconds since the epoch.
    payload : bytes
        What was put.
    delivery_count : int
        How often the message has been handed out, this time included; counted across the death of a process.
    is_settled : bool
        Whether it was acknowledged or given back.
    holder : Holder or None
        The transaction that settles it, with ``tx.ack``; None: whoever received it.
    """

    __slots__ = ("_deliverer", "_record", "delivery_count", "holder", "is_settled", "offset", "payload", "timestamp_ns")

    def __init__(self, deliverer: Deliverer, record: Record, delivery_count: int, holder: Holder | None = None) -> None:
        self._deliverer = deliverer
        self._record = record
        self.holder = holder
        self.is_settled = False
        self.offset = record[0]
        self.timestamp_ns = record[1]
        self.payload = record[3]
        self.delivery_count = delivery_count

    @property
    def headers(self) -> Mapping[str, str]:
        """What was put beside the payload."""
        return decode_headers(self._record[2])

    @property
    def record(self) -> Record:
        """The stored record, for the read side."""
        return self._record

    def ack(self) -> None:
        """Finish the message; when this returns it is never delivered again, as far as the flush policy reaches.

        Raises
        ------
        StaleReceiptError
            It was finished or given back before; nothing has changed.
        TransactionStateError
            It belongs to a transaction: ``tx.ack(delivery)`` takes it.
        """
        self._deliverer.ack((self,))

    def nack(self) -> None:
        """Give the message back; it is ready again at once. Raises StaleReceiptError as :meth:`ack`."""
        self._deliverer.nack((self,))

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_settled:
            return
        if self.holder is not None:
            self.holder.leave(self, is_clean=kind is None)
        else:
            (self.ack if kind is None else self.nack)()

    def __repr__(self) -> str:
        return f"<Delivery of offset {self.offset}, {len(self.payload)} bytes, number {self.delivery_count}>"


class DeliveryBatch(Sequence[Delivery]):
    """Messages that were handed out together. ``with`` settles those that were not settled one by one."""

    __slots__ = ("_deliverer", "_deliveries")

    def __init__(self, deliverer: Deliverer, deliveries: Sequence[Delivery]) -> None:
        self._deliverer = deliverer
        self._deliveries = deliveries

    def ack(self, items: Sequence[Delivery] | None = None) -> None:
        """Finish ``items``, or all that are not settled yet, in one step.

        Raises
        ------
        StaleReceiptError
            One of them was settled before; none has changed.
        """
        self._deliverer.ack(self._unsettled() if items is None else items)

    def nack(self, items: Sequence[Delivery] | None = None) -> None:
        """Give ``items`` back, or all that are not settled yet. Raises as :meth:`ack`."""
        self._deliverer.nack(self._unsettled() if items is None else items)

    def _unsettled(self) -> list[Delivery]:
        return [each for each in self._deliveries if not each.is_settled and each.holder is None]

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery]: ...
    def __getitem__(self, index: int | slice) -> Delivery | Sequence[Delivery]:
        return self._deliveries[index]

    def __len__(self) -> int:
        return len(self._deliveries)

    def __enter__(self) -> DeliveryBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self.ack if kind is None else self.nack)()

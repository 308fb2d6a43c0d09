"""Messages in consumers' hands: each is leased until it is acknowledged or given back.

Leases live in the memory of the process that owns the read side: when it dies, its lock is free, and the next owner of
the group treats all of them as given back. A lease does not run out while the ``with`` block of its delivery is open,
nor while a transaction holds it: this process lives, or it could not ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, overload

from holdfast.errors import HoldfastError, LeaseExpiredError, StaleReceiptError
from holdfast.persistence.format.constants import SESSION_SHIFT
from holdfast.persistence.format.message_headers import decode_headers
from holdfast.persistence.log.log_reader import Record
from holdfast.queue.options.failure import GIVEN_BACK, Failure, failure_of
from holdfast.queue.options.put_options import Seconds, as_seconds

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Body = TypeVar("Body", default=Any)  # so that a plain Delivery may be one of anything
else:
    from typing import TypeVar

    Body = TypeVar("Body")

_LOOK_SECONDS_MIN = 0.02
"""The shortest pause between two checks of all leases: a lease can be over for so long before it is noticed."""


_TAKEN_AWAY = -math.inf
"""When the lease of a delivery expired that was in hand when its group was moved."""


class Deliverer(Protocol):
    """The read side as a delivery sees it. Nothing happens if one of the deliveries is stale."""

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Finish them all, in one step."""

    def nack(self, deliveries: Sequence[Delivery], delay: float | None = None, failure: Failure = GIVEN_BACK) -> None:
        """Note that they have failed."""

    def reject(self, deliveries: Sequence[Delivery], reason: str) -> None:
        """Make them dead letters."""

    def park(self, deliveries: Sequence[Delivery], failure: Failure, holder: Holder | None) -> None:
        """Make them dead letters, uncounted."""

    def redacted(self, failure: Failure) -> Failure:
        """Return a failure with texts that may be logged."""

    def is_last(self, delivery_count: int) -> bool:
        """Whether a message that was handed out so often becomes a dead letter if it fails."""

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Give them back as if they had never been handed out."""

    def extend(self, deliveries: Sequence[Delivery], seconds: float | None) -> None:
        """Lease them for so long from now."""


class Holder(Protocol):
    """A transaction as one of its deliveries sees it."""

    def refusal(self) -> Exception:
        """Return the error for settling the delivery outside of the transaction."""

    def leave(self, delivery: Delivery, *, is_clean: bool) -> None:
        """Settle the delivery at the end of its ``with`` block."""


class Delivery(Generic[Body]):
    """One handing-out of a message. A clean exit from ``with`` acknowledges it, an exception gives it back.

    The delivery is its own receipt: once the message was given back for any reason, no verb of this delivery changes it
    any more. While its ``with`` block is open the lease does not run out.

    Attributes
    ----------
    offset : int
        Number of the message in its queue.
    timestamp_ns : int
        When it was put, in nanoseconds since the epoch.
    payload : bytes
        The bytes that were put.
    body : object
        The object that the payload encodes: to a queue of bytes itself, else the object that a queue of a service has
        decoded.
    delivery_count : int
        How often the message has been handed out, this time included; counted across the death of a process.
    is_settled : bool
        Whether it was acknowledged or given back, or its lease has run out.
    has_expired : bool
        Whether its lease has run out, or its group has skipped the message.
    number : int
        The delivery number of its take: it is in hand of another process; 0: none.
    holder : Holder or None
        The transaction that settles it, with ``tx.ack``; None: its receiver does.
    record : Record
        The stored record, for the read side.
    stored_headers : bytes
        The headers as they are stored: the same bytes mean the same headers.
    """

    __slots__ = (
        "_deliverer",
        "body",
        "delivery_count",
        "expires_at",
        "has_expired",
        "holder",
        "is_open",
        "is_settled",
        "is_skipped",
        "lease_seconds",
        "number",
        "offset",
        "payload",
        "record",
        "stored_headers",
        "timestamp_ns",
    )

    def __init__(
        self, deliverer: Deliverer, record: Record, delivery_count: int, holder: Holder | None = None, number: int = 0
    ) -> None:
        self._deliverer = deliverer
        self.record = record
        self.holder = holder
        self.is_settled = self.has_expired = self.is_skipped = self.is_open = False
        self.lease_seconds = self.expires_at = 0.0  # monotonic; the business of ``Leases``
        self.offset, self.timestamp_ns, self.stored_headers, self.payload, _, _ = record
        self.body: Body = self.payload  # type: ignore[assignment] # until it is decoded
        self.delivery_count = delivery_count
        self.number = number

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the message."""
        return decode_headers(self.stored_headers)

    def ack(self) -> None:
        """Finish the message; when this returns it is never delivered again, as far as the flush policy reaches.

        Raises
        ------
        LeaseExpiredError
            The lease ran out before; nothing has changed.
        StaleReceiptError
            It was finished or given back before; nothing has changed.
        TransactionStateError
            It belongs to a transaction: ``tx.ack(delivery)`` takes it.
        """
        self._deliverer.ack((self,))

    def nack(self, delay: Seconds | None = None, *, error: BaseException | Failure | None = None) -> None:
        """Give the message back: it failed. Raises as :meth:`ack`.

        Parameters
        ----------
        delay : float or timedelta, seconds
            How long before it is ready again, 0 for at once; None: after the queue's ``backoff``.
        error : BaseException, Failure or None
            Why; kept with the message if it becomes a dead letter.

        Notes
        -----
        After ``max_deliveries`` it becomes a dead letter instead. Survives a kill of the process; if a
        power cut loses it, the message comes again without the wait.
        """
        failure = GIVEN_BACK if error is None else failure_of(error)
        self._deliverer.nack((self,), None if delay is None else as_seconds(delay, "delay"), failure)

    def reject(self, reason: str) -> None:
        """Make the message a dead letter now: no further try would help. Raises as :meth:`ack`, and is as durable."""
        self._deliverer.reject((self,), reason)

    def park(self, error: BaseException | Failure) -> None:
        """Make the message a dead letter, ``undecodable``: this program can make nothing of its payload.

        It has not failed, so this delivery does not count. A message that a transaction has received can be parked too,
        with any outcome of it. Raises as :meth:`ack`, and is as durable.
        """
        self._deliverer.park((self,), failure_of(error, "undecodable"), self.holder)

    def release(self) -> None:
        """Give the message back at once, as if it had never been handed out. Raises as :meth:`ack`."""
        self._deliverer.release((self,))

    def extend(self, seconds: Seconds | None = None) -> None:
        """Have the lease run out ``seconds`` from now; None: as long as it was given for. Raises as :meth:`ack`."""
        self._deliverer.extend((self,), None if seconds is None else as_seconds(seconds, "extend"))

    @property
    def is_last(self) -> bool:
        """Whether the message becomes a dead letter if this delivery fails."""
        return self._deliverer.is_last(self.delivery_count)

    def redacted(self, failure: Failure) -> Failure:
        """Return a failure with texts that may be logged: as ``redact=`` of the queue makes them."""
        return self._deliverer.redacted(failure)

    def comes_from(self, deliverer: object) -> bool:
        """Whether it was this read side that handed it out."""
        return self._deliverer is deliverer

    def __enter__(self) -> Self:
        self.is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.is_settled and not self.has_expired:
                return
            if self.holder is not None:
                self.holder.leave(self, is_clean=error is None)
            elif error is None:
                self.ack()
            elif not self.has_expired:
                _fail(self._deliverer, (self,), error)
        finally:
            self.is_open = False  # not before: it does not run out in its last moment

    def __repr__(self) -> str:
        return f"<Delivery of offset {self.offset}, {len(self.payload)} bytes, number {self.delivery_count}>"


class DeliveryBatch(Sequence[Delivery[Body]]):
    """Messages that were delivered together. ``with`` settles those that were not settled one by one.

    Each verb takes some of them, or all that are not settled yet, in one step. If one of them is stale, the verb raises
    as that of :class:`Delivery`, and changes none.

    After a batch has failed its messages come again one by one, so that the faulty one fails alone.
    """

    __slots__ = ("_deliverer", "_deliveries")

    def __init__(self, deliverer: Deliverer, deliveries: Sequence[Delivery[Body]]) -> None:
        self._deliverer = deliverer
        self._deliveries = deliveries

    @property
    def bodies(self) -> list[Body]:
        """The objects that their payloads encode."""
        return [each.body for each in self._deliveries]

    def ack(self, items: Sequence[Delivery] | None = None) -> None:
        """Finish messages; as :meth:`Delivery.ack`."""
        self._deliverer.ack(self._unsettled() if items is None else items)

    def nack(self, items: Sequence[Delivery] | None = None, *, delay: Seconds | None = None) -> None:
        """Give messages back that failed; as :meth:`Delivery.nack`."""
        seconds = None if delay is None else as_seconds(delay, "delay")
        self._deliverer.nack(self._unsettled() if items is None else items, seconds)

    def reject(self, reason: str, items: Sequence[Delivery] | None = None) -> None:
        """Make messages dead letters; as :meth:`Delivery.reject`."""
        self._deliverer.reject(self._unsettled() if items is None else items, reason)

    def release(self, items: Sequence[Delivery] | None = None) -> None:
        """Give messages back that were not tried; as :meth:`Delivery.release`."""
        self._deliverer.release(self._unsettled() if items is None else items)

    def extend(self, seconds: Seconds | None = None, items: Sequence[Delivery] | None = None) -> None:
        """Lease messages for longer; as :meth:`Delivery.extend`."""
        wanted = None if seconds is None else as_seconds(seconds, "extend")
        self._deliverer.extend(self._unsettled() if items is None else items, wanted)

    def _unsettled(self) -> list[Delivery]:
        """Return those that the caller may settle, and those with an expired lease: the receiver has to learn of it."""
        return [each for each in self._deliveries if each.has_expired or not (each.is_settled or each.holder)]

    @overload
    def __getitem__(self, index: int) -> Delivery[Body]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery[Body]]: ...
    def __getitem__(self, index: int | slice) -> Delivery[Body] | Sequence[Delivery[Body]]:
        return self._deliveries[index]

    def __len__(self) -> int:
        return len(self._deliveries)

    def __enter__(self) -> Self:
        try:
            for delivery in self._deliveries:
                delivery.is_open = True
        except BaseException:  # interrupted: this block would never be left, and their leases would never expire
            for delivery in self._deliveries:
                delivery.is_open = False
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.ack()
            else:
                _fail(self._deliverer, [each for each in self._unsettled() if not each.has_expired], error)
        finally:
            for delivery in self._deliveries:
                delivery.is_open = False


def _fail(deliverer: Deliverer, deliveries: Sequence[Delivery], error: BaseException) -> None:
    """Give back what has failed by the exception of a block, which comes out of it whatever happens here.

    What was taken away meanwhile keeps none of the others. The exception gets a note of it, and of each other error.
    """
    failure, left = failure_of(error), deliveries
    while left:
        try:
            deliverer.nack(left, None, failure)
            return
        except StaleReceiptError as stale:
            error.add_note(f"not given back: {stale}")
            offset = stale.context.get("offset", left[0].offset)
            left = [each for each in left if each.offset != offset and not each.has_expired]
        except HoldfastError as refusal:
            error.add_note(f"not given back: {refusal}")
            return


def by_queue(deliveries: Iterable[Delivery[Body]]) -> list[DeliveryBatch[Body]]:
    """Sort deliveries of any takes into one batch for each queue, so that each can be settled in one step."""
    batches: dict[Deliverer, list[Delivery[Body]]] = {}
    for delivery in deliveries:
        batches.setdefault(delivery._deliverer, []).append(delivery)
    return [DeliveryBatch(deliverer, items) for deliverer, items in batches.items()]


class Leases:
    """The deliveries of one consumer group that are not settled: which, to whom, and until when.

    The caller holds the take lock around everything but :attr:`next_due`.

    Parameters
    ----------
    monotonic : callable
        Returns seconds.

    Attributes
    ----------
    by_offset : dict of int to Delivery
        In the order in which they were handed out.
    next_due : float
        When to check again whether a lease has expired: not before the first one does.
    monotonic : callable
        As above.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.by_offset: dict[int, Delivery] = {}
        self.next_due = math.inf

    def seconds_left(self) -> float | None:
        """Return how long until one may have expired; None if there is none."""
        return None if math.isinf(self.next_due) else max(0.0, self.next_due - self.monotonic())

    def grant(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """Lease messages for so long; again for one that has a lease."""
        expires_at, by_offset = self.monotonic() + seconds, self.by_offset
        for delivery in deliveries:
            delivery.lease_seconds = seconds
            delivery.expires_at = expires_at
            by_offset[delivery.offset] = delivery
        self.next_due = min(self.next_due, expires_at)

    def adopt(self, deliveries: Sequence[Delivery]) -> None:
        """Note deliveries, at least one, that another one has leased: all at once."""
        by_offset = self.by_offset
        for delivery in deliveries:
            by_offset[delivery.offset] = delivery
        self.next_due = min(self.next_due, deliveries[0].expires_at)

    def forget(self, deliveries: Sequence[Delivery]) -> None:
        """Forget deliveries that another one has settled."""
        by_offset = self.by_offset
        for delivery in deliveries:
            if by_offset.get(delivery.offset) is delivery:
                del by_offset[delivery.offset]

    def end(self, deliveries: Sequence[Delivery]) -> None:
        """End leases whose deliveries are settled."""
        by_offset = self.by_offset
        for delivery in deliveries:
            del by_offset[delivery.offset]
            delivery.is_settled = True

    def skip(self, deliveries: Sequence[Delivery]) -> None:
        """End leases of messages that their group has skipped."""
        for delivery in deliveries:
            delivery.has_expired = delivery.is_skipped = True
        self.end(deliveries)

    def run_out(self) -> list[Delivery]:
        """End the leases whose time is over, and return them; find when the next one may be."""
        now = self.monotonic()
        if now < self.next_due:
            return []
        due = []
        next_due = math.inf
        for delivery in self.by_offset.values():
            if delivery.expires_at <= now:
                if delivery.is_open or delivery.holder is not None:
                    delivery.expires_at = now + delivery.lease_seconds
                else:
                    due.append(delivery)
                    continue
            next_due = min(next_due, delivery.expires_at)
        for delivery in due:
            delivery.has_expired = True
        self.end(due)
        self.next_due = max(next_due, now + _LOOK_SECONDS_MIN)  # last: an interruption before it means another check
        return due

    def take_all_away(self) -> None:
        """End all leases, because the group has begun another life: their receivers learn it from each verb."""
        while self.by_offset:
            _, delivery = self.by_offset.popitem()
            delivery.expires_at = _TAKEN_AWAY
            delivery.has_expired = delivery.is_settled = True

    def of_session(self, session: int) -> list[Delivery]:
        """Return the deliveries that a session has in hand."""
        return [each for each in self.by_offset.values() if each.number and each.number >> SESSION_SHIFT == session]

    def named(self, receipts: Sequence[tuple[int, int]]) -> list[Delivery] | None:
        """Return the deliveries of numbers and offsets, each once; None unless their receivers have all of them."""
        find, found = self.by_offset.get, {}
        for number, offset in receipts:
            delivery = find(offset)
            if delivery is None or delivery.number != number or delivery.holder is not None:
                return None
            found[offset] = delivery
        return list(found.values())

    def same(self, deliveries: Sequence[Delivery]) -> list[Delivery] | None:
        """Return deliveries, each once; None unless these very objects are leased, and their receivers have them."""
        find = self.by_offset.get
        for delivery in deliveries:
            if find(delivery.offset) is not delivery or delivery.holder is not None:
                return None
        return list(deliveries) if len(deliveries) == 1 else list(dict.fromkeys(deliveries))

    def check(self, deliveries: Sequence[Delivery], holder: Holder | None) -> list[Record]:
        """Return the records of deliveries in offset order.

        Raises
        ------
        LeaseExpiredError
            The lease of one has expired.
        StaleReceiptError
            One was settled before.
        """
        find, records = self.by_offset.get, []
        for delivery in deliveries:
            if find(delivery.offset) is not delivery:
                raise _stale(delivery)
            if delivery.holder is not holder:
                raise delivery.holder.refusal() if delivery.holder is not None else _not_held(delivery)
            records.append(delivery.record)
        records.sort()
        return records


def _stale(delivery: Delivery) -> StaleReceiptError:
    if delivery.expires_at == _TAKEN_AWAY:
        return LeaseExpiredError(
            f"the delivery of offset {delivery.offset} was taken away, because its group was moved by seek; "
            "the message comes again if the group was moved back",
            offset=delivery.offset,
        )
    if delivery.is_skipped:
        return LeaseExpiredError(
            f"offset {delivery.offset} was skipped: its group was further behind than max_lag_age or max_lag_bytes "
            "allows; consume faster, or raise that bound with queue.configure()",
            offset=delivery.offset,
        )
    if delivery.has_expired:
        return LeaseExpiredError(
            f"the lease of offset {delivery.offset} ran out after {delivery.lease_seconds:g} s, and the message was "
            "given back; work inside `with delivery:`, call extend(), or receive it with a longer lease_seconds",
            offset=delivery.offset,
        )
    return StaleReceiptError(
        f"the delivery of offset {delivery.offset} was acknowledged or given back before; "
        "take the message again if it is still there",
        offset=delivery.offset,
    )


def _not_held(delivery: Delivery) -> StaleReceiptError:
    return StaleReceiptError(
        f"the delivery of offset {delivery.offset} is not one of this transaction", offset=delivery.offset
    )

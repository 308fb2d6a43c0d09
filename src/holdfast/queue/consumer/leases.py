"""Which messages are handed out, to whom, and until when.

Leases live in the memory of the process that owns the read side: when it dies, its lock is free, and whoever opens the
group next takes all of them for given back. A lease does not run out while the ``with`` block of its delivery is open,
nor while a transaction holds it: this process lives, or nobody would ask.

The caller holds the take lock around everything but :attr:`Leases.next_due`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from holdfast.errors import LeaseExpiredError, StaleReceiptError
from holdfast.persistence.log.log_reader import Record
from holdfast.queue.dispatch.delivery import Delivery, Holder

_LOOK_SECONDS_MIN = 0.02
"""The shortest pause between two looks at all leases: so long, at most, one is over before anybody notices."""


class Leases:
    """The deliveries of one consumer group that are not settled.

    Parameters
    ----------
    monotonic : callable
        Returns seconds.

    Attributes
    ----------
    by_offset : dict of int to Delivery
        In the order in which they were handed out.
    next_due : float
        When to look again whether a lease has run out: not before the first one does.
    monotonic : callable
        As above.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.by_offset: dict[int, Delivery] = {}
        self.next_due = math.inf

    def seconds_left(self) -> float | None:
        """Return how long until one may have run out; None where there is none."""
        return None if math.isinf(self.next_due) else max(0.0, self.next_due - self.monotonic())

    def grant(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """Lease messages for so long; again for one that has a lease."""
        expires_at, by_offset = self.monotonic() + seconds, self.by_offset
        for delivery in deliveries:
            delivery.lease_seconds = seconds
            delivery.expires_at = expires_at
            by_offset[delivery.offset] = delivery
        self.next_due = min(self.next_due, expires_at)

    def end(self, deliveries: Sequence[Delivery]) -> None:
        """End leases whose deliveries are settled."""
        by_offset = self.by_offset
        for delivery in deliveries:
            del by_offset[delivery.offset]
            delivery.is_settled = True

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
        self.next_due = max(next_due, now + _LOOK_SECONDS_MIN)  # last: whoever is interrupted before looks again
        return due

    def check(self, deliveries: Sequence[Delivery], holder: Holder | None) -> list[Record]:
        """Return the records of deliveries in offset order.

        Raises
        ------
        LeaseExpiredError
            The lease of one has run out.
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

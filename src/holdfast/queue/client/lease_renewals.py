"""Extends leases of deliveries in hand: those in use, and those that are longer than another owner would lease them.

In use are those whose block is open, or that a transaction or a loop holds. An owner that begins leases what it finds
in hand as its group has it, for it does not know what was granted. So a longer lease is told again before that ends.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from holdfast.errors import StaleReceiptError
from holdfast.queue.dispatch.delivery import Delivery, Leases

_RENEWALS = 3
"""A lease in use is extended so often before it would run out; or before one of the group would, if that is shorter."""

LOOK = 1 / 2
"""The part of what is left of a lease after which to look whether its block was entered."""

_LOOKS_MAX = 32
"""How often at most to look, in the time of a lease, whether a block was entered."""


class LeaseRenewals:
    """The leases of one handle, for its upkeep.

    Parameters
    ----------
    leases : Leases
        Those of the handle.
    lock : Lock
        Held around what is done with them.
    extend : callable
        Has the owner extend leases by so many seconds from now: all of them, or none, and then it raises.
    part_with : callable
        Has an owner in this process lease other objects, which it may then lease for another time.
    group_seconds : callable
        Returns how long the group leases messages.
    """

    def __init__(
        self,
        leases: Leases,
        lock: threading.Lock,
        extend: Callable[[Sequence[Delivery], float], object],
        part_with: Callable[[Sequence[Delivery]], object],
        group_seconds: Callable[[], float],
    ) -> None:
        self._leases = leases
        self._lock = lock
        self._extend = extend
        self._part_with = part_with
        self._group_seconds = group_seconds
        self._told_again_due = -math.inf

    def do_due(self, now: float) -> float:
        """Extend what is due; return when to come again, on the clock of ``now``, in seconds."""
        longest = self._group_seconds()
        with self._lock:
            self._leases.run_out()
            leased = list(self._leases.by_offset.values())
        due, in_need, longer = math.inf, list[Delivery](), list[Delivery]()
        for each in leased:
            left_seconds = each.expires_at - self._leases.monotonic()
            if each.is_open or each.holder is not None:
                if left_seconds <= each.lease_seconds - min(each.lease_seconds, longest) / _RENEWALS:
                    in_need.append(each)
                    left_seconds = each.lease_seconds
                due = min(due, now + min(left_seconds, longest) / _RENEWALS)
            elif left_seconds > longest:
                longer.append(each)
            elif left_seconds > 0:  # its block may be entered at any time before the lease ends
                due = min(due, now + max(left_seconds * LOOK, each.lease_seconds / _LOOKS_MAX))
        self.renew(in_need)
        return due if not longer else min(due, self._tell_again(longer, now, longest / _RENEWALS))

    def extend(self, delivery: Delivery, seconds: float) -> None:
        """Lease a message for so long from now. Raises what the owner does.

        If another thread has settled it meanwhile, its message may be in hand again: that delivery keeps its lease. If
        the lease ran out here while the owner was asked, the owner's word counts: it has the next owner keep it, too.
        """
        expires_at = delivery.expires_at
        self._extend((delivery,), seconds)
        with self._lock:
            is_here = self._leases.by_offset.get(delivery.offset, delivery) is delivery
            has_run_out = delivery.has_expired and expires_at <= self._leases.monotonic()  # else it was taken away
            if is_here and (has_run_out or not delivery.is_settled):
                delivery.has_expired = delivery.is_settled = False
                self._leases.grant((delivery,), seconds)

    def renew(self, deliveries: Sequence[Delivery]) -> None:
        """Extend leases, in one request for each length; one that was taken away stays so."""
        for seconds in {each.lease_seconds for each in deliveries}:
            extended = self._extended([each for each in deliveries if each.lease_seconds == seconds], seconds)
            with self._lock:
                self._leases.grant([each for each in extended if not each.is_settled], seconds)

    def _tell_again(self, deliveries: Sequence[Delivery], now: float, pause: float) -> float:
        """Have the owner lease messages for what is left, once in each ``pause``; return when to come again."""
        if now < self._told_again_due:
            return self._told_again_due
        for expires_at in {each.expires_at for each in deliveries}:
            alike = [each for each in deliveries if each.expires_at == expires_at]
            self._part_with(alike)
            self._extended(alike, max(0.0, expires_at - self._leases.monotonic()))
        self._told_again_due = now + pause
        return self._told_again_due

    def _extended(self, deliveries: Sequence[Delivery], seconds: float) -> Sequence[Delivery]:
        """Have the owner extend leases; return those that it has not taken away."""
        left = [each for each in deliveries if not each.is_settled]
        try:
            if left:
                self._extend(left, seconds)
        except StaleReceiptError:  # and none of them is extended
            return [one for each in left if len(left) > 1 for one in self._extended((each,), seconds)]
        return left

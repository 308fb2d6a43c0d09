"""Extends the leases of deliveries in use: those whose block is open, or that a transaction or a loop holds."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from holdfast.errors import StaleReceiptError
from holdfast.queue.dispatch.delivery import Delivery, Leases

_RENEWALS = 3
"""A lease in use is extended so often before it would run out."""

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
    """

    def __init__(
        self, leases: Leases, lock: threading.Lock, extend: Callable[[Sequence[Delivery], float], object]
    ) -> None:
        self._leases = leases
        self._lock = lock
        self._extend = extend

    def do_due(self, now: float) -> float:
        """Extend what is due; return when to come again, on the clock of ``now``, in seconds."""
        with self._lock:
            self._leases.run_out()
            leased = list(self._leases.by_offset.values())
        due, in_need = math.inf, list[Delivery]()
        for each in leased:
            left_seconds = each.expires_at - self._leases.monotonic()
            if each.is_open or each.holder is not None:
                if left_seconds <= each.lease_seconds * (_RENEWALS - 1) / _RENEWALS:
                    in_need.append(each)
                    left_seconds = each.lease_seconds
                due = min(due, now + left_seconds / _RENEWALS)
            elif left_seconds > 0:  # its block may be entered at any time before the lease ends
                due = min(due, now + max(left_seconds * LOOK, each.lease_seconds / _LOOKS_MAX))
        self.renew(in_need)
        return due

    def renew(self, deliveries: Sequence[Delivery]) -> None:
        """Extend leases, in one request for each length; one that was taken away stays so."""
        left = [each for each in deliveries if not each.is_settled]
        for seconds in {each.lease_seconds for each in left}:
            alike = [each for each in left if each.lease_seconds == seconds]
            try:
                self._extend(alike, seconds)
            except StaleReceiptError:  # and none of them is extended
                for each in alike if len(alike) > 1 else ():
                    self.renew((each,))
                continue
            with self._lock:
                self._leases.grant([each for each in alike if not each.is_settled], seconds)

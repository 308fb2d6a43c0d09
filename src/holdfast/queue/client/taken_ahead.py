"""Messages that came while a thread only waited for them: the next take has them, and another trip is saved.

A thread that waits for work of several kinds cannot say yet who takes: so ``wait_for_more`` takes one message ahead. If
no take comes for it, as after the end of what waited, upkeep gives it back uncounted.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.errors import StaleReceiptError
from holdfast.queue.dispatch.delivery import Delivery, Holder

UNCLAIMED_SECONDS = 0.1
"""How long a message may be kept from the others: a take follows a wait at once."""


class TakenAhead:
    """Deliveries without a taker, first come first served. Threads may share it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Delivery, float]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, delivery: Delivery) -> None:
        """Keep a delivery for the next take."""
        self._waiting.append((delivery, time.monotonic() + UNCLAIMED_SECONDS))

    def claim(
        self, holder: Holder | None, lease_seconds: float | None, extend: Callable[[Sequence[Delivery], float], object]
    ) -> list[Delivery]:
        """Return one that is still in hand, as a take for ``holder`` would; or nothing.

        ``extend`` leases it for ``lease_seconds``, if these are given. Raises as that.
        """
        delivery = self._next()
        if delivery is None:
            return []
        if lease_seconds is not None:
            try:
                extend((delivery,), lease_seconds)
            except StaleReceiptError:
                return []
        delivery.holder = holder
        return [delivery]

    def due(self) -> float:
        """Return the monotonic time from which the first one is unclaimed; infinite if there is none."""
        return next((at for _, at in list(self._waiting)), math.inf)

    def give_back_unclaimed(self, now: float, release: Callable[[Sequence[Delivery]], object]) -> None:
        """Give those back that no take has come for. Raises as ``release``."""
        while self.due() <= now and (delivery := self._next()) is not None:
            with suppress(StaleReceiptError):
                release((delivery,))

    def _next(self) -> Delivery | None:
        while self._waiting:
            try:
                delivery, _ = self._waiting.popleft()
            except IndexError:  # another thread was faster
                break
            if not delivery.is_settled:
                return delivery
        return None

"""What a handle of the mode "shared" has in hand: leased deliveries, who holds each, and those without a taker yet.

A message is taken **ahead** if it came while a thread only waited for it: one that waits for work of several kinds
cannot say yet who takes. The next take has it, and another trip to the owner is saved. If no take comes for it, as
after the end of what waited, upkeep gives it back uncounted.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain

from holdfast.clock import Clock
from holdfast.errors import LeaseExpiredError, StaleReceiptError
from holdfast.persistence.log.log_reader import Record
from holdfast.queue.client.upkeep import Upkeep
from holdfast.queue.dispatch.delivery import Delivery, Holder, Leases
from holdfast.queue.engine.ports import Receipt
from holdfast.queue.protocol.messages import SessionLostError
from holdfast.queue.threads.lifecycle import Lifecycle

UNCLAIMED_SECONDS = 0.1
"""How long a message may be kept from the others: a take follows a wait at once."""


class DeliveriesInHand:
    """The leases of one handle, as its consumer uses them. Threads may share it.

    Parameters
    ----------
    clock : Clock
        For leases.
    upkeep : Upkeep
        Is woken where a lease has to be extended from now on.

    Attributes
    ----------
    taken_count : int
        Messages taken so far; one that came again counts again.
    """

    def __init__(self, clock: Clock, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        self._lock = threading.Lock()
        self._leases = Leases(clock.monotonic)
        self._lifecycle = Lifecycle()
        self._taking: set[int] = set()
        self._given_up: list[int] = []
        self._settling: dict[object, Sequence[Delivery]] = {}
        self._ahead: deque[tuple[Delivery, float]] = deque()
        self.taken_count = 0

    def have_in_hand(self, deliveries: Sequence[Delivery], lease_seconds: float | None) -> None:
        """Note what was taken; None: the read side of this process has leased it.

        If a message comes again, its lease before has ended.
        """
        with self._lock:
            self.taken_count += len(deliveries)
            if self._leases.by_offset:
                self._leases.run_out()
                for each in deliveries:
                    former = self._leases.by_offset.get(each.offset)
                    if former is not None:
                        former.has_expired = former.is_settled = True
            if lease_seconds is None:
                self._leases.adopt(deliveries)
            else:
                self._leases.grant(deliveries, lease_seconds)

    def count_taken(self, payloads: list[bytes]) -> list[bytes]:
        """Count and return what was taken and finished in one step."""
        with self._lock:
            self.taken_count += len(payloads)
        return payloads

    def part_with(self, deliveries: Sequence[Delivery]) -> None:
        """Share no object with the read side of this process any more."""

    def take_back(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        """Have deliveries in hand again: nothing was done, or it may have been, and may be asked again. ADR 50.

        A message that another thread has been handed meanwhile is its own: that delivery stays, and this one is over.
        """
        stale = error.context.get("offset") if isinstance(error, StaleReceiptError) else None
        with self._lock:
            for each in deliveries:
                if self._leases.by_offset.get(each.offset, each) is not each:
                    each.has_expired = True
                elif each.offset != stale and not each.has_expired:
                    each.is_settled = False
                    self._leases.grant((each,), each.lease_seconds)
        self._upkeep.wake()  # the read side of this process may not know that they are in use

    def lose(self, deliveries: Sequence[Delivery]) -> None:
        """Note that deliveries were taken away; another thread may have been handed one of the messages again."""
        with self._lock:
            for each in deliveries:
                each.has_expired = each.is_settled = True
                if self._leases.by_offset.get(each.offset) is each:
                    del self._leases.by_offset[each.offset]

    def note_lost(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        """Take note of a delivery that the owner has taken away, if an error says so."""
        if isinstance(error, LeaseExpiredError):
            self.lose([each for each in deliveries if each.offset == error.context.get("offset")])

    def lose_all(self, deliveries: Sequence[Delivery]) -> LeaseExpiredError:
        """Take note that all was taken away, because the session was found dead; return what the caller hears."""
        self.lose(deliveries)
        return LeaseExpiredError(
            "this process was found dead, as if it was stopped for long, and its messages were given back",
            offset=deliveries[0].offset,
        )

    # -- What its membership asks ------------------------------------------------------------------------------------

    def numbers_in_hand(self) -> list[int]:
        """Return the delivery numbers of what is in hand, or is being taken or settled.

        Another owner may begin: from here on upkeep looks at their leases.
        """
        self._upkeep.wake()
        with self._lock:
            in_hand = chain(self._leases.by_offset.values(), *list(self._settling.values()))
            return list({*self._taking, *(each.number for each in in_hand)})

    def look_after_leases(self) -> None:
        """Have upkeep look at the leases: the read side of this process did, and has closed."""
        if self._leases.by_offset:
            self._upkeep.wake()

    @contextmanager
    def settling(self, deliveries: Sequence[Delivery]) -> Iterator[None]:
        """Have an owner that begins inside leave these with this handle: it asks for what becomes of them."""
        key = object()  # two threads may settle equal ones
        self._settling[key] = deliveries
        try:
            yield
        finally:
            del self._settling[key]

    def give_all_back(self, release: Callable[[Sequence[Delivery]], object]) -> None:
        """End all leases, and have the owner told by ``release``. Raises as that."""
        left: list[Delivery] = []
        with self.settling(left):
            with self._lock:
                left += self._leases.by_offset.values()
                self._leases.end(left)
            if left:
                release(left)

    def lose_session(self) -> None:
        """Note that all deliveries in hand are stale: the session was found dead."""
        self.lose(list(self._leases.by_offset.values()))

    def _in_hand_count(self, holder: Holder | None) -> int:
        """Return how many messages are in hand here, but for those of a transaction that takes."""
        with self._lock:
            return sum(
                not each.is_settled and (holder is None or each.holder is not holder)
                for each in self._leases.by_offset.values()
            )

    # -- Takes without an answer -------------------------------------------------------------------------------------

    def give_up(self, number: int) -> None:
        """Have upkeep give up a take: its messages may be in hand at the owner."""
        self._given_up.append(number)
        self._upkeep.wake()

    def tell_given_up(self, give_up: Callable[[int], object]) -> None:
        """Have the owner give up these takes, by ``give_up``. Raises as that."""
        while self._given_up:
            with suppress(SessionLostError):  # all that the session before had in hand is given back
                give_up(self._given_up[0])
            del self._given_up[0]  # others come behind it

    # -- Taken ahead -------------------------------------------------------------------------------------------------

    @property
    def has_ahead(self) -> bool:
        """Whether a message has come that no take has claimed yet."""
        return bool(self._ahead)

    def keep_ahead(self, delivery: Delivery) -> None:
        """Keep a delivery for the next take."""
        self._ahead.append((delivery, time.monotonic() + UNCLAIMED_SECONDS))
        self._upkeep.wake()

    def claim_ahead(
        self, holder: Holder | None, lease_seconds: float | None, extend: Callable[[Sequence[Delivery], float], object]
    ) -> list[Delivery]:
        """Return the first one that is still in hand, as a take for ``holder`` would; or nothing.

        ``extend`` leases it for ``lease_seconds``, if these are given. Raises as that.
        """
        delivery = self._next_ahead()
        if delivery is None:
            return []
        if lease_seconds is not None:
            try:
                extend((delivery,), lease_seconds)
            except StaleReceiptError:
                return []
        if holder is not None:
            try:
                self.hold((delivery,), holder)
            except StaleReceiptError:
                return []
        self._upkeep.wake()
        return [delivery]

    def unclaimed_due(self) -> float:
        """Return the monotonic time from which the first one is unclaimed; infinite if there is none."""
        return next((at for _, at in list(self._ahead)), math.inf)

    def give_back_unclaimed(self, now: float, release: Callable[[Sequence[Delivery]], object]) -> None:
        """Give those back that no take has come for. Raises as ``release``."""
        while self.unclaimed_due() <= now and (delivery := self._next_ahead()) is not None:
            with suppress(StaleReceiptError):
                release((delivery,))

    def _next_ahead(self) -> Delivery | None:
        while self._ahead:
            try:
                delivery, _ = self._ahead.popleft()
            except IndexError:  # another thread was faster
                break
            if not delivery.is_settled:
                return delivery
        return None

    # -- Transactions ------------------------------------------------------------------------------------------------

    def check(self, deliveries: Sequence[Delivery], holder: Holder) -> list[Record]:
        """Return the records of deliveries in offset order; raises StaleReceiptError if one is stale."""
        with self._lock:
            self._lifecycle.check_alive()
            return self._leases.check(deliveries, holder)

    def hold(self, deliveries: Sequence[Delivery], holder: Holder) -> None:
        """Give deliveries that a receiver has into the hands of a transaction."""
        self.part_with(deliveries)
        with self._lock:
            self._lifecycle.check_alive()
            self._leases.check(deliveries, None)
            for delivery in deliveries:
                delivery.holder = holder
        self._upkeep.wake()

    def hand_back(self, deliveries: Sequence[Delivery], holder: Holder) -> None:
        """Give deliveries that a transaction had taken over back to their receiver; their leases begin again."""
        with self._lock:
            back = [each for each in deliveries if each.holder is holder and not each.is_settled]
            for delivery in back:
                delivery.holder = None
        self.begin_leases_again(back)

    def begin_leases_again(self, deliveries: Sequence[Delivery]) -> None:
        """Have the owner lease messages for as long as before, from now on."""

    def let_go(self, deliveries: Sequence[Delivery], holder: Holder) -> None:
        """Let the leases of a transaction's messages run out: the owner could not be told."""
        with self._lock:
            self._leases.end([each for each in deliveries if each.holder is holder and not each.is_settled])

    def held_by(self, holder: Holder) -> list[Delivery]:
        """Return the deliveries that a transaction has in hand."""
        with self._lock:
            return [each for each in self._leases.by_offset.values() if each.holder is holder]

    def end_committed(self, deliveries: Sequence[Delivery]) -> None:
        """Note that a transaction has finished messages."""
        with self._lock:
            self._leases.end([each for each in deliveries if not each.is_settled])


def receipts_of(deliveries: Sequence[Delivery]) -> list[Receipt]:
    """Return what names deliveries to the owner."""
    return [(each.number, each.offset) for each in deliveries]

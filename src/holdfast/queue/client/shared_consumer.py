"""Taking through the owner of a shared queue, in this process or another one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from holdfast.clock import Clock
from holdfast.errors import (
    NOTHING_CAME,
    Empty,
    HoldfastError,
    LeaseExpiredError,
    ShutDown,
)
from holdfast.queue.client.deliveries_in_hand import DeliveriesInHand
from holdfast.queue.client.large_payloads import LargePayloads
from holdfast.queue.client.lease_renewals import LOOK, LeaseRenewals
from holdfast.queue.client.link import never
from holdfast.queue.client.membership import Membership
from holdfast.queue.client.upkeep import Upkeep
from holdfast.queue.consumer.draining import Draining, shut_down_with
from holdfast.queue.dispatch.delivery import Delivery, Holder
from holdfast.queue.options.failure import GIVEN_BACK, Failure, Redact, redacted
from holdfast.queue.protocol.messages import Receipt, SessionLostError, Settle, Take, Taken, Verb
from holdfast.queue.threads.deadlines import Deadlines
from holdfast.queue.threads.notifier import Notifier

WAIT_SECONDS_MAX = 20.0
"""How long one request waits for messages. A taker that waits for longer asks again: so it hears of a dead owner."""

_DRAIN_PAUSE_SECONDS = 0.05


class SharedConsumer(DeliveriesInHand):
    """The read side of a handle in the mode "shared", for one consumer group. Threads may share it.

    Parameters
    ----------
    membership : Membership
        The way to the owner.
    upkeep : Upkeep
        Extends leases.
    group : str
        The consumer group.
    clock : Clock
        For leases.
    redact : callable or None
        Takes secrets out of texts before they leave this process.
    large_payloads : LargePayloads
        Reads what is too large for a reply.

    Attributes
    ----------
    deadlines : Deadlines
        The times at which transactions give their messages back.
    """

    def __init__(
        self,
        membership: Membership,
        upkeep: Upkeep,
        group: str,
        clock: Clock,
        redact: Redact | None,
        large_payloads: LargePayloads,
    ) -> None:
        super().__init__(clock, upkeep)
        self._membership = membership
        self.group = group
        self._redact = redact
        self._large_payloads = large_payloads
        self._renewals = LeaseRenewals(self._leases, self._lock, partial(self._ask_settle, "extend"))
        self._taking: set[int] = set()
        self._settling: list[frozenset[int]] = []
        self._given_up: list[int] = []
        self._deliveries_max = 0
        self._draining = Draining(clock)
        self._woken = Notifier()
        self.deadlines = Deadlines(clock)
        upkeep.chores = self

    # -- Taking ------------------------------------------------------------------------------------------------------

    def get(self, timeout: float | None) -> bytes:
        """Take one message and finish it; return its payload."""
        return self.get_many(1, timeout)[0]

    def get_many(self, count_max: int, timeout: float | None) -> list[bytes]:
        """Take up to ``count_max`` messages and finish them; return their payloads."""
        deliveries = self.receive(count_max, timeout)
        self.ack(deliveries)
        return [each.payload for each in deliveries]

    def receive(
        self,
        count_max: int,
        timeout: float | None,
        holder: Holder | None = None,
        lease_seconds: float | None = None,
    ) -> list[Delivery]:
        """Take up to ``count_max`` messages and lease them. As ``ReadSide.receive``."""
        return self._receive((), count_max, timeout, holder, lease_seconds)

    def ack_and_receive(
        self, deliveries: Sequence[Delivery], count_max: int, timeout: float | None, lease_seconds: float | None = None
    ) -> list[Delivery]:
        """Finish deliveries, and take others with the same request. As ``ReadSide.ack_and_receive``."""
        return self._receive(deliveries, count_max, timeout, None, lease_seconds)

    def _receive(
        self,
        finished: Sequence[Delivery],
        count_max: int,
        timeout: float | None,
        holder: Holder | None,
        lease_seconds: float | None,
    ) -> list[Delivery]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._lifecycle.check()
            self.deadlines.expire_due()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            seconds = WAIT_SECONDS_MAX if left is None else min(left, WAIT_SECONDS_MAX)
            if self._draining.is_on:
                seconds = min(seconds, _DRAIN_PAUSE_SECONDS)
            if not finished and (claimed := self.claim_ahead(holder, lease_seconds, self.extend)):
                return claimed
            try:
                if not finished:
                    return self._take(count_max, seconds, holder, lease_seconds)
                if taken := self._ack_and_take(finished, count_max, seconds, lease_seconds):
                    return taken
                finished = ()
                raise Empty
            except SessionLostError:  # its number was of the session before
                continue
            except Empty:
                if self._is_drained(holder):
                    raise self.ending() from None
                if deadline is not None and time.monotonic() >= deadline:
                    raise Empty(NOTHING_CAME) from None

    def _ack_and_take(
        self, finished: Sequence[Delivery], count_max: int, seconds: float, lease_seconds: float | None
    ) -> list[Delivery]:
        """Finish deliveries and take others; return none once they are finished, and nothing came."""
        was_draining = self._draining.is_on
        taken: list[Delivery] = []

        def ask(live: Sequence[Delivery]) -> None:
            try:
                taken.extend(self._take(count_max, seconds, None, lease_seconds, receipts_of(live)))
            except Empty:
                if self._must_look(was_draining=was_draining):  # it may not have been sent
                    self._membership.ask(Settle(self.group, "ack", receipts_of(live)))

        self._settle_by(lambda live: self._ask_about(live, ask), finished, None)
        return taken

    def _must_look(self, *, was_draining: bool) -> bool:
        """Whether it was closed or shut down since: a take of a drain asks for what is left."""
        return self._lifecycle.refusal is not None or self._draining.is_on is not was_draining

    def _take(
        self,
        count_max: int,
        seconds: float,
        holder: Holder | None,
        lease_seconds: float | None,
        finished: Sequence[Receipt] = (),
        is_over: Callable[[], bool] = never,
    ) -> list[Delivery]:
        number = self._membership.next_number()
        self._taking.add(number)
        was_draining = self._draining.is_on

        def must_look() -> bool:
            return self._must_look(was_draining=was_draining) or is_over()

        try:
            take = Take(self.group, number, count_max, lease_seconds, seconds, list(finished))
            reply, payloads, _ = self._membership.ask(take, (), seconds, must_look)
            assert isinstance(reply, Taken), "an owner answers a take by messages or an error"
            self._deliveries_max = reply.deliveries_max
            if reply.places:
                payloads = list(payloads)
                for which, place in reply.places.items():
                    payloads[which] = self._large_payloads.read(reply.messages[which][0], place)
            deliveries = [
                Delivery(self, (offset, timestamp, headers, payload, 0, 0), delivery_count, holder, number=number)
                for (offset, timestamp, headers, delivery_count), payload in zip(reply.messages, payloads, strict=True)
            ]
            with self._lock:
                self.end_former(deliveries)
                self._leases.grant(deliveries, reply.lease_seconds)
            self._upkeep.wake_by(time.monotonic() + reply.lease_seconds * LOOK)
            if self._lifecycle.refusal is not None:  # behind the line above: what was not given back by then is now
                self._give_back()
                raise self._lifecycle.refusal()
            return deliveries
        except BaseException as error:
            if not isinstance(error, Empty) or must_look():  # without an answer: its messages may be in hand
                self._given_up.append(number)
                self._upkeep.wake()
            raise
        finally:
            self._taking.discard(number)

    def check_taking(self) -> None:
        """Refuse if takes are refused: the handle was shut down at once, or closed."""
        self._lifecycle.check()

    def check_left(self) -> None:
        """Raise queue.ShutDown if a taker that has found nothing has nothing to wait for."""
        if self._is_drained(None):
            raise self.ending()

    # -- Settling ----------------------------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery], holder: Holder | None = None) -> None:
        """Finish deliveries, all in one step; raises StaleReceiptError, and changes nothing, if one is stale."""
        self._settle("ack", deliveries, holder)

    def nack(
        self,
        deliveries: Sequence[Delivery],
        delay: float | None = None,
        failure: Failure = GIVEN_BACK,
        holder: Holder | None = None,
    ) -> None:
        """Note that deliveries have failed."""
        self._settle("nack", deliveries, holder, delay, self.redacted(failure))

    def reject(self, deliveries: Sequence[Delivery], reason: str) -> None:
        """Make messages dead letters now."""
        if not isinstance(reason, str):
            raise TypeError(f"a reason is a str, not {type(reason).__name__}")
        self._settle("reject", deliveries, None, None, self.redacted(Failure("rejected", reason)))

    def park(self, deliveries: Sequence[Delivery], failure: Failure, holder: Holder | None = None) -> None:
        """Make messages dead letters without another delivery: their delivery does not count."""
        self._settle("park", deliveries, holder, None, self.redacted(failure))

    def release(self, deliveries: Sequence[Delivery], holder: Holder | None = None) -> None:
        """Give messages back as if they had never been handed out."""
        self._settle("release", deliveries, holder)

    def extend(self, deliveries: Sequence[Delivery], seconds: float | None) -> None:
        """Lease messages for so long from now; None: each for as long as before."""
        live = list(dict.fromkeys(deliveries))
        with self._lock:
            self._lifecycle.check_alive()
            self._leases.check(live, None)
        for each in live:
            self._ask_settle("extend", (each,), each.lease_seconds if seconds is None else seconds)
            with self._lock:
                self._leases.grant((each,), each.lease_seconds if seconds is None else seconds)

    def _settle(
        self,
        verb: str,
        deliveries: Sequence[Delivery],
        holder: Holder | None,
        seconds: float | None = None,
        failure: Failure | None = None,
    ) -> None:
        self._settle_by(lambda live: self._ask_settle(verb, live, seconds, failure), deliveries, holder)

    def _settle_by(
        self, ask: Callable[[Sequence[Delivery]], object], deliveries: Sequence[Delivery], holder: Holder | None
    ) -> None:
        """End live deliveries here, and have the owner asked to settle them; have them in hand again if that fails."""
        live = list(dict.fromkeys(deliveries))
        if not live:
            return
        is_ending = False
        numbers = frozenset([each.number for each in live])
        self._settling.append(numbers)  # an owner that begins meanwhile must not give them back
        try:
            with self._lock:
                self._lifecycle.check_alive()
                self._leases.run_out()
                self._leases.check(live, holder)
                is_ending = True
                self._leases.end(live)  # first: no other thread settles them too
            ask(live)
        except BaseException as error:
            if is_ending:
                self.take_back(live, error)
            raise
        finally:
            self._settling.remove(numbers)

    def _ask_settle(
        self, verb: str, deliveries: Sequence[Delivery], seconds: float | None = None, failure: Failure | None = None
    ) -> None:
        why = None if failure is None else (failure.reason, failure.detail, failure.exception, failure.trace)
        settle = Settle(self.group, verb, receipts_of(deliveries), seconds, why)
        self._ask_about(deliveries, lambda live: self._membership.ask(settle))

    def _ask_about(self, deliveries: Sequence[Delivery], ask: Callable[[Sequence[Delivery]], object]) -> None:
        """Ask the owner to settle deliveries, and take note of those that it has taken away."""
        try:
            ask(deliveries)
        except LeaseExpiredError as error:
            self.lose([each for each in deliveries if each.offset == error.context.get("offset")])
            raise
        except SessionLostError as error:
            self.lose(deliveries)
            raise LeaseExpiredError(
                "this process was found dead, as if it was stopped for long, and its messages were given back",
                offset=deliveries[0].offset,
            ) from error

    def redacted(self, failure: Failure) -> Failure:
        """Return a failure with texts that may be stored and logged."""
        return redacted(failure, self._redact)

    def is_last(self, delivery_count: int) -> bool:
        """Whether a message that was handed out so often becomes a dead letter if it fails."""
        return 0 < self._deliveries_max <= delivery_count

    # -- What its membership asks ------------------------------------------------------------------------------------

    def numbers_in_hand(self) -> list[int]:
        """Return the delivery numbers of what is in hand, or is being taken or settled."""
        with self._lock:
            return list(
                {*self._taking, *(each.number for each in self._leases.by_offset.values())}.union(*self._settling)
            )

    def lose_session(self) -> None:
        """Note that all deliveries in hand are stale: the session was found dead."""
        self.lose(list(self._leases.by_offset.values()))

    # -- Upkeep ------------------------------------------------------------------------------------------------------

    def do_due(self, now: float) -> float:
        """Extend leases of deliveries whose block is open, and give up takes; return when to come again."""
        while self._given_up:
            self._membership.ask(Verb(self.group, {"verb": "give_up", "number": self._given_up[-1]}))
            self._given_up.pop()
        self.deadlines.expire_due()
        self.give_back_unclaimed(now, self.release)
        due = min(self.unclaimed_due(), self._renewals.do_due(now))
        left = self.deadlines.seconds_left()
        return due if left is None else min(due, now + left)

    # -- The group as a whole ----------------------------------------------------------------------------------------

    def purge(self, note: Callable[[int], object]) -> int:
        """Finish all messages that are ready now; return how many."""
        reply = self._membership.ask(Verb(self.group, {"verb": "purge"}), (), None).reply
        count = int(reply.result["count"])  # type: ignore[union-attr]
        note(count)
        return count

    def wait_for_more(self, left: float | None, is_over: Callable[[], bool] = lambda: False) -> None:
        """Sleep until a message has come, which the next take returns; or ``is_over()`` at a :meth:`wake`.

        At most ``left`` seconds. Only a take learns what there is: so this is one, ahead of the next.
        """
        seconds = WAIT_SECONDS_MAX if left is None else min(left, WAIT_SECONDS_MAX)
        if self._draining.is_on:
            self._woken.wait(is_over, min(seconds, _DRAIN_PAUSE_SECONDS))
            return
        if is_over() or self.has_ahead:
            return
        try:
            (delivery,) = self._take(1, seconds, None, None, (), is_over)
        except (Empty, SessionLostError):
            return
        self.keep_ahead(delivery)

    def flush(self) -> None:
        """Do nothing: the producer's flush syncs acknowledgements too."""

    def wake(self) -> None:
        """Have threads that wait check again."""
        self._woken.notify()
        self._membership.wake()

    # -- Ending ------------------------------------------------------------------------------------------------------

    def shut_down(self, timeout: float | None, *, immediate: bool) -> None:
        """Give takers the messages left, then queue.ShutDown."""
        self._draining.begin(timeout)
        if immediate:
            self._lifecycle.drain(self.ending)
        self.wake()
        if immediate:
            self._give_back()  # last: a take that waits must not get it

    def ending(self) -> ShutDown:
        """Return the error that counts the messages in hand here. The caller may hold the lock."""
        return shut_down_with({"in_hand": len(self._leases.by_offset)})

    def _is_drained(self, holder: Holder | None) -> bool:
        if not self._draining.is_on:
            return False
        with self._lock:
            in_hand = list(self._leases.by_offset.values())
        count = len(in_hand) if holder is None else sum(each.holder is not holder for each in in_hand)
        return self._draining.is_over(count, None)

    def _give_back(self) -> None:
        with self._lock:
            left = list(self._leases.by_offset.values())
            self._leases.end(left)
        if left:
            with suppress(HoldfastError):  # they come again once their session is dead
                self._ask_settle("release", left)

    def close(self) -> None:
        """Refuse further takes, and give deliveries back."""
        self._lifecycle.close()
        self.wake()
        self._give_back()

    def forget(self) -> None:
        """In a forked child: refuse everything with ForkedError."""
        self._lock = threading.Lock()
        self._lifecycle.forget()


def receipts_of(deliveries: Sequence[Delivery]) -> list[Receipt]:
    """Return what names deliveries to the owner."""
    return [(each.number, each.offset) for each in deliveries]

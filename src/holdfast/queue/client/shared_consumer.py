"""Taking through the owner of a shared queue, in this process or another one."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.clock import Clock
from holdfast.errors import (
    NOTHING_CAME,
    Empty,
    HoldfastError,
    LeaseExpiredError,
    RetryableError,
    ShutDown,
)
from holdfast.queue.client.deliveries_in_hand import DeliveriesInHand, receipts_of
from holdfast.queue.client.large_payloads import LargePayloads
from holdfast.queue.client.lease_renewals import LOOK, LeaseRenewals
from holdfast.queue.client.link import never
from holdfast.queue.client.membership import Membership, ask_verb
from holdfast.queue.client.shared_draining import SharedDraining
from holdfast.queue.client.upkeep import Upkeep
from holdfast.queue.dispatch.delivery import Delivery, Holder
from holdfast.queue.options.failure import GIVEN_BACK, Failure, Redact, redacted
from holdfast.queue.owner import direct
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
    group_seconds : callable
        Returns how long the group leases messages.

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
        group_seconds: Callable[[], float],
    ) -> None:
        super().__init__(clock, upkeep)
        self._membership = membership
        self.group = group
        self._redact = redact
        self._large_payloads = large_payloads
        self._group_seconds = group_seconds
        self._renewals = LeaseRenewals(self._leases, self._lock, self._ask_extend, self.part_with, group_seconds)
        self._deliveries_max = 0
        self._draining = SharedDraining(clock, membership, group)
        self._woken = Notifier()
        self.deadlines = Deadlines(clock)
        upkeep.chores = self

    # -- Taking ------------------------------------------------------------------------------------------------------

    def get(self, timeout: float | None) -> bytes:
        """Take one message and finish it; return its payload."""
        return self.get_many(1, timeout)[0]

    def get_many(self, count_max: int, timeout: float | None) -> list[bytes]:
        """Take up to ``count_max`` messages and finish them; return their payloads.

        The owner's own process does both in one step. Another one has messages in hand before it finishes them: else
        they were lost with an answer that does not arrive.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ahead:
            seconds, must_look = self._seconds_to_wait(deadline), self._must_look()
            try:
                payloads = self._membership.here(
                    lambda queue: direct.fetch(queue, self.group, count_max, seconds, must_look)  # noqa: B023  # at once
                )
            except Empty:
                self._check_more(deadline, None)
                continue
            except RetryableError:
                self._check_end()
                raise
            if payloads is not None:
                return self.count_taken(payloads)
            break
        deliveries = self._receive((), count_max, deadline, None, None)
        self.ack(deliveries)
        return [each.payload for each in deliveries]

    def receive(
        self, count_max: int, timeout: float | None, holder: Holder | None = None, lease_seconds: float | None = None
    ) -> list[Delivery]:
        """Take up to ``count_max`` messages and lease them. As ``ReadSide.receive``."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return self._receive((), count_max, deadline, holder, lease_seconds)

    def ack_and_receive(
        self, deliveries: Sequence[Delivery], count_max: int, timeout: float | None, lease_seconds: float | None = None
    ) -> list[Delivery]:
        """Finish deliveries, and take others with the same request. As ``ReadSide.ack_and_receive``."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return self._receive(deliveries, count_max, deadline, None, lease_seconds)

    def _receive(
        self,
        finished: Sequence[Delivery],
        count_max: int,
        deadline: float | None,
        holder: Holder | None,
        lease_seconds: float | None,
    ) -> list[Delivery]:
        if finished and self._ack_here(finished):
            finished = ()
        while True:
            seconds = self._seconds_to_wait(deadline)
            if self._ahead and not finished and (claimed := self.claim_ahead(holder, lease_seconds, self.extend)):
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
                self._check_more(deadline, holder)
            except RetryableError:
                self._check_end()
                raise

    def _seconds_to_wait(self, deadline: float | None) -> float:
        """Return how long one request may wait. Raises if takes are refused."""
        if self._lifecycle.refusal is not None:  # as check() does, without the call
            raise self._lifecycle.refusal()
        if self.deadlines.pending:
            self.deadlines.expire_due()
        if deadline is None and not self._draining.is_on:
            return WAIT_SECONDS_MAX
        longest = _DRAIN_PAUSE_SECONDS if self._draining.is_on else WAIT_SECONDS_MAX
        return longest if deadline is None else min(longest, max(0.0, deadline - time.monotonic()))

    def _check_more(self, deadline: float | None, holder: Holder | None) -> None:
        """Raise unless it is worth asking again, after nothing was found."""
        self.check_left(holder)
        if deadline is not None and time.monotonic() >= deadline:
            raise Empty(NOTHING_CAME) from None

    def _check_end(self) -> None:
        """Raise if the end of this handle has come before an owner was found."""
        self._lifecycle.check()
        self._draining.check_time(self._in_hand_count(None))

    def _ack_and_take(
        self, finished: Sequence[Delivery], count_max: int, seconds: float, lease_seconds: float | None
    ) -> list[Delivery]:
        """Finish deliveries and take others; return none once they are finished, and nothing came."""
        must_look = self._must_look()
        taken: list[Delivery] = []

        def ask(live: Sequence[Delivery]) -> None:
            try:
                taken.extend(self._take(count_max, seconds, None, lease_seconds, receipts_of(live)))
            except Empty:
                if must_look():  # it may not have been sent
                    self._membership.ask(Settle(self.group, "ack", receipts_of(live)))

        self._settle_by(ask, finished, None)
        return taken

    def _must_look(self) -> Callable[[], bool]:
        """Return what tells whether this was closed or shut down since: a take of a drain asks for what is left."""
        was_on = self._draining.is_on
        return lambda: self._lifecycle.refusal is not None or self._draining.is_on is not was_on

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
        take = Take(self.group, number, count_max, lease_seconds, seconds, list(finished))
        self._taking.add(number)
        must_look = ending = self._must_look()
        if is_over is not never:
            must_look = lambda: ending() or is_over()  # noqa: E731  # most takes have none
        try:
            deliveries = self._take_here(take, must_look)
            if deliveries is None:
                deliveries = self._take_there(take, holder, must_look)
            elif holder is not None:
                self.hold(deliveries, holder)
            if self._lifecycle.refusal is not None:  # behind the lines above: what was not given back by then is now
                self._give_back()
                raise self._lifecycle.refusal()
            return deliveries
        except BaseException as error:
            if not isinstance(error, Empty) or must_look():  # without an answer: its messages may be in hand
                self.give_up(number)
            raise
        finally:
            self._taking.discard(number)

    def _take_here(self, take: Take, must_look: Callable[[], bool]) -> list[Delivery] | None:
        """Take from the read side of this process; None if it owns nothing.

        That leases them, and knows which are open: they need no upkeep until another process owns the queue.
        """
        if take.finished:
            return None
        here = self._membership.here(lambda queue: (queue, *direct.take(queue, take, self, must_look)))
        if here is None:
            return None
        queue, deliveries, self._deliveries_max = here
        self.have_in_hand(deliveries, None)
        if self._membership.own_queue is not queue:  # it has closed since, and upkeep may have looked
            self._upkeep.wake()
        return deliveries

    def _take_there(self, take: Take, holder: Holder | None, must_look: Callable[[], bool]) -> list[Delivery]:
        """Have the owner asked for messages, and lease them here too."""
        reply, payloads, _ = self._membership.ask(take, (), take.timeout, must_look)
        assert isinstance(reply, Taken), "an owner answers a take by messages or an error"
        self._deliveries_max = reply.deliveries_max
        if reply.places:
            payloads = self._large_payloads.fill_in(reply, payloads)
        deliveries = [
            Delivery(self, (offset, timestamp, headers, payload, 0, 0), delivery_count, holder, take.number)
            for (offset, timestamp, headers, delivery_count), payload in zip(reply.messages, payloads, strict=True)
        ]
        self.have_in_hand(deliveries, reply.lease_seconds)
        self._upkeep.wake_by(time.monotonic() + min(reply.lease_seconds, self._group_seconds()) * LOOK)
        return deliveries

    def check_taking(self) -> None:
        """Refuse if takes are refused: the handle was shut down at once, or closed."""
        self._lifecycle.check()

    def check_left(self, holder: Holder | None = None) -> None:
        """Raise queue.ShutDown if a taker that has found nothing has nothing to wait for."""
        self._draining.check_left(self._in_hand_count(holder))

    # -- Settling ----------------------------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery], holder: Holder | None = None) -> None:
        """Finish deliveries, all in one step; raises StaleReceiptError, and changes nothing, if one is stale."""
        if not deliveries or (holder is None and self._ack_here(deliveries)):
            return
        self._settle_by(lambda live: self._ask_settle("ack", live), deliveries, holder)

    def _ack_here(self, deliveries: Sequence[Delivery]) -> bool:
        """Finish what the read side of this process has leased; False if one is not of it, or not in hand."""
        if self._lifecycle.refusal is not None:
            self._lifecycle.check_alive()
        if not self._membership.here(lambda queue: direct.ack(queue, self.group, deliveries)):
            return False
        with self._lock:
            self._leases.forget(deliveries)
        return True

    def part_with(self, deliveries: Sequence[Delivery]) -> None:
        """Have the read side of this process lease other objects."""
        if (queue := self._membership.own_queue) is not None:
            queue.part_with(self.group, deliveries)

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
            self._renewals.extend(each, each.lease_seconds if seconds is None else seconds)

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
        if not deliveries:
            return
        live = deliveries if len(deliveries) == 1 else list(dict.fromkeys(deliveries))
        if holder is None:
            self.part_with(live)  # from here on the leases of this handle alone decide which thread settles them
        is_ending = False
        with self.settling(live):
            try:
                with self._lock:
                    if self._lifecycle.refusal is not None:
                        self._lifecycle.check_alive()
                    self._leases.run_out()
                    self._leases.forget([each for each in live if each.is_settled])  # by the read side of this process
                    self._leases.check(live, holder)
                    is_ending = True
                    self._leases.end(live)  # first: no other thread settles them too
                ask(live)
            except SessionLostError as error:
                raise self.lose_all(live) from error
            except BaseException as error:
                if is_ending:
                    self.note_lost(live, error)
                    self.take_back(live, error)
                raise

    def _ask_settle(
        self, verb: str, deliveries: Sequence[Delivery], seconds: float | None = None, failure: Failure | None = None
    ) -> None:
        why = None if failure is None else (failure.reason, failure.detail, failure.exception, failure.trace)
        self._membership.ask(Settle(self.group, verb, receipts_of(deliveries), seconds, why))

    def _ask_extend(self, deliveries: Sequence[Delivery], seconds: float | None = None) -> None:
        """Ask the owner for longer leases; it answers for one that has run out meanwhile, too."""
        try:
            with self.settling(deliveries):
                self._ask_settle("extend", deliveries, seconds)
        except LeaseExpiredError as error:
            self.note_lost(deliveries, error)
            raise
        except SessionLostError as error:
            raise self.lose_all(deliveries) from error

    def begin_leases_again(self, deliveries: Sequence[Delivery]) -> None:
        """Have the owner lease messages anew; what it cannot be told keeps what is left of its lease."""
        with suppress(HoldfastError):
            self._renewals.renew(deliveries)

    def redacted(self, failure: Failure) -> Failure:
        """Return a failure with texts that may be stored and logged."""
        return redacted(failure, self._redact)

    def is_last(self, delivery_count: int) -> bool:
        """Whether a message that was handed out so often becomes a dead letter if it fails."""
        return 0 < self._deliveries_max <= delivery_count

    # -- Upkeep ------------------------------------------------------------------------------------------------------

    def do_due(self, now: float) -> float:
        """Extend leases of deliveries whose block is open, and give up takes; return when to come again."""
        due = self._renewals.do_due(now)  # first: nothing that an owner refuses may keep these from it
        self.tell_given_up(lambda number: self._membership.ask(Verb(self.group, {"verb": "give_up", "number": number})))
        self.deadlines.expire_due()
        self.give_back_unclaimed(now, self.release)
        left = self.deadlines.seconds_left()
        return min(due, self.unclaimed_due(), math.inf if left is None else now + left)

    # -- The group as a whole ----------------------------------------------------------------------------------------

    def purge(self, note: Callable[[int], object]) -> int:
        """Finish all messages that are ready now; return how many."""
        self._lifecycle.check()
        count = int(ask_verb(self._membership, Verb(self.group, {"verb": "purge"}))["count"])
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
        if immediate:
            ending = self._draining.begin_at_once()
            self._lifecycle.drain(lambda: ending)
        else:
            self._draining.begin(timeout)
        self.wake()
        if immediate:
            self._give_back()  # last: a take that waits must not get it
            ending = self.ending()

    def ending(self) -> ShutDown:
        """Return the error that counts the messages left."""
        return self._draining.ending(self._in_hand_count(None))

    def _give_back(self) -> None:
        with suppress(HoldfastError):  # they come again once their session is dead
            self.give_all_back(lambda left: self._ask_settle("release", left))

    def close(self) -> None:
        """Refuse further takes, and give deliveries back."""
        self._lifecycle.close()
        self.wake()
        self._give_back()

    def forget(self) -> None:
        """In a forked child: refuse everything with ForkedError."""
        self._lock = threading.Lock()
        self._lifecycle.forget()

"""What becomes of deliveries: acknowledged, given back, made dead letters, held by a transaction.

A stale delivery changes nothing. Entries are written before memory changes; where a call is cut short behind that, the
next take reads what is unfinished from the log again.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from holdfast.errors import ShutDown
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.vote import Vote
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.log.log_reader import Record
from holdfast.queue.consumer.draining import Draining
from holdfast.queue.consumer.leases import Leases
from holdfast.queue.consumer.redelivery import Redelivery
from holdfast.queue.dispatch.delivery import Delivery, Holder
from holdfast.queue.dispatch.dispatcher import Dispatcher
from holdfast.queue.dispatch.progress_store import ProgressStore
from holdfast.queue.dispatch.sources import Source
from holdfast.queue.options.failure import GIVEN_BACK, RAN_OUT, Failure
from holdfast.queue.threads.deadlines import Deadlines
from holdfast.queue.threads.notifier import Notifier

Changed = TypeVar("Changed")


class Settling(ABC):
    """The half of :class:`ReadSide` that its deliveries and its transactions see; it fills in the attributes.

    Attributes
    ----------
    deadlines : Deadlines
        When messages have to be given back that nobody gives back by himself.
    room : Notifier
        Rung when messages are finished.
    """

    _take_lock: threading.Lock
    _source: Source
    _leases: Leases
    _backlog: Dispatcher
    _redelivery: Redelivery
    _progress: GroupProgress
    _books: ProgressStore | None
    _refusal: Callable[[], Exception] | None
    _draining: Draining
    deadlines: Deadlines
    room: Notifier

    # -- Acknowledging -----------------------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery], holder: Holder | None = None, *, is_decided: bool = False) -> None:
        """Finish deliveries, all in one step; raises StaleReceiptError, and changes nothing, where one is stale.

        Those of a transaction take the transaction's own ``holder``. ``is_decided``: a decision in the log, which is
        durable, says it already, so nothing waits for a sync.
        """
        if not deliveries:
            return
        if len(deliveries) > 1:
            deliveries = list(dict.fromkeys(deliveries))  # one that is named twice counts once
        if holder is None:
            self.give_back_due()
        with self._take_lock:
            self._check_alive()
            records = self._leases.check(deliveries, holder)
            ticket = self._require_books().finish(records)
            try:  # as _follow, by hand: this is the hot path
                self._leases.end(deliveries)
                has_moved = self._leave(records)
            except BaseException:
                self._backlog.must_read_anew = True
                raise
        if has_moved or self._draining.is_on:  # who waits for what was in hand
            self._source.wake()
        if not is_decided:
            self._settle(ticket)
        elif self.room.waiting:
            self.room.ring()

    def _settle(self, ticket: int) -> None:
        """Make finished messages as durable as the policy says, and tell producers that there is room."""
        self._require_books().commit(ticket)
        if self.room.waiting:
            self.room.ring()

    # -- Giving back -------------------------------------------------------------------------------------------------

    def nack(
        self,
        deliveries: Sequence[Delivery],
        delay: float | None = None,
        failure: Failure = GIVEN_BACK,
        holder: Holder | None = None,
    ) -> None:
        """Note that deliveries have failed; they wait ``delay`` seconds, or as the policy says, or were the last."""
        failure = self.redacted(failure)  # before the lock: it is the application's function
        self._settle_by(lambda live: self._fail(live, delay, failure), deliveries, holder)

    def reject(self, deliveries: Sequence[Delivery], reason: str) -> None:
        """Make messages dead letters now."""
        if not isinstance(reason, str):
            raise TypeError(f"a reason is a str, not {type(reason).__name__}")
        self._reject(deliveries, Failure("rejected", reason), None, is_counted=True)

    def park(self, deliveries: Sequence[Delivery], failure: Failure, holder: Holder | None = None) -> None:
        """Make messages dead letters now that nobody has tried: their delivery does not count."""
        self._reject(deliveries, failure, holder, is_counted=False)

    def _reject(
        self, deliveries: Sequence[Delivery], failure: Failure, holder: Holder | None, *, is_counted: bool
    ) -> None:
        kept = self.redacted(failure)

        def reject(live: list[Delivery]) -> None:
            self._redelivery.reject(self._require_books(), live, kept, is_counted=is_counted)
            self._follow(lambda: self._end_and_leave(live))

        self._settle_by(reject, deliveries, holder)

    def redacted(self, failure: Failure) -> Failure:
        """Return a failure with texts that may be stored and logged."""
        return self._redelivery.log.redacted(failure)

    def is_last(self, delivery_count: int) -> bool:
        """Whether a message that was handed out so often becomes a dead letter if it fails."""
        return self._redelivery.is_last(delivery_count)

    def release(self, deliveries: Sequence[Delivery], holder: Holder | None = None) -> None:
        """Give messages back as if they never had been handed out."""

        def release(live: list[Delivery]) -> None:
            self._redelivery.release(self._require_books(), live)
            self._follow(lambda: self._end_and_give_back(live))

        self._settle_by(release, deliveries, holder)

    def extend(self, deliveries: Sequence[Delivery], seconds: float | None) -> None:
        """Lease messages for so long from now; None: each for as long as before."""
        self.give_back_due()
        with self._take_lock:
            self._check_alive()
            self._leases.check(deliveries, None)
            for each in deliveries:
                self._grant((each,), each.lease_seconds if seconds is None else seconds)

    def _grant(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """Lease messages; whoever sleeps until a later lease runs out has to look again."""
        before = self._leases.next_due
        self._leases.grant(deliveries, seconds)
        if self._leases.next_due < before:
            self._source.wake()

    def _settle_by(
        self, change: Callable[[list[Delivery]], object], deliveries: Sequence[Delivery], holder: Holder | None
    ) -> None:
        """Settle deliveries, all of which are live, by ``change``; then make it durable, and wake takers.

        No context manager holds the lock: one that is written in Python keeps it where it is interrupted at its door.
        """
        if not deliveries:
            return
        if holder is None:
            self.give_back_due()
        with self._take_lock:
            self._check_alive()
            live = list(dict.fromkeys(deliveries))
            self._leases.check(live, holder)
            change(live)
            ticket = self._require_books().end
        self._source.wake()
        if self._redelivery.log.noted:
            self._say_deaths()
        if not self._progress.dead.keys().isdisjoint([each.offset for each in live]):
            self._settle(ticket)

    def _in_step(self, change: Callable[[], Changed]) -> Changed:
        """Write something, and do it in memory; where that is cut short, the log is read again."""
        try:
            return change()
        except BaseException:
            self._backlog.must_read_anew = True
            raise

    def _follow(self, step: Callable[[], object]) -> None:
        """Do in memory what has been written, and stands; where that is cut short, the log is read again."""
        is_done = False
        try:
            is_done = follow_up("the log is read again, for what has been written could not be done in memory", step)
        finally:
            self._backlog.must_read_anew |= not is_done

    def _fail(self, deliveries: Sequence[Delivery], delay: float | None, failure: Failure) -> None:
        last = set(self._redelivery.fail(self._require_books(), deliveries, delay, failure))

        def follow() -> None:
            self._leases.end([each for each in deliveries if not each.is_settled])
            self._backlog.give_back([each.record for each in deliveries if each not in last])
            self._backlog.aside.leave([each.record for each in deliveries if each in last])

        self._follow(follow)

    def _end_and_give_back(self, live: Sequence[Delivery]) -> None:
        self._leases.end(live)
        self._backlog.give_back([each.record for each in live])

    def _end_and_leave(self, live: Sequence[Delivery]) -> None:
        self._leases.end(live)
        self._backlog.aside.leave([each.record for each in live])

    def _leave(self, records: Sequence[Record]) -> bool:
        """Let those go on whose order key these had; a message that cannot be read now is not their fault."""
        try:
            return self._backlog.aside.leave(records)
        except Exception:  # said again by the next take, which meets the same
            self._backlog.must_read_anew = True
            return True

    def give_back_due(self) -> None:
        """Give back what transactions and leases hold whose time is over."""
        self.deadlines.expire_due()
        if self._leases.next_due <= self._leases.monotonic():
            with self._take_lock:
                if self._books is None or self._refusal is not None:
                    return
                self._in_step(self._give_back_run_out)
            self._source.wake()
        if self._redelivery.log.noted:  # most takes end here
            self._say_deaths()

    def _say_deaths(self) -> None:
        """Log which messages became dead letters, outside of the take lock."""
        follow_up("dead letters are not in the log", self._redelivery.log.say)

    def _give_back_run_out(self) -> None:
        due = [each for each in self._leases.run_out() if each.offset not in self._progress.dead]
        if due:  # a dead letter may have a lease still, where its reject was interrupted behind its entry
            self._fail(due, 0, RAN_OUT)

    # -- Transactions ------------------------------------------------------------------------------------------------

    def hold(self, deliveries: Sequence[Delivery], holder: Holder) -> None:
        """Give deliveries that a receiver has into the hands of a transaction; raises StaleReceiptError as ack."""
        self.give_back_due()
        with self._take_lock:
            self._check_alive()
            self._leases.check(deliveries, None)
            for delivery in deliveries:
                delivery.holder = holder

    def hand_back(self, deliveries: Sequence[Delivery], holder: Holder) -> None:
        """Give deliveries that a transaction had taken over back to their receiver, leased for as long as before."""
        with self._take_lock:
            for delivery in deliveries:
                if delivery.holder is holder and not delivery.is_settled:
                    delivery.holder = None
                    self._leases.grant((delivery,), delivery.lease_seconds)

    def let_go(self, deliveries: Sequence[Delivery], holder: Holder) -> None:
        """Give back what a transaction has and the disk refuses to note: it counts as handed out once more."""
        with self._take_lock:
            live = [each for each in deliveries if each.holder is holder and not each.is_settled]
            self._follow(lambda: self._end_and_give_back(live))
        self._source.wake()

    def held_by(self, holder: Holder) -> list[Delivery]:
        """Return what a transaction has in hand."""
        with self._take_lock:
            return [each for each in self._leases.by_offset.values() if each.holder is holder]

    def check(self, deliveries: Sequence[Delivery], holder: Holder) -> list[Record]:
        """Return the records of deliveries in offset order; raises StaleReceiptError where one is stale."""
        with self._take_lock:
            self._check_alive()
            return self._leases.check(deliveries, holder)

    def vote(self, vote: Vote, deliveries: Sequence[Delivery], holder: Holder) -> None:
        """Hold deliveries durably, restarts included, until :meth:`resolve`."""
        with self._take_lock:
            self._check_alive()
            self._leases.check(deliveries, holder)
            ticket = self._require_books().vote(vote)
            self._follow(lambda: self._leases.end(deliveries))
        if self._draining.is_on:
            self._source.wake()
        self._require_books().sync(ticket)

    def resolve(self, nonce: bytes, *, is_committed: bool, is_durable: bool) -> bool:
        """Finish what a vote holds, or let go of it; False where there is no such vote.

        ``is_durable``: return once that is on the disk; else a decision elsewhere says it until it is.
        """
        with self._take_lock:
            self._check_alive()
            self._start()
            vote = self._progress.votes.get(nonce)
            if vote is None:
                return False
            ticket = self._in_step(lambda: self._resolve(vote, is_committed=is_committed))
        if is_durable:
            self._require_books().sync(ticket)
        self._source.wake()
        self.room.ring()
        return True

    def _resolve(self, vote: Vote, *, is_committed: bool) -> int:
        ticket = self._require_books().resolve(vote, is_committed=is_committed)
        self._backlog.must_read_anew |= not is_committed or self._backlog.aside.has_order_keys
        return ticket

    # -- Dead letters ------------------------------------------------------------------------------------------------

    def dead_retry(self, offsets: Collection[int]) -> int:
        """Hand dead letters out again; return how many of these there were."""
        return self._with_books(lambda books: self._redelivery.retry(books, offsets, self._backlog))

    def dead_discard(self, offsets: Collection[int]) -> int:
        """Finish dead letters; return how many of these there were."""
        return self._with_books(lambda books: self._redelivery.discard(books, offsets))

    def _with_books(self, change: Callable[[ProgressStore], int]) -> int:
        """Change what is noted of dead letters, durably as the policy says."""
        with self._take_lock:
            self._check_alive()
            self._start()
            books = self._require_books()
            count = self._in_step(lambda: change(books))
            ticket = books.end
        self._settle(ticket)
        self._source.wake()
        return count

    # -- Inside ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _start(self) -> None:
        """Open the books at the first take, and go to where they say; again after a take was cut short."""

    def _require_books(self) -> ProgressStore:
        assert self._books is not None, "whoever has a delivery has begun"
        return self._books

    def _check_alive(self) -> None:
        """Raise where the read side is closed; what was handed out before a shutdown can still be settled."""
        if self._refusal is not None and not isinstance(self._refusal(), ShutDown):
            raise self._refusal()

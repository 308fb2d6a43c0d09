"""The read side of one consumer group in the process that owns it: hands messages out and settles deliveries.

Consumers' threads share the take lock; producers never touch it. A delivery is noted before it is handed out. A message
counts as finished once its entry is in the position file, and synced if the policy requires it.

A stale delivery changes nothing. Entries are written before memory changes; if a call is cut short after that, the next
take reads unfinished messages from the log again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import repeat
from typing import Any, TypeVar

from holdfast.clock import Clock
from holdfast.errors import NOTHING_CAME, Empty, ShutDown, StorageError, TransactionStateError
from holdfast.messages import Message
from holdfast.persistence.filesystem.locks import SideLock
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.commit_record import Run
from holdfast.persistence.format.constants import NUMBER_MAX, SESSION_SHIFT
from holdfast.persistence.format.message_headers import readable_headers
from holdfast.persistence.format.report import Damage
from holdfast.persistence.groups.pause_file import Pause
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.retention import skipped_changes
from holdfast.persistence.groups.vote import Vote
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.log.log_reader import Record
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.queue.consumer.draining import Draining, Left, shut_down_with
from holdfast.queue.consumer.pausing import Pausing
from holdfast.queue.consumer.redelivery import Redelivery
from holdfast.queue.dispatch.deferred_messages import EXPIRED
from holdfast.queue.dispatch.delivery import Deliverer, Delivery, Holder, Leases
from holdfast.queue.dispatch.dispatcher import Dispatcher
from holdfast.queue.dispatch.log_cursor import GroupLog
from holdfast.queue.dispatch.progress_store import ProgressStore
from holdfast.queue.dispatch.standing import Standing, none_lives, standing_of
from holdfast.queue.dispatch.taken_runs import TakenRuns
from holdfast.queue.options.failure import GIVEN_BACK, RAN_OUT, Failure
from holdfast.queue.options.retry_policy import RetryPolicy
from holdfast.queue.threads import poller
from holdfast.queue.threads.deadlines import Deadlines
from holdfast.queue.threads.lifecycle import Lifecycle
from holdfast.queue.threads.notifier import Notifier

Changed = TypeVar("Changed")
Handed = TypeVar("Handed")

MakeVote = Callable[[tuple[Run, ...]], Vote]
"""Makes the vote that holds these messages."""

_PURGE_COUNT = 100_000
"""Messages that one step of a purge finishes: takers beside it wait for a step at the most."""

_SLEEP_SECONDS_MAX = 1.0
"""So late is noticed what wakes no taker: the wall clock was set forward, or a thread was interrupted between putting
or giving back a message and saying so."""

_SOONER_SECONDS = 0.001


class ReadSide:
    """Hands messages out to all consumer threads of a process.

    Parameters
    ----------
    log : GroupLog
        The log to read, and where to start.
    lock : SideLock
        Held until :meth:`close`.
    clock : Clock
        For deadlines and for the times that messages ask for.
    redelivery : Redelivery
        Decides the fate of messages that were not acknowledged.
    pausing : Pausing
        The pause of the group.
    space_available : Notifier
        Rung when messages are finished, for producers that wait.

    Attributes
    ----------
    deadlines : Deadlines
        The times at which unsettled messages are given back.
    """

    def __init__(
        self,
        log: GroupLog,
        lock: SideLock,
        clock: Clock,
        redelivery: Redelivery,
        pausing: Pausing,
        space_available: Notifier,
    ) -> None:
        self._source = log.source
        self._filter = log.message_filter
        self._path = log.path
        self._open_progress_store = log.open_progress_store
        self._lock = lock
        self._take_lock = threading.Lock()
        self._progress = log.progress
        self._gone_before = self._progress.lost_count + self._progress.skipped_count
        self._lease_seconds = redelivery.policy.lease_seconds
        self._time_ns = clock.time_ns
        self._leases = Leases(clock.monotonic)
        self._living: Callable[[int], bool] = none_lives
        self._lifecycle = Lifecycle()
        self._draining = Draining(clock)
        self._space_available = space_available
        self.deadlines = Deadlines(clock)
        self._redelivery = redelivery
        self.pausing = pausing
        self._dispatcher = Dispatcher(
            log,
            self._leases.by_offset,
            redelivery.is_last,
            clock.time_ns,
            lambda ended: redelivery.end(self._require_progress_store(), ended),
        )
        self._active_keys = self._dispatcher.deferred.active_keys
        self._progress_store = log.progress_store
        if self._progress_store is not None:
            self._dispatcher.begin(self._progress_store)

    def begin(self) -> None:
        """Begin the default group, if it has not begun. Raises as :meth:`get`."""
        with self._take_lock:
            self._lifecycle.check()
            self._start()

    def change(self, policy: RetryPolicy) -> None:
        """Let other rules count, from the next delivery or failure on."""
        with self._take_lock:
            self.follow(policy)

    def follow(self, policy: RetryPolicy) -> None:
        """As :meth:`change`, while the group begins: the caller holds the lock of takes."""
        self._lease_seconds = policy.lease_seconds
        self._redelivery.change(policy)

    # -- Taking ------------------------------------------------------------------------------------------------------

    def get(self, timeout: float | None) -> bytes:
        """Take one message and finish it; return its payload."""
        record, ticket = self._finish_next()
        if record is None:
            (record,), ticket = self._take(1, timeout, self._finish)
        self._settle(ticket)
        return record[3]

    def get_many(self, count_max: int, timeout: float | None) -> list[bytes]:
        """Take up to ``count_max`` messages and finish them with one entry; return their payloads."""
        records, ticket = self._take(count_max, timeout, self._finish)
        self._settle(ticket)
        return [record[3] for record in records]

    def fetch(self, count_max: int, is_over: Callable[[], bool]) -> list[bytes]:
        """As :meth:`get_many` without a wait; raises queue.Empty, and takes nothing, once ``is_over()``.

        That is looked at under the lock that is also needed to give messages back. So what a handle gives back when it
        ends is not taken by itself.
        """

        def finish(found: list[Record]) -> tuple[list[Record], int]:
            if is_over():
                raise Empty(NOTHING_CAME)
            return self._finish(found)

        if count_max == 1:
            record, ticket = self._finish_next(is_over)
            if record is not None:
                self._settle(ticket)
                return [record[3]]
        records, ticket = self._take(count_max, 0, finish)
        self._settle(ticket)
        return [record[3] for record in records]

    # The fast lane: one message that is at hand, without lists and closures. It changes the same state by the same
    # steps as the general way behind it, which serves all other cases and is its oracle.

    def _finish_next(self, is_over: Callable[[], bool] | None = None) -> tuple[Record | None, int]:
        """Take and finish the next message, and return it with the ticket to settle; None if it is not at hand."""
        if self.deadlines.pending or self._redelivery.log.noted or self._leases.next_due <= self._leases.monotonic():
            self.give_back_due()
        record, store = None, self._progress_store
        with self._take_lock:
            try:
                if store is not None and self._may_take() and (is_over is None or not is_over()):
                    record = self._dispatcher.take_one()
                    if record is not None:
                        ticket = store.finish_one(record)
                        if self._active_keys:
                            self._leave((record,))
                        return record, ticket
            except BaseException:
                self._take_back(() if record is None else (record,))
                raise
        return None, 0

    def _lease_next(self, lease_seconds: float | None, number: int, deliverer: Deliverer) -> Delivery | None:
        """Take and lease the next message; None if it is not at hand."""
        leases, record, store = self._leases, None, self._progress_store
        if self.deadlines.pending or self._redelivery.log.noted or leases.next_due <= leases.monotonic():
            self.give_back_due()
        with self._take_lock:
            try:
                if store is None or not self._may_take():
                    return None
                record = self._dispatcher.take_one()
                if record is None:
                    return None
                delivery = Delivery(deliverer, record, store.deliver_one(record, number), None, number)
                seconds = self._lease_seconds if lease_seconds is None else lease_seconds
                delivery.lease_seconds = seconds
                delivery.expires_at = expires_at = leases.monotonic() + seconds
                leases.by_offset[record[0]] = delivery
                if expires_at < leases.next_due:  # a thread that sleeps until a later one expires has to check again
                    leases.next_due = expires_at
                    self._source.wake()
                return delivery
            except BaseException:
                self._take_back(() if record is None else (record,))
                raise

    def _finish_one(self, delivery: Delivery) -> int | None:
        """Finish a delivery; return the ticket to settle. None, and nothing is done, if it is not in hand."""
        leases, store = self._leases, self._progress_store
        if self.deadlines.pending or self._redelivery.log.noted or leases.next_due <= leases.monotonic():
            self.give_back_due()
        with self._take_lock:
            if self._lifecycle.refusal is not None:
                self._lifecycle.check_alive()
            offset, record = delivery.offset, delivery.record
            if store is None or leases.by_offset.get(offset) is not delivery or delivery.holder is not None:
                return None
            ticket = store.finish_one(record)
            has_moved = False
            try:
                del leases.by_offset[offset]
                delivery.is_settled = True
                if self._active_keys:
                    has_moved = self._leave((record,))
            except BaseException:
                self._dispatcher.must_read_anew = True
                raise
        if has_moved or self._draining.is_on:  # wakes takers that wait for messages in hand
            self._source.wake()
        return ticket

    def _may_take(self) -> bool:
        """Whether messages are handed out now, as :meth:`_take` has it."""
        if self._lifecycle.refusal is not None or (self.pausing.stored is not None and self.pausing.is_paused):
            return False
        if self._progress.dead and self._progress_store is not None:
            self._redelivery.sweep(self._progress_store, self._progress)
        return True

    def receive(
        self,
        count_max: int,
        timeout: float | None,
        holder: Holder | None = None,
        lease_seconds: float | None = None,
        *,
        number: int = 0,
        deliverer: Deliverer | None = None,
    ) -> list[Delivery]:
        """Take up to ``count_max`` messages and lease them: to their receiver, or to the transaction that is holder.

        A redelivered message comes alone. ``number``: the take's delivery number, if a session takes. ``deliverer``:
        who settles them; None: this read side.
        """
        if count_max == 1 and holder is None:
            delivery = self._lease_next(lease_seconds, number, deliverer or self)
            if delivery is not None:
                return [delivery]

        def lease(records: list[Record]) -> list[Delivery]:  # the group may begin, or be configured, while it waits
            seconds = self._lease_seconds if lease_seconds is None else lease_seconds
            return self._lease(records, holder, seconds, number, deliverer or self)

        return self._take(count_max, timeout, lease, alone=True, holder=holder)

    def ack_and_receive(
        self, deliveries: Sequence[Delivery], count_max: int, timeout: float | None, lease_seconds: float | None = None
    ) -> list[Delivery]:
        """Finish deliveries, and take others; if it raises queue.Empty or ShutDown, they are finished."""
        self.ack(deliveries)
        return self.receive(count_max, timeout, None, lease_seconds)

    def _take(
        self,
        count_max: int,
        timeout: float | None,
        hand_out: Callable[[list[Record]], Handed],
        *,
        alone: bool = False,
        holder: Holder | None = None,
    ) -> Handed:
        """Wait for messages and hand them out under the take lock; if that fails, they stay available."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.give_back_due()
            with self._take_lock:
                if self._lifecycle.refusal is not None:  # as check() does, without the call
                    raise self._lifecycle.refusal()
                records: list[Record] = []
                try:
                    self._start()
                    if self.pausing.stored is None or not self.pausing.is_paused:
                        records = self._dispatcher.take(count_max, alone=alone)
                    if records:
                        return hand_out(records)
                except BaseException:
                    self._take_back(records)
                    raise
                if self._is_drained(holder):
                    raise self._ending()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise Empty(NOTHING_CAME)
            self.wait_for_more(left, lambda: self._is_drained(holder))

    def wait_for_more(self, left: float | None, is_over: Callable[[], bool] = lambda: False) -> None:
        """Sleep until there may be more to take, or ``is_over()`` at a ``wake``; at most ``left`` seconds."""
        poller.ensure_watching()
        seconds = self._wait_seconds(left)
        self._source.wait(lambda: is_over() or self._may_go_on(seconds), seconds)

    def seconds_until_more(self) -> float:
        """Return how long nothing becomes ready by itself: until a lease ends or a message is due."""
        return self._wait_seconds(None)

    def _wait_seconds(self, left: float | None) -> float:
        """Return how long to sleep: until the caller's time is over, or until something may be ready by itself."""
        waits = [left, _SLEEP_SECONDS_MAX, self.deadlines.seconds_left(), self._leases.seconds_left()]
        waits.append(self._draining.seconds_left())
        now = self._time_ns()
        due_ns = self.pausing.until_ns if self.pausing.is_paused else self._dispatcher.deferred.next_due_ns
        waits.append(None if due_ns is None else max(0, due_ns - now) / 1e9)
        return min(wait for wait in waits if wait is not None)

    def _may_go_on(self, seconds: float) -> bool:
        """Whether so long is too long to sleep: a message was put, taken or given back meanwhile."""
        return self._may_have_more() or self._wait_seconds(None) < seconds - _SOONER_SECONDS

    def _may_have_more(self) -> bool:
        if self._lifecycle.refusal is not None or self._is_drained():
            return True
        return not self.pausing.is_paused and self._dispatcher.may_have_more

    def _start(self) -> None:
        """Open the progress store at the first take, and go to its place; again after a take was cut short."""
        if self._progress_store is None:
            with storage_errors("beginning to read", self._path):
                self._progress_store = self._open_progress_store()
            self._progress = self._progress_store.progress
            self._dispatcher.begin(self._progress_store)
            self._dispatcher.must_read_anew = True
        if self._dispatcher.must_read_anew:
            self._dispatcher.read_anew()
        if self._progress.dead:
            self._redelivery.sweep(self._progress_store, self._progress)

    def _take_back(self, records: Sequence[Record]) -> None:
        """Undo a take that was cut short, wherever it was: the next one reads the log again."""
        for record in records:
            self._leases.by_offset.pop(record[0], None)
        self._dispatcher.must_read_anew = True

    def _finish(self, records: list[Record]) -> tuple[list[Record], int]:
        left_out = self._dispatcher.left_out
        ticket = self._redelivery.finish(self._require_progress_store(), records, left_out)
        if left_out:
            self._dispatcher.forget_left_out()
        self._leave(records)
        return records, ticket

    def _lease(
        self, records: list[Record], holder: Holder | None, seconds: float, number: int, deliverer: Deliverer
    ) -> list[Delivery]:
        self._dispatcher.end_left_out()
        counts = self._require_progress_store().deliver(records, number)
        deliveries: list[Delivery] = list(
            map(Delivery, repeat(deliverer), records, counts, repeat(holder), repeat(number))
        )
        self._grant(deliveries, seconds)
        return deliveries

    # -- Acknowledging -----------------------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery], holder: Holder | None = None, *, is_decided: bool = False) -> None:
        """Finish deliveries, all in one step; raises StaleReceiptError, and changes nothing, if one is stale.

        Those of a transaction take the transaction's own ``holder``. ``is_decided``: a durable commit record in the log
        holds it already, so nothing waits for a sync.
        """
        if len(deliveries) == 1 and holder is None and not is_decided:
            (delivery,) = deliveries  # which may be a set
            lane = self._finish_one(delivery)
            if lane is not None:
                self._settle(lane)
                return
        if not deliveries:
            return
        deliveries = list(dict.fromkeys(deliveries))  # one that is named twice counts once
        if holder is None:
            self.give_back_due()
        with self._take_lock:
            if self._lifecycle.refusal is not None:
                self._lifecycle.check_alive()
            if is_decided and holder is not None:  # the group may have been moved since: its new life has its own start
                deliveries = [each for each in deliveries if not each.has_expired]
                if not deliveries:
                    return
            ticket, has_moved = self._finish_leased(deliveries, self._leases.check(deliveries, holder))
        if has_moved or self._draining.is_on:  # wakes takers that wait for messages in hand
            self._source.wake()
        if not is_decided:
            self._settle(ticket)
        elif self._space_available.waiting:
            self._space_available.notify()

    def ack_in_hand(self, receipts: Sequence[tuple[int, int]]) -> bool:
        """Finish deliveries by their numbers and offsets, all in one step, durably after :meth:`make_durable`.

        False, and nothing is done, if one is not in hand: :meth:`find` tells why.
        """
        return self._ack_found(self._leases.named, receipts)

    def ack_same(self, deliveries: Sequence[Delivery]) -> bool:
        """As :meth:`ack_in_hand`, for deliveries of this read side; False if one is of another one, or not in hand."""
        if len(deliveries) == 1:
            (delivery,) = deliveries
            return self._finish_one(delivery) is not None
        return self._ack_found(self._leases.same, deliveries)

    def _ack_found(self, find: Callable[[Any], list[Delivery] | None], named: Sequence[Any]) -> bool:
        self.give_back_due()
        with self._take_lock:
            if self._lifecycle.refusal is not None:
                self._lifecycle.check_alive()
            deliveries = find(named)
            if not deliveries:
                return deliveries is not None
            _, has_moved = self._finish_leased(deliveries, sorted([each.record for each in deliveries]))
        if has_moved or self._draining.is_on:
            self._source.wake()
        return True

    def _finish_leased(self, deliveries: Sequence[Delivery], records: list[Record]) -> tuple[int, bool]:
        """Finish deliveries in hand; return the ticket to make that durable, and whether it has made others ready."""
        ticket = self._require_progress_store().finish(records)
        try:
            self._leases.end(deliveries)
            return ticket, self._leave(records)
        except BaseException:
            self._dispatcher.must_read_anew = True
            raise

    def _settle(self, ticket: int) -> None:
        """Make finished messages as durable as the policy requires, and notify producers that space is available."""
        self._require_progress_store().commit(ticket)
        if self._space_available.waiting:
            self._space_available.notify()

    def make_durable(self) -> None:
        """Make all that was finished so far as durable as the policy requires."""
        if self._progress_store is not None:  # it is open if anything was finished
            self._settle(self._progress_store.end)

    # -- Giving back -------------------------------------------------------------------------------------------------

    def nack(
        self,
        deliveries: Sequence[Delivery],
        delay: float | None = None,
        failure: Failure = GIVEN_BACK,
        holder: Holder | None = None,
    ) -> None:
        """Note that deliveries have failed; they wait ``delay`` seconds or the back-off, or are dead letters."""
        failure = self.redacted(failure)  # before the lock: it is the application's function
        self._settle_by(lambda live: self._fail(live, delay, failure), deliveries, holder)

    def reject(self, deliveries: Sequence[Delivery], reason: str) -> None:
        """Make messages dead letters now."""
        if not isinstance(reason, str):
            raise TypeError(f"a reason is a str, not {type(reason).__name__}")
        self._reject(deliveries, Failure("rejected", reason), None, is_counted=True)

    def park(self, deliveries: Sequence[Delivery], failure: Failure, holder: Holder | None = None) -> None:
        """Make messages dead letters without another delivery: their delivery does not count."""
        self._reject(deliveries, failure, holder, is_counted=False)

    def _reject(
        self, deliveries: Sequence[Delivery], failure: Failure, holder: Holder | None, *, is_counted: bool
    ) -> None:
        kept = self.redacted(failure)

        def reject(live: list[Delivery]) -> None:
            self._redelivery.reject(self._require_progress_store(), live, kept, is_counted=is_counted)
            self._follow(lambda: self._end_and_leave(live))

        self._settle_by(reject, deliveries, holder)

    def redacted(self, failure: Failure) -> Failure:
        """Return a failure with texts that may be stored and logged."""
        return self._redelivery.log.redacted(failure)

    def is_last(self, delivery_count: int) -> bool:
        """Whether a message that was handed out so often becomes a dead letter if it fails."""
        return self._redelivery.is_last(delivery_count)

    def release(self, deliveries: Sequence[Delivery], holder: Holder | None = None) -> None:
        """Give messages back as if they had never been handed out."""

        def release(live: list[Delivery]) -> None:
            self._redelivery.release(self._require_progress_store(), live)
            self._follow(lambda: self._end_and_give_back(live))

        self._settle_by(release, deliveries, holder)

    def extend(self, deliveries: Sequence[Delivery], seconds: float | None) -> None:
        """Lease messages for so long from now; None: each for as long as before."""
        self.give_back_due()
        with self._take_lock:
            self._lifecycle.check_alive()
            self._leases.check(deliveries, None)
            for each in deliveries:
                self._grant((each,), each.lease_seconds if seconds is None else seconds)

    def _grant(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """Lease messages; a thread that sleeps until a later lease expires has to check again."""
        before = self._leases.next_due
        self._leases.grant(deliveries, seconds)
        if self._leases.next_due < before:
            self._source.wake()

    def _settle_by(
        self, change: Callable[[list[Delivery]], object], deliveries: Sequence[Delivery], holder: Holder | None
    ) -> None:
        """Settle live deliveries by ``change``; then make it durable, and wake takers.

        No context manager holds the lock: a lock written in Python would stay held if it is interrupted on entry.
        """
        if not deliveries:
            return
        if holder is None:
            self.give_back_due()
        with self._take_lock:
            self._lifecycle.check_alive()
            live = list(dict.fromkeys(deliveries))
            self._leases.check(live, holder)
            change(live)
            ticket = self._require_progress_store().end
        self._source.wake()
        if self._redelivery.log.noted:
            self._say_deaths()
        if not self._progress.dead.keys().isdisjoint([each.offset for each in live]):
            self._settle(ticket)

    def _in_step(self, change: Callable[[], Changed]) -> Changed:
        """Write a change, and apply it in memory; if that is cut short, the log is read again."""
        try:
            return change()
        except BaseException:
            self._dispatcher.must_read_anew = True
            raise

    def _follow(self, step: Callable[[], object]) -> None:
        """Apply in memory what was written to the position file; if that is cut short, the log is read again."""
        is_done = False
        try:
            is_done = follow_up("the log is read again, because a written change failed in memory", step)
        finally:
            self._dispatcher.must_read_anew |= not is_done

    def _fail(
        self, deliveries: Sequence[Delivery], delay: float | None, failure: Failure, *, by_owner: bool = False
    ) -> None:
        store = self._require_progress_store()
        last = set(self._redelivery.fail(store, deliveries, delay, failure, by_owner=by_owner))

        def follow() -> None:
            self._leases.end([each for each in deliveries if self._leases.by_offset.get(each.offset) is each])
            self._dispatcher.give_back([each.record for each in deliveries if each not in last])
            self._dispatcher.deferred.leave([each.record for each in deliveries if each in last])

        self._follow(follow)

    def _end_and_give_back(self, live: Sequence[Delivery]) -> None:
        self._leases.end(live)
        self._dispatcher.give_back([each.record for each in live])

    def _end_and_leave(self, live: Sequence[Delivery]) -> None:
        self._leases.end(live)
        self._dispatcher.deferred.leave([each.record for each in live])

    def _leave(self, records: Sequence[Record]) -> bool:
        """Make the next messages of their order keys ready; a message that cannot be read now is not their fault."""
        try:
            return self._dispatcher.deferred.leave(records)
        except Exception:  # reported again by the next take, which meets the same
            self._dispatcher.must_read_anew = True
            return True

    def give_back_due(self) -> None:
        """Give back what transactions and leases hold whose time is over."""
        if self.deadlines.pending:
            self.deadlines.expire_due()
        if self._leases.next_due <= self._leases.monotonic():
            with self._take_lock:
                if self._progress_store is None or self._lifecycle.refusal is not None:
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
        if due:  # a dead letter may still have a lease, if its reject was interrupted after its entry
            self._fail(due, 0, RAN_OUT, by_owner=True)

    # -- What sessions have in hand ----------------------------------------------------------------------------------

    def take_over(self, living: Callable[[int], bool]) -> None:
        """Lease again what ``living`` sessions had in hand when the owner before ended; before the first take.

        Everything else comes again at once. Raises StorageError if the log cannot be read.

        Notes
        -----
        Memory: the messages that are in hand, as with the owner before; they are read one after another.
        """
        self._living = living
        with self._take_lock:
            progress = self._progress
            known = {number >> SESSION_SHIFT for number in {*progress.numbers.values(), *progress.taken_away}}
            alive = {session for session in known if living(session)}
            for session in known - alive:
                progress.forget_session(session)
            deliveries = []
            for offset, number in sorted(progress.numbers.items()):
                record = self._dispatcher.find(offset) if number >> SESSION_SHIFT in alive else None
                if record is not None:
                    deliveries.append(Delivery(self, record, progress.deliveries[offset], None, number))
                else:
                    progress.numbers.pop(offset, None)
            if deliveries:
                self._grant(deliveries, self._lease_seconds)
                self._dispatcher.must_read_anew = True  # so that they have the turns of their keys first

    def in_hand(self, number: int) -> list[Delivery]:
        """Return the deliveries of a take that are in hand, in offset order."""
        self.give_back_due()
        with self._take_lock:
            self._lifecycle.check_alive()
            found = [each for each in self._leases.by_offset.values() if each.number == number]
        return sorted(found, key=lambda delivery: delivery.offset)

    def all_in_hand(self, receipts: Sequence[tuple[int, int]]) -> list[Delivery] | None:
        """Return the deliveries of numbers and offsets; None if one is not in hand, and :meth:`find` tells why."""
        self.give_back_due()
        with self._take_lock:
            self._lifecycle.check_alive()
            return self._leases.named(receipts)

    def part_with(self, deliveries: Sequence[Delivery]) -> None:
        """Have other objects for deliveries of this read side: their receiver gives them to a transaction."""
        with self._take_lock:
            for each in deliveries:
                if self._leases.same((each,)):
                    copy = Delivery(self, each.record, each.delivery_count, None, each.number)
                    self._leases.grant((copy,), each.lease_seconds)

    def find(self, number: int, offset: int) -> Delivery | Standing:
        """Return the delivery of a message that is in hand under this number, or else what became of it."""
        self.give_back_due()
        with self._take_lock:
            self._lifecycle.check_alive()
            delivery = self._leases.by_offset.get(offset)
            if delivery is not None and delivery.number == number:
                return delivery
            return standing_of(self._progress, number, offset)

    def forget_taken_away(self, number: int, offset: int) -> None:
        """Forget that a message was taken away from a delivery: its session has been told."""
        with self._take_lock:
            self._progress.forget_taken_away(number, offset)

    def end_session(self, session: int) -> None:
        """Have what a dead session has in hand come again at once, and forget what was taken away from it.

        That delivery counts, and nothing has failed: it is as if the owner had died with the message in hand.
        """
        self.keep_only(session, ())

    def keep_only(self, session: int, numbers: Collection[int]) -> None:
        """Have all that a session has in hand come again at once but for these takes, as :meth:`end_session`.

        ``numbers``: of the takes that a living session has in hand or asks about. It will ask about no others, so what
        was taken away from those is forgotten.
        """
        kept = frozenset(numbers)
        with self._take_lock:
            if self._lifecycle.refusal is not None:
                return
            orphans = [each for each in self._leases.of_session(session) if each.number not in kept]
            if orphans:
                with suppress(StorageError):  # then they count as handed out once more, all the same
                    self._redelivery.orphan(self._require_progress_store(), orphans)
                self._follow(lambda: self._end_and_give_back(orphans))
            self._progress.forget_session(session, kept)
        self._source.wake()

    # -- Transactions ------------------------------------------------------------------------------------------------

    def hold(self, deliveries: Sequence[Delivery], holder: Holder) -> None:
        """Give deliveries that a receiver has into the hands of a transaction; raises StaleReceiptError as ack."""
        self.give_back_due()
        with self._take_lock:
            self._lifecycle.check_alive()
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
        """Give back messages of a transaction that the disk refuses to note: they count as delivered once more."""
        with self._take_lock:
            live = [each for each in deliveries if each.holder is holder and not each.is_settled]
            self._follow(lambda: self._end_and_give_back(live))
        self._source.wake()

    def held_by(self, holder: Holder) -> list[Delivery]:
        """Return the deliveries that a transaction has in hand."""
        with self._take_lock:
            return [each for each in self._leases.by_offset.values() if each.holder is holder]

    def check(self, deliveries: Sequence[Delivery], holder: Holder) -> list[Record]:
        """Return the records of deliveries in offset order; raises StaleReceiptError if one is stale."""
        with self._take_lock:
            self._lifecycle.check_alive()
            return self._leases.check(deliveries, holder)

    def vote(self, vote: Vote, deliveries: Sequence[Delivery], holder: Holder) -> None:
        """Hold deliveries durably, restarts included, until :meth:`resolve`."""
        with self._take_lock:
            self._lifecycle.check_alive()
            self._leases.check(deliveries, holder)
            ticket = self._require_progress_store().vote(vote)
            self._follow(lambda: self._leases.end(deliveries))
        if self._draining.is_on:
            self._source.wake()
        self._require_progress_store().sync(ticket)

    def resolve(self, nonce: bytes, *, is_committed: bool, is_durable: bool) -> bool:
        """Finish the messages of a vote, or release them; False if there is no such vote.

        ``is_durable``: return once that is on the disk; else a commit record elsewhere holds it until it is.
        """
        with self._take_lock:
            self._lifecycle.check_alive()
            self._start()
            vote = self._progress.votes.get(nonce)
            if vote is None:
                return False
            ticket = self._in_step(lambda: self._resolve(vote, is_committed=is_committed))
        if is_durable:
            self._require_progress_store().sync(ticket)
        self._source.wake()
        self._space_available.notify()
        return True

    def _resolve(self, vote: Vote, *, is_committed: bool) -> int:
        ticket = self._require_progress_store().resolve(vote, is_committed=is_committed)
        self._dispatcher.must_read_anew |= not is_committed or bool(self._active_keys)
        return ticket

    def reserve(self, taken: TakenRuns, make_vote: MakeVote) -> Vote | None:
        """Hold the next messages, over restarts, until :meth:`resolve`; None if nothing can be taken now.

        Notes
        -----
        Durability: power loss, under any flush policy. Cost: one sync; plain messages are not read except
        for their frame headers.
        """
        self.give_back_due()
        with self._take_lock:
            self._lifecycle.check()
            try:
                self._start()
                if not self.pausing.is_paused:
                    self._dispatcher.take_runs(taken)
                if not taken.count:
                    if self._is_drained():
                        raise self._ending()
                    return None
                vote = make_vote(taken.runs())
                ticket = self._require_progress_store().vote(vote)
                if taken.has_order_keys:  # whose turns were given away as if these were finished
                    self._dispatcher.must_read_anew = True
            except BaseException:
                self._dispatcher.must_read_anew = True
                raise
        self._require_progress_store().sync(ticket)
        return vote

    def purge(self, note: Callable[[int], object]) -> int:
        """Finish all messages that are ready now, paused or not; return how many. Plain ones are not read.

        ``note`` is called with the number of each step, as soon as it counts.
        """
        self.give_back_due()
        with self._take_lock:
            self._lifecycle.check()  # what a closed handle reads from is closed too
            end_offset = self.end  # what is put from here on stays
        purged_count = 0
        while True:
            taken = TakenRuns(_PURGE_COUNT, NUMBER_MAX, end_offset)
            with self._take_lock:
                self._lifecycle.check()
                try:
                    self._start()
                    self._dispatcher.take_runs(taken)
                    if not taken.count:
                        return purged_count
                    ticket = self._require_progress_store().finish_runs(taken.runs())
                    if taken.has_order_keys:  # what waits behind a message that stays is found again
                        self._dispatcher.must_read_anew = True
                except BaseException:
                    self._dispatcher.must_read_anew = True
                    raise
            note(taken.count)
            self._settle(ticket)
            self._source.wake()
            purged_count += taken.count

    def move_on(self, end: int) -> int:
        """Skip what is not finished below ``end``, in steps; return how many. Transactions keep what they hold.

        What a receiver has in hand is skipped too: its verbs raise LeaseExpiredError.
        """
        skipped_count, has_moved = 0, True
        while has_moved:
            with self._take_lock:
                if self._lifecycle.refusal is not None or self._progress_store is None:
                    return skipped_count
                store, before = self._progress_store, self._progress.skipped_count
                in_use = [each.offset for each in self._leases.by_offset.values() if each.holder is not None]
                changes = skipped_changes(self._progress, end, in_use)
                has_moved = bool(changes)
                if has_moved:
                    self._in_step(lambda: store.skip(changes))  # noqa: B023  # done before the next round
                    self._follow(self._end_skipped)
                    skipped_count += self._progress.skipped_count - before
                ticket = store.end
            if has_moved:
                self._settle(ticket)
                self._source.wake()
        return skipped_count

    def _end_skipped(self) -> None:
        self._dispatcher.must_read_anew = True
        in_hand = list(self._leases.by_offset.values())
        self._leases.skip([each for each in in_hand if self._progress.is_finished(each.offset)])

    # -- Dead letters ------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Finish dead letters that were kept long enough: there may be no taker. The group exists."""
        with self._take_lock:
            if self._lifecycle.refusal is None:
                self._in_step(self._start)

    def dead_retry(self, offsets: Collection[int]) -> int:
        """Hand dead letters out again; return how many of these there were."""
        return self._with_progress_store(
            lambda progress_store: self._redelivery.retry(progress_store, offsets, self._dispatcher)
        )

    def dead_discard(self, offsets: Collection[int]) -> int:
        """Finish dead letters; return how many of these there were."""
        return self._with_progress_store(lambda progress_store: self._redelivery.discard(progress_store, offsets))

    def _with_progress_store(self, change: Callable[[ProgressStore], int]) -> int:
        """Change the record of dead letters, as durably as the policy requires."""
        with self._take_lock:
            self._lifecycle.check_alive()
            self._start()
            progress_store = self._require_progress_store()
            count = self._in_step(lambda: change(progress_store))
            ticket = progress_store.end
        self._settle(ticket)
        self._source.wake()
        return count

    # -- Moving ------------------------------------------------------------------------------------------------------

    def seek(self, begin_life: Callable[[], object]) -> int:
        """Have the group begin another life, in which nothing is in hand; return how many more tasks it has.

        Raises TransactionStateError if it has votes, and what ``begin_life`` raises.
        """
        self.give_back_due()
        with self._take_lock:
            self._lifecycle.check_alive()
            if self._progress_store is None:
                self._start()
            store = self._require_progress_store()
            if self._progress.votes:
                raise TransactionStateError(
                    f"{len(self._progress.votes)} prepared transactions or reservations hold messages of this group: "
                    "commit or abort them, then seek",
                    state="prepared",
                )
            depth, task_count = self.depth, self.depth - len(self._leases.by_offset)
            try:
                begin_life()
            finally:  # interrupted behind its end, too
                if store.adopt():
                    self._progress = store.progress
                    self._leases.take_all_away()
                    self._dispatcher.begin(store)
                    self._dispatcher.must_read_anew = True
            task_count = self.depth - task_count
            if self.depth < depth:
                store.free()
        self.wake()
        return task_count

    # -- Pausing -----------------------------------------------------------------------------------------------------

    def pause(self, until_ns: int | None, reason: str | None) -> None:
        """Hand nothing out until then, or until :meth:`resume`; durable."""
        with self._take_lock:
            self._lifecycle.check_alive()
            self.pausing.pause(Pause(until_ns, reason or ""))

    def resume(self) -> None:
        """Hand messages out again; durable."""
        with self._take_lock:
            self._lifecycle.check_alive()
            self.pausing.resume()
        self._source.wake()

    # -- Looking -----------------------------------------------------------------------------------------------------

    @property
    def progress_store(self) -> ProgressStore | None:
        """The progress store of the group, once it has begun."""
        return self._progress_store

    def peek(self, count_max: int) -> list[Message]:
        """Return the messages that would be taken next, and take nothing."""
        self.give_back_due()
        with self._take_lock:
            self._lifecycle.check()
            deliveries = self._progress.deliveries
            records = self._in_step(lambda: self._dispatcher.peek(count_max))
            return [
                Message(payload, offset, timestamp, readable_headers(headers), deliveries.get(offset, 0))
                for offset, timestamp, headers, payload, _, _ in records
            ]

    @property
    def depth(self) -> int:
        """Messages this group has not finished, those in flight included; dead letters are not."""
        return self._progress.live_count(self._source.end()[2])

    @property
    def ready_count(self) -> int:
        """Messages that can be taken now, as far as the log has been read, and those behind that."""
        in_flight_count = self.in_flight_count  # first: a lease that is over may leave a dead letter, out of the depth
        return max(0, self.depth - in_flight_count - self.waiting_count)

    @property
    def in_flight_count(self) -> int:
        """Messages that are handed out and not settled, or held by a prepared transaction."""
        self.give_back_due()
        return len(self._leases.by_offset) + self._progress.held_count

    @property
    def waiting_count(self) -> int:
        """Messages that wait for their time or for their order key, as far as the log has been read."""
        with self._take_lock:
            if self._dispatcher.must_read_anew:
                return 0  # their known state may be outdated: a message of their key is done
            return self._in_step(lambda: self._dispatcher.deferred.waiting_count)

    @property
    def dropped_count(self) -> int:
        """Messages dropped because their time to live was over, since this was opened."""
        return self._redelivery.dropped_count

    @property
    def filtered_count(self) -> int:
        """Messages that the group's filter has left out, since this was opened."""
        return self._redelivery.filtered_count

    @property
    def filter_failed_count(self) -> int:
        """Messages for which the filter could not be evaluated, since this was opened; the group gets them."""
        return 0 if self._filter is None else self._filter.failed_count

    @property
    def end(self) -> int:
        """Offset behind the last message that consumers may see."""
        return self._source.end()[2]

    @property
    def log_end(self) -> LogEnd:
        """The high watermark for consumers."""
        return self._source.end()

    @property
    def is_started(self) -> bool:
        """Whether anything was ever taken by this group."""
        return self._progress_store is not None

    @property
    def progress(self) -> GroupProgress:
        """The group's progress."""
        return self._progress

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while the progress changes."""
        return self._take_lock

    @property
    def leased(self) -> dict[int, Delivery]:
        """A copy of the deliveries that are not settled, by offset."""
        with self._take_lock:
            return dict(self._leases.by_offset)

    @property
    def damage(self) -> list[Damage]:
        """The damage that reading has met."""
        return self._dispatcher.damage

    def oldest(self) -> tuple[int, int] | None:
        """Return timestamp, in nanoseconds, and offset of the oldest unfinished message that is no dead letter."""
        with self._take_lock:
            if self._lifecycle.refusal is not None:
                return None
            in_hand = self._leases.by_offset
            if self._progress.floor in in_hand:
                return in_hand[self._progress.floor].timestamp_ns, self._progress.floor
            candidates = [(delivery.timestamp_ns, delivery.offset) for delivery in list(in_hand.values())[:1]]
            return min([*candidates, *self._in_step(self._dispatcher.oldest)], default=None)

    def rest(self) -> None:
        """Close data files that were not read since the last call; does nothing beside a take."""
        if self._take_lock.acquire(blocking=False):
            try:
                self._dispatcher.rest()
            finally:
                self._take_lock.release()

    # -- Ending ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sync everything noted so far, under any policy."""
        progress_store = self._progress_store
        if progress_store is not None:
            progress_store.flush()

    def shut_down(self, timeout: float | None, *, immediate: bool) -> None:
        """Give takers the messages left, then queue.ShutDown; at once, and with deliveries given back, if immediate.

        ``timeout`` bounds the wait of takers for messages that are not ready yet, in seconds from now; None: without a
        bound.
        """
        with self._take_lock:
            self._draining.begin(timeout)
            if immediate and self._lifecycle.refusal is None:
                self._let_go(none_lives)
                self._lifecycle.drain(self._ending)
        self.wake()

    def ending(self) -> ShutDown:
        """Return the error that counts the messages left if takers ended now."""
        with self._take_lock:
            return self._ending()

    def left(self) -> Left:
        """Return what is left, and when more may be ready: for takers of another process that was shut down."""
        with self._take_lock:
            self._lifecycle.check()
            return Left(self._left_counts(), self._dispatcher.deferred.next_due_ns, self.pausing.is_paused)

    def _is_drained(self, holder: Holder | None = None) -> bool:
        """Whether a taker that has found nothing ends: the queue was shut down, and nothing is worth waiting for.

        What the transaction has in hand for which it takes is not: it cannot give that back while it waits.
        """
        if not self._draining.is_on:
            return False
        in_hand = list(self._leases.by_offset.values())
        count = len(in_hand) if holder is None else sum(each.holder is not holder for each in in_hand)
        return self.pausing.is_paused or self._draining.is_over(count, self._dispatcher.deferred.next_due_ns)

    def _ending(self) -> ShutDown:
        return shut_down_with(self._left_counts())

    def _left_counts(self) -> dict[str, int]:
        """Return how many messages are left, by reason."""
        deferred, in_hand_count, held_count = (
            self._dispatcher.deferred,
            len(self._leases.by_offset),
            self._progress.held_count,
        )
        others = self.depth - in_hand_count - held_count
        left = {"in_hand": in_hand_count, "prepared": held_count}
        if self._lifecycle.refusal is None and self.pausing.is_paused:
            return {**left, "paused": others}
        if self._lifecycle.refusal is None:
            waiting = deferred.waiting_counts()
            left |= waiting
            others -= sum(waiting.values())
        return {"not_taken": others, **left}

    @property
    def deliveries_max(self) -> int:
        """After so many deliveries a failure makes a dead letter; 0: never."""
        return self._redelivery.policy.max_deliveries or 0

    @property
    def out_of_reach_count(self) -> int:
        """Messages that were ended without a delivery since this was opened."""
        gone_count = self._progress.lost_count + self._progress.skipped_count - self._gone_before
        count = self._redelivery.ended_count + gone_count
        if self._lifecycle.refusal is not None:
            return count + self.depth
        if self._is_drained() and (self.pausing.is_paused or not self._dispatcher.may_have_more):
            return count + self.depth - len(self._leases.by_offset)
        return count

    def may_expire(self, offset: int) -> bool:
        """Whether a message can still end by its time to live."""
        with self._take_lock:
            return self._progress.may_end(offset, is_filtered=self._filter is not None)

    def expire(self, found: Sequence[tuple[Record, int]]) -> None:
        """End those of these messages that have expired, each with its time: there may be no taker that comes to them.

        Those in hand stay until they are given back.
        """
        with self._take_lock:
            if self._lifecycle.refusal is not None or self._progress_store is None:
                return
            store, progress, now = self._progress_store, self._progress, self._time_ns()
            ended = [
                (record, EXPIRED)
                for record, expires_ns in found
                if progress.may_end(record[0], is_filtered=self._filter is not None)
                and record[0] not in self._leases.by_offset
                and progress.is_over(record[0], expires_ns, now)
            ]
            if not ended:
                return
            self._dispatcher.must_read_anew = True  # it may have some of them ready
            self._redelivery.end(store, ended)
            ticket = store.end
        self._say_deaths()
        self._settle(ticket)
        self._source.wake()

    def end_expired(self) -> None:
        """End expired messages at the front of the queue: there may be no taker."""
        with self._take_lock:
            if self._lifecycle.refusal is None:
                self._start()
                self._in_step(lambda: self._dispatcher.peek(1))

    def _let_go(self, keep: Callable[[int], bool]) -> None:
        """Give all deliveries back but for those of sessions to keep: none has failed."""
        deliveries = list(self._leases.by_offset.values())
        given_back = [each for each in deliveries if not (each.number and self._is_kept(each.number, keep))]
        if given_back and self._progress_store is not None:
            with suppress(StorageError):  # then they count as handed out once more
                self._redelivery.release(self._progress_store, given_back, by_owner=True)
        self._leases.end(given_back)
        self._leases.by_offset.clear()  # what is kept stays in the hands of its session
        self._dispatcher.must_read_anew = True

    @staticmethod
    def _is_kept(number: int, keep: Callable[[int], bool]) -> bool:
        """Whether a delivery stays in hand of its session."""
        try:
            return keep(number >> SESSION_SHIFT)
        except OSError:  # it cannot be told whether the session lives: the next owner asks again
            return True

    def close(self, keep: Callable[[int], bool] | None = None) -> None:
        """Refuse further takes, give deliveries back, and let the next owner in.

        ``keep``: whether the next owner finds in hand what this session has; None: if it lives, as in ``take_over``.
        """
        with self._take_lock:
            self._lifecycle.close()
            self._let_go(self._living if keep is None else keep)
        self.wake()
        try:
            with self._take_lock:
                if self._progress_store is not None:
                    self._progress_store.close()
        finally:
            self._dispatcher.close()
            self._lock.release()

    def forget(self) -> None:
        """In a forked child: touch nothing that the parent owns."""
        self._take_lock = threading.Lock()
        self._lifecycle.forget()

    def wake(self) -> None:
        """Wake all waiting threads, so that they check again."""
        self._source.wake()
        self._space_available.notify()

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _require_progress_store(self) -> ProgressStore:
        assert self._progress_store is not None, "a delivery is handed out behind the beginning"
        return self._progress_store

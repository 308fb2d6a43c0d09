"""The read side of one consumer group in the process that owns it: waiting for messages and handing them out.

Consumers' threads share the take lock; producers never touch it. A delivery is noted before it is handed out, and a
message counts as finished once its entry stands in the position file (and is synced, where the policy says so).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import repeat
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import ClosedError, Empty, ShutDown, StorageError
from holdfast.messages import Message
from holdfast.persistence.filesystem.locks import SideLock
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.message_headers import readable_headers
from holdfast.persistence.format.report import Damage
from holdfast.persistence.groups.pause_file import Pause
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.log_reader import Record
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.queue.consumer.draining import Draining, shut_down_with
from holdfast.queue.consumer.leases import Leases
from holdfast.queue.consumer.pausing import Pausing
from holdfast.queue.consumer.redelivery import Redelivery
from holdfast.queue.consumer.reserving import Reserving
from holdfast.queue.dispatch.delivery import Delivery, Holder
from holdfast.queue.dispatch.dispatcher import Dispatcher
from holdfast.queue.dispatch.log_cursor import MakeReader
from holdfast.queue.dispatch.progress_store import ProgressStore
from holdfast.queue.dispatch.sources import Source
from holdfast.queue.options.retry_policy import RetryPolicy
from holdfast.queue.threads import poller as watcher
from holdfast.queue.threads.deadlines import Deadlines
from holdfast.queue.threads.fork import forked_error
from holdfast.queue.threads.notifier import Notifier

Handed = TypeVar("Handed")

_SLEEP_SECONDS_MAX = 3600.0
"""Far below what the operating system takes: a message may be delayed for centuries."""

_CLOCK_SECONDS = 1.0
"""A time of the wall clock may come sooner than it seems, where the clock is set forward: so late is that noticed."""

_SOONER_SECONDS = 0.001


class ReadSide(Reserving):
    """Hands messages out to all consumer threads of a process.

    Parameters
    ----------
    source : Source
        How far may be read, and how to wait for more.
    make_reader : callable
        Makes readers.
    progress : GroupProgress
        Where to start.
    open_books : callable
        Opens the group's books at the first take: looking at a queue does not make a group.
    lock : SideLock
        Held until :meth:`close`.
    books : ProgressStore or None
        Those of a group that exists already.
    clock : Clock
        For deadlines and for the times that messages ask for.
    policy : RetryPolicy
        How often a message is handed out, and how long for.
    redelivery : Redelivery
        Decides what becomes of messages that were not acknowledged.
    pausing : Pausing
        Whether nobody is given anything.
    """

    def __init__(
        self,
        source: Source,
        make_reader: MakeReader,
        progress: GroupProgress,
        open_books: Callable[[], ProgressStore],
        lock: SideLock,
        books: ProgressStore | None,
        clock: Clock,
        policy: RetryPolicy,
        redelivery: Redelivery,
        pausing: Pausing,
    ) -> None:
        self._source = source
        self._open_books = open_books
        self._lock = lock
        self._take_lock = threading.Lock()
        self._progress = progress
        self._lost_before = progress.lost_count
        self._lease_seconds = policy.lease_seconds
        self._time_ns = clock.time_ns
        self._leases = Leases(clock.monotonic)
        self._refusal: Callable[[], Exception] | None = None
        self._draining = Draining(clock)
        self.room = Notifier()
        self.deadlines = Deadlines(clock)
        self._redelivery = redelivery
        self.pausing = pausing
        self._backlog = Dispatcher(
            source,
            make_reader,
            progress,
            self._leases.by_offset,
            lock.path.parent,
            policy,
            clock.time_ns,
            lambda ended: redelivery.end(self._require_books(), ended),
        )
        self._books = books
        if books is not None:
            self._backlog.begin(books)

    # -- Taking ------------------------------------------------------------------------------------------------------

    def get(self, timeout: float | None) -> bytes:
        """Take one message and finish it; return its payload."""
        records, ticket = self._take(1, timeout, self._finish)
        self._settle(ticket)
        return records[0][3]

    def get_many(self, count_max: int, timeout: float | None) -> list[bytes]:
        """Take up to ``count_max`` messages and finish them with one entry; return their payloads."""
        records, ticket = self._take(count_max, timeout, self._finish)
        self._settle(ticket)
        return [record[3] for record in records]

    def receive(
        self,
        count_max: int,
        timeout: float | None,
        holder: Holder | None = None,
        lease_seconds: float | None = None,
    ) -> list[Delivery]:
        """Take up to ``count_max`` messages and lease them: to their receiver, or to the transaction that is holder.

        One that was handed out before comes alone.
        """
        seconds = self._lease_seconds if lease_seconds is None else lease_seconds
        lease: Callable[[list[Record]], list[Delivery]] = lambda records: self._lease(records, holder, seconds)  # noqa: E731
        return self._take(count_max, timeout, lease, alone=True, holder=holder)

    def _take(
        self,
        count_max: int,
        timeout: float | None,
        hand_out: Callable[[list[Record]], Handed],
        *,
        alone: bool = False,
        holder: Holder | None = None,
    ) -> Handed:
        """Wait for messages and hand them out under the take lock; where that fails they stay to be taken."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.give_back_due()
            with self._take_lock:
                if self._refusal is not None:
                    raise self._refusal()
                records: list[Record] = []
                try:
                    self._start()
                    if not self.pausing.is_paused:
                        records = self._backlog.take(count_max, alone=alone)
                    if records:
                        return hand_out(records)
                except BaseException:
                    self._take_back(records)
                    raise
                if self._is_drained(holder):
                    raise self._ending()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise Empty
            self.wait_for_more(left, lambda: self._is_drained(holder))

    def wait_for_more(self, left: float | None, is_over: Callable[[], bool] = lambda: False) -> None:
        """Sleep until there may be more to take, or ``is_over()`` at a ``wake``; at most ``left`` seconds."""
        watcher.ensure_watching()
        seconds = self._wait_seconds(left)
        self._source.wait(lambda: is_over() or self._may_go_on(seconds), seconds)

    def _wait_seconds(self, left: float | None) -> float:
        """Return how long to sleep: until the caller's time is over, or until something may be ready by itself."""
        waits = [left, _SLEEP_SECONDS_MAX, self.deadlines.seconds_left(), self._leases.seconds_left()]
        waits.append(self._draining.seconds_left())
        now = self._time_ns()
        due_ns = self.pausing.until_ns if self.pausing.is_paused else self._backlog.aside.next_due_ns
        waits.append(None if due_ns is None else min(max(0, due_ns - now) / 1e9, _CLOCK_SECONDS))
        return min(wait for wait in waits if wait is not None)

    def _may_go_on(self, seconds: float) -> bool:
        """Whether so long is too long to sleep: somebody has put, taken, or given back a message meanwhile."""
        return self._may_have_more() or self._wait_seconds(None) < seconds - _SOONER_SECONDS

    def _may_have_more(self) -> bool:
        if self._refusal is not None or self._is_drained():
            return True
        return not self.pausing.is_paused and self._backlog.may_have_more

    def _start(self) -> None:
        """Open the books at the first take, and go to where they say; again after a take was cut short."""
        if self._books is None:
            with storage_errors("beginning to read", self._lock.path.parent):
                self._books = self._open_books()
            self._progress = self._books.progress
            self._backlog.begin(self._books)
            self._backlog.must_read_anew = True
        if self._backlog.must_read_anew:
            self._backlog.read_anew()
        if self._progress.dead:
            self._redelivery.sweep(self._books, self._progress)

    def _take_back(self, records: Sequence[Record]) -> None:
        """Undo a take that was cut short, wherever it was: the next one reads what is unfinished from the log again."""
        for record in records:
            self._leases.by_offset.pop(record[0], None)
        self._backlog.must_read_anew = True

    def _finish(self, records: list[Record]) -> tuple[list[Record], int]:
        ticket = self._require_books().finish(records)
        self._leave(records)
        return records, ticket

    def _lease(self, records: list[Record], holder: Holder | None, seconds: float) -> list[Delivery]:
        counts = self._require_books().deliver(records)
        if len(records) == 1:  # half of what the line below takes for one
            deliveries = [Delivery(self, records[0], counts[0], holder)]
        else:
            deliveries = list(map(Delivery, repeat(self), records, counts, repeat(holder)))
        self._grant(deliveries, seconds)
        return deliveries

    # -- Pausing -----------------------------------------------------------------------------------------------------

    def pause(self, until_ns: int | None, reason: str | None) -> None:
        """Hand nothing out until then, or until :meth:`resume`; durable."""
        with self._take_lock:
            self._check_alive()
            self.pausing.pause(Pause(until_ns, reason or ""))

    def resume(self) -> None:
        """Hand messages out again; durable."""
        with self._take_lock:
            self._check_alive()
            self.pausing.resume()
        self._source.wake()

    # -- Looking -----------------------------------------------------------------------------------------------------

    @property
    def books(self) -> ProgressStore | None:
        """The books of the group, once it has begun."""
        return self._books

    def peek(self, count_max: int) -> list[Message]:
        """Return the messages that would be taken next, and take nothing."""
        self.give_back_due()
        with self._take_lock:
            if self._refusal is not None:
                raise self._refusal()
            deliveries = self._progress.deliveries
            records = self._in_step(lambda: self._backlog.peek(count_max))
            return [
                Message(payload, offset, timestamp, readable_headers(headers), deliveries.get(offset, 0))
                for offset, timestamp, headers, payload, _, _ in records
            ]

    @property
    def depth(self) -> int:
        """Messages this group has not finished, those in flight included; dead letters are not."""
        return self._progress.live_count(self._source.end[2])

    @property
    def ready_count(self) -> int:
        """Messages that can be taken now, as far as the log has been read, and those behind that."""
        if self._refusal is not None:
            return 0
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
            if self._backlog.must_read_anew:
                return 0  # what is known of them may be over: a message of their key is done
            return self._backlog.aside.waiting_count

    @property
    def dropped_count(self) -> int:
        """Messages dropped because their time to live was over, since this was opened."""
        return self._redelivery.dropped_count

    @property
    def end(self) -> int:
        """Offset behind the last message that consumers may see."""
        return self._source.end[2]

    @property
    def log_end(self) -> LogEnd:
        """Where the log ends for consumers."""
        return self._source.end

    @property
    def is_started(self) -> bool:
        """Whether anything was ever taken by this group."""
        return self._books is not None

    @property
    def progress(self) -> GroupProgress:
        """What the group has done."""
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
        """What reading has met."""
        return self._backlog.damage

    def oldest(self) -> tuple[int, int] | None:
        """Return timestamp, in nanoseconds, and offset of the oldest unfinished message that is no dead letter."""
        with self._take_lock:
            if self._refusal is not None:
                return None
            in_hand = self._leases.by_offset
            if self._progress.floor in in_hand:
                return in_hand[self._progress.floor].timestamp_ns, self._progress.floor
            candidates = [(delivery.timestamp_ns, delivery.offset) for delivery in list(in_hand.values())[:1]]
            return min([*candidates, *self._in_step(self._backlog.oldest)], default=None)

    def rest(self) -> None:
        """Let go of data files that nothing was read from since the last call; does nothing beside a take."""
        if self._take_lock.acquire(blocking=False):
            try:
                self._backlog.rest()
            finally:
                self._take_lock.release()

    # -- Ending ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sync everything noted so far, whatever the policy."""
        books = self._books
        if books is not None:
            books.flush()

    def shut_down(self, timeout: float | None, *, immediate: bool) -> None:
        """Let takers have what is left, then queue.ShutDown; at once, and with deliveries given back, if immediate.

        ``timeout`` is how long takers wait for what is not ready yet, in seconds from now; None: without a bound.
        """
        with self._take_lock:
            self._draining.begin(timeout)
            if immediate and self._refusal is None:
                self._let_go()
                self._refusal = self._ending
        self.wake()

    def ending(self) -> ShutDown:
        """Return the error that says what would be left if takers ended now."""
        with self._take_lock:
            return self._ending()

    def _is_drained(self, holder: Holder | None = None) -> bool:
        """Whether a taker that has found nothing ends: the queue was shut down, and nothing is worth waiting for.

        What the transaction has in hand for which it takes is not: it cannot give that back while it waits.
        """
        if not self._draining.is_on:
            return False
        in_hand = list(self._leases.by_offset.values())
        count = len(in_hand) if holder is None else sum(each.holder is not holder for each in in_hand)
        return self.pausing.is_paused or self._draining.is_over(count, self._backlog.aside.next_due_ns)

    def _ending(self) -> ShutDown:
        aside, in_hand_count, held_count = self._backlog.aside, len(self._leases.by_offset), self._progress.held_count
        others = self.depth - in_hand_count - held_count
        left = {"in_hand": in_hand_count, "prepared": held_count}
        if self._refusal is None and self.pausing.is_paused:
            return shut_down_with({**left, "paused": others})
        if self._refusal is None:
            waiting = aside.waiting_counts()
            left |= waiting
            others -= sum(waiting.values())
        return shut_down_with({"not_taken": others, **left})

    @property
    def out_of_reach_count(self) -> int:
        """Messages that nobody is given here any more and that nobody has taken, since this was opened."""
        count = self._redelivery.ended_count + self._progress.lost_count - self._lost_before
        if self._refusal is not None:
            return count + self.depth
        if self._is_drained() and (self.pausing.is_paused or not self._backlog.may_have_more):
            return count + self.depth - len(self._leases.by_offset)
        return count

    def end_expired(self) -> None:
        """End messages whose time to live is over and that stand in front of all others: perhaps nobody takes."""
        with self._take_lock:
            if self._refusal is None:
                self._start()
                self._in_step(lambda: self._backlog.peek(1))

    def _let_go(self) -> None:
        """Give everything back that is handed out: nobody has failed."""
        deliveries = list(self._leases.by_offset.values())
        if deliveries and self._books is not None:
            with suppress(StorageError):  # then they count as handed out once more
                self._redelivery.release(self._books, deliveries)
        self._leases.end(deliveries)
        self._backlog.must_read_anew = True

    def close(self) -> None:
        """Refuse further takes, give deliveries back, and let the next owner in."""
        with self._take_lock:
            self._refusal = lambda: ClosedError("the queue is closed; open it again")
            self._let_go()
        self.wake()
        try:
            with self._take_lock:
                if self._books is not None:
                    self._books.close()
        finally:
            self._backlog.close()
            self._source.close()
            self._lock.release()

    def forget(self) -> None:
        """In a forked child: close the copies of the handles and touch nothing that the parent owns."""
        self._take_lock = threading.Lock()
        self._refusal = forked_error
        if self._books is not None:
            self._books.forget()
        self._backlog.close()
        self._source.close()

    def wake(self) -> None:
        """Have everybody who waits here look again."""
        self._source.wake()
        self.room.ring()

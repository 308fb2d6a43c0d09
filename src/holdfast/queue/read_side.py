"""The read side of one consumer group in the process that owns it: taking, leasing, acknowledging, giving back.

Consumers' threads share the take lock; producers never touch it. A delivery is noted before it is handed out, and a
message counts as finished once its entry stands in the position file (and is synced, where the policy says so).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import ClosedError, Empty, ShutDown, StaleReceiptError
from holdfast.messages import Message
from holdfast.persistence.data_file_reader import QueueFileReader, Record
from holdfast.persistence.locks import SideLock
from holdfast.persistence.message_headers import decode_headers
from holdfast.persistence.progress import GroupProgress
from holdfast.persistence.report import Damage
from holdfast.persistence.storage import storage_errors
from holdfast.persistence.vote import Vote
from holdfast.queue.backlog import Backlog
from holdfast.queue.books import GroupBooks
from holdfast.queue.deadlines import Deadlines
from holdfast.queue.delivery import Delivery, Holder
from holdfast.queue.doorbell import Doorbell
from holdfast.queue.fork import forked_error
from holdfast.queue.sources import Source

Handed = TypeVar("Handed")


class ReadSide:
    """Hands messages out to all consumer threads of a process.

    Parameters
    ----------
    source : Source
        How far may be read, and how to wait for more.
    make_reader : callable
        Makes the reader, given what it is to call when records are lost.
    progress : GroupProgress
        Where to start.
    open_books : callable
        Opens the group's books at the first take: looking at a queue does not make a group.
    lock : SideLock
        Held until :meth:`close`.
    books : GroupBooks or None
        Those of a group that exists already.
    clock : Clock
        For deadlines.

    Attributes
    ----------
    deadlines : Deadlines
        When messages have to be given back that nobody gives back by himself.
    """

    def __init__(
        self,
        source: Source,
        make_reader: Callable[[Callable[[Damage], None]], QueueFileReader],
        progress: GroupProgress,
        open_books: Callable[[], GroupBooks],
        lock: SideLock,
        books: GroupBooks | None,
        clock: Clock,
    ) -> None:
        self._source = source
        self._open_books = open_books
        self._lock = lock
        self._take_lock = threading.Lock()
        self._progress = progress
        self._in_flight: dict[int, Delivery] = {}
        self._refusal: Callable[[], Exception] | None = None
        self._draining = False
        self.room = Doorbell()
        self.deadlines = Deadlines(clock)
        self._backlog = Backlog(source, make_reader, progress, self._in_flight, lock.path.parent)
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

    def receive(self, count_max: int, timeout: float | None, holder: Holder | None = None) -> list[Delivery]:
        """Take up to ``count_max`` messages and lease them: to their receiver, or to the transaction that is holder."""
        if holder is None:
            return self._take(count_max, timeout, self._lease)
        return self._take(count_max, timeout, lambda records: self._lease(records, holder))

    def _take(self, count_max: int, timeout: float | None, hand_out: Callable[[list[Record]], Handed]) -> Handed:
        """Wait for messages and hand them out under the take lock; where that fails they stay to be taken."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.deadlines.expire_due()
            with self._take_lock:
                if self._refusal is not None:
                    raise self._refusal()
                records: list[Record] = []
                try:
                    self._start()
                    records = self._backlog.take(count_max)
                    if records:
                        return hand_out(records)
                except BaseException:
                    self._take_back(records)
                    raise
                if self._draining:
                    raise ShutDown
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise Empty
            waits = [seconds for seconds in (left, self.deadlines.seconds_left()) if seconds is not None]
            self._source.wait(self._may_have_more, min(*waits, threading.TIMEOUT_MAX) if waits else None)

    def _may_have_more(self) -> bool:
        return self._backlog.may_have_more or self._refusal is not None or self._draining

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

    def _take_back(self, records: Sequence[Record]) -> None:
        """Undo a take that was cut short, wherever it was: the next one reads what is unfinished from the log again."""
        for record in records:
            self._in_flight.pop(record[0], None)
        self._backlog.must_read_anew = True

    def _finish(self, records: list[Record]) -> tuple[list[Record], int]:
        assert self._books is not None
        return records, self._books.finish(records)

    def _lease(self, records: list[Record], holder: Holder | None = None) -> list[Delivery]:
        assert self._books is not None
        counts = self._books.deliver(records)
        deliveries = [Delivery(self, record, count, holder) for record, count in zip(records, counts, strict=True)]
        self._in_flight.update({delivery.offset: delivery for delivery in deliveries})
        return deliveries

    def _settle(self, ticket: int) -> None:
        """Make finished messages as durable as the policy says, and tell producers that there is room."""
        assert self._books is not None
        self._books.commit(ticket)
        if self.room.waiting:
            self.room.ring()

    # -- Settling deliveries -----------------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery], holder: Holder | None = None, *, is_decided: bool = False) -> None:
        """Finish deliveries, all in one step; raises StaleReceiptError, and changes nothing, where one is stale.

        Those of a transaction take the transaction's own ``holder``. ``is_decided``: a decision in the log, which is
        durable, says it already, so nothing waits for a sync.
        """
        if not deliveries:
            return
        deliveries = list(dict.fromkeys(deliveries))  # one that is named twice counts once
        if holder is None:
            self.deadlines.expire_due()  # a transaction whose time is over holds nothing
        with self._take_lock:
            records = self._receipts(deliveries, holder)
            assert self._books is not None
            ticket = self._books.finish(records)
            self._release(deliveries)
        if not is_decided:
            self._settle(ticket)
        elif self.room.waiting:
            self.room.ring()

    def nack(self, deliveries: Sequence[Delivery], holder: Holder | None = None) -> None:
        """Make deliveries ready again; raises StaleReceiptError, and changes nothing, where one is stale."""
        if not deliveries:
            return
        deliveries = list(dict.fromkeys(deliveries))
        if holder is None:
            self.deadlines.expire_due()
        with self._take_lock:
            records = self._receipts(deliveries, holder)
            try:
                self._release(deliveries)
                # An acknowledgement that was interrupted behind its entry stands, and is not taken back here.
                self._backlog.give_back([record for record in records if not self._progress.is_finished(record[0])])
            except BaseException:
                self._backlog.must_read_anew = True
                raise
        self._source.wake()

    def hold(self, deliveries: Sequence[Delivery], holder: Holder) -> None:
        """Give deliveries that a receiver has into the hands of a transaction; raises StaleReceiptError as ack."""
        self.deadlines.expire_due()
        with self._take_lock:
            self._receipts(deliveries, None)
            for delivery in deliveries:
                delivery.holder = holder

    def check(self, deliveries: Sequence[Delivery], holder: Holder) -> list[Record]:
        """Return the records of deliveries in offset order; raises StaleReceiptError where one is stale."""
        with self._take_lock:
            return self._receipts(deliveries, holder)

    def _receipts(self, deliveries: Sequence[Delivery], holder: Holder | None) -> list[Record]:
        """Return the records of deliveries that are live, in offset order."""
        if self._refusal is not None and not isinstance(self._refusal(), ShutDown):
            raise self._refusal()
        for delivery in deliveries:
            if self._in_flight.get(delivery.offset) is not delivery:
                raise StaleReceiptError(
                    f"the delivery of offset {delivery.offset} was acknowledged or given back before; "
                    "take the message again if it is still there",
                    offset=delivery.offset,
                )
            if delivery.holder is not holder:
                raise delivery.holder.refusal() if delivery.holder is not None else _not_held(delivery)
        return sorted(delivery.record for delivery in deliveries)

    def _release(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            del self._in_flight[delivery.offset]
            delivery.is_settled = True

    # -- Voting ------------------------------------------------------------------------------------------------------

    def vote(self, vote: Vote, deliveries: Sequence[Delivery], holder: Holder) -> None:
        """Hold deliveries durably, restarts included, until :meth:`resolve`."""
        with self._take_lock:
            self._receipts(deliveries, holder)
            assert self._books is not None
            ticket = self._books.vote(vote)
            self._release(deliveries)
        self._books.sync(ticket)

    def resolve(self, nonce: bytes, *, is_committed: bool, is_durable: bool) -> bool:
        """Finish what a vote holds, or let go of it; False where there is no such vote.

        ``is_durable``: return once that is on the disk; else a decision elsewhere says it until it is.
        """
        with self._take_lock:
            if self._refusal is not None and not isinstance(self._refusal(), ShutDown):
                raise self._refusal()
            self._start()
            assert self._books is not None
            vote = self._progress.votes.get(nonce)
            if vote is None:
                return False
            ticket = self._books.resolve(vote, is_committed=is_committed)
            if not is_committed:
                self._backlog.must_read_anew = True
        if is_durable:
            self._books.sync(ticket)
        self._source.wake()
        self.room.ring()
        return True

    @property
    def books(self) -> GroupBooks | None:
        """The books of the group, once it has begun."""
        return self._books

    # -- Looking -----------------------------------------------------------------------------------------------------

    def peek(self, count_max: int) -> list[Message]:
        """Return the messages that would be taken next, and take nothing."""
        self.deadlines.expire_due()
        with self._take_lock:
            if self._refusal is not None:
                raise self._refusal()
            deliveries = self._progress.deliveries
            return [
                Message(payload, offset, timestamp, decode_headers(headers), deliveries.get(offset, 0))
                for offset, timestamp, headers, payload, _, _ in self._backlog.peek(count_max)
            ]

    @property
    def depth(self) -> int:
        """Messages this group has not finished, those in flight included."""
        return max(0, self._source.end[2] - self._progress.finished_count)

    @property
    def ready_count(self) -> int:
        """Messages that can be taken now."""
        return max(0, self.depth - self.in_flight_count)

    @property
    def in_flight_count(self) -> int:
        """Messages that are handed out and not settled, or held by a prepared transaction."""
        self.deadlines.expire_due()
        return len(self._in_flight) + self._progress.held_count

    @property
    def end(self) -> int:
        """Offset behind the last message that consumers may see."""
        return self._source.end[2]

    @property
    def is_started(self) -> bool:
        """Whether anything was ever taken by this group."""
        return self._books is not None

    @property
    def progress(self) -> GroupProgress:
        """What the group has done."""
        return self._progress

    @property
    def damage(self) -> list[Damage]:
        """What reading has met."""
        return self._backlog.damage

    def oldest_timestamp_ns(self) -> int | None:
        """Return when the oldest unfinished message was put; None where there is none."""
        with self._take_lock:
            if self._refusal is not None:
                return None
            delivery = self._in_flight.get(self._progress.floor)
            if delivery is not None:
                return delivery.timestamp_ns
            candidates = [record[1] for record in self._backlog.oldest()]
            candidates += [next(iter(self._in_flight.values())).timestamp_ns] if self._in_flight else []
            return min(candidates, default=None)

    # -- Ending ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sync everything noted so far, whatever the policy."""
        books = self._books
        if books is not None:
            books.flush()

    def shut_down(self, *, immediate: bool) -> None:
        """Let takers have what is left, then queue.ShutDown; at once, and with deliveries given back, if immediate."""
        with self._take_lock:
            self._draining = True
            if immediate and self._refusal is None:
                self._refusal = ShutDown
                self._backlog.give_back([delivery.record for delivery in self._in_flight.values()])
                self._release(list(self._in_flight.values()))
        self._wake()

    def close(self) -> None:
        """Refuse further takes, give deliveries back, and let the next owner in."""
        with self._take_lock:
            self._refusal = lambda: ClosedError("the queue is closed; open it again")
        self._wake()
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

    def _wake(self) -> None:
        self._source.wake()
        self.room.ring()


def _not_held(delivery: Delivery) -> StaleReceiptError:
    return StaleReceiptError(
        f"the delivery of offset {delivery.offset} is not one of this transaction", offset=delivery.offset
    )

"""The read side of one consumer group in the process that owns it: taking, leasing, acknowledging, giving back.

Consumers' threads share the take lock; producers never touch it. A delivery is noted before it is handed out, and a
message counts as finished once its entry stands in the position file (and is synced, where the policy says so).
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from holdfast.errors import ClosedError, Empty, ShutDown, StaleReceiptError
from holdfast.messages import Message
from holdfast.persistence.data_file_reader import QueueFileReader, Record
from holdfast.persistence.locks import SideLock
from holdfast.persistence.message_headers import decode_headers
from holdfast.persistence.progress import GroupProgress
from holdfast.persistence.report import Damage
from holdfast.persistence.storage import storage_error, storage_errors
from holdfast.queue.books import GroupBooks
from holdfast.queue.delivery import Delivery
from holdfast.queue.doorbell import Doorbell
from holdfast.queue.fork import forked_error
from holdfast.queue.sources import Source

PREFETCH_COUNT = 64
"""Records decoded ahead of single takes; their bytes are bounded by one chunk of the reader."""

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
    """

    def __init__(
        self,
        source: Source,
        make_reader: Callable[[Callable[[Damage], None]], QueueFileReader],
        progress: GroupProgress,
        open_books: Callable[[], GroupBooks],
        lock: SideLock,
        books: GroupBooks | None = None,
    ) -> None:
        self._source = source
        self._reader = make_reader(self._on_loss)
        self._open_books = open_books
        self._books = books
        self._lock = lock
        self._take_lock = threading.Lock()
        self._progress = progress
        self._ready: deque[Record] = deque()
        self._returned: list[Record] = []
        self._in_flight: dict[int, Delivery] = {}
        self._losses: list[Damage] = []
        self._must_read_anew = False
        self._read_before = 0
        self._refusal: Callable[[], Exception] | None = None
        self._draining = False
        self.damage: list[Damage] = []
        self.room = Doorbell()
        self._reader.recheck = books is None
        self._reader.seek(progress.floor, progress.hint)

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

    def receive(self, count_max: int, timeout: float | None) -> list[Delivery]:
        """Take up to ``count_max`` messages and lease them."""
        return self._take(count_max, timeout, self._lease)

    def _take(self, count_max: int, timeout: float | None, hand_out: Callable[[list[Record]], Handed]) -> Handed:
        """Wait for messages and hand them out under the take lock; where that fails they stay to be taken."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._take_lock:
                if self._refusal is not None:
                    raise self._refusal()
                records: list[Record] = []
                try:
                    self._start()
                    records = self._next_records(count_max)
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
            self._source.wait(self._may_have_more, left)

    def _may_have_more(self) -> bool:
        return (
            bool(self._ready or self._returned)
            or self._refusal is not None
            or self._draining
            or self._source.end[2] > self._reader.next_offset
        )

    def _start(self) -> None:
        """Open the books at the first take, and go to where they say; again after a take was cut short."""
        if self._books is None:
            with storage_errors("beginning to read", self._lock.path.parent):
                self._books = self._open_books()
            self._progress = self._books.progress
            self._reader.recheck = False  # from here on the group pins what it has not finished
            self._must_read_anew = True
        if self._must_read_anew:
            self._read_anew()

    def _next_records(self, count_max: int) -> list[Record]:
        """Return the next messages: those given back first, then in offset order."""
        if self._returned:
            return [heapq.heappop(self._returned) for _ in range(min(count_max, len(self._returned)))]
        ready = self._ready
        if not ready:
            records = self._read(max(count_max, PREFETCH_COUNT) if count_max < PREFETCH_COUNT else count_max)
            if len(records) <= count_max:
                return records
            ready.extend(records)
        if count_max == 1:
            return [ready.popleft()]
        return [ready.popleft() for _ in range(min(count_max, len(ready)))]

    def _read(self, count_max: int) -> list[Record]:
        """Read on from the log, past what is finished already."""
        reader, progress = self._reader, self._progress
        end = self._source.end
        try:
            while reader.next_offset < end[2]:
                before = reader.next_offset
                records = reader.read(count_max, end)
                if self._books is not None:
                    self._note_losses(self._books)
                    self._books.pass_files(reader.name)
                if records and records[0][0] < max(progress.finished_end, self._read_before):
                    taken = self._in_flight
                    records = [item for item in records if item[0] not in taken and not progress.is_finished(item[0])]
                if records or reader.next_offset == before:
                    return records
        except BaseException as error:
            self._must_read_anew = True
            if isinstance(error, OSError):
                raise storage_error(error, "reading", self._lock.path.parent) from error
            raise
        return []

    def _take_back(self, records: Sequence[Record]) -> None:
        """Undo a take that was cut short, wherever it was: the next one reads what is unfinished from the log again."""
        for record in records:
            self._in_flight.pop(record[0], None)
        self._must_read_anew = True

    def _read_anew(self) -> None:
        self._read_before = max(self._read_before, self._reader.next_offset)
        self._ready.clear()
        self._returned.clear()
        with storage_errors("reading", self._lock.path.parent):
            self._reader.seek(self._progress.floor, self._progress.hint)
        self._must_read_anew = False

    def _give_back(self, records: Sequence[Record]) -> None:
        for record in records:
            heapq.heappush(self._returned, record)

    def _finish(self, records: list[Record]) -> tuple[list[Record], int]:
        assert self._books is not None
        return records, self._books.finish(records)

    def _lease(self, records: list[Record]) -> list[Delivery]:
        assert self._books is not None
        counts = self._books.deliver(records)
        deliveries = [Delivery(self, record, count) for record, count in zip(records, counts, strict=True)]
        self._in_flight.update({delivery.offset: delivery for delivery in deliveries})
        return deliveries

    def _settle(self, ticket: int) -> None:
        """Make finished messages as durable as the policy says, and tell producers that there is room."""
        assert self._books is not None
        self._books.commit(ticket)
        if self.room.waiting:
            self.room.ring()

    # -- Settling deliveries -----------------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Finish deliveries, all in one step; raises StaleReceiptError, and changes nothing, where one is stale."""
        if not deliveries:
            return
        deliveries = list(dict.fromkeys(deliveries))  # one that is named twice counts once
        with self._take_lock:
            records = self._receipts(deliveries)
            assert self._books is not None
            ticket = self._books.finish(records)
            self._release(deliveries)
        self._settle(ticket)

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Make deliveries ready again; raises StaleReceiptError, and changes nothing, where one is stale."""
        if not deliveries:
            return
        deliveries = list(dict.fromkeys(deliveries))
        with self._take_lock:
            records = self._receipts(deliveries)
            try:
                self._release(deliveries)
                # An acknowledgement that was interrupted behind its entry stands, and is not taken back here.
                self._give_back([record for record in records if not self._progress.is_finished(record[0])])
            except BaseException:
                self._must_read_anew = True
                raise
        self._source.wake()

    def _receipts(self, deliveries: Sequence[Delivery]) -> list[Record]:
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
        return sorted(delivery.record for delivery in deliveries)

    def _release(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            del self._in_flight[delivery.offset]
            delivery.is_settled = True

    # -- Looking -----------------------------------------------------------------------------------------------------

    def peek(self, count_max: int) -> list[Message]:
        """Return the messages that would be taken next, and take nothing."""
        with self._take_lock:
            if self._refusal is not None:
                raise self._refusal()
            if self._must_read_anew:
                self._read_anew()
            records = sorted(self._returned)[:count_max]
            while len(records) + len(self._ready) < count_max and (more := self._read(count_max)):
                self._ready.extend(more)
            records += [record for record, _ in zip(self._ready, range(count_max - len(records)), strict=False)]
            deliveries = self._progress.deliveries
            return [
                Message(payload, offset, timestamp, decode_headers(headers), deliveries.get(offset, 0))
                for offset, timestamp, headers, payload, _, _ in records
            ]

    @property
    def depth(self) -> int:
        """Messages this group has not finished, those in flight included."""
        return max(0, self._source.end[2] - self._progress.finished_count)

    @property
    def ready_count(self) -> int:
        """Messages that can be taken now."""
        return max(0, self.depth - len(self._in_flight))

    @property
    def in_flight_count(self) -> int:
        """Messages that are handed out and not settled."""
        return len(self._in_flight)

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

    def oldest_timestamp_ns(self) -> int | None:
        """Return when the oldest unfinished message was put; None where there is none."""
        with self._take_lock:
            if self._refusal is not None:
                return None
            delivery = self._in_flight.get(self._progress.floor)
            if delivery is not None:
                return delivery.timestamp_ns
            if not self._ready:
                self._ready.extend(self._read(PREFETCH_COUNT))
            candidates = [record[1] for record in (*self._returned[:1], *list(self._ready)[:1])]
            candidates += [next(iter(self._in_flight.values())).timestamp_ns] if self._in_flight else []
            return min(candidates, default=None)

    # -- Damage ------------------------------------------------------------------------------------------------------

    def _on_loss(self, damage: Damage) -> None:
        self._losses.append(damage)

    def _note_losses(self, books: GroupBooks) -> None:
        """Give up what is damaged, durably, so that it is reported once; what was finished before is nobody's loss."""
        while self._losses:
            damage = self._losses[0]
            missed = books.progress.unfinished_runs(damage.offsets.start, damage.offsets.stop)
            books.lose(damage.offsets)
            self.damage += [replace(damage, offsets=run) for run in missed] if damage.offsets else [damage]
            self._losses.pop(0)

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
                self._give_back([delivery.record for delivery in self._in_flight.values()])
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
            self._reader.close()
            self._source.close()
            self._lock.release()

    def forget(self) -> None:
        """In a forked child: close the copies of the handles and touch nothing that the parent owns."""
        self._take_lock = threading.Lock()
        self._refusal = forked_error
        if self._books is not None:
            self._books.forget()
        self._reader.close()
        self._source.close()

    def _wake(self) -> None:
        self._source.wake()
        self.room.ring()

"""What the process does that opens both queues first, ``work`` and ``results``: puts, takes, transactions of all kinds.

Each job is a thread. What one of them raises ends the run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

from holdfast import Backoff, Delivery, Empty, FlushPolicy, PersistentQueue, Put, ShutDown, transaction
from holdfast.queue.options.queue_options import Mode
from proof.soak.ledger import Lane, Ledger, Table, name_of, payload_of
from support.processes.threads import Threads

DATA_FILE_BYTES = 2**20
STREAM_BYTES = 300 * 2**10  # more than a quarter of a data file: its batch becomes a data file as it is
BATCH_COUNT = 20
TAKE_COUNT = 50
PREPARED_COUNT = 3
PREPARES_PER_SECOND = 15  # 1,024 of them are remembered: that many have come before the first fifth is over
MOVES_PER_SECOND = 5
PINNED_COUNT = 6
DEDUP_SECONDS = 30.0
DEDUP_MAX = 10_000
WAIT_SECONDS = 0.2
SHARES = {Lane.SINGLE: 0.4, Lane.BATCH: 0.55, Lane.ONCE: 0.05}
"""Of the rate; the other lanes are slow ones."""


def open_work(path: Path, *, group: str, mode: Mode = "shared", **bound: int) -> PersistentQueue:
    """Open the queue that most of the load is about: synced in the background, small files, bounded."""
    return PersistentQueue(
        path / "work",
        mode=mode,
        group=group,
        flush=FlushPolicy.every(),
        data_file_bytes=DATA_FILE_BYTES,
        dedup_window=DEDUP_SECONDS,
        dedup_max=DEDUP_MAX,
        max_deliveries=None,
        backoff=Backoff(base=0.1, cap=1),
        lease_seconds=60,
        **bound,  # type: ignore[arg-type]
    )


def open_results(path: Path) -> PersistentQueue:
    """Open the queue that transactions move messages to: every commit is synced."""
    return PersistentQueue(path / "results", mode="shared", data_file_bytes=DATA_FILE_BYTES // 8)


class Pace:
    """Lets a thread do so much in a second, and end when it should.

    Parameters
    ----------
    per_second : float
        How many.
    is_over : Event
        Set when it should end.
    """

    def __init__(self, per_second: float, is_over: threading.Event) -> None:
        self._seconds_each = 1 / per_second
        self._is_over = is_over
        self._due = time.monotonic()

    def turns(self, step: int = 1) -> Iterator[int]:
        """Yield the first number of each ``step``, when its time has come."""
        for number in count(0, step):
            now = time.monotonic()
            self._due = max(self._due, now - 1) + step * self._seconds_each  # who was late does not catch up for ever
            if self._is_over.wait(max(0.0, self._due - now)):
                return
            yield number


class Pins:
    """Holds some messages for a while each, so that their files stay while those around them go.

    Parameters
    ----------
    queue, table, ledger
        The group that they are taken from.
    seconds : float
        How long.
    """

    def __init__(self, queue: PersistentQueue, table: Table, ledger: Ledger, seconds: float) -> None:
        self._queue = queue
        self._table = table
        self._ledger = ledger
        self._seconds = seconds
        self._held: deque[tuple[float, Delivery]] = deque()
        self._next = 0.0

    def turn(self) -> None:
        """Let go of those whose time is over, half of them as failed, and take another one where it is time."""
        now = time.monotonic()
        while self._held and self._held[0][0] <= now:
            self._end(self._held.popleft()[1])
        if now >= self._next and len(self._held) < PINNED_COUNT:
            self._next = now + self._seconds / PINNED_COUNT
            with suppress(Empty):
                delivery = self._queue.receive(timeout=0)
                self._ledger.check_is_open(self._table, name_of(delivery.payload))
                self._held.append((now + self._seconds, delivery))

    def end(self) -> None:
        """Finish those that are left."""
        while self._held:
            self._finish(self._held.popleft()[1])

    def _end(self, delivery: Delivery) -> None:
        if delivery.delivery_count == 1 and delivery.offset % 2:
            delivery.nack(delay=self._seconds)
        else:
            self._finish(delivery)

    def _finish(self, delivery: Delivery) -> None:
        delivery.ack()
        self._ledger.finish(self._table, [name_of(delivery.payload)])


class Load:
    """The jobs of the owner.

    Parameters
    ----------
    path : Path
        Where the queues are.
    ledger : Ledger
        What is noted of each message.
    rate : float, messages/s
        How many to put, the slow lanes aside.
    maxsize : int
        Bound of the queue.
    pin_seconds : float
        How long messages are held on to.
    """

    def __init__(self, path: Path, ledger: Ledger, rate: float, maxsize: int, pin_seconds: float) -> None:
        self._path = path
        self._ledger = ledger
        self._rate = rate
        self.work = open_work(path, group="default", maxsize=maxsize)
        self.results = open_results(path)
        self._pin_seconds = pin_seconds
        self._no_more_puts = threading.Event()
        self._is_over = threading.Event()
        self._retrying = threading.Lock()
        self._producers = Threads()
        self._consumers = Threads()

    @property
    def failures(self) -> list[BaseException]:
        """What jobs have raised."""
        return self._producers.failures + self._consumers.failures

    def start(self) -> None:
        """Begin all jobs."""
        for job in (self.put_singles, self.put_batches, self.put_once, self.prepare, self.move, self.stream):
            self._producers.start(job)
        for job in (self.take_batches, self.take_leases, self.pin, self.tend, self.take_results):
            self._consumers.start(job)

    def stop_putting(self) -> None:
        """End the jobs that put, and raise what they raised."""
        self._no_more_puts.set()
        self._producers.join()

    def drain(self, seconds: float) -> None:
        """Return once everything is finished, with all jobs at their end; raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while self.is_busy() and not self.failures:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not drained in {seconds} s: {self.work.stats()}, {self.results.stats()}")
            self._is_over.wait(WAIT_SECONDS / 4)
        self._is_over.set()
        self._consumers.join()

    def is_busy(self) -> bool:
        """Whether something is not finished yet."""
        with self._retrying:  # else a letter may come back between the two figures, and be in neither
            work, results = self.work.stats(), self.results.stats()
        return bool(work.depth or work.dead or results.depth)

    def close(self) -> None:
        """Let go of the queues; jobs that are left end with that."""
        self._no_more_puts.set()
        self._is_over.set()
        self.results.close()
        self.work.close()

    def _putting(self, per_second: float, step: int = 1) -> Iterator[int]:
        return Pace(per_second, self._no_more_puts).turns(step)

    def _noted(self, lane: Lane, first: int, messages: int, put: Callable[[], object]) -> None:
        """Put, and note it before and after."""
        self._ledger.begin(lane, first, messages)
        put()
        self._ledger.acknowledge(lane, first, messages)

    # -- Putting -----------------------------------------------------------------------------------------------------

    def put_singles(self) -> None:
        """One at a time; some with a priority, a delay or an order key."""
        for number in self._putting(self._rate * SHARES[Lane.SINGLE]):
            each = single(number)
            put = partial(
                self.work.put, each.payload, delay=each.delay, priority=each.priority, order_key=each.order_key
            )
            self._noted(Lane.SINGLE, number, 1, put)

    def put_batches(self) -> None:
        """Many at a time."""
        for first in self._putting(self._rate * SHARES[Lane.BATCH], BATCH_COUNT):
            batch = [payload_of(Lane.BATCH, number) for number in range(first, first + BATCH_COUNT)]
            self._noted(Lane.BATCH, first, BATCH_COUNT, partial(self.work.put_many, batch))

    def put_once(self) -> None:
        """With an id, and every other one twice: the second put writes nothing, if it comes in time."""
        for number in self._putting(self._rate * SHARES[Lane.ONCE]):
            payload, begun = payload_of(Lane.ONCE, number), time.monotonic()
            self._ledger.begin(Lane.ONCE, number)
            offset = self.work.put(payload, dedup_id=f"once-{number}")
            if number % 2 and time.monotonic() - begun < DEDUP_SECONDS / 4:
                again = self.work.put(payload, dedup_id=f"once-{number}")
                assert again == offset, f"the second put of one id gave {again}, the first one {offset}"
            self._ledger.acknowledge(Lane.ONCE, number)

    def prepare(self) -> None:
        """Prepare a transaction that takes one message and puts three; decide it, one in four against it."""
        for turn in self._putting(PREPARES_PER_SECOND):
            first = turn * PREPARED_COUNT
            tx = self.work.begin()
            try:
                taken = self._received(tx.receive(timeout=WAIT_SECONDS))
            except Empty:
                tx.abort()
                continue
            self._ledger.begin(Lane.PREPARED, first, PREPARED_COUNT)
            for number in range(first, first + PREPARED_COUNT):
                tx.put(payload_of(Lane.PREPARED, number))
            tx.ack(taken)
            name = tx.prepare()
            if turn % 4:
                self.work.commit_prepared(name)
                self._ledger.acknowledge(Lane.PREPARED, first, PREPARED_COUNT)
                self._ledger.finish(Table.FAST, [name_of(taken.payload)])
            else:
                self.work.abort_prepared(name)
                self._ledger.take_back(Lane.PREPARED, first, PREPARED_COUNT)

    def move(self) -> None:
        """Take a message from one queue and put one into the other, in one transaction; abort one in four."""
        for number in self._putting(MOVES_PER_SECOND):
            tx = transaction(self.work, self.results)
            try:
                taken = self._received(tx.receive(self.work, timeout=WAIT_SECONDS))
            except Empty:
                tx.abort()
                continue
            self._ledger.begin(Lane.RESULT, number)
            tx.put(self.results, payload_of(Lane.RESULT, number))
            tx.ack(self.work, taken)
            if number % 4:
                tx.commit()
                self._ledger.acknowledge(Lane.RESULT, number)
                self._ledger.finish(Table.FAST, [name_of(taken.payload)])
            else:
                tx.abort()
                self._ledger.take_back(Lane.RESULT, number)

    def stream(self) -> None:
        """Put a large message that comes in pieces: its batch file becomes a data file."""
        for number in self._putting(0.5):
            payload = payload_of(Lane.STREAM, number, STREAM_BYTES)
            self._ledger.begin(Lane.STREAM, number)
            with self.work.transaction() as tx:
                tx.put_stream(payload[at : at + 2**16] for at in range(0, len(payload), 2**16))
            self._ledger.acknowledge(Lane.STREAM, number)

    # -- Taking ------------------------------------------------------------------------------------------------------

    def take_batches(self) -> None:
        """Take and acknowledge many in one step."""
        while not self._is_over.is_set():
            with suppress(Empty, ShutDown):
                payloads = self.work.get_many(TAKE_COUNT, timeout=WAIT_SECONDS)
                self._ledger.finish(Table.FAST, map(name_of, payloads))

    def take_leases(self) -> None:
        """Take many, finish most of them, and give some back in each of the ways there are."""
        while not self._is_over.is_set():
            with suppress(Empty):
                batch = self.work.receive_many(TAKE_COUNT, timeout=WAIT_SECONDS)
                for delivery in batch:
                    self._received(delivery)
                self._settle_some(batch)
                left = [delivery for delivery in batch if not delivery.is_settled]
                batch.ack(left)
                self._ledger.finish(Table.FAST, [name_of(delivery.payload) for delivery in left])

    def _settle_some(self, batch: Iterable[Delivery]) -> None:
        """Give back those of some offsets, where it was their first delivery."""
        for delivery in batch:
            if delivery.delivery_count == 1:
                match delivery.offset % 40:
                    case 0:
                        delivery.nack()
                    case 1:
                        delivery.release()
                    case 2 if delivery.offset % 400 == 2:
                        delivery.reject("every four hundredth")

    def pin(self) -> None:
        """Hold on to a few messages for seconds each."""
        pins = Pins(self.work, Table.FAST, self._ledger, self._pin_seconds)
        while not self._no_more_puts.wait(WAIT_SECONDS / 4):
            pins.turn()
        pins.end()

    def tend(self) -> None:
        """Retry half of the dead letters and discard the others; look at the queue from outside."""
        while not self._is_over.wait(WAIT_SECONDS * 2):
            letters = self.work.dead.list()
            with self._retrying:
                self.work.dead.retry([letter for letter in letters if letter.offset % 800 == 2])
            discarded = [letter for letter in letters if letter.offset % 800 != 2]
            self.work.dead.discard(discarded)
            self._ledger.finish(Table.FAST, [name_of(letter.payload) for letter in discarded])
            with open_work(self._path, mode="read_only", group="slow") as looking:
                seen = [message.payload for message in looking.peek(3)]
                seen += [message.payload for message in looking.browse("delayed", limit=3)]
            for payload in seen:
                name_of(payload)

    def take_results(self) -> None:
        """Drain the other queue."""
        while not self._is_over.is_set():
            with suppress(Empty):
                payload = self.results.get(timeout=WAIT_SECONDS)
                self._ledger.finish(Table.RESULTS, [name_of(payload)])

    def _received(self, delivery: Delivery) -> Delivery:
        self._ledger.check_is_open(Table.FAST, name_of(delivery.payload))
        return delivery


def single(number: int) -> Put:
    """Return message ``number`` of those that are put one at a time, and what it asks for."""
    payload = payload_of(Lane.SINGLE, number)
    match number % 50:
        case 1:
            return Put(payload, delay=0.5)
        case 2:
            return Put(payload, priority=1 + number % 3)
        case 3:
            return Put(payload, order_key=f"key {number % 7}")
        case _:
            return Put(payload)

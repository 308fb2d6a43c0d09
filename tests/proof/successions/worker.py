"""A process that puts into shared queues, takes from them and commits transactions until it is killed, or told to end.

It uses what a program has: single messages, batches and ``dedup_id``, ``get`` and ``receive``, all ways to give back,
transactions that take, put and acknowledge, in one queue or over two, handles that are closed and opened again. Some
processes may not own; some are forked from one that has opened the queues, and keeps them open; some only own.
"""

from __future__ import annotations

import faulthandler
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import holdfast
from holdfast import Delivery, DeliveryBatch, Empty, HoldfastError, PersistentQueue
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.standing_owner import StandingOwner
from holdfast.queue.transactions.transaction_state import State
from proof.successions.journal import Journal, key_of, keys_of, payload_of

BATCH_MAX = 20
PAYLOAD_BYTES_MAX = 300
TAKE_SECONDS_MAX = 0.1
HOLD_SECONDS_MAX = 0.05
LONG_HOLD_SHARE = 0.05
REOPEN_SHARE = 0.003
IDS_PER_SECOND = 20
IDS_BACK = 4
FILE_BYTES = 64 * 2**10
FORKED_SECONDS = 0.2
"""How often a parent looks whether its child lives."""


@dataclass(frozen=True)
class Job:
    """What one worker is to do.

    Attributes
    ----------
    place : Path
        Has the queues, the journals and the stacks.
    number : int
        Of this worker; its keys follow from it.
    seed : int
        Decides what it chooses.
    queues : int
        How many there are.
    threads : int
        How many of its own.
    can_own : bool
        Whether it may own.
    lease_seconds : float
        Of the group.
    backlog_max : int
        Above so many messages it takes more than it puts.
    is_draining : bool
        Whether it only takes, until nothing is left.
    is_forked : bool
        Whether a child does its work, with copies of the handles that it keeps open: as ``gunicorn --preload`` does.
    serves : int or None
        The queue that it only owns, as ``holdfast serve`` does.
    """

    place: Path
    number: int
    seed: int
    queues: int = 1
    threads: int = 1
    can_own: bool = True
    lease_seconds: float = 2.0
    backlog_max: int = 300
    is_draining: bool = False
    is_forked: bool = False
    serves: int | None = None

    def __call__(self) -> None:
        """Work until told to end."""
        os.setpgid(0, 0)  # a child that is forked from here is killed and stopped with it
        ends = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ends.set())
        stacks = stacks_of(self.place, self.number).open("w")
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        if self.serves is not None:
            owner = StandingOwner(OsStorage(), SystemClock(), queue_of(self.place, self.serves))
            ends.wait()
            owner.close()
            return
        handles = Handles(self, Journal(self._journal("main")))
        if self.is_forked and not is_child(ends):
            handles.close()
            return
        hands = [Hand(self, handles, ends, thread) for thread in range(self.threads)]
        threads = [threading.Thread(target=each.work) for each in hands]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        handles.close()

    def _journal(self, thread: object) -> Path:
        return journals_of(self.place) / f"{self.number}.{thread}"


def is_child(ends: threading.Event) -> bool:
    """Fork; return at once in the child, and in the parent once that has ended, which it has to do well."""
    pid = os.fork()
    if not pid:
        return True
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if ends.wait(FORKED_SECONDS):
            os.kill(pid, signal.SIGTERM)
            _, status = os.waitpid(pid, 0)
            assert status == 0, f"a forked child has ended with {status}"
            return False
    raise AssertionError("a forked child has ended by itself")


def journals_of(place: Path) -> Path:
    """Return the directory of the journals."""
    return place / "journals"


def stacks_of(place: Path, worker: int) -> Path:
    """Return the file into which a worker writes the stacks of its threads after SIGUSR1."""
    return place / f"stacks.{worker}"


def queue_of(place: Path, number: int) -> Path:
    """Return the directory of a queue."""
    return place / f"queue-{number}"


class Handles:
    """The open queues of a process. Threads share them."""

    def __init__(self, job: Job, journal: Journal) -> None:
        self._job = job
        self._journal = journal
        self._open = [self._opened(number) for number in range(job.queues)]

    def __getitem__(self, number: int) -> PersistentQueue:
        return self._open[number]

    def _opened(self, number: int) -> PersistentQueue:
        queues: list[PersistentQueue] = []

        def do() -> None:
            queues.append(
                PersistentQueue(
                    queue_of(self._job.place, number),
                    mode="shared",
                    can_own=self._job.can_own,
                    data_file_bytes=FILE_BYTES,
                    lease_seconds=self._job.lease_seconds,
                    max_deliveries=None,
                    backoff=[],
                    dedup_window=3600,
                )
            )

        self._journal.call("open", number, do)
        return queues[0]

    def reopen(self, number: int) -> None:
        """Close a queue and open it again; the only thread of its process asks for that, with nothing in hand."""
        self._journal.call("close", number, self._open[number].close)
        self._open[number] = self._opened(number)

    def close(self) -> None:
        """Close all."""
        for number, queue in enumerate(self._open):
            self._journal.call("close", number, queue.close)


@dataclass
class Held:
    """Deliveries of one take that wait to be settled."""

    queue: int
    take: int
    deliveries: list[Delivery]
    due: float
    batch: DeliveryBatch | None = None

    def settle(self, verb: str) -> None:
        """Settle them, all in one step."""
        if self.batch is None:
            getattr(self.deliveries[0], verb)()
        else:
            getattr(self.batch, verb)(items=self.deliveries)


class Hand:
    """One thread of a worker."""

    def __init__(self, job: Job, handles: Handles, ends: threading.Event, thread: int) -> None:
        self._job = job
        self._handles = handles
        self._ends = ends
        self._choice = random.Random(job.seed * 64 + thread)
        self._journal = Journal(job._journal(thread))
        self._prefix = f"{job.number}.{thread}."
        self._count = 0
        self._held: list[Held] = []
        self._takes_more = [False] * job.queues

    def work(self) -> None:
        """Make calls until it is told to end; then give back what it has in hand."""
        if self._job.is_draining:
            for queue in range(self._job.queues):
                self._drain(queue)
            return
        calls = 0
        while not self._ends.is_set():
            calls += 1
            queue = self._choice.randrange(self._job.queues)
            if calls % 20 == 1:
                self._takes_more[queue] = self._handles[queue].qsize() > self._job.backlog_max
            self._settle_due(time.monotonic())
            if self._job.threads == 1 and self._choice.random() < REOPEN_SHARE:
                self._settle_due(math.inf)
                self._handles.reopen(queue)
            self._choose(queue)()
        self._settle_due(math.inf)

    def _drain(self, queue: int) -> None:
        """Take until nothing comes for longer than a lease."""
        while True:
            try:
                self._get(queue, BATCH_MAX, 2 * self._job.lease_seconds)
            except Empty:
                return

    def _choose(self, queue: int) -> Callable[[], None]:
        verbs: dict[Callable[[int], None], tuple[int, int]] = {
            self._put: (20, 2),
            self._put_many: (10, 1),
            self._put_once: (10, 3),
            self._get_one: (4, 6),
            self._get_some: (1, 3),
            self._receive: (20, 30),
            self._receive_many: (10, 20),
            self._transaction: (10, 15),
            self._transaction_over_two: (10, 15),
            self._flush: (1, 1),
        }
        weights = [weight[self._takes_more[queue]] for weight in verbs.values()]
        verb = self._choice.choices(list(verbs), weights)[0]

        def do() -> None:
            try:
                verb(queue)
            except (Empty, HoldfastError):  # it is in the journal, and judged
                return

        return do

    # -- Putting -----------------------------------------------------------------------------------------------------

    def _key(self, queue: int) -> str:
        self._count += 1
        return f"{queue}:{self._prefix}{self._count}"

    def _payload(self, key: str) -> bytes:
        return payload_of(key, self._choice.randrange(PAYLOAD_BYTES_MAX))

    def _put(self, queue: int) -> None:
        key = self._key(queue)
        payload = self._payload(key)
        self._journal.call("put", queue, lambda: self._handles[queue].put(payload), keys=[key])

    def _put_many(self, queue: int) -> None:
        keys = [self._key(queue) for _ in range(self._choice.randint(2, BATCH_MAX))]
        payloads = [self._payload(key) for key in keys]
        self._journal.call("put", queue, lambda: self._handles[queue].put_many(payloads), keys=keys)

    def _put_once(self, queue: int) -> None:
        """Put under an id that other processes draw too."""
        key = f"{queue}:id.{int(time.monotonic() * IDS_PER_SECOND) - self._choice.randrange(IDS_BACK)}"
        payload = payload_of(key, 10)
        for _ in range(self._choice.choice((1, 1, 2))):
            self._journal.call(
                "put", queue, lambda: self._handles[queue].put(payload, dedup_id=key), keys=[key], once=True
            )

    def _flush(self, queue: int) -> None:
        self._journal.call("flush", queue, self._handles[queue].flush)

    # -- Taking ------------------------------------------------------------------------------------------------------

    def _get_one(self, queue: int) -> None:
        self._get(queue, 1, self._choice.uniform(0, TAKE_SECONDS_MAX))

    def _get_some(self, queue: int) -> None:
        self._get(queue, self._choice.randint(2, 3), self._choice.uniform(0, TAKE_SECONDS_MAX))

    def _get(self, queue: int, count: int, timeout: float) -> None:
        self._journal.call(
            "get", queue, lambda: keys_of(self._handles[queue].get_many(count, timeout=timeout)), count=count
        )

    def _take(self, queue: int, take: Callable[[], Sequence[Delivery]], count: int) -> Held:
        """Note a take, and have what it takes in hand."""
        deliveries: list[Delivery] = []

        def do() -> list[tuple[str, int, int]]:
            deliveries.extend(take())
            return [(key_of(each.payload), each.offset, each.delivery_count) for each in deliveries]

        number, _ = self._journal.call("take", queue, do, count=count)
        hold = HOLD_SECONDS_MAX
        if self._choice.random() < LONG_HOLD_SHARE:
            hold = 1.5 * self._job.lease_seconds
        return Held(queue, number, deliveries, time.monotonic() + self._choice.uniform(0, hold))

    def _receive(self, queue: int) -> None:
        timeout = self._choice.uniform(0, TAKE_SECONDS_MAX)
        self._held.append(self._take(queue, lambda: [self._handles[queue].receive(timeout=timeout)], 1))

    def _receive_many(self, queue: int) -> None:
        count, timeout = self._choice.randint(1, BATCH_MAX), self._choice.uniform(0, TAKE_SECONDS_MAX)
        batches: list[DeliveryBatch] = []

        def take() -> Sequence[Delivery]:
            batches.append(self._handles[queue].receive_many(count, timeout=timeout))
            return batches[0]

        held = self._take(queue, take, count)
        for part in (held.deliveries[:10], held.deliveries[10:]):  # each with an end of its own
            if part:
                self._held.append(Held(queue, held.take, part, held.due, batches[0]))

    # -- Settling ----------------------------------------------------------------------------------------------------

    def _settle_due(self, now: float) -> None:
        """Settle what was in hand for as long as it was to be."""
        due = [each for each in self._held if each.due <= now]
        self._held = [each for each in self._held if each.due > now]
        for held in due:
            try:
                self._settle(held, is_last=now == math.inf)
            except HoldfastError:  # it is in the journal, and judged
                continue

    def _settle(self, held: Held, *, is_last: bool) -> None:
        verb = self._choice.choices(("ack", "nack", "release", "extend"), (80, 6, 8, 0 if is_last else 6))[0]
        self._journal.call(verb, held.queue, lambda: held.settle(verb), receipts=self._receipts(held))
        if verb == "extend":
            held.due = time.monotonic() + self._choice.uniform(0, self._job.lease_seconds / 2)
            self._held.append(held)

    def _receipts(self, held: Held) -> list[tuple[str, int, str]]:
        return [(self._journal.name, held.take, key_of(each.payload)) for each in held.deliveries]

    # -- Transactions ------------------------------------------------------------------------------------------------

    def _transaction(self, queue: int) -> None:
        """Take a message, and put others instead of it, together."""
        transaction = self._handles[queue].begin()
        held = self._take(queue, lambda: [transaction.receive(timeout=TAKE_SECONDS_MAX)], 1)
        receipts = self._receipts(held)
        keys = [self._key(queue) for _ in range(self._choice.randint(0, 3))]
        for key in keys:
            transaction.put(self._payload(key))
        transaction.ack(held.deliveries)
        if self._choice.random() < LONG_HOLD_SHARE:
            time.sleep(self._choice.uniform(0, 1.5 * self._job.lease_seconds))
        try:
            if self._choice.random() < 0.8:
                self._journal.call("commit", queue, transaction.commit, keys=keys, receipts=receipts)
        finally:
            if transaction.state is State.OPEN:
                self._journal.call("abort", queue, transaction.abort, receipts=receipts)

    def _transaction_over_two(self, queue: int) -> None:
        """Take a message of one queue, and put others into another one, sometimes into both; any of them decides."""
        if self._job.queues == 1:
            self._transaction(queue)
            return
        other = self._choice.choice([each for each in range(self._job.queues) if each != queue])
        order = self._choice.sample((queue, other), 2)
        transaction = holdfast.transaction(*(self._handles[each] for each in order))
        taken = self._handles[queue]
        try:
            held = self._take(queue, lambda: [transaction.receive(taken, timeout=TAKE_SECONDS_MAX)], 1)
            transaction.ack(taken, held.deliveries)
            into = [other] * self._choice.randint(1, 3) + [queue] * self._choice.choice((0, 0, 1))
            keys = [self._key(each) for each in into]
            for key, each in zip(keys, into, strict=True):
                transaction.put(self._handles[each], self._payload(key))
            receipts = self._receipts(held)
            self._journal.call("commit", queue, transaction.commit, keys=keys, receipts=receipts, is_over_two=True)
        finally:
            if transaction.state is State.OPEN:
                transaction.abort()

"""What a child does to a queue until it is killed, or until the disk has gone: it reports each call, before and after.

All there is: ``put``, ``put_many``, ``get``, ``get_many``, ``receive``, acknowledgements, giving back, transactions of
puts, of acknowledgements and of both, large ones that are adopted, aborted ones, prepared ones that are decided later
or by another process, and ``flush``. Data files are small, so that rolling, reuse and retiring happen all the time.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast import (
    CommitUnknownError,
    Delivery,
    DeliveryBatch,
    Empty,
    FlushPolicy,
    PersistentQueue,
    RetryableError,
    StaleReceiptError,
    StorageError,
    TransactionStateError,
)
from holdfast.queue.options.queue_options import Mode
from proof.real_processes.reports import Say, watching_syncs
from support.builders.settings import set_first
from support.workloads.kill_work import BATCH_MAX, name_of, payload_of

POLICIES = {
    "every_commit": FlushPolicy.every_commit(),
    "every_10": FlushPolicy.every(commits=10),
    "never": FlushPolicy.never(),
}
KEYS_PER_CHILD = 1_000_000
KEYS_PER_HAND = KEYS_PER_CHILD // 32

THREADS = {"threads": (1, 1), "crowd": (8, 4)}
"""How many threads of one process put, and how many take."""

OWNER_KILLED = (CommitUnknownError, RetryableError, StaleReceiptError, TransactionStateError)

Verb = Callable[[], None]


@dataclass(frozen=True)
class Job:
    """What one child is to do.

    Attributes
    ----------
    path : Path
        The queue.
    shape : str
        "one": one thread does everything; "threads": one puts and one takes; "crowd": eight put and four take;
        "puts" and "takes": one of two processes that share the queue.
    policy : str
        One of ``POLICIES``.
    seed : int
        Decides all that it chooses.
    number : int
        Of this child, among all: its keys follow from it.
    looks : bool
        Whether it begins by saying all that is there; then no other process has the queue open.
    may_lose_disk : bool
        Whether the disk may go away under it.
    loose : Path or None
        A file to append to without a sync, beside the queue.
    backlog_max : int
        How many messages there may be before it takes some, or, if it cannot, twice as many before it puts no more.
    syncs_may_fail : bool
        Whether the disk goes away by itself, so that only a sync that fails says when.
    """

    path: Path
    shape: str
    policy: str
    seed: int
    number: int
    looks: bool = True
    may_lose_disk: bool = False
    loose: Path | None = None
    backlog_max: int = 150
    syncs_may_fail: bool = False

    def __call__(self, say: Say) -> None:
        """Work until killed."""
        try:
            self._work(watching_syncs(say) if self.syncs_may_fail else say)
        except StorageError as error:
            if not self.may_lose_disk:
                raise
            say("e", type(error).__name__)

    def _work(self, say: Say) -> None:
        if self.looks:  # the first one of a round, which has the queue for itself
            set_first(self.path, flush=POLICIES[self.policy])
        if self.is_shared and self.looks:  # who shares a queue sees what others had in hand, too
            with self._opened("exclusive") as alone:
                self._look(alone, say)
        queue = self._opened("shared" if self.is_shared else "exclusive")
        if not self.is_shared:
            self._look(queue, say)
        held = self._held(queue)
        say("go")
        if self.shape not in THREADS:
            Hand(self, queue, say, 0, held, takes_only=self.shape == "takes").work(self.shape)
            return
        troubles: list[BaseException] = []
        putters, takers = THREADS[self.shape]
        hands = [
            (Hand(self, queue, say, number, held * (number == 0), troubles=troubles), "puts")
            for number in range(putters)
        ]
        for number in range(putters, putters + takers):
            hands.append((Hand(self, queue, say, number, [], takes_only=True, troubles=troubles), "takes"))
        threads = [threading.Thread(target=_noting, args=(hand.work, side, troubles)) for hand, side in hands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        raise troubles[0]

    @property
    def is_shared(self) -> bool:
        """Whether another process works on the queue meanwhile."""
        return self.shape in ("puts", "takes")

    def _opened(self, mode: Mode) -> PersistentQueue:
        return PersistentQueue(
            self.path,
            mode=mode,
            flush=POLICIES[self.policy],
            data_file_bytes=16 * 2**10,
            max_deliveries=None,
            lease_seconds=3600,
            backoff=[],
        )

    def _look(self, queue: PersistentQueue, say: Say) -> None:
        """Say what is there."""
        damage = [*queue.recovery.damage, *queue.recovery.progress_damage]
        if damage:
            say("w", *(each.verdict.replace(" ", "-") for each in damage))
        say("o", queue.stats().next_offset)
        if self.looks:
            messages = queue.peek(10**6)
            assert len(messages) == queue.qsize(), "what can be taken is counted wrongly"
            turns = [(message.delivery_count == 0, message.offset) for message in messages]
            assert turns == sorted(set(turns)), "what was handed out before comes first; each by offset"
            say("c", *(name_of(message.payload) for message in messages if message.delivery_count))
            say("v", *(f"{name_of(message.payload)}@{message.offset}" for message in messages))
            say("h", *(each.id for each in queue.prepared()))

    def _held(self, queue: PersistentQueue) -> list[str]:
        """Return the transactions that are this child's to decide."""
        prepared = queue.prepared()
        assert not [each for each in prepared if each.damage], prepared
        held = [each.id for each in prepared]
        return [key for key in held if not self.is_shared or is_producers(key) == (self.shape == "puts")]


def is_producers(key: str) -> bool:
    """Whether a child that only puts has begun this step, and so may decide it."""
    return int(key) % KEYS_PER_CHILD < KEYS_PER_CHILD // 2


def is_to_commit(key: str) -> bool:
    """What has to become of a prepared transaction, whichever process decides it, and however often."""
    return int(key) % 3 != 0


def _noting(work: Callable[[str], object], side: str, troubles: list[BaseException]) -> None:
    try:
        work(side)
    except BaseException as error:
        troubles.append(error)


class Hand:
    """One thread that works on an open queue; ``number`` is its name among those of its process.

    ``troubles``: what ended its other threads.
    """

    def __init__(
        self,
        job: Job,
        queue: PersistentQueue,
        say: Say,
        number: int,
        held: list[str],
        *,
        takes_only: bool = False,
        troubles: Sequence[BaseException] = (),
    ) -> None:
        self._choice = random.Random(f"{job.seed} {number}")
        self._queue = queue
        self._say = say
        self._number = number
        self._key = job.number * KEYS_PER_CHILD + takes_only * (KEYS_PER_CHILD // 2) + number * KEYS_PER_HAND
        self._is_shared = job.is_shared
        self._knows_depth = job.shape != "puts"
        self._keeps_all = POLICIES[job.policy].syncs_every_commit
        self._troubles = troubles  # of the threads beside it
        self._held = [key for key in held if self._choice.random() < 0.7]  # others are left to a later child
        self._in_hand: list[Delivery] = []
        self._room = 2 * job.backlog_max
        self._backlog_max = job.backlog_max
        self._loose = job.loose
        self._loose_fd = -1
        self._loose_bytes = 0

    def work(self, shape: str) -> None:
        """Work until killed, or until another thread has met an error; raises what the queue raises."""
        puts: list[Verb] = [self._put] * 5 + [self._put_many] * 2
        takes: list[Verb] = [self._get] * 3 + [self._get_many] + [self._receive] * 4
        both: list[Verb] = [self._transact] * 4 + [self._decide] * 2 + [self._flush]
        self._puts, self._takes = shape != "takes", shape != "puts"
        verbs = puts * self._puts + takes * self._takes + both
        while not self._troubles:
            self._append_loosely()
            if not self._puts or self._has_room():
                self._do(self._choice.choice(verbs))
            elif self._takes:
                self._get_many()
            else:  # all that is left is to be killed
                self._decide()
                time.sleep(0.001)

    def _do(self, verb: Verb) -> None:
        """Make a step; a client whose owner is killed under it may hear that it happened, or not."""
        try:
            verb()
        except OWNER_KILLED:
            if not self._is_shared:
                raise

    def _has_room(self) -> bool:
        """Whether there may be more messages; a process that only puts does not know how many are left."""
        return self._queue.stats().depth < self._backlog_max if self._knows_depth else self._room > 0

    # -- Steps -------------------------------------------------------------------------------------------------------

    def _next(self) -> str:
        self._key += 1
        return str(self._key)

    def _returned(self, key: str, first: int, *, keeps: bool) -> None:
        self._say("S", key, first, "keeps" if keeps or self._keeps_all else "may-go")

    def _payloads(self, key: str, count: int) -> list[bytes]:
        self._room -= count
        return [payload_of(int(key), index) for index in range(count)]

    def _put(self) -> None:
        key = self._next()
        (payload,) = self._payloads(key, 1)
        self._say("s", key, 1)
        self._returned(key, self._queue.put(payload), keeps=False)

    def _put_many(self) -> None:
        key, count = self._next(), self._choice.randint(2, BATCH_MAX)
        payloads = self._payloads(key, count)
        self._say("s", key, count)
        self._returned(key, self._queue.put_many(payloads).start, keeps=False)

    def _get(self) -> None:
        self._say("g", self._number, 1)
        try:
            payloads = [self._queue.get(timeout=0.002)]
        except Empty:
            self._say("E", self._number)
            return
        self._got(payloads)

    def _get_many(self) -> None:
        count = self._choice.choice([5, 30])
        self._say("g", self._number, count)
        try:
            payloads = self._queue.get_many(count, timeout=0.002)
        except Empty:
            self._say("E", self._number)
            return
        self._got(payloads)

    def _got(self, payloads: list[bytes]) -> None:
        keeps = "keeps" if self._keeps_all else "may-go"
        self._say("G", self._number, self._next(), keeps, *map(name_of, payloads))

    def _took(self, take: Callable[[], Sequence[Delivery]], count: int) -> Sequence[Delivery]:
        """Receive up to ``count``, or none; say so."""
        self._say("q", self._number, count)
        try:
            taken = take()
        except Empty:
            self._say("E", self._number)
            return []
        self._say("r", self._number, *(f"{name_of(each.payload)}@{each.offset}" for each in taken))
        return taken

    def _give_back(self, give_back: Callable[[], object], names: Iterable[str], *, counted: bool) -> None:
        self._say("b", self._number, "counted" if counted else "as-it-was", *names)
        give_back()
        self._say("B", self._number)

    def _receive(self) -> None:
        """Take some; finish a part, give a part back, and keep the rest in hand for a while."""
        count = self._choice.choice([1, 3, 20])
        batch = self._took(lambda: self._queue.receive_many(count, timeout=0.002), count)
        if not isinstance(batch, DeliveryBatch):
            return
        taken = [*self._in_hand, *batch]
        self._choice.shuffle(taken)
        keep, back = self._choice.choice([0, 0, 2]), self._choice.choice([0, 0, 2])
        self._in_hand, returned, done = taken[:keep], taken[keep : keep + back], taken[keep + back :]
        names = [name_of(each.payload) for each in returned]
        if returned and self._choice.random() < 0.5:
            self._give_back(lambda: batch.nack(returned, delay=0), names, counted=True)
        elif returned:
            self._give_back(lambda: batch.release(returned), names, counted=False)
        if done:
            key = self._next()
            self._say("s", key, 0, *(name_of(each.payload) for each in done))
            batch.ack(done)
            self._returned(key, -1, keeps=False)

    # -- Transactions ------------------------------------------------------------------------------------------------

    def _transact(self) -> None:
        tx, key = self._queue.begin(), self._next()
        names: list[str] = []
        for _ in range(self._choice.choice([0, 1, 3]) if self._takes else 0):
            taken = self._took(lambda: [tx.receive(timeout=0)], 1)
            if not taken:
                break
            names.append(name_of(taken[0].payload))
            tx.ack(taken[0])
        payloads = self._payloads(key, self._choice.choice([0, 1, 4, BATCH_MAX]) if self._puts else 0)
        streamed = bool(payloads) and self._choice.random() < 0.2
        if streamed:
            tx.put_stream([payloads[0][:7], payloads[0][7:]])
        if payloads:
            tx.put_many(payloads[streamed:])
        end = self._choice.random()
        if end < 0.2 or not (payloads or names):
            self._give_back(tx.abort, names, counted=True)
        elif end < 0.4:
            self._say("p", key, len(payloads), *names)
            tx.prepare(key)
            self._returned(key, -1, keeps=True)
            self._held.append(key)
        else:
            self._say("s", key, len(payloads), *names)
            offsets = tx.commit()
            self._returned(key, offsets.start if payloads else -1, keeps=streamed or bool(payloads and names))

    def _decide(self) -> None:
        if not self._held:
            return
        key = self._held.pop(self._choice.randrange(len(self._held)))
        if is_to_commit(key):
            self._say("d", key, "commit")
            offsets = self._queue.commit_prepared(key)
            self._returned(key, offsets.start if offsets else -1, keeps=True)
        else:
            self._say("d", key, "abort")
            self._queue.abort_prepared(key)
            self._returned(key, -1, keeps=True)

    def _flush(self) -> None:
        self._say("f", self._number)
        self._queue.flush()
        self._say("F", self._number)

    # -- The control -------------------------------------------------------------------------------------------------

    def _append_loosely(self) -> None:
        """Append to a file as an application does that never syncs: what a loss of power takes of it is the control."""
        if self._loose is None:
            return
        try:
            if self._loose_fd < 0:
                self._loose_fd = os.open(self._loose, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._loose_bytes += os.write(self._loose_fd, b"message\n")
        except OSError as error:
            raise StorageError(f"the control file cannot be written: {error}") from error
        self._say("n", self._loose_bytes)

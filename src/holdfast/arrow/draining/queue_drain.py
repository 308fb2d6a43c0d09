"""The drain of one open queue: reserve a batch, have an engine run it, commit. docs/spark-drain.md.

Each batch is reserved on the disk before the application's function sees it, under an id that names the queue, the
group and the first message. After any kill, the next drain runs the same messages under the same id again. So a sink
that replaces its rows of an id counts every message exactly once.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.arrow.draining.drain_lock import locked_drain
from holdfast.arrow.draining.loss_notes import LossNotes
from holdfast.arrow.draining.reports import DrainProgress, DrainTally
from holdfast.errors import ConfigError, ShutDown
from holdfast.persistence.filesystem.layout import QueueDirectory, open_directory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.report import Damage
from holdfast.queue.consumer.draining import log_left
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.prepared.reservations import Reservation
from holdfast.threads import start_thread

logger = logging.getLogger("holdfast")

PREFIX = "drain"
"""The first word in the ids of drained batches: of every engine, so each continues what another one has left."""

MAX_BYTES = 256 * 2**20
"""A batch costs by itself what writing 50 MB as Parquet costs; a fifth of this. docs/adr/0041."""

DEFAULT_GROUP = "default"

IN_FLIGHT_MAX = 8
"""Each of them is run again after a kill."""

LOOK_SECONDS = 0.25
"""How long a drain that waits, for messages or for a batch, takes to see a signal, or that it should stop."""

PAUSE_SECONDS_MIN = 0.01
"""The pause before the owner of a shared queue is asked again; it doubles, up to that."""


class Engine(Protocol):
    """Runs the batches of a drain."""

    def prepare(
        self, queue: PersistentQueue, reservation: Reservation, size_bytes: int, damage: list[Damage]
    ) -> Callable[[], object]:
        """Return what runs a batch, in whichever thread.

        It adds the messages that could not be read to the damage, unless a task has noted them.
        """

    def release(self, queue: PersistentQueue) -> None:
        """Release what the batches of a queue needed, before the lock of its drain is released."""


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """The options of a drain.

    Attributes
    ----------
    max_bytes, max_messages : int or None
        Payload bytes, and messages, of one batch.
    group : str
        The consumer group; a missing one is created.
    lock_timeout : float, seconds
        How long to wait for another drain of the group to end, or for a program that has the queue open alone.
    on_progress : callable or None
        Called with a :class:`DrainProgress` after each batch.
    in_flight : int
        How many batches run at once; they are committed in their order.
    """

    max_bytes: int | None = MAX_BYTES
    max_messages: int | None = None
    group: str = DEFAULT_GROUP
    lock_timeout: float = 0
    on_progress: Callable[[DrainProgress], object] | None = None
    in_flight: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.in_flight <= IN_FLIGHT_MAX:
            raise ConfigError(f"in_flight is 1 to {IN_FLIGHT_MAX} batches, not {self.in_flight}")
        for name, value in (("max_bytes", self.max_bytes), ("max_messages", self.max_messages)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} is at least 1, or None for no bound; not {value}")


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch that was started; one without a thread runs when it is finished."""

    reservation: Reservation
    size_bytes: int
    damage: list[Damage]
    started: float
    run: Callable[[], object]
    thread: Future[object] | None

    def finish(self) -> None:
        """Return when it has run; raises what it raised."""
        if self.thread is None:
            self.run()
            return
        while not wait([self.thread], LOOK_SECONDS).done:  # a signal just before a wait does not end it
            pass
        self.thread.result()


class QueueDrain:
    """Drains one consumer group of one open queue, batch by batch; made by :func:`open_drain`. For one thread.

    Parameters
    ----------
    queue : PersistentQueue
        The queue, open for the group.
    engine, options
        What runs the batches, and their bounds.
    tally : DrainTally
        Counts what is drained.
    is_stopping : callable
        Whether no more batches should begin.
    known_damage : sequence of Damage
        Of the queue, which others have heard of.
    """

    def __init__(
        self,
        queue: PersistentQueue,
        engine: Engine,
        options: DrainOptions,
        tally: DrainTally,
        is_stopping: Callable[[], bool],
        known_damage: Sequence[Damage],
    ) -> None:
        self.queue = queue
        self.is_shut_down = False
        self._engine = engine
        self._options = options
        self._tally = tally
        self._is_stopping = is_stopping
        self._known_damage = list(known_damage)
        self._resumed = deque(queue.reservations.held(PREFIX))
        self._running: deque[_Batch] = deque()

    def advance(self, end_offset: int | None) -> bool:
        """Start a batch of messages before an offset, or finish one; False if no batch runs and none can begin."""
        has_room = len(self._running) < self._options.in_flight
        if has_room and not (self._is_stopping() or self.is_shut_down) and self._start_next(end_offset):
            return True
        if self._running:  # what comes behind it may wait for its commit: messages of one order key do
            self._finish_oldest()
            return True
        return False

    def conclude(self) -> None:
        """Count what is left, and the damage that was met before it could be reserved."""
        self._tally.depth = self.queue.depth()
        self._say_stepped_over()

    def _start_next(self, end_offset: int | None) -> bool:
        """Start the next batch; False if there is nothing to take now."""
        started = time.monotonic()
        if self._resumed:
            self._tally.resumed_count += 1
            reservation: Reservation | None = self._resumed.popleft()
        else:
            try:
                reservation = self.queue.reservations.take(
                    prefix=PREFIX,
                    max_messages=self._options.max_messages,
                    max_bytes=self._options.max_bytes,
                    end_offset=end_offset,
                )
            except ShutDown as error:
                log_left(self.queue.path, error)
                self.is_shut_down = True
                return False
        if reservation is None:
            return False
        size = self.queue.reservations.size_bytes(reservation)
        damage: list[Damage] = []
        with _said_to_stay(reservation):
            run = self._engine.prepare(self.queue, reservation, size, damage)
        thread = None if self._options.in_flight == 1 else _started(run)
        self._running.append(_Batch(reservation, size, damage, started, run, thread))
        return True

    def _finish_oldest(self) -> None:
        batch = self._running[0]
        with _said_to_stay(batch.reservation):
            try:
                batch.finish()
            except Exception:  # an interrupted wait is none: then it still runs
                self._running.popleft()
                raise
        self._running.popleft()
        notes = LossNotes(OsStorage(), QueueDirectory(self.queue.path).group(self._options.group))
        damage = [*batch.damage, *notes.read(batch.reservation.id)]
        self._say_stepped_over()
        for each in damage:  # now: a process that is killed behind the commit must have said it
            self._say(each)
        self.queue.reservations.commit(batch.reservation)
        notes.remove([*(each.reservation.id for each in self._running), *(each.id for each in self._resumed)])
        self._tally.damage += damage
        self._tally.add(batch.reservation.id, batch.reservation.count, batch.size_bytes)
        self._tell(batch.reservation, batch.size_bytes, time.monotonic() - batch.started)

    def end_running(self) -> None:
        """Wait for the batches behind one that has failed, and say what becomes of them."""
        for batch in (each for each in self._running if each.thread is not None):
            try:
                batch.finish()
            except Exception as error:  # the first one is raised
                logger.error("batch %s failed, too, and stays reserved: %s", batch.reservation.id, error)
            else:
                logger.warning("batch %s has run and stays reserved: one before it failed", batch.reservation.id)
        self._running.clear()

    def _say_stepped_over(self) -> None:
        """Say which messages could not be reserved, and count them."""
        for each in self.queue.recovery.damage:
            if each not in self._known_damage:
                self._say(each)
                self._tally.damage.append(each)
                self._known_damage.append(each)

    def _say(self, damage: Damage) -> None:
        logger.error("drain of %s: %s", self.queue.path, damage)

    def _tell(self, reservation: Reservation, size: int, seconds: float) -> None:
        depth = self._tally.depth = self.queue.depth()
        name, total = self.queue.path.name, self._tally.message_count
        progress = DrainProgress(reservation.id, reservation.count, size, seconds, total, depth, name)
        logger.info(
            "drain of %s: %d messages at %.1f MB/s, %d left (batch %s)",
            self.queue.path,
            progress.total_count,
            progress.megabytes_per_second,
            progress.depth,
            progress.batch_id,
        )
        if self._options.on_progress is not None:
            self._options.on_progress(progress)


@contextmanager
def open_drain(
    queue: str | os.PathLike[str] | PersistentQueue,
    engine: Engine,
    options: DrainOptions,
    tally: DrainTally,
    is_stopping: Callable[[], bool],
) -> Iterator[QueueDrain]:
    """Lock the drain of a group, and open the queue unless it is open; parameters as :class:`QueueDrain`.

    Raises
    ------
    QueueLockedError, LockTimeoutError
        Another drain of the group runs, or a program has the queue open with mode "exclusive"; names its process.
    QueueNotFoundError
        There is no queue.
    """
    with ExitStack() as stack:
        known: tuple[Damage, ...] = ()
        if isinstance(queue, PersistentQueue):
            handle = queue
            stack.enter_context(locked_drain(handle.path, options.group, options.lock_timeout))
            known = handle.recovery.damage
        else:
            make_group(queue, options.group, options.lock_timeout)
            path = Path(os.path.abspath(queue))
            stack.enter_context(locked_drain(path, options.group, options.lock_timeout))
            handle = stack.enter_context(
                PersistentQueue(path, mode="shared", group=options.group, lock_timeout=options.lock_timeout)
            )
            if not handle.is_owner:  # others have heard of earlier damage
                known = handle.recovery.damage
        stack.callback(engine.release, handle)
        drain = QueueDrain(handle, engine, options, tally, is_stopping, known)
        stack.callback(drain.end_running)
        yield drain


@contextmanager
def _said_to_stay(reservation: Reservation) -> Iterator[None]:
    """Add to an error what becomes of the batch that it ends."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"batch {reservation.id} stays reserved: the next drain runs it again, with the same messages")
        raise


def _started(run: Callable[[], object]) -> Future[object] | None:
    """Return what becomes of a function that runs in a thread of its own; None if no thread can be started."""
    future: Future[object] = Future()

    def run_and_tell() -> None:
        try:
            future.set_result(run())
        except BaseException as error:  # raised where the batch is finished
            future.set_exception(error)

    return None if start_thread(run_and_tell, "holdfast-drain") is None else future


def make_group(path: str | os.PathLike[str], group: str, lock_timeout: float = 0) -> None:
    """Create a consumer group if there is none; raises QueueNotFoundError if there is no queue.

    Its messages are delivered without end: a batch that failed comes again as it was, and none of it is given up.
    """
    open_directory(OsStorage(), Path(os.path.abspath(path)), create=False, writable=False)
    if group == DEFAULT_GROUP:  # begins when it is first used
        return
    with PersistentQueue(path, mode="shared", lock_timeout=lock_timeout) as handle:
        handle.groups.create(group, max_deliveries=None)

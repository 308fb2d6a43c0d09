"""Drains a queue into Spark, batch by batch: reserve, run, commit. docs/spark-drain.md.

Each batch is reserved on the disk before the application's function sees it, under an id that names the queue, the
group and the first message. After any kill, the next drain runs the same messages under the same id again. So a sink
that replaces its rows of an id counts every message exactly once.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError, ShutDown
from holdfast.persistence.filesystem.layout import QueueDirectory, open_directory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.report import Damage
from holdfast.queue.consumer.draining import log_left
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.prepared.reservations import Reservation
from holdfast.spark.draining.drain_lock import locked_drain
from holdfast.spark.draining.driver_lock import DriverLock
from holdfast.spark.draining.loss_notes import LossNotes
from holdfast.spark.draining.plan import missing_files, plan_drain, task_count_for
from holdfast.spark.draining.stopping import stopped_by_signals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("holdfast")

PREFIX = "drain"
"""What the ids of drained batches begin with."""

MAX_BYTES = 256 * 2**20
"""A batch costs by itself what writing 50 MB as Parquet costs; a fifth of this. docs/adr/0041."""

_DRIVER_COUNT_MAX = 1000
_DRIVER_BYTES_MAX = 4 * 2**20
"""What is read faster here than by a task."""

_CONNECT_PARALLELISM = 8
"""Spark Connect does not say how many tasks run at once; a task more or less than that costs little."""

_DEFAULT_GROUP = "default"
_LOOK_SECONDS = 0.25
"""How long a drain that waits for messages takes to see that it should stop."""

_PAUSE_SECONDS_MIN = 0.01
"""The pause before the owner of a shared queue is asked again; it doubles, up to that."""


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """The progress of a drain, after each batch.

    Attributes
    ----------
    batch_id : str
        The batch that was committed just now.
    message_count, size_bytes, seconds
        Of that batch: messages, bytes of payloads, and how long it took.
    total_count : int
        Messages of all batches so far.
    depth : int
        Messages that the group has not finished: messages that came meanwhile are among them.
    """

    batch_id: str
    message_count: int
    size_bytes: int
    seconds: float
    total_count: int
    depth: int

    @property
    def megabytes_per_second(self) -> float:
        """How fast this batch was."""
        return self.size_bytes / 1e6 / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The report of a drain.

    Attributes
    ----------
    batch_ids : tuple of str
        The batches that were committed, in their order.
    message_count, size_bytes, seconds
        Of all of them: messages, bytes of payloads, and how long the drain took.
    resumed_count : int
        How many of the batches an earlier drain had reserved.
    depth : int
        Messages that the group has not finished: waiting messages, and those that came meanwhile.
    damage : tuple of Damage
        Messages that cannot be read: each place, and the offsets lost. All others were drained.
    """

    batch_ids: tuple[str, ...]
    message_count: int
    size_bytes: int
    seconds: float
    resumed_count: int
    depth: int
    damage: tuple[Damage, ...]

    @property
    def lost_count(self) -> int:
        """Messages that are lost."""
        return sum(len(each.offsets) for each in self.damage)


RunBatch = Callable[["DataFrame", str], object]
"""The application's function: takes a batch and its id."""


class SparkDrainer:
    """Drains one consumer group of one queue.

    Parameters
    ----------
    queue : str, path-like or PersistentQueue
        The queue, which is opened with mode "shared"; an open one has to take for the group, and stays open.
    spark : SparkSession
        The session in which the batches run.
    fn : callable
        Takes a DataFrame and the batch's id. It has done its work when it returns; then the batch is committed. The
        DataFrame has the columns of ``spark.read.format("holdfast")``; it is of no use once ``fn`` has returned.
    max_bytes : int or None, bytes
        Payloads of one batch.
    max_messages : int or None
        Messages of one batch.
    group : str
        The consumer group; a missing one is created: it begins with the oldest message that is still there.
    lock_timeout : float, seconds
        How long to wait for another drain of the group to end.
    on_progress : callable or None
        Called with a :class:`DrainProgress` after each batch.
    """

    def __init__(
        self,
        queue: str | os.PathLike[str] | PersistentQueue,
        spark: SparkSession,
        fn: RunBatch,
        *,
        max_bytes: int | None = MAX_BYTES,
        max_messages: int | None = None,
        group: str = _DEFAULT_GROUP,
        lock_timeout: float = 0,
        on_progress: Callable[[DrainProgress], object] | None = None,
    ) -> None:
        for name, value in (("max_bytes", max_bytes), ("max_messages", max_messages)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} is at least 1, or None for no bound; not {value}")
        if isinstance(queue, PersistentQueue) and queue.group != group:
            raise ConfigError(f"{queue.path} is open for group {queue.group!r}, not {group!r}: open it for that one")
        self._queue = queue
        self._spark = spark
        self._fn = fn
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._group = group
        self._lock_timeout = lock_timeout
        self._on_progress = on_progress
        self._driver_lock = DriverLock(spark)
        self._is_stopping = self._is_registered = False
        self._batch_ids: list[str] = []
        self._damage: list[Damage] = []
        self._count = self._size_bytes = self._resumed_count = 0

    def stop(self) -> None:
        """End after the batch at hand, for good; from any thread, from a signal handler, and from ``fn``."""
        self._is_stopping = True  # and no more: a signal handler must not wait for a lock

    def run(self, until: str = "snapshot") -> DrainReport:
        """Drain; return the report.

        Parameters
        ----------
        until : "snapshot" or "forever"
            "snapshot": the messages of the start that can be taken. "forever": until :meth:`stop`.

        Raises
        ------
        QueueLockedError, LockTimeoutError
            Another drain of the group runs, or a program has the queue open with mode "exclusive"; names its process.
        QueueNotFoundError, ConfigError
            There is no queue, or ``until`` is another value.
        TransactionStateError
            The batch was given back meanwhile.
        Exception
            What ``fn`` raises comes out. Its batch stays reserved: the next drain runs it again, under the same id.
        """
        if until not in ("snapshot", "forever"):
            raise ConfigError(f"until is 'snapshot' or 'forever', not {until!r}")
        started = time.monotonic()
        with self._opened() as queue:
            has_opened = queue is not self._queue and queue.is_owner  # else others have heard of earlier damage
            known = () if has_opened else queue.recovery.damage
            for reservation in queue.reservations.held(PREFIX):
                if not self._is_stopping:
                    self._resumed_count += 1
                    self._run_batch(queue, reservation, time.monotonic())
            self._drain(queue, queue.stats().next_offset if until == "snapshot" else None)
            depth = queue.stats().depth
            for each in queue.recovery.damage:  # damage that was met before it could be reserved
                if each not in known:
                    self._lose(queue, each)
        return DrainReport(
            tuple(self._batch_ids),
            self._count,
            self._size_bytes,
            time.monotonic() - started,
            self._resumed_count,
            depth,
            tuple(self._damage),
        )

    @contextmanager
    def _opened(self) -> Iterator[PersistentQueue]:
        self._batch_ids, self._damage = [], []
        self._count = self._size_bytes = self._resumed_count = 0
        queue = self._queue
        with ExitStack() as stack:
            if isinstance(queue, PersistentQueue):
                stack.enter_context(locked_drain(queue.path, self._group, self._lock_timeout))
            else:
                make_group(queue, self._group)
                path = Path(os.path.abspath(queue))
                stack.enter_context(locked_drain(path, self._group, self._lock_timeout))
                queue = stack.enter_context(PersistentQueue(path, mode="shared", group=self._group))
            stack.callback(self._driver_lock.release)  # before the drain's: the next drain need not wait
            yield queue

    def _drain(self, queue: PersistentQueue, end_offset: int | None) -> None:
        pause = _PAUSE_SECONDS_MIN
        while not self._is_stopping:
            started = time.monotonic()
            try:
                reservation = queue.reservations.take(
                    prefix=PREFIX, max_messages=self._max_messages, max_bytes=self._max_bytes, end_offset=end_offset
                )
            except ShutDown as error:
                log_left(queue.path, error)
                return
            if reservation is not None:
                self._run_batch(queue, reservation, started)
                pause = _PAUSE_SECONDS_MIN
            elif end_offset is not None:
                return
            elif queue.mode == "shared":  # only its owner knows whether there is more
                time.sleep(pause)
                pause = min(2 * pause, _LOOK_SECONDS)
            else:
                queue.wait_for_more(_LOOK_SECONDS)

    # -- One batch ---------------------------------------------------------------------------------------------------

    def _run_batch(self, queue: PersistentQueue, reservation: Reservation, started: float) -> None:
        self._driver_lock.take(QueueDirectory(queue.path).group(self._group) / "drain.jvm")
        size = queue.reservations.size_bytes(reservation)
        damage = missing_files(queue, reservation)
        frame = self._frame(queue, reservation, size, damage)
        try:
            self._fn(frame, reservation.id)
        except BaseException as error:
            error.add_note(
                f"batch {reservation.id} stays reserved: the next drain runs it again, with the same messages"
            )
            raise
        notes = LossNotes(OsStorage(), QueueDirectory(queue.path).group(self._group))
        damage += notes.read(reservation.id)
        queue.reservations.commit(reservation)
        notes.remove()
        for each in damage:
            self._lose(queue, each)
        self._batch_ids.append(reservation.id)
        self._count += reservation.count
        self._size_bytes += size
        self._tell(queue, reservation, size, time.monotonic() - started)

    def _lose(self, queue: PersistentQueue, damage: Damage) -> None:
        logger.error("drain of %s: %s", queue.path, damage)
        self._damage.append(damage)

    def _frame(self, queue: PersistentQueue, reservation: Reservation, size: int, damage: list[Damage]) -> DataFrame:
        from holdfast.spark.draining.source import frame_from_driver, frame_in_tasks, register

        if reservation.count <= _DRIVER_COUNT_MAX and size <= _DRIVER_BYTES_MAX:
            return frame_from_driver(self._spark, plan_drain(queue, reservation, 1), damage.append)
        if not self._is_registered:
            register(self._spark)
            self._is_registered = True
        context = getattr(self._spark, "sparkContext", None)  # Spark Connect has none
        parallelism = _CONNECT_PARALLELISM if context is None else context.defaultParallelism
        task_count = task_count_for(size, parallelism)
        return frame_in_tasks(self._spark, plan_drain(queue, reservation, task_count))

    def _tell(self, queue: PersistentQueue, reservation: Reservation, size: int, seconds: float) -> None:
        progress = DrainProgress(reservation.id, reservation.count, size, seconds, self._count, queue.depth())
        logger.info(
            "drain of %s: %d messages at %.1f MB/s, %d left (batch %s)",
            queue.path,
            progress.total_count,
            progress.megabytes_per_second,
            progress.depth,
            progress.batch_id,
        )
        if self._on_progress is not None:
            self._on_progress(progress)


def drain(
    queue: str | os.PathLike[str] | PersistentQueue,
    spark: SparkSession,
    fn: RunBatch,
    *,
    max_bytes: int | None = MAX_BYTES,
    max_messages: int | None = None,
    group: str = _DEFAULT_GROUP,
    until: str = "snapshot",
    lock_timeout: float = 0,
    on_progress: Callable[[DrainProgress], object] | None = None,
) -> DrainReport:
    """Drain a queue: parameters and errors as :class:`SparkDrainer` and its :meth:`~SparkDrainer.run`.

    SIGINT and SIGTERM end it after the current batch, if it runs in the main thread; a second one interrupts.
    """
    drainer = SparkDrainer(
        queue,
        spark,
        fn,
        max_bytes=max_bytes,
        max_messages=max_messages,
        group=group,
        lock_timeout=lock_timeout,
        on_progress=on_progress,
    )
    with stopped_by_signals(drainer.stop):
        return drainer.run(until)


def make_group(path: str | os.PathLike[str], group: str) -> None:
    """Create a consumer group if there is none; raises QueueNotFoundError if there is no queue.

    Its messages are delivered without end: a batch that failed comes again as it was, and none of it is given up.
    """
    open_directory(OsStorage(), Path(os.path.abspath(path)), create=False, writable=False)
    if group == _DEFAULT_GROUP:  # begins when it is first used
        return
    with PersistentQueue(path, mode="shared") as handle:
        handle.groups.create(group, max_deliveries=None)

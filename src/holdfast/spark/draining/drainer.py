"""Drains a queue into Spark, batch by batch: each is a DataFrame. docs/spark-drain.md."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.arrow.draining.drain_loop import DrainLoop
from holdfast.arrow.draining.driver_wait import DRIVER_LOCK
from holdfast.arrow.draining.plan import plan_drain, task_count_for
from holdfast.arrow.draining.queue_drain import DEFAULT_GROUP, MAX_BYTES, DrainOptions
from holdfast.arrow.draining.reports import DrainProgress, DrainReport
from holdfast.arrow.draining.stopping import stopped_by_signals
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.format.report import Damage
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.prepared.reservations import Reservation
from holdfast.spark.draining.driver_lock import DriverLock
from holdfast.spark.remote.driver import session_driver
from holdfast.spark.remote.grant import Grant
from holdfast.spark.remote.place import Place
from holdfast.spark.remote.starting import ServeAddress, announce, forget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from holdfast.arrow.decoding.decoding import Decoding

_DRIVER_COUNT_MAX = 1000
_DRIVER_BYTES_MAX = 4 * 2**20
"""What is read faster here than by a task."""

_CONNECT_PARALLELISM = 8
"""Spark Connect does not say how many tasks run at once; a task more or less than that costs little."""

RunBatch = Callable[["DataFrame", str], object]
"""The application's function: takes a batch and its id."""


class SparkEngine:
    """Runs each batch as a DataFrame.

    Parameters
    ----------
    spark : SparkSession
        The session.
    fn : callable
        Takes the DataFrame and the batch's id.
    columns : sequence of str or None
        Those of the DataFrame; None: all.
    in_flight : int
        How many batches run at once.
    serve_address : str or None
        Where to serve tasks that do not see the queue; None: found by itself.
    decode : StructType, str, Decoding or None
        The fields of payloads; None: they are not decoded.
    has_queue : bool
        Whether there is a column ``queue``.
    """

    def __init__(
        self,
        spark: SparkSession,
        fn: RunBatch,
        columns: Sequence[str] | None,
        in_flight: int,
        serve_address: str | None = None,
        decode: StructType | str | Decoding | None = None,
        *,
        has_queue: bool = False,
    ) -> None:
        from holdfast.spark.reading.schema import drain_columns

        self._spark = spark
        self._fn = fn
        self._schema, self._rows = drain_columns(columns, decode, has_queue=has_queue)
        self._in_flight = in_flight
        self._serve_address = None if serve_address is None else ServeAddress.parse(serve_address)
        self._driver_locks: dict[Path, DriverLock] = {}
        self._places: dict[Path, set[Place]] = {}
        self._running: dict[Path, set[str]] = {}
        self._is_registered = False

    def prepare(
        self, queue: PersistentQueue, reservation: Reservation, size_bytes: int, damage: list[Damage]
    ) -> Callable[[], object]:
        """Return what runs a batch, once no JVM of an earlier drain writes any more."""
        lock = self._driver_locks.setdefault(queue.path, DriverLock(self._spark))
        lock.take(QueueDirectory(queue.path).group(queue.group) / DRIVER_LOCK)
        frame, place = self._frame(queue, reservation, size_bytes, damage)
        run = partial(self._run, queue.path, frame, reservation.id, place)
        return run if self._in_flight == 1 else self._for_another_thread(run)

    def _run(self, path: Path, frame: DataFrame, batch_id: str, place: Place | None) -> None:
        running = self._running.setdefault(path, set())
        running.add(batch_id)
        try:
            self._fn(frame, batch_id)
            running.discard(batch_id)
        except Exception:  # an interrupt ends the call alone: the JVM may still write
            running.discard(batch_id)
            raise
        finally:
            if place is not None:
                forget(place)
                self._places.get(path, set()).discard(place)

    def _for_another_thread(self, run: Callable[[], object]) -> Callable[[], object]:
        """Return a function with the session, the pool and the tags of this thread."""
        from pyspark import inheritable_thread_target

        inheriting: Callable[[], object] = inheritable_thread_target(self._spark)(run)
        return inheriting

    def release(self, queue: PersistentQueue) -> None:
        """Release the lock of the JVM, unless it may still write a batch, and what no batch came to use."""
        for place in self._places.pop(queue.path, ()):
            forget(place)
        lock, running = self._driver_locks.pop(queue.path, None), self._running.pop(queue.path, None)
        if lock is not None and running:
            lock.keep()
        elif lock is not None:
            lock.release()

    def _frame(
        self, queue: PersistentQueue, reservation: Reservation, size: int, damage: list[Damage]
    ) -> tuple[DataFrame, Place | None]:
        """Return a batch, and where its tasks read if they do not see the queue."""
        from holdfast.spark.draining.source import frame_from_driver, frame_in_tasks, register

        if reservation.count <= _DRIVER_COUNT_MAX and size <= _DRIVER_BYTES_MAX:
            plan = plan_drain(queue, reservation, 1, damage)
            return frame_from_driver(self._spark, plan, self._schema, self._rows, damage.append), None
        if not self._is_registered:
            register(self._spark)
            self._is_registered = True
        context = getattr(self._spark, "sparkContext", None)  # Spark Connect has none
        parallelism = _CONNECT_PARALLELISM if context is None else context.defaultParallelism
        plan = plan_drain(queue, reservation, task_count_for(size, parallelism), damage)
        grant = Grant(plan.root, plan.queue_id, plan.notes, plan.batch_id)
        place = announce(grant, session_driver(self._spark), self._serve_address, is_kept=True)
        if place is not None:
            self._places.setdefault(queue.path, set()).add(place)
        return frame_in_tasks(self._spark, plan, self._schema, self._rows, place), place


class SparkDrainer(DrainLoop):
    """Drains one consumer group of one queue, or of many.

    Parameters
    ----------
    queue : str, path-like or PersistentQueue
        The queue, which is opened with mode "shared"; an open one has to take for the group, and stays open. With
        ``queues`` the directory of a service.
    spark : SparkSession
        The session in which the batches run.
    fn : callable
        Takes a DataFrame and the batch's id. It has done its work when it returns; then the batch is committed. The
        DataFrame has the columns of ``spark.read.format("holdfast")``; it is of no use once ``fn`` has returned.
    queues : str or None
        Names of queues, or patterns such as ``"orders-*"``, which commas separate: each is drained by itself, one after
        the other. There is a column ``queue`` then.
    max_bytes : int or None, bytes
        Payloads of one batch.
    max_messages : int or None
        Messages of one batch.
    group : str
        The consumer group; a missing one is created: it begins with the oldest message that is still there.
    columns : sequence of str or None
        The columns of the DataFrame, in this order; None: all. Fewer are faster, as Spark does not tell which it needs.
    decode : StructType, str, Decoding or None
        The fields of payloads, which are decoded to a column ``body``; those that do not fit are in ``undecodable``.
    in_flight : int
        How many batches run at once, each in a thread of its own. They are committed in their order.
    lock_timeout : float, seconds
        How long to wait for another drain of the group to end, or for a program that has the
            queue open alone.
    on_progress : callable or None
        Called with a :class:`DrainProgress` after each batch.
    serve_address : str or None
        ``HOST``, ``HOST:PORT`` or ``:PORT``: where executors that do not see the queue read it; ``off``: nowhere. None:
        found by itself, if Spark runs tasks on other machines.
    """

    def __init__(
        self,
        queue: str | os.PathLike[str] | PersistentQueue,
        spark: SparkSession,
        fn: RunBatch,
        *,
        queues: str | None = None,
        max_bytes: int | None = MAX_BYTES,
        max_messages: int | None = None,
        group: str = DEFAULT_GROUP,
        columns: Sequence[str] | None = None,
        decode: StructType | str | Decoding | None = None,
        in_flight: int = 1,
        lock_timeout: float = 0,
        on_progress: Callable[[DrainProgress], object] | None = None,
        serve_address: str | None = None,
    ) -> None:
        options = DrainOptions(max_bytes, max_messages, group, lock_timeout, on_progress, in_flight)
        engine = SparkEngine(spark, fn, columns, in_flight, serve_address, decode, has_queue=queues is not None)
        super().__init__(queue, engine, options, queues)


def drain(
    queue: str | os.PathLike[str] | PersistentQueue,
    spark: SparkSession,
    fn: RunBatch,
    *,
    queues: str | None = None,
    max_bytes: int | None = MAX_BYTES,
    max_messages: int | None = None,
    group: str = DEFAULT_GROUP,
    columns: Sequence[str] | None = None,
    decode: StructType | str | Decoding | None = None,
    in_flight: int = 1,
    until: str = "snapshot",
    lock_timeout: float = 0,
    on_progress: Callable[[DrainProgress], object] | None = None,
    serve_address: str | None = None,
) -> DrainReport:
    """Drain a queue: parameters and errors as :class:`SparkDrainer` and its :meth:`~SparkDrainer.run`.

    SIGINT and SIGTERM end it after the current batches, if it runs in the main thread; a second one interrupts.
    """
    drainer = SparkDrainer(
        queue,
        spark,
        fn,
        queues=queues,
        max_bytes=max_bytes,
        max_messages=max_messages,
        group=group,
        columns=columns,
        decode=decode,
        in_flight=in_flight,
        lock_timeout=lock_timeout,
        on_progress=on_progress,
        serve_address=serve_address,
    )
    with stopped_by_signals(drainer.stop):
        return drainer.run(until)

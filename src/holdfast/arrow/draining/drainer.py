"""Drains a queue into a function of record batches: no Spark, no JVM. docs/arrow.md."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.arrow.draining.drain_loop import DrainLoop
from holdfast.arrow.draining.driver_wait import wait_for_driver
from holdfast.arrow.draining.loss_notes import LossNotes
from holdfast.arrow.draining.plan import DrainPlan, plan_drain
from holdfast.arrow.draining.queue_drain import DEFAULT_GROUP, MAX_BYTES, DrainOptions
from holdfast.arrow.draining.reports import DrainProgress, DrainReport
from holdfast.arrow.draining.stopping import stopped_by_signals
from holdfast.errors import UsageError
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.report import Damage
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.prepared.reservations import Reservation
from holdfast.serializers.extras import import_extra

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.arrow.decoding.decoding import Decoding
    from holdfast.arrow.reading.row_maker import RowMaker

RunBatch = Callable[["pa.RecordBatchReader", str], object]
"""The application's function: takes the rows of a batch and its id."""


class ArrowEngine:
    """Runs each batch as a stream of record batches, in this process.

    Parameters
    ----------
    fn : callable
        Takes a ``pyarrow.RecordBatchReader`` and the batch's id.
    columns : sequence of str or None
        Those of the reader; None: all.
    decode : pyarrow.Schema, Decoding or None
        The fields of payloads; None: they are not decoded.
    has_queue : bool
        Whether there is a column ``queue``.
    """

    def __init__(
        self,
        fn: RunBatch,
        columns: Sequence[str] | None,
        decode: pa.Schema | Decoding | None = None,
        *,
        has_queue: bool = False,
    ) -> None:
        import_extra("pyarrow", "arrow", "Arrow")
        from holdfast.arrow.reading.columns import FIELDS, named_fields
        from holdfast.arrow.reading.row_maker import RowMaker, decoder_of, more_fields

        self._fn = fn
        decoder = decoder_of(decode)
        known = (*FIELDS, *more_fields(has_queue=has_queue, decoder=decoder))
        self._rows = RowMaker(named_fields(columns, known), decoder)
        self._waited: set[Path] = set()

    def prepare(
        self, queue: PersistentQueue, reservation: Reservation, size_bytes: int, damage: list[Damage]
    ) -> Callable[[], object]:
        """Return what runs a batch, once no JVM of an earlier drain writes any more."""
        if queue.path not in self._waited:
            wait_for_driver(QueueDirectory(queue.path).group(queue.group))
            self._waited.add(queue.path)
        return partial(self._run, plan_drain(queue, reservation, 1, damage))

    def _run(self, plan: DrainPlan) -> None:
        import pyarrow as pa

        from holdfast.arrow.reading.columns import schema_of

        rows = _BatchRows(plan, self._rows)
        try:
            self._fn(pa.RecordBatchReader.from_batches(schema_of(self._rows.fields), rows), plan.batch_id)
        finally:
            rows.close()

    def release(self, queue: PersistentQueue) -> None:
        """Forget that no Spark writes: between two runs of a drain one may come."""
        self._waited.discard(queue.path)


class _BatchRows(Iterator[Any]):
    """The rows of a batch, as long as its function runs.

    Damage is noted beside the queue: a function that has the batch already does not read it again.
    """

    def __init__(self, plan: DrainPlan, rows: RowMaker) -> None:
        from holdfast.arrow.draining.batch_rows import read_parts

        def lose(damage: Damage) -> None:
            LossNotes(OsStorage(), plan.notes).write(plan.batch_id, damage)

        (parts,) = plan.tasks
        self._batch_id = plan.batch_id
        self._rows = read_parts(plan, parts, rows, plan.deliveries, lose)
        self._is_closed = False

    def __next__(self) -> Any:
        if self._is_closed:  # an end here would pass for the end of the batch
            raise UsageError(f"the rows of batch {self._batch_id} are read before the function returns, not after it")
        return next(self._rows)

    def close(self) -> None:
        """Read no more."""
        self._is_closed = True
        self._rows.close()


class ArrowDrainer(DrainLoop):
    """Drains one consumer group of one queue, or of many, without Spark.

    Parameters
    ----------
    queue : str, path-like or PersistentQueue
        The queue, which is opened with mode "shared"; an open one has to take for the group, and stays open. With
        ``queues`` the directory of a service.
    fn : callable
        Takes a ``pyarrow.RecordBatchReader`` and the batch's id. It has done its work when it returns; then the batch
        is committed. The reader has the columns of :func:`scan`, and reads once, inside of ``fn``.
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
        The columns of the reader, in this order; None: all.
    decode : pyarrow.Schema, Decoding or None
        The fields of payloads, which are decoded to a column ``body``; those that do not fit are in ``undecodable``.
    in_flight : int
        How many batches run at once, each in a thread of its own. They are committed in their order.
    lock_timeout : float, seconds
        How long to wait for another drain of the group to end, of any engine, or for a program that has the
            queue open alone.
    on_progress : callable or None
        Called with a :class:`DrainProgress` after each batch.

    Raises
    ------
    ConfigError
        pyarrow is missing, or an argument cannot be.
    """

    def __init__(
        self,
        queue: str | os.PathLike[str] | PersistentQueue,
        fn: RunBatch,
        *,
        queues: str | None = None,
        max_bytes: int | None = MAX_BYTES,
        max_messages: int | None = None,
        group: str = DEFAULT_GROUP,
        columns: Sequence[str] | None = None,
        decode: pa.Schema | Decoding | None = None,
        in_flight: int = 1,
        lock_timeout: float = 0,
        on_progress: Callable[[DrainProgress], object] | None = None,
    ) -> None:
        options = DrainOptions(max_bytes, max_messages, group, lock_timeout, on_progress, in_flight)
        super().__init__(queue, ArrowEngine(fn, columns, decode, has_queue=queues is not None), options, queues)


def drain(
    queue: str | os.PathLike[str] | PersistentQueue,
    fn: RunBatch,
    *,
    queues: str | None = None,
    max_bytes: int | None = MAX_BYTES,
    max_messages: int | None = None,
    group: str = DEFAULT_GROUP,
    columns: Sequence[str] | None = None,
    decode: pa.Schema | Decoding | None = None,
    in_flight: int = 1,
    until: str = "snapshot",
    lock_timeout: float = 0,
    on_progress: Callable[[DrainProgress], object] | None = None,
) -> DrainReport:
    """Drain a queue: parameters and errors as :class:`ArrowDrainer` and its :meth:`~ArrowDrainer.run`.

    SIGINT and SIGTERM end it after the current batches, if it runs in the main thread; a second one interrupts.
    """
    drainer = ArrowDrainer(
        queue,
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
    )
    with stopped_by_signals(drainer.stop):
        return drainer.run(until)

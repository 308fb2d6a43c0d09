"""``spark.readStream.format("holdfast")`` with the option ``queues``: the logs of many queues as one stream.

A queue that is made later joins the stream with its oldest message; one that is deleted is an error, or, with
``failOnDataLoss=false``, leaves it. docs/spark-stream.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.arrow.reading.many_queues import check_patterns, queues_named
from holdfast.errors import QueueNotFoundError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.spark.streaming.many_offset import ManyOffset
from holdfast.spark.streaming.offset import StreamOffset
from holdfast.spark.streaming.places import NO_LIMIT
from holdfast.spark.streaming.queue_stream import Ahead, QueueStream
from holdfast.spark.streaming.source import BatchReader, Fields

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

    from holdfast.arrow.reading.row_maker import RowMaker
    from holdfast.spark.reading.queue_reader import QueuePartition
    from holdfast.spark.streaming.options import StreamOptions

logger = logging.getLogger("holdfast")


class ManyQueuesStreamReader(BatchReader):
    """One stream of many queues: parameters as :class:`BatchReader`; the path is that of their directory."""

    def __init__(self, options: StreamOptions, rows: RowMaker) -> None:
        super().__init__(options, rows)
        assert options.queues is not None, "else it is a stream of one queue"
        self._patterns = check_patterns(options.queues)
        self._streams: dict[str, QueueStream] = {}
        self._initial: Fields | None = None
        self._available: frozenset[str] | None = None

    # -- Where the stream is -----------------------------------------------------------------------------------------

    def initialOffset(self) -> Fields:  # noqa: N802  # Spark's own name, as those below
        """Return the start of a stream without a checkpoint: in each queue that is there."""
        if self._initial is None:
            queues = {path.name: self._stream(path.name).begin() for path in self._named()}
            self._initial = ManyOffset(queues).to_fields()
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the available messages of the queues that are there: the query ends with them."""
        self._is_available_now = True
        names = [path.name for path in self._named()]
        for name in names:
            self._stream(name).prepare_for_available_now()
        self._available = frozenset(names)

    def latestOffset(self, start: Fields, limit: ReadLimit) -> Fields:  # noqa: N802
        """Return the end of the batch that begins at ``start``; that itself if there is nothing more."""
        before = ManyOffset.parse(start)
        left = {name: place for name, place in before.queues.items() if not self._is_named(name)}
        ahead = dict(self._ahead(before))
        late = dict(self._late(set(ahead)))
        joined = {name: each.place.offset for name, each in late.items()}
        ahead |= late
        ends = left | {name: each.place for name, each in ahead.items()}
        is_changed = set(before.queues) - set(ends) or any(each.is_rewound for each in ahead.values())
        waiting = {name: each for name, each in ahead.items() if each.count and not each.is_rewound}
        count = sum(each.count for each in waiting.values())
        at = sum(each.place.offset for each in waiting.values())
        if waiting and self._is_worth_it(at, count, limit):
            ends |= self._limited(waiting, limit)
        elif not is_changed:
            return start
        known = {name: place for name, place in ends.items() if name not in joined or place.offset > joined[name]}
        return ManyOffset(known, {name: joined[name] for name in joined if name in known}).to_fields()

    def _ahead(self, before: ManyOffset) -> Iterator[tuple[str, Ahead]]:
        """Yield what is ahead in each queue that the stream knows, and that is still there and named."""
        for name, place in before.queues.items():
            if self._is_named(name) and self._is_there(name, place):
                yield name, self._stream(name).ahead(place)

    def _late(self, known: set[str]) -> Iterator[tuple[str, Ahead]]:
        """Yield what is in the queues that the stream does not know."""
        try:
            named = self._named()
        except QueueNotFoundError:  # said when it is one that the stream knows
            return
        for path in named:
            if path.name not in known and (self._available is None or path.name in self._available):
                stream = self._stream(path.name)
                yield path.name, stream.ahead(stream.begin(is_late=True))

    def _limited(self, waiting: dict[str, Ahead], limit: ReadLimit) -> dict[str, StreamOffset]:
        """Return the ends of a batch: each queue has its share, one message at least; what one leaves others get."""
        messages, size = self._limits(limit)
        size_share = size if size == NO_LIMIT else max(1, size // len(waiting))
        ends = {}
        for place, (name, ahead) in enumerate(sorted(waiting.items(), key=lambda each: each[1].count)):
            share = messages if messages == NO_LIMIT else max(1, messages // (len(waiting) - place))
            ends[name] = self._stream(name).next(ahead, share, size_share)
            messages -= 0 if messages == NO_LIMIT else ends[name].offset - ahead.place.offset
        return ends

    def reportLatestOffset(self) -> Fields:  # noqa: N802
        """Return the ends of the logs, for Spark's reports of progress."""
        return ManyOffset({path.name: self._stream(path.name).latest() for path in self._named()}).to_fields()

    # -- What a batch is ---------------------------------------------------------------------------------------------

    def partitions(self, start: Fields, end: Fields) -> Sequence[QueuePartition]:
        """Plan a batch: the same messages whenever the offsets are the same."""
        before, behind = ManyOffset.parse(start), ManyOffset.parse(end)
        planned = []
        for name, last in behind.queues.items():
            first = behind.start_of(name, before)
            if last.offset > first.offset and self._is_there(name, last):
                planned.append(self._stream(name).plan(first, last))
        return self._tasks(planned)

    def commit(self, end: Fields) -> None:
        """Finish messages that Spark does not need any more; after a failure this is done with the next batch."""
        for name, place in ManyOffset.parse(end).queues.items():
            if self._is_same(name, place):  # else the next batch says that it was deleted
                self._stream(name).commit(place)

    # -- The queues --------------------------------------------------------------------------------------------------

    def _stream(self, name: str) -> QueueStream:
        if name not in self._streams:
            self._streams[name] = QueueStream(replace(self._options, path=self._options.path / name))
        return self._streams[name]

    def _named(self) -> list[Path]:
        return queues_named(OsStorage(), self._options.path, self._patterns)

    def _is_named(self, name: str) -> bool:
        """Whether the option names a queue, which may have changed since the checkpoint was begun."""
        return any(fnmatchcase(name, each) for each in self._patterns)

    def _is_there(self, name: str, place: StreamOffset) -> bool:
        """Whether a queue of the stream was not deleted since; raises QueueNotFoundError if that is an error."""
        if self._is_same(name, place):
            return True
        path = self._options.path / name
        message = f"the queue {path} of this stream was deleted; what the stream has not read of it is gone"
        if self._options.fail_on_data_loss:
            raise QueueNotFoundError(f"{message}: continue without it with failOnDataLoss=false", path=str(path))
        logger.warning("%s", message)
        self._streams.pop(name, None)
        return False

    def _is_same(self, name: str, place: StreamOffset) -> bool:
        try:
            return self._stream(name).look().queue_id.hex() == place.queue_id
        except QueueNotFoundError:
            return False

"""The stream of one queue: where it begins, how far a batch goes, what is in it, and what may be finished.

Every answer comes from the places that Spark hands over and from the files; everything else that is remembered only
saves time. Only :meth:`QueueStream.commit` and the making of a group change anything.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from holdfast.arrow.reading.file_range import FileRange, Runs
from holdfast.errors import ConfigError, DiskFullError, RetryableError, StorageError
from holdfast.persistence.filesystem.storage import OsStorage, storage_errors
from holdfast.spark.streaming.group import begin_group, finish_below, never_there, unfinished_from
from holdfast.spark.streaming.log import StreamLog
from holdfast.spark.streaming.offset import StreamOffset
from holdfast.spark.streaming.options import StreamOptions
from holdfast.spark.streaming.places import NO_LIMIT, Places

logger = logging.getLogger("holdfast")


_RUNS_SAID = 20
"""Of a merged file, each message may lie between two that are gone."""


class MessagesGoneError(StorageError):
    """Messages that a stream has not read are not in the log any more. Attributes: ``path``, ``offsets``."""

    code = "messages_gone"


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is behind a place in the log, when it was looked at.

    Attributes
    ----------
    log : StreamLog
        The log.
    place : StreamOffset
        Where the next batch begins.
    end : int
        How far it may go.
    is_rewound : bool
        Whether the log had ended before the place, which is its end now.
    """

    log: StreamLog
    place: StreamOffset
    end: int
    is_rewound: bool = False

    @property
    def count(self) -> int:
        """How many messages wait."""
        return max(0, self.end - self.place.offset)


class QueueStream:
    """One stream of one queue.

    Parameters
    ----------
    options : StreamOptions
        What to read, and how; its path is the queue.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._places = Places()
        self._available_end: int | None = None
        self._group_id = ""
        self._finished_below = 0

    def begin(self, *, is_late: bool = False) -> StreamOffset:
        """Return the start without a checkpoint; its group is made, so that nothing is lost from there.

        A queue that is late, because it was made while the stream ran, begins with its oldest message.
        """
        log, options = self.look(), self._options
        if is_late:
            offset = log.first_from(0)
        elif options.timestamp_start_ns:
            offset = log.first_since(options.timestamp_start_ns)
        elif options.offset_start is None:
            offset = log.end if options.group is None else unfinished_from(log, options.group)
        elif options.offset_start > log.end:
            raise ConfigError(f"startingOffset is {options.offset_start}, and {options.path} ends at {log.end}")
        else:
            offset = log.first_from(options.offset_start)
        group_id = ""
        if options.group is not None:
            group = begin_group(log, options.group, offset)
            offset, group_id = max(offset, group.start_offset), group.group_id.hex()
        return StreamOffset(log.queue_id.hex(), group_id, offset)

    def prepare_for_available_now(self) -> None:
        """Note the available messages: the query ends with them."""
        self._available_end = self.look().end

    def ahead(self, place: StreamOffset) -> Ahead:
        """Return what a batch that begins at a place may have."""
        log = self.look()
        self.check_queue(log, place)
        place = self._kept(log, place)
        if place.offset > log.end:
            self._lose(log, place, ((log.end, place.offset),))
            return Ahead(log, place.rewound(log.end), log.end, is_rewound=True)
        return Ahead(log, place, log.end if self._available_end is None else min(log.end, self._available_end))

    def next(self, ahead: Ahead, max_messages: int, max_bytes: int) -> StreamOffset:
        """Return the end of a batch: one message at least, if one waits."""
        log, place, reached = ahead.log, ahead.place, ahead.end
        if min(max_messages, max_bytes) < NO_LIMIT:
            with storage_errors("planning a batch", log.directory.root):
                reached = self._places.limited_end(log, place.offset, ahead.end, max_messages, max_bytes)
        if reached == log.end:
            self._places.note_end(log)
        return place.next(reached, self._options.retain_batches)

    def latest(self) -> StreamOffset:
        """Return the end of the log, for Spark's reports of progress."""
        log = self.look()
        return StreamOffset(log.queue_id.hex(), self._group_id, log.end)

    def plan(self, first: StreamOffset, last: StreamOffset) -> tuple[StreamLog, list[FileRange]]:
        """Return the parts of a batch: the same messages whenever the places are the same."""
        log = self.look()
        self.check_queue(log, first)
        self.check_queue(log, last)
        if last.offset <= first.offset:
            return log, []
        with storage_errors("planning a batch", log.directory.root):
            parts, gaps = log.between(first.offset, last.offset)
            self._lose(log, first, gaps)
            if parts:
                position = self._places.position_of(log, parts[0].name, parts[0].start)
                parts[0] = replace(parts[0], position=position)
        return log, parts

    def commit(self, place: StreamOffset) -> None:
        """Finish messages that Spark does not need any more; after a failure this is done with the next batch."""
        options = self._options
        offset = place.finished_below(options.retain_batches)
        if options.group is None or offset is None or offset <= self._finished_below:
            return
        log = self.look()
        self.check_queue(log, place)
        try:
            finish_below(log, options.group, offset)
        except (RetryableError, DiskFullError) as error:
            logger.warning("messages below %d stay until a later batch is committed: %s", offset, error)
        else:
            self._finished_below = offset

    def _kept(self, log: StreamLog, place: StreamOffset) -> StreamOffset:
        """Return a place with the group that keeps the messages behind it.

        That is checked once: the group may have been deleted and created again, or the stream had none before.
        """
        group = self._options.group
        if group is not None and not self._group_id:
            group_id = begin_group(log, group, min([place.offset, *place.before])).group_id.hex()
            if group_id != place.group_id:  # the group ignores messages that are gone by now, but this stream does not
                self._lose(log, place, self.look().between(place.offset, log.end)[1])
            self._group_id = group_id
        return replace(place, group_id=self._group_id)

    def look(self) -> StreamLog:
        """Return the log as it is now."""
        with storage_errors("looking at a queue", self._options.path):
            return StreamLog.look(OsStorage(), self._options.path)

    def check_queue(self, log: StreamLog, place: StreamOffset) -> None:
        """Raise ConfigError if a place is one of another queue."""
        if place.queue_id != log.queue_id.hex():
            raise ConfigError(
                f"the checkpoint is of queue {place.queue_id}, and {log.directory.root} is queue {log.queue_id.hex()}: "
                "give the stream a new checkpoint"
            )

    def _lose(self, log: StreamLog, place: StreamOffset, gaps: Runs) -> None:
        """Report which messages are gone, as an error or as a warning."""
        lost = gaps
        if gaps and self._options.group is not None:
            lost = _outside(gaps, never_there(log, self._options.group, place.group_id))
        if not lost:
            return
        offsets = ", ".join(f"{first}..{end - 1}" for first, end in lost[:_RUNS_SAID])
        offsets += f" and {len(lost) - _RUNS_SAID} more runs" if len(lost) > _RUNS_SAID else ""
        message = (
            f"messages {offsets} of {log.directory.root} are gone: every group finished them before this stream read "
            "them, or their ttl was over in it, or they were lost with the end of the log"
        )
        if self._options.fail_on_data_loss:
            raise MessagesGoneError(
                f"{message}; read the rest with failOnDataLoss=false. The option group keeps what is not read, but for "
                "messages whose ttl is over",
                path=str(log.directory.root),
                offsets=[range(*run) for run in lost],
            )
        logger.warning("%s", message)


def _outside(gaps: Runs, others: Runs) -> Runs:
    """Return what of ascending ranges is in none of other ascending ones."""
    left, at = [], 0
    for first, end in gaps:
        while at < len(others) and others[at][1] <= first:
            at += 1
        place = at
        while place < len(others) and others[place][0] < end:
            if first < others[place][0]:
                left.append((first, others[place][0]))
            first, place = others[place][1], place + 1  # noqa: PLW2901  # the rest of it
        if first < end:
            left.append((first, end))
    return tuple(left)

"""The dispatcher: decides which message a consumer group gets next. docs/work-queue.md, "What comes next".

First deferred messages, if it is their turn (``deferred_messages.py``); then the others in the order of the log.
Messages of a priority are searched ahead, if the queue has any at all.

The caller holds the take lock around everything here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from holdfast.errors import StorageError
from holdfast.persistence.format.constants import NUMBER_MAX
from holdfast.persistence.format.message_options import NO_OPTIONS, decode_options, has_options
from holdfast.persistence.format.report import Damage
from holdfast.persistence.log.log_reader import CHUNK_BYTES, Record
from holdfast.queue.dispatch.deferred_messages import FILTERED, DeferredMessages
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.dispatch.log_cursor import GroupLog, LogCursor
from holdfast.queue.dispatch.progress_store import ProgressStore
from holdfast.queue.dispatch.taken_runs import TakenRuns

PREFETCH_COUNT = 64
"""Records decoded ahead of single takes; their bytes are bounded by one chunk of the reader."""

TAKE_BYTES = 4 * CHUNK_BYTES
"""A take of many messages reads no further than this, so that its memory does not follow how many are asked for."""

_READ_PER_WANTED_MAX = 64.0
"""Messages read for each one that matches; a read is bounded by one chunk of the reader besides."""

_AHEAD_COUNT = 256

_DEFERRED_COUNT_MAX = 1024
"""Messages that wait aside are held in memory until they are taken."""


class Dispatcher:
    """The messages that a group can take, now or later.

    Parameters
    ----------
    log : GroupLog
        The log to read: the start, and the messages that are finished, held or dead.
    in_flight : mapping of int to Delivery
        Messages that are handed out, by offset.
    is_last : callable
        Whether a message that was handed out so often is not delivered again.
    time_ns : callable
        The wall clock.
    end : callable
        Called with messages that are not delivered any more, and why: ``EXPIRED``, ``EXHAUSTED`` or ``FILTERED``.

    Attributes
    ----------
    deferred : DeferredMessages
        Those that wait for something.
    must_read_anew : bool
        A take was cut short, or messages were dropped: read unfinished messages from the log again.
    left_out : list of Record
        Messages that the filter leaves out and that have yet to end: with those that :meth:`take` returns, or by
        :meth:`end_left_out`. Empty between takes, or the log is read anew.
    """

    def __init__(
        self,
        log: GroupLog,
        in_flight: Mapping[int, Delivery],
        is_last: Callable[[int], bool],
        time_ns: Callable[[], int],
        end: Callable[[Sequence[tuple[Record, str]]], None],
    ) -> None:
        self._source, progress = log.source, log.progress
        self._filter = log.message_filter
        self._cursor = LogCursor(log)
        self._cursor.go_to_floor()
        self._ahead = LogCursor(log)
        self._ahead_end = 0
        self._progress = progress
        self._time_ns = time_ns
        self._end = end
        self.deferred = DeferredMessages(self._cursor, progress, in_flight, is_last, time_ns)
        self._deferred_ready = self.deferred.ready.heap  # checked before every take, as the next one
        self._scheduled = self.deferred.schedule.heap
        self._ready: deque[Record] = deque()
        self._has_ends = False  # whether one of those may be over its time
        self._known_end = progress.touched_end
        self.must_read_anew = False
        self.left_out: list[Record] = []
        self._left_out_bytes = 0
        self._read_per_wanted = 1.0

    def begin(self, progress_store: ProgressStore) -> None:
        """Continue with the progress store of a group that has begun."""
        self._progress = progress_store.progress
        self._known_end = max(self._known_end, progress_store.progress.touched_end)
        self.deferred.begin(progress_store.progress)
        self._cursor.begin(progress_store)
        self._ahead.begin(progress_store)

    # -- Taking ------------------------------------------------------------------------------------------------------

    def take_one(self) -> Record | None:
        """Return the next message as :meth:`take` would; None if the log is read first, or messages may expire.

        Here alone is decided which messages take the fast lane.
        """
        if self.must_read_anew:
            return None
        if (
            self._deferred_ready
            or (self._scheduled and self._is_due)
            or self._source.prioritized_end() > self._ahead_end
        ):
            records = self._take_deferred(1, alone=True)
            return records[0] if records else None
        return self._ready.popleft() if self._ready and not self._has_ends else None

    def take(self, count_max: int, *, alone: bool = False) -> list[Record]:
        """Return the next messages; ``alone``: a redelivered message comes alone."""
        if (
            self._deferred_ready
            or (self._scheduled and self._is_due)
            or self._source.prioritized_end() > self._ahead_end
        ):
            records = self._take_deferred(count_max, alone=alone)
            if records:
                return records
        ready = self._ready
        while True:
            if len(ready) < count_max:
                self._fill(count_max)
                if self._deferred_ready and (records := self._take_deferred(count_max, alone=alone)):
                    return records  # handed out before, so deferred and not in their order
                if not ready:
                    self.end_left_out()
                    return []
            if count_max == 1 and not self._has_ends:
                return [ready.popleft()]
            if count_max < len(ready):
                records = [ready.popleft() for _ in range(count_max)]
            else:
                records = list(ready)
                ready.clear()
            if self._has_ends:
                records = self.deferred.without_expired(records)
                self._tell_ended()
            if records:
                return records

    @property
    def _is_due(self) -> bool:
        next_due = self.deferred.next_due_ns
        return next_due is not None and next_due <= self._time_ns()

    def _take_deferred(self, count_max: int, *, alone: bool, end_offset: int = NUMBER_MAX) -> list[Record]:
        """Return deferred messages in front of ``end_offset``, if any of them may be handed out now."""
        end = self._source.prioritized_end()
        if end > self._ahead_end:
            self._look_ahead(end)
        if self._scheduled:
            self.deferred.bring_due()
        while True:
            records = self.deferred.pop(count_max, alone=alone, end_offset=end_offset)
            if not self.deferred.ended:
                return records
            self._tell_ended()
            if records:  # else those may be ready now that waited for ended messages
                return records

    def _tell_ended(self) -> None:
        deferred = self.deferred
        while deferred.ended:
            ended = deferred.ended
            if self._cursor.progress_store is not None:  # else they end at the first take, which reads all of it again
                self._end(ended)
            deferred.ended = []
            deferred.leave([record for record, _ in ended])

    # -- Taking for a reservation ------------------------------------------------------------------------------------

    def take_runs(self, taken: TakenRuns) -> None:
        """Take the next messages, as many as fit: all of it will be held as one.

        So messages of one order key do not wait for each other here, and those that were handed out before do not come
        alone. The caller has the log read again after that if there are order keys.
        """
        while not taken.is_full and (self._take_records(taken) or self._take_plain(taken)):
            pass
        self.end_left_out()

    def _take_records(self, taken: TakenRuns) -> bool:
        """Take deferred messages, then those that were read ahead; return whether there may be more of them."""
        count, left = taken.count, []
        if (
            self._deferred_ready
            or (self._scheduled and self._is_due)
            or self._source.prioritized_end() > self._ahead_end
        ):
            count_max = min(taken.count_left, _DEFERRED_COUNT_MAX)
            for record in self._take_deferred(count_max, alone=False, end_offset=taken.end_offset):
                if not taken.add(record):
                    left.append(record)
                else:
                    self.deferred.leave((record,))
            self.deferred.put_back(left)
        has_ended = self._end_expired()  # then those may be ready now that waited for them
        ready = self._ready
        while ready and not taken.is_full and ready[0][0] < taken.end_offset and taken.add(ready[0]):
            self.deferred.leave((ready.popleft(),))
        return has_ended or taken.count > count

    def _take_plain(self, taken: TakenRuns) -> bool:
        """Take messages that need not be read, or else read on; return whether there was anything more to read."""
        cursor, before = self._cursor, self._cursor.next_offset
        if self._ready or cursor.next_offset >= taken.end_offset:
            return False
        if self._filter is None and cursor.next_offset >= max(self._known_end, self._progress.seen_end):
            # nothing is known of those
            count_max = min(taken.count_left, taken.end_offset - cursor.next_offset)
            run = cursor.pass_plain(count_max, taken.bytes_left)
            if run is not None:
                taken.add_run(run)
                return True
        self._read_on(PREFETCH_COUNT)
        self._tell_ended()
        return cursor.next_offset > before

    # -- Reading -----------------------------------------------------------------------------------------------------

    def _fill(self, count: int) -> None:
        """Have so many messages ready in their order; fewer at the end of the log, or if they are large."""
        try:
            self._read_on(max(count, PREFETCH_COUNT), count)
        except StorageError:
            if not self._ready:  # else those are handed out, and the next take meets the error again
                raise

    def _read_on(self, count_max: int, wanted_count: int = 1) -> None:
        """Read the log on until messages are ready in their order, ``TAKE_BYTES`` were read, or the log ends."""
        cursor, ready = self._cursor, self._ready
        if not ready:
            self._has_ends = False
        read_bytes = 0
        while len(ready) < wanted_count and (not ready or read_bytes < TAKE_BYTES):
            records = self._read(count_max - len(ready))  # no more than is wanted: then all of it is handed out
            if not records:
                return
            first, last = records[0], records[-1]  # of one data file
            read_bytes += len(first[3]) + last[4] - first[4]
            if cursor.has_seen_headers or not self._is_new(first[0]):
                ready.extend(self._admitted(records))
            else:
                ready.extend(records)

    def _read(self, count_max: int) -> list[Record]:
        """Return the next records of the log that the group gets, none at its end; the others are left out.

        There are about ``count_max`` if as many match as of those that were read before.
        """
        if self._filter is None:
            return self._cursor.read(count_max)
        if self._left_out_bytes >= TAKE_BYTES:
            self.end_left_out()
        passes, progress, left_out = self._filter.passes, self._progress, self.left_out
        known_end = NUMBER_MAX if progress.deliveries or progress.dead or progress.votes else progress.finished_end
        while records := self._cursor.read(round(count_max * self._read_per_wanted)):
            wanted: list[Record] = []
            for record in records:
                is_wanted = passes(record[0], record[1], record[2], len(record[3]))
                is_wanted = is_wanted or (record[0] < known_end and self._is_known(record[0]))
                (wanted if is_wanted else left_out).append(record)
            self._left_out_bytes += len(records[0][3]) + records[-1][4] - records[0][4]
            self._read_per_wanted = min(len(records) / max(1, len(wanted)), _READ_PER_WANTED_MAX)
            if wanted:
                return wanted
            self.end_left_out()
        return []

    def end_left_out(self) -> None:
        """End the messages that the filter has left out so far."""
        if self.left_out:
            self._end([(each, FILTERED) for each in self.left_out])
        self.forget_left_out()

    def forget_left_out(self) -> None:
        """Take note that these messages have ended, or are read again."""
        self.left_out.clear()
        self._left_out_bytes = 0

    def _is_new(self, offset: int) -> bool:
        """Whether nothing is known of a message that is read, nor of those behind it."""
        progress = self._progress
        return offset >= max(progress.finished_end, self._known_end) and not progress.votes

    def _is_known(self, offset: int) -> bool:
        """Whether something was done with a message already: then it has passed the filter, or is finished."""
        progress = self._progress
        return (
            offset in progress.deliveries
            or offset in progress.dead
            or progress.is_finished(offset)
            or progress.is_held(offset)
        )

    def _admitted(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield those that are ready in the order of the log; the others are deferred."""
        for record in records:
            options = decode_options(record[2]) if has_options(record[2]) else NO_OPTIONS
            if options.priority and record[0] < self._ahead_end:
                continue
            if self.deferred.admit(record, options, in_order=True):
                self._has_ends = self._has_ends or options.expires_ns > 0
                yield record

    def _look_ahead(self, end: int) -> None:
        """Find the messages of a priority that are behind others, up to ``end``."""
        start = max(self._ahead_end, self._cursor.next_offset)  # the messages before it have been found
        if start - self._ahead.next_offset > _AHEAD_COUNT:
            self._ahead.go_to(start)
        while self._ahead.next_offset < end:
            records = self._ahead.read(_AHEAD_COUNT, end)
            if not records:
                break
            admit = self.deferred.admit_new if self._is_new(records[0][0]) else self.deferred.admit_deferred
            for record in records:
                if not record[2] or record[0] < start or not (options := decode_options(record[2])).priority:
                    continue
                if (
                    self._filter is None
                    or self._filter.passes(record[0], record[1], record[2], len(record[3]))
                    or self._is_known(record[0])
                ):
                    admit(record, options)  # else it ends when reading comes to it
            self._ahead_end = max(self._ahead.next_offset, start)

    def give_back(self, records: Iterable[Record]) -> None:
        """Defer messages that were handed out until their time; then they can be taken again.

        Messages that reading has yet to reach, because it went back meanwhile, are found later: here they would come
        twice.
        """
        self.deferred.give_back(
            [each for each in records if self._is_passed(each) or self._progress.is_finished(each[0])]
        )

    def _is_passed(self, record: Record) -> bool:
        """Whether reading will not reach a message any more."""
        if record[0] < self._cursor.next_offset:
            return True
        return record[0] < self._ahead_end and has_options(record[2]) and decode_options(record[2]).priority > 0

    def find(self, offset: int) -> Record | None:
        """Return the record of an offset; None if it is damaged, or not there."""
        return self._cursor.find(offset)

    def revive(self, offset: int) -> None:
        """Have a dead letter taken again, which is none any more."""
        record = self._cursor.find(offset) if offset < max(self._cursor.next_offset, self._ahead_end) else None
        if record is None:
            return  # comes with the others, or is damaged
        options = decode_options(record[2])
        if offset < self._cursor.next_offset or options.priority:
            self.deferred.admit_deferred(record, options)

    def read_anew(self) -> None:
        """Go back to the oldest unfinished message."""
        read_end = max(self._cursor.next_offset, self._ahead.next_offset)
        self._known_end = max(self._known_end, read_end, self._progress.touched_end)
        self._ready.clear()
        self.forget_left_out()
        self.deferred.clear()
        self._ahead_end = 0
        self._cursor.go_to_floor()
        self._ahead.go_to_floor()
        self.must_read_anew = False

    # -- Looking -----------------------------------------------------------------------------------------------------

    @property
    def may_have_more(self) -> bool:
        """Whether another take may find something."""
        if self._ready or self._deferred_ready or self.must_read_anew:
            return True
        return self._source.end()[2] > self._cursor.next_offset or self._is_due

    def peek(self, count_max: int) -> list[Record]:
        """Return the messages that would be taken next, which stay; those whose time is over end, as in a take."""
        if self.must_read_anew:
            self.read_anew()
        while True:
            first = self._take_deferred(count_max, alone=False)
            self.deferred.put_back(first)
            deferred_count = len(self._deferred_ready)
            while len(first) + len(self._ready) < count_max and (more := self._read(count_max)):
                self._ready.extend(self._admitted(more))
            if not self._end_expired() and len(self._deferred_ready) == deferred_count:
                self.end_left_out()
                return first + list(islice(self._ready, count_max - len(first)))

    def _end_expired(self) -> bool:
        """End those whose time is over of the ones that are ready; return whether there were any."""
        if not self._has_ends:
            return False
        left = self.deferred.without_expired(self._ready)
        has_ended = len(left) < len(self._ready)
        self._ready.clear()
        self._ready.extend(left)
        self._tell_ended()
        return has_ended

    def oldest(self) -> list[tuple[int, int]]:
        """Return timestamp and offset of the oldest messages, of all that wait here or in the log."""
        progress = self._progress
        is_there = self._filter is not None or progress.floor < self._cursor.next_offset
        if is_there and progress.floor not in progress.dead:
            record = self._cursor.find(progress.floor)
            return [(record[1], record[0])] if record is not None else []
        if not self._ready and self._filter is None:  # else that could end the whole log
            self._read_on(PREFETCH_COUNT)
        first = [self._cursor.look_up(each) for each in self.deferred.ready.first(1)]
        return [(record[1], record[0]) for record in [*first, *list(self._ready)[:1]] if record is not None]

    @property
    def damage(self) -> list[Damage]:
        """The damage that reading has met."""
        return self._cursor.damage + self._ahead.damage

    def rest(self) -> None:
        """Close data files that were not read since the last call, until they are read on."""
        self._cursor.rest()
        self._ahead.rest()

    def close(self) -> None:
        """Close the data files."""
        self._cursor.close()
        self._ahead.close()

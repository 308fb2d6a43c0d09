"""What a consumer group takes next. docs/work-queue.md, "What comes next".

Messages come in the order of the log. Aside of it wait, as references: those of a priority, looked for ahead;
those that were handed out before; those whose time has not come; and those whose order key another one has.

The caller holds the take lock around everything here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from holdfast.persistence.data_file_reader import Record
from holdfast.persistence.format import PRIORITY_MAX
from holdfast.persistence.message_options import NO_OPTIONS, MessageOptions, decode_options, has_options
from holdfast.persistence.progress import GroupProgress
from holdfast.persistence.report import Damage
from holdfast.queue.books import GroupBooks
from holdfast.queue.delivery import Delivery
from holdfast.queue.log_cursor import LogCursor, MakeReader
from holdfast.queue.order_keys import OrderKeys
from holdfast.queue.peeking import Peeking
from holdfast.queue.references import RANK_SHIFT, RankedReferences, reference_to, unpack
from holdfast.queue.retry_policy import RetryPolicy
from holdfast.queue.sources import Source

PREFETCH_COUNT = 64
"""Records decoded ahead of single takes; their bytes are bounded by one chunk of the reader."""

_AHEAD_COUNT = 256
_RANK_BITS = 4

EXPIRED = "expired"
EXHAUSTED = "max_deliveries"


class Backlog(Peeking):
    """The messages that a group can take, now or later.

    Parameters
    ----------
    source : Source
        How far may be read.
    make_reader : callable
        Makes the readers.
    progress : GroupProgress
        Where to start, and what is finished, held or dead.
    in_flight : mapping of int to Delivery
        Messages that are handed out, by offset.
    path : Path
        The group's directory, for errors.
    policy : RetryPolicy
        How often a message is handed out.
    time_ns : callable
        The wall clock.
    end : callable
        Told of messages that are not to be handed out any more, and why: ``EXPIRED`` or ``EXHAUSTED``.

    Attributes
    ----------
    must_read_anew : bool
        A take was cut short, or messages were let go of: read what is unfinished from the log again.
    """

    def __init__(
        self,
        source: Source,
        make_reader: MakeReader,
        progress: GroupProgress,
        in_flight: Mapping[int, Delivery],
        path: Path,
        policy: RetryPolicy,
        time_ns: Callable[[], int],
        end: Callable[[Sequence[tuple[Record, str]]], None],
    ) -> None:
        self._source = source
        self._cursor = LogCursor(source, make_reader, progress, path)
        self._ahead = LogCursor(source, make_reader, progress, path)
        self._ahead_end = 0
        self._progress = progress
        self._in_flight = in_flight
        self._policy = policy
        self._time_ns = time_ns
        self._end = end
        self._ready: deque[Record] = deque()
        self._has_ends = False  # whether one of those may be over its time
        self._aside = RankedReferences()  # by PRIORITY_MAX - priority
        self._schedule = RankedReferences()  # by the time, and behind it the rank it will have
        self._keys = OrderKeys()
        self._ended: list[tuple[Record, str]] = []
        self._known_end = progress.touched_end
        self.must_read_anew = False

    def begin(self, books: GroupBooks) -> None:
        """Go on with the books of a group that has begun."""
        self._progress = books.progress
        self._known_end = max(self._known_end, books.progress.touched_end)
        self._cursor.begin(books)
        self._ahead.begin(books)

    # -- Taking ------------------------------------------------------------------------------------------------------

    def take(self, count_max: int, *, alone: bool = False) -> list[Record]:
        """Return the next messages; ``alone``: one that was handed out before comes without company."""
        schedule = self._schedule
        if (
            self._aside.heap
            or self._source.prioritized_end > self._ahead_end
            or (schedule.heap and schedule.first_rank >> _RANK_BITS <= self._time_ns())
        ):
            records = self._take_aside(count_max, alone=alone)
            if records:
                return records
        ready = self._ready
        while True:
            if not ready:
                self._read_on(max(count_max, PREFETCH_COUNT))
                if self._ended:
                    self._tell_ended()
                if self._aside.heap and (records := self._take_aside(count_max, alone=alone)):
                    return records  # handed out before, so found aside and not in their order
                if not ready:
                    return []
            if count_max == 1 and not self._has_ends:
                return [ready.popleft()]
            if count_max < len(ready):
                records = [ready.popleft() for _ in range(count_max)]
            else:
                records = list(ready)
                ready.clear()
            if self._has_ends:
                records = self._without_expired(records)
                self._tell_ended()
            if records:
                return records

    def _take_aside(self, count_max: int, *, alone: bool) -> list[Record]:
        """Return messages that wait aside, if any of them may be handed out now."""
        self._look_ahead()
        self.bring_due()
        while True:
            records = self._pop_aside(count_max, alone=alone)
            self._tell_ended()
            if records or not self._aside.heap:  # else those wait there now that waited for what has ended
                return records

    def _pop_aside(self, count_max: int, *, alone: bool) -> list[Record]:
        aside, known = self._aside, self._progress.deliveries
        records: list[Record] = []
        while aside.heap and len(records) < count_max:
            _, packed = aside.pop()
            record = self._cursor.look_up(unpack(packed))
            if record is None:
                self._give_up_turn(unpack(packed).offset)
                continue
            if alone and records and record[0] in known:
                aside.push(self._rank(record), packed)
                break
            records += self._without_expired([record])
            if alone and records and records[0][0] in known:
                break
        return records

    def bring_due(self) -> None:
        """Make those ready whose time has come."""
        schedule = self._schedule
        if not schedule.heap:
            return
        now = self._time_ns()
        while schedule.heap and schedule.first_rank >> _RANK_BITS <= now:
            rank, packed = schedule.pop()
            self._aside.push(rank & 2**_RANK_BITS - 1, packed)

    def _look_ahead(self) -> None:
        """Find the messages of a priority that stand behind others."""
        end = self._source.prioritized_end
        if end <= self._ahead_end:
            return
        start = max(self._ahead_end, self._cursor.next_offset)  # what stands before it has been found
        if start - self._ahead.next_offset > _AHEAD_COUNT:
            self._ahead.go_to(start)
        while self._ahead.next_offset < end:
            records = self._ahead.read(_AHEAD_COUNT, end)
            if not records:
                break
            for record in records:
                if record[2] and record[0] >= start and (options := decode_options(record[2])).priority:
                    self._admit(record, options, in_order=False)
            self._ahead_end = max(self._ahead.next_offset, start)

    # -- Finding what can be taken -----------------------------------------------------------------------------------

    def _read_on(self, count_max: int) -> None:
        """Read the log on until a message is ready in its order, or the log ends."""
        cursor, progress, ready = self._cursor, self._progress, self._ready
        self._has_ends = False
        while not ready:
            records = cursor.read(count_max)
            if not records:
                return
            if cursor.has_seen_headers or records[0][0] < max(progress.finished_end, self._known_end) or progress.votes:
                ready.extend(self._admitted(records))
            else:
                ready.extend(records)

    def _admitted(self, records: Iterable[Record]) -> Iterable[Record]:
        for record in records:
            options = decode_options(record[2]) if has_options(record[2]) else NO_OPTIONS
            if options.priority and record[0] < self._ahead_end:
                continue
            if self._admit(record, options, in_order=True):
                self._has_ends = self._has_ends or options.expires_ns > 0
                yield record

    def _admit(self, record: Record, options: MessageOptions, *, in_order: bool) -> bool:
        """Put a message where it has to wait; return whether it is ready in the order of the log."""
        offset, packed, progress = record[0], 0, self._progress
        is_free = offset not in self._in_flight and not progress.is_held(offset) and offset not in progress.dead
        if progress.is_finished(offset) or offset in progress.dead:
            return False
        if options.order_key:
            packed = reference_to(record)
            if not self._keys.enter(options.order_key, offset, packed):
                return False
        return is_free and self._place(record, options, in_order=in_order)

    def _place(self, record: Record, options: MessageOptions, *, in_order: bool) -> bool:
        """Put a message that nobody holds back where it has to wait, or to those that are ready."""
        offset, progress = record[0], self._progress
        delivery_count = progress.deliveries.get(offset, 0)
        if delivery_count and self._policy.is_last(delivery_count):
            self._ended.append((record, EXHAUSTED))
            return False
        due_ns = self._due_ns(offset, options)
        rank = PRIORITY_MAX - options.priority
        if due_ns and due_ns > self._time_ns():
            when = min(due_ns, options.expires_ns or due_ns)
            self._schedule.push(when << _RANK_BITS | rank, reference_to(record))
            return False
        if in_order and not delivery_count and not options.priority:
            return True
        self._aside.push(rank, reference_to(record))
        return False

    @staticmethod
    def _rank(record: Record) -> int:
        return PRIORITY_MAX - decode_options(record[2]).priority

    def _without_expired(self, records: Sequence[Record]) -> list[Record]:
        """Return those whose time to live is not over; the others end."""
        left = self._still_good(records)
        if len(left) < len(records):
            self._ended += [(record, EXPIRED) for record in records if record not in left]
        return left

    def _tell_ended(self) -> None:
        while self._ended:
            ended = self._ended
            self._end(ended)
            self._ended = []
            self.leave([record for record, _ in ended])

    # -- What becomes of those that were taken -----------------------------------------------------------------------

    def give_back(self, records: Iterable[Record]) -> None:
        """Have messages wait for their time, and then be taken again."""
        for record in records:
            self._place(record, decode_options(record[2]), in_order=False)

    def leave(self, records: Iterable[Record]) -> bool:
        """Let those go on that waited for messages which are finished, or dead letters; return whether any did."""
        if not len(self._keys):
            return False
        has_moved = False
        for record in records:
            key = decode_options(record[2]).order_key if record[2] else ""
            if key and self._pass_turn(key, record[0]):
                has_moved = True
        return has_moved

    def _give_up_turn(self, offset: int) -> None:
        """Let those go on that waited for a message which cannot be read, whose key is known from its turn only."""
        key = self._keys.key_of(offset)
        if key is not None:
            self._pass_turn(key, offset)

    def _pass_turn(self, key: str, offset: int) -> bool:
        """End the turn of a message; return whether another one has it now."""
        packed = self._keys.leave(key, offset)
        while packed is not None:
            reference = unpack(packed)
            following = self._cursor.look_up(reference)
            if following is not None:
                self._admit(following, decode_options(following[2]), in_order=False)
                return True
            packed = self._keys.leave(key, reference.offset)
        return False

    def revive(self, offset: int) -> None:
        """Have a dead letter taken again, which is none any more."""
        record = self._cursor.find(offset) if offset < max(self._cursor.next_offset, self._ahead_end) else None
        if record is None:
            return  # comes with the others, or is damaged
        options = decode_options(record[2])
        if offset < self._cursor.next_offset or options.priority:
            self._admit(record, options, in_order=False)

    def read_anew(self) -> None:
        """Go back to the oldest unfinished message."""
        self._known_end = max(
            self._known_end, self._cursor.next_offset, self._ahead.next_offset, self._progress.touched_end
        )
        for waiting in (self._ready, self._aside, self._schedule, self._keys, self._ended):
            waiting.clear()
        self._ahead_end = 0
        self._cursor.go_to_floor()
        self._ahead.go_to_floor()
        for delivery in self._in_flight.values():
            if key := decode_options(delivery.record[2]).order_key:
                self._keys.enter(key, delivery.offset, 0)
        self.must_read_anew = False

    # -- Looking -----------------------------------------------------------------------------------------------------

    @property
    def may_have_more(self) -> bool:
        """Whether looking again may find something."""
        if (
            self._ready
            or self._aside.heap
            or self._ended
            or self.must_read_anew
            or self._source.end[2] > self._cursor.next_offset
        ):
            return True
        next_due = self.next_due_ns
        return next_due is not None and next_due <= self._time_ns()

    @property
    def next_due_ns(self) -> int | None:
        """When the next message is ready that waits for its time; None where there is none."""
        first = self._schedule.heap[:1]  # in one step: waiting threads ask this without the lock
        return first[0] >> RANK_SHIFT + _RANK_BITS if first else None

    @property
    def waiting_count(self) -> int:
        """Messages that wait for their time or their turn, as far as reading has come."""
        self.bring_due()
        return len(self._schedule) + self._keys.waiting_count

    def oldest_timestamps(self) -> list[int]:
        """Return when the oldest messages were put, of all that wait here or in the log."""
        progress = self._progress
        if progress.floor < self._cursor.next_offset and progress.floor not in progress.dead:
            record = self._cursor.find(progress.floor)
            return [record[1]] if record is not None else []
        if not self._ready:
            self._read_on(PREFETCH_COUNT)
        first = [self._cursor.look_up(each) for each in self._aside.first(1)]
        return [record[1] for record in [*first, *list(self._ready)[:1]] if record is not None]

    @property
    def has_order_keys(self) -> bool:
        """Whether any message has the turn of its key."""
        return len(self._keys) > 0

    @property
    def damage(self) -> list[Damage]:
        """What reading has met."""
        return self._cursor.damage + self._ahead.damage

    def close(self) -> None:
        """Let go of the data files."""
        self._cursor.close()
        self._ahead.close()

"""Deferred messages: those that wait outside the order of the log. docs/work-queue.md, "What comes next".

Those of a priority; those that were handed out before; those whose time has not come; and those whose order key another
one has. Each is a reference of a few bytes, and is read again when its turn comes.

The caller holds the take lock around everything but :attr:`DeferredMessages.next_due_ns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.persistence.format.constants import NUMBER_MAX, PRIORITY_MAX
from holdfast.persistence.format.message_options import MessageOptions, decode_options
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.log_reader import Record
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.dispatch.log_cursor import LogCursor
from holdfast.queue.dispatch.order_keys import OrderKeys
from holdfast.queue.dispatch.references import RANK_SHIFT, RankedReferences, offset_of, reference_to

_RANK_BITS = 4

EXPIRED = "expired"
EXHAUSTED = "max_deliveries"
FILTERED = "filtered"


class DeferredMessages:
    """Holds the messages that are not delivered in the order of the log.

    Parameters
    ----------
    cursor : LogCursor
        Reads messages again.
    progress : GroupProgress
        Which messages are finished, held or dead, and which were delivered or given back.
    in_flight : mapping of int to Delivery
        Messages that are handed out, by offset.
    is_last : callable
        Whether a message that was handed out so often is not delivered again.
    time_ns : callable
        The wall clock.

    Attributes
    ----------
    ready : RankedReferences
        Those whose turn it is: larger priorities first, then in offset order.
    schedule : RankedReferences
        Those that wait for their time.
    active_keys : dict
        Of :class:`OrderKeys`: empty if no message has the turn of a key.
    ended : list of tuple of Record and str
        Those that are not delivered any more, and why: ``EXPIRED`` or ``EXHAUSTED``.
    """

    def __init__(
        self,
        cursor: LogCursor,
        progress: GroupProgress,
        in_flight: Mapping[int, Delivery],
        is_last: Callable[[int], bool],
        time_ns: Callable[[], int],
    ) -> None:
        self._cursor = cursor
        self._progress = progress
        self._in_flight = in_flight
        self._is_last = is_last
        self._time_ns = time_ns
        self.ready = RankedReferences()  # by PRIORITY_MAX - priority
        self.schedule = RankedReferences()  # by the time, and behind it the rank it will have
        self._keys = OrderKeys()
        self.active_keys = self._keys.active
        self._has_ends = False  # whether any that waits, or waited, may be over its time
        self._out: set[int] = set()  # behind another one of their key, yet handed out or held when found
        self.ended: list[tuple[Record, str]] = []

    def begin(self, progress: GroupProgress) -> None:
        """Continue with the progress of a group that has begun."""
        self._progress = progress

    # -- Finding a place ---------------------------------------------------------------------------------------------

    def admit(self, record: Record, options: MessageOptions, *, in_order: bool) -> bool:
        """Defer a message that was found, by its reason to wait.

        Returns
        -------
        bool
            Whether it is ready and need not be deferred; only if it was found ``in_order`` of the log.
        """
        offset, progress = record[0], self._progress
        if progress.is_finished(offset) or offset in progress.dead:
            return False
        is_free = self._is_free(offset)
        if options.order_key and not self._keys.enter(options.order_key, offset, reference_to(record)):
            if not is_free:
                self._out.add(offset)
            return False
        return is_free and self._place(record, options, in_order=in_order)

    def admit_deferred(self, record: Record, options: MessageOptions) -> None:
        """As :meth:`admit`, of a message that was not found in the order of the log."""
        self.admit(record, options, in_order=False)

    def admit_new(self, record: Record, options: MessageOptions) -> None:
        """As :meth:`admit_deferred`, if nothing is known of the message: most have a priority alone."""
        if options.order_key or options.not_before_ns or options.expires_ns:
            self.admit(record, options, in_order=False)
        else:
            self.ready.push(PRIORITY_MAX - options.priority, reference_to(record))

    def _is_free(self, offset: int) -> bool:
        return offset not in self._in_flight and not self._progress.is_held(offset)

    def give_back(self, records: Iterable[Record]) -> None:
        """Have messages that were handed out wait for their time, and then be taken again."""
        for record in records:
            if self._progress.is_finished(record[0]):  # an acknowledgement that was interrupted after its entry counts
                self.leave((record,))
            else:
                self._place(record, decode_options(record[2]), in_order=False)

    def _place(self, record: Record, options: MessageOptions, *, in_order: bool) -> bool:
        offset = record[0]
        if options.expires_ns:
            self._has_ends = True
        due_ns = self._progress.due_ns(offset, options.not_before_ns)
        rank = PRIORITY_MAX - options.priority
        now = self._time_ns() if due_ns else 0
        if due_ns > now:
            is_over = self._progress.is_over(offset, options.expires_ns, due_ns)  # then it ends before it is due
            when = options.expires_ns if is_over else due_ns
            if when > now:
                self.schedule.push(when << _RANK_BITS | rank, reference_to(record))
                return False
        if in_order and offset not in self._progress.deliveries and not options.priority:
            return True
        self.ready.push(rank, reference_to(record))
        return False

    # -- Taking ------------------------------------------------------------------------------------------------------

    def bring_due(self) -> None:
        """Make those ready whose time has come."""
        schedule = self.schedule
        if schedule.heap:
            now = self._time_ns()
            while schedule.heap and schedule.first_rank >> _RANK_BITS <= now:
                rank, packed = schedule.pop()
                self.ready.push(rank & 2**_RANK_BITS - 1, packed)

    def pop(self, count_max: int, *, alone: bool, end_offset: int = NUMBER_MAX) -> list[Record]:
        """Take up to ``count_max`` of those that are ready in front of ``end_offset``; the others stay, unread.

        ``alone``: one that was handed out before on its own.
        """
        ready, known = self.ready, self._progress.deliveries
        records: list[Record] = []
        behind: list[int] = []
        while ready.heap and len(records) < count_max:
            ranked = ready.pop_ranked()
            offset = offset_of(ranked)
            if offset >= end_offset:
                behind.append(ranked)
                continue
            record = self._cursor.look_up(ranked)
            if record is None:
                self._give_up_turn(offset)
                continue
            delivery_count = known.get(offset, 0)
            if delivery_count and self._is_last(delivery_count):  # its last receiver died with it in hand
                self.ended.append((record, EXHAUSTED))
                continue
            if alone and records and offset in known:
                ready.push_ranked(ranked)
                break
            if self._has_ends and self._is_over(record):
                self.ended.append((record, EXPIRED))
                continue
            records.append(record)
            if alone and records and records[0][0] in known:
                break
        for ranked in behind:
            ready.push_ranked(ranked)
        return records

    def put_back(self, records: Iterable[Record]) -> None:
        """Make messages ready again that were popped but not handed out."""
        for record in records:
            self.ready.push(PRIORITY_MAX - decode_options(record[2]).priority, reference_to(record))

    def without_expired(self, records: Sequence[Record]) -> list[Record]:
        """Return those whose time to live is not over; the others end."""
        left = []
        for record in records:
            if self._is_over(record):
                self.ended.append((record, EXPIRED))
            else:
                left.append(record)
        return left

    def _is_over(self, record: Record) -> bool:
        expires_ns = decode_options(record[2]).expires_ns if record[2] else 0
        return expires_ns > 0 and self._progress.is_over(record[0], expires_ns, self._time_ns())

    # -- Order keys --------------------------------------------------------------------------------------------------

    def leave(self, records: Iterable[Record]) -> bool:
        """Make those ready that waited for messages which are finished, or dead letters; return whether any did."""
        if not self.active_keys:
            return False
        has_moved = False
        for record in records:
            key = decode_options(record[2]).order_key if record[2] else ""
            if key and self._pass_turn(key, record[0]):
                has_moved = True
        return has_moved

    def _give_up_turn(self, offset: int) -> None:
        """Make those ready that waited for an unreadable message, whose key is known from its turn only."""
        key = self._keys.key_of(offset)
        if key is not None:
            self._pass_turn(key, offset)

    def _pass_turn(self, key: str, offset: int) -> bool:
        """End the turn of a message; return whether another one has it now."""
        packed = self._keys.leave(key, offset)
        while packed is not None:
            following = self._cursor.look_up(packed)
            if following is not None:
                self.admit(following, decode_options(following[2]), in_order=False)
                return True
            packed = self._keys.leave(key, offset_of(packed))
        return False

    # -- Looking -----------------------------------------------------------------------------------------------------

    @property
    def next_due_ns(self) -> int | None:
        """When the next message is ready that waits for its time; None if there is none. Any thread may ask."""
        first = self.schedule.heap[:1]  # in one step
        return first[0] >> RANK_SHIFT + _RANK_BITS if first else None

    @property
    def waiting_count(self) -> int:
        """Messages that wait for their time or their turn."""
        self.bring_due()
        return len(self.schedule) + self._waiting_for_turn_count

    @property
    def _waiting_for_turn_count(self) -> int:
        """Messages that only their key keeps back: one that is handed out, held or finished is counted as that."""
        return self._keys.waiting_count - sum(
            not self._is_free(offset) or self._progress.is_finished(offset) for offset in self._out
        )

    def waiting_counts(self) -> dict[str, int]:
        """Return how many messages wait for what: as :class:`ShutDown` has it."""
        returned = self._progress.returned
        backing_off = sum(offset_of(each) in returned for each in self.schedule.heap) if returned else 0
        return {
            "backing_off": backing_off,
            "delayed": len(self.schedule) - backing_off,
            "order_key": self._waiting_for_turn_count,
        }

    def clear(self) -> None:
        """Forget them all; messages that are handed out keep the turn of their keys."""
        for waiting in (self.ready, self.schedule, self._keys, self.ended):
            waiting.clear()
        self._has_ends = False
        self._out.clear()
        for delivery in self._in_flight.values():
            if key := decode_options(delivery.record[2]).order_key:
                self._keys.enter(key, delivery.offset, 0)

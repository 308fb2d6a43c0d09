"""Looking at what a consumer group takes next, and taking nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from holdfast.persistence.data_file_reader import Record
from holdfast.persistence.message_options import MessageOptions, decode_options
from holdfast.persistence.progress import GroupProgress
from holdfast.queue.log_cursor import LogCursor
from holdfast.queue.order_keys import OrderKeys
from holdfast.queue.references import RankedReferences, unpack


class Peeking(ABC):
    """The half of :class:`Backlog` that changes nothing for consumers; the other one fills in the attributes."""

    must_read_anew: bool
    _cursor: LogCursor
    _progress: GroupProgress
    _time_ns: Callable[[], int]
    _ready: deque[Record]
    _aside: RankedReferences
    _keys: OrderKeys

    @abstractmethod
    def read_anew(self) -> None:
        """Go back to the oldest unfinished message."""

    @abstractmethod
    def bring_due(self) -> None:
        """Make those ready whose time has come."""

    @abstractmethod
    def _look_ahead(self) -> None:
        """Find the messages of a priority that stand behind others."""

    @abstractmethod
    def _admitted(self, records: Iterable[Record]) -> Iterable[Record]:
        """Yield those that are ready in the order of the log; the others wait aside."""

    def peek(self, count_max: int) -> list[Record]:
        """Return the messages that would be taken next, and take nothing."""
        if self.must_read_anew:
            self.read_anew()
        self._look_ahead()
        self.bring_due()
        first, aside_count = self._peek_aside(count_max), len(self._aside)
        records = list(islice(self._good(self._ready), count_max - len(first)))
        while len(first) + len(records) < count_max and (more := self._cursor.read(count_max)):
            found = list(self._admitted(more))
            self._ready.extend(found)
            records += self._good(found)
        if len(self._aside) > aside_count:  # handed out before, and found just now
            first = self._peek_aside(count_max)
        return (first + records)[:count_max]

    def _peek_aside(self, count_max: int) -> list[Record]:
        count = count_max
        while True:
            references = self._aside.first(count)
            found = (self._cursor.look_up(each) for each in references)
            records = list(islice(self._good(each for each in found if each is not None), count_max))
            if len(records) == count_max or len(references) == len(self._aside):
                return records
            count *= 4  # the time of some is over

    def _good(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield those whose time to live is not over; for each of the others, who has the turn of its key then."""
        for record in records:
            if self._still_good([record]):
                yield record
            elif key := decode_options(record[2]).order_key:
                waiting = (self._cursor.look_up(unpack(packed)) for packed in self._keys.waiting_for(key))
                following = next((each for each in waiting if each is not None and self._still_good([each])), None)
                if following is not None and not self._is_delayed(following):
                    yield following

    def _still_good(self, records: Iterable[Record]) -> list[Record]:
        """Return those whose time to live is not over."""
        now, is_over = self._time_ns(), self._progress.is_over
        return [
            each for each in records if not each[2] or not is_over(each[0], decode_options(each[2]).expires_ns, now)
        ]

    def _is_delayed(self, record: Record) -> bool:
        return self._due_ns(record[0], decode_options(record[2])) > self._time_ns()

    def _due_ns(self, offset: int, options: MessageOptions) -> int:
        """Return from when on a message may be handed out; 0: at once."""
        returned = self._progress.returned
        return max(options.not_before_ns, returned.get(offset, (0, 0))[0]) if returned else options.not_before_ns

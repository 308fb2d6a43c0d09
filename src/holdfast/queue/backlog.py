"""What a consumer group takes next: messages that were given back first, then the log, past what is finished or taken.

The caller holds the take lock around everything here.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from holdfast.persistence.data_file_reader import QueueFileReader, Record
from holdfast.persistence.progress import GroupProgress
from holdfast.persistence.report import Damage
from holdfast.persistence.storage import storage_error, storage_errors
from holdfast.queue.books import GroupBooks
from holdfast.queue.sources import Source

PREFETCH_COUNT = 64
"""Records decoded ahead of single takes; their bytes are bounded by one chunk of the reader."""


class Backlog:
    """A cursor over the messages that a group can take.

    Parameters
    ----------
    source : Source
        How far may be read.
    make_reader : callable
        Makes the reader, given what it is to call when records are lost.
    progress : GroupProgress
        Where to start, and what is finished or held.
    in_flight : container of int
        Offsets of the messages that are handed out.
    path : Path
        The group's directory, for errors.

    Attributes
    ----------
    books : GroupBooks or None
        Those of the group, once it has begun.
    must_read_anew : bool
        A take was cut short, or messages were let go of: read what is unfinished from the log again.
    damage : list of Damage
        What reading has met.
    """

    def __init__(
        self,
        source: Source,
        make_reader: Callable[[Callable[[Damage], None]], QueueFileReader],
        progress: GroupProgress,
        in_flight: Container[int],
        path: Path,
    ) -> None:
        self._source = source
        self._losses: list[Damage] = []
        self._reader = make_reader(self._losses.append)
        self._progress = progress
        self._in_flight = in_flight
        self._path = path
        self._ready: deque[Record] = deque()
        self._returned: list[Record] = []
        self._read_before = 0
        self.books: GroupBooks | None = None
        self.must_read_anew = False
        self.damage: list[Damage] = []
        self._reader.recheck = True
        self._reader.seek(progress.floor, progress.hint)

    def begin(self, books: GroupBooks) -> None:
        """Go on with the books of a group that has begun: from here on it pins what it has not finished."""
        self.books = books
        self._progress = books.progress
        self._reader.recheck = False

    @property
    def may_have_more(self) -> bool:
        """Whether looking again may find something."""
        return bool(self._ready or self._returned) or self._source.end[2] > self._reader.next_offset

    # -- Taking ------------------------------------------------------------------------------------------------------

    def take(self, count_max: int) -> list[Record]:
        """Return the next messages: those given back first, then in offset order."""
        if self._returned:
            return [heapq.heappop(self._returned) for _ in range(min(count_max, len(self._returned)))]
        ready = self._ready
        if not ready:
            records = self._read(max(count_max, PREFETCH_COUNT))
            if len(records) <= count_max:
                return records
            ready.extend(records)
        if count_max == 1:
            return [ready.popleft()]
        return [ready.popleft() for _ in range(min(count_max, len(ready)))]

    def give_back(self, records: Sequence[Record]) -> None:
        """Make messages the next to be taken."""
        for record in records:
            heapq.heappush(self._returned, record)

    def read_anew(self) -> None:
        """Go back to the oldest unfinished message."""
        self._read_before = max(self._read_before, self._reader.next_offset)
        self._ready.clear()
        self._returned.clear()
        with storage_errors("reading", self._path):
            self._reader.seek(self._progress.floor, self._progress.hint)
        self.must_read_anew = False

    def _read(self, count_max: int) -> list[Record]:
        """Read on from the log, past what is finished already."""
        reader, progress = self._reader, self._progress
        end = self._source.end
        try:
            while reader.next_offset < end[2]:
                before = reader.next_offset
                records = reader.read(count_max, end)
                if self.books is not None:
                    self._note_losses(self.books)
                    self.books.pass_files(reader.name)
                if records and (records[0][0] < max(progress.finished_end, self._read_before) or progress.votes):
                    records = [record for record in records if self._is_free(record[0])]
                if records or reader.next_offset == before:
                    return records
        except BaseException as error:
            self.must_read_anew = True
            if isinstance(error, OSError):
                raise storage_error(error, "reading", self._path) from error
            raise
        return []

    def _is_free(self, offset: int) -> bool:
        progress = self._progress
        return offset not in self._in_flight and not progress.is_finished(offset) and not progress.is_held(offset)

    # -- Looking -----------------------------------------------------------------------------------------------------

    def peek(self, count_max: int) -> list[Record]:
        """Return the messages that would be taken next, and take nothing."""
        if self.must_read_anew:
            self.read_anew()
        records = sorted(self._returned)[:count_max]
        while len(records) + len(self._ready) < count_max and (more := self._read(count_max)):
            self._ready.extend(more)
        return records + list(islice(self._ready, count_max - len(records)))

    def oldest(self) -> list[Record]:
        """Return the first message given back and the next one of the log, as far as there are any."""
        if not self._ready:
            self._ready.extend(self._read(PREFETCH_COUNT))
        return [*self._returned[:1], *list(self._ready)[:1]]

    # -- Damage ------------------------------------------------------------------------------------------------------

    def _note_losses(self, books: GroupBooks) -> None:
        """Give up what is damaged, durably, so that it is reported once; what was finished before is nobody's loss."""
        while self._losses:
            damage = self._losses[0]
            missed = books.progress.unfinished_runs(damage.offsets.start, damage.offsets.stop)
            books.lose(damage.offsets)
            self.damage += [replace(damage, offsets=run) for run in missed] if damage.offsets else [damage]
            self._losses.pop(0)

    def close(self) -> None:
        """Let go of the data file."""
        self._reader.close()

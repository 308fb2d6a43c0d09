"""Remembers the ids of messages that were put, so that a second put of the same id writes nothing.

All ids are in memory. On the disk, the message itself has its id, and ``dedup.ids`` has it once its data file is full
(``persistence/index/dedup_ring.py``). So an id is remembered as durably as its message, and putting one costs no second
write. docs/format.md, "Deduplication".
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.persistence.index.dedup_ring import DedupRing, Remembered
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_tail import LogTail
from holdfast.persistence.log.log_writer import LogWriter
from holdfast.persistence.recovery.dedup_scan import recall
from holdfast.queue.options.put_options import as_ns
from holdfast.queue.options.settings import Settings
from holdfast.threads import log_later

WARNING_SECONDS = 60.0
"""How often to say that ids are forgotten early."""

_NOT_YET = "the id of a message is remembered with the next one"

Appended = TypeVar("Appended")


class Deduplication:
    """The ids of the write side. The caller holds the append lock around every call.

    Parameters
    ----------
    ring : DedupRing
        The file of the ids.
    clock : Clock
        For the window.
    writer : LogWriter
        Knows the offset of the message that comes next.
    window_ns, ids_max : int
        How long ids are remembered, and how many.
    remembered : list of Remembered
        The ids from before the opening, the oldest first.

    Attributes
    ----------
    begun : Remembered or None
        The id of an append that was cut short, or that is under way.
    forgotten_count : int
        Ids that were forgotten before their time, because there were more than ``ids_max``.
    """

    def __init__(
        self,
        ring: DedupRing,
        clock: Clock,
        writer: LogWriter,
        window_ns: int,
        ids_max: int,
        remembered: list[Remembered],
    ) -> None:
        self._ring = ring
        self._clock = clock
        self._writer = writer
        self._window_ns = window_ns
        self._ids_max = ids_max
        self._wall_ns = clock.time_ns()
        self._ahead_ns = 0
        self._ids: dict[bytes, Remembered] = {}
        self._order: deque[Remembered] = deque()  # as they were put; ids that were put again since are there twice
        self.begun: Remembered | None = None
        self._warned_at: float | None = None
        self.forgotten_count = 0
        latest = 0
        for each in remembered:  # if the wall clock was set back meanwhile, no id may be from the future
            latest = max(latest, min(each.timestamp_ns, self._wall_ns))
            recalled = Remembered(each.digest, each.offset, latest)
            self._ids[each.digest] = recalled
            self._order.append(recalled)
        # Messages of the last data file bring back ids that were forgotten early. As many as the ring holds stay until
        # the next put, which gives it its new size.
        self._forget(self._wall_ns, max(ids_max, ring.slot_count))

    def change(self, window_ns: int) -> None:
        """Remember ids for another time from now on."""
        self._window_ns = window_ns

    def forget_unappended(self) -> None:
        """Forget the id that is begun, unless its message was appended: another one may take the offset now."""
        if self.begun is not None and self.begun.offset >= self._writer.end[2]:
            self.begun = None

    def find(self, digest: bytes) -> int | None:
        """Return the offset of the message that was put with an id within the window; None if there is none.

        ``digest``: that of the id; empty for a message without one.
        """
        if not digest:
            return None
        if self.begun is not None:
            self._remember(self.begun)
        found = self._ids.get(digest)
        if found is None or self._now_ns() - found.timestamp_ns >= self._window_ns:
            return None
        return found.offset

    def append(self, digest: bytes, append: Callable[[], Appended]) -> Appended:
        """Append one message, and remember its id, if it has one. If appending fails, it stays begun.

        The caller has not found the id. Raises as ``append``, and StorageError if there is no space to keep ids.
        """
        if not digest:
            return append()
        if not self._ring.is_named:  # else there would be a call for every put
            self._ring.reserve(self._kept)
        self.begun = begun = Remembered(digest, self._writer.end[2], self._now_ns())
        appended = append()
        follow_up(_NOT_YET, self._remember, begun)
        return appended

    def keep(self) -> None:
        """Make the ids durable: the data file with their messages is about to be sealed. Raises StorageError."""
        begun = self.begun
        if begun is not None and begun.offset < self._writer.end[2]:  # else it will be the first of the next file
            self._remember(begun)
        self._ring.keep(self._kept)

    def _remember(self, begun: Remembered) -> None:
        now_ns, order = begun.timestamp_ns, self._order
        if order and order[-1] is begun:  # this was interrupted: it has made space, and the ring may have it by now
            self._ring.renew()
        else:
            if len(self._ids) >= self._ids_max or (order and now_ns - order[0].timestamp_ns >= self._window_ns):
                self._forget(now_ns, self._ids_max - 1)
            order.append(begun)
        self._ids[begun.digest] = begun
        if self._ring.slot_count != self._ids_max:
            self._ring.resize(self._ids_max)
        self._ring.note(self._by_wall_clock(begun) if self._ahead_ns else begun)
        self.begun = None

    def _forget(self, now_ns: int, count_max: int) -> None:
        """Forget ids whose window is over, and the oldest if there are too many."""
        ids, order = self._ids, self._order
        while order:
            oldest = order[0]
            if ids.get(oldest.digest) is oldest:
                age_ns = now_ns - oldest.timestamp_ns
                if age_ns < self._window_ns:
                    if len(ids) <= count_max:
                        return
                    self._forget_early(age_ns)
                del ids[oldest.digest]
            order.popleft()

    def _forget_early(self, age_ns: int) -> None:
        self.forgotten_count += 1
        now = self._clock.monotonic()
        if self._warned_at is None or now - self._warned_at >= WARNING_SECONDS:
            self._warned_at = now
            log_later(
                logging.WARNING,
                "deduplication ids arrive faster than dedup_max=%d allows: just now one is forgotten after %.3f s, not "
                "after dedup_window=%.3f s; so far %d were forgotten early",
                self._ids_max,
                age_ns / 1e9,
                self._window_ns / 1e9,
                self.forgotten_count,
            )

    def _now_ns(self) -> int:
        """Return the time of the wall clock; if that is set back, the last time returned."""
        wall_ns = self._clock.time_ns()
        if wall_ns < self._wall_ns:
            self._ahead_ns += self._wall_ns - wall_ns
        self._wall_ns = wall_ns
        return wall_ns + self._ahead_ns

    def _by_wall_clock(self, remembered: Remembered) -> Remembered:
        """Return it with the time that the next opening can compare."""
        return remembered._replace(timestamp_ns=max(0, remembered.timestamp_ns - self._ahead_ns))

    def _kept(self) -> list[Remembered]:
        return [self._by_wall_clock(each) for each in self._order if self._ids.get(each.digest) is each]


def open_deduplication(
    ring: DedupRing,
    files: LogFiles,
    tail: LogTail,
    writer: LogWriter,
    clock: Clock,
    settings: Settings,
) -> Deduplication:
    """Return the deduplication of a recovered log that ``writer`` appends to. Raises StorageError."""
    remembered = recall(files, tail, ring)
    window_ns = as_ns(settings["dedup_window"], "dedup_window")
    return Deduplication(ring, clock, writer, window_ns, settings["dedup_max"], remembered)

"""The runs that one reservation takes: runs of offsets, up to a number of messages, of bytes and of runs. Pure."""

from __future__ import annotations

from holdfast.persistence.format.commit_record import Run
from holdfast.persistence.format.message_options import decode_options
from holdfast.persistence.log.log_reader import Record
from holdfast.persistence.log.run_reader import PlainRun

RUNS_MAX = 4096
"""Each run is one more entry of 64 bytes in the position file; a group that took every second message makes many."""


class TakenRuns:
    """Collects messages in any order.

    Parameters
    ----------
    count_max, bytes_max : int
        How many, and how many bytes of payloads; one message is taken, however large.
    end_offset : int
        Offset behind the last one that may be taken.

    Attributes
    ----------
    count, size_bytes : int
        The runs taken.
    has_order_keys : bool
        Whether any of it has one.
    is_full : bool
        Whether nothing more goes in.
    """

    def __init__(self, count_max: int, bytes_max: int, end_offset: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.end_offset = end_offset
        self.count = self.size_bytes = 0
        self.is_full = self.has_order_keys = False
        self._runs: list[Run] = []

    @property
    def count_left(self) -> int:
        """How many more messages fit."""
        return self._count_max - self.count

    @property
    def bytes_left(self) -> int:
        """How many more bytes fit; if none is taken yet, the first message fits, however large."""
        return self._bytes_max - self.size_bytes

    def add(self, record: Record) -> bool:
        """Take one message if it fits."""
        size = len(record[3])
        if self.is_full or (self.count and size > self.bytes_left):
            self.is_full = True
            return False
        self.has_order_keys = self.has_order_keys or bool(decode_options(record[2]).order_key)
        self.add_run(PlainRun(record[0], 1, record[5], record[4], size))
        return True

    def add_run(self, run: PlainRun) -> None:
        """Take messages that are known to fit."""
        self.count += run.message_count
        self.size_bytes += run.size_bytes
        first, count, sequence, _ = self._runs[-1] if self._runs else (0, 0, -1, 0)
        if first + count == run.first_offset and sequence == run.sequence:  # messages that came one by one
            self._runs[-1] = (first, count + run.message_count, sequence, run.end_position)
        else:
            self._runs.append((run.first_offset, run.message_count, run.sequence, run.end_position))
        self.is_full = self.count_left <= 0 or self.bytes_left <= 0 or len(self._runs) >= RUNS_MAX

    def runs(self) -> tuple[Run, ...]:
        """Return the runs taken, in offset order: as few runs as there can be, each inside one data file."""
        merged: list[Run] = []
        for first, count, sequence, end_position in sorted(self._runs):
            if merged:
                before, before_count, before_sequence, _ = merged[-1]
                assert before + before_count <= first, "no message is taken twice"
                if before + before_count == first and before_sequence == sequence:
                    merged[-1] = (before, before_count + count, sequence, end_position)
                    continue
            merged.append((first, count, sequence, end_position))
        return tuple(merged)

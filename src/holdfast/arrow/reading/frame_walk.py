"""Finds the messages in a run of bytes of a data file and verifies each: positions only, no copies. Pure.

The reader of the core (``persistence/log/log_reader.py``) makes one object of each message. Here columns are made: from
the bounds found here Arrow takes the payloads out of the same bytes, many thousands at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.format.frame_runs import find_messages


@dataclass(slots=True)
class Walked:
    """Messages that follow one another in a file.

    Attributes
    ----------
    data : bytes
        The bytes that hold them.
    offsets : sequence of int
        Theirs, ascending; contiguous, except in a merged file.
    next_offset : int
        Of the message that comes next.
    bounds : list of int
        Two for each: where its payload starts in ``data``, and the byte behind it.
    timestamps_ns : list of int
        Theirs.
    headers : dict of int to bytes
        The encoded headers of those that have some, by place.
    is_dense : bool
        Whether there are only frame headers between the payloads.
    end : int
        Where the next frame starts in ``data``.
    is_good : bool
        Whether the walk stopped for another reason than a bad frame.
    """

    data: bytes
    offsets: range | list[int]
    next_offset: int
    bounds: list[int]
    timestamps_ns: list[int]
    headers: dict[int, bytes]
    is_dense: bool
    end: int
    is_good: bool

    def __len__(self) -> int:
        return len(self.offsets)

    def chosen(self, places: list[int]) -> Walked:
        """Return the messages at these places, which ascend."""
        at = {old: new for new, old in enumerate(places)} if self.headers else {}
        return Walked(
            self.data,
            [self.offsets[place] for place in places],
            self.next_offset,
            [bound for place in places for bound in self.bounds[2 * place : 2 * place + 2]],
            [self.timestamps_ns[place] for place in places],
            {at[place]: headers for place, headers in self.headers.items() if place in at},
            is_dense=False,
            end=self.end,
            is_good=self.is_good,
        )


def walk(data: bytes, at: int, header: DataFileHeader, index: int, index_max: int) -> Walked:
    """Return the messages from ``data[at]`` on, up to the end, a bad frame or the message ``index_max``.

    ``index`` is that of the first message: another one is a bad frame. In a merged file only a smaller one is.
    """
    bounds: list[int] = []
    timestamps: list[int] = []
    headers: dict[int, bytes] = {}
    first, base = index, header.base_timestamp_ns
    gaps: list[int] | None = [] if header.is_merged else None
    at, index, is_good, has_others = find_messages(
        data, at, header.salt, base, index, index_max, bounds, timestamps, headers, gaps
    )
    offset, index = header.first_offset, min(index, index_max)
    offsets: range | list[int] = range(offset + first, offset + index)
    if gaps:
        runs = zip([first, *gaps[1::2]], [*gaps[::2], index], strict=True)
        offsets = [offset + each for run in runs for each in range(*run)]
    is_dense, following = not headers and not has_others, offset + index
    return Walked(data, offsets, following, bounds, timestamps, headers, is_dense=is_dense, end=at, is_good=is_good)

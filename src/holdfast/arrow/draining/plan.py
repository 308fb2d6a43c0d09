"""The plan for reading a reservation: which task reads which of its messages, and how that travels to Spark.

The plan is pinned before Spark hears of it, so every action on the DataFrame, and every attempt of a task, reads the
same.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.arrow.reading.file_range import FileRange, clipped
from holdfast.arrow.reading.partitions import TASK_BYTES_MIN
from holdfast.arrow.reading.snapshot import read_mark
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.prepared.reservations import Reservation

TASK_BYTES_MAX = 128 * 2**20
"""As Spark's own for files: a quarter of a second, so starts do not show."""


@dataclass(frozen=True)
class DrainPlan:
    """The data that Spark needs to read a reservation.

    Attributes
    ----------
    root, queue_id
        The queue.
    tasks : tuple of tuple of FileRange
        What each task reads, in the order of the log.
    deliveries : dict of int to int
        Delivery counts of messages that were delivered before.
    batch_id : str
        The batch, in the notes of lost messages.
    notes : Path
        The group's directory, for the notes of lost messages.
    """

    root: Path
    queue_id: bytes
    tasks: tuple[tuple[FileRange, ...], ...]
    deliveries: dict[int, int]
    batch_id: str
    notes: Path

    def to_text(self) -> str:
        """Return the plan as an option of a DataFrame."""
        return base64.b85encode(pickle.dumps(self)).decode()

    @classmethod
    def from_text(cls, text: str) -> DrainPlan:
        """Return the plan in an option."""
        plan = pickle.loads(base64.b85decode(text))  # noqa: S301  # this program's own, from driver to task
        assert isinstance(plan, cls)
        return plan


def plan_drain(queue: PersistentQueue, reservation: Reservation, task_count: int, damage: list[Damage]) -> DrainPlan:
    """Cut a reservation into about equal tasks; the data files that it holds are not retired.

    Messages whose data file was removed all the same are added to the damage.
    """
    names = queue.reservations.data_files(reservation)  # once: a message is in the plan, or in the damage
    damage += [
        Damage(queue.path / "data", 0, 0, range(first, first + count), DAMAGED, "the data file is missing")
        for first, count, sequence, _ in reservation.runs
        if sequence not in names
    ]
    parts = list(_parts(queue, reservation, names))
    share = -(-reservation.count // max(1, task_count))
    tasks: list[list[FileRange]] = [[]]
    room = share
    for part in parts:
        left = part
        while (count := _count(left)) > room:
            cut = _offset_at(left, room)
            if room:
                tasks[-1].append(_clip(left, left.start, cut))
            tasks.append([])
            left, room = _clip(left, cut, left.end), share
        tasks[-1].append(left)
        room -= count
    deliveries = queue.reservations.delivery_counts(reservation)
    notes = QueueDirectory(queue.path).group(queue.group)
    return DrainPlan(queue.path, queue.queue_id, tuple(map(tuple, tasks)), deliveries, reservation.id, notes)


def task_count_for(size_bytes: int, parallelism: int) -> int:
    """Return how many tasks read so much: as many as run at once, or two, three times as many where each is too large.

    Fewer, where each would be too small.
    """
    rounds = max(1, -(-size_bytes // (TASK_BYTES_MAX * parallelism)))
    return max(1, min(rounds * parallelism, size_bytes // TASK_BYTES_MIN))


def _parts(queue: PersistentQueue, reservation: Reservation, names: dict[int, DataFileName]) -> Iterator[FileRange]:
    """Yield one range for each data file that is there."""
    by_file: dict[int, list[tuple[int, int]]] = {}
    limits: dict[int, int] = {}
    for first, count, sequence, end_position in reservation.runs:
        by_file.setdefault(sequence, []).append((first, first + count))
        limits[sequence] = end_position
    mark = read_mark(OsStorage(), QueueDirectory(queue.path), queue.queue_id)  # it may come a little later than a put
    log_end = (0, 0) if mark is None else (mark.sequence, mark.visible[0])
    for sequence, wanted in by_file.items():
        if sequence in names:
            name, end = names[sequence], limits[sequence]
            limit = 0 if name.is_merged else end  # places are of the old one
            yield FileRange(name, tuple(wanted), limit, log_end=min(log_end, (sequence, end)))


def _count(part: FileRange) -> int:
    return sum(end - first for first, end in part.wanted)


def _offset_at(part: FileRange, place: int) -> int:
    """Return the offset of the message at a place."""
    for first, end in part.wanted:
        if place < end - first:
            return first + place
        place -= end - first
    return part.end


def _clip(part: FileRange, first: int, end: int) -> FileRange:
    return replace(part, wanted=clipped(part.wanted, first, end), limit=part.limit if end == part.end else 0)

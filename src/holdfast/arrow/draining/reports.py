"""The progress of a drain, and its report at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.persistence.format.report import Damage


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """The progress of a drain, after each batch.

    Attributes
    ----------
    batch_id : str
        The batch that was committed just now.
    message_count, size_bytes, seconds
        Of that batch: messages, bytes of payloads, and how long it took.
    total_count : int
        Messages of all batches of this queue so far.
    depth : int
        Messages that the group has not finished: messages that came meanwhile are among them.
    queue : str
        The name of the queue: that of its directory.
    """

    batch_id: str
    message_count: int
    size_bytes: int
    seconds: float
    total_count: int
    depth: int
    queue: str

    @property
    def megabytes_per_second(self) -> float:
        """How fast this batch was."""
        return self.size_bytes / 1e6 / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The report of a drain.

    Attributes
    ----------
    batch_ids : tuple of str
        The batches that were committed, in their order.
    message_count, size_bytes, seconds
        Of all of them: messages, bytes of payloads, and how long the drain took.
    resumed_count : int
        How many of the batches an earlier drain had reserved.
    depth : int
        Messages that the group has not finished: waiting messages, and those that came meanwhile.
    damage : tuple of Damage
        Messages that cannot be read: each place, and the offsets lost. All others were drained.
    queues : dict of str to DrainReport
        Of a drain of many queues: the report of each one that was opened, by its name. Else it is empty.
    """

    batch_ids: tuple[str, ...]
    message_count: int
    size_bytes: int
    seconds: float
    resumed_count: int
    depth: int
    damage: tuple[Damage, ...]
    queues: Mapping[str, DrainReport] = field(default_factory=dict)

    @property
    def lost_count(self) -> int:
        """Messages that are lost."""
        return sum(len(each.offsets) for each in self.damage)

    @classmethod
    def of_queues(cls, queues: Mapping[str, DrainReport], seconds: float) -> DrainReport:
        """Return one report of many queues."""
        reports = queues.values()
        return cls(
            tuple(each for report in reports for each in report.batch_ids),
            sum(report.message_count for report in reports),
            sum(report.size_bytes for report in reports),
            seconds,
            sum(report.resumed_count for report in reports),
            sum(report.depth for report in reports),
            tuple(each for report in reports for each in report.damage),
            queues,
        )


@dataclass(slots=True)
class DrainTally:
    """What a drain of one queue has done so far.

    Attributes
    ----------
    batch_ids, message_count, size_bytes, seconds, resumed_count, depth, damage
        As of :class:`DrainReport`; the depth is that after the last batch.
    """

    batch_ids: list[str] = field(default_factory=list)
    message_count: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    resumed_count: int = 0
    depth: int = 0
    damage: list[Damage] = field(default_factory=list)

    def add(self, batch_id: str, message_count: int, size_bytes: int) -> None:
        """Count a batch that was committed."""
        self.batch_ids.append(batch_id)
        self.message_count += message_count
        self.size_bytes += size_bytes

    def report(self, seconds: float) -> DrainReport:
        """Return the report."""
        return DrainReport(
            tuple(self.batch_ids),
            self.message_count,
            self.size_bytes,
            seconds,
            self.resumed_count,
            self.depth,
            tuple(self.damage),
        )

"""The progress of a drain, and its report at the end."""

from __future__ import annotations

from dataclasses import dataclass

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
        Messages of all batches so far.
    depth : int
        Messages that the group has not finished: messages that came meanwhile are among them.
    """

    batch_id: str
    message_count: int
    size_bytes: int
    seconds: float
    total_count: int
    depth: int

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
    """

    batch_ids: tuple[str, ...]
    message_count: int
    size_bytes: int
    seconds: float
    resumed_count: int
    depth: int
    damage: tuple[Damage, ...]

    @property
    def lost_count(self) -> int:
        """Messages that are lost."""
        return sum(len(each.offsets) for each in self.damage)

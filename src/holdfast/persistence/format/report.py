"""Reports of recovery and ``verify``: damage with its place and lost messages, torn tails, lost progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

DAMAGED = "damaged"
UNSYNCED_OR_DAMAGED = "unsynced or damaged"


@dataclass(frozen=True, slots=True)
class Damage:
    """One run of bytes that does not verify.

    Attributes
    ----------
    path : Path
        The file.
    position, size_bytes : int
        Start and length of the run.
    offsets : range
        The messages that are lost with it; empty if none are.
    verdict : str
        ``"damaged"``: the bytes were durable once. ``"unsynced or damaged"``: they may have been durable or not.
    reason : str
        Why the bytes do not verify.
    """

    path: Path
    position: int
    size_bytes: int
    offsets: range
    verdict: str
    reason: str

    def covers(self, other: Damage) -> bool:
        """Whether this damage includes all of the other one."""
        if not other.offsets:
            return (self.path, self.position) == (other.path, other.position)
        return self.offsets.start <= other.offsets.start and other.offsets.stop <= self.offsets.stop

    def __str__(self) -> str:
        lost = f"offsets {self.offsets.start}..{self.offsets.stop - 1} lost" if self.offsets else "no offset lost"
        return f"{self.path}: {self.size_bytes} bytes at {self.position} {self.verdict} ({self.reason}); {lost}"


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The report of one recovery: damage, dropped bytes and kept messages.

    Attributes
    ----------
    clean : bool
        The queue was closed cleanly, and nothing had to be done.
    seconds : float
        How long opening took.
    recovered_count : int
        Messages above the last known synced position that were kept, written again and synced.
    rewritten_bytes : int
        Their bytes.
    torn_bytes : int
        Bytes of a torn tail that were dropped: they were never acknowledged as durable.
    damage : tuple of Damage
        Bad bytes in acknowledged data, found at opening or since then.
    progress_damage : tuple of Damage
        The same in position files: messages named there may be delivered again.
    """

    clean: bool = True
    seconds: float = 0.0
    recovered_count: int = 0
    rewritten_bytes: int = 0
    torn_bytes: int = 0
    damage: tuple[Damage, ...] = ()
    progress_damage: tuple[Damage, ...] = ()

    @property
    def lost_count(self) -> int:
        """Messages lost to damage."""
        return sum(count_of(damage.offsets) for damage in self.damage)

    def with_damage(self, found: Sequence[Damage]) -> RecoveryReport:
        """Return the report with more damage, if any was found."""
        return replace(self, clean=False, damage=(*self.damage, *found)) if found else self

    def __str__(self) -> str:
        if self.clean and not self.damage and not self.progress_damage:
            return "clean"
        lines = [
            f"recovered {self.recovered_count} messages ({self.rewritten_bytes} bytes written again), "
            f"dropped a torn tail of {self.torn_bytes} bytes, lost {self.lost_count} messages to damage"
        ]
        return "\n".join(lines + [str(damage) for damage in self.damage + self.progress_damage])


def count_of(run: range) -> int:
    """Return how many numbers there are; ``len`` ends at 2**63, and numbers in a damaged file do not."""
    return max(0, run.stop - run.start)


def merged(ranges: Iterable[range]) -> tuple[range, ...]:
    """Return the same numbers in as few ascending ranges as possible."""
    runs: list[range] = []
    for run in sorted((run for run in ranges if run), key=lambda run: run.start):
        if runs and run.start <= runs[-1].stop:
            runs[-1] = range(runs[-1].start, max(runs[-1].stop, run.stop))
        else:
            runs.append(run)
    return tuple(runs)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The report of a walk over a queue.

    Attributes
    ----------
    file_count, frame_count, message_count : int
        Data files that were read, and the frames and messages that verified in them.
    damage : tuple of Damage
        Everything that does not verify or is missing, in the order of the log.
    lost : tuple of range
        Offsets of the messages that are lost with it, merged and ascending, whether a group had finished them or not.
    torn_bytes : int
        Bytes behind the end of the log, left by an unfinished write or being written now: never acknowledged.
    notes : tuple of str
        Findings that are not damage.
    """

    file_count: int = 0
    frame_count: int = 0
    message_count: int = 0
    damage: tuple[Damage, ...] = ()
    lost: tuple[range, ...] = ()
    torn_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damage

    @property
    def lost_count(self) -> int:
        """Messages that are lost."""
        return sum(map(count_of, self.lost))

    def __str__(self) -> str:
        lost = ", ".join(f"{run.start}..{run.stop - 1}" for run in self.lost) or "none"
        lines = [
            f"{'ok' if self.ok else 'damaged'}: {self.file_count} data files, {self.frame_count} frames, "
            f"{self.message_count} messages; damage in {len(self.damage)} places, {self.lost_count} lost ({lost})"
        ]
        lines += [f"damage: {damage}" for damage in self.damage]
        lines += [f"torn tail: {self.torn_bytes} bytes, never acknowledged"] if self.torn_bytes else []
        return "\n".join(lines + [f"note: {note}" for note in self.notes])

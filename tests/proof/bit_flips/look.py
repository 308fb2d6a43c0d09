"""Looks at a damaged queue as those do who use it: takes all there is, decides what is in doubt, puts, and closes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast import (
    CorruptionError,
    Empty,
    PersistentQueue,
    PreparedTransaction,
    RecoveryReport,
    TransactionNotFoundError,
    TransactionStateError,
)
from proof.bit_flips.victim import ABORTED, APPLICATION, COMMITTED, ROOT, UNDECIDED, Victim
from support.builders.settings import set_anew_if_lost
from support.builders.small_queues import tiny_files_allowed
from support.storages.simulated_storage import SimulatedStorage

ALL = 1000
"""More messages than the queue has."""

Row = tuple[int, bytes, tuple[tuple[str, str], ...], int]
"""Offset, payload, headers and delivery count of a message that is handed out."""


@dataclass(frozen=True)
class Shown:
    """What one group is given, in that order, and its dead letters: offset, payload, reason, delivery count."""

    rows: tuple[Row, ...]
    dead: tuple[tuple[int, bytes, str, int], ...]

    @property
    def offsets(self) -> list[int]:
        """Offsets in the order in which they came."""
        return [row[0] for row in self.rows]

    @property
    def known(self) -> frozenset[int]:
        """Offsets of all messages that the group has not finished."""
        return frozenset(self.offsets) | {letter[0] for letter in self.dead}


@dataclass(frozen=True)
class OutcomeEntry:
    """What became of what was in doubt, and what is remembered; None where that is forgotten or cannot be read.

    Attributes
    ----------
    prepared : tuple of PreparedTransaction
        What was in doubt.
    offsets : range or None
        What its commit gave; None: it was refused, nothing was applied, and it was aborted.
    after : Shown
        What the group is given behind that.
    committed, aborted : range, bool or None
        What the queue says of transactions that were decided long ago.
    joint_version : int or None
        The latest joint commit.
    next_offset : int
        That of a message put behind it.
    """

    prepared: tuple[PreparedTransaction, ...]
    offsets: range | None
    after: Shown
    committed: range | None
    aborted: bool | None
    joint_version: int | None
    next_offset: int


@dataclass(frozen=True)
class Beside:
    """What who looks without a lock is shown of a group, and the report."""

    shown: Shown
    recovery: RecoveryReport


@dataclass(frozen=True)
class Seen:
    """All of it.

    Attributes
    ----------
    own, recovery
        What the owner was given, and its report.
    decided : Decided or None
        None where nobody looked.
    depth : int
        What was left of it.
    is_paused : bool
        Whether the group was paused; it is resumed.
    rebuilt : Path or None
        The document that kept the queue closed until its settings were set anew.
    """

    own: Shown
    decided: OutcomeEntry | None
    depth: int
    is_paused: bool
    recovery: RecoveryReport
    rebuilt: Path | None = None


def look_beside(victim: Victim, storage: SimulatedStorage, group: str) -> Beside:
    """Look at a group without a lock."""
    with victim.open(storage, group=group, mode="read_only") as onlooker:
        peeked = onlooker.peek(ALL)
        rows = tuple((each.offset, each.payload, tuple(each.headers.items()), each.delivery_count) for each in peeked)
        return Beside(Shown(rows, _dead(onlooker)), onlooker.recovery)


def look(victim: Victim, storage: SimulatedStorage, group: str, *, decide: bool) -> Seen:
    """Own the queue as ``group`` and use up all of it."""
    with tiny_files_allowed():
        opened, rebuilt = set_anew_if_lost(ROOT, storage, lambda: victim.open(storage, group=group), group)
    with opened as queue:
        is_paused = queue.stats().paused is not None
        if is_paused:
            queue.resume()
        own = take_all(queue)
        depth = queue.qsize()
        decided = _decide(queue) if decide else None
        return Seen(own, decided, depth, is_paused, queue.recovery, rebuilt)


def take_all(queue: PersistentQueue) -> Shown:
    """Take and finish what a group is given, until nothing is left."""
    rows: list[Row] = []
    dead = _dead(queue)
    while True:
        try:
            deliveries = queue.receive_many(ALL, timeout=0)
        except Empty:
            return Shown(tuple(rows), dead)
        rows += [(each.offset, each.payload, tuple(each.headers.items()), each.delivery_count) for each in deliveries]
        deliveries.ack()
        assert len(rows) <= ALL, "the queue never gets empty"


def _dead(queue: PersistentQueue) -> tuple[tuple[int, bytes, str, int], ...]:
    letters = queue.dead.list()
    return tuple((each.offset, each.payload, each.reason, each.delivery_count) for each in letters)


def _decide(queue: PersistentQueue) -> OutcomeEntry:
    prepared = tuple(queue.prepared())
    before = queue.stats().next_offset
    try:
        offsets: range | None = queue.commit_prepared(UNDECIDED)
    except CorruptionError:
        assert queue.stats().next_offset == before, "half of it was applied"
        queue.abort_prepared(UNDECIDED)
        offsets = None
    assert not queue.prepared(), "it is decided"
    try:
        committed: range | None = queue.commit_prepared(COMMITTED)
    except TransactionNotFoundError:
        committed = None
    aborted: bool | None = None
    try:
        queue.commit_prepared(ABORTED)
    except TransactionStateError:
        aborted = True
    except TransactionNotFoundError:
        pass
    try:
        joint_version = queue.joint_commits.latest(APPLICATION)
    except CorruptionError:
        joint_version = None
    after = take_all(queue)
    next_offset = queue.put(b"after")
    assert queue.get(timeout=0) == b"after", "what is put behind the damage comes"
    return OutcomeEntry(prepared, offsets, after, committed, aborted, joint_version, next_offset)

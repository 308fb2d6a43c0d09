"""Empties the prepared log at opening: moves what is undecided to batch files, and removes the segments.

What cannot be moved stays, with its segment: damaged entries, and those for which the disk has no space. A segment with
damage that may have taken entries is never removed: it is quarantined under another name.
docs/format.md, "Prepared log".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.errors import CorruptionError, DiskFullError
from holdfast.persistence.filesystem.layout import QueueDirectory, is_segment_name, list_damaged_segments
from holdfast.persistence.filesystem.storage import MISSING, Storage, write_whole
from holdfast.persistence.format.constants import OUTCOME_MOVED
from holdfast.persistence.format.report import Damage
from holdfast.persistence.prepared_log.entry import Entry, UnwrittenEnd, entry_messages
from holdfast.persistence.prepared_log.segment_reader import DamagedEntry, SegmentContent
from holdfast.persistence.prepared_log.waiting_entries import LOST_ADVICE, read_segments, undecided
from holdfast.persistence.segment.batch_file_reader import BatchSummary, read_summary
from holdfast.persistence.segment.staged_file import stage, staged_path


@dataclass(slots=True)
class Left:
    """What stays of earlier segments.

    Attributes
    ----------
    segments : dict of int to int
        Those that stay, ascending: sequence, and the position behind the last byte that counts.
    last : int
        The largest sequence that was there, or that a segment has which was quarantined.
    entries : list of Entry or DamagedEntry
        What is undecided in them.
    void : dict of bytes to UnwrittenEnd
        Entries in them that ended without an "ended" frame, by nonce: those that have moved, too.
    lost : list of Damage
        Damage that may have taken entries or outcomes.
    without_puts : set of bytes
        The nonces of votes that wait for puts which it may have taken.
    reports : list of Damage
        The same damage for people, with what to do: also that of segments which do not stay, in their new place.
    """

    segments: dict[int, int] = field(default_factory=dict)
    last: int = 0
    entries: list[Entry | DamagedEntry] = field(default_factory=list)
    void: dict[bytes, UnwrittenEnd] = field(default_factory=dict)
    lost: list[Damage] = field(default_factory=list)
    without_puts: set[bytes] = field(default_factory=set)
    reports: list[Damage] = field(default_factory=list)


def empty(
    storage: Storage,
    directory: QueueDirectory,
    queue_id: bytes,
    outcome_of: Callable[[bytes], int | None],
    without_puts: Callable[[], set[bytes]],
    *,
    may_move: bool = True,
) -> Left:
    """Empty the prepared log; the caller holds the write lock.

    Parameters
    ----------
    storage, directory, queue_id
        The queue.
    outcome_of : callable
        Returns what became of a transaction although no "ended" frame says so; None: it is undecided.
    without_puts : callable
        Returns the nonces of votes whose puts this queue's log decides, and that are in no batch file.
    may_move : bool
        Whether entries move; on a full disk they stay, and are committed with the reserve of their segment.

    Raises
    ------
    StorageError, OSError
        The disk refuses.
    """
    _remove_half_made(storage, directory)
    contents = {each.header.sequence: each for each in read_segments(storage, directory, queue_id)}
    # No later segment gets the name of one that was quarantined.
    left = Left(last=max((*contents, *list_damaged_segments(storage, directory)), default=0))
    if not contents:
        return left
    waiting = undecided(list(contents.values()))
    left.lost = waiting.lost
    for entry in waiting.entries:
        outcome = outcome_of(entry.nonce)
        if outcome is None and _is_moved(storage, directory, queue_id, entry, may_move=may_move):
            outcome = OUTCOME_MOVED
        if outcome is None:
            left.entries.append(entry)
        else:
            left.void[entry.nonce] = UnwrittenEnd(entry.sequence, outcome, entry.timestamp_ns)
    storage.sync_directory(directory.prepared)
    first_kept = min((each.sequence for each in left.entries), default=left.last + 1)
    damaged = [sequence for sequence, content in contents.items() if content.lost]
    if damaged:
        known = {each.nonce for each in left.entries} | set(left.void)
        left.without_puts = {each for each in without_puts() - known if outcome_of(each) is None}
        if left.without_puts:
            first_kept = min(first_kept, *damaged)
    for sequence, content in contents.items():
        if sequence < first_kept:
            left.reports += _reported(content, directory.damaged_segment(sequence))
            remove_segment(storage, directory, sequence, is_damaged=bool(content.lost))
        else:
            left.reports += _reported(content, content.path)
            _make_durable(storage, content)
            left.segments[sequence] = content.end
    left.lost = left.lost if left.segments else []
    left.void = {nonce: end for nonce, end in left.void.items() if end.sequence in left.segments}
    return left


def _reported(content: SegmentContent, path: Path) -> list[Damage]:
    """Return the damage of a segment, as it is found at ``path``."""
    return [replace(each, path=path, reason=f"{each.reason}; {LOST_ADVICE}") for each in content.lost]


def _remove_half_made(storage: Storage, directory: QueueDirectory) -> None:
    """Remove a segment that a crash has left before it had its name."""
    with suppress(FileNotFoundError):
        for name in storage.list(directory.prepared):
            if name.endswith(".new") and is_segment_name(name.removesuffix(".new")):
                with suppress(*MISSING):
                    storage.remove(directory.prepared / name)


def remove_segment(storage: Storage, directory: QueueDirectory, sequence: int, *, is_damaged: bool) -> None:
    """Remove a segment, durably. Raises ``OSError``.

    ``is_damaged``: it may have messages that no part of the queue can name. It is quarantined, for people to look into.
    """
    path = directory.segment(sequence)
    with suppress(*MISSING):
        if is_damaged:
            storage.rename(path, directory.damaged_segment(sequence))
        else:
            storage.remove(path)
    storage.sync_directory(directory.prepared)


def move_entry(
    storage: Storage,
    directory: QueueDirectory,
    queue_id: bytes,
    entry: Entry,
    messages: Iterable[tuple[bytes, bytes]],
) -> BatchSummary:
    """Write an entry into a batch file under its name; the name is durable once its directory is synced.

    Raises
    ------
    CorruptionError
        The entry is damaged.
    DiskFullError, StorageError, OSError
        The disk refuses, and there is no file.
    """
    path = directory.batch_file(entry.id)
    record = entry.commit_record.waiting_in(path)
    with suppress(*MISSING):  # what an earlier attempt has left: a sync may have failed on it
        storage.remove(staged_path(directory, entry.nonce))
    writer = stage(storage, directory, entry.nonce, queue_id)
    try:
        for payload, headers in messages:
            writer.add(payload, headers, record.timestamp_ns)
        summary = writer.finish(record)
        writer.sync()
        writer.move(path)
        writer.close()
    except BaseException:
        writer.discard()
        raise
    return replace(summary, path=path)


def _is_moved(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, entry: Entry | DamagedEntry, *, may_move: bool
) -> bool:
    """Move an entry; False if it has to stay where it is. A batch file that is there counts."""
    with suppress(*MISSING, CorruptionError):
        if read_summary(storage, directory.batch_file(entry.id), queue_id).commit_record.nonce == entry.nonce:
            return True
    if not isinstance(entry, Entry) or not may_move:
        return False
    with suppress(DiskFullError):
        move_entry(storage, directory, queue_id, entry, entry_messages(storage, entry))
        return True
    return False  # what is reserved in its segment is for committing it


def _make_durable(storage: Storage, content: SegmentContent) -> None:
    """Write again what counts and may not be on the disk: an earlier sync may have failed unnoticed."""
    if content.end > content.witness:
        with storage.open(content.path) as file:
            write_whole(file, (file.read_at(content.end - content.witness, content.witness),), content.witness)
            file.sync()

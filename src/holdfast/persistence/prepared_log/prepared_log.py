"""The prepared log of one queue, for its owner: undecided entries, and the segments that they are in.

docs/format.md, "Prepared log". Segments of an earlier opening are read, never appended to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from holdfast.errors import ClosedError, DiskFullError, HoldfastError
from holdfast.persistence.filesystem.layout import PREPARED_LOG, QueueDirectory, note_feature
from holdfast.persistence.filesystem.poison import Poison
from holdfast.persistence.filesystem.storage import MISSING, Storage, storage_errors
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.format.file_header import SegmentHeader
from holdfast.persistence.format.report import Damage
from holdfast.persistence.log.file_steps import LEAST_BYTES, least_holding, step_after, step_holding
from holdfast.persistence.prepared_log.emptying import empty, remove_segment
from holdfast.persistence.prepared_log.entry import (
    Entry,
    UnwrittenEnd,
    encode_ended,
    encode_entry,
    entry_messages,
    entry_room,
)
from holdfast.persistence.prepared_log.reserve import Reserve
from holdfast.persistence.prepared_log.segment_reader import DamagedEntry
from holdfast.persistence.prepared_log.segment_writer import ENDED_BYTES, SegmentWriter, give_back
from holdfast.persistence.prepared_log.waiting_entries import WaitingEntries
from holdfast.threads import log_later

UNDECIDED_SECONDS = 60.0
"""What has been undecided for so long moves to a batch file."""

UNDECIDED_SEGMENTS = 2
"""So does what so many newer segments have passed."""


KEPT_BYTES_MAX = 2**20
"""Of the entries whose messages stay in memory until they are decided; those of others are read."""

_ROUGH_BYTES = 2 * LEAST_BYTES
"""On a full disk a data file is begun before the one before it is cut: so much of both has no message yet."""

_BLOCK_BYTES = 4096


@dataclass(slots=True)
class _Waiting:
    """An entry that is not decided, and its payloads and headers if they are kept."""

    entry: Entry | DamagedEntry
    since: float
    kept: tuple[Sequence[bytes], Mapping[int, bytes]] | None = None
    kept_bytes: int = 0


class PreparedLog:
    """Holds small prepared transactions until they are decided. Threads may share it.

    Parameters
    ----------
    storage, directory, queue_id
        The queue.
    largest_bytes : int
        Largest size of the room for frames in a segment, unless an entry needs more.
    check_fence : callable
        Raises FencedError if another owner has opened the queue.

    Attributes
    ----------
    reports : list of Damage
        What opening has found that may have taken entries, or the frames that end them.
    """

    def __init__(
        self,
        storage: Storage,
        directory: QueueDirectory,
        queue_id: bytes,
        largest_bytes: int,
        check_fence: Callable[[], None],
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._queue_id = queue_id
        self._largest_bytes = largest_bytes
        self._check_fence = check_fence
        self._lock = threading.Lock()
        self._removing = threading.RLock()  # around a removal and its sync; a signal handler may close this in between
        self._poison = Poison("the prepared log", directory.prepared)
        self._writer: SegmentWriter | None = None
        self._earlier: dict[int, int] = {}  # segments before the last one, ascending, and their ends
        self._last = 0
        self._appended = 0
        self._waiting: dict[str, _Waiting] = {}
        self._kept_bytes = 0
        self._given_back: dict[int, int] = {}  # bytes of the reserves of segments
        self._unwritten: dict[bytes, UnwrittenEnd] = {}  # what ended without a frame that says so
        self._is_stuck = False
        self._is_closed = False
        self._lost: list[Damage] = []  # of earlier segments, and the votes whose puts may have been there
        self._without_puts: set[bytes] = set()
        self.reports: list[Damage] = []

    def take_over(
        self,
        outcome_of: Callable[[bytes], int | None],
        without_puts: Callable[[], set[bytes]],
        *,
        may_move: bool = True,
    ) -> None:
        """Take over what an earlier opening has left; see :func:`empty`, whose parameters these are.

        Raises
        ------
        StorageError
            It cannot be read, or not be made durable.
        """
        with storage_errors("emptying the prepared log", self._directory.prepared):
            left = empty(self._storage, self._directory, self._queue_id, outcome_of, without_puts, may_move=may_move)
        now = time.monotonic()
        self._earlier, self._last = left.segments, left.last
        self._lost, self._without_puts, self.reports = left.lost, left.without_puts, left.reports
        self._waiting = {each.id: _Waiting(each, now) for each in left.entries}
        self._unwritten = left.void

    # -- Preparing ---------------------------------------------------------------------------------------------------

    def append(
        self, payloads: Sequence[bytes], headers: Mapping[int, bytes], commit_record: CommitRecord
    ) -> tuple[Entry, int]:
        """Append an entry; return it, and the ticket with which :meth:`sync` covers it.

        Raises
        ------
        DiskFullError, StorageError
            Nothing was added: there is no room for the entry, or none to commit it later.
        PoisonedError
            An earlier failure has poisoned the log.
        FencedError, ClosedError
            Another owner has come, or the queue was closed; nothing was added.
        """
        with self._lock:
            self._check_open()
            self._poison.check()
            writer = self._with_room(entry_room(payloads, headers) + ENDED_BYTES)
            record = commit_record.waiting_in(writer.path)
            buffers, begin_bytes = encode_entry(writer.header.salt, writer.synced, payloads, headers, record)
            position = writer.end
            end = position + sum(map(len, buffers))
            messages_start, commit_at = position + begin_bytes, end - len(buffers[-1]) - len(buffers[-2])
            salt = writer.header.salt
            entry = Entry(writer.path, self._last, salt, position, end, messages_start, record, commit_at)
            waiting = _Waiting(entry, time.monotonic())
            if self._kept_bytes + end - position <= KEPT_BYTES_MAX:
                waiting.kept, waiting.kept_bytes = (payloads, headers), end - position
            try:
                self._add(waiting)  # first: what may be written is in doubt
                writer.append(buffers)
            except BaseException:
                if writer.end == position:  # else it was interrupted behind the write
                    self._remove(waiting)
                raise
            self._appended += end - position
            return entry, self._appended

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self._directory.root} was closed; open it again")

    def _add(self, waiting: _Waiting) -> None:
        self._waiting[waiting.entry.id] = waiting
        self._kept_bytes += waiting.kept_bytes

    def _remove(self, waiting: _Waiting) -> None:
        if self._waiting.get(waiting.entry.id) is waiting:  # else it was interrupted before it was added
            del self._waiting[waiting.entry.id]
            self._kept_bytes -= waiting.kept_bytes

    def _with_room(self, size: int) -> SegmentWriter:
        """Return the segment for an entry; begin one if it has no room for it, and for all ends that are to come."""
        wanted = size + ENDED_BYTES * (len(self._waiting) + len(self._unwritten))
        writer = self._writer
        if writer is not None and writer.has_room(wanted) and (writer.takes_entries or not size):
            return writer
        self._check_fence()  # another owner has segments of the same names
        if writer is None:
            note_feature(self._storage, self._directory, PREPARED_LOG)
        else:
            writer.sync()
        is_full = writer is not None and writer.takes_entries
        step = step_after(writer.capacity_bytes, self._largest_bytes) if writer is not None and is_full else 0
        following = self._begin(wanted, step, takes_entries=size > 0)
        if writer is not None:
            self._earlier[self._last] = writer.end  # first: no segment may be forgotten by an interruption
        self._writer, self._last = following, self._last + 1
        if writer is not None:
            writer.close()
        return following

    def _begin(self, wanted: int, step: int, *, takes_entries: bool) -> SegmentWriter:
        """Make the next segment in its step; on a full disk the smallest that is enough.

        If it has to take no entries, the reserve of earlier segments makes room for it: it lets their entries end.
        """
        with suppress(DiskFullError):
            return self._made(max(step, step_holding(wanted, self._largest_bytes)))
        least = least_holding(wanted, self._largest_bytes)
        if takes_entries:
            return self._made(least)
        for sequence in reversed(self._earlier):
            with suppress(DiskFullError):
                return self._made(wanted, has_reserve=False)
            self._cut(sequence, wanted + FRAMES_START + _BLOCK_BYTES)
        return self._made(wanted, has_reserve=False)

    def _made(self, capacity: int, *, has_reserve: bool = True) -> SegmentWriter:
        sequence = self._last + 1
        path, header = self._directory.segment(sequence), SegmentHeader(self._queue_id, sequence)
        # The same again, a quarter for headers and seals of data files, and what two of them have no message in.
        reserve = capacity + capacity // 4 + _ROUGH_BYTES if has_reserve else 0
        return SegmentWriter(self._storage, path, header, capacity, reserve, self._poison, self._check_fence)

    def _cut(self, sequence: int, size: int) -> bool:
        """Give so much of the reserve of an earlier segment back to the disk; False if none is left."""
        path = self._directory.segment(sequence)
        with storage_errors("giving space back", path), suppress(*MISSING), self._storage.open(path) as file:
            return give_back(file, path, self._earlier[sequence], size)
        return False  # it is removed just now

    def sync(self) -> int:
        """Sync what was appended; return the ticket that this covers.

        Raises as ``SegmentWriter.sync``.
        """
        with self._lock:
            writer, appended = self._writer, self._appended
        if writer is not None:
            writer.sync()
        else:  # it was never used, or closed, which has synced it
            self._poison.check()
        return appended

    # -- Looking -----------------------------------------------------------------------------------------------------

    def find(self, transaction_id: str) -> Entry | DamagedEntry | None:
        """Return what waits under an id."""
        waiting = self._waiting.get(transaction_id)
        return None if waiting is None else waiting.entry

    def waiting(self) -> WaitingEntries:
        """Return what waits, oldest first, and the damage that may have taken the puts of some votes."""
        with self._lock:
            entries = [each.entry for each in self._waiting.values()]
            return WaitingEntries(entries, list(self._lost), frozenset(self._without_puts))

    def long_undecided(self, now: float) -> list[Entry]:
        """Return whole entries that have to move to batch files by ``now``, a monotonic time."""
        with self._lock:
            return [
                each.entry
                for each in self._waiting.values()
                if isinstance(each.entry, Entry)
                and (now - each.since >= UNDECIDED_SECONDS or self._last - each.entry.sequence >= UNDECIDED_SEGMENTS)
            ]

    @property
    def has_ended_segments(self) -> bool:
        """Whether :meth:`remove_ended` would remove a segment."""
        return self._removable() is not None

    def messages(self, entry: Entry) -> Iterator[tuple[bytes, bytes]]:
        """Yield payload and encoded headers of each message; raises as :func:`entry_messages`."""
        waiting = self._waiting.get(entry.id)
        if waiting is None or waiting.entry is not entry or waiting.kept is None:
            return entry_messages(self._storage, entry)
        payloads, headers = waiting.kept
        return ((payload, headers.get(number, b"")) for number, payload in enumerate(payloads))

    # -- Deciding ----------------------------------------------------------------------------------------------------

    def end(self, transaction_id: str, nonce: bytes, outcome: int, timestamp_ns: int) -> None:
        """Make an entry void, though not durably so before :meth:`sync_ends`; without one it does nothing.

        If the disk refuses the frame, it is written later: the log or the outcome log knows the outcome until then.
        """
        with self._lock:
            self._without_puts.discard(nonce)
            waiting = self._waiting.get(transaction_id)
            if waiting is None or waiting.entry.nonce != nonce:
                return
            self._unwritten[nonce] = UnwrittenEnd(waiting.entry.sequence, outcome, timestamp_ns)
            self._remove(waiting)
            if self._writer is not None:
                try:
                    self._write_ends(self._writer)
                except HoldfastError as error:
                    what = "the prepared log could not note yet that %s has ended: %s"
                    log_later(logging.WARNING, what, transaction_id, error)

    def _write_ends(self, writer: SegmentWriter) -> None:
        """Append the "ended" frames that are missing; each has room, unless an interruption has one written twice."""
        for nonce, end in list(self._unwritten.items()):
            if not writer.has_room(ENDED_BYTES):
                return
            writer.append(encode_ended(writer.header.salt, writer.synced, end.timestamp_ns, nonce, end.outcome))
            self._appended += ENDED_BYTES
            del self._unwritten[nonce]

    def sync_ends(self) -> bool:
        """Make durable that entries are void, and begin a segment for that if there is none; False if some are not yet.

        On a full disk those that an earlier opening has left stay so.
        """
        self.remove_ended()
        with self._lock, suppress(DiskFullError):  # all reserves were given back, and others have taken the space
            if self._unwritten and not self._is_closed:
                self._poison.check()
                self._write_ends(self._with_room(0))
        self.sync()
        return not self._unwritten

    def reserve_of(self, entry: Entry | None) -> Reserve:
        """Return the space that is reserved to commit an entry; None: what others have left, for a batch file."""
        if entry is None:
            return Reserve(0, lambda size: False, self._make_whole)
        return Reserve(entry.end - entry.position, partial(self._give_back, entry.sequence), self._make_whole)

    def _give_back(self, sequence: int, size: int) -> bool:
        with self._lock:
            self._check_open()
            self._given_back[sequence] = self._given_back.get(sequence, 0) + size
            if self._writer is not None and sequence == self._last:
                return self._writer.give_back(size)
            return self._cut(sequence, size)

    def _make_whole(self) -> None:
        """Reserve again what was given back for entries that still wait. Raises DiskFullError or StorageError."""
        with self._lock:
            undecided = {each.entry.sequence for each in self._waiting.values()}
            for sequence, size in list(self._given_back.items()):
                path = self._directory.segment(sequence)
                if sequence in undecided and not self._is_closed:
                    with storage_errors("reserving space", path), self._storage.open(path) as file:
                        file.allocate(file.size() + size)
                del self._given_back[sequence]

    def remove_ended(self) -> None:
        """Remove segments before the last one, oldest first, as long as nothing in them is undecided.

        Raises
        ------
        StorageError
            One cannot be removed durably; nothing is removed any more.
        """
        with self._removing:
            while (sequence := self._removable()) is not None:
                self._remove_segment(sequence)

    def _remove_segment(self, sequence: int) -> None:
        try:
            self._check_fence()  # another owner has segments of the same names
            path = self._directory.segment(sequence)
            is_damaged = any(each.path == path for each in self._lost)
            with storage_errors("removing a segment of the prepared log", path):
                remove_segment(self._storage, self._directory, sequence, is_damaged=is_damaged)
        except BaseException:
            self._is_stuck = True  # a second sync could succeed over a removal that is lost
            raise
        with self._lock:
            self._earlier.pop(sequence, None)
            self._unwritten = {nonce: end for nonce, end in self._unwritten.items() if end.sequence != sequence}

    def _removable(self) -> int | None:
        """Return the oldest segment if nothing in it is undecided; None if there is none, or it is the last one."""
        with self._lock:
            undecided = min((each.entry.sequence for each in self._waiting.values()), default=self._last + 1)
            oldest = next(iter(self._earlier), undecided)
            is_last = oldest == self._last and self._writer is not None
            stays = self._is_stuck or self._without_puts or is_last or oldest >= undecided
            return None if stays else oldest

    # -- Ending ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync what was appended, append nothing more, and remove segments, the last one too, if nothing waits in them.

        A failure of the sync is for those who wait for it; what could not be removed, the next opening removes.
        """
        with self._lock:
            if self._is_closed and self._writer is None:  # another owner may have segments of the same names by now
                return
            self._is_closed = True
            if self._writer is not None:
                self._writer.close()
                self._earlier[self._last] = self._writer.end
                self._writer = None
        with suppress(HoldfastError):
            self.remove_ended()

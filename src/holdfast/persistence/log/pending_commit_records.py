"""The pending commit records: their consequences are not all durable elsewhere, so recovery would have to redo them.

A record with a session is pending also while that session may not have the answer yet, and may send the request again.
Only the last one of each thread can wait for this, because a thread sends a request once it has the answer to the one
before.

Each is in the active data file: committed there, or carried there when the file was begun. ``write.mark`` has the
position of the first, so that opening a queue reads no further back. docs/format.md, "Commit records".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain

from holdfast.errors import HoldfastError
from holdfast.persistence.format.commit_record import CommitRecord, count_of, thread_of
from holdfast.threads import log_later

DurabilityCheck = Callable[[], object]
"""Makes one consequence of a commit record durable; returns False, or raises, if it cannot do so now."""


class OwnFile(Enum):
    """A file of the queue itself, beside its log, in which consequences of a commit record are noted."""

    GROUP = auto()
    """The position file of the handle's own group."""
    PREPARED = auto()
    """What was removed from ``prepared/``, and the memory of decided transactions."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to be durable before a commit record that was applied may end.

    Attributes
    ----------
    own : frozenset of OwnFile
        Files of the queue itself.
    others : tuple of callable
        Checks of other queues, and of groups with other owners. They never run under the append lock.
    """

    own: frozenset[OwnFile]
    others: tuple[DurabilityCheck, ...] = ()


class PendingCommitRecords:
    """Pending commit records by nonce, in the order of the log. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: dict[bytes, int] = {}
        self._commit_records: dict[bytes, CommitRecord] = {}
        self._durable: set[bytes] = set()
        self._needs: dict[bytes, Needs] = {}
        self._unanswered: dict[bytes, bytes] = {}
        self._settled: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._commit_records)

    def __iter__(self) -> Iterator[CommitRecord]:
        with self._lock:
            return iter(list(self._commit_records.values()))

    def add(self, commit_record: CommitRecord, position: int, *, is_durable: bool = False) -> None:
        """Add a commit record that is, or is about to be, at ``position`` of the active file.

        If its thread has an earlier one, that one was answered.
        """
        nonce = commit_record.nonce
        with self._lock:
            self._commit_records[nonce] = commit_record
            self._positions[nonce] = position
            if is_durable:
                self._durable.add(nonce)
            if commit_record.session:
                self._await_answer(commit_record)

    def _await_answer(self, commit_record: CommitRecord) -> None:
        """Let the later one of a thread wait for its session; in an adopted file that may be the first one."""
        nonce, thread = commit_record.nonce, thread_of(commit_record.nonce)
        if not commit_record.has_consequences:
            self._settled.add(nonce)
        other = self._unanswered.get(thread, nonce)
        if other != nonce and count_of(other) > count_of(nonce):
            self._end_if_settled(nonce)
            return
        self._unanswered[thread] = nonce
        if other != nonce:
            self._end_if_settled(other)

    def confirm(self, nonce: bytes) -> None:
        """Note that a commit record is on the disk: before that no step may act upon it, and its outcome is unknown."""
        with self._lock:
            if nonce in self._commit_records:
                self._durable.add(nonce)

    def is_durable(self, nonce: bytes) -> bool:
        """Whether a pending commit record is known to be on the disk."""
        return nonce in self._durable

    def remove(self, nonce: bytes) -> None:
        """Forget a commit record: it could not be written, or has ended."""
        with self._lock:
            self._remove(nonce)

    def _remove(self, nonce: bytes) -> None:
        self._commit_records.pop(nonce, None)
        self._positions.pop(nonce, None)
        self._durable.discard(nonce)
        self._needs.pop(nonce, None)
        self._settled.discard(nonce)
        if self._unanswered.get(thread_of(nonce)) == nonce:
            del self._unanswered[thread_of(nonce)]

    def find(self, nonce: bytes) -> CommitRecord | None:
        """Return a pending commit record, or None."""
        return self._commit_records.get(nonce)

    def move(self, positions: dict[bytes, int]) -> None:
        """Note the positions of the records in the next data file."""
        with self._lock:  # some may have ended meanwhile
            self._positions.update({nonce: at for nonce, at in positions.items() if nonce in self._commit_records})

    def first_position(self, end: int) -> int:
        """Return the position from which recovery has to read the active file: the first pending record, or ``end``."""
        with self._lock:
            return min([end, *self._positions.values()])

    def applied(self, nonce: bytes, needs: Needs) -> None:
        """Note that all consequences of a commit record were applied, and what has to be durable before it ends."""
        with self._lock:
            if nonce in self._commit_records:
                self._needs[nonce] = needs
                self._settled.discard(nonce)

    def applied_needs(self, *, own_only: bool = False) -> dict[bytes, Needs]:
        """Return the needs of applied records; ``own_only``: of those that need only the queue's own files."""
        with self._lock:
            return {nonce: needs for nonce, needs in self._needs.items() if not (own_only and needs.others)}

    @property
    def has_deferred(self) -> bool:
        """Whether one that was applied needs more than the queue's own files."""
        with self._lock:
            return any(needs.others for needs in self._needs.values())

    def end(self, applied: Mapping[bytes, Needs], durable: Collection[OwnFile]) -> None:
        """End those of ``applied`` that need no more; each check of other queues runs once for all of them.

        Parameters
        ----------
        applied : mapping of bytes to Needs
            What :meth:`applied_needs` returned.
        durable : collection of OwnFile
            Files that were synced since.
        """
        checks = dict.fromkeys(chain.from_iterable(needs.others for needs in applied.values()))  # in the log's order
        done = {check for check in checks if is_durable(check)}
        for nonce, needs in applied.items():
            left = Needs(needs.own.difference(durable), tuple(check for check in needs.others if check not in done))
            if left.own or left.others:
                self.applied(nonce, left)  # what is durable stays so
            else:
                self._settle(nonce)

    # -- Answers that sessions wait for ------------------------------------------------------------------------------

    @property
    def unsettled_count(self) -> int:
        """How many do not wait for their session only."""
        return len(self._commit_records) - len(self._settled)

    def acknowledge(self, thread: bytes, count: int) -> None:
        """Note that a thread has the answers to its requests up to ``count``."""
        with self._lock:
            nonce = self._unanswered.get(thread)
            if nonce is not None and count_of(nonce) <= count:
                del self._unanswered[thread]
                self._end_if_settled(nonce)

    def latest_count(self, thread: bytes) -> int:
        """Return the count of the request whose answer a thread waits for; -1: it waits for none that is known."""
        nonce = self._unanswered.get(thread)
        return -1 if nonce is None else count_of(nonce)

    def keep_sessions(self, is_alive: Callable[[int], bool]) -> None:
        """Let no record wait for a session that is not alive."""
        with self._lock:
            sessions = {nonce: self._commit_records[nonce].session for nonce in self._unanswered.values()}
        dead = {session for session in set(sessions.values()) if not is_alive(session)}  # may look at files
        with self._lock:
            for nonce, session in sessions.items():
                if session in dead:
                    self._answered(nonce)

    def _settle(self, nonce: bytes) -> None:
        """End a record with nothing to be made durable, unless its session waits for it."""
        with self._lock:
            self._needs.pop(nonce, None)
            if nonce in self._commit_records:
                self._settled.add(nonce)
                if self._unanswered.get(thread_of(nonce)) != nonce:
                    self._remove(nonce)

    def _answered(self, nonce: bytes) -> None:
        """Let a record not wait for its session any more."""
        if self._unanswered.get(thread_of(nonce)) == nonce:
            del self._unanswered[thread_of(nonce)]
            self._end_if_settled(nonce)

    def _end_if_settled(self, nonce: bytes) -> None:
        if nonce in self._settled:
            self._remove(nonce)


def is_durable(check: DurabilityCheck) -> bool:
    """Run a check; a failure means that its consequence is not known to be durable, and is logged."""
    try:
        return check() is not False
    except (HoldfastError, OSError) as error:
        log_later(logging.INFO, "a commit record stays pending for now: %s", error)
        return False

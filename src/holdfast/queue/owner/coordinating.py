"""Commits over several queues that this owner decides: what its sessions have begun, until they end it.

A commit is decided only by the owner with which it was begun. What that one did not decide, no successor ever does: it
knows nothing begun. So it answers "aborted" to the other queues, and refuses a late request to decide.
"""

from __future__ import annotations

from holdfast.errors import TransactionStateError
from holdfast.persistence.format.commit_record import CommitRecord, count_of, thread_of
from holdfast.persistence.log.pending_commit_records import Needs, OwnFile
from holdfast.persistence.outcomes.redo import settled_check
from holdfast.queue.engine.queue_handle import QueueHandle

_OWN = frozenset({OwnFile.PREPARED, OwnFile.GROUP})


class Coordinating:
    """What sessions have begun with one owner.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with its write side.

    Notes
    -----
    The requests of one session about one commit come one after the other. So does the end of a dead session.
    """

    def __init__(self, handle: QueueHandle) -> None:
        assert handle.coordinator is not None, "an owner has the write side"
        self._handle = handle
        self._coordinator = handle.coordinator
        self._begun: dict[int, set[bytes]] = {}
        self._ended: dict[int, dict[bytes, int]] = {}
        self._unnoted: set[bytes] = set()

    def begin(self, session: int, nonce: bytes) -> None:
        """Note that a session is about to decide a commit: until it ends that, the outcome is in doubt.

        Raises
        ------
        TransactionStateError
            It has ended that one, or a later one of the thread: this is an old copy.
        """
        if count_of(nonce) <= self._ended.get(session, {}).get(thread_of(nonce), -1):
            raise TransactionStateError(f"commit {nonce.hex()} has ended before: this is an old copy of its beginning")
        self._begun.setdefault(session, set()).add(nonce)
        self._coordinator.begin(nonce)

    def check(self, session: int, nonce: bytes) -> None:
        """Return if the session has begun this commit here. Raises TransactionStateError."""
        if nonce not in self._begun.get(session, ()):
            raise TransactionStateError(
                f"commit {nonce.hex()} was begun with another owner of {self._handle.path}, which is gone: it is "
                "aborted in all its queues",
                state="aborted",
            )

    def decided(self, commit_record: CommitRecord, needs: frozenset[OwnFile] | None) -> None:
        """Note a commit: its record ends once all parts are seen to follow, or the session says so.

        ``needs`` are the files with its consequences here; None if the next opening has to note them.
        """
        if needs is None:
            self._unnoted.add(commit_record.nonce)
            return
        handle, nonce = self._handle, commit_record.nonce
        checks = [
            settled_check(handle.storage, handle.path, handle.clock, each, nonce) for each in commit_record.participants
        ]
        handle.require_write_side().pending_commit_records.applied(nonce, Needs(needs, tuple(checks)))

    def end(self, session: int, nonce: bytes, *, is_followed: bool) -> None:
        """Note that a session has ended a commit; ``is_followed``: all parts follow, durably. Again changes nothing."""
        ended = self._ended.setdefault(session, {})
        ended[thread_of(nonce)] = max(count_of(nonce), ended.get(thread_of(nonce), -1))
        self._begun.get(session, set()).discard(nonce)
        self._coordinator.end(nonce)
        if is_followed and nonce not in self._unnoted:
            self._handle.require_write_side().pending_commit_records.applied(nonce, Needs(_OWN))

    def end_session(self, session: int) -> None:
        """End what a dead session has begun: what it did not decide is aborted from here on."""
        self._ended.pop(session, None)
        for nonce in self._begun.pop(session, ()):
            self._coordinator.end(nonce)

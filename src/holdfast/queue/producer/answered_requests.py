"""Remembers which requests of each thread were answered, so that an old copy of one is not done again.

A copy may wait in the buffer of a connection that broke. All this is memory only: a later owner has none of those
connections. docs/adr/0050, "Requests".
"""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.persistence.format.commit_record import CommitRecord, count_of, thread_of
from holdfast.persistence.log.pending_commit_records import PendingCommitRecords


class AnsweredRequests:
    """The counts up to which threads of other processes have their answers.

    Parameters
    ----------
    pending : PendingCommitRecords
        Of the same queue: a record in it may wait for its answer to arrive.

    Notes
    -----
    One thread's requests come one after the other, and so do calls about them.
    """

    def __init__(self, pending: PendingCommitRecords) -> None:
        self._pending = pending
        self._counts: dict[bytes, int] = {}
        self._threads: dict[int, set[bytes]] = {}

    def known(self, commit_record: CommitRecord) -> CommitRecord | None:
        """Return the pending commit record of the same request; None if it is not in the log.

        A request acknowledges the earlier ones of its thread.

        Raises
        ------
        UsageError
            It was answered, and the answer has arrived: this is an old copy.
        """
        found = self._pending.find(commit_record.nonce)
        if not commit_record.session:
            return found
        thread, count = thread_of(commit_record.nonce), count_of(commit_record.nonce)
        if thread not in self._counts:
            self.note_thread(commit_record)
        if found is not None:
            return found
        if count <= self._counts[thread]:
            raise UsageError(
                f"request {count} of thread {thread.hex()} was answered before: this old copy of it is not done again"
            )
        self.acknowledge(thread, count - 1)
        return None

    def note_thread(self, commit_record: CommitRecord) -> None:
        """Note whose thread a request is: from here on its old copies are known, until the session ends."""
        thread = thread_of(commit_record.nonce)
        if commit_record.session and thread not in self._counts:
            self._counts[thread] = self._pending.latest_count(thread) - 1  # it had the answers to those before
            self._threads.setdefault(commit_record.session, set()).add(thread)

    def check_new(self, commit_record: CommitRecord) -> None:
        """Return if a request is neither answered nor in the log. Raises UsageError."""
        if self.known(commit_record) is not None:
            raise UsageError(f"{commit_record.id} is in the log already: it has an answer, and is not done again")

    def acknowledge(self, thread: bytes, count: int) -> None:
        """Note that a thread has the answers to its requests up to ``count``; a lower one than before does nothing."""
        if thread in self._counts:  # first: what is not pending any more is refused
            self._counts[thread] = max(count, self._counts[thread])
        self._pending.acknowledge(thread, count)

    def end_session(self, session: int) -> None:
        """Forget a session that is dead: none of its requests is sent again."""
        for thread in self._threads.pop(session, ()):
            self._counts.pop(thread, None)
        self._pending.keep_sessions(lambda each: each != session)

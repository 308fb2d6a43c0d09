"""What the write side does in the background: publishing, early syncs, marks of an idle queue, deferred ends."""

from __future__ import annotations

import threading
import time

from holdfast.clock import Clock
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.persistence.log.log_writer import LogWriter
from holdfast.queue.producer.commit_record_ends import CommitRecordEnds
from holdfast.queue.threads.flusher import Flusher
from holdfast.queue.threads.lifecycle import Lifecycle

EARLY_SYNC_BYTES = 8 * 2**20
"""Policies that do not sync every commit still start writing this often, so that sealing a file, which always syncs,
waits for little, and so that recovery after a power cut has little to read."""

_PUBLISH_SECONDS = 0.005
"""How far other processes lag behind a policy that does not sync every commit."""

_IDLE_SECONDS = 1.0
"""A queue that is idle for this long writes a mark frame as the witness of its last commit."""


class Upkeep:
    """The part of :class:`WriteSide` that no caller waits for.

    Parameters
    ----------
    writer : LogWriter
        The writer of the log.
    policy : FlushPolicy
        When a commit is synced.
    clock : Clock
        For the background thread.
    record_ends : CommitRecordEnds
        Ends the pending commit records of the log.
    """

    def __init__(self, writer: LogWriter, policy: FlushPolicy, clock: Clock, record_ends: CommitRecordEnds) -> None:
        self._writer = writer
        self._policy = policy
        self._record_ends = record_ends
        self._append_lock = threading.Lock()
        self._lifecycle = Lifecycle()
        self._synced_only = policy.syncs_every_commit
        self._unsynced_since: float | None = None
        self._marked_end = writer.end
        self._seen_end = writer.end
        self._moved_at = 0.0
        interval = _IDLE_SECONDS if self._synced_only else _PUBLISH_SECONDS
        if policy.seconds is not None:
            interval = min(interval, policy.seconds / 2)
        self._flusher = Flusher(self._tick, self._flush_now, interval, clock)

    def _tick(self) -> bool:
        """Do due work; return whether more work will be due without another commit."""
        writer = self._writer
        end = writer.end
        moved, self._seen_end = end != self._seen_end, end
        now = time.monotonic()
        if moved:
            self._moved_at = now
        if not self._synced_only:
            writer.publish()
            if self._is_sync_due():
                writer.sync()
        has_deferred = self._record_ends.end_deferred(now)
        if moved or (self._policy.seconds is not None and writer.end != writer.synced):
            return True
        if self._policy.commits is None or end == self._marked_end:
            return has_deferred
        if now - self._moved_at < _IDLE_SECONDS:
            return True
        self._leave_mark()
        return has_deferred

    def _flush_now(self) -> None:
        """Do the background's work at once, if it has no thread."""
        writer = self._writer
        if self._policy.seconds is not None or writer.unsynced_bytes >= EARLY_SYNC_BYTES:
            writer.sync()
        else:
            writer.publish()

    def _is_sync_due(self) -> bool:
        writer = self._writer
        if writer.end == writer.synced:
            self._unsynced_since = None
            return False
        now = time.monotonic()
        if self._unsynced_since is None:
            self._unsynced_since = now
        overdue = self._policy.seconds is not None and now - self._unsynced_since >= self._policy.seconds / 2
        is_due = overdue or writer.unsynced_bytes >= EARLY_SYNC_BYTES
        if is_due:
            self._unsynced_since = None
        return is_due

    def _leave_mark(self) -> None:
        with self._append_lock:
            if self._lifecycle.refusal is None and self._writer.end == self._seen_end:
                self._writer.append_mark()
                self._marked_end = self._seen_end = self._writer.end

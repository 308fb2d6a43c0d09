"""The write side of a queue in the process that owns it: producers' threads, one append lock, shared syncs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter

from holdfast.clock import Clock
from holdfast.errors import NO_ROOM, Full, StorageError
from holdfast.persistence.filesystem.locks import SideLock
from holdfast.persistence.filesystem.storage import File, storage_errors
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import FRAME_HEADER_BYTES
from holdfast.persistence.index.dedup_ring import digest_of
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.persistence.log.log_writer import LogWriter
from holdfast.persistence.log.pending_commit_records import PendingCommitRecords
from holdfast.persistence.prepared_log.reserve import Reserve
from holdfast.persistence.segment.batch_file_reader import BatchSummary
from holdfast.queue.options.put_options import as_ns
from holdfast.queue.options.settings import Settings
from holdfast.queue.producer.answered_requests import AnsweredRequests
from holdfast.queue.producer.capacity import Capacity
from holdfast.queue.producer.commit_record_ends import CommitRecordEnds
from holdfast.queue.producer.deduplication import Deduplication
from holdfast.queue.producer.reserved_appends import ReservedAppends
from holdfast.queue.producer.upkeep import Upkeep
from holdfast.queue.threads.group_commit import GroupCommit
from holdfast.queue.threads.notifier import Notifier
from holdfast.threads import log_later


class WriteSide(Upkeep):
    """Appends for all threads of a process.

    Parameters
    ----------
    writer : LogWriter
        The writer of the log.
    lock : SideLock
        Held until :meth:`close`.
    policy : FlushPolicy
        When a commit is synced.
    clock : Clock
        For the background thread.
    deduplication : Deduplication
        The ids that were put.
    capacity : Capacity
        The bounds of the queue.
    record_ends : CommitRecordEnds
        Ends the pending commit records of the log.

    Attributes
    ----------
    end : callable
        Returns the high watermark for consumers: behind the last synced commit, or the last written one, by policy.
    prioritized_end : callable
        Returns the offset behind the last message that may have a priority; 0: none ever had. To be read behind
        ``end``.
    """

    def __init__(
        self,
        writer: LogWriter,
        lock: SideLock,
        policy: FlushPolicy,
        clock: Clock,
        deduplication: Deduplication,
        capacity: Capacity,
        record_ends: CommitRecordEnds,
    ) -> None:
        super().__init__(writer, policy, clock, record_ends)
        self._answered = AnsweredRequests(writer.pending_commit_records)
        self._capacity = capacity
        self.deduplication = deduplication
        self._lock = lock
        self._commits = GroupCommit(writer.sync)
        self.end: Callable[[], LogEnd] = partial(attrgetter("synced" if self._synced_only else "end"), writer)
        self.prioritized_end: Callable[[], int] = partial(attrgetter("prioritized_end"), writer)
        self._policy_commits = policy.commits
        self._unsynced_commits = 0
        self._due = 0
        self._reserved = ReservedAppends(writer)
        self.data_available = Notifier()

    @property
    def next_offset(self) -> int:
        """Offset of the message that comes next."""
        return self._writer.end[2]

    def wait(self, ready: Callable[[], bool], seconds: float | None) -> None:
        """Sleep until something is put, or :meth:`wake`, unless ``ready()`` already; at most ``seconds``."""
        self.data_available.wait(ready, seconds)

    def wake(self) -> None:
        """Wake consumers of this process that wait for messages."""
        self.data_available.notify()

    def disk_bytes_with(self, size: int, files: LogFiles, file_bytes: int) -> int:
        """Return what data files would take with ``size`` bytes of frames more."""
        fits, bytes_max = self._writer.has_space(size), self._capacity.max_bytes
        behind = self._writer.end[1] + (size if fits else 0)  # an opened file has the size that it was closed with
        more = 0 if fits else max(size, file_bytes)
        total = files.total_bytes_with(behind) + more
        if bytes_max is None or total > bytes_max:
            with storage_errors("listing data files", files.directory):
                files.refresh()  # a consumer in another process, or a handle beside this one, may have retired some
            total = files.total_bytes_with(behind) + more
        return total

    def change(self, settings: Settings) -> None:
        """Let changed settings count; data files that are there keep their size."""
        with self._append_lock:
            self._writer.change_file_bytes(settings["data_file_bytes"])
            self.deduplication.change(as_ns(settings["dedup_window"], "dedup_window"))

    # -- Putting -----------------------------------------------------------------------------------------------------

    def put(self, payload: bytes, headers: bytes, timeout: float | None) -> int:
        """Append one message and return its offset once it is as durable as the policy requires."""
        if self._capacity.is_bounded:
            size = FRAME_HEADER_BYTES + len(headers) + len(payload)
            return self._put_bounded(1, size, timeout, lambda: self._append(payload, headers))
        with self._append_lock:
            if self._lifecycle.refusal is not None or self.deduplication.begun is not None:
                self._begin_append()
            offset = self._writer.append(payload, headers)
            while offset is None:
                self._roll()
                offset = self._writer.append(payload, headers)
        if self._policy_commits is not None:
            self._commit(offset + 1)
        if self._flusher.idle or self.data_available.waiting:
            self._announce()
        return offset

    def put_once(self, payload: bytes, headers: bytes, dedup_id: str, timeout: float | None) -> int:
        """As :meth:`put`; for a message with a remembered id return that one's offset, once that is as durable."""
        size = FRAME_HEADER_BYTES + len(headers) + len(payload)
        return self._put_bounded(1, size, timeout, partial(self._append, payload, headers), digest_of(dedup_id))

    def put_many(
        self, payloads: Sequence[bytes], timeout: float | None, headers: Mapping[int, bytes] | None = None
    ) -> range:
        """Append a batch as one commit; return its offsets."""
        if self._capacity.is_bounded:
            self._capacity.check_fits(len(payloads))
            size = sum(map(len, payloads)) + FRAME_HEADER_BYTES * len(payloads)
            append = lambda: self._append_batch(payloads, headers).start  # noqa: E731  # as put has one
            first = self._put_bounded(len(payloads), size, timeout, append)
            return range(first, first + len(payloads))
        with self._append_lock:
            self._begin_append()
            offsets = self._append_batch(payloads, headers)
        self._commit(offsets.stop)
        self._announce()
        return offsets

    # -- Deciding ----------------------------------------------------------------------------------------------------

    def wait_for_space(self, count: int, size: int, timeout: float | None) -> None:
        """Return once a bounded queue has space for a batch; raises queue.Full after ``timeout`` seconds.

        ``count`` of 0: as many messages are finished with it as it has, and its bytes need space all the same. Raises
        queue.ShutDown or ClosedError if nothing can be put any more.
        """
        capacity = self._capacity
        if capacity.is_bounded and size:
            capacity.check_fits(count)
            deadline = None if timeout is None else time.monotonic() + timeout
            while self._lifecycle.refusal is None and not capacity.has_space(count, size):
                capacity.wait(count, size, deadline, lambda: self._lifecycle.refusal is None)
        self._lifecycle.check()

    def decide(
        self,
        payloads: Sequence[bytes],
        headers: Mapping[int, bytes] | None,
        commit_record: CommitRecord,
        reserve: Reserve | None = None,
    ) -> range:
        """Append a batch that ends with a commit record, and sync it under any policy; return its offsets.

        ``reserve`` is given back on a full disk. What it leaves of a data file is for those who pass one, until it is
        whole again.

        Raises UsageError if it is an old copy of a request that was answered, or that :meth:`answer_to` answers.
        """
        with self._append_lock:
            self._begin_append()
            if commit_record.session:
                self._answered.check_new(commit_record)
            append = partial(self._append_batch, payloads, headers, commit_record)
            offsets = append() if reserve is None else self._reserved.append(append, reserve)
        if payloads:
            self._commits.wait(offsets.stop)
        else:  # no offset tells a sync that covers it from one that does not
            self._writer.sync()
        self._writer.pending_commit_records.confirm(commit_record.nonce)
        self._record_ends.end_if_many()
        self._announce()
        return offsets

    def has_decided(self, nonce: bytes) -> bool:
        """Whether the log decides a transaction, durably: one that was cut short before its sync is synced now.

        Raises
        ------
        CommitUnknownError, PoisonedError
            The outcome is unknown.
        """
        return self._durable(nonce) is not None

    def _durable(self, nonce: bytes) -> CommitRecord | None:
        with self._append_lock:  # so it is there whole, or could not be taken back
            commit_records = self._writer.pending_commit_records
            found = commit_records.find(nonce)
            if found is not None and not commit_records.is_durable(nonce):
                self._writer.sync()
                commit_records.confirm(nonce)
            return found

    # -- Requests of sessions, which may come again --------------------------------------------------------------------

    def answer_to(self, nonce: bytes) -> range | None:
        """Return the offsets of a request that is in the log, synced under any policy; None if it is not pending.

        Raises as :meth:`has_decided`.
        """
        found = self._durable(nonce)
        if found is None:
            return None
        self._answered.note_thread(found)
        return found.offsets

    def acknowledge_answers(self, thread: bytes, count: int) -> None:
        """Note that a thread has the answers to its requests up to ``count``: these are never done again.

        Parameters
        ----------
        thread : bytes, length 8
            The first half of the nonces of its requests.
        count : int
            The second half of the last one's.
        """
        self._answered.acknowledge(thread, count)

    def end_session(self, session: int) -> None:
        """Note that a session is dead, for ever: nothing is kept for it, and it sends no request again."""
        self._answered.end_session(session)

    def append_requested(
        self,
        payloads: Sequence[bytes],
        headers: Mapping[int, bytes] | None,
        commit_record: CommitRecord,
        dedup_id: str,
        *,
        may_append: bool = True,
    ) -> tuple[range, bool] | None:
        """Append the batch of another process, and return its offsets; None if a bounded queue is full now.

        It counts as committed once :meth:`settle` has returned, which several share; or :meth:`confirm`, if the second
        value is false: the same request, or a message of its id, is in the log, and nothing was appended.
        ``may_append``: False if other requests wait for the space of a bounded queue before this one.

        Raises UsageError if it is an old copy of a request whose answer has arrived.
        """
        with self._append_lock:
            self._begin_append()
            earlier = self._answered.known(commit_record)
            if earlier is not None:
                return earlier.offsets, False
            digest = digest_of(dedup_id)
            known = self.deduplication.find(digest)
            if known is not None:
                return range(known, known + 1), False
            if self._capacity.is_bounded:
                size = sum(map(len, payloads)) + FRAME_HEADER_BYTES * (len(payloads) + 1)
                self._capacity.check_fits(len(payloads))
                if not may_append or not self._capacity.has_space(len(payloads), size):
                    return None
            append = lambda: self._append_batch(payloads, headers, commit_record)  # noqa: E731
            return self.deduplication.append(digest, append), True

    def settle(self, ticket: int, commit_count: int, *, synced: bool = False) -> None:
        """Make ``commit_count`` commits below offset ``ticket`` as durable as the policy requires, and announce them.

        ``synced``: on the disk under any policy.

        Raises
        ------
        CommitUnknownError
            The sync failed: the outcome of all of them is unknown.
        """
        if synced or self._synced_only:
            self._commits.wait(ticket)
        elif self._policy_commits is not None:
            self._count_commit(self._policy_commits, commit_count)
        self._announce()

    def confirm(self, ticket: int, *, synced: bool = False) -> None:
        """Return once a commit below offset ``ticket`` is as durable as its own return says. As above."""
        if synced or self._synced_only or ticket <= self._due:
            self._commits.wait(ticket)
        elif self._policy_commits is not None:  # its own thread may not have counted it yet
            self._count_commit(self._policy_commits)

    def adopt(self, file: File, batch: BatchSummary) -> range:
        """Make a batch file the next data file: that decides it; return its offsets."""
        with self._append_lock:
            self._begin_append()
            if batch.commit_record.session:
                self._answered.check_new(batch.commit_record)
            self._writer.check_fence()
            self._prepare_to_leave()
            offsets = self._reserved.adopt(partial(self._writer.adopt, file, batch))
        self._record_ends.end_if_many()
        self._announce()
        return offsets

    @property
    def pending_commit_records(self) -> PendingCommitRecords:
        """The pending commit records: not all of their consequences are on the disk yet."""
        return self._writer.pending_commit_records

    # -- Leaving a data file: under the append lock, and by calls to the queue's own files only ----------------------

    def _begin_append(self) -> None:
        """Come first in each append: raise what refuses it, and forget the id of one that did not happen."""
        self._lifecycle.check()
        self.deduplication.forget_unappended()

    def _append(self, payload: bytes, headers: bytes) -> int:
        offset = self._writer.append(payload, headers)
        while offset is None:
            self._roll()
            offset = self._writer.append(payload, headers)
        return offset

    def _append_batch(
        self, payloads: Sequence[bytes], headers: Mapping[int, bytes] | None, commit_record: CommitRecord | None = None
    ) -> range:
        offsets = self._writer.append_batch(payloads, headers, commit_record)
        while offsets is None:
            self._roll()
            offsets = self._writer.append_batch(payloads, headers, commit_record)
        return offsets

    def _roll(self, *, is_full: bool = True) -> None:
        self._reserved.leave()
        self._prepare_to_leave()
        self._writer.roll(is_full=is_full)

    def roll_if_old(self, age_ns: int, now_ns: int) -> bool:
        """Begin the next data file if the active one has a message of that age; return whether it did."""
        with self._append_lock:
            oldest_ns = self._writer.oldest_ns
            if self._lifecycle.refusal is not None or oldest_ns is None or now_ns - oldest_ns < age_ns:
                return False
            self._writer.check_fence()
            self._roll(is_full=False)
            return True

    def _prepare_to_leave(self) -> None:
        """Make durable what only the active file says, and end decisions that need no other queue's files."""
        self._record_ends.end_own()
        self.deduplication.keep()

    # -- Waiting for room --------------------------------------------------------------------------------------------

    def _put_bounded(
        self, count: int, size: int, timeout: float | None, append: Callable[[], int], digest: bytes = b""
    ) -> int:
        """Append once there is space; a remembered message needs none."""
        ids, capacity = self.deduplication, self._capacity
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._append_lock:
                if self._lifecycle.refusal is not None or ids.begun is not None:
                    self._begin_append()
                known = ids.find(digest)
                if known is None and (not capacity.is_bounded or capacity.has_space(count, size)):
                    offset = ids.append(digest, append)
                    break
            if known is not None:
                self.confirm(known + count)
                return known
            if timeout is not None and timeout <= 0:
                raise Full(NO_ROOM)
            capacity.wait(count, size, deadline, lambda: self._lifecycle.refusal is None)
        if self._policy_commits is not None:
            self._commit(offset + count)
        if self._flusher.idle or self.data_available.waiting:
            self._announce()
        return offset

    def _commit(self, ticket: int) -> None:
        """Make everything below offset ``ticket`` as durable as the policy requires."""
        if self._synced_only:
            self._commits.wait(ticket)
        elif self._policy_commits is not None:
            self._count_commit(self._policy_commits)

    def _announce(self) -> None:
        """Show the puts to consumers, and notify the background thread."""
        follow_up("other processes see new messages later", self._tell)

    def _tell(self) -> None:
        if self.data_available.waiting:
            self.data_available.notify()
        if self._flusher.idle:
            self._flusher.kick()

    def _count_commit(self, commits_max: int, commit_count: int = 1) -> None:
        """Count commits, and sync all that was appended once there are so many: others may have counted before."""
        try:
            with self._append_lock:
                ticket = self._writer.end[2]
                self._unsynced_commits += commit_count
                is_due = self._unsynced_commits >= commits_max
                if is_due:
                    self._unsynced_commits, self._due = 0, max(self._due, ticket)
            if is_due:
                self._commits.wait(ticket)
        except BaseException:
            self._unsynced_commits = commits_max  # the next commit syncs for these
            raise

    @property
    def is_poisoned(self) -> bool:
        """Whether an earlier failure has left memory and disk possibly apart."""
        return self._writer.is_poisoned

    def flush(self) -> None:
        """Sync everything put so far, under any policy. Raises PoisonedError if some of it may not be on the disk."""
        with self._append_lock:
            self._lifecycle.check_alive()
            ticket = self._writer.end[2]
        self._commits.wait(ticket)
        self._writer.check_poison()
        self._writer.publish()

    def check_fence(self) -> None:
        """Return if no other owner has opened the queue. Raises FencedError, StorageError."""
        self._writer.check_fence()

    def rest(self) -> None:
        """Close the handle that is not needed while nothing is put."""
        self._writer.rest()

    # -- Ending ------------------------------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Refuse further puts with queue.ShutDown."""
        with self._append_lock:
            self._lifecycle.drain()
        self._wake()

    def close(self) -> None:
        """Refuse further puts, leave the files clean, and let the next owner in."""
        with self._append_lock:
            self._lifecycle.close()
        self._wake()
        self._flusher.stop()
        try:
            try:
                self._close_writer()
            finally:
                self._writer.abandon()
        finally:
            self._lock.release()

    def _close_writer(self) -> None:
        """End what can end, and leave the last file clean if what that promises can be made durable."""
        writer = self._writer
        if writer.is_open:
            self._record_ends.end_all()
        with self._append_lock:
            if not writer.has_grown:
                return
            writer.sync()
            try:
                self.deduplication.keep()
            except StorageError as error:
                path = self._lock.path.parent
                log_later(logging.WARNING, "%s was not closed in order; the next opening reads more: %s", path, error)
                return
            writer.close()

    def forget(self) -> None:
        """In a forked child: touch nothing that the parent owns."""
        self._append_lock = threading.Lock()
        self._lifecycle.forget()

    def _wake(self) -> None:
        self.data_available.notify()
        self._capacity.space_available.notify()

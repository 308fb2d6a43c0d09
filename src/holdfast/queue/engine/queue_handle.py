"""Opens a queue: checks permissions, recovers the log, and opens the sides.

Only a recovered log is read. Sides are locked while the groups lock is held: so a lock file names its owner before
others find it locked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import UsageError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.access import writable_by_others
from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.filesystem.locks import Guard, SideLock
from holdfast.persistence.filesystem.reserve import keep_reserve
from holdfast.persistence.filesystem.storage import Storage, real_path, storage_errors
from holdfast.persistence.format.report import RecoveryReport
from holdfast.persistence.groups.group_files import DEFAULT_GROUP, GroupInfo, find_group, groups_locked
from holdfast.persistence.groups.own_group import OwnGroup
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.reclaim import retire_finished_files
from holdfast.persistence.index.dedup_ring import DedupRing
from holdfast.persistence.index.priorities import Priorities
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.persistence.log.log_writer import LogWriter
from holdfast.persistence.log.watermark import WatermarkFile
from holdfast.persistence.outcomes.joint_file import JointFile
from holdfast.persistence.ownership.sessions import NO_NUMBER, Sessions
from holdfast.persistence.recovery.admission import admit, check_file_system
from holdfast.persistence.recovery.log_recovery import RecoveredLog
from holdfast.queue.consumer.known_since import KnownSince
from holdfast.queue.consumer.look_side import LookSide
from holdfast.queue.consumer.published_end import PublishedEnd
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.dispatch.log_cursor import GroupLog
from holdfast.queue.dispatch.progress_store import ProgressStore
from holdfast.queue.engine.consumer_lag import ConsumerLag
from holdfast.queue.engine.coordinators import Coordinator
from holdfast.queue.engine.handle_settings import HandleSettings, stored_retention
from holdfast.queue.engine.lock_advice import owned_group, owned_writes
from holdfast.queue.engine.ports import Consumer, Producer
from holdfast.queue.engine.reading import make_read_side, with_reserve
from holdfast.queue.engine.recovering import open_prepared, recover
from holdfast.queue.options.message_filter import MessageFilter
from holdfast.queue.options.queue_options import Options
from holdfast.queue.options.settings import filter_of
from holdfast.queue.producer.capacity import Capacity
from holdfast.queue.producer.commit_record_ends import CommitRecordEnds
from holdfast.queue.producer.deduplication import open_deduplication
from holdfast.queue.producer.waiting_batches import WaitingBatches
from holdfast.queue.producer.write_side import WriteSide
from holdfast.queue.threads import lifecycle
from holdfast.queue.threads.keyed_lock import KeyedLock
from holdfast.queue.threads.open_calls import OpenCalls

logger = logging.getLogger("holdfast")


class QueueHandle:
    """Brings the sides of one queue up, in order, and holds them: which ones there are depends on the mode.

    Parameters
    ----------
    storage, clock, root, options
        The queue, and how it is opened.
    living : callable or None
        Whether the session of a number is alive: what is kept for it is kept over this opening, and what it has in hand
        stays so. Others are dead, for ever. None: the files in ``.owner/sessions`` tell.
    beside : QueueHandle or None
        The handle with the write side, which one of the mode "read_side" uses and does not close.

    Attributes
    ----------
    capacity : Capacity
        The bounds of the queue, which count in the process that owns the write side.
    group_readers : dict of str to ReadSide
        The read sides beside this handle's write side, its own included, by group.
    open_groups : list of OwnGroup
        The groups of these handles, which commit records are noted in.
    doubtful : set of str
        Groups whose progress a pass could not note: a sync may have failed, and a second one of the same file could
        succeed over lost data. So the next pass begins another file.
    compacting : threading.Lock
        Held while data files are merged: one thread does so at a time.
    calls : OpenCalls
        What has to end before the queue is closed, beside the calls that the sides refuse themselves.
    deciding : KeyedLock
        Lets one thread at a time decide a transaction with these handles.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        root: Path,
        options: Options,
        *,
        living: Callable[[int], bool] | None = None,
        beside: QueueHandle | None = None,
    ) -> None:
        self.storage = storage
        self.path = root
        self.clock = clock
        self.options = options
        if options.mode != "read_only":
            with storage_errors("opening the queue", root):
                check_file_system(storage, root, is_any_allowed=options.any_file_system)
        self.settings: HandleSettings = HandleSettings(root, options, None if beside is None else beside.settings)
        is_owner = options.mode != "read_only"
        self.directory, self.queue_id, self._is_new = open_directory(
            storage, root, create=is_owner, writable=is_owner, settings=self.settings.of_new_queue
        )
        self.report = RecoveryReport()
        self.known_since = KnownSince(clock)
        self.write_side: WriteSide | None = None
        self.read_side: ReadSide | None = None
        self.look_side: LookSide | None = None
        self.batches: WaitingBatches | None = None
        self.coordinator: Coordinator | None = None
        self.producer: Producer | None = None
        self.consumer: Consumer | None = None
        self._living = living or Sessions(storage, root).is_alive
        self._beside = beside
        self.group_readers: dict[str, ReadSide] = {} if beside is None else beside.group_readers
        self.open_groups: list[OwnGroup] = [] if beside is None else beside.open_groups
        self.doubtful: set[str] = set() if beside is None else beside.doubtful
        self.compacting = threading.Lock()
        self.calls: OpenCalls = OpenCalls(root) if beside is None else beside.calls
        self.deciding: KeyedLock = KeyedLock() if beside is None else beside.deciding
        own_capacity = Capacity(0, None, self._lag_depth, self._disk_bytes_with)
        self.capacity: Capacity = own_capacity if beside is None else beside.capacity
        if not options.writes:  # else once this handle has the lock: the owner before may change them
            with storage_errors("reading settings", root):
                self._adopt_settings(is_owner=False)
        try:
            with storage_errors("opening the queue", root):
                if options.mode == "read_only" and writable_by_others(storage, root):
                    logger.warning("%s can be written by other users: who can may forge messages (chmod go-w)", root)
                if options.mode != "read_only" and not self._is_new:
                    admit(storage, self.directory, self.queue_id)
                self._open_owned()
            lifecycle.watch(self)
        except BaseException:
            self.close()
            raise
        if not self.report.clean:
            level = logging.WARNING if self.report.damage or self.report.progress_damage else logging.INFO
            logger.log(level, "opening %s: %s", root, "; ".join(str(self.report).splitlines()))

    def _open_owned(self) -> None:
        options = self.options
        if options.writes:
            self._lock_writes()
            keep_reserve(self.storage, self.directory)
        else:
            self._open_log()
        if self._beside is not None:
            owner = self._beside
            self.write_side, self.batches, self.coordinator = owner.write_side, owner.batches, owner.coordinator
        if options.reads:
            with_reserve(self.storage, self.directory, self._open_read_side)
            self.require_read_side().take_over(self._living)
        elif options.looks:
            self._open_look_side()

    def _adopt_settings(self, *, is_owner: bool) -> None:
        self.settings.adopt_queue(self.storage, self.directory, is_owner=is_owner)
        self.capacity.change(self.settings.values["maxsize"], self.settings.values["max_bytes"])

    def refresh_settings(self) -> None:
        """Take over settings that another process has changed; a handle that owns the queue has those that count."""
        if self.look_side is not None:
            with storage_errors("reading settings", self.path):
                self.settings.refresh(self.storage, self.directory)
            self.capacity.change(self.settings.values["maxsize"], self.settings.values["max_bytes"])

    def _open_log(self) -> None:
        self.files = LogFiles(self.storage, self.directory, self.queue_id)
        self.priorities = Priorities(self.storage, self.directory)
        self.group = OwnGroup(
            self.storage, self.clock, self.directory, self.queue_id, self.files, self.options.group, self._is_new
        )
        self.open_groups.append(self.group)
        self._lag = ConsumerLag(self.directory, self.files)

    def groups_locked(self) -> Guard:
        """Return what holds the lock under which groups come and go, and sides are taken."""
        return groups_locked(self.storage, self.directory, self.clock)

    # -- The write side ----------------------------------------------------------------------------------------------

    def _lock_writes(self) -> None:
        """Take the write lock and recover the log."""
        steps = locks.acquiring(
            self.storage,
            self.directory.write_lock,
            self.clock,
            timeout=self.options.lock_timeout,
            owned=owned_writes(self.path),
            guard=self.groups_locked,
            is_visitor=self.options.is_visitor,
        )
        try:
            lock = next(steps)
            self._adopt_settings(is_owner=True)
            self._open_log()
            self._open_writer(self._recover(), lock)
            next(steps, None)
        except BaseException:  # no other code could release it
            steps.close()
            raise

    def _recover(self) -> RecoveredLog:
        log = recover(self.storage, self.directory, self.queue_id, self.clock, self.files, self.group, self._living)
        self.report = log.report
        return log

    def _open_writer(self, log: RecoveredLog, lock: SideLock) -> None:
        storage, directory, values = self.storage, self.directory, self.settings.values
        synced_only = values["flush"].syncs_every_commit
        mark = WatermarkFile(storage, directory.write_mark, log.mark, log.fence, synced_only=synced_only)
        size = values["data_file_bytes"]
        writer = LogWriter(directory, self.files, self.clock, log.tail, mark, self.priorities, file_bytes=size)
        try:
            ring = DedupRing(storage, directory.dedup_ids, self.queue_id, values["dedup_max"])
            ids = open_deduplication(ring, self.files, log.tail, writer, self.clock, values)
            prepared = open_prepared(storage, directory, self.queue_id, writer, size)
            self.report = self.report.with_damage(prepared.log.reports)
            ends = CommitRecordEnds(writer.pending_commit_records, self.open_groups, prepared)
            self.write_side = WriteSide(writer, lock, self.settings.flush, self.clock, ids, self.capacity, ends)
            self.batches = WaitingBatches(storage, directory, self.queue_id, self.write_side, prepared, size)
            self.coordinator = Coordinator(self.queue_id, writer.pending_commit_records)
        finally:
            if self.write_side is None:
                writer.abandon()

    # -- The read side -----------------------------------------------------------------------------------------------

    def _open_read_side(self) -> None:
        options = self.options
        settings, first = self.settings, self.settings.of_new_group()
        if options.group != DEFAULT_GROUP:
            self.group.find(first)  # if there is none, nothing is made
        path = self.directory.group(options.group)
        self.storage.make_directory(path)
        lock = locks.acquire(
            self.storage,
            self.directory.group_lock(options.group),
            self.clock,
            timeout=options.lock_timeout,
            owned=owned_group(self.path, options.group),
            guard=self.groups_locked,
        )
        try:  # at once: an interruption in front of it would leave the lock taken
            group = self.group.find(first)  # an earlier holder of the lock may have begun or deleted it
            if group is not None:
                group = settings.adopt_group(self.storage, self.directory, self.group.repaired(group))
            message_filter = filter_of(group.settings if group is not None else None)
            progress_store = self._open_progress_store(group) if group is not None else None
            progress = progress_store.progress if progress_store is not None else self.group.unused().initial_progress()
            source = self.require_write_side()
            log = GroupLog(source, self.files, path, progress, progress_store, self._begin_default, message_filter)
            space, directory = self.capacity.space_available, self.directory
            self.read_side = make_read_side(
                self.storage, self.clock, directory, options, settings, self.group, log, lock, space
            )
            self.group_readers[options.group] = self.read_side
        except BaseException:
            lock.release()
            raise

    def _begin_default(self) -> ProgressStore:
        return with_reserve(self.storage, self.directory, lambda: self._open_progress_store(self._begun_default()))

    def _begun_default(self) -> GroupInfo:
        group = self.group.begin_default(self.settings.of_default_group(self.storage, self.directory))
        group = self.settings.adopt_group(self.storage, self.directory, group)  # ``groups.create`` may have made it
        self.require_read_side().follow(self.settings.retry)
        return group

    def _open_progress_store(self, group: GroupInfo) -> ProgressStore:
        positions, damage = self.group.open(group, self.settings.position_file_bytes)
        self.report = replace(self.report, progress_damage=(*self.report.progress_damage, *damage))
        progress_store = ProgressStore(
            positions,
            positions.progress,
            self.files,
            self.settings.flush,
            self.clock,
            lambda own, sync: self.reclaim(group.name, own, [sync]),
        )
        for each in self.report.damage:  # losses that recovery found do not wait for a reader
            progress_store.lose(each.offsets)
        return progress_store

    def reclaim(
        self,
        group: str | None = None,
        own: GroupProgress | None = None,
        syncs: Sequence[Callable[[], object]] = (),
    ) -> None:
        """Retire the data files that every group has finished, and that the queue does not keep.

        None while the write side is poisoned: the name of the file behind them may be lost, and then they seem to be.
        """
        if self.write_side is None or not self.write_side.is_poisoned:
            kept = stored_retention(self.storage, self.directory, self.capacity.wanted_bytes)
            syncs = [*syncs, *(side.flush for name, side in list(self.group_readers.items()) if name != group)]
            retire_finished_files(self.directory, self.files, self.clock, kept, own_group=group, own=own, syncs=syncs)

    def flush_groups(self) -> None:
        """Make the progress of all groups durable that are open here. Raises if an earlier sync of one has failed."""
        for side in list(self.group_readers.values()):
            side.flush()

    # -- What a handle may do ----------------------------------------------------------------------------------------

    def require_write_side(self) -> WriteSide:
        """Return the write side; raises UsageError if the mode has none."""
        if self.write_side is None:
            raise self.lacks("put")
        return self.write_side

    def join(self, producer: Producer, consumer: Consumer) -> None:
        """Put and take through these: the handle is one of the mode "shared"."""
        self.producer, self.consumer = producer, consumer

    def require_putting(self) -> WriteSide | Producer:
        """Return the write side, or the client of its owner; raises UsageError if the mode has neither."""
        return self.producer or self.require_write_side()

    def require_taking(self) -> ReadSide | Consumer:
        """Return the read side, or the client of its owner; raises UsageError if the mode has neither."""
        return self.consumer or self.require_read_side()

    def require_batches(self) -> WaitingBatches:
        """Return the batches that wait outside of the log; raises as :meth:`require_write_side`."""
        if self.batches is None:
            raise self.lacks("put")
        return self.batches

    def require_read_side(self) -> ReadSide:
        """Return the read side; raises UsageError if the mode has none."""
        if self.read_side is None:
            raise self.lacks("take")
        return self.read_side

    def lacks(self, verb: str) -> UsageError:
        """Return the error for a verb that the handle's mode does not have."""
        return UsageError(
            f"{self.path} was opened with mode={self.options.mode!r}, which does not {verb}; use mode='shared'"
        )

    @cached_property
    def real_path(self) -> str:
        """The path of the queue, without links: two queues find each other by it."""
        return str(real_path(self.path))

    def joint_file(self) -> JointFile:
        """Return the memory of joint commits; a handle without the write side only reads it."""
        if self.batches is not None:
            return self.batches.joint
        return JointFile(self.storage, self.directory.joint, is_owner=False)

    # -- Both --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give deliveries back that no living session has, sync, leave the files clean, and let the next owner in.

        The write side goes first: the next owner of the group finds the log recovered, or recovers it. Before it goes
        the prepared log: nothing is appended to that once another process may own the queue.
        """
        own = self._beside is None
        if own:
            self.calls.close()
        elif self.read_side is not None:
            self.group_readers.pop(self.options.group, None)  # the handle with the write side stays open
        log = None if self.batches is None else self.batches.prepared.log
        writes = (self.coordinator, log, self.write_side) if own else ()
        parts = (*writes, self.read_side, self.batches if own else None, self.look_side)
        with self.settings.changing, ExitStack() as closing:  # each one, even if another raises; the last one first
            if not own:
                closing.callback(self._leave_open_groups)
            for part in reversed(parts):
                if part is not None:
                    closing.callback(part.close)

    def _leave_open_groups(self) -> None:
        with suppress(AttributeError, ValueError):  # it was not opened so far, or is closed already
            self.open_groups.remove(self.group)

    def forget_after_fork(self) -> None:
        """In a forked child: touch nothing that the parent owns."""
        for part in (self.write_side, self.read_side):
            if part is not None:
                part.forget()
        if self.coordinator is not None:
            self.coordinator.close()

    def _lag_depth(self) -> int:
        """Return how many messages the slowest group has not finished."""
        return self._lag.depth(self.next_offset(), self.files.first_offset, self.group_readers)

    def _disk_bytes_with(self, size: int) -> int:
        return self.require_write_side().disk_bytes_with(size, self.files, self.settings.values["data_file_bytes"])

    def depth(self) -> int:
        """Return how many messages the group has not finished; without a group, how many the log holds."""
        reader = self.read_side or self.look_side
        return reader.depth if reader is not None else self.next_offset() - self.files.first_offset

    def next_offset(self) -> int:
        """Return the offset of the message that comes next, as far as this handle may see."""
        if self.write_side is not None:
            return self.write_side.next_offset
        reader = self.read_side or self.look_side
        assert reader is not None, "every mode has a side"
        return reader.end

    def log_end(self) -> LogEnd:
        """Return the end of the log for consumers, as far as this handle may see."""
        if self.write_side is not None:
            return self.write_side.end()
        reader = self.read_side or self.look_side
        assert reader is not None, "every mode has a side"
        return reader.log_end

    def recovery(self) -> RecoveryReport:
        """Return the report of the opening, with the damage that reading has met since."""
        reader = self.read_side or self.look_side
        met = () if reader is None else list(reader.damage)
        new = [damage for damage in met if not any(known.covers(damage) for known in self.report.damage)]
        return replace(self.report, damage=(*self.report.damage, *new))

    # -- Looking -----------------------------------------------------------------------------------------------------

    def _open_look_side(self) -> None:
        self.group.positions()  # raises if there is no such group
        published = PublishedEnd(self.storage, self.directory.write_mark, self.queue_id)
        what = (self.files, published, self.group.positions, self._filter_of_the_group)
        self.look_side = LookSide(*what, self.clock.time_ns, self._may_have_in_hand, self._is_last)

    def _is_last(self, delivery_count: int) -> bool:
        """Whether a message that was handed out so often is not delivered again, by the settings as they are known."""
        return self.settings.retry.is_last(delivery_count)

    def _may_have_in_hand(self, session: int) -> bool:
        """Whether what was handed out to a session is in hand; 0: to a handle of the mode "exclusive"."""
        if session == NO_NUMBER:
            return self.options.mode == "read_only"  # beside a handle that shares the queue there is no such one
        try:
            return self._living(session)
        except OSError:  # this user may not test it
            return True

    def _filter_of_the_group(self) -> MessageFilter | None:
        group = find_group(self.storage, self.directory, self.options.group)
        return filter_of(group.settings if group is not None else None)

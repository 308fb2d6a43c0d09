"""Removes what retention does not keep, while a queue is open: the pass of its owner. docs/retention.md.

A pass begins a new data file if the active one is old. For each group it finishes dead letters that were kept long
enough, ends messages whose ``ttl`` is over, moves a group on that is too far behind, and warns of old votes. Then it
retires files. Each step can be done again: a crash or an error between two of them leaves the rest to the next pass.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from holdfast.errors import HoldfastError
from holdfast.persistence.compaction.compactor import Compaction, Compactor
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.groups.group_files import GroupInfo, groups_locked, list_groups, progress_reader
from holdfast.persistence.groups.group_visit import visit_group
from holdfast.persistence.groups.position_entry import Change, done_changes
from holdfast.persistence.groups.position_run import apply_run
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.retention import Distances, skipped_changes
from holdfast.persistence.log.log_reader import Record
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.consumer.redelivery import expired_change
from holdfast.queue.engine.expiry import Expiries
from holdfast.queue.engine.handle_settings import stored_queue_settings, stored_retention
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.put_options import as_ns
from holdfast.queue.options.retention import lag_of
from holdfast.queue.options.settings import DEFAULTS, FILTER, Settings, read_stored
from holdfast.queue.verbs.verb_log import Asker, logged
from holdfast.threads import start_thread

logger = logging.getLogger("holdfast")

PASS_SECONDS = 60.0
"""Between two passes, if no data file was begun meanwhile."""

OLD_VOTE_SECONDS = 86_400.0
"""A prepared transaction that waits for so long has probably been forgotten."""

_EXPIRED_MAX = 1000
"""Messages whose time is over that one step ends: takers wait for it."""

_EXPIRED_VISIT_MAX = 10_000
"""The same in a group without an owner, which costs some syncs whatever their number: 640 KiB of entries."""

_SECOND_NS = 10**9


class RetentionPass:
    """The passes over one queue that is open here with its write side.

    Parameters
    ----------
    handle : QueueHandle
        The queue; its ``group_readers`` are the groups that are open here.
    """

    def __init__(self, handle: QueueHandle) -> None:
        self._handle = handle
        self._lock = threading.RLock()  # a logging handler may close the queue in the middle of a pass
        self._is_over = False
        self._is_running = False
        self._due = handle.clock.monotonic() + PASS_SECONDS
        self._seen_sequence = handle.require_write_side().end()[0]
        self._expiries = Expiries(handle.files)
        self._lives: set[bytes] = set()  # of the groups whose messages it has looked for
        self._told: set[bytes] = set()
        self._told_error = ""

    # -- When --------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Start a pass in a thread if one is due; does not wait for it."""
        handle = self._handle
        now, sequence = handle.clock.monotonic(), handle.require_write_side().end()[0]
        has_grown = sequence != self._seen_sequence and handle.settings.values["max_bytes"] is not None
        if self._is_running or (now < self._due and not has_grown and not handle.capacity.wanted_bytes):
            return
        self._due, self._seen_sequence, self._is_running = now + PASS_SECONDS, sequence, True
        if start_thread(self._run_logged, "holdfast-retention", self._end_soon) is None:
            self._is_running = False

    def _run_logged(self) -> None:
        try:
            self.run()
            self._told_error = ""
        except HoldfastError as error:
            if not self._is_over and str(error) != self._told_error:  # once, and not each minute
                logger.warning("retention of %s: %s; the next pass tries again", self._handle.path, error)
            self._told_error = str(error)
        finally:
            self._is_running = False

    def _end_soon(self) -> None:
        self._is_over = True

    def stop(self) -> None:
        """Begin no pass any more; waits for the step of one that is under way, unless that step calls it."""
        self._is_over = True
        with self._lock:
            pass

    def run(self) -> None:
        """Do one pass.

        Raises
        ------
        HoldfastError
            A step could not be done; the others were.
        """
        errors: list[HoldfastError] = []
        with self._lock:
            self._do(self._roll, errors)
            groups: list[_Attended] = []
            self._do(lambda: self._attend(groups, errors), errors)
            self._do(lambda: self._look_after(groups, errors), errors)
            self._do(self._reclaim, errors)
            if not errors:  # on a full disk a copy would not help
                self._do(self._compact, errors)
        if errors:
            raise errors[0]

    def _do(self, step: Callable[[], object], errors: list[HoldfastError]) -> None:
        """Do a step, unless the queue closes; an error does not stop the next one."""
        if self._is_over:
            return
        try:
            with storage_errors("retention", self._handle.path):
                step()
        except HoldfastError as error:
            errors.append(error)

    # -- What --------------------------------------------------------------------------------------------------------

    def _roll(self) -> None:
        handle = self._handle
        age = stored_queue_settings(handle.storage, handle.directory)["data_file_max_age"]
        if age is not None:
            handle.require_write_side().roll_if_old(as_ns(age, "data_file_max_age"), handle.clock.time_ns())

    def _reclaim(self) -> None:
        self._handle.reclaim()
        self._handle.capacity.wanted_bytes = 0  # a put that still waits says so again
        self._handle.capacity.space_available.notify()

    def _compact(self) -> None:
        """Merge files until the queue's ratio of dead to live bytes holds, or as much as a pass may."""
        ratio = stored_queue_settings(self._handle.storage, self._handle.directory)["compact_ratio"]
        if ratio is not None:
            _compact(self._handle, ratio=ratio, is_over=lambda: self._is_over)

    def _attend(self, groups: list[_Attended], errors: list[HoldfastError]) -> None:
        """Add each group that can be looked at; one that cannot does not keep the others from it."""
        handle = self._handle
        there = list_groups(handle.storage, handle.directory)
        for info in there:
            self._do(partial(self._add_attended, groups, info), errors)
        handle.doubtful.intersection_update(each.name for each in there)

    def _add_attended(self, groups: list[_Attended], info: GroupInfo) -> None:
        groups.append(self._attended(info))

    def _look_after(self, groups: Sequence[_Attended], errors: list[HoldfastError]) -> None:
        handle = self._handle
        handle.files.refresh()
        distances = Distances(handle.directory, handle.files, handle.clock.time_ns())
        expired = self._expired(groups)
        for group in groups:
            self._tell_old_votes(group)
            if group.settings is not None:
                end = distances.end_of(distances.outside(lag_of(group.settings)))
                self._do(partial(self._look_after_one, group, group.settings, end, expired), errors)

    def _look_after_one(
        self, group: _Attended, settings: Settings, end: int, expired: Sequence[tuple[Record, int]]
    ) -> None:
        before = group.progress.skipped_count
        if group.side is not None:
            self._look_after_open(group.side, end, expired)
            self._handle.doubtful.discard(group.name)  # it was written again when it was opened
        else:
            for at in range(0, max(len(expired), 1), _EXPIRED_VISIT_MAX):
                self._visit(group, settings, end, expired[at : at + _EXPIRED_VISIT_MAX])
        self._tell_skipped(group, group.progress.skipped_count - before)

    def _attended(self, info: GroupInfo) -> _Attended:
        """Return a group with its settings and its progress: of the owner here, or as the disk has it."""
        handle = self._handle
        settings: Settings | None = None
        if info.settings is not None:
            document = handle.directory.group_document(info.name)
            settings = {**DEFAULTS, **read_stored(info.settings, document)}
        side = handle.group_readers.get(info.name)
        if side is not None:
            side.sweep()
            return _Attended(info.name, info.group_id, settings, side.progress, side, is_filtered=False)
        reader = progress_reader(handle.storage, handle.directory, handle.queue_id, info)
        is_filtered = FILTER in (info.settings or {})
        return _Attended(info.name, info.group_id, settings, reader.refresh(), None, is_filtered)

    def _expired(self, groups: Sequence[_Attended]) -> list[tuple[Record, int]]:
        """Return messages whose time to live is over, for any of these groups."""
        known = [group for group in groups if group.settings is not None]
        if not known:
            return []
        handle, first = self._handle, min(group.progress.floor for group in known)
        lives = {group.life for group in known}
        if not lives <= self._lives:  # a new group, or one that was moved: it may end what no other could
            self._expiries = Expiries(handle.files)
        self._lives = lives
        now, end = handle.clock.time_ns(), handle.require_write_side().end()
        try:
            return self._expiries.find(first, end, now, partial(_may_expire, known))
        except BaseException:
            self._expiries = Expiries(handle.files)
            raise

    def _look_after_open(self, side: ReadSide, end: int, expired: Sequence[tuple[Record, int]]) -> None:
        for at in range(0, len(expired), _EXPIRED_MAX):  # takers beside it wait for a step at the most
            side.expire(expired[at : at + _EXPIRED_MAX])
        side.move_on(end)
        side.flush()  # raises if an earlier sync has failed: that progress must not let a file go

    def _visit(self, group: _Attended, settings: Settings, end: int, expired: Sequence[tuple[Record, int]]) -> None:
        """Look after a group that has no owner; if it has one, that one does it."""
        handle, now_ns = self._handle, self._handle.clock.time_ns()

        def changes(progress: GroupProgress) -> list[Change]:
            may_end = partial(progress.may_end, is_filtered=group.is_filtered)
            return [*_ended(progress, settings, expired, now_ns, may_end), *skipped_changes(progress, end)]

        new = changes(group.progress)
        storage, directory, name = handle.storage, handle.directory, group.name
        is_doubtful = name in handle.doubtful
        if not new and not is_doubtful:
            return
        handle.doubtful.add(name)
        visit = partial(visit_group, is_doubtful=is_doubtful, in_checkpoint=True)  # each change can be noted again
        with groups_locked(storage, directory, handle.clock):
            if visit(storage, directory, handle.queue_id, handle.clock, name, changes):
                apply_run(new, group.progress)
        handle.doubtful.discard(name)

    def _tell_skipped(self, group: _Attended, count: int) -> None:
        if count:
            logger.warning(
                "%s: group %r was further behind than max_lag_age or max_lag_bytes allows: %d messages were skipped",
                self._handle.path,
                group.name,
                count,
            )

    def _tell_old_votes(self, group: _Attended) -> None:
        now = self._handle.clock.time_ns()
        for vote in list(group.progress.votes.values()):
            age = (now - vote.timestamp_ns) / _SECOND_NS
            if age >= OLD_VOTE_SECONDS and vote.nonce not in self._told:
                self._told.add(vote.nonce)
                logger.warning(
                    "%s: transaction %r is prepared since %d hours and keeps messages of group %r on the disk: commit "
                    "or abort it (`holdfast prepared`)",
                    self._handle.path,
                    vote.id,
                    age / 3600,
                    group.name,
                )


def compact(handle: QueueHandle, asker: Asker, *, dry_run: bool) -> Compaction:
    """Merge data files that live by a quarter at most; that is logged. Raises as :meth:`PersistentQueue.compact`."""
    do = partial(handle.calls.run, partial(_compact, handle, dry_run=dry_run))
    return do() if dry_run else logged(handle.path, "compact", {}, asker, do)


def _compact(
    handle: QueueHandle, *, dry_run: bool = False, ratio: float = 0, is_over: Callable[[], bool] = lambda: False
) -> Compaction:
    """Merge data files; with a ``ratio`` as much as a pass may, while they have more dead bytes for each live one."""
    if handle.write_side is None:
        raise handle.lacks("compact")
    with handle.compacting, storage_errors("compacting", handle.path):
        retention = stored_retention(handle.storage, handle.directory)
        file_bytes = handle.settings.values["data_file_bytes"]
        compactor = Compactor(handle.directory, handle.files, handle.clock, retention, file_bytes, handle.flush_groups)
        return compactor.run(dry_run=dry_run, ratio=ratio, is_over=lambda: is_over() or handle.calls.is_over)


class _Attended(NamedTuple):
    """A group in a pass; its settings are None if they were lost: what they keep is not known.

    ``is_filtered``: it has a filter, and no consumer here, which would know.
    """

    name: str
    life: bytes
    settings: Settings | None
    progress: GroupProgress
    side: ReadSide | None
    is_filtered: bool

    def may_expire(self, offset: int) -> bool:
        """Whether a message can still end by its time to live; without a consumer none that is in hand does."""
        if self.side is not None:
            return self.side.may_expire(offset)
        return self.progress.may_end(offset, is_filtered=self.is_filtered) and not self.progress.is_out(offset)


def _may_expire(groups: Sequence[_Attended], offset: int) -> bool | None:
    """Whether any of these groups can end a message by its time to live; None: not now, and perhaps later."""
    if any(each.may_expire(offset) for each in groups):
        return True
    is_in_use = any(each.progress.is_held(offset) or each.progress.is_out(offset) for each in groups)
    return None if is_in_use else False


def _ended(
    progress: GroupProgress,
    settings: Settings,
    expired: Sequence[tuple[Record, int]],
    now_ns: int,
    may_end: Callable[[int], bool],
) -> list[Change]:
    """Return the entries that finish old dead letters, and end what has expired and is not in hand."""
    old_ns = now_ns - as_ns(settings["dead_letter_seconds"], "dead_letter_seconds")
    old = [offset for offset, mark in progress.dead.items() if mark.last_failure_ns <= old_ns]
    over = [
        record[0]
        for record, expires_ns in expired
        if may_end(record[0]) and not progress.is_out(record[0]) and progress.is_over(record[0], expires_ns, now_ns)
    ]
    if settings["expired"] == "drop":
        return done_changes(sorted([*old, *over]))
    return [*done_changes(sorted(old)), *(expired_change(progress, offset, now_ns) for offset in over)]

"""The engine of a handle that owns a queue, or only looks: the open queue, and what resolves its transactions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.clock import Clock
from holdfast.persistence.compaction.compactor import Compaction
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.format.report import RecoveryReport
from holdfast.queue.closing import Closing
from holdfast.queue.engine.configuring import configure
from holdfast.queue.engine.idle_handles import IdleHandles
from holdfast.queue.engine.log_starts import Moved, seek
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.engine.retention import compact
from holdfast.queue.inspect.stats import Counts
from holdfast.queue.options.log_start import LogStart
from holdfast.queue.options.queue_options import Options
from holdfast.queue.options.settings import Settings
from holdfast.queue.prepared.joint_resolver import JointResolver
from holdfast.queue.prepared.log_moves import LogMoves
from holdfast.queue.prepared.other_queues import asking
from holdfast.queue.prepared.outcome_memory import OutcomeMemory
from holdfast.queue.prepared.own_reservations import OwnReservations
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.transactions.transaction import OpenTransactions
from holdfast.queue.verbs.group_verbs import perform_logged
from holdfast.queue.verbs.verb_log import logged, own_process


class LocalEngine(Closing):
    """Opens a queue, and resolves its earlier transactions.

    Parameters
    ----------
    storage, clock, path, options
        The queue, and how it is opened.
    beside : LocalEngine or None
        The engine with the write side, if the mode is "read_side": with it this one decides transactions.
    living : callable or None
        Whether the session of a number is alive; None: its file tells.

    Attributes
    ----------
    handle : QueueHandle
        The open queue.
    transactions : OpenTransactions
        Those that have not ended.
    resolver, joint_resolver
        Decide what was prepared.
    reserving : OwnReservations
        Holds messages for a long time.
    idle_handles : IdleHandles or None
        Closes unused files; None without a side.

    Raises
    ------
    HoldfastError
        As :class:`PersistentQueue`; nothing stays open.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        path: Path,
        options: Options,
        *,
        beside: LocalEngine | None = None,
        living: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__()
        self.idle_handles: IdleHandles | None = None
        self._log_moves: LogMoves | None = None
        self._seeking = threading.Lock()
        writes = None if beside is None else beside.handle
        self.handle: QueueHandle = QueueHandle(storage, clock, path, options, beside=writes, living=living)
        try:  # at once: it holds locks
            self._open(None if beside is None else beside.resolver.memory)
        except BaseException:  # interrupted too: no other code could release the locks
            self.give_up()
            raise

    def _open(self, memory: OutcomeMemory | None) -> None:
        """Resolve earlier transactions; the sides are open."""
        handle = self.handle
        self.transactions = OpenTransactions()
        ask = asking(handle.storage, handle.clock, handle.path, may_wait=handle.options.mode == "exclusive")
        self.resolver = PreparedResolver(handle, ask, memory)
        self.joint_resolver = JointResolver(handle, self.resolver)
        self.reserving = OwnReservations(handle, self.resolver)
        if handle.look_side is None:
            self.joint_resolver.resume()
            self.resolver.resolve()
        if handle.write_side is not None or handle.read_side is not None:
            self.idle_handles = IdleHandles(handle)
        if handle.options.writes:
            self._log_moves = LogMoves(handle)

    @property
    def is_owner(self) -> bool:
        """Whether it owns a side of the queue."""
        return self.handle.write_side is not None or self.handle.read_side is not None

    def end(self) -> int:
        """Return the offset behind the last message that this handle knows of."""
        return self.handle.next_offset()

    def recovery(self) -> RecoveryReport:
        """Return the report of the opening, with the damage that reading has met since."""
        return self.handle.recovery()

    def counts(self) -> Counts:
        """Return what was counted since the opening."""
        write_side, read_side = self.handle.write_side, self.handle.read_side
        forgotten = 0 if write_side is None else write_side.deduplication.forgotten_count
        if read_side is None:
            return Counts(dedup_forgotten=forgotten)
        return Counts(read_side.dropped_count, read_side.filtered_count, read_side.filter_failed_count, forgotten)

    # -- Verbs -------------------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Whether a bounded queue is full now, if this process owns the write side."""
        return self.handle.write_side is not None and not self.handle.capacity.has_space(1, 0)

    def do(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Do a verb on the group; return its result: ``verbs/group_verbs.py``."""
        handle = self.handle
        return perform_logged(handle.require_read_side(), handle.path, handle.options.group, fields, own_process())

    def close_group(self, name: str) -> None:
        """Do nothing: this handle has its own group open as long as it is open itself, and no other one."""

    def seek(self, group: str, start: LogStart) -> Moved:
        """Move a group to another place in the log; raises as :func:`~holdfast.queue.engine.log_starts.seek`."""
        return self.handle.calls.run(lambda: self._seek(group, start))

    def _seek(self, group: str, start: LogStart) -> Moved:
        handle = self.handle
        if group == handle.options.group:
            return seek(handle, start, own_process())
        options = Options("read_side", group, redact=None, any_file_system=handle.options.any_file_system)
        with self._seeking:  # two threads may move one group
            other = LocalEngine(handle.storage, handle.clock, handle.path, options, beside=self)
            try:
                return seek(other.handle, start, own_process())
            finally:
                other.close()

    def compact(self, *, dry_run: bool) -> Compaction:
        """Merge data files with little that lives. As :meth:`PersistentQueue.compact`."""
        return compact(self.handle, own_process(), dry_run=dry_run)

    def configure(self, settings: Settings, reset: Sequence[str], check_open: Callable[[], object]) -> None:
        """Change settings; as :meth:`PersistentQueue.configure`."""
        details = {**settings, "reset": reset or None}
        change = partial(configure, self.handle, settings, reset, check_open)
        logged(self.handle.path, "configure", details, own_process(), change)

    # -- Ending ------------------------------------------------------------------------------------------------------

    def end_soon(self) -> None:
        """Do nothing: no end in here waits for another process."""

    def close(self) -> None:
        """Abort open transactions and close everything. As :class:`Closing`."""
        try:
            if self._log_moves is not None:
                self._log_moves.stop()
            if self.idle_handles is not None:
                self.idle_handles.stop()
            self.transactions.close(wait=False)
        finally:
            self.handle.close()
        self.transactions.close(wait=True)
        self.resolver.close()

    def close_later(self) -> None:
        """Have it closed in a thread. As :class:`Closing`."""
        if self.idle_handles is not None:
            self.idle_handles.close_soon(partial(self.close_dropped, self.handle.path), self._is_in_use)
        else:
            assert self.handle.look_side is not None, "every mode has a side"
            self.handle.look_side.close()

    def _is_in_use(self) -> bool:
        """Whether a delivery or a transaction is open, which may outlive the object that they come from."""
        side = self.handle.require_read_side()
        side.give_back_due()
        return bool(side.leased) or self.transactions.is_any_open

    def give_up(self) -> None:
        """Close everything opened so far, after the opening has failed."""
        self.call_off()
        try:
            if self._log_moves is not None:
                self._log_moves.stop()
            if self.idle_handles is not None:
                self.idle_handles.stop()
        finally:
            self.handle.close()

    def forget_after_fork(self) -> None:
        """In a forked child: touch nothing that the parent owns."""
        self.call_off()
        self.transactions.forget()
        self.handle.forget_after_fork()

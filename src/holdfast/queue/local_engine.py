"""The engine of a handle that owns sides of a queue: the open queue, what resolves its transactions, what serves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.clock import Clock
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.format.report import RecoveryReport
from holdfast.queue.closing import Closing
from holdfast.queue.engine.configuring import configure
from holdfast.queue.engine.idle_handles import IdleHandles
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.queue_options import Options
from holdfast.queue.options.settings import Settings
from holdfast.queue.prepared.asking_resolvers import ConsumerResolver, SubmitResolver
from holdfast.queue.prepared.joint_resolver import JointResolver
from holdfast.queue.prepared.other_queues import asking
from holdfast.queue.prepared.outcome_memory import OutcomeMemory
from holdfast.queue.prepared.own_reservations import OwnReservations
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.server.group_asker import GroupAsker
from holdfast.queue.server.group_askers import GroupAskers
from holdfast.queue.server.request_server import RequestServer
from holdfast.queue.server.visitor import Visitor
from holdfast.queue.transactions.transaction import OpenTransactions
from holdfast.queue.verbs.verb_log import logged, own_process


class LocalEngine:
    """Opens a queue, resolves its earlier transactions, and serves the requests of other processes.

    Parameters
    ----------
    storage, clock, path, options
        The queue, and how it is opened.
    beside : LocalEngine or None
        An engine of this process whose write side it uses, and with which it decides transactions.
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
    group_asker, group_askers
        Ask the owners of consumer groups.
    idle_handles, server
        Close unused files, and serve other processes; None without a side.
    closing : Closing
        Closes all of it.

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
        self.idle_handles: IdleHandles | None = None
        self.server: RequestServer | None = None
        writes = None if beside is None else beside.handle
        self.handle: QueueHandle = QueueHandle(storage, clock, path, options, Visitor, beside=writes, living=living)
        try:  # at once: it holds locks
            self._open(None if beside is None else beside.resolver.memory)
        except BaseException:  # interrupted too: no other code could release the locks
            self.give_up()
            raise

    def _open(self, memory: OutcomeMemory | None) -> None:
        """Resolve earlier transactions; the sides are open."""
        handle = self.handle
        self.transactions = OpenTransactions()
        self.group_asker = GroupAsker(handle)
        self.group_askers = GroupAskers(handle)
        ask = asking(handle.storage, handle.clock, handle.path, may_wait=handle.options.mode == "exclusive")
        if handle.options.mode == "submit":
            self.resolver: PreparedResolver = SubmitResolver(handle, ask, self.group_askers.do)
        elif handle.options.mode == "consume" and handle.write_side is None:
            self.resolver = ConsumerResolver(handle, ask, self.group_askers.do)
        else:
            self.resolver = PreparedResolver(handle, ask, self.group_askers.do, memory)
        self.joint_resolver = JointResolver(handle, self.resolver)
        self.reserving = OwnReservations(handle, self.resolver)
        if handle.look_side is None:
            self.joint_resolver.resume()
            self.resolver.resolve()
        if handle.write_side is not None or handle.read_side is not None:
            self.idle_handles = IdleHandles(handle)
            self.server = RequestServer(handle, self.resolver)
        askers = (self.group_asker, self.group_askers)
        self.closing = Closing(handle, self.transactions, self.resolver, askers, self.idle_handles, self.server)

    @property
    def is_owner(self) -> bool:
        """Whether it owns a side of the queue."""
        return self.handle.write_side is not None or self.handle.read_side is not None

    def recovery(self) -> RecoveryReport:
        """Return the report of the opening, with the damage that reading has met since."""
        return self.handle.recovery()

    # -- Verbs -------------------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Whether a bounded queue is full now, if this process owns the write side."""
        return self.handle.write_side is not None and not self.handle.capacity.has_space(1, 0)

    def do(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Have a verb on the group done, by its owner; return its result: ``verbs/group_verbs.py``."""
        return self.group_asker.do(fields)

    def configure(self, settings: Settings, reset: Sequence[str], check_open: Callable[[], object]) -> None:
        """Change settings; as :meth:`PersistentQueue.configure`."""
        details = {**settings, "reset": reset or None}
        change = partial(configure, self.handle, settings, reset, check_open)
        logged(self.handle.path, "configure", details, own_process(), change)

    # -- Ending ------------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Close everything opened so far, after the opening has failed."""
        if hasattr(self, "closing"):
            self.closing.call_off()
        try:
            for part in (self.idle_handles, self.server):
                if part is not None:
                    part.stop()
        finally:
            self.handle.close()

    def forget_after_fork(self) -> None:
        """In a forked child: touch nothing that the parent owns."""
        self.closing.call_off()
        self.transactions.forget()
        self.group_asker.forget()
        self.group_askers.forget()
        if self.server is not None:
            self.server.forget()
        self.handle.forget_after_fork()

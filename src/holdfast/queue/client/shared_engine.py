"""The engine of a handle in the mode "shared": it looks at the queue itself, and has the owner change it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import QueueLockedError, RetryableError
from holdfast.persistence.compaction.compactor import Compaction
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.format.report import RecoveryReport
from holdfast.queue.client.large_payloads import LargePayloads
from holdfast.queue.client.membership import Membership, ask_verb
from holdfast.queue.client.owner_finder import OwnerFinder
from holdfast.queue.client.shared_consumer import SharedConsumer
from holdfast.queue.client.shared_producer import SharedProducer
from holdfast.queue.client.shared_reservations import SharedReservations
from holdfast.queue.client.shared_resolver import SharedJointResolver, SharedResolver
from holdfast.queue.client.staging import Staging
from holdfast.queue.client.upkeep import Upkeep
from holdfast.queue.closing import Closing
from holdfast.queue.engine.log_starts import GroupStart, Moved
from holdfast.queue.inspect.stats import Counts
from holdfast.queue.local_engine import LocalEngine
from holdfast.queue.options.log_start import LogStart
from holdfast.queue.options.put_options import lease_of
from holdfast.queue.options.queue_options import Options
from holdfast.queue.options.settings import GROUP_SETTINGS, QUEUE_SETTINGS, Settings, checked, stored
from holdfast.queue.owner.reports import report_of
from holdfast.queue.owner.verbs import CLOSE_GROUP, COMPACT, COUNTS, FLUSH, SEEK
from holdfast.queue.protocol.messages import Attach, Verb
from holdfast.queue.threads.notifier import Flag
from holdfast.threads import start_thread

logger = logging.getLogger("holdfast")

_EVERY = QUEUE_SETTINGS | GROUP_SETTINGS

_DROPPED_SECONDS = 0.5
"""How often a dropped queue that is in use is looked at again."""


class SharedEngine(Closing):
    """Joins a queue. What only looks is done here; everything else is asked of the owner.

    Parameters
    ----------
    storage, clock, path, options
        The queue, and how it is opened.

    Attributes
    ----------
    membership : Membership
        The way to the owner.
    handle, transactions, resolver, joint_resolver
        As those of :class:`LocalEngine`, without a side of their own.
    reserving : SharedReservations
        Has messages held for a long time.

    Raises
    ------
    HoldfastError
        As :class:`PersistentQueue`; nothing stays open.
    """

    def __init__(self, storage: Storage, clock: Clock, path: Path, options: Options) -> None:
        super().__init__()
        self._group = options.group
        self._is_ending = Flag()
        self._finder = OwnerFinder(storage, clock, path, options)
        self.membership = Membership(self._finder)
        try:
            given, configured = (stored(each, _EVERY) for each in (options.settings, options.configured))
            self.membership.ask(Attach(options.group, given, configured, self._finder.is_new))
            self._local = local = LocalEngine(storage, clock, path, options, living=self._finder.living)
            self.handle = local.handle
            self.transactions = local.transactions
            self.resolver = SharedResolver(self.handle, self.membership)
            self.joint_resolver = SharedJointResolver(self.handle, self.resolver, self.membership)
            self._open(clock, options)
        except BaseException:  # interrupted too: no other code could release the lock
            self.give_up()
            raise

    def _open(self, clock: Clock, options: Options) -> None:
        settings = self.handle.settings
        self._upkeep = Upkeep(self.membership)
        staging = Staging(self.handle, self.membership)
        is_synced = settings.flush.syncs_every_commit and not settings.values["flush"].syncs_every_commit
        self._producer = SharedProducer(self.membership, self._upkeep, staging, is_synced=is_synced)
        large_payloads = LargePayloads(self.handle.files)
        self._consumer = SharedConsumer(
            self.membership,
            self._upkeep,
            options.group,
            clock,
            options.redact,
            large_payloads,
            lambda: lease_of(settings.values["lease_seconds"]),
        )
        self._finder.consumer = self._consumer
        self.reserving = SharedReservations(self.membership, self._consumer)
        self.handle.join(self._producer, self._consumer)
        self.resolver.follow_others()

    @property
    def is_owner(self) -> bool:
        """Whether this handle serves the others."""
        return self.membership.is_owner

    def end(self) -> int:
        """Return the offset behind the last message that this handle knows of.

        An owner publishes puts that it does not sync a moment after it has answered them.
        """
        told = self.membership.known_end  # first: what a dead owner has told of, its successor has published
        return max(told, self.handle.next_offset())

    def recovery(self) -> RecoveryReport:
        """Return the report of the owner's opening, with the damage that it has met since in the handle's group."""
        return report_of(self._ask(self._group, {"verb": "recovery"}))

    def counts(self) -> Counts:
        """Return what the owner has counted since its opening; nothing if this handle knows of no owner now."""
        return Counts(**(self.membership.ask_present(Verb(self._group, {"verb": COUNTS})) or {}))

    # -- Verbs -------------------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Whether a bounded queue is full now."""
        return bool(self._ask(self._group, {"verb": "is_full"})["is_full"])

    def do(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Have a verb on the group done; return its result: ``verbs/group_verbs.py``."""
        return self._ask(self._group, fields)

    def close_group(self, name: str) -> None:
        """Have the owner close a group.

        Raises QueueLockedError if messages of it are in hand, or if this very handle reads for it.
        """
        if name == self._group:
            raise QueueLockedError(
                f"this handle reads for group {name!r} of {self.handle.path}: delete it with a handle of another group",
                path=str(self.handle.directory.group(name)),
                pid=os.getpid(),
                host=socket.gethostname(),
            )
        self._ask(name, {"verb": CLOSE_GROUP})

    def seek(self, group: str, start: LogStart) -> Moved:
        """Have a group moved to another place in the log; raises as :func:`~holdfast.queue.engine.log_starts.seek`."""
        done = self._ask(group, {"verb": SEEK, "start": start.to_fields()})
        return Moved(GroupStart(done["offset"], done["is_complete"]), done["task_change"])

    def compact(self, *, dry_run: bool) -> Compaction:
        """Have data files merged. As :meth:`PersistentQueue.compact`."""
        return Compaction(**self._ask("", {"verb": COMPACT, "dry_run": dry_run}))

    def configure(self, settings: Settings, reset: Sequence[str], check_open: Callable[[], object]) -> None:
        """Have settings changed. As :meth:`PersistentQueue.configure`."""
        self.handle.settings.check_may_change([*settings, *reset])
        asked = {"verb": "configure", "settings": stored(checked(settings), _EVERY), "reset": list(reset)}
        self._ask(self._group, asked)
        self.handle.refresh_settings()

    def _ask(self, group: str, fields: dict[str, Any]) -> dict[str, Any]:
        return ask_verb(self.membership, Verb(group, fields))

    # -- Ending ------------------------------------------------------------------------------------------------------

    def end_soon(self) -> None:
        """Look for an owner for a moment only, from here on: what it is not told comes again with the session's end."""
        self.membership.end_soon()

    def close(self) -> None:
        """Abort open transactions, give deliveries back, and let the next owner in if this process owns the queue."""
        self.transactions.close(wait=False)
        with ExitStack() as closing:  # each one, even if another raises; the last one first
            closing.callback(self._local.close)
            closing.callback(self.membership.leave)
            closing.callback(self._flush_last)
            closing.callback(self._upkeep.stop)
            closing.callback(self._consumer.close)
            closing.callback(self._producer.close)
            closing.callback(self.resolver.close)
        self.transactions.close(wait=True)

    def _flush_last(self) -> None:
        """Have synced what this handle has put and finished; an owner that ends meanwhile does, or the next one."""
        if not self.is_owner and not self.handle.settings.values["flush"].syncs_every_commit:
            try:
                self.membership.ask_present(Verb("", {"verb": FLUSH}), None)
            except RetryableError as error:
                logger.warning("what was put into %s by this handle may not be synced: %s", self.handle.path, error)

    def give_up(self) -> None:
        """Close everything opened so far, after the opening has failed."""
        self.call_off()
        with ExitStack() as closing:
            closing.callback(self.membership.leave)
            if hasattr(self, "_local"):
                closing.callback(self._local.give_up)
            if hasattr(self, "_upkeep"):
                closing.callback(self._upkeep.stop)

    def close_later(self) -> None:
        """Have it closed in a thread. As :class:`Closing`."""
        start_thread(self._close_unused, "holdfast-closing", self._is_ending.set)

    def _close_unused(self) -> None:
        """Close it once no delivery and no transaction is open: these may outlive the object that they come from."""
        while self.transactions.is_any_open or self._consumer.numbers_in_hand():
            if self._is_ending.wait(_DROPPED_SECONDS):
                return  # the process ends, and releases its locks by itself
        self.end_soon()
        self.close_dropped(self.handle.path)

    def forget_after_fork(self) -> None:
        """In a forked child: touch nothing that the parent owns."""
        self.call_off()
        for part in (self._upkeep, self._producer, self._consumer):
            part.forget()
        self.membership.forget_after_fork()
        self._local.forget_after_fork()

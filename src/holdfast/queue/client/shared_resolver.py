"""Prepared transactions of a shared queue: this handle lists them from the files, and the owner decides them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.errors import HoldfastError
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.queue.client.membership import Membership
from holdfast.queue.client.staging import ask
from holdfast.queue.engine.coordinators import Outcome
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.joint_resolver import JointResolver
from holdfast.queue.prepared.other_queues import asking
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.prepared.prepared_transactions import Found, find_transaction
from holdfast.queue.protocol.prepared_verbs import (
    AbortJointly,
    AbortPrepared,
    Collect,
    CommitJointly,
    CommitPrepared,
    Follow,
    Resolve,
)

logger = logging.getLogger("holdfast")


class SharedResolver(PreparedResolver):
    """Has prepared transactions decided by the owner.

    Parameters
    ----------
    handle : QueueHandle
        The queue, which this only looks at.
    membership : Membership
        The way to the owner.
    """

    def __init__(self, handle: QueueHandle, membership: Membership) -> None:
        ask_other = asking(handle.storage, handle.clock, handle.path)
        super().__init__(handle, ask_other)
        self._membership = membership

    def resolve(self) -> bool:
        """Have outcomes of other queues followed; return whether there was anything in doubt."""
        is_any = bool(self._find_all())
        if is_any:
            ask(self._membership, Resolve())
            self.follow_others()
        return is_any

    def follow_others(self) -> None:
        """Ask the owners of other queues what they have decided, and have the parts here follow.

        This handle asks, and not its owner: a thread that serves clients waits for no other owner.
        """
        for found in self._find_all():
            try:
                self._follow_other(found)
            except HoldfastError as error:
                logger.warning("transaction %s of %s stays in doubt: %s", found.id, self._handle.path, error)

    def _follow_other(self, found: Found) -> None:
        outcome = Outcome.IN_DOUBT if found.decider is None else self._ask(found.decider, found.nonce)
        if outcome is not Outcome.IN_DOUBT:
            ask(self._membership, Follow(found.id, found.nonce, outcome is Outcome.COMMITTED))

    def _follow_first(self, transaction_id: str, nonce: bytes | None, *, force: bool) -> None:
        """Before an operator decides: follow another queue that has done so."""
        if nonce is None and not force:
            with storage_errors("looking for a prepared transaction", self._handle.path):
                found = find_transaction(self._handle, transaction_id)
            if found is not None:
                self._follow_other(found)

    def commit(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> range:
        """Have a prepared transaction committed; return the offsets of its puts."""
        self._follow_first(transaction_id, nonce, force=force)
        done = ask(self._membership, CommitPrepared(transaction_id, force, nonce))
        return range(done["first"], done["first"] + done["count"])

    def abort(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> None:
        """Have a prepared transaction aborted."""
        self._follow_first(transaction_id, nonce, force=force)
        ask(self._membership, AbortPrepared(transaction_id, force, nonce))


class SharedJointResolver(JointResolver):
    """Has joint commits done by the owner.

    Parameters
    ----------
    handle, resolver
        As of :class:`JointResolver`.
    membership : Membership
        The way to the owner.
    """

    def __init__(self, handle: QueueHandle, resolver: PreparedResolver, membership: Membership) -> None:
        super().__init__(handle, resolver)
        self._membership = membership

    def commit(self, application: str, version: int, ids: Sequence[str], *, is_remembered: bool) -> None:
        """Have parts committed as one, once."""
        ask(self._membership, CommitJointly(application, version, list(ids), is_remembered))

    def abort(self, application: str, version: int) -> None:
        """Have parts aborted that were not committed."""
        ask(self._membership, AbortJointly(application, version))

    def collect(self, older_than_seconds: float, id_prefix: str) -> None:
        """Have parts aborted that have waited for so long."""
        ask(self._membership, Collect(older_than_seconds, id_prefix))

    def resume(self) -> None:
        """Do nothing: the owner does, when it is asked to resolve."""

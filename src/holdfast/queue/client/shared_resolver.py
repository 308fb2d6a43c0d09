"""Prepared transactions of a shared queue: this handle lists them from the files, and the owner decides them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.persistence.format.commit_record import PartOf
from holdfast.queue.client.membership import Membership
from holdfast.queue.client.preparing import ask
from holdfast.queue.engine.coordinators import Outcome
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.joint_resolver import JointResolver
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.protocol.prepared_verbs import (
    AbortJointly,
    AbortPrepared,
    Collect,
    CommitJointly,
    CommitPrepared,
    Resolve,
)


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
        super().__init__(handle, lambda participant, nonce: Outcome.IN_DOUBT, lambda group, fields, seconds: {})
        self._membership = membership

    def resolve(self) -> bool:
        """Have outcomes of other queues followed; return whether there was anything in doubt."""
        is_any = bool(self._find_all())
        if is_any:
            ask(self._membership, Resolve())
        return is_any

    def make_ready(
        self,
        transaction_id: str,
        *,
        puts: bool,
        part_of: PartOf | None = None,
        is_random: bool = False,
        group: str | None = None,
    ) -> None:
        """Do nothing: the owner does, when it is asked to prepare."""

    def commit(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> range:
        """Have a prepared transaction committed; return the offsets of its puts."""
        done = ask(self._membership, CommitPrepared(transaction_id, force, nonce))
        return range(done["first"], done["first"] + done["count"])

    def abort(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> None:
        """Have a prepared transaction aborted."""
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

"""Prepares transactions of a shared queue through its owner: puts always as a staged file, which is renamed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from holdfast.errors import NO_ROOM, Full, HoldfastError
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.batch_file_reader import BatchSummary
from holdfast.persistence.segment.staged_file import staged_path
from holdfast.queue.client.membership import Membership
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.protocol.messages import Done, Receipt
from holdfast.queue.protocol.prepared_verbs import AnyPreparedVerb, Begin, End, Follow, HasSpace, Prepare, as_request

_PAUSE_SECONDS_MAX = 0.05
"""Between two questions whether there is space."""


class Preparing:
    """Has transactions of one handle prepared. Threads may share it.

    Parameters
    ----------
    handle : QueueHandle
        The queue.
    membership : Membership
        The way to the owner.
    """

    def __init__(self, handle: QueueHandle, membership: Membership) -> None:
        self._handle = handle
        self._membership = membership

    def wait_for_space(self, count: int, size: int, timeout: float | None) -> None:
        """Return once a bounded queue has space for a batch; raises queue.Full after ``timeout`` seconds.

        Space is free for all: another put may take it. A prepared transaction needs none to commit.
        """
        deadline, pause = None if timeout is None else time.monotonic() + timeout, 0.001
        while True:
            if ask(self._membership, HasSpace(count, size))["has_space"]:
                return
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise Full(NO_ROOM)
            time.sleep(min(pause, left))
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def prepare(
        self, writer: BatchFileWriter | None, commit_record: CommitRecord, group: str, receipts: Sequence[Receipt]
    ) -> BatchSummary | None:
        """Have a transaction prepared; return the summary of its puts, which are in ``prepared/`` from here on.

        Its file is closed once this returns. If this raises, it takes more.

        Raises
        ------
        TransactionStateError
            The id is in doubt already, or its joint commit was decided; nothing was done.
        DiskFullError, StorageError, StaleReceiptError, RetryableError
            It is not prepared.
        CommitUnknownError
            It may be prepared, and no owner tells.
        """
        decider = commit_record.coordinator
        coordinator = None if decider is None else (decider.path, decider.queue_id, decider.group)
        prepare = Prepare(commit_record.id, commit_record.nonce, list(receipts), writer is not None, coordinator)
        if writer is None:
            ask(self._membership, prepare, group)
            return None
        try:
            writer.move(staged_path(self._handle.directory, commit_record.nonce))
            summary = writer.finish(commit_record)
            writer.sync()
            ask(self._membership, prepare, group)
        except BaseException:
            writer.resume()
            raise
        writer.close()
        return replace(summary, path=self._handle.directory.batch_file(commit_record.id))

    # -- Over several queues -----------------------------------------------------------------------------------------

    def begin(self, nonce: bytes) -> None:
        """Begin a commit over several queues that this queue's log decides. Raises as ``Membership.ask``."""
        ask(self._membership, Begin(nonce))

    def end(self, nonce: bytes, *, is_followed: bool) -> None:
        """End it. An owner that does not hear of it ends it with the session, and a successor knows nothing begun."""
        with suppress(HoldfastError):
            ask(self._membership, End(nonce, is_followed), seconds=0.0)

    def follow(self, transaction_id: str, nonce: bytes, *, is_committed: bool) -> range:
        """Have a prepared part follow the log of another queue. Raises as ``Membership.ask``."""
        done = ask(self._membership, Follow(transaction_id, nonce, is_committed))
        return range(done["first"], done["first"] + done["count"])


def ask(membership: Membership, verb: AnyPreparedVerb, group: str = "", seconds: float | None = None) -> dict[str, Any]:
    """Have a verb done; return its result. Raises as ``Membership.ask``."""
    reply = membership.ask(as_request(group, verb), (), seconds).reply
    assert isinstance(reply, Done), "an owner answers a verb by its result or an error"
    return reply.result

"""Asks the coordinator of a transaction for the outcome: under its lock, after its own recovery."""

from __future__ import annotations

import logging
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.format.commit_record import Participant
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.persistence.outcomes.redo import find_queue
from holdfast.persistence.ownership.owner_lock import read_owner_note
from holdfast.queue.engine.coordinators import Outcome, find_coordinator
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.queue_options import Options
from holdfast.queue.prepared.prepared_resolver import AskCoordinator
from holdfast.threads import log_later


def asking(storage: Storage, clock: Clock, root: Path, *, may_wait: bool = True) -> AskCoordinator:
    """Return a function that asks other queues on behalf of the one at ``root``.

    A queue that this process has open is asked as it is. If it is shared, its owner is asked, provided that the caller
    ``may_wait`` for another process. Another one is recovered, if its write lock is free: a transaction that its log
    has not decided by then is aborted. While it is missing, or locked, there is no answer.
    """

    def ask(participant: Participant, nonce: bytes) -> Outcome:
        live = find_coordinator(participant.queue_id)
        if live is not None:
            return live.outcome(nonce)
        directory = find_queue(storage, root, participant)
        if directory is None:
            return Outcome.IN_DOUBT
        outcome = _of_owner(storage, directory.root, participant, nonce) if may_wait else None
        if outcome is not None:
            return outcome
        options = Options("write_side", "default", {"flush": FlushPolicy.every_commit()}, is_visitor=True)
        try:
            handle = QueueHandle(storage, clock, directory.root, options)
        except HoldfastError as error:
            log_later(logging.INFO, "no outcome from %s: %s", directory.root, error)
            return Outcome.IN_DOUBT
        try:
            assert handle.coordinator is not None, "this mode writes"
            return handle.coordinator.outcome(nonce)
        finally:
            handle.close()

    return ask


def _of_owner(storage: Storage, root: Path, participant: Participant, nonce: bytes) -> Outcome | None:
    if read_owner_note(storage, root) is None:
        return None
    from holdfast.queue.prepared.asking_owners import ask_owner  # a program without shared queues loads no messages

    return ask_owner(storage, root, participant.queue_id, nonce)

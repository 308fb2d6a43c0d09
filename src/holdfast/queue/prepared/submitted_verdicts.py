"""Prepared transactions as a handle sees them that submits: it lists them, and has the owner decide them."""

from __future__ import annotations

from holdfast.persistence.exchange.requests import ABORT_PREPARED, COMMIT_PREPARED
from holdfast.persistence.format.commit_record import PartOf
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.prepared_resolver import AskCoordinator, PreparedResolver
from holdfast.queue.prepared.vote_settling import AskGroup


class SubmittedVerdicts(PreparedResolver):
    """Asks the owner to decide.

    Parameters
    ----------
    sides, ask, ask_group
        As for :class:`PreparedResolver`; ``sides`` submits.
    """

    def __init__(self, sides: QueueHandle, ask: AskCoordinator, ask_group: AskGroup) -> None:
        super().__init__(sides, ask, ask_group)
        assert sides.submit_side is not None, "as its mode says"
        self._submit_side = sides.submit_side

    def make_ready(self, transaction_id: str, *, puts: bool, part_of: PartOf | None = None) -> None:
        """Do nothing: the owner does, when it is asked to prepare."""

    def commit(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> range:
        """Have a prepared transaction committed; return the offsets of its puts."""
        return self._submit_side.decide(COMMIT_PREPARED, transaction_id, force=force, nonce=nonce)

    def abort(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> None:
        """Have a prepared transaction aborted."""
        self._submit_side.decide(ABORT_PREPARED, transaction_id, force=force, nonce=nonce)

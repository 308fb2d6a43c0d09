"""Prepared transactions as a handle sees them that submits: it lists them, and has the owner decide them."""

from __future__ import annotations

from holdfast.persistence.decision import PartOf
from holdfast.queue.in_doubt import AskCoordinator, InDoubt
from holdfast.queue.request_desk import ABORT_PREPARED, COMMIT_PREPARED
from holdfast.queue.sides import Sides
from holdfast.queue.submit_side import SubmitSide
from holdfast.queue.vote_settling import AskGroup


class SubmittedVerdicts(InDoubt):
    """Asks the owner to decide.

    Parameters
    ----------
    sides, ask, ask_group
        As for :class:`InDoubt`.
    submit_side : SubmitSide
        How the owner is asked.
    """

    def __init__(self, sides: Sides, ask: AskCoordinator, ask_group: AskGroup, submit_side: SubmitSide) -> None:
        super().__init__(sides, ask, ask_group)
        self._submit_side = submit_side

    def make_ready(self, transaction_id: str, *, puts: bool, part_of: PartOf | None = None) -> None:
        """Do nothing: the owner does, when it is asked to prepare."""

    def commit(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> range:
        """Have a prepared transaction committed; return the offsets of its puts."""
        return self._submit_side.decide(COMMIT_PREPARED, transaction_id, force=force, nonce=nonce)

    def abort(self, transaction_id: str, *, force: bool = False, nonce: bytes | None = None) -> None:
        """Have a prepared transaction aborted."""
        self._submit_side.decide(ABORT_PREPARED, transaction_id, force=force, nonce=nonce)

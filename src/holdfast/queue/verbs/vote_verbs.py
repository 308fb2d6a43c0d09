"""The verbs for a group's owner about its votes, by name. docs/format.md, "Requests".

Beside ``group_verbs.py``, and served in the same way: each may be done twice.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.errors import UsageError
from holdfast.queue.verbs.group_verbs import Fields, check_names

HAS_VOTE = "has_vote"
SETTLE_VOTE = "settle_vote"
VOTE_VERBS = (HAS_VOTE, SETTLE_VOTE)

IS_HELD = "is_held"
"""What ``has_vote`` returns."""

_NONCE_DIGITS = 32


class VoteControls(Protocol):
    """The votes of a group, for the owner of its read side. Each verb is durable when it returns."""

    def has_vote(self, nonce: bytes) -> bool:
        """Whether messages are held under a transaction."""

    def settle_vote(self, transaction_id: str, nonce: bytes, *, is_committed: bool, is_decided: bool) -> None:
        """Finish the messages of a vote, or release them.

        ``is_decided``: a log has decided, and this follows it. Else this decides the transaction.
        """


def has_vote_fields(nonce: bytes) -> Fields:
    """Return the request for :meth:`VoteControls.has_vote`."""
    return {"verb": HAS_VOTE, "nonce": nonce.hex()}


def settle_vote_fields(transaction_id: str, nonce: bytes, *, is_committed: bool, is_decided: bool) -> Fields:
    """Return the request for :meth:`VoteControls.settle_vote`."""
    verdict = {"is_committed": is_committed, "is_decided": is_decided}
    return {"verb": SETTLE_VOTE, "id": transaction_id, "nonce": nonce.hex(), **verdict}


def perform_on_votes(votes: VoteControls, fields: Fields) -> Fields:
    """Perform ``fields["verb"]``, one of ``VOTE_VERBS``; return its result.

    Raises
    ------
    UsageError
        Not such fields; nothing was done.
    HoldfastError
        The owner refuses.
    """
    verb, rest = fields["verb"], {key: value for key, value in fields.items() if key != "verb"}
    if verb == HAS_VOTE:
        check_names(verb, rest, {"nonce"})
        return {IS_HELD: votes.has_vote(nonce_of(rest))}
    check_names(verb, rest, {"id", "nonce", "is_committed", "is_decided"})
    transaction_id, is_committed, is_decided = (rest.get(name) for name in ("id", "is_committed", "is_decided"))
    if not isinstance(transaction_id, str) or not isinstance(is_committed, bool) or not isinstance(is_decided, bool):
        raise UsageError(f"{verb} takes an id, and says of is_committed and is_decided whether they hold")
    votes.settle_vote(transaction_id, nonce_of(rest), is_committed=is_committed, is_decided=is_decided)
    return {}


def nonce_of(fields: Fields) -> bytes:
    """Return the nonce in the fields of a verb; raises UsageError if there is none."""
    text = fields.get("nonce")
    try:
        if isinstance(text, str) and len(text) == _NONCE_DIGITS:
            return bytes.fromhex(text)
    except ValueError:
        pass
    raise UsageError(f"{text!r} names no transaction")

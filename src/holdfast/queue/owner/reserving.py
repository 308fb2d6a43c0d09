"""The verbs of clients on reservations. docs/adr/0038.

A reservation has a nonce of the client's. By it a request that comes again finds the vote, or the outcome.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import UsageError
from holdfast.queue.owner.owned_queue import OwnedQueue
from holdfast.queue.verbs.group_verbs import check_names

Fields = dict[str, Any]

RESERVE = "reserve"
SETTLE_RESERVED = "settle_reserved"

_NONCE_DIGITS = 32

RESERVED_COUNT_MAX = 200_000
RESERVED_BYTES_MAX = 512 * 2**20
"""Of one reservation: the frame headers of so much are read in some tenths of a second. Takes of the group wait."""

_BOUNDS = ("count_max", "bytes_max", "end_offset")


def reserve_fields(nonce: bytes, prefix: str, count_max: int, bytes_max: int, end_offset: int) -> Fields:
    """Return the request to hold the next messages of a group under an id; sent again, it holds the same."""
    bounds = {"count_max": count_max, "bytes_max": bytes_max, "end_offset": end_offset}
    return {"verb": RESERVE, "nonce": nonce.hex(), "prefix": prefix, **bounds}


def settle_fields(reserved_id: str, nonce: bytes, *, is_committed: bool) -> Fields:
    """Return the request to commit a reservation, or to give it back."""
    return {"verb": SETTLE_RESERVED, "id": reserved_id, "nonce": nonce.hex(), "is_committed": is_committed}


def reserve(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    """Hold the next messages of a group; return id, runs and size of the reservation, or nothing if there are none.

    Raises
    ------
    TransactionStateError
        It was made and decided before: this is an old copy of its request.
    HoldfastError
        As ``Reservations.take``.
    """
    check_names(RESERVE, fields, {"nonce", "prefix", *_BOUNDS})
    nonce, prefix = nonce_of(fields), fields.get("prefix")
    bounds = [each for each in map(fields.get, _BOUNDS) if isinstance(each, int) and each >= 0]
    if not isinstance(prefix, str) or len(bounds) < len(_BOUNDS):
        raise UsageError(f"{RESERVE} takes a prefix, and whole numbers as {', '.join(_BOUNDS)}")
    count_max, bytes_max, end_offset = bounds
    count_max, bytes_max = min(count_max, RESERVED_COUNT_MAX), min(bytes_max, RESERVED_BYTES_MAX)
    made = queue.engine(group).reserving.reserve_once(nonce, prefix, count_max, bytes_max, end_offset)
    if made is None:
        return {}
    return {"id": made.id, "runs": made.runs, "size_bytes": made.size_bytes}


def settle_reserved(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    """Commit a reservation, or give it back; that is remembered, so that it may come again."""
    check_names(SETTLE_RESERVED, fields, {"id", "nonce", "is_committed"})
    reserved_id, is_committed = fields.get("id"), fields.get("is_committed")
    if not isinstance(reserved_id, str) or not isinstance(is_committed, bool):
        raise UsageError(f"{SETTLE_RESERVED} takes an id, and says whether it is committed")
    queue.engine(group).resolver.own_votes.settle(reserved_id, nonce_of(fields), is_committed=is_committed)
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

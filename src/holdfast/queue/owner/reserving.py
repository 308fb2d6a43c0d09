"""The verbs of clients on reservations. docs/adr/0038.

A reservation has a nonce of the client's. By it a request that comes again finds the vote, or the outcome.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import UsageError
from holdfast.queue.owner.owned_queue import OwnedQueue
from holdfast.queue.verbs.group_verbs import check_names
from holdfast.queue.verbs.vote_verbs import SETTLE_VOTE, nonce_of, perform_on_votes

Fields = dict[str, Any]

RESERVE = "reserve"

RESERVED_COUNT_MAX = 200_000
RESERVED_BYTES_MAX = 512 * 2**20
"""Of one reservation: the frame headers of so much are read in some tenths of a second. Takes of the group wait."""

_BOUNDS = ("count_max", "bytes_max", "end_offset")


def reserve_fields(nonce: bytes, prefix: str, count_max: int, bytes_max: int, end_offset: int) -> Fields:
    """Return the request to hold the next messages of a group under an id; sent again, it holds the same."""
    bounds = {"count_max": count_max, "bytes_max": bytes_max, "end_offset": end_offset}
    return {"verb": RESERVE, "nonce": nonce.hex(), "prefix": prefix, **bounds}


def reserve(queue: OwnedQueue, group: str, fields: Fields) -> Fields:
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


def settle_reserved(queue: OwnedQueue, group: str, fields: Fields) -> Fields:
    """Commit a reservation, or give it back; that is remembered, so that it may come again."""
    return perform_on_votes(queue.engine(group).resolver.own_votes, {"verb": SETTLE_VOTE, **fields})

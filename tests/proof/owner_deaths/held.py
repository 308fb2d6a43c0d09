"""What clients of a shared queue prepare and reserve: it is held by no session until anyone decides it."""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

from holdfast.persistence.format.constants import NONCE
from holdfast.queue.owner.reserving import reserve_fields, settle_fields
from holdfast.queue.prepared.reservations import NO_LIMIT
from holdfast.queue.protocol.messages import Prepare, Receipt, Verb
from holdfast.queue.protocol.prepared_verbs import AbortPrepared, CommitPrepared, as_request


@dataclass
class Held:
    """A prepared transaction, or a reservation.

    Attributes
    ----------
    id : str
        By which it is decided. Of a reservation that has no answer yet, what its id begins with.
    nonce : bytes, length 16
        Of the request that has made it.
    group : str
        Whose messages it holds.
    offsets : list of int
        These.
    payloads : list of bytes
        What it puts if it is committed.
    is_reserved : bool
        Whether it is a reservation.
    """

    id: str
    nonce: bytes
    group: str
    offsets: list[int] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    is_reserved: bool = False

    @property
    def is_to_commit(self) -> bool:
        """What becomes of it, whichever process decides it, and however often."""
        return crc32(self.id.encode()) % 2 == 0

    def preparing(self, receipts: list[Receipt], *, is_staged: bool) -> Prepare:
        """Return the request that prepares it."""
        return Prepare(self.nonce, self.id, {}, self.group, receipts, is_staged)

    def reserving(self, count_max: int) -> Verb:
        """Return the request that reserves so many messages."""
        return Verb(self.group, reserve_fields(self.nonce, self.id, count_max, NO_LIMIT, NO_LIMIT))

    def deciding(self) -> Verb:
        """Return the request that decides it: half of those for transactions name one of this nonce."""
        if self.is_reserved:
            return Verb(self.group, settle_fields(self.id, self.nonce, is_committed=self.is_to_commit))
        verb = CommitPrepared if self.is_to_commit else AbortPrepared
        return as_request(verb(self.id, nonce=self.nonce if NONCE.unpack(self.nonce)[1] % 2 else None))

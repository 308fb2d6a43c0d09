"""Clients of a shared queue, each with one thread: what they ask next, and again if no answer comes."""

from __future__ import annotations

import random
from itertools import count

from holdfast.persistence.format.commit_record import count_of
from holdfast.persistence.format.constants import NONCE, SESSION_SHIFT
from holdfast.queue.owner.verbs import CONFIGURE
from holdfast.queue.protocol.messages import Arrived, Commit, Put, Resume, Settle, Take, Verb
from proof.owner_deaths.books import CHANGED, Asked, Books
from proof.owner_deaths.held import Held

LEASE_SECONDS = 1e6
"""No lease ends in a history: that is for the tests of leases."""

SIZES = (20, 400, 5000)
"""Of payloads, in bytes: of the largest a few fill a data file."""

FINISHED = 0.3
"""How much of what is in hand is acknowledged with the next take."""

BATCH_MAX = 6
"""Messages; also the bound of every second queue."""

STAGED = 0.3
"""How many of the batches are in files."""

KINDS = ("put", "put", "take", "take", "settle", "settle", "commit", "prepare", "reserve", "decide", "configure")
VERBS = ("ack", "ack", "ack", "nack", "release", "reject")


class Caller:
    """A client that lives until it is said to be dead.

    Parameters
    ----------
    number : int
        Names its thread.
    session : int
        Of its session.
    group : str
        The consumer group that it takes for.

    Attributes
    ----------
    asked : Asked or None
        What it waits for.
    last : Asked or None
        The request before, which was answered.
    has_copies : bool
        Whether the owner that lives may have got that one more than once. Later ones have not: a client that has an
        answer asks no one else.
    """

    def __init__(self, number: int, session: int, group: str) -> None:
        self.session = session
        self.group = group
        self.asked: Asked | None = None
        self._name = number
        self._thread = b"thread%02d" % number
        self.last: Asked | None = None
        self.has_copies = False
        self._requests = count(1)
        self._takes = count(1)
        self._messages = count(1)

    # -- Asking ------------------------------------------------------------------------------------------------------

    def choose(self, rng: random.Random, books: Books) -> Asked:
        """Return the next request."""
        mine = in_hand(books, self.session)[self.group]
        verb = rng.choice(KINDS)
        if verb == "configure":
            names = rng.sample(sorted(CHANGED), rng.choice((1, 2)))
            settings = {name: float(rng.randrange(10, 10_000)) for name in names}
            fields = {"verb": CONFIGURE, "settings": settings, "reset": []}
            self.asked = Asked(Verb(self.group, fields), settings=settings, step=verb)
            return self.asked
        if verb == "decide" and books.held:
            held = books.held[rng.choice(sorted(books.held))]
            self.asked = Asked(held.deciding(), held=held, step="decide")
            return self.asked
        if verb == "reserve":
            held = Held(f"r{self._name}-{next(self._requests)}-", rng.randbytes(16), self.group, is_reserved=True)
            self.asked = Asked(held.reserving(rng.choice((1, 3))), held=held, step="reserve")
            return self.asked
        if verb in ("put", "decide") or (verb == "settle" and not mine):
            is_staged = rng.random() < STAGED
            payloads = self._payloads(rng, 1, is_staged=is_staged)
            self.asked = Asked(Put(self._nonce(), rng.random() < 0.5, "", {}, 0, is_staged), payloads)
        elif verb == "take":
            number = self.session << SESSION_SHIFT | next(self._takes)
            finished = [offset for offset in sorted(mine) if rng.random() < FINISHED]
            receipts = [(mine[offset], offset) for offset in finished]
            take = Take(self.group, number, rng.choice((1, 3)), LEASE_SECONDS, 0, receipts)
            self.asked = Asked(take, offsets=finished)
        else:
            offsets = rng.sample(sorted(mine), rng.randint(min(1, len(mine)), min(3, len(mine))))
            receipts = [(mine[offset], offset) for offset in offsets]
            if verb == "prepare":
                payloads = self._payloads(rng, 0 if offsets else 1)
                nonce = self._nonce()
                name = nonce.hex() if rng.random() < 0.5 else f"t{nonce.hex()}"
                held = Held(name, nonce, self.group, offsets, payloads)
                is_staged = bool(payloads) and rng.random() < 0.5
                request = held.preparing(receipts, is_staged=is_staged)
                self.asked = Asked(request, payloads, offsets, held=held, step="prepare")
            elif verb == "settle":
                how = rng.choice(VERBS)
                failure = ("rejected", "it cannot be done", "", "") if how in ("nack", "reject") else None
                seconds = 0.0 if how == "nack" else None
                self.asked = Asked(Settle(self.group, how, receipts, seconds, failure), offsets=offsets)
            else:
                payloads = self._payloads(rng, 0 if offsets else 1)
                is_staged = bool(payloads and receipts) and rng.random() < STAGED
                commit = Commit(self._nonce(), "a transaction", {}, 0, self.group, receipts, is_staged)
                self.asked = Asked(commit, payloads, offsets)
        return self.asked

    def _nonce(self) -> bytes:
        return NONCE.pack(self._thread, next(self._requests))

    def _payloads(self, rng: random.Random, at_least: int, *, is_staged: bool = False) -> list[bytes]:
        many = rng.randint(at_least, BATCH_MAX if is_staged else 3)
        return [b"%s %d " % (self._thread, next(self._messages)) + b"x" * rng.choice(SIZES) for _ in range(many)]

    def has_answer(self) -> None:
        """Note that it waits no more."""
        self.last, self.asked, self.has_copies = self.asked, None, True

    def arrived(self) -> Arrived | None:
        """Return what says that its last answer has arrived, if the owner keeps it."""
        if self.last is None or not isinstance(self.last.request, Put | Commit) or self.asked is not None:
            return None
        return Arrived(self._thread, count_of(self.last.request.nonce))


def in_hand(books: Books, session: int) -> dict[str, dict[int, int]]:
    """Return the offsets and delivery numbers of what a session has in hand, by group."""
    return {
        group: {offset: number for offset, number in held.items() if number >> SESSION_SHIFT == session}
        for group, held in books.in_hand.items()
    }


def named(books: Books, session: int, asked: Asked | None) -> list[Resume]:
    """Return what a session says first to an owner: what it has in hand, and what it is taking."""
    said = []
    for group, held in in_hand(books, session).items():
        numbers = set(held.values())
        if asked is not None and isinstance(asked.request, Take) and asked.group == group:
            numbers.add(asked.request.number)
        said.append(Resume(group, sorted(numbers)))
    return said

"""The decisions in the log whose consequences are not all durable elsewhere yet: what recovery would have to do again.

Each stands in the active data file: where it was decided, or carried there when the file was begun. ``write.mark``
says where the first of them is, so that opening a queue reads no further back. docs/format.md, "Commit records".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from itertools import chain

from holdfast.errors import HoldfastError
from holdfast.persistence.format.commit_record import CommitRecord

logger = logging.getLogger("holdfast")

DurabilityCheck = Callable[[], object]
"""Makes one consequence of a decision durable; returns False, or raises, where it cannot do so now."""


class PendingCommitRecords:
    """Open decisions by nonce, in the order of the log. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: dict[bytes, int] = {}
        self._decisions: dict[bytes, CommitRecord] = {}
        self._durable: set[bytes] = set()
        self._witnesses: dict[bytes, tuple[DurabilityCheck, ...]] = {}

    def __len__(self) -> int:
        return len(self._decisions)

    def __iter__(self) -> Iterator[CommitRecord]:
        with self._lock:
            return iter(list(self._decisions.values()))

    def add(self, decision: CommitRecord, position: int, *, is_durable: bool = False) -> None:
        """Take up a decision that is about to stand, or stands, at ``position`` of the active file."""
        with self._lock:
            self._decisions[decision.nonce] = decision
            self._positions[decision.nonce] = position
            if is_durable:
                self._durable.add(decision.nonce)

    def confirm(self, nonce: bytes) -> None:
        """Note that a decision is on the disk: before that nobody may act upon it, and nobody knows of its opposite."""
        with self._lock:
            if nonce in self._decisions:
                self._durable.add(nonce)

    def is_durable(self, nonce: bytes) -> bool:
        """Whether an open decision is known to be on the disk."""
        return nonce in self._durable

    def remove(self, nonce: bytes) -> None:
        """Forget a decision: it could not be written, or has ended."""
        with self._lock:
            self._decisions.pop(nonce, None)
            self._positions.pop(nonce, None)
            self._durable.discard(nonce)
            self._witnesses.pop(nonce, None)

    def find(self, nonce: bytes) -> CommitRecord | None:
        """Return an open decision, or None."""
        return self._decisions.get(nonce)

    def move(self, positions: dict[bytes, int]) -> None:
        """Note where decisions stand in the next data file."""
        with self._lock:  # some may have ended meanwhile
            self._positions.update({nonce: at for nonce, at in positions.items() if nonce in self._decisions})

    def first_position(self, end: int) -> int:
        """Return where in the active file recovery has to look from: at the first open decision, or at ``end``."""
        with self._lock:
            return min([end, *self._positions.values()])

    def applied(self, nonce: bytes, *witnesses: DurabilityCheck) -> None:
        """Note that all that follows from a decision was done, and what makes it durable."""
        with self._lock:
            if nonce in self._decisions:
                self._witnesses[nonce] = witnesses

    def end(self) -> None:
        """Make durable what can be made so, each thing once for all decisions, and forget those that need no more."""
        with self._lock:
            applied = dict(self._witnesses)
        wanted = dict.fromkeys(chain.from_iterable(applied.values()))  # each once, and in the order of the log
        answers = {witness: _is_durable(witness) for witness in wanted}
        for nonce, witnesses in applied.items():
            if all(answers[witness] for witness in witnesses):
                self.remove(nonce)


def _is_durable(witness: DurabilityCheck) -> bool:
    try:
        return witness() is not False
    except (HoldfastError, OSError) as error:
        logger.info("a decision stays open for now: %s", error)
        return False

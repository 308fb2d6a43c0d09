"""The pending commit records: their consequences are not all durable elsewhere, so recovery would have to redo them.

Each is in the active data file: committed there, or carried there when the file was begun. ``write.mark`` has the
position of the first, so that opening a queue reads no further back. docs/format.md, "Commit records".
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
    """Pending commit records by nonce, in the order of the log. Threads may share it."""

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
        """Add a commit record that is, or is about to be, at ``position`` of the active file."""
        with self._lock:
            self._decisions[decision.nonce] = decision
            self._positions[decision.nonce] = position
            if is_durable:
                self._durable.add(decision.nonce)

    def confirm(self, nonce: bytes) -> None:
        """Note that a commit record is on the disk: before that no step may act upon it, and its outcome is unknown."""
        with self._lock:
            if nonce in self._decisions:
                self._durable.add(nonce)

    def is_durable(self, nonce: bytes) -> bool:
        """Whether a pending commit record is known to be on the disk."""
        return nonce in self._durable

    def remove(self, nonce: bytes) -> None:
        """Forget a commit record: it could not be written, or has ended."""
        with self._lock:
            self._decisions.pop(nonce, None)
            self._positions.pop(nonce, None)
            self._durable.discard(nonce)
            self._witnesses.pop(nonce, None)

    def find(self, nonce: bytes) -> CommitRecord | None:
        """Return a pending commit record, or None."""
        return self._decisions.get(nonce)

    def move(self, positions: dict[bytes, int]) -> None:
        """Note the positions of the records in the next data file."""
        with self._lock:  # some may have ended meanwhile
            self._positions.update({nonce: at for nonce, at in positions.items() if nonce in self._decisions})

    def first_position(self, end: int) -> int:
        """Return the position from which recovery has to read the active file: the first pending record, or ``end``."""
        with self._lock:
            return min([end, *self._positions.values()])

    def applied(self, nonce: bytes, *witnesses: DurabilityCheck) -> None:
        """Note that all consequences of a commit record were applied, with the durability checks for them."""
        with self._lock:
            if nonce in self._decisions:
                self._witnesses[nonce] = witnesses

    def end(self) -> None:
        """Run the durability checks, each once for all records, and forget the records that are complete."""
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
        logger.info("a commit record stays pending for now: %s", error)
        return False

"""Queues and transactions as a few Python objects: what may be seen, and what a crash leaves. No files, no threads.

Messages are told apart by their payloads, so no two may be alike. One process is modelled at a time, with one handle
for each queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class ModelTransaction:
    """One transaction that is open or prepared.

    Attributes
    ----------
    names : tuple of str
        The queues that take part.
    deadline : float
        When it aborts, if it is still open then.
    puts : dict of str to list of bytes
        By queue.
    in_hand, acked : dict of str to set of bytes
        What it has taken and would give back, and what it would finish; by queue.
    """

    names: tuple[str, ...]
    deadline: float = 0.0
    puts: dict[str, list[bytes]] = field(default_factory=dict)
    in_hand: dict[str, set[bytes]] = field(default_factory=dict)
    acked: dict[str, set[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.names:
            self.puts.setdefault(name, [])
            self.in_hand.setdefault(name, set())
            self.acked.setdefault(name, set())

    def holds(self, name: str) -> set[bytes]:
        """Return the messages of a queue that others cannot take."""
        return self.in_hand.get(name, set()) | self.acked.get(name, set())


@dataclass(frozen=True)
class Seen:
    """What can be seen of one queue: what could be taken, in order; what is not finished; which ids are in doubt."""

    waiting: tuple[bytes, ...]
    depth: int
    in_doubt: frozenset[str]


class TransactionModel:
    """Some queues, and the transactions over them.

    Attributes
    ----------
    logs : dict of str to list of bytes
        What was committed into each queue, in order.
    finished : dict of str to set of bytes
        What was acknowledged for good.
    open : dict of int to ModelTransaction
        By the number that ``begin`` gave.
    in_doubt : dict of str to dict of str to ModelTransaction
        What is prepared, by queue and id.
    decided : dict of str to dict of str to bool
        Whether the latest transaction of an id was committed, by queue and id.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.logs: dict[str, list[bytes]] = {name: [] for name in names}
        self.finished: dict[str, set[bytes]] = {name: set() for name in self.logs}
        self.open: dict[int, ModelTransaction] = {}
        self.in_doubt: dict[str, dict[str, ModelTransaction]] = {name: {} for name in self.logs}
        self.outcome_log: dict[str, dict[str, bool]] = {name: {} for name in self.logs}
        self._next = 0

    def free(self, name: str) -> list[bytes]:
        """Return what can be taken now, in the order of the log."""
        taken = set(self.finished[name])
        for each in (*self.open.values(), *self.in_doubt[name].values()):
            taken |= each.holds(name)
        return [payload for payload in self.logs[name] if payload not in taken]

    def seen(self) -> dict[str, Seen]:
        """Return what can be seen of each queue."""
        return {
            name: Seen(tuple(self.free(name)), len(log) - len(self.finished[name]), frozenset(self.in_doubt[name]))
            for name, log in self.logs.items()
        }

    def begin(self, names: tuple[str, ...], deadline: float) -> int:
        """Begin a transaction; return its number."""
        self._next += 1
        self.open[self._next] = ModelTransaction(names, deadline)
        return self._next

    def commit(self, number: int) -> None:
        """Commit an open transaction: all of it."""
        self._apply(self.open.pop(number))

    def abort(self, numbers: Iterable[int]) -> None:
        """Abort open transactions: nothing of them is left."""
        for number in numbers:
            self.open.pop(number, None)

    def prepare(self, number: int, transaction_id: str) -> None:
        """Prepare an open transaction of one queue; what it did not acknowledge is free again."""
        transaction = self.open.pop(number)
        (name,) = transaction.names
        transaction.in_hand[name].clear()
        self.in_doubt[name][transaction_id] = transaction

    def decide(self, name: str, transaction_id: str, *, commits: bool) -> None:
        """Decide what is in doubt."""
        transaction = self.in_doubt[name].pop(transaction_id)
        if commits:
            self._apply(transaction)
        self.outcome_log[name][transaction_id] = commits

    def _apply(self, transaction: ModelTransaction) -> None:
        for name in transaction.names:
            self.logs[name] += transaction.puts[name]
            self.finished[name] |= transaction.acked[name]

    def expired(self, now: float) -> list[int]:
        """Return the open transactions whose time is over."""
        return [number for number, each in self.open.items() if each.deadline <= now]

    def taking_part(self, name: str) -> list[int]:
        """Return the open transactions of a queue."""
        return [number for number, each in self.open.items() if name in each.names]

    def crash(self) -> None:
        """Forget what a process knows: open transactions are aborted, prepared ones stay."""
        self.open.clear()

"""The states and verbs of a transaction. docs/transactions.md shows the same table, and a test holds the two equal."""

from __future__ import annotations

from enum import Enum

from holdfast.errors import TransactionStateError


class State(Enum):
    """The state of a transaction."""

    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


WORK = ("receive", "put", "put_many", "put_stream", "ack")

TRANSITIONS: dict[tuple[State, str], State] = {
    **{(State.OPEN, verb): State.OPEN for verb in WORK},
    (State.OPEN, "prepare"): State.PREPARED,
    (State.OPEN, "commit"): State.COMMITTED,
    (State.OPEN, "abort"): State.ABORTED,
    (State.OPEN, "timeout"): State.ABORTED,
    (State.OPEN, "close"): State.ABORTED,
    (State.OPEN, "failure"): State.ABORTED,
    (State.OPEN, "failed sync"): State.UNKNOWN,
    (State.PREPARED, "commit"): State.COMMITTED,
    (State.PREPARED, "abort"): State.ABORTED,
    (State.PREPARED, "close"): State.PREPARED,
    (State.PREPARED, "failed sync"): State.UNKNOWN,
    (State.COMMITTED, "commit"): State.COMMITTED,
    (State.COMMITTED, "close"): State.COMMITTED,
    (State.ABORTED, "abort"): State.ABORTED,
    (State.ABORTED, "close"): State.ABORTED,
    (State.UNKNOWN, "close"): State.UNKNOWN,
}
"""From a state, by a verb or by what happens, to a state. What is not here raises TransactionStateError."""

_ADVICE = {
    State.OPEN: "it was not prepared",
    State.PREPARED: "only commit and abort are left",
    State.COMMITTED: "begin another one",
    State.ABORTED: "begin another one",
    State.UNKNOWN: "a sync failed: reopen the queue and check",
}


def next_state(state: State, verb: str, transaction_id: str, reason: str = "") -> State:
    """Return the state after ``verb``; raises TransactionStateError if the verb is not possible."""
    try:
        return TRANSITIONS[state, verb]
    except KeyError:
        raise TransactionStateError(
            f"transaction {transaction_id} is {state.value}{reason and f' ({reason})'}: no {verb}; {_ADVICE[state]}",
            transaction=transaction_id,
            state=state.value,
        ) from None

"""docs/transactions.md shows the state diagram of transactions as a table; it is the table that the code follows."""

from pathlib import Path

from holdfast.queue.transaction_state import TRANSITIONS, State
from support.state_tables import state_rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transactions.md"


def documented() -> list[tuple[State, str, State]]:
    """Return the rows of the table, those that name several verbs taken apart."""
    return [
        (State(state), verb.strip(), State(following))
        for state, verbs, following in state_rows(PAGE)
        for verb in verbs.split(",")
    ]


def test_the_documented_transitions_are_those_of_the_code() -> None:
    """Each stands there once, and no other one does."""
    rows = documented()
    assert len(rows) == len(set(rows)) == len(TRANSITIONS)
    assert {(state, verb): following for state, verb, following in rows} == TRANSITIONS

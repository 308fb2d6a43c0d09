"""docs/transactions.md draws the states of transactions, and lists them in a table: both are what the code follows."""

from pathlib import Path

from holdfast.queue.transactions.transaction_state import TRANSITIONS, State
from support.models.state_tables import state_arrows, state_rows

PAGE = Path(__file__).resolve().parents[3] / "docs" / "transactions.md"


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


def test_the_drawn_transitions_are_those_of_the_code() -> None:
    """Each is named by one arrow, some by one that names several; beside them a transaction begins as open."""
    begin, *arrows = [
        (state, verb, following) for state, verbs, following in state_arrows(PAGE) for verb in verbs.split(", ")
    ]
    assert begin == ("[*]", "begin", "open")
    assert len(arrows) == len(set(arrows)) == len(TRANSITIONS)
    assert set(arrows) == {(state.value, verb, following.value) for (state, verb), following in TRANSITIONS.items()}

"""docs/transactions.md draws the states of transactions, and lists them in a table: both are what the code follows."""

from pathlib import Path

from holdfast.queue.transactions.transaction_state import TRANSITIONS, State
from support.drawn_states import drawn_arrows
from support.state_tables import state_rows

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
    """Each is one arrow, or stands in the lines below the drawing; beside them a transaction begins as open."""
    (begin,) = (arrow for arrow in drawn_arrows(PAGE) if not arrow[0])
    arrows = [arrow for arrow in drawn_arrows(PAGE) if arrow[0]]
    assert begin == ("", "begin", "open")
    assert len(arrows) == len(set(arrows)) == len(TRANSITIONS)
    assert set(arrows) == {(state.value, verb, following.value) for (state, verb), following in TRANSITIONS.items()}

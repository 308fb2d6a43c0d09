"""docs/transactions.md shows the state diagram of transactions as a table; it is the table that the code follows."""

import re
from pathlib import Path

from holdfast.queue.transaction_state import TRANSITIONS, State

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transactions.md"
HEADING = ["State", "Verb or event", "Next state"]


def cells(line: str) -> list[str]:
    """Return what stands in a line of a table, without quotes."""
    return [cell.strip().replace("`", "").replace("*", "") for cell in line.strip().strip("|").split("|")]


def documented() -> list[tuple[State, str, State]]:
    """Return the rows of the table, those that name several verbs taken apart."""
    lines = iter(PAGE.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith("|") and cells(line) == HEADING:
            break
    else:
        raise AssertionError(f"{PAGE} has no table with the heading {HEADING}")
    assert re.fullmatch(r"[|:\- ]+", next(lines))
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        state, verbs, following = cells(line)
        rows += [(State(state), verb.strip(), State(following)) for verb in verbs.split(",")]
    return rows


def test_the_documented_transitions_are_those_of_the_code() -> None:
    """Each stands there once, and no other one does."""
    rows = documented()
    assert len(rows) == len(set(rows)) == len(TRANSITIONS)
    assert {(state, verb): following for state, verb, following in rows} == TRANSITIONS

"""Rules for merges of data files: compaction.md."""

from __future__ import annotations

from collections.abc import Callable

from proof.second_model.facts import State, expect
from proof.second_model.history import Answer, Call

MERGE = "compaction.md"

REFUSED_BY = {"": None, "closed": "ClosedError", "shut down": None}


def compact(state: State, call: Call, answer: Answer) -> State:
    """Judge compact: "a merge changes nothing that a group can see", so all that was known is known still."""
    expect(answer.error == REFUSED_BY[state.end], MERGE, REFUSED_BY[state.end] or "merged", answer)
    return state


RULES: dict[str, Callable[[State, Call, Answer], State | tuple[State, ...]]] = {"compact": compact}

"""Decisions that are open: who is durable, and when one ends."""

from __future__ import annotations

from holdfast import StorageError
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.log.pending_commit_records import PendingCommitRecords

NONCE, OTHER = b"n" * 16, b"o" * 16


def opened() -> PendingCommitRecords:
    """Return some with one in it."""
    decisions = PendingCommitRecords()
    decisions.add(CommitRecord("t", NONCE, 1, 0), 5000)
    return decisions


def test_what_has_ended_meanwhile_is_not_taken_up_again() -> None:
    """Another thread may have ended it: nothing is kept of a decision that is not open."""
    decisions = opened()
    asked: list[bytes] = []
    decisions.confirm(OTHER)
    decisions.applied(OTHER, lambda: asked.append(OTHER))
    decisions.end()
    assert not decisions.is_durable(OTHER)
    assert asked == []
    decisions.confirm(NONCE)
    assert decisions.is_durable(NONCE)
    assert [each.nonce for each in decisions] == [NONCE]


def test_a_decision_stays_open_while_a_consequence_cannot_be_made_durable() -> None:
    """Whether its witness says so or the disk does; each is asked again, and the last yes ends it."""
    decisions = opened()
    answers: list[object] = [False, StorageError("no", path="/p"), OSError(5, "no"), None]

    def witness() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    decisions.applied(NONCE, witness)
    for _ in range(3):
        decisions.end()
        assert len(decisions) == 1
        assert decisions.first_position(9000) == 5000
    decisions.end()
    assert len(decisions) == 0
    assert decisions.first_position(9000) == 9000

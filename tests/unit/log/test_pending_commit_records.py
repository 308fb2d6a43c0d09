"""Decisions that are open: who is durable, and when one ends."""

from __future__ import annotations

from holdfast import StorageError
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.log.pending_commit_records import DurabilityCheck, Needs, OwnFile, PendingCommitRecords

NO_FILES = frozenset[OwnFile]()
NONCE, OTHER = b"n" * 16, b"o" * 16


def opened() -> PendingCommitRecords:
    """Return some with one in it."""
    decisions = PendingCommitRecords()
    decisions.add(CommitRecord("t", NONCE, 1, 0), 5000)
    return decisions


def waiting_for(*checks: DurabilityCheck, own: frozenset[OwnFile] = NO_FILES) -> Needs:
    """Return what a commit record needs that waits for other queues, and for ``own`` files."""
    return Needs(own, checks)


def end(decisions: PendingCommitRecords, durable: frozenset[OwnFile] = NO_FILES) -> None:
    """End what can end once ``durable`` files are synced."""
    decisions.end(decisions.applied_needs(), durable)


def test_what_has_ended_meanwhile_is_not_taken_up_again() -> None:
    """Another thread may have ended it: nothing is kept of a decision that is not open."""
    decisions = opened()
    asked: list[bytes] = []
    decisions.confirm(OTHER)
    decisions.applied(OTHER, waiting_for(lambda: asked.append(OTHER)))
    end(decisions)
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

    decisions.applied(NONCE, waiting_for(witness))
    for _ in range(3):
        end(decisions)
        assert len(decisions) == 1
        assert decisions.first_position(9000) == 5000
    end(decisions)
    assert len(decisions) == 0
    assert decisions.first_position(9000) == 9000


def test_a_decision_ends_once_its_own_files_and_all_other_queues_have_followed() -> None:
    """In any order; what was durable once is not asked for again."""
    decisions = opened()
    asked: list[str] = []

    def first() -> None:
        asked.append("first")

    def second() -> bool:
        asked.append("second")
        return asked.count("second") > 1

    decisions.applied(NONCE, waiting_for(first, second, own=frozenset({OwnFile.GROUP, OwnFile.PREPARED})))
    end(decisions, frozenset({OwnFile.PREPARED}))
    assert decisions.applied_needs() == {NONCE: Needs(frozenset({OwnFile.GROUP}), (second,))}
    assert decisions.has_deferred
    assert decisions.applied_needs(own_only=True) == {}
    end(decisions)
    assert not decisions.has_deferred
    assert asked == ["first", "second", "second"]
    assert decisions.applied_needs(own_only=True) == {NONCE: Needs(frozenset({OwnFile.GROUP}))}
    end(decisions, frozenset({OwnFile.GROUP}))
    assert len(decisions) == 0


def test_what_was_applied_since_the_files_were_synced_stays_open() -> None:
    """Its entries may not be in what the sync covered."""
    decisions = opened()
    decisions.applied(NONCE, Needs(frozenset({OwnFile.GROUP})))
    applied = decisions.applied_needs(own_only=True)
    decisions.add(CommitRecord("u", OTHER, 1, 0), 6000)
    decisions.applied(OTHER, Needs(frozenset({OwnFile.GROUP})))
    decisions.end(applied, frozenset({OwnFile.GROUP}))
    assert [each.nonce for each in decisions] == [OTHER]

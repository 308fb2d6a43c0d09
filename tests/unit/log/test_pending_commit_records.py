"""Decisions that are open: who is durable, and when one ends."""

from __future__ import annotations

from holdfast import StorageError
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import NONCE as NONCE_LAYOUT
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


def test_a_decision_that_two_threads_end_at_once_ends_once() -> None:
    """Both have seen that it was applied; the second one finds it gone, and leaves nothing of it."""
    decisions = opened()
    decisions.applied(NONCE, waiting_for())
    seen = decisions.applied_needs()
    for _ in range(2):
        decisions.end(seen, NO_FILES)
    assert len(decisions) == decisions.unsettled_count == 0


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


# -- Records that wait for their session -------------------------------------------------------------------------------


def requested(count: int, thread: bytes = b"a thread", *, session: int = 7, waiting_file: str = "") -> CommitRecord:
    """Return the commit record of a thread's request."""
    return CommitRecord("r", NONCE_LAYOUT.pack(thread, count), 1, 0, session=session, waiting_file=waiting_file)


def counts(decisions: PendingCommitRecords) -> list[int]:
    """Return which requests are pending."""
    return [NONCE_LAYOUT.unpack(each.nonce)[1] for each in decisions]


def test_a_request_is_pending_until_its_answer_is_acknowledged() -> None:
    """It needs no file for that; an acknowledgement of an earlier one, or of another thread, does not end it."""
    decisions = PendingCommitRecords()
    decisions.add(requested(5), 5000)
    assert decisions.applied_needs() == {}
    assert (len(decisions), decisions.unsettled_count) == (1, 0)
    decisions.acknowledge(b"a thread", 4)
    decisions.acknowledge(b"another!", 9)
    assert decisions.first_position(9000) == 5000
    decisions.acknowledge(b"a thread", 5)
    assert counts(decisions) == []


def test_the_next_request_of_the_thread_ends_the_one_before() -> None:
    """No other one: threads know nothing of each other."""
    decisions = PendingCommitRecords()
    decisions.add(requested(1), 5000)
    decisions.add(requested(1, b"another!"), 6000)
    decisions.add(requested(3), 7000)
    assert counts(decisions) == [1, 3]
    assert decisions.first_position(9000) == 6000


def test_an_earlier_request_that_is_found_behind_a_later_one_does_not_wait() -> None:
    """In an adopted file the records that were carried into it are behind its own."""
    decisions = PendingCommitRecords()
    decisions.add(requested(3), 0)
    decisions.add(requested(2), 0)
    assert counts(decisions) == [3]
    decisions.acknowledge(b"a thread", 3)
    assert counts(decisions) == []


def test_the_same_record_twice_is_one() -> None:
    """Adding it once more says where it is now."""
    decisions = PendingCommitRecords()
    decisions.add(requested(3), 5000)
    decisions.add(requested(3), 6000)
    assert counts(decisions) == [3]
    assert decisions.first_position(9000) == 6000


def test_a_record_with_consequences_waits_for_both_in_either_order() -> None:
    """For its files and for its session."""
    decisions, needs = PendingCommitRecords(), Needs(frozenset({OwnFile.GROUP}))
    first, second = requested(1, waiting_file="prepared/r.batch"), requested(1, b"another!", waiting_file="prepared/s")
    for each in (first, second):
        decisions.add(each, 5000)
        decisions.applied(each.nonce, needs)
    assert decisions.unsettled_count == 2
    decisions.acknowledge(b"a thread", 1)
    assert len(decisions) == 2
    end(decisions, frozenset({OwnFile.GROUP}))
    assert list(decisions) == [second]
    assert decisions.unsettled_count == 0
    assert decisions.applied_needs() == {}
    decisions.acknowledge(b"another!", 1)
    assert len(decisions) == 0


def test_records_of_sessions_that_do_not_live_wait_for_nobody() -> None:
    """What they order is still to be done again; each session is looked for once."""
    decisions, asked = PendingCommitRecords(), []

    def is_alive(session: int) -> bool:
        asked.append(session)
        return session == 7

    decisions.add(requested(1, b"thread 1"), 5000)
    decisions.add(requested(2, b"thread 2", session=8), 5100)
    decisions.add(requested(3, b"thread 3", session=8), 5200)
    decisions.add(requested(4, b"thread 4", session=9, waiting_file="prepared/r.batch"), 5300)
    decisions.keep_sessions(is_alive)
    assert counts(decisions) == [1, 4]
    assert sorted(asked) == [7, 8, 9]
    end(decisions)
    assert counts(decisions) == [1, 4], "what it orders has not been done"
    decisions.applied(requested(4, b"thread 4").nonce, Needs(NO_FILES))
    end(decisions)
    assert counts(decisions) == [1]


def test_a_request_that_ends_while_sessions_are_looked_for_has_ended() -> None:
    """Looking takes time, and other threads go on."""
    decisions = PendingCommitRecords()
    decisions.add(requested(1), 5000)

    def is_alive(session: int) -> bool:
        decisions.add(requested(2), 6000)
        return False

    decisions.keep_sessions(is_alive)
    assert counts(decisions) == [2]


def test_a_request_that_could_not_be_written_is_forgotten() -> None:
    """Its thread sends it again, or goes on."""
    decisions = PendingCommitRecords()
    decisions.add(requested(1), 5000)
    decisions.remove(requested(1).nonce)
    decisions.acknowledge(b"a thread", 1)
    assert counts(decisions) == []

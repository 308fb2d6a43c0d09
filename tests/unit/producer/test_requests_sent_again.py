"""Requests that come to the write side again: to the same owner, to the next one, and to the one after that."""

from __future__ import annotations

import pytest

from holdfast import FlushPolicy, UsageError
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.producer.write_side import WriteSide
from holdfast.queue.transactions.branch import Branch
from holdfast.queue.transactions.transaction import Transaction
from support.builders.handles import end_commit_records
from support.builders.sessions import FILE_BYTES, SESSION, THREAD, owner, put, requested
from support.storages.simulated_storage import SimulatedStorage

NEVER = FlushPolicy.never()
OTHER_THREAD = b"a thread"[::-1]


def pending(handle: QueueHandle) -> list[CommitRecord]:
    """Return the pending commit records."""
    return list(handle.require_write_side().pending_commit_records)


# -- Puts --------------------------------------------------------------------------------------------------------------


def test_a_put_that_comes_twice_is_put_once_and_has_the_same_offsets(storage: SimulatedStorage) -> None:
    """However much others put in between."""
    with owner(storage) as handle:
        side = handle.require_write_side()
        offsets = put(side, requested(1, messages=3))
        put(side, requested(1, thread=OTHER_THREAD))
        assert put(side, requested(1, messages=3)) == offsets == range(3)
        assert side.answer_to(requested(1).nonce) == offsets
        assert side.answer_to(requested(2).nonce) is None
        assert handle.next_offset() == 4


def test_a_put_that_wrote_nothing_is_done_anew(storage: SimulatedStorage) -> None:
    """The queue was full, and is not any more; or its id was remembered, and still is."""
    with owner(storage, maxsize=2) as handle:
        side = handle.require_write_side()
        assert put(side, requested(1), dedup_id="id") == range(1)
        assert put(side, requested(2), dedup_id="id") == range(1)
        assert put(side, requested(2), dedup_id="id") == range(1)
        put(side, requested(3))
        assert side.append_requested([b"x"], None, requested(4), "") is None
        assert side.append_requested([b"x"], None, requested(4), "") is None
        handle.require_read_side().get_many(1, timeout=0)
        assert put(side, requested(4)) == range(2, 3)


def test_space_and_ids_do_not_count_for_a_put_that_is_in_the_log(storage: SimulatedStorage) -> None:
    """It was put, with its id, into the last space."""
    with owner(storage, maxsize=1) as handle:
        side = handle.require_write_side()
        assert put(side, requested(1), dedup_id="id") == range(1)
        assert side.append_requested([b"x"], None, requested(1), "id") == (range(1), False)
        assert side.append_requested([b"x"], None, requested(1), "") == (range(1), False)


def test_an_old_copy_of_an_answered_put_is_refused(storage: SimulatedStorage) -> None:
    """Whether the next request says that the answer has arrived, or the session does; later ones are put."""
    with owner(storage) as handle:
        side = handle.require_write_side()
        put(side, requested(1))
        put(side, requested(2))
        with pytest.raises(UsageError, match=f"request 1 of thread {THREAD.hex()} was answered before"):
            put(side, requested(1))
        side.acknowledge_answers(THREAD, 2)
        assert pending(handle) == []
        side.acknowledge_answers(THREAD, 1)  # arrives late
        with pytest.raises(UsageError):
            put(side, requested(2))
        assert put(side, requested(3)) == range(2, 3)


def test_a_put_that_wrote_nothing_is_refused_once_its_answer_has_arrived(storage: SimulatedStorage) -> None:
    """Its caller was told that the queue is full."""
    with owner(storage, maxsize=1) as handle:
        side = handle.require_write_side()
        put(side, requested(1, thread=OTHER_THREAD))
        assert side.append_requested([b"x"], None, requested(1), "") is None
        side.acknowledge_answers(THREAD, 1)
        handle.require_read_side().get_many(1, timeout=0)
        with pytest.raises(UsageError):
            put(side, requested(1))


def test_requests_without_a_session_are_never_taken_for_old_copies(storage: SimulatedStorage) -> None:
    """Their nonces are random, or their process cannot be found alive: nobody sends them again."""
    with owner(storage) as handle:
        side = handle.require_write_side()
        put(side, requested(5, session=0))
        put(side, requested(4, session=0))
        side.acknowledge_answers(THREAD, 9)
        put(side, requested(3, session=0))
        assert handle.next_offset() == 3


def test_nothing_is_kept_for_a_session_that_has_ended(storage: SimulatedStorage) -> None:
    """Neither its records nor its counts; others keep theirs."""
    with owner(storage) as handle:
        side = handle.require_write_side()
        put(side, requested(1))
        put(side, requested(1, thread=OTHER_THREAD, session=SESSION + 1))
        side.end_session(SESSION)
        side.end_session(SESSION)
        assert [each.session for each in pending(handle)] == [SESSION + 1]
        assert list(side._answered._counts) == [OTHER_THREAD]


# -- The next owner ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", [FlushPolicy.every_commit(), NEVER])
def test_the_next_owner_answers_a_put_of_a_living_session(storage: SimulatedStorage, flush: FlushPolicy) -> None:
    """Also the one after that, whether the owner was killed or closed the queue; acknowledged, it is gone."""
    with owner(storage, flush=flush) as handle:
        side = handle.require_write_side()
        done = side.append_requested([b"x"], None, requested(1), "")
        killed = storage.crash_keeping_all()
        assert done == (range(1), True)
    for left in (killed, storage):
        with owner(left, SESSION, flush=flush) as handle:
            assert put(handle.require_write_side(), requested(1)) == range(1)
            killed_again = left.crash_keeping_all()
        with owner(killed_again, SESSION, flush=flush) as handle:
            side = handle.require_write_side()
            assert put(side, requested(1)) == range(1)
            side.acknowledge_answers(THREAD, 1)
            assert pending(handle) == []
            assert handle.next_offset() == 1


def test_an_old_copy_is_refused_by_the_owner_that_has_recovered_the_record(storage: SimulatedStorage) -> None:
    """It came to this owner twice, and the answer to one of them has arrived."""
    with owner(storage) as handle:
        put(handle.require_write_side(), requested(1))
    with owner(storage, SESSION) as handle:
        side = handle.require_write_side()
        put(side, requested(1))
        side.acknowledge_answers(THREAD, 1)
        with pytest.raises(UsageError):
            put(side, requested(1))


def test_a_copy_from_before_what_the_next_owner_has_recovered_is_refused(storage: SimulatedStorage) -> None:
    """Its thread had the answer, else it would not have sent the later one."""
    with owner(storage) as handle:
        put(handle.require_write_side(), requested(1))
        put(handle.require_write_side(), requested(2))
    with owner(storage, SESSION) as handle:
        with pytest.raises(UsageError):
            put(handle.require_write_side(), requested(1))
        assert put(handle.require_write_side(), requested(2)) == range(1, 2)


def test_the_next_owner_keeps_nothing_for_a_dead_session(storage: SimulatedStorage) -> None:
    """Only the last put of each thread of the living ones."""
    with owner(storage) as handle:
        side = handle.require_write_side()
        for count in range(1, 4):
            put(side, requested(count))
            put(side, requested(count, thread=OTHER_THREAD, session=SESSION + 1))
        killed = storage.crash_keeping_all()
    with owner(killed, SESSION) as handle:
        assert [each.nonce for each in pending(handle)] == [requested(3).nonce]
    with owner(killed) as handle:
        assert pending(handle) == []


def test_a_record_is_carried_over_rolls_until_its_answer_has_arrived(storage: SimulatedStorage) -> None:
    """One for each thread, whatever it has put."""
    with owner(storage) as handle:
        side = handle.require_write_side()
        first = put(side, requested(1))
        for count in range(1, 11):
            put(side, requested(count, thread=OTHER_THREAD), bytes(5000))
        assert len(handle.files.names()) > 2
        assert len(pending(handle)) == 2
        killed = storage.crash_keeping_all()
    with owner(killed, SESSION) as handle:
        side = handle.require_write_side()
        assert put(side, requested(1)) == first
        assert put(side, requested(10, thread=OTHER_THREAD)) == range(10, 11)


def test_records_that_only_wait_for_answers_do_not_make_the_owner_sync(storage: SimulatedStorage) -> None:
    """There may be as many as there are threads."""
    with owner(storage, flush=NEVER) as handle:
        side = handle.require_write_side()
        for number in range(300):
            put(side, requested(1, thread=b"%08d" % number))
        count = storage.mutation_count
        end_commit_records(side)
        assert storage.mutation_count == count
        assert len(pending(handle)) == 300


# -- Durability --------------------------------------------------------------------------------------------------------


def synced(side: WriteSide) -> int:
    """Return the offset behind the last message that is on the disk."""
    return side._writer.synced[2]


def test_a_request_may_ask_for_more_than_the_policy(storage: SimulatedStorage) -> None:
    """The first time, and when it comes again."""
    with owner(storage, flush=NEVER) as handle:
        side = handle.require_write_side()
        put(side, requested(1))
        assert synced(side) == 0
        side.confirm(1)
        assert synced(side) == 0
        side.confirm(1, synced=True)
        assert synced(side) == 1
        side.append_requested([b"x"], None, requested(2), "")
        side.settle(2, 1, synced=True)
        assert synced(side) == 2


def test_an_answer_that_is_looked_up_is_on_the_disk(storage: SimulatedStorage) -> None:
    """Under any policy: it is asked for after a crash only."""
    with owner(storage, flush=NEVER) as handle:
        side = handle.require_write_side()
        put(side, requested(1))
        assert side.answer_to(requested(1).nonce) == range(1)
        assert synced(side) == 1


# -- Transactions ------------------------------------------------------------------------------------------------------


def branch_of(handle: QueueHandle, count: int, *payloads: bytes, acks: int = 0) -> Branch:
    """Return what a client's transaction does, ready to commit."""
    nonce = requested(count).nonce
    holder = Transaction.__new__(Transaction)
    branch = Branch(handle, holder, nonce, 2**20, session=SESSION)
    for payload in payloads:
        branch.put(payload, None)
    if acks:
        branch.ack([branch.receive(0) for _ in range(acks)])
    return branch


@pytest.mark.parametrize(("puts", "acks"), [(2, 0), (0, 1), (1, 1), (0, 0)])
def test_the_commit_of_a_session_has_a_commit_record_whatever_it_does(
    storage: SimulatedStorage, puts: int, acks: int
) -> None:
    """The next owner finds it by its nonce; what it has done is not done again."""
    with owner(storage) as handle:
        put(handle.require_write_side(), requested(1, thread=OTHER_THREAD))
        offsets = branch_of(handle, 1, *[b"y"] * puts, acks=acks).commit("t", 0)
        assert offsets == range(1, 1 + puts)
        killed = storage.crash_dropping_unsynced()
    with owner(killed, SESSION) as handle:
        side = handle.require_write_side()
        assert side.answer_to(requested(1).nonce) == offsets
        with pytest.raises(UsageError, match="is in the log already"):
            branch_of(handle, 1, b"y").commit("t", 0)
        side.acknowledge_answers(THREAD, 1)
        with pytest.raises(UsageError, match="was answered before"):
            branch_of(handle, 1, b"y").commit("t", 0)
        assert side.answer_to(requested(1).nonce) is None
        assert handle.depth() == 1 + puts - acks


def test_a_large_commit_of_a_session_becomes_a_data_file_once(storage: SimulatedStorage) -> None:
    """It is found there by the next owner, and by the one after the next roll."""
    with owner(storage) as handle:
        put(handle.require_write_side(), requested(1, thread=OTHER_THREAD))
        branch = branch_of(handle, 2, b"y", b"z")
        branch.put_stream([bytes(FILE_BYTES // 4)], None, None)
        offsets = branch.commit("t", 0)
        killed = storage.crash_keeping_all()
    with owner(killed, SESSION) as handle:
        side = handle.require_write_side()
        assert side.answer_to(requested(2).nonce) == offsets == range(1, 4)
        assert side.answer_to(requested(1, thread=OTHER_THREAD).nonce) == range(1)
        branch = branch_of(handle, 2, b"y", b"z")
        branch.put_stream([bytes(FILE_BYTES // 4)], None, None)
        with pytest.raises(UsageError, match="is in the log already"):
            branch.commit("t", 0)
        branch.discard()
        put(side, requested(2, thread=OTHER_THREAD))
        assert side.answer_to(requested(2).nonce) == offsets

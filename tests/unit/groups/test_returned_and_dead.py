"""Messages given back and dead letters in a group's progress: entries, checkpoints, and doing it twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persistence.format.constants import (
    DEAD_REASONS,
    ENTRY_DELIVERED,
    ENTRY_DONE,
    ENTRY_FLAG_CHECKPOINT,
    ENTRY_TAKEN_AWAY,
)
from holdfast.persistence.format.dead_letter import DeadMark, reason_of
from holdfast.persistence.groups.position_entry import (
    NO_HINT,
    Change,
    dead_change,
    decode_entry,
    encode_entry,
    returned_change,
)
from holdfast.persistence.groups.position_run import apply_run, checkpoint
from holdfast.persistence.groups.progress import GroupProgress

NS_MAX = 2**63 - 1
OFFSETS = st.integers(0, 12)
COUNTS = st.integers(0, 2**16 - 1)
TIMES = st.integers(0, NS_MAX)
MARKS = st.builds(DeadMark, st.sampled_from(DEAD_REASONS), COUNTS, TIMES, TIMES)
TIMES_OUT = st.integers(1, 3)
NUMBERS = st.sampled_from([0, 2**32 + 1, 2**32 + 2, 2**64 - 1])
CHANGES = st.one_of(
    st.builds(returned_change, OFFSETS, st.integers(0, 3), st.sampled_from([0, 5, NS_MAX]), st.integers(0, 2)),
    st.builds(returned_change, OFFSETS, st.just(1), st.just(0), st.just(0), st.integers(1, 3), NUMBERS),
    st.builds(returned_change, OFFSETS, st.just(1), st.just(7), st.just(1), st.integers(1, 3)),
    st.builds(dead_change, OFFSETS, MARKS, NUMBERS),
    st.builds(Change, st.just(ENTRY_DONE), OFFSETS, st.integers(1, 3), st.just((1, 600))),
    st.builds(
        Change, st.just(ENTRY_DELIVERED), OFFSETS, st.integers(1, 3), st.just(NO_HINT), st.integers(1, 3), NUMBERS
    ),
)


def written(change: Change) -> Change:
    """Return what is read of an entry that was written."""
    flags = ENTRY_FLAG_CHECKPOINT if change.kind == ENTRY_TAKEN_AWAY else 0
    data = encode_entry(9, change, number=3, flags=flags, timestamp_ns=1, synced_mark=0, generation=1)
    entry = decode_entry(data, 0, 9, 3)
    assert entry is not None
    return entry.change


def told(progress: GroupProgress) -> dict[str, Any]:
    """Return all that a progress says."""
    return {
        "floor": progress.floor,
        "finished": progress.finished_count,
        "runs": list(progress.runs()),
        "deliveries": progress.deliveries,
        "returned": progress.returned,
        "dead": list(progress.dead.items()),  # their order counts
        "numbers": progress.numbers,
        "taken_away": progress.taken_away,
    }


def applied(changes: Sequence[Change]) -> GroupProgress:
    """Return what changes make of a group at its start."""
    progress = GroupProgress()
    for change in changes:
        assert not apply_run([change], progress)
    return progress


@given(OFFSETS, COUNTS, TIMES, st.integers(0, 2**40), st.integers(1, 2**40))
def test_an_entry_that_gives_back_says_so_again(offset: int, count: int, until: int, first: int, run: int) -> None:
    """Up to the end of time."""
    change = returned_change(offset, count, until, first, run)
    assert written(change) == change


@given(OFFSETS, MARKS)
def test_an_entry_of_a_dead_letter_says_all_of_its_mark(offset: int, mark: DeadMark) -> None:
    """Reason, count and both times."""
    progress = applied([written(dead_change(offset, mark))])
    assert progress.dead == {offset: mark}


def test_a_reason_of_a_newer_version_is_read_as_none() -> None:
    """The message is a dead letter all the same, and its mark can be written again."""
    change = dead_change(4, DeadMark("exception", 1, 2, 3))
    progress = applied([Change(change.kind, 4, change.count, (change.hint[0], 200), 1)])
    assert progress.dead[4].reason == ""
    assert applied(checkpoint(progress)).dead == progress.dead


@pytest.mark.parametrize("reason", DEAD_REASONS)
def test_reasons_keep_their_numbers(reason: str) -> None:
    """They stand in files."""
    assert reason_of(DeadMark(reason, 1, 1, 1).reason_number) == reason
    assert DEAD_REASONS == ("", "exception", "lease_expired", "rejected", "expired", "undecodable", "max_deliveries")


@given(st.lists(CHANGES, max_size=30))
def test_a_checkpoint_says_what_was_given_back_and_what_is_dead(changes: list[Change]) -> None:
    """As entries on the disk, and also where one of its two floors is missing."""
    progress = applied(changes)
    entries = [written(change) for change in checkpoint(progress)]
    for kept in (entries, entries[1:], entries[:-1]):
        again = GroupProgress()
        assert not apply_run(kept, again)
        assert told(again) == told(progress)


@given(st.lists(CHANGES, max_size=20), st.lists(CHANGES, min_size=1, max_size=5))
def test_a_run_that_is_applied_twice_changes_nothing(before: list[Change], run: list[Change]) -> None:
    """Whatever went before; so a reader may go back to the first entry of a run."""
    once, twice = applied(before), applied(before)
    apply_run(run, once)
    apply_run(run, twice)
    apply_run(run, twice)
    assert told(twice) == told(once)


@given(st.lists(CHANGES, max_size=30))
def test_a_message_is_finished_or_dead_or_given_back_and_counted_once(changes: list[Change]) -> None:
    """Nothing that is finished is known any further, and what is dead does not wait for a time."""
    progress = applied(changes)
    for offset in {*progress.dead, *(offset for offset in progress.returned if offset < progress.finished_end)}:
        assert not progress.is_finished(offset) or offset not in progress.dead
        assert offset not in progress.dead or offset not in progress.returned
    assert all(progress.is_out(offset) for offset in progress.numbers)
    assert all(progress.taken_away.values())
    end = 30
    live = [offset for offset in range(end) if not progress.is_finished(offset) and offset not in progress.dead]
    assert progress.live_count(end) == len(live)


def states() -> Iterator[GroupProgress]:
    """Yield a group whose message 5 has been through everything."""
    for changes in (
        [],
        [Change(ENTRY_DELIVERED, 5, 1, NO_HINT, 4)],
        [Change(ENTRY_DELIVERED, 5, 1, NO_HINT, 4, 2**32 + 1)],
        [returned_change(5, 4, 99, 7)],
        [dead_change(5, DeadMark("rejected", 4, 5, 6))],
    ):
        yield applied(changes)


def test_finishing_forgets_whatever_was_known() -> None:
    """Memory follows what is unfinished."""
    for progress in states():
        progress.finish(5, 1)
        assert (progress.deliveries, progress.returned, progress.dead, progress.numbers) == ({}, {}, {}, {})


def test_giving_back_uncounted_forgets_the_count_and_the_death() -> None:
    """As if it never had been handed out."""
    for progress in states():
        progress.give_back(5, 1, 0, 0, 0)
        assert (progress.deliveries, progress.returned, progress.dead, progress.numbers) == ({}, {}, {}, {})


def test_a_dead_letter_that_dies_again_is_the_last_one() -> None:
    """Order is that of death."""
    progress = applied([dead_change(offset, DeadMark("rejected", 1, 1, offset)) for offset in (1, 2, 3)])
    progress.bury(1, DeadMark("rejected", 1, 1, 9))
    assert list(progress.dead) == [2, 3, 1]


def test_what_is_finished_cannot_die() -> None:
    """An acknowledged message never comes again, as a dead letter neither."""
    progress = GroupProgress()
    progress.finish(0, 2)
    progress.bury(1, DeadMark("rejected", 1, 1, 1))
    assert progress.dead == {}


def test_the_end_of_what_is_known_lies_behind_dead_letters_and_deliveries() -> None:
    """No other message may ever have their offsets."""
    progress = applied([dead_change(7, DeadMark("rejected", 1, 1, 1)), Change(ENTRY_DELIVERED, 9, 2, NO_HINT, 1)])
    assert (progress.finished_end, progress.seen_end, progress.touched_end) == (0, 8, 11)

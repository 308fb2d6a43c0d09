"""Progress of a group against a naive set of finished offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.persistence.groups.position_entry import NO_HINT
from holdfast.persistence.groups.progress import GroupProgress

END = 40
RUNS = st.lists(st.tuples(st.integers(0, END), st.integers(0, 8)), max_size=30)


@given(st.integers(0, 10), RUNS)
def test_any_runs_in_any_order_add_up_as_a_set_does(floor: int, runs: list[tuple[int, int]]) -> None:
    """Overlapping, touching, repeated, empty and below the floor."""
    progress, finished = GroupProgress(floor), set(range(floor))
    for number, (first, count) in enumerate(runs):
        added = set(range(first, first + count)) - finished
        assert progress.finish(first, count, (1, number)) == len(added)
        finished |= added
    missing = [offset for offset in range(END + 20) if offset not in finished]
    assert progress.floor == missing[0]
    assert progress.finished_count == len(finished)
    assert progress.finished_end == max(finished, default=-1) + 1 or not finished
    assert [offset for offset in range(END + 20) if not progress.is_finished(offset)] == missing
    for first in range(0, END, 3):
        for end in range(0, END, 5):
            inside = [offset for offset in missing if first <= offset < end]
            assert progress.unfinished_in(first, end) == len(inside)
            assert [offset for run in progress.unfinished_runs(first, end) for offset in run] == inside


@given(RUNS)
def test_runs_above_the_floor_are_apart_and_ascending(runs: list[tuple[int, int]]) -> None:
    """What touches is one run, so memory follows the holes."""
    progress = GroupProgress()
    for first, count in runs:
        progress.finish(first, count)
    before = progress.floor
    for first, end, _ in progress.runs():
        assert before < first < end
        before = end


def test_the_hint_is_that_of_what_ends_at_the_floor() -> None:
    """Reading continues behind the last record in front of the floor."""
    progress = GroupProgress()
    assert progress.hint == NO_HINT
    progress.finish(0, 2, (1, 5000))
    assert (progress.floor, progress.hint) == (2, (1, 5000))
    progress.finish(3, 2, (1, 7000))
    assert progress.hint == (1, 5000)
    progress.finish(2, 1, (1, 6000))
    assert (progress.floor, progress.hint) == (5, (1, 7000))


def test_finished_messages_have_no_delivery_count() -> None:
    """Memory follows what is in flight."""
    progress = GroupProgress()
    progress.deliver(0, 3, 1)
    progress.deliver(1, 1, 2)
    assert progress.deliveries == {0: 1, 1: 2, 2: 1}
    progress.finish(0, 2)
    assert progress.deliveries == {2: 1}

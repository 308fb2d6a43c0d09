"""Runs of position entries: the checkpoint, and runs that have lost an entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.persistence.format.constants import ENTRY_DONE
from holdfast.persistence.groups.position_entry import Change
from holdfast.persistence.groups.position_run import UNREADABLE, apply_run, checkpoint
from holdfast.persistence.groups.progress import GroupProgress


@given(
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), max_size=20),
    st.dictionaries(st.integers(0, 60), st.integers(1, 3), max_size=20),
    st.integers(0, 5),
)
def test_a_checkpoint_says_all_of_the_progress(
    floor: int, runs: list[tuple[int, int]], deliveries: dict[int, int], lost: int
) -> None:
    """Applied to a group at its start it gives the same, also where one of its two floors is missing."""
    progress = GroupProgress(floor)
    for first, count in runs:
        progress.finish(first, count, (1, first + count))
    for offset, count in deliveries.items():
        if not progress.is_finished(offset):
            progress.deliver(offset, 1, count)
    progress.lost_count = lost
    changes = checkpoint(progress)
    for kept in (changes, changes[1:], changes[:-1]):
        again = GroupProgress()
        assert not apply_run(kept, again)
        assert (again.floor, again.finished_count, again.lost_count) == (
            progress.floor,
            progress.finished_count,
            progress.lost_count,
        )
        assert list(again.runs()) == list(progress.runs())
        assert again.deliveries == progress.deliveries
        assert again.hint == progress.hint


def test_an_unreadable_entry_says_nothing() -> None:
    """The others of its run count."""
    progress = GroupProgress()
    first, last = Change(ENTRY_DONE, 0, 1, (1, 5000)), Change(ENTRY_DONE, 1, 1, (1, 6000))
    assert not apply_run([first, UNREADABLE, last], progress)
    assert progress.floor == 2

"""Which data files are outside of a bound, and what a group that is too far behind skips."""

from __future__ import annotations

import pytest

from holdfast.persistence.filesystem.layout import DataFileName
from holdfast.persistence.format.constants import ENTRY_DONE, ENTRY_SKIPPED
from holdfast.persistence.format.dead_letter import DeadMark
from holdfast.persistence.groups.position_entry import NO_HINT, Change, done_changes
from holdfast.persistence.groups.position_run import apply_run, checkpoint
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.retention import NOTHING, Bounds, Distances, skipped_changes
from holdfast.persistence.groups.vote import Vote
from support.builders.clocks import NS_PER_SECOND
from support.builders.log_parts import LogParts

HOUR = 3600
FAR = 2**62


def log_of_hours(parts: LogParts, file_count: int) -> list[DataFileName]:
    """Make a data file each hour, of three messages each, and return their names; the last one has one message."""
    writer = parts.writer()
    for number in range(file_count):
        for _ in range(3 if number < file_count - 1 else 1):
            writer.append(b"x" * 100)
        if number < file_count - 1:
            writer.roll(is_full=False)
            parts.clock.advance(HOUR)
    writer.sync()
    writer.abandon()
    return parts.files().names()


def outside(parts: LogParts, bounds: Bounds, now_ns: int | None = None) -> list[DataFileName]:
    """Return the files outside of some bounds."""
    distances = Distances(parts.directory, parts.files(), parts.clock.time_ns() if now_ns is None else now_ns)
    return distances.outside(bounds)


def hours(count: float) -> Bounds:
    """Return a bound of that age."""
    return Bounds(age_ns=round(count * HOUR * NS_PER_SECOND))


def test_the_last_file_is_never_outside(parts: LogParts) -> None:
    """Nothing is behind it; and an empty log has no file at all."""
    assert outside(parts, NOTHING) == []
    names = log_of_hours(parts, 3)
    assert outside(parts, NOTHING) == names[:2]
    assert outside(parts, Bounds()) == []


def test_a_file_is_as_old_as_its_newest_message(parts: LogParts) -> None:
    """A file is inside as long as its newest message is as old as the bound, and not older."""
    names = log_of_hours(parts, 5)
    assert outside(parts, hours(4)) == []
    assert outside(parts, hours(3.9)) == names[:1]
    assert outside(parts, hours(1)) == names[:3]
    assert outside(parts, hours(0)) == names[:4]


def test_a_clock_that_jumps_forward_makes_nothing_old(parts: LogParts) -> None:
    """Time is that of the newest message then; a clock that was set back makes everything younger."""
    names = log_of_hours(parts, 3)
    assert outside(parts, hours(1), FAR) == names[:1]
    assert outside(parts, hours(1), 1) == []


def test_without_a_mark_the_last_file_tells_the_time_at_which_it_was_begun(parts: LogParts) -> None:
    """The newest message that it names is older then: files are younger, and stay longer."""
    names = log_of_hours(parts, 4)
    parts.storage.remove(parts.directory.write_mark)
    assert outside(parts, hours(1)) == names[:1]
    assert outside(parts, Bounds(message_count=1)) == names[:2]
    assert outside(parts, Bounds(message_count=4)) == names[:1]


def test_a_file_without_a_seal_is_as_old_as_the_one_behind_it(parts: LogParts) -> None:
    """That one is younger: nothing goes too early. The one in front of the last is as young as the log."""
    names = log_of_hours(parts, 4)
    for name in (names[1], names[2]):
        with parts.storage.open(parts.directory.data_file(name)) as file:
            file.write_at((b"\0" * 8,), file.size() - 8)
    assert outside(parts, hours(2)) == names[:1]
    assert outside(parts, hours(0)) == names[:1]


def test_damage_of_the_last_header_makes_nothing_old(parts: LogParts) -> None:
    """Then the mark alone tells the newest message; without both there is no time."""
    names = log_of_hours(parts, 3)
    with parts.storage.open(parts.directory.data_file(names[-1])) as file:
        file.write_at((b"\0" * 4608,), 0)
    assert outside(parts, hours(1)) == names[:1]
    parts.storage.remove(parts.directory.write_mark)
    assert outside(parts, hours(0)) == []


def test_a_file_is_inside_while_fewer_bytes_are_behind_it(parts: LogParts) -> None:
    """Of the last file what is written counts, not what is reserved; without a mark none of it."""
    names = log_of_hours(parts, 4)
    files = parts.files()
    sizes = [files.size_of(name) for name in names]
    written = 4608 + 132
    assert outside(parts, Bounds(size_bytes=written + 1)) == names[:2]
    assert outside(parts, Bounds(size_bytes=written)) == names[:3]
    assert outside(parts, Bounds(size_bytes=written + sizes[2] + sizes[1])) == names[:1]
    assert outside(parts, Bounds(size_bytes=10**9)) == []
    parts.storage.remove(parts.directory.write_mark)
    assert outside(parts, Bounds(size_bytes=1)) == names[:2]


def test_a_file_is_inside_while_fewer_messages_are_behind_it(parts: LogParts) -> None:
    """Those of the last file are counted."""
    names = log_of_hours(parts, 4)
    assert outside(parts, Bounds(message_count=1)) == names[:3]
    assert outside(parts, Bounds(message_count=2)) == names[:2]
    assert outside(parts, Bounds(message_count=4)) == names[:2]
    assert outside(parts, Bounds(message_count=8)) == []


def test_the_narrowest_bound_counts(parts: LogParts) -> None:
    """A file is kept while it is inside every bound that is set."""
    names = log_of_hours(parts, 5)
    assert outside(parts, Bounds(hours(3).age_ns, 10**9, 2)) == names[:3]
    assert outside(parts, Bounds(hours(1).age_ns, 10**9, 100)) == names[:3]


def test_groups_are_moved_to_the_first_file_inside(parts: LogParts) -> None:
    """The end of those outside is where that one begins."""
    log_of_hours(parts, 3)
    distances = Distances(parts.directory, parts.files(), parts.clock.time_ns())
    assert distances.end_of(distances.outside(NOTHING)) == 6
    assert distances.end_of([]) == 0


# -- Skipping --------------------------------------------------------------------------------------------------------


def skipped(progress: GroupProgress, end: int, *in_use: int) -> list[tuple[int, int, int]]:
    """Return first offset, count and delivery number of what is skipped, once it is applied, twice as once."""
    changes = skipped_changes(progress, end, in_use)
    assert {each.kind for each in changes} <= {ENTRY_SKIPPED}
    before = progress.skipped_count
    apply_run(changes, progress)
    count = progress.skipped_count - before
    apply_run(changes, progress)
    assert progress.skipped_count - before == count == sum(each.count for each in changes if not each.delivery_number)
    return [(each.first_offset, each.count, each.delivery_number) for each in changes]


def test_what_is_not_finished_is_skipped_and_counted() -> None:
    """Finished messages are no part of it."""
    progress = GroupProgress(2)
    progress.finish(4, 2)
    assert skipped(progress, 8) == [(2, 2, 0), (6, 2, 0)]
    assert (progress.floor, progress.skipped_count) == (8, 4)
    assert skipped(progress, 8) == []


def test_dead_letters_stay_and_so_does_what_transactions_hold() -> None:
    """Dead letters have a bound of their own; a vote waits for its outcome however long it takes."""
    progress = GroupProgress()
    progress.bury(1, DeadMark("rejected", 1, 1, 1))
    progress.hold(Vote("p", b"n" * 16, 1, None, ((3, 2, 1, 5000), (9, 4, 1, 6000))))
    assert skipped(progress, 10, 7, 20) == [(0, 1, 0), (2, 1, 0), (5, 2, 0), (8, 1, 0)]
    assert sorted(progress.dead) == [1]
    assert progress.held_offsets(20) == [3, 4, 9, 10, 11, 12]
    progress.settle(b"n" * 16, committed=False)
    assert not progress.is_finished(3)


def test_sessions_are_told_of_what_they_have_in_hand() -> None:
    """Each offset is remembered under the number of its delivery, beside the run that skips it."""
    progress = GroupProgress()
    progress.deliver(0, 2, 1, 77)
    progress.deliver(5, 1, 1, 78)
    assert skipped(progress, 4) == [(0, 4, 0), (0, 1, 77), (1, 1, 77)]
    assert progress.taken_away == {77: {0, 1}}
    assert progress.numbers == {5: 78}


def test_one_step_skips_a_bounded_number_of_runs() -> None:
    """The next step continues behind them."""
    progress = GroupProgress()
    progress.deliver(2500, 1, 1, 5)
    apply_run([Change(ENTRY_DONE, offset, 1, NO_HINT) for offset in range(1, 3000, 2)], progress)
    assert len(skipped(progress, 3000)) == 1000
    assert progress.floor == 2000
    assert len(skipped(progress, 3000)) == 501
    assert progress.floor == 3000


def test_the_count_of_skipped_messages_is_in_every_checkpoint() -> None:
    """As that of lost ones."""
    progress = GroupProgress()
    skipped(progress, 7)
    again = GroupProgress()
    apply_run(checkpoint(progress), again)
    assert (again.floor, again.skipped_count) == (7, 7)


@pytest.mark.parametrize(("offsets", "runs"), [([], []), ([3], [(3, 1)]), ([1, 2, 4, 5, 6], [(1, 2), (4, 3)])])
def test_messages_are_finished_run_by_run(offsets: list[int], runs: list[tuple[int, int]]) -> None:
    """One entry for each run."""
    assert [(each.first_offset, each.count) for each in done_changes(offsets)] == runs

"""What prepared transactions hold: a large run is kept as one, and means the same as its messages one by one."""

import pytest

from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.vote import Vote

COUNT = 300


def vote(number: int, *runs: range) -> Vote:
    """Return a vote that holds these messages."""
    return Vote(f"t{number}", bytes([number]) * 16, 0, None, tuple((run.start, len(run), 1, run.stop) for run in runs))


def small(run: range) -> list[range]:
    """Return the same messages in runs that are not large."""
    return [range(at, min(at + 10, run.stop)) for at in range(run.start, run.stop, 10)]


def seen(progress: GroupProgress) -> tuple[object, ...]:
    """Return what progress says of messages, held or not."""
    held = [offset for offset in range(COUNT) if progress.is_held(offset)]
    assert held == sorted(progress.held_offsets(1000))
    return held, progress.floor, list(progress.runs()), progress.finished_count


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_large_run_is_held_as_its_messages_would_be(is_committed: bool) -> None:
    """While it is held, when some of it is finished otherwise, and when it is settled."""
    one, many = GroupProgress(), GroupProgress()
    run, other = range(20, 220), range(230, 295)
    one.hold(vote(1, run, other))
    many.hold(vote(1, *small(run), *small(other)))
    assert seen(one) == seen(many)
    assert one.held_count == many.held_count == len(run) + len(other)
    for progress in (one, many):
        progress.finish(100, 5)
    assert seen(one) == seen(many)
    assert not one.is_held(102)
    for progress in (one, many):
        progress.settle(bytes([1]) * 16, committed=is_committed)
    assert seen(one)[:2] == seen(many)[:2] == ([], 0)
    assert one.finished_count == many.finished_count
    assert one.held_count == 0


def test_what_two_votes_hold_stays_held_until_both_are_settled() -> None:
    """As where something went wrong; a vote that is held twice counts once."""
    progress = GroupProgress()
    first, second = vote(1, range(0, 100)), vote(2, range(50, 200))
    for each in (first, second, first):
        progress.hold(each)
    progress.settle(second.nonce, committed=False)
    assert progress.held_offsets(1000) == list(range(100))
    progress.hold(second)
    progress.settle(first.nonce, committed=True)
    assert seen(progress)[:2] == (list(range(100, 200)), 100)
    progress.settle(first.nonce, committed=True)
    progress.settle(second.nonce, committed=False)
    assert progress.held_offsets(1000) == []

"""Delivery numbers in a group's progress: who has what in hand, and what was taken away from whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.persistence.format.constants import ENTRY_DELIVERED, ENTRY_LOST, ENTRY_TAKEN_AWAY
from holdfast.persistence.format.dead_letter import DeadMark
from holdfast.persistence.groups.position_entry import NO_HINT, Change, dead_change, returned_change
from holdfast.persistence.groups.position_run import apply_run, checkpoint
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.vote import Vote

TAKE, OTHER = 0xC0FFEE01_00000007, 0xC0FFEE01_00000008
MARK = DeadMark("rejected", 1, 5, 6)


def taken() -> GroupProgress:
    """Return a group that has handed out messages 5 to 7 in one take of a session, and 8 without a number."""
    progress = GroupProgress()
    progress.deliver(5, 3, 1, TAKE)
    progress.deliver(8, 1, 1)
    return progress


def test_all_messages_of_a_take_have_its_number() -> None:
    """One that the owner's process takes by itself has none."""
    assert taken().numbers == {5: TAKE, 6: TAKE, 7: TAKE}


@pytest.mark.parametrize(
    "settle",
    [
        lambda progress: progress.finish(6, 1),
        lambda progress: progress.finish(6, 1000) and progress.deliver(6, 1, 1, TAKE),
        lambda progress: apply_run([Change(ENTRY_LOST, 6, 1, NO_HINT)], progress),
        lambda progress: progress.give_back(6, 1, 1, 0, 0),
        lambda progress: progress.bury(6, MARK),
        lambda progress: progress.deliver(6, 1, 2),
        lambda progress: progress.hold(Vote("t", bytes(16), 1, None, ((6, 1, 1, 5000),))),
    ],
    ids=["finished", "finished in a long run", "lost", "returned", "dead", "taken without a number", "held"],
)
def test_a_message_that_is_not_in_hand_has_no_number(settle: Callable[[GroupProgress], object]) -> None:
    """It is finished, given back, a dead letter, in the hands of the owner's process, or held by a nonce."""
    progress = taken()
    settle(progress)
    assert 6 not in progress.numbers
    assert progress.numbers[5] == TAKE
    assert progress.taken_away == {}


def test_what_the_owner_takes_away_is_remembered_until_the_session_has_been_told() -> None:
    """Also of a message that became a dead letter by that; each message by itself."""
    progress = taken()
    apply_run([returned_change(5, 1, 0, 0, 1, TAKE), dead_change(6, MARK, TAKE)], progress)
    assert progress.numbers == {7: TAKE}
    assert progress.taken_away == {TAKE: {5, 6}}
    progress.forget_taken_away(TAKE, 5)
    assert progress.taken_away == {TAKE: {6}}
    for offset in (7, 6, 6):
        progress.forget_taken_away(TAKE, offset)
    assert progress.taken_away == {}


def test_a_take_that_is_sent_again_has_what_was_taken_away_from_it_before() -> None:
    """Then an acknowledgement of it is no stale one."""
    progress = taken()
    progress.give_back(5, 3, 1, 0, 0, TAKE)
    progress.deliver(6, 1, 2, TAKE)
    assert progress.numbers == {6: TAKE}
    assert progress.taken_away == {TAKE: {5, 7}}
    progress.deliver(7, 1, 2, OTHER)
    assert progress.taken_away == {TAKE: {5, 7}}


def test_a_checkpoint_joins_runs_of_one_number() -> None:
    """Messages that differ only in their takes are two runs; what was taken away is in runs too."""
    progress = taken()
    progress.deliver(9, 2, 1, OTHER)
    progress.give_back(1, 2, 1, 0, 0, TAKE)
    progress.give_back(4, 1, 1, 0, 0, TAKE)
    changes = checkpoint(progress)
    delivered = [change for change in changes if change.kind == ENTRY_DELIVERED]
    assert [(change.first_offset, change.count, change.delivery_number) for change in delivered] == [
        (1, 2, 0),
        (4, 1, 0),
        (5, 3, TAKE),
        (8, 1, 0),
        (9, 2, OTHER),
    ]
    taken_away = [Change(ENTRY_TAKEN_AWAY, 1, 2, NO_HINT, 0, TAKE), Change(ENTRY_TAKEN_AWAY, 4, 1, NO_HINT, 0, TAKE)]
    assert [change for change in changes if change.kind == ENTRY_TAKEN_AWAY] == taken_away


def test_a_message_that_failed_before_keeps_its_number_in_a_checkpoint() -> None:
    """Its entry of kind 9 in the checkpoint would take the number of the first entry of kind 3."""
    progress = taken()
    progress.give_back(6, 1, 1, 5, 5)
    progress.deliver(6, 1, 2, OTHER)
    again = GroupProgress()
    apply_run(checkpoint(progress), again)
    assert again.numbers == progress.numbers == {5: TAKE, 6: OTHER, 7: TAKE}


def test_an_entry_that_was_cut_to_nothing_takes_nothing_away() -> None:
    """As one about messages beyond the log is."""
    progress = taken()
    apply_run([Change(ENTRY_TAKEN_AWAY, 50, 0, NO_HINT, 0, TAKE)], progress)
    assert progress.taken_away == {}

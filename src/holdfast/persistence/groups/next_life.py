"""The next life of a consumer group: what it takes over from the one before when the group is moved. Pure.

Each life has an id of its own, which its position files and the commit records about it carry. So no file, no commit
record and no reservation of an earlier life counts in a later one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from holdfast.persistence.format.file_header import random_id
from holdfast.persistence.groups.group_files import GroupInfo
from holdfast.persistence.groups.progress import GroupProgress


def next_life(
    group: GroupInfo, progress: GroupProgress, start: int, retired: Iterable[range]
) -> tuple[GroupInfo, GroupProgress]:
    """Return a group as it is when it starts anew at an offset, and its progress then.

    Dead letters stay, and so does what sessions have to be told: that their deliveries were taken away. Delivery
    counts, delays and what was finished go.

    Parameters
    ----------
    group, progress
        The life before, without votes.
    start : int
        Everything before it is finished, but for dead letters.
    retired : iterable of range
        The offsets between data files, which are not there any more.
    """
    assert not progress.votes, "a vote is of its life"
    dead = sorted(progress.dead)
    life = GroupProgress(min([start, *dead]))
    for before, behind in pairwise([*(offset for offset in dead if offset < start), start]):
        life.finish(before + 1, behind - before - 1)
    for gap in retired:
        life.finish(gap.start, len(gap))
    gone = tuple(range(first, end) for first, end, _ in life.runs())
    begun = replace(group, group_id=random_id(), start_offset=life.floor, retired=gone)
    life.lost_count, life.skipped_count = progress.lost_count, progress.skipped_count
    for offset, mark in progress.dead.items():
        life.bury(offset, mark)
    for number, offsets in progress.taken_away.items():
        for offset in offsets:
            life.take_away(number, offset, 1)
    for offset, number in progress.numbers.items():
        life.take_away(number, offset, 1)
    return begun, life

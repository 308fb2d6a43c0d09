"""Runs of position entries that count together: applies them, and makes the checkpoint of all progress. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.persistence.format.constants import (
    ENTRY_DEAD,
    ENTRY_DELIVERED,
    ENTRY_DONE,
    ENTRY_FLOOR,
    ENTRY_HELD,
    ENTRY_LOST,
    ENTRY_OUTCOME,
    ENTRY_RETURNED,
    ENTRY_SKIPPED,
    ENTRY_TAKEN_AWAY,
    ENTRY_VOTE,
)
from holdfast.persistence.format.dead_letter import DeadMark, reason_of
from holdfast.persistence.groups.position_entry import NO_HINT, Change, dead_change, floor_change, returned_change
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.vote import nonce_of, read_vote, vote_changes, vote_entry_count

UNREADABLE = Change(0, 0, 0, NO_HINT)
"""Stands in a run for an entry that was on the disk and is damaged, so that nobody takes the rest for the whole."""


def apply_run(changes: Sequence[Change], progress: GroupProgress) -> Sequence[str]:
    """Apply a run of entries to ``progress``; applying it twice changes nothing.

    Returns
    -------
    sequence of str
        Incomplete votes that were dropped, in words: to be reported as damage, because their messages may be delivered
        although the transaction commits. Always empty for a run that was just written.

    Notes
    -----
    A committed outcome finishes the messages of a known vote, so a damaged ENTRY_DONE behind it costs
    nothing.
    """
    for change in changes:  # nearly always one: this is part of every acknowledgement, so it does no more than it must
        if change.kind > ENTRY_LOST:
            return _apply_votes(changes, progress)  # those before it once more
        _apply(change, progress)
    return ()


def _apply(change: Change, progress: GroupProgress) -> None:
    """Apply a single entry to ``progress``."""
    kind = change.kind
    if kind == ENTRY_DONE:
        progress.finish(change.first_offset, change.count, change.hint)
    elif kind == ENTRY_DELIVERED:
        progress.deliver(change.first_offset, change.count, change.delivery_count, change.delivery_number)
    elif kind == ENTRY_LOST:
        progress.lost_count += progress.finish(change.first_offset, change.count, change.hint)
    elif kind == ENTRY_FLOOR:
        progress.finish(progress.floor, change.first_offset - progress.floor, change.hint)
        progress.hint = change.hint if progress.floor == change.first_offset else progress.hint
        progress.lost_count = max(progress.lost_count, change.count)
        progress.skipped_count = max(progress.skipped_count, change.delivery_number)
    elif kind == ENTRY_RETURNED:
        until_ns, first_failure_s = change.hint
        run = change.first_offset, change.count
        progress.give_back(*run, change.delivery_count, until_ns, first_failure_s, change.delivery_number)
    elif kind == ENTRY_DEAD:
        last_failure_ns, reason = change.hint
        mark = DeadMark(reason_of(reason), change.delivery_count, change.count, last_failure_ns)
        progress.bury(change.first_offset, mark, change.delivery_number)
    elif kind == ENTRY_SKIPPED:
        progress.skipped_count += progress.finish(change.first_offset, change.count, change.hint)
        if change.delivery_number:
            progress.take_away(change.delivery_number, change.first_offset, change.count)
    elif kind == ENTRY_TAKEN_AWAY:
        progress.take_away(change.delivery_number, change.first_offset, change.count)


def _apply_votes(changes: Sequence[Change], progress: GroupProgress) -> list[str]:
    """Apply a run with entries of all kinds."""
    dropped: list[str] = []
    name: str | None = None  # of the incomplete vote whose entries are being skipped
    stray: list[Change] = []
    whole_end = 0
    for at, change in enumerate(changes):
        if change.kind == ENTRY_OUTCOME:
            progress.settle(nonce_of(change), committed=change.delivery_count != 0)
        elif change.kind == ENTRY_VOTE:
            if name is not None or stray:
                dropped.append(_dropped(name, stray))
                name, stray = None, []
            end = at + vote_entry_count(change)
            vote = read_vote(changes[at:end])
            if vote is None:
                name = nonce_of(change).hex()
            else:
                progress.hold(vote)
                whole_end = end
        elif change.kind != ENTRY_HELD:
            _apply(change, progress)
        elif at >= whole_end:
            stray.append(change)
    if name is not None or stray:
        dropped.append(_dropped(name, stray))
    return dropped


def _dropped(name: str | None, held: Sequence[Change]) -> str:
    """Return the text that reports an incomplete vote."""
    says = f"vote {name or 'without a name'} is incomplete and does not count: "
    says += "its messages may be delivered again, even if it commits"
    if not held:
        return says
    first, end = min(run.first_offset for run in held), max(run.first_offset + run.count for run in held)
    return f"{says} (as far as known: {sum(run.count for run in held)} messages in offsets {first}..{end - 1})"


def is_known_floor(change: Change, progress: GroupProgress) -> bool:
    """Whether an entry only says the floor again, as a clean close does: it is lost without loss."""
    counts = change.count <= progress.lost_count and change.delivery_number <= progress.skipped_count
    return change.kind == ENTRY_FLOOR and change.first_offset <= progress.floor and counts


def checkpoint(progress: GroupProgress) -> list[Change]:
    """Return the entries that express all of ``progress``; the floor is first and last, so one bad entry spares it."""
    floor = floor_change(progress.floor, progress.lost_count, progress.skipped_count, progress.hint)
    runs = [Change(ENTRY_DONE, first, end - first, hint) for first, end, hint in progress.runs()]
    numbers = progress.numbers
    again = [
        Change(ENTRY_DELIVERED, each, 1, NO_HINT, progress.deliveries[each], numbers.get(each, 0))
        for each in sorted(progress.again)
    ]
    dead = [dead_change(offset, mark) for offset, mark in progress.dead.items()]
    votes = [change for vote in progress.votes.values() for change in vote_changes(vote)]
    delivered, returned, taken_away = _delivery_runs(progress), _returned_runs(progress), _taken_away_runs(progress)
    return [floor, *runs, *delivered, *returned, *again, *dead, *taken_away, *votes, floor]


def _returned_runs(progress: GroupProgress) -> Iterator[Change]:
    deliveries, run = progress.deliveries, Change(0, 0, 0, NO_HINT)
    for offset, hint in sorted(progress.returned.items()):
        times = deliveries.get(offset, 0)
        is_next = run.count and offset == run.first_offset + run.count
        if is_next and (hint, times) == (run.hint, run.delivery_count):
            run.count += 1
            continue
        if run.count:
            yield run
        run = returned_change(offset, times, *hint)
    if run.count:
        yield run


def _delivery_runs(progress: GroupProgress) -> Iterator[Change]:
    numbers, run = progress.numbers, Change(0, 0, 0, NO_HINT)
    for offset, times in sorted(progress.deliveries.items()):
        number = numbers.get(offset, 0)
        is_next = run.count and offset == run.first_offset + run.count
        if is_next and (times, number) == (run.delivery_count, run.delivery_number):
            run.count += 1
            continue
        if run.count:
            yield run
        run = Change(ENTRY_DELIVERED, offset, 1, NO_HINT, times, number)
    if run.count:
        yield run


def _taken_away_runs(progress: GroupProgress) -> Iterator[Change]:
    for number, offsets in sorted(progress.taken_away.items()):
        run = Change(0, 0, 0, NO_HINT)
        for offset in sorted(offsets):
            if run.count and offset == run.first_offset + run.count:
                run.count += 1
                continue
            if run.count:
                yield run
            run = Change(ENTRY_TAKEN_AWAY, offset, 1, NO_HINT, 0, number)
        yield run

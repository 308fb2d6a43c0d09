"""The one oracle: what recovery shows is the model after some prefix of what was done, on each side of each queue.

No prefix is shorter than what was acknowledged as durable, none longer than what was attempted; what was done on
several sides at once is on all of them or on none; and no progress speaks of messages that are not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise, product

from holdfast import Damage, FlushPolicy, PersistentQueue
from holdfast.persistence.format.report import UNSYNCED_OR_DAMAGED
from holdfast.queue.options.put_options import as_seconds
from proof.crash_states.asked import Waiting, in_turn, takeable, unfinished
from proof.crash_states.history import History, InDoubt, Moment, Numbers, Part, Side, State
from proof.crash_states.opening import (
    ALL,
    APPLICATION,
    CLOCK,
    SLOW,
    log_of,
    once,
    open_queue,
    open_slow,
    take_apart,
    version_beside,
)
from support.builders.handles import handle_of
from support.models.model import GroupState
from support.storages.simulated_storage import SimulatedStorage

Shown = tuple[tuple[int, bytes, int], ...]
"""Offset, payload and delivery count of each message that the group would be given, by offset."""


@dataclass(frozen=True)
class GroupSeen:
    """What one group shows after recovery.

    Attributes
    ----------
    shown : Shown
        What it would be given.
    order : tuple of int
        In which order.
    dead : frozenset of int
        Its dead letters.
    exists : bool
        Whether it has begun.
    depth : int
        How many messages it has not finished, as it says.
    """

    shown: Shown = ()
    order: tuple[int, ...] = ()
    dead: frozenset[int] = frozenset()
    exists: bool = False
    depth: int = 0


@dataclass(frozen=True)
class Seen:
    """What one queue shows after recovery.

    Attributes
    ----------
    next_offset : int
        What the next message gets.
    log : tuple of (int, bytes)
        Every message that is still in the data files.
    log_end : int
        Behind the last of them, or where an empty last data file begins: what lies between was finished, and its files
        are retired. From here up to ``next_offset`` offsets were given and lost.
    there : frozenset of int
        Offsets of messages that were in the data files as the first group looked: the second one may have retired some.
    group, slow : GroupSeen
        What its groups show.
    in_doubt : InDoubt
        The ids of prepared transactions with the numbers of their puts; the messages they hold are in ``held``.
    version : int or None
        What was committed jointly last.
    damage : tuple of Damage
        What the report says is lost.
    settings : tuple of int
        The settings of the queue and of its first group that are changed.
    beside : int or None
        What the document beside the queues has decided last; of the first queue only.
    """

    next_offset: int
    log: tuple[tuple[int, bytes], ...]
    log_end: int
    there: frozenset[int]
    group: GroupSeen
    slow: GroupSeen
    in_doubt: frozenset[tuple[str, int, int]]
    version: int | None
    damage: tuple[Damage, ...]
    settings: tuple[int, int] = (0, 0)
    beside: int | None = None

    @property
    def missing(self) -> frozenset[int]:
        """Offsets of messages whose data files are not there any more: all groups have finished them."""
        return frozenset(range(self.log_end)) - {offset for offset, _ in self.log}

    @property
    def gap(self) -> range:
        """Offsets that were given to messages and are lost."""
        return range(self.log_end, self.next_offset)

    def agrees_with(self, later: Seen) -> bool:
        """Whether a further recovery shows the same, whatever the reports say.

        The files of finished messages may be back: that they were retired need not be durable yet. Or they may be gone:
        messages that the first recovery found expired are finished, and the next one retires their files at once. A
        default group that has not begun shows what is there, and the second group may have retired some of it
        meanwhile.
        """
        same = (self.next_offset, self.log_end, self.group.dead, self.group.exists, self.in_doubt)
        others = (later.next_offset, later.log_end, later.group.dead, later.group.exists)
        return (
            same == (*others, later.in_doubt)
            and self._shown_beside(later) == later._shown_beside(self)
            and (self.slow.shown, self.slow.dead, self.slow.exists)
            == (later.slow.shown, later.slow.dead, later.slow.exists)
            and (self.version, self.beside, self.settings) == (later.version, later.beside, later.settings)
            and self._needed().isdisjoint(set(self.log) - set(later.log))
        )

    def _needed(self) -> set[tuple[int, bytes]]:
        """Return the messages whose files have to stay: all if some are held in doubt, or if no group has begun."""
        groups = [each for each in (self.group, self.slow) if each.exists]
        if self.in_doubt or not groups:
            return set(self.log)
        unfinished = {offset for each in groups for offset, *_ in each.shown}.union(*(each.dead for each in groups))
        return {each for each in self.log if each[0] in unfinished}

    def _shown_beside(self, other: Seen) -> tuple[tuple[int, bytes, int], ...]:
        """Return what the first group shows; if it has not begun, only of messages that were there both times."""
        return tuple(each for each in self.group.shown if self.group.exists or each[0] in other.there)


class Recovered:
    """The queues of a disk that was left by a crash, open, and what they show."""

    def __init__(self, storage: SimulatedStorage, policy: FlushPolicy, names: Sequence[str]) -> None:
        self.storage = storage
        self.policy = policy
        self._stack = ExitStack()
        self.slow: PersistentQueue | None = None
        self.answers: dict[tuple[str, bytes], int] = {}
        try:
            self.queues = {name: self._stack.enter_context(open_queue(storage, name, policy)) for name in names}
            first = next(iter(self.queues.values()), None)
            if first is not None and SLOW in first.groups.list():
                self.slow = self._stack.enter_context(open_slow(first, policy))
            self.seen = {
                name: look(queue, self.slow if queue is first else None) for name, queue in self.queues.items()
            }
            for name in names[:1]:
                self.seen[name] = replace(self.seen[name], beside=version_beside(storage))
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """Close the queues."""
        self._stack.close()
        if self.slow is not None:
            take_apart(self.slow)
            self.slow = None
        while self.queues:
            take_apart(self.queues.popitem()[1])


def look(queue: PersistentQueue, slow: PersistentQueue | None) -> Seen:
    """Return what an open queue shows, and the open handle of its second group."""
    found = queue.prepared()
    assert not any(each.damage for each in found), f"damage where there was a crash: {found}"
    report = queue.recovery
    group = _look_at_group(queue, exists="default" in queue.groups.list())
    log = log_of(queue)
    there = frozenset(offset for offset, _ in log)
    second = GroupSeen()
    if slow is not None:
        second = _look_at_group(slow, exists=True)
        log = log_of(queue)  # again: a group that begins to read may retire what all groups have finished
    names = handle_of(queue).files.names()
    return Seen(
        handle_of(queue).next_offset(),
        tuple(log),
        max([0, *(name.first_offset for name in names[-1:]), *(offset + 1 for offset, _ in log[-1:])]),
        there,
        group,
        second,
        frozenset((each.id, each.put_count, each.ack_count) for each in found),
        queue.joint_commits.latest(APPLICATION),
        report.damage,
        (queue.settings["record_bytes_max"], int(as_seconds(queue.settings["lease_seconds"], ""))),
    )


def _look_at_group(queue: PersistentQueue, *, exists: bool) -> GroupSeen:
    assert not queue.recovery.progress_damage, f"recovery invents damage: {queue.recovery}"
    messages = queue.peek(ALL)
    gone = [each for each in queue.recovery.damage if each.offsets and "is missing" in str(each)]
    assert not gone, f"a data file has gone that the group had not finished: {gone}"
    if exists:  # a message that is held and waits for its order key counts twice, as gone
        assert queue.qsize() <= len(messages), f"{queue.qsize()} to take, {len(messages)} are there"
        assert queue.prepared() or queue.qsize() == len(messages), f"{queue.qsize()} to take, {len(messages)} are there"
    return GroupSeen(
        tuple(sorted((each.offset, once(each.payload), each.delivery_count) for each in messages)),
        tuple(each.offset for each in messages),
        frozenset(letter.offset for letter in queue.dead.list()) if exists else frozenset(),
        exists,
        queue.stats().depth,
    )


def judge(
    history: History,
    seen: Mapping[str, Seen],
    before: Moment,
    under_way: Moment,
    policy: FlushPolicy,
    *,
    killed: bool = False,
    reported: bool = False,
) -> Numbers:
    """Return the states that these queues are in; raise AssertionError where no crash may leave them so.

    ``before`` had returned, ``under_way`` was attempted. A kill loses nothing that had returned. What a recovery has
    ``reported`` that was cut off itself, the next one need not report again.
    """
    least = before.latest if killed else before.durable
    for name, each in seen.items():
        _judge_log(history, name, each, reported=reported)
        if killed or policy.syncs_every_commit:
            assert not each.gap, f"offsets {each.gap} of {name} are given and lost"
    for numbers in _candidates(history, seen, least, under_way.latest):
        if all(_agrees(history, name, each, numbers) for name, each in seen.items()):
            return numbers
    allowed = {
        f"{name} {part.value}": (least.get((name, part), 0), under_way.latest.get((name, part), 0))
        for name, part in history.states
    }
    raise AssertionError(f"{_short(seen)}\nis no state between {allowed} of\n{history.states}\ntied by {history.steps}")


def _judge_log(history: History, name: str, seen: Seen, *, reported: bool) -> None:
    payloads = history.payloads.get(name, [])
    assert seen.next_offset <= len(payloads), (
        f"next offset of {name} is {seen.next_offset}, only {len(payloads)} were put"
    )
    assert list(seen.log) == [(offset, payloads[offset]) for offset, _ in seen.log], f"not what was put into {name}"
    assert all(first < second for (first, _), (second, _) in pairwise(seen.log)), f"{name} has a message twice"
    lost = {offset for damage in seen.damage for offset in damage.offsets}
    if not reported or not lost <= set(seen.gap):
        assert lost == set(seen.gap), f"reported {sorted(lost)} of {name} as lost, but {seen.gap} is"
    assert {damage.verdict for damage in seen.damage if damage.offsets} <= {UNSYNCED_OR_DAMAGED}


def _candidates(
    history: History, seen: Mapping[str, Seen], least: Mapping[Side, int], most: Mapping[Side, int]
) -> Iterator[Numbers]:
    """Yield the combinations of states that a crash may leave, of those that show this on all sides but the progress.

    The progress of the second group hangs together with nothing else: nobody commits it with anything.
    """
    handle: dict[Side, list[int]] = {}
    for (name, part), states in history.states.items():
        if name not in seen:
            continue
        numbers = range(least.get((name, part), 0), most.get((name, part), 0) + 1)
        if part is not Part.PROGRESS:
            numbers_that_show = [
                number for number in numbers if _shows(history, name, seen[name], part, states[number])
            ]
            handle[name, part] = numbers_that_show[-1:] if part is Part.SLOW else numbers_that_show
        else:
            handle[name, part] = list(numbers)
    for chosen in product(*handle.values()):
        choice = dict(zip(handle, chosen, strict=True))
        if all(_is_whole(step.numbers, choice) for step in history.steps):
            yield choice


def _shows(history: History, name: str, seen: Seen, part: Part, state: State) -> bool:
    """Whether one side is in this state, from what can be seen of it alone."""
    if part is Part.LOG:
        return state == seen.log_end
    if part is Part.PREPARED:
        return _counts(state) == seen.in_doubt
    if part is Part.JOINT:
        return state == seen.version
    if part is Part.BESIDE:
        return state == seen.beside
    if part in (Part.SETTINGS, Part.RULES):
        return state == seen.settings[part is Part.RULES]
    # Of commits that only acknowledge nothing is seen but what they have finished
    return part is Part.COMMITS or _group_agrees(history, name, seen, seen.slow, state, frozenset(), frozenset())


def _is_whole(step: Mapping[Side, int], choice: Numbers) -> bool:
    """Whether a step is on all of its sides or on none; the progress may follow it, and goes before it nowhere."""
    others = [
        choice[side] >= number for side, number in step.items() if side[1] is not Part.PROGRESS and side in choice
    ]
    progress = [choice[side] >= number for side, number in step.items() if side[1] is Part.PROGRESS and side in choice]
    return all(others) or not (any(others) or any(progress))


def _counts(state: object) -> frozenset[tuple[str, int, int]]:
    assert isinstance(state, frozenset)
    return frozenset((key, puts, len(acks)) for key, puts, acks in state)


def _agrees(history: History, name: str, seen: Seen, numbers: Numbers) -> bool:
    """Whether a queue in these states shows this of its first group."""
    state = history.states[name, Part.PROGRESS][numbers[name, Part.PROGRESS]]
    held, finished = held_and_finished(history, name, numbers)
    slow = (name, Part.SLOW)
    others = history.states[slow][: numbers[slow] + 1] if slow in numbers else []
    if state is None and seen.missing and not any(others):
        return False  # no group has finished anything, not even one that was deleted since
    return _group_agrees(history, name, seen, seen.group, state, held, finished)


def held_and_finished(history: History, name: str, numbers: Numbers) -> tuple[frozenset[int], frozenset[int]]:
    """Return what prepared transactions hold in these states, and what steps have finished."""
    in_doubt: InDoubt = history.states[name, Part.PREPARED][numbers[name, Part.PREPARED]]  # type: ignore[assignment]
    held = frozenset(offset for _, _, acks in in_doubt for offset in acks)
    steps = history.steps_of_life(name, numbers)
    done = [step.finished.get(name, frozenset()) for step in steps if _has_happened(step.numbers, numbers)]
    return held, frozenset().union(*done)


def _group_agrees(
    history: History,
    name: str,
    seen: Seen,
    group: GroupSeen,
    state: State,
    held: frozenset[int],
    finished: frozenset[int],
) -> bool:
    """Whether a group in this state shows this; ``finished``: even if its progress does not say so yet."""
    is_filtered = isinstance(state, GroupState) and state.is_filtered
    wishes, now_ns = history.wishes_of(name, is_filtered=is_filtered), CLOCK.time_ns()
    if state is None:
        if group.exists or group.dead:
            return False
        fresh = takeable(unfinished(_FROM_THE_START, wishes, seen.log_end, now_ns), held, now_ns)
        return group.shown in {(), _as_shown(history, name, [each for each in fresh if each.offset in seen.there])}
    if not group.exists:
        return False
    assert isinstance(state, GroupState)
    if finished:
        state = replace(state, finished=state.finished | finished)
    left = unfinished(state, wishes, seen.log_end, now_ns)
    if any(each.offset in seen.missing for each in left) or seen.missing & state.dead:
        return False
    can = takeable(left, held, now_ns)
    is_right = group.shown == _as_shown(history, name, can) and group.order == tuple(in_turn(can))
    kept = {each.offset for each in left} | {each.offset for each in unfinished(state, {}, seen.log_end, now_ns)} & held
    is_right = is_right and group.depth == len(kept)  # what is over its time was dropped, unless it is held
    return is_right and group.dead == {offset for offset in state.dead if offset < seen.log_end}


_FROM_THE_START = GroupState(0, frozenset(), ())


def _as_shown(history: History, name: str, waiting: Iterable[Waiting]) -> Shown:
    payloads = history.payloads[name]
    return tuple((each.offset, payloads[each.offset], each.delivery_count) for each in waiting)


def _has_happened(step: Mapping[Side, int], numbers: Numbers) -> bool:
    return any(
        numbers[side] >= number for side, number in step.items() if side[1] is not Part.PROGRESS and side in numbers
    )


def _short(seen: Mapping[str, Seen]) -> str:
    return "\n".join(
        f"{name}: log to {each.log_end}, next {each.next_offset}, {_short_of(each.group)}, "
        f"in doubt {sorted(each.in_doubt)}, version {each.version}, beside {each.beside}, settings {each.settings}; "
        f"slow: {_short_of(each.slow)}, missing {sorted(each.missing)}"
        for name, each in seen.items()
    )


def _short_of(group: GroupSeen) -> str:
    shows = [(offset, count) for offset, _, count in group.shown] if group.exists else None
    return f"shows {shows} in order {list(group.order)}, dead {sorted(group.dead)}, depth {group.depth}"

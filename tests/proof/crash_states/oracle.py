"""The one oracle: what recovery shows is the model after some prefix of what was done, on each side of each queue.

No prefix is shorter than what was acknowledged as durable, none longer than what was attempted; what was done on
several sides at once is on all of them or on none; and no progress speaks of messages that are not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from holdfast import Damage, Empty, FlushPolicy, PersistentQueue
from holdfast.persistence.data_file_reader import QueueFileReader
from holdfast.persistence.report import UNSYNCED_OR_DAMAGED
from proof.crash_states.history import History, InDoubt, Moment, Numbers, Part, Side
from proof.crash_states.opening import CLOCK, open_queue, take_apart
from support.model import GroupState
from support.simulated_storage import SimulatedStorage

ALL = 10**6  # more messages than there ever are

Shown = tuple[tuple[int, bytes, int], ...]
"""Offset, payload and delivery count of each message that the group would be given, by offset."""


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
    shown : Shown
        What its group would be given.
    dead : frozenset of int
        Its dead letters.
    in_doubt : InDoubt
        The ids of prepared transactions with the numbers of their puts; the messages they hold are in ``held``.
    exists : bool
        Whether the group has begun.
    damage : tuple of Damage
        What the report says is lost.
    """

    next_offset: int
    log: tuple[tuple[int, bytes], ...]
    log_end: int
    shown: Shown
    dead: frozenset[int]
    in_doubt: frozenset[tuple[str, int, int]]
    exists: bool
    damage: tuple[Damage, ...]

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

        The files of finished messages may be back: that they were retired need not be durable yet.
        """
        same = (self.next_offset, self.log_end, self.shown, self.dead, self.in_doubt, self.exists)
        others = (later.next_offset, later.log_end, later.shown, later.dead, later.in_doubt, later.exists)
        return same == others and set(self.log) <= set(later.log)


class Recovered:
    """The queues of a disk that was left by a crash, open, and what they show."""

    def __init__(self, storage: SimulatedStorage, policy: FlushPolicy, names: Sequence[str]) -> None:
        self.storage = storage
        self.policy = policy
        self._stack = ExitStack()
        try:
            self.queues = {name: self._stack.enter_context(open_queue(storage, name, policy)) for name in names}
            self.seen = {name: look(queue) for name, queue in self.queues.items()}
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        """Close the queues."""
        self._stack.close()
        while self.queues:
            take_apart(self.queues.popitem()[1])


def look(queue: PersistentQueue) -> Seen:
    """Return what an open queue shows."""
    found = queue.prepared()
    assert not any(each.damage for each in found), f"damage where there was a crash: {found}"
    report = queue.recovery
    assert not report.progress_damage, f"recovery invents damage: {report}"
    messages = queue.peek(ALL)
    in_turn = sorted(messages, key=lambda each: (each.delivery_count == 0, each.offset))
    assert messages == in_turn, "what was handed out before comes first, by offset"
    exists = "default" in queue.groups.list()
    if exists:
        assert queue.qsize() == len(messages), f"{queue.qsize()} to take, {len(messages)} are there"
    queue.sides.files.refresh()
    names = queue.sides.files.names()
    log = _log(queue, queue.sides.files.first_offset)
    return Seen(
        queue.sides.next_offset(),
        log,
        max([0, *(name.first_offset for name in names[-1:]), *(offset + 1 for offset, _ in log[-1:])]),
        tuple(sorted((each.offset, _once(each.payload), each.delivery_count) for each in messages)),
        frozenset(letter.offset for letter in queue.dead.list()) if exists else frozenset(),
        frozenset((each.id, each.put_count, each.ack_count) for each in found),
        exists,
        report.damage,
    )


def _log(queue: PersistentQueue, first: int) -> tuple[tuple[int, bytes], ...]:
    """Return every message of the data files, whatever groups say of it."""
    sides = queue.sides
    losses: list[Damage] = []
    reader = QueueFileReader(sides.storage, sides.files, sides.queue_id, losses.append)
    found: list[tuple[int, bytes]] = []
    try:
        reader.seek(first)
        while records := reader.read(ALL, sides.require_read_side().log_end):
            found += [(record[0], _once(record[3])) for record in records]
    finally:
        reader.close()
    return tuple(found)


@lru_cache(maxsize=1024)
def _once(payload: bytes) -> bytes:
    """Return the same payload for all that are alike: what queues show is kept."""
    return payload


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
    lost = {offset for damage in seen.damage for offset in damage.offsets}
    if not reported or not lost <= set(seen.gap):
        assert lost == set(seen.gap), f"reported {sorted(lost)} of {name} as lost, but {seen.gap} is"
    assert {damage.verdict for damage in seen.damage if damage.offsets} <= {UNSYNCED_OR_DAMAGED}


def _candidates(
    history: History, seen: Mapping[str, Seen], least: Mapping[Side, int], most: Mapping[Side, int]
) -> Iterator[Numbers]:
    """Yield the combinations of states that a crash may leave, of those that have this log and this in doubt."""
    sides: dict[Side, list[int]] = {}
    for (name, part), states in history.states.items():
        if name not in seen:
            continue
        low, high = least.get((name, part), 0), most.get((name, part), 0)
        numbers = range(low, high + 1)
        if part is Part.LOG:
            sides[name, part] = [number for number in numbers if states[number] == seen[name].log_end]
        elif part is Part.PREPARED:
            sides[name, part] = [number for number in numbers if _counts(states[number]) == seen[name].in_doubt]
        else:
            sides[name, part] = list(numbers)
    for chosen in product(*sides.values()):
        choice = dict(zip(sides, chosen, strict=True))
        if all(_is_whole(step.numbers, choice) for step in history.steps):
            yield choice


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
    """Whether a queue in these states shows this."""
    state = history.states[name, Part.PROGRESS][numbers[name, Part.PROGRESS]]
    in_doubt: InDoubt = history.states[name, Part.PREPARED][numbers[name, Part.PREPARED]]  # type: ignore[assignment]
    held = {offset for _, _, acks in in_doubt for offset in acks}
    if state is None:
        log = tuple((offset, payload, 0) for offset, payload in seen.log)
        return not seen.exists and not seen.missing and not seen.dead and seen.shown in {(), log}
    if not seen.exists:
        return False
    assert isinstance(state, GroupState)
    finished = set(state.finished)
    for step in history.steps:
        if _has_happened(step.numbers, numbers):
            finished |= step.finished.get(name, frozenset())
    if not seen.missing <= finished | set(range(state.start)):
        return False
    held |= finished
    payloads = history.payloads[name]
    unfinished = state.unfinished(seen.log_end, CLOCK.time_ns())
    expected = tuple((offset, payloads[offset], count) for offset, count in unfinished.items() if offset not in held)
    return seen.shown == expected and seen.dead == {offset for offset in state.dead if offset < seen.log_end}


def _has_happened(step: Mapping[Side, int], numbers: Numbers) -> bool:
    return any(
        numbers[side] >= number for side, number in step.items() if side[1] is not Part.PROGRESS and side in numbers
    )


def work_on(recovered: Recovered) -> None:
    """Use recovered queues, close them, take the power away, open them again: the work is there."""
    after = b"after the crash"
    last: dict[str, int] = {}
    for name, queue in recovered.queues.items():
        seen = recovered.seen[name]
        assert queue.put(after) == seen.next_offset, "an offset was given twice, or one was passed over"
        expected = sorted([payload for _, payload, _ in seen.shown] + [after])
        taken: list[bytes] = []
        try:
            while True:
                taken += queue.get_many(ALL, timeout=0)
        except Empty:
            assert sorted(taken) == expected, "not what was shown"
        last[name] = queue.put(b"the last")
        for transaction_id, _, _ in seen.in_doubt:
            queue.commit_prepared(transaction_id)
    recovered.close()
    again = Recovered(recovered.storage.crash_dropping_unsynced(), recovered.policy, list(last))
    try:
        for name, seen in again.seen.items():
            put_by_others = sum(count for _, count, _ in recovered.seen[name].in_doubt)
            assert seen.next_offset == last[name] + 1 + put_by_others, "what was committed has other offsets"
            assert len(seen.shown) == 1 + put_by_others, "closing made it durable"
            assert seen.shown[0][:2] == (last[name], b"the last")
            assert not seen.in_doubt, "it was decided"
            assert again.queues[name].recovery.clean, f"closed in order, and yet: {again.queues[name].recovery}"
    finally:
        again.close()


def _short(seen: Mapping[str, Seen]) -> str:
    return "\n".join(
        f"{name}: log to {each.log_end}, next {each.next_offset}, shows "
        f"{[(offset, count) for offset, _, count in each.shown] if each.exists else None}, "
        f"dead {sorted(each.dead)}, in doubt {sorted(each.in_doubt)}"
        for name, each in seen.items()
    )

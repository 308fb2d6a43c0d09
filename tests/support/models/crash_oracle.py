"""The one oracle of every crash: what recovery shows is the model after some prefix of the calls.

That prefix is no shorter than what was acknowledged as durable and no longer than what was attempted. It holds for the
log and for each group's progress alone, and progress never speaks of messages that are not there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from queue import Empty

from holdfast import Damage, FlushPolicy, Message, PersistentQueue
from holdfast.persistence.format.report import UNSYNCED_OR_DAMAGED
from support.models.model import GroupState
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.recorded_run import Moment, RecordedRun, open_queue

ALL = 10**6  # more messages than any run has

Shown = tuple[tuple[int, bytes, int], ...]
"""Offset, payload and delivery count of each message that a group would be given, in that order."""


@dataclass(frozen=True)
class Seen:
    """What a queue shows after recovery.

    Attributes
    ----------
    next_offset : int
        What the next message gets.
    log : tuple of (int, bytes)
        Every message that is still in the data files.
    log_end : int
        Behind the last of them; up to ``next_offset`` offsets were given and lost.
    groups : dict of str to Shown
        What each group would be given; the default group is there even where it has not begun.
    existing : frozenset of str
        The groups that exist.
    dead : dict of str to frozenset of int
        The dead letters of each group.
    damage : tuple of Damage
        What the report says is lost.
    """

    next_offset: int
    log: tuple[tuple[int, bytes], ...]
    log_end: int
    groups: dict[str, Shown]
    existing: frozenset[str]
    dead: dict[str, frozenset[int]]
    damage: tuple[Damage, ...]

    @property
    def gap(self) -> range:
        """Offsets that were given to messages and are lost."""
        return range(self.log_end, self.next_offset)

    def without_report(self) -> tuple[object, ...]:
        """Return what has to be the same after every further recovery."""
        return self.next_offset, self.log, self.log_end, self.groups, self.existing, self.dead


def fingerprint(storage: SimulatedStorage) -> bytes:
    """Return a digest of everything on a disk: equal ones need recovering once."""
    digest = hashlib.blake2b(digest_size=16)
    for path, content in storage.tree().items():
        digest.update(b"%s %d " % (str(path).encode(), -1 if content is None else len(content)))
        digest.update(content or b"")
    return digest.digest()


def recover_and_look(storage: SimulatedStorage, policy: FlushPolicy) -> tuple[PersistentQueue, Seen]:
    """Open a crashed disk and look at all of it; the queue stays open. The disk gains a group ``audit``."""
    queue = open_queue(storage, policy)
    try:
        return queue, look(queue, storage, policy)
    except BaseException:
        queue.close()
        raise


def look(queue: PersistentQueue, storage: SimulatedStorage, policy: FlushPolicy) -> Seen:
    """Return what an open queue of the default group shows, to its own group and to the others."""
    existing = frozenset(queue.groups.list()) - {"audit"}
    groups = {"default": _shown(queue.peek(ALL))}
    dead = {"default": frozenset(letter.offset for letter in queue.dead.list())}
    in_turn = sorted(groups["default"], key=lambda entry: (entry[2] == 0, entry[0]))
    assert list(groups["default"]) == in_turn, "what was handed out before comes first, by offset"
    for name in existing - {"default"}:
        with open_queue(storage, policy, mode="read_only", group=name) as other:
            groups[name] = _shown(other.peek(ALL))
            dead[name] = frozenset(letter.offset for letter in other.dead.list())
    stats = queue.stats()
    report = queue.recovery
    if "default" in existing:  # before its first use it does not know yet what is lost
        assert queue.qsize() == len(groups["default"]), f"{queue.qsize()} to take, {len(groups['default'])} are there"
    assert not report.progress_damage, f"recovery invents damage: {report}"
    first = queue.groups.create("audit")
    with open_queue(storage, policy, mode="read_only", group="audit") as auditor:
        log = tuple((entry.offset, entry.payload) for entry in auditor.peek(ALL))
    return Seen(stats.next_offset, log, first + len(log), groups, existing, dead, report.damage)


def _shown(messages: list[Message]) -> Shown:
    return tuple((entry.offset, entry.payload, entry.delivery_count) for entry in messages)


def judge(
    run: RecordedRun, seen: Seen, before: Moment, under_way: Moment, *, killed: bool = False, reported: bool = False
) -> None:
    """Apply the oracle: ``before`` had returned, ``under_way`` was attempted.

    A kill loses nothing that had returned. What a recovery has ``reported`` that was cut off itself, the next one need
    not report again.
    """
    least = before.message_count if killed else before.durable_count
    most = under_way.message_count
    assert least <= seen.log_end <= seen.next_offset <= most, (
        f"{least} messages were acknowledged, {most} attempted; {seen.log_end} are there, next is {seen.next_offset}"
    )
    assert seen.log_end in run.boundaries, f"half a batch: the log ends at {seen.log_end}"
    first = seen.log_end - len(seen.log)
    assert list(seen.log) == list(enumerate(run.model.payloads[first : seen.log_end], first)), "not what was put"
    if killed or run.policy.syncs_every_commit:
        assert not seen.gap, f"offsets {seen.gap} are given and lost"
    lost = {offset for damage in seen.damage for offset in damage.offsets}
    if not reported or not lost <= set(seen.gap):
        assert lost == set(seen.gap), f"reported {sorted(lost)} as lost, but {seen.gap} is"
    assert {damage.verdict for damage in seen.damage if damage.offsets} <= {UNSYNCED_OR_DAMAGED}
    for name in {*run.states, *seen.existing, "default"}:
        states = run.states.get(name, [None])
        low = (before.states if killed else before.durable_states).get(name, 0)
        candidates = states[low : under_way.states.get(name, 0) + 1]
        shown = [(offset, count) for offset, _, count in seen.groups.get(name, ())]
        assert any(_agrees(run, seen, state, name) for state in candidates), (
            f"group {name} shows {shown if name in seen.existing else None}, dead {seen.dead.get(name)}, "
            f"which is none of its states {candidates}"
        )


def _agrees(run: RecordedRun, seen: Seen, state: GroupState | None, name: str) -> bool:
    """Whether a group can be in that state, from all that it shows."""
    exists, shown, dead = name in seen.existing, seen.groups.get(name, ()), seen.dead.get(name, frozenset())
    if state is None or not exists:
        log = tuple((offset, payload, 0) for offset, payload in seen.log)
        return state is None and not exists and not dead and (not shown or shown == log)
    unfinished = state.unfinished(seen.log_end, run.clock.time_ns()).items()
    expected = tuple((offset, run.model.payloads[offset], count) for offset, count in unfinished)
    return tuple(sorted(shown)) == expected and dead == {offset for offset in state.dead if offset < seen.log_end}


def work_on(queue: PersistentQueue, storage: SimulatedStorage, policy: FlushPolicy, seen: Seen) -> None:
    """Use a recovered queue, close it, take the power away, open it again: the work is there."""
    after = b"after the crash"
    assert queue.put(after) == seen.next_offset, "an offset was given twice, or one was passed over"
    expected = [payload for _, payload, _ in seen.groups["default"]] + [after]
    taken: list[bytes] = []
    try:
        while True:
            taken += queue.get_many(ALL, timeout=0)
    except Empty:
        assert taken == expected, "not what was shown"
    last = queue.put(b"the last")
    queue.close()
    queue = open_queue(storage.crash_dropping_unsynced(), policy)
    try:
        assert [entry.payload for entry in queue.peek(ALL)] == [b"the last"], "closing made it durable"
        assert queue.stats().next_offset == last + 1
        assert queue.recovery.clean, f"closed in order, and yet: {queue.recovery}"
        assert queue.get(block=False) == b"the last"
    finally:
        queue.close()

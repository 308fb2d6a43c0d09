"""Works with a recovered queue: takes all, decides what is in doubt, and finds the work after a loss of power."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from holdfast import Empty, PersistentQueue
from holdfast.persistence.format.commit_record import PartOf
from proof.crash_states.asked import in_the_end, unfinished
from proof.crash_states.history import History, Numbers, Part
from proof.crash_states.lives.requesting import ask, check_pending
from proof.crash_states.opening import ALL, APPLICATION, CLOCK, SLOW
from proof.crash_states.oracle import GroupSeen, Recovered, Seen, held_and_finished
from support.models.model import GroupState
from support.owners.open_queues import OpenQueues

AFTER, LAST = b"after the crash", b"the last"
ONCE_MORE = b"once more"


def put_once_more(recovered: Recovered, history: History) -> dict[str, int]:
    """Put each id again that ever was one; return how many messages that made, by queue.

    An id whose message is there is known, and its offset is returned; one whose message is lost, or was never put, is
    put. So is what a client has sent and has no answer to.
    """
    made = {}
    for name, queue in recovered.queues.items():
        next_offset = first = recovered.seen[name].next_offset
        for dedup_id, offset in history.ids.get(name, {}).items():
            is_known = offset < recovered.seen[name].log_end
            expected = offset if is_known else next_offset
            given = queue.put(ONCE_MORE, dedup_id=dedup_id)
            assert given == expected, f"{dedup_id} was put as {offset}, {'' if is_known else 'is lost, '}now {given}"
            next_offset += not is_known
        for thread, (request, offset) in history.requests.get(name, {}).items():
            is_known = offset < recovered.seen[name].log_end
            expected = offset if is_known else next_offset
            check_pending(queue)
            given = recovered.answers[name, thread] = ask(queue, request, ONCE_MORE)
            assert given == expected, f"a client put {offset}, {'' if is_known else 'it is lost, '}now it is {given}"
            next_offset += not is_known
        check_pending(queue)
        made[name] = next_offset - first
    return made


def work_on(recovered: Recovered, history: History, numbers: Numbers, made: dict[str, int]) -> None:
    """Use recovered queues, close them, take the power away, open them again: the work is there."""
    last: dict[str, int] = {}
    for name, queue in recovered.queues.items():
        seen = recovered.seen[name]
        assert queue.put(AFTER) == seen.next_offset + made[name], "an offset was given twice, or one was passed over"
        new = [ONCE_MORE] * made[name] + [AFTER]
        held, finished = held_and_finished(history, name, numbers)
        _take_all(queue, seen, seen.group, history, name, Part.PROGRESS, numbers, held, finished, new)
        if seen.slow.exists and recovered.slow is not None:
            queue.flush()  # so that a handle that does not put sees all of it
            recovered.slow.stats()  # which looks for new files at once, and not some milliseconds later
            none: frozenset[int] = frozenset()
            _take_all(recovered.slow, seen, seen.slow, history, name, Part.SLOW, numbers, none, none, new)
        last[name] = queue.put(LAST)
        _decide(queue, seen)
    _decide_beside(recovered)
    recovered.close()
    again = Recovered(recovered.storage.crash_dropping_unsynced(), recovered.policy, list(last))
    try:
        for name, seen in again.seen.items():
            _judge_again(again.queues[name], seen, recovered.seen[name], last[name])
            for thread, (request, _) in history.requests.get(name, {}).items():
                given = ask(again.queues[name], request, ONCE_MORE)
                assert given == recovered.answers[name, thread], "the owner after that one has another answer"
    finally:
        again.close()


def _take_all(
    queue: PersistentQueue,
    seen: Seen,
    group: GroupSeen,
    history: History,
    name: str,
    part: Part,
    numbers: Numbers,
    held: frozenset[int],
    finished: frozenset[int],
    new: Collection[bytes],
) -> None:
    """Take for a group what there is: what was shown, and whatever waits behind that for its order key."""
    state = history.states[name, part][numbers[name, part]]
    if isinstance(state, GroupState):
        state = replace(state, finished=state.finished | finished)
    else:
        state = GroupState(0, seen.missing, ())
    now_ns = CLOCK.time_ns()
    wishes = history.wishes_of(name, is_filtered=state.is_filtered)
    left = in_the_end(unfinished(state, wishes, seen.log_end, now_ns), held, now_ns)
    expected = sorted([*(history.payloads[name][each.offset] for each in left), *new])
    gone = frozenset() if group.exists else seen.missing  # retired by the second group behind the look
    assert {offset for offset, _, _ in group.shown} - gone <= {each.offset for each in left}
    taken: list[bytes] = []
    try:
        while True:
            taken += queue.get_many(ALL, timeout=0)
    except Empty:
        assert sorted(taken) == expected, f"{len(taken)} taken, which is not what was shown, {len(expected)}"


def _decide(queue: PersistentQueue, seen: Seen) -> None:
    """Commit all that is in doubt."""
    parts = {each.id: each.part_of for each in queue.prepared() if each.part_of is not None}
    for transaction_id, _, _ in seen.in_doubt:
        if transaction_id not in parts:
            queue.commit_prepared(transaction_id)
    parts = {key: part_of for key, part_of in parts.items() if not part_of.is_shared}
    if parts:
        (version,) = {part_of.version for part_of in parts.values()}
        queue.joint_commits.commit(APPLICATION, version, sorted(parts))


def _decide_beside(recovered: Recovered) -> None:
    """Commit all that is in doubt over several queues."""
    found: dict[PartOf, list[str]] = {}
    for name, queue in recovered.queues.items():
        for each in queue.prepared():
            if each.part_of is not None and each.part_of.is_shared:
                found.setdefault(each.part_of, []).append(f"{name}/{each.id}")
    for part_of, parts in found.items():
        OpenQueues(recovered.storage, CLOCK, recovered.queues.values()).commit(
            part_of.application, part_of.version, parts
        )


def _judge_again(queue: PersistentQueue, seen: Seen, before: Seen, last: int) -> None:
    put_by_others = sum(count for _, count, _ in before.in_doubt)
    assert seen.next_offset == last + 1 + put_by_others, "what was committed has other offsets"
    shown = [each for each in seen.group.shown if each[0] >= last]
    assert 1 <= len(shown) <= 1 + put_by_others, "closing made it durable"  # of one order key one is shown
    assert {payload for offset, payload, _ in shown if offset == last} == {LAST}
    assert not seen.in_doubt, "it was decided"
    assert seen.slow.exists == before.slow.exists == (SLOW in queue.groups.list())
    assert queue.recovery.clean, f"closed in order, and yet: {queue.recovery}"

"""Rules for purge and shutdown: work-queue.md, "Purge", "Limits"; the docstrings of both."""

from collections.abc import Callable
from dataclasses import replace

from proof.second_model.facts import Now, State, expect, with_course, with_group
from proof.second_model.history import Answer, Call
from proof.second_model.rules.order import CERTAIN, availability, is_passing, possible
from proof.second_model.rules.taking import came_by, without_left_out
from proof.second_model.rules.transitions import brought_up_to, finished, read_anew, without_leases

PURGE = 'work-queue.md "Purge"'

#: Of so many messages of which it is open whether they were ready both ways are followed; the others may be gone.
FOLLOWED_MAX = 4

#: How a purge of a handle that was closed, or shut down at once, is answered: "" where it is done.
REFUSED_BY = {"": "", "closed": "ClosedError", "shut down": "ShutDown"}

Way = tuple[State, int, int]  # a state after the purge, and how many it has finished: at least, at the most


def purge(state: State, call: Call, answer: Answer) -> tuple[State, ...]:
    """Judge purge: it finishes all that is ready, paused or not, and returns how many."""
    refusal = REFUSED_BY[state.end]
    expect((answer.error or "") == refusal, PURGE, refusal or "how many it finished", answer)
    if answer.error is not None:
        return (state,)
    found = ways(state, call.now)
    after = tuple(one for one, low, high in found if low <= answer.value <= high)
    expect(bool(after), PURGE, sorted({(low, high) for _, low, high in found}), answer)
    return after


def ways(state: State, now: Now) -> list[Way]:
    """Return what may be left: what is ready ends, what has ended by time or count too, and the rest stays."""
    before, state = state, with_group(state, replace(state.own, pause=None))
    todo, found = [(state, 0, 0, frozenset[int](), 0)], list[Way]()
    while todo:
        state, low, high, decided, followed = todo.pop()
        state, count = without_what_is_ready(state, now)
        low, high = low + count, high + count
        waiting = [offset for offset in possible(state, now) if state.course(offset).state == "waiting"]
        offset = next((offset for offset in waiting if offset not in decided), None)
        if offset is None:
            found.append((having_purged(before, state), low, high))
            continue
        decided |= {offset}
        if followed == FOLLOWED_MAX:
            todo.append((perhaps_gone(state, offset), low, high + 1, decided, followed))
        else:
            todo.append((state, low, high, decided, followed + 1))
            todo.append((finished(state, offset), low + 1, high + 1, decided, followed + 1))
    return found


def having_purged(before: State, state: State) -> State:
    """Return the state behind a purge: the log was read to its end, and is read anew if it had a key.

    "Until then it is in the log: ... after a purge that finished messages with an order key".
    """
    state = with_group(state, replace(state.own, pause=before.own.pause))
    ended = set(before.live()).difference(state.live())
    unsure = {offset for offset in state.live() if state.course(offset).may_be_gone}
    if any(state.messages[offset].order_key is not None for offset in ended | unsure):
        return read_anew(state)
    return replace(state, read_end=len(state.messages))


def without_what_is_ready(state: State, now: Now) -> tuple[State, int]:
    """Finish what is surely ready, until nothing is: the next one of an order key is ready once the first is done."""
    count, before = 0, None
    state = without_left_out(state)
    while state is not before:
        before = state
        for offset in state.live():
            course = state.course(offset)
            if course.state != "waiting" or course.ready_at.high > now.wall:
                continue
            if availability(state, offset, now) == CERTAIN:
                state, count = finished(state, offset), count + 1
            elif is_passing(state, offset, now):
                state = came_by(state, offset, now)
    return state, count


def perhaps_gone(state: State, offset: int) -> State:
    """Leave open whether a message is finished."""
    gone = with_course(state, offset, state.course(offset)._replace(may_be_gone=True))
    return with_group(gone, replace(gone.own, blurred=gone.own.blurred + 1))


def cut_off(state: State, call: Call, answer: Answer) -> tuple[State, ...]:
    """Return what a purge leaves that a crash ends: any of what it would have finished."""
    if call.verb != "purge" or answer.error is not None:
        return ()
    state = brought_up_to(state, call.now)
    there = set(state.live())
    for offset in set().union(*(there.difference(after.live()) for after, _, _ in ways(state, call.now))):
        state = perhaps_gone(state, offset)
    return (state,)


def refused_by_its_mode(state: State, call: Call, answer: Answer) -> State:
    """Judge a purge of a handle that does not take: UsageError."""
    expect(answer.error == "UsageError", f"{PURGE}: the mode does not take", "UsageError", answer)
    return state


def shutdown(state: State, call: Call, answer: Answer) -> State:
    """Judge shutdown: an immediate one refuses takes at once, and gives back uncounted what is in hand."""
    expect(answer.error is None, "PersistentQueue.shutdown", "shut down", answer)
    if not call["immediate"]:
        return state
    receipts = {
        number: receipt._replace(state="lost") if receipt.state == "live" else receipt
        for number, receipt in state.receipts.items()
    }
    return replace(without_leases(state, counts=False), end="shut down", receipts=receipts)


RULES: dict[str, Callable[[State, Call, Answer], State | tuple[State, ...]]] = {
    "purge": purge,
    "purge_beside": refused_by_its_mode,
    "shutdown": shutdown,
}

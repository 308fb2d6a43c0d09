"""Rules for dead letters: work-queue.md, "Dead letters"; the docstrings of ``queue.dead``."""

from collections.abc import Callable

from proof.second_model.facts import SECOND_NS, Now, Span, State, TooManyStatesError, expect, with_course
from proof.second_model.history import Answer, Call, Seen
from proof.second_model.rules.order import NO, doom, expiry, is_passing
from proof.second_model.rules.transitions import buried, failed, finished, revived

DEAD = 'work-queue.md "Dead letters"'

#: A take sweeps "once a minute at the most": so much later than a letter was kept for long enough.
SWEPT_LATE_NS = 60 * SECOND_NS


#: Which of ten messages were letters is as many choices; a few times as many messages have no end.
CHOICES_MAX = 1024


def may_be_dead(state: State, offset: int, now: Now) -> set[str]:
    """Return for which reasons a message may be a dead letter by now."""
    course = state.course(offset)
    if course.state == "dead":
        return set(course.reasons)
    if course.is_left_out or not is_passing(state, offset, now):
        return set()
    if course.state == "leased":
        return {"lease_expired"}
    reasons = set(course.perhaps - {"dropped", "swept"})
    if doom(state, course) != NO:
        reasons |= {"max_deliveries", "lease_expired"}
    if expiry(state, offset, now) != NO and (state.options.expired == "dead" or state.own.blurred):
        reasons.add("expired")
    return reasons


def may_be_swept(state: State, offset: int, now: Now) -> bool:
    """Whether a letter may be gone: kept for long enough, and swept "when it takes messages"; or its message was."""
    course = state.course(offset)
    return (
        course.may_be_gone
        or "swept" in course.perhaps
        or now.wall >= course.dead_at.low + round(state.options.dead_letter_seconds * SECOND_NS)
    )


def swept(state: State, now: Now) -> State:
    """Finish the letters that were kept for long enough a minute ago, or when the handle was opened: a take sweeps."""
    kept_ns = round(state.options.dead_letter_seconds * SECOND_NS)
    looked_at = max(state.sweeps_from, now.wall - SWEPT_LATE_NS)
    for offset in state.live():
        course = state.course(offset)
        if course.state == "dead" and looked_at >= course.dead_at.high + kept_ns:
            state = with_course(state, offset, course._replace(state="done", reasons=course.reasons | {"swept"}))
    return state


def known_dead(state: State, seen: Seen, now: Now) -> State:
    """Take over that a message has become a dead letter meanwhile."""
    course = state.course(seen.offset)
    if course.state == "dead":
        return with_course(state, seen.offset, course._replace(reasons=frozenset({seen.reason}), perhaps=frozenset()))
    if course.state == "leased":
        return failed(state, seen.offset, "lease_expired", now, course.ready_at, "run_out")
    return buried(state, seen.offset, {seen.reason}, now, since=state.messages[seen.offset].put_at)


def listed(state: State, call: Call, answer: Answer) -> State:
    """Judge ``queue.dead.list``: all of them, in offset order, each as it ended."""
    expect(answer.error is None, DEAD, "a list", answer)
    seen = {letter.offset: letter for letter in answer.value}
    expect(list(seen) == sorted(seen), f"{DEAD}: in offset order", sorted(seen), answer)
    for offset in sorted({*state.live(), *seen}):
        message, course = state.messages[offset], state.course(offset)
        reasons = may_be_dead(state, offset, call.now)
        letter = seen.get(offset)
        if letter is None:
            is_gone = course.state != "dead" or may_be_swept(state, offset, call.now)
            is_gone = is_gone or call["reason"] not in (None, *course.reasons) or len(seen) == call["limit"]
            expect(is_gone, DEAD, f"{offset} among them, {sorted(course.reasons)}", answer)
            continue
        is_asked = call["reason"] in (None, letter.reason)
        expect(letter.reason in reasons and is_asked, DEAD, f"{offset} for one of {sorted(reasons)}", answer)
        is_same = letter.payload == message.payload and course.times.low <= letter.delivery_count <= course.times.high
        expect(is_same, DEAD, (message.payload, course.times), letter)
        expect(course.detail in (None, letter.detail), DEAD, course.detail, letter)
        state = known_dead(state, letter, call.now)
    return state


def changed(state: State, call: Call, answer: Answer) -> tuple[State, ...]:
    """Judge ``retry`` and ``discard``, by offsets or by reason: the answer is how many letters there were.

    Where that leaves open which of them were letters, each choice that adds up is followed.
    """
    expect(answer.error is None, DEAD, "how many there were", answer)
    every = range(len(state.messages))
    found: list[tuple[State, int]] = [(state, 0)]
    for offset in every if call["offsets"] is None else sorted(set(call["offsets"])):  # "in which they were put"
        if offset in every:
            ways = [after for one, count in found for after in either_way(one, count, offset, call)]
            found = [(after, count) for after, count in ways if count <= answer.value]
        if len(found) > CHOICES_MAX:
            raise TooManyStatesError
    counts = {count for _, count in found}
    expect(answer.value in counts, DEAD, f"one of {sorted(counts)}, or more", answer)
    return tuple(one for one, count in found if count == answer.value)


def either_way(state: State, count: int, offset: int, call: Call) -> list[tuple[State, int]]:
    """Return what one message may have been to a verb on dead letters: one of them, or not."""
    reasons = may_be_dead(state, offset, call.now)
    chosen = reasons if call["reason"] is None else reasons & {call["reason"]}
    is_dead = state.course(offset).state == "dead"
    ways = []
    if not is_dead or may_be_swept(state, offset, call.now) or reasons - chosen:
        ways.append((state, count))
    for reason in sorted(chosen)[:1]:
        dead = state if is_dead else known_dead(state, Seen(offset, b"", reason=reason), call.now)
        done = revived(dead, offset, call.now) if call.verb == "dead_retry" else finished(dead, offset)
        ways.append((done, count + 1))
    return ways


def surely_dead(state: State, now: Now) -> int:
    """Return how many dead letters there are without doubt."""
    return sum(state.course(offset).state == "dead" and not may_be_swept(state, offset, now) for offset in state.live())


def perhaps_dead(state: State, now: Now) -> int:
    """Return how many there are at the most."""
    return sum(bool(may_be_dead(state, offset, now)) for offset in state.live())


def died_and_swept(state: State, now: Now) -> int:
    """Return how many messages may have become dead letters unseen, and have been kept for long enough since."""
    kept_ns = round(state.options.dead_letter_seconds * SECOND_NS)
    offsets = [offset for offset in state.live() if state.course(offset).state != "dead"]
    old = [offset for offset in offsets if now.wall >= state.messages[offset].put_at + kept_ns]
    found = {offset for offset in offsets if "swept" in state.course(offset).perhaps}
    return len(found.union(offset for offset in old if may_be_dead(state, offset, now)))


def counted(state: State, call: Call, answer: Answer) -> State:
    """Judge ``len(queue.dead)``."""
    allowed = Span(surely_dead(state, call.now), perhaps_dead(state, call.now))
    expect(allowed.low <= answer.value <= allowed.high, DEAD, allowed, answer)
    return state


RULES: dict[str, Callable[[State, Call, Answer], State | tuple[State, ...]]] = {
    "dead_count": counted,
    "dead_list": listed,
    "dead_retry": changed,
    "dead_discard": changed,
}

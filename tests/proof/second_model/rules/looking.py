"""Rules for looks: the docstrings of peek, qsize, stats and browse; work-queue.md, "Pause and browse", "States"."""

from collections.abc import Callable
from dataclasses import replace

from proof.second_model.facts import Now, Span, State, expect, with_course, with_group
from proof.second_model.history import Answer, Call, Seen
from proof.second_model.rules.dead_letters import died_and_swept, may_be_dead, may_be_swept, perhaps_dead, surely_dead
from proof.second_model.rules.order import certain, come_next, possible
from proof.second_model.rules.putting import may_have_ended, room
from proof.second_model.rules.transitions import buried

BROWSE = 'work-queue.md "States"'

Rule = Callable[[State, Call, Answer], State]

IN_SIGHT = {"ready", "leased"}
"""The states of messages that ``peek`` of a shared handle shows."""


def peek(state: State, call: Call, answer: Answer) -> State:
    """Judge peek: "messages that would come next", and nothing is taken."""
    rule = "PersistentQueue.peek"
    most, seen = call["max_messages"], answer.value
    expect(answer.error is None and len(seen) <= most, rule, f"up to {most}", answer)
    taken = unpaused(state)
    sure = certain(taken, call.now)
    expect(len(seen) >= min(most, len(sure)), rule, f"{sure}, up to {most}", answer)
    for message in seen:
        offsets = come_next(taken, call.now)
        expect(message.offset in offsets, rule, f"one of {offsets}", answer)
        same = message.payload == state.messages[message.offset].payload
        expect(same, rule, state.messages[message.offset], answer)
        taken = with_course(taken, message.offset, taken.course(message.offset)._replace(state="leased", lease=None))
    return state


def unpaused(state: State) -> State:
    """Return what a look shows: the same as if the group were not paused."""
    return with_group(state, replace(state.own, pause=None))


def states_of(state: State, offset: int, now: Now) -> set[str]:
    """Return the states that a message may be in: one that waits for its order key is ready."""
    course = state.course(offset)
    if course.state == "held":
        return {"leased"}
    found = {course.state} - {"waiting", "done"} or set[str]()
    if course.state == "leased" and course.lease is not None and now.mono >= course.lease.low:
        found |= {"ready"}
    if course.state == "waiting":
        found = {"delayed"} if course.ready_at.high > now.wall else set()
        if course.ready_at.low <= now.wall:
            found.add("ready")
    if may_be_dead(state, offset, now):
        found.add("dead")
    if course.state == "dead" and may_be_swept(state, offset, now):
        found.add("")
    if course.state == "done" or may_have_ended(state, offset, now):
        found.add("")
    return found


def browse(state: State, call: Call, answer: Answer) -> State:
    """Judge browse: those of one state, in offset order, from behind ``after``."""
    which, limit, after = call["state"], call["limit"], call["after"]
    expect(answer.error is None and len(answer.value) <= limit, BROWSE, f"up to {limit}", answer)
    seen = {message.offset: message for message in answer.value}
    offsets = [message.offset for message in answer.value]
    expect(offsets == sorted(seen), f"{BROWSE}: in offset order", sorted(seen), answer)
    end = max(seen) + 1 if len(seen) == limit else len(state.messages)
    for message in state.messages[(-1 if after is None else after) + 1 : end]:
        allowed = states_of(state, message.offset, call.now)
        if message.offset not in seen:
            expect(allowed != {which}, BROWSE, f"{message.offset}, which is {which}", answer)
            continue
        expect(which in allowed, BROWSE, f"{message.offset}, which is one of {allowed}, not among them", answer)
        state = looked_at(state, seen[message.offset], call, which)
    expect(all(offset > (-1 if after is None else after) for offset in seen), BROWSE, f"behind {after}", answer)
    return state


def looked_at(state: State, seen: Seen, call: Call, which: str) -> State:
    """Compare one message that browsing has shown."""
    course, message = state.course(seen.offset), state.messages[seen.offset]
    expect(seen.payload == message.payload, BROWSE, message, seen)
    if which == "delayed" and seen.until is not None:
        allowed = course.ready_at
        expect(allowed.low <= seen.until <= allowed.high, 'work-queue.md "Verbs", waits', allowed, seen)
    if course.state == "waiting" and which != "dead":
        expect(course.times.low <= seen.delivery_count <= course.times.high, BROWSE, course.times, seen)
    if which == "dead" and course.state == "waiting":
        reasons = may_be_dead(state, seen.offset, call.now)
        state = buried(state, seen.offset, reasons, call.now, since=message.put_at)
    return state


def numbers(state: State, now: Now) -> dict[str, Span]:
    """Return what the figures may be: the docstring of QueueStats."""
    courses = {offset: state.course(offset) for offset in state.live()}
    unfinished = [offset for offset, course in courses.items() if course.state in ("waiting", "leased", "held")]
    unsure = sum(may_have_ended(state, offset, now) for offset in unfinished)
    leased = [course for course in courses.values() if course.state == "leased"]
    held = sum(course.state == "held" for course in courses.values())
    overdue = sum(course.lease is not None and now.mono >= course.lease.low for course in leased)
    waiting = [
        offset
        for offset in unfinished
        if courses[offset].state == "waiting"
        and (courses[offset].ready_at.high > now.wall or state.messages[offset].order_key is not None)
    ]
    read = [
        offset
        for offset in waiting
        if courses[offset].ready_at.low > now.wall
        and courses[offset].place == "aside"
        and offset < state.read_end
        and not may_have_ended(state, offset, now)
    ]
    left_out = sum(courses[offset].is_left_out for offset in unfinished)
    without = sum(state.own.answer(message) is None for message in state.messages)
    dead = Span(surely_dead(state, now), perhaps_dead(state, now))
    return {
        "depth": Span(len(unfinished) - unsure, len(unfinished)),
        "in_flight": Span(len(leased) - overdue + held, len(leased) + held),
        "delayed": Span(len(read), len(waiting)),
        "dead": dead,
        "dropped": Span(state.dropped.low, state.dropped.high + unsure),
        "filtered": Span(state.filtered.low, state.filtered.high + left_out),
        # A look ahead for priorities may come by a message before those in front of it, which are not counted then.
        "filter_failed": Span(0 if state.has_priorities else len(state.without_answer), without),
        "next_offset": Span(len(state.messages), len(state.messages)),
        "dedup_forgotten": state.forgotten,
        "skipped": state.own.skipped,
        "lost": Span(0, 0),
    }


def stats(state: State, call: Call, answer: Answer) -> State:
    """Judge the figures, one by one and together."""
    seen = answer.value
    for name, allowed in numbers(state, call.now).items():
        expect(allowed.low <= seen[name] <= allowed.high, f"QueueStats.{name}", allowed, answer)
    # What has ended since was in the depth, and is dead or dropped now: no message is nowhere.
    unfinished = numbers(state, call.now)["depth"].high
    ended = seen["dead"] - surely_dead(state, call.now) + seen["dropped"] - state.dropped.low
    ended += seen["filtered"] - state.filtered.low
    blurred = state.own.blurred + died_and_swept(state, call.now)
    is_whole = unfinished - ended - blurred <= seen["depth"] <= unfinished - min(ended, 0)
    expect(is_whole, "QueueStats: depth, dead and dropped", f"{unfinished} - {ended}", answer)
    kept = [offset for offset in state.live() if "" not in states_of(state, offset, call.now)]
    oldest = min(kept, default=len(state.messages))
    expect(seen["first_offset"] <= oldest, "QueueStats.first_offset", f"up to {oldest}", answer)
    pause = None if state.own.pause is None else state.own.pause.reason
    expect(seen["paused"] == pause, "QueueStats.paused", pause, answer)
    return state


def is_known_to_wait(state: State, offset: int, now: Now) -> bool:
    """Whether reading has come by a message that waits, and that has not ended since."""
    is_read = offset < state.read_end and state.course(offset).place == "aside"
    return is_read and not may_have_ended(state, offset, now)


def qsize(state: State, call: Call, answer: Answer) -> State:
    """Judge qsize: "how many messages can be taken now", those too that have ended since and that nobody came by."""
    ready = [
        offset
        for offset in state.live()
        if "ready" in states_of(state, offset, call.now)
        or (state.course(offset).state == "waiting" and not is_known_to_wait(state, offset, call.now))
    ]
    allowed = Span(len(certain(unpaused(state), call.now)), len(ready))
    expect(allowed.low <= answer.value <= allowed.high, "PersistentQueue.qsize", allowed, answer)
    return state


def empty(state: State, call: Call, answer: Answer) -> State:
    """Judge empty: "whether nothing can be taken now", paused or not."""
    taken = unpaused(state)
    if certain(taken, call.now):
        expect(answer.value is False, "PersistentQueue.empty", False, answer)
    elif not possible(taken, call.now) and not any(state.course(offset).is_left_out for offset in state.live()):
        expect(answer.value is True, "PersistentQueue.empty", True, answer)
    return state


def full(state: State, call: Call, answer: Answer) -> State:
    """Judge full: "whether a bounded queue has no room now"."""
    answers = room(state, 1, call)
    allowed = {name == "Full" for name in answers}
    expect(answer.value in allowed, "PersistentQueue.full", allowed, answer)
    return state


def peek_files(state: State, call: Call, answer: Answer) -> State:
    """Judge peek of a handle that shares the queue: processes.md, "in offset order", and "those in hand, too"."""
    rule = 'processes.md "What to know": peek'
    most, seen = call["max_messages"], answer.value
    expect(answer.error is None and len(seen) <= most, rule, f"up to {most}", answer)
    shown = {message.offset: message.payload for message in seen}
    offsets = [message.offset for message in seen]
    expect(offsets == sorted(shown), f"{rule}: in offset order", sorted(shown), answer)
    for message in state.messages[: offsets[-1] + 1 if len(seen) == most else None]:
        may_be = states_of(state, message.offset, call.now)
        is_held = state.course(message.offset).state == "held"
        if message.offset in shown:
            is_right = bool(may_be & IN_SIGHT) and not is_held and shown[message.offset] == message.payload
            expect(is_right, rule, f"{message.offset}, which is one of {may_be}, not among them", answer)
        else:
            expect(is_held or not may_be <= IN_SIGHT, rule, f"{message.offset}, which is one of {may_be}", answer)
    return state


RULES: dict[str, Rule] = {"peek": peek, "browse": browse, "stats": stats, "qsize": qsize, "empty": empty, "full": full}
RULES |= {f"{rule.__name__.removesuffix('_files')}_files": rule for rule in (peek_files, browse, stats, qsize, empty)}
"""By verb; behind ``_files`` those of a handle that shares the queue: they notice no lease that has ended."""

"""Rules for takes: durability.md, "get or receive"; work-queue.md, "Leases", "What comes next", "Pause and browse"."""

from dataclasses import replace

from proof.second_model.facts import SECOND_NS, Now, Span, State, expect, with_course
from proof.second_model.history import Answer, Call, Seen
from proof.second_model.rules.dead_letters import swept
from proof.second_model.rules.order import (
    CERTAIN,
    NO,
    certain,
    come_next,
    doom,
    expiry,
    has_turn,
    is_passing,
    may_share_batch,
    possible,
)
from proof.second_model.rules.transitions import AT_ONCE, brought_up_to, buried, failed, finished, handed_out

NEXT = 'work-queue.md "What comes next"'


def nothing_came(state: State, answer: Answer, now: Now) -> State:
    """Judge an Empty: nothing may have been ready; whoever took has come by all that had ended."""
    expect(not certain(state, now), NEXT, f"one of {possible(state, now)}", answer)
    if state.own.pause is not None:
        return state
    state = without_left_out(replace(swept(state, now), read_end=len(state.messages)))
    for offset in state.live():
        course = state.course(offset)
        if course.state == "waiting" and course.ready_at.high <= now.wall and is_passing(state, offset, now):
            state = came_by(state, offset, now)
    return state


def without_left_out(state: State) -> State:
    """End what does not match the group's filter: "a take reads as far as it has to", here to the end of the log."""
    for offset in state.live():
        course = state.course(offset)
        if course.is_left_out:
            is_sure = not state.own.blurred and not course.may_be_gone  # else an earlier handle may have done it
            low, high = state.filtered
            state = replace(finished(state, offset), filtered=Span(low + is_sure, high + 1))
            state = with_course(state, offset, state.course(offset)._replace(reasons=frozenset({"filtered"})))
    return state


def noted(state: State, offset: int) -> State:
    """Note that a message was handed out for which the filter has no answer."""
    if state.own.answer(state.messages[offset]) is not None:
        return state
    return replace(state, without_answer=state.without_answer | {offset})


def came_by(state: State, offset: int, now: Now) -> State:
    """End what a consumer has come by and may not have: expired, or handed out as often as may be."""
    course = state.course(offset)
    if has_turn(state, offset, now) != CERTAIN or course.may_be_gone or course.perhaps:
        return state  # whether a consumer comes by one that waits for its order key is not said
    if expiry(state, offset, now) == CERTAIN and doom(state, course) == NO:
        return ended_by_time(state, offset, now)
    if doom(state, course) == CERTAIN and expiry(state, offset, now) == NO:
        return buried(state, offset, {"max_deliveries"}, now, since=state.messages[offset].put_at)
    return state


def ended_by_time(state: State, offset: int, now: Now) -> State:
    """End an expired message: "what becomes of it the queue's ``expired`` says"."""
    if state.options.expired == "dead":
        return buried(state, offset, {"expired"}, now, since=state.messages[offset].put_at)
    seen = state.dropped  # one that an earlier handle has dropped does not count here
    dropped = Span(seen.low + (not state.own.blurred), seen.high + 1)
    state = finished(state, offset)
    gone = state.course(offset)._replace(reasons=frozenset({"dropped"}))
    return replace(with_course(state, offset, gone), dropped=dropped)


def run_out_unseen(state: State, offset: int, now: Now) -> State:
    """Notice that a lease was over after all, as its message is handed out again."""
    if state.course(offset).state == "leased":
        return failed(state, offset, "lease_expired", now, AT_ONCE, "run_out")
    return state


def came(state: State, seen: Seen, answer: Answer, now: Now, *, is_counted: bool) -> State:
    """Judge one message that was handed out: that it may come next, and what it is."""
    may_be = come_next(state, now)
    expect(seen.offset in may_be, NEXT, f"one of {may_be}", answer)
    same = seen.payload == state.messages[seen.offset].payload
    expect(same, "durability.md promise 5: a wrong payload is never returned", state.messages[seen.offset], answer)
    state = run_out_unseen(state, seen.offset, now)
    if is_counted:
        count = state.course(seen.offset).times
        allowed = Span(count.low + 1, count.high + 1)
        rule = 'work-queue.md "Leases": every delivery counts'
        expect(allowed.low <= seen.delivery_count <= allowed.high, rule, allowed, answer)
    return state


def get(state: State, call: Call, answer: Answer) -> State:
    """Judge get and get_many: taken and acknowledged at once, in one step."""
    if answer.error == "Empty":
        return nothing_came(state, answer, call.now)
    state = swept(state, call.now)
    most = call["max_messages"] or 1
    expect(answer.error is None and 1 <= len(answer.value) <= most, "PersistentQueue.get_many", f"1..{most}", answer)
    taken = state  # all of them are handed out before any is finished: of a key one at a time comes here too
    for payload in answer.value:
        payloads = {state.messages[offset].payload: offset for offset in come_next(taken, call.now)}
        expect(payload in payloads, NEXT, sorted(payloads.items()), answer)
        offset = payloads[payload]
        state = noted(finished(run_out_unseen(state, offset, call.now), offset), offset)
        taken = with_course(taken, offset, taken.course(offset)._replace(state="leased", lease=None))
    return having_read(state)


def cut_off(state: State, call: Call, answer: Answer) -> tuple[State, ...]:
    """Return what a get of a client leaves that a crash ends between its take and its acknowledgement.

    processes.md: what a client that is killed "had in hand is available again at once, and that delivery counts".
    """
    if not call["is_received"] or answer.error is not None:
        return ()
    state = brought_up_to(swept(state, call.now), call.now)
    for offset in [message.offset for message in state.messages if message.payload in answer.value]:
        course = run_out_unseen(state, offset, call.now).course(offset)
        times = Span(course.times.low + 1, course.times.high + 1)
        state = with_course(state, offset, course._replace(state="leased", times=times, lease=None))
    return (having_read(state),)


def receive(state: State, call: Call, answer: Answer) -> State:
    """Judge receive and receive_many, also of a transaction."""
    if answer.error == "Empty":
        return nothing_came(state, answer, call.now)
    state = swept(state, call.now)
    most = call["max_messages"] or 1
    expect(
        answer.error is None and 1 <= len(answer.value) <= most, "PersistentQueue.receive_many", f"1..{most}", answer
    )
    lease = call["lease_seconds"]
    lease_ns = round((state.options.lease_seconds if lease is None else lease) * SECOND_NS)
    before, batch = state, list[int]()
    for seen in answer.value:
        state = came(state, seen, answer, call.now, is_counted=True)
        alone = run_out_unseen(before, seen.offset, call.now)
        if batch:
            expect(may_share_batch(alone, batch, seen.offset), f"{NEXT}, 4", f"only {batch}", answer)
        before = alone
        batch.append(seen.offset)
        state = handed_out(
            noted(state, seen.offset),
            seen.offset,
            seen.receipt or 0,
            seen.delivery_count,
            call.now,
            lease_ns,
            call["transaction"],
        )
    return having_read(state)


def having_read(state: State) -> State:
    """Return the state in which the log was read up to the last message that was taken from it."""
    return replace(state, read_end=max(state.read_end, state.own.passed))


RULES = {"get": get, "get_many": get, "receive": receive, "receive_many": receive}

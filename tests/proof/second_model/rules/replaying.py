"""Rules for starts, seeks and reads without a group: replay.md."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from proof.second_model.facts import (
    SECOND_NS,
    Course,
    Group,
    Now,
    Span,
    State,
    expect,
    with_group,
)
from proof.second_model.history import Answer, Call
from proof.second_model.rules.dead_letters import may_be_dead, may_be_swept
from proof.second_model.rules.putting import may_have_ended
from proof.second_model.rules.transitions import read_anew, settled

WHERE = 'replay.md "Where to start"'
MOVING = 'replay.md "Moving a group"'
READING = 'replay.md "Reading without a group"'


def wanted(state: State, start: Any, now: Now) -> int:
    """Return the first message that a start means, whether it is there still or not."""
    end = len(state.messages)
    if isinstance(start, tuple):  # a time, or how long ago: "the first one put then or later"
        form, number = start
        since = number if form == "since" else now.wall - round(number * SECOND_NS)
        return next((offset for offset, message in enumerate(state.messages) if message.put_at >= since), end)
    if isinstance(start, int):
        return start if start >= 0 else max(0, end + start)
    return {"earliest": 0, "latest": end}[start]


def is_behind(state: State, start: Any) -> bool:
    """Whether a start is refused: an offset "behind the end of the log"."""
    return isinstance(start, int) and start > len(state.messages)


def unfinished(state: State, group: Group) -> list[int]:
    """Return what keeps its data file ("Space"), in one group."""
    done = {offset for offset, course in group.courses.items() if course.state == "done"}
    return [offset for offset in range(group.start, len(state.messages)) if offset not in done]


def is_used(state: State, name: str) -> bool:
    """Whether a group is there without doubt."""
    courses = state.groups[name].courses.values()  # settings that change note in some that they may have expired
    return name != "default" or any(course.state != "waiting" or course.times.high for course in courses)


def kept(state: State, now: Now) -> set[int]:
    """Return what is in the log without doubt: for a group, or by retention."""
    return kept_for_groups(state, now) | (retained(state, now) - state.gone)


def retained(state: State, now: Now) -> set[int]:
    """Return what retention keeps: retention.md, "What is kept", "How old".

    The file of a message is kept while its newest message is inside of every bound. How many bytes are behind a file is
    not known here: any is too much for a small bound, and none for a large one. With ``max_bytes`` "finished files go".
    """
    options, end = state.options, len(state.messages)
    if not options.keeps_finished or options.max_bytes is not None:
        return set()
    if options.retain_bytes is not None and options.retain_bytes < options.data_file_bytes:
        return set()
    count = end if options.retain_messages is None else options.retain_messages
    since = 0
    if options.retain_age is not None and end:
        since = min(now.wall, state.messages[-1].put_at) - round(options.retain_age * SECOND_NS)
    return {offset for offset in range(max(0, end - count), end) if state.messages[offset].put_at >= since}


def with_gone(state: State, now: Now) -> State:
    """Note what may be gone by now: it does not come back if retention would keep it later on."""
    gone = set(range(len(state.messages))) - retained(state, now) - state.gone
    gone -= kept_for_groups(state, now) if gone else set()
    return replace(state, gone=state.gone | gone) if gone else state


def kept_for_groups(state: State, now: Now) -> set[int]:
    """Return what a group has not finished that has begun ("Keeping the log")."""
    return {offset for name in state.groups for offset in kept_by(replace(state, group=name), now)}


def kept_by(state: State, now: Now) -> list[int]:
    """Return what no handle can have dropped or swept, in the group of a state, if that has begun."""
    if not is_used(state, state.group):
        return []  # it "starts when it is first used"
    return [
        offset
        for offset in unfinished(state, state.own)
        if state.course(offset).state != "dead" and not may_have_ended(state, offset, now)
    ]


def judge_start(state: State, call: Call, offset: int, there: Collection[int], answer: Answer) -> None:
    """Judge where a start is: "a start that is not there any more means the oldest message behind it"."""
    first, end = wanted(state, call["start"], call.now), len(state.messages)
    allowed = Span(first, min((each for each in there if each >= first), default=end))
    expect(allowed.low <= offset <= allowed.high, WHERE, allowed, answer)


def seek(state: State, call: Call, answer: Answer) -> State:
    """Judge a seek: "one durable step", refused if the group has prepared transactions."""
    name = call["name"]
    if name not in state.groups:
        expect(answer.error == "GroupNotFoundError", MOVING, "GroupNotFoundError", answer)
        return state
    is_held = any(prepared.held and prepared.group == name for prepared in state.prepared.values())
    refused = {"TransactionStateError"} if is_held else set[str]()
    if is_behind(state, call["start"]):
        refused.add("ConfigError")
    if refused or answer.error is not None:
        expect(answer.error in refused, MOVING, refused or "moved", answer)
        return state
    offset, is_complete = answer.value
    there = kept(state, call.now)
    judge_start(state, call, offset, there, answer)
    first = offset if call["start"] == "earliest" else wanted(state, call["start"], call.now)
    missing = set(range(first, len(state.messages))) - there
    if is_complete:
        expect(offset == first, f"{MOVING}: is_complete", first, answer)
        missing = set()
    else:  # "once the message before the start is gone, its time is not known"
        is_unsure = isinstance(call["start"], tuple) and first - 1 not in there
        expect(is_unsure or bool(missing), f"{MOVING}: is_complete, as all is there", True, answer)
    return moved(state, name, offset, missing, call.now)


def moved(state: State, name: str, start: int, missing: set[int], now: Now) -> State:
    """Return the state in which a group has begun anew: the table of "Moving a group"."""
    own, theirs = state.group, replace(state, group=name)
    stay, unsure = letters_that_stay(theirs, start, missing, now)
    first = min([start, *stay])
    passed_over = {offset: Course("done") for offset in range(first, start)}
    group = replace(
        theirs.own,
        start=first,
        courses=passed_over | stay,
        passed=0,
        blurred=unsure + sum(offset >= start for offset in missing),
        missing=frozenset(missing),
    )
    ended = sum(may_have_ended(state, offset, now) for offset in state.live())
    state = with_group(state, group, name)
    if name != own:
        return replace(state, has_new_groups=True)  # how soon it counts for a bounded queue is not said
    for number, receipt in state.receipts.items():
        if receipt.state == "live":  # "each of their verbs raises LeaseExpiredError"
            state = settled(state, number, "run_out")
            gone = state.receipts[number]._replace(was_of=receipt.transaction)
            state = replace(state, receipts={**state.receipts, number: gone})
    dropped, filtered = (Span(low, high + ended) for low, high in (state.dropped, state.filtered))
    return replace(read_anew(state), dropped=dropped, filtered=filtered)


def letters_that_stay(state: State, start: int, missing: set[int], now: Now) -> tuple[dict[int, Course], int]:
    """Return the dead letters of the group of a state: "they stay, before and behind the start"; how many are unsure.

    Of one that no handle has seen, or that may have been swept, it is open whether it is one.
    """
    stay, unsure = dict[int, Course](), 0
    for offset in state.live():
        course = state.course(offset)
        reasons = may_be_dead(state, offset, now)
        is_sure = course.state == "dead" and not may_be_swept(state, offset, now)
        if is_sure:
            stay[offset] = course
        elif reasons:
            unsure += 1
            stay[offset] = Course(
                times=Span(0, course.times.high),
                ready_at=Span(0, state.messages[offset].not_before),
                place="either",
                perhaps=frozenset(reasons),
                may_be_gone=offset < start or offset in missing,
                rank=(offset, 0),
            )
    return stay, unsure


def read(state: State, call: Call, answer: Answer) -> State:
    """Judge a read of the log: "finished messages and dead letters are read, too", in their order, without a lock."""
    # "In the mode ``read_only`` ... a crash may leave one that is behind the end of the log".
    is_whole = call.verb == "read" or state.end == "closed"
    if is_behind(state, call["start"]) or (answer.error == "ConfigError" and not is_whole):
        expect(answer.error == "ConfigError", READING, "ConfigError", answer)
        return state
    expect(answer.error is None, READING, "messages", answer)
    found, gaps, damage = answer.value
    first, end = wanted(state, call["start"], call.now), len(state.messages)
    stop = end if call["stop"] is None else min(end, wanted(state, call["stop"], call.now))
    asked = range(first, max(first, stop)) if is_whole else range(end)
    offsets = [seen.offset for seen in found]
    expect(offsets == sorted(set(offsets)), f"{READING}: in their order", sorted(set(offsets)), answer)
    for seen in found:
        is_right = seen.offset in asked and seen.payload == state.messages[seen.offset].payload
        expect(is_right, READING, f"what was put, of {asked}", seen)
    there = kept(state, call.now).intersection(asked)
    if not is_whole:
        return state
    left_out = there - set(offsets)
    expect(not left_out, READING, f"{sorted(left_out)} too", answer)
    told = {offset for gap in gaps for offset in range(*gap)}
    expect(not told & there and not damage, f"{READING}: gaps", "none of what is there", answer)
    if call["start"] != "earliest" and not isinstance(call["start"], tuple):
        gone = set(asked) - set(offsets) - told
        expect(not gone, f"{READING}: gaps", f"{sorted(gone)} among them", answer)
    return state


RULES: dict[str, Callable[[State, Call, Answer], State | tuple[State, ...]]] = {
    "seek": seek,
    "read": read,
    "read_beside": read,
}

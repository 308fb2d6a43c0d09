"""Rules for a pass of retention: retention.md, "The pass", "Groups that are too far behind"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from proof.second_model.facts import SECOND_NS, Now, Span, State, expect, with_course, with_group
from proof.second_model.history import Answer, Call
from proof.second_model.rules.configuring import with_what_has_ended
from proof.second_model.rules.purging import perhaps_gone
from proof.second_model.rules.putting import may_have_ended
from proof.second_model.rules.replaying import kept
from proof.second_model.rules.transitions import finished, read_anew, settled

PASS = 'retention.md "Groups that are too far behind"'


def pass_over(state: State, call: Call, answer: Answer) -> tuple[State, ...]:
    """Judge a pass: each group that has a bound skips what is outside of it; dead letters and votes stay."""
    expect(answer.error is None, PASS, "done", answer)
    own, states = state.group, tuple[State, ...]((replace(state, was_keeping=False),))
    for name in call["begun"]:
        if name in state.groups:
            theirs = [replace(one, group=name) for one in states]
            states = tuple(
                replace(skipped_in(one, end, call), group=own) for one in theirs for end in ends_of_lag(one, call)
            )
    return states


def ends_of_lag(state: State, call: Call) -> list[int]:
    """Return up to where the group may have to skip.

    A bound of bytes is always that of one byte, so every file that has anything behind it is outside. Of an age
    it is open how much is known: "as young as the one behind it". Files between those that are there may be gone. So
    the newest message of a file is what is kept in front of the next one, or what its name says, or a later one.
    """
    last = max((first for first, _ in call["files"]), default=0)
    if state.options.max_lag_bytes is not None:
        return [last]
    if state.options.max_lag_age is None or not last:
        return [0]
    now = min(call.now.wall, state.messages[-1].put_at)
    oldest = now - round(state.options.max_lag_age * SECOND_NS)
    begins = sorted({first for first, _ in (*call["before"], *call["files"])})
    there = kept(state, call.now).union(begins) - {len(state.messages)}
    end = min((offset for offset in there if state.messages[offset].put_at >= oldest), default=last)
    return [0] + [first for first in begins if 0 < first <= min(last, end)]


def skipped_in(state: State, end: int, call: Call) -> State:
    """Return the state in which the group has skipped what it has to; what has expired may be ended instead."""
    state = read_anew(with_what_has_ended(state, call.now))
    low, high = state.own.skipped
    for offset in state.live():
        course = state.course(offset)
        if offset >= end or course.state not in ("waiting", "leased") or course.transaction is not None:
            continue
        is_in_hand = course.state == "leased" and (course.lease is None or call.now.mono < course.lease.low)
        high += 1
        if is_in_hand or comes_again(state, offset, call.now):  # in hand it does not expire
            low += 1
            state = settled(finished(state, offset), course.receipt, "run_out")
            state = with_course(state, offset, state.course(offset)._replace(reasons=frozenset({"skipped"})))
        else:  # noticed first, a lease that is over has run out all the same
            state = perhaps_gone(settled(state, course.receipt, "run_out"), offset)
    return with_group(state, replace(state.own, skipped=Span(low, high)))


def comes_again(state: State, offset: int, now: Now) -> bool:
    """Whether a message surely waits once its lease, if it has one, is noticed to be over."""
    most, course = state.options.max_deliveries, state.course(offset)
    may_be_dead = course.state == "leased" and most is not None and course.times.high >= most
    return not may_be_dead and not may_have_ended(state, offset, now)


RULES: dict[str, Callable[[State, Call, Answer], State | tuple[State, ...]]] = {"pass_over": pass_over}

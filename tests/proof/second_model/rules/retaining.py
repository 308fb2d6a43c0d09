"""Rules for a pass of retention: retention.md, "The pass", "Groups that are too far behind"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from proof.second_model.facts import Span, State, expect, with_group
from proof.second_model.history import Answer, Call
from proof.second_model.rules.configuring import with_what_has_ended
from proof.second_model.rules.purging import perhaps_gone
from proof.second_model.rules.putting import may_have_ended
from proof.second_model.rules.transitions import finished, read_anew, settled

PASS = 'retention.md "Groups that are too far behind"'


def pass_over(state: State, call: Call, answer: Answer) -> State:
    """Judge a pass: each group that has a bound skips what is not in the last data file; dead letters and votes stay.

    The bound is always that of one byte, so every file that has anything behind it is outside.
    """
    expect(answer.error is None, PASS, "done", answer)
    end = max((first for first, _ in call["files"]), default=0)
    own = state.group
    for name in call["begun"]:
        if name in state.groups:
            state = replace(skipped_in(replace(state, group=name), end, call), group=own)
    return state


def skipped_in(state: State, end: int, call: Call) -> State:
    """Return the state in which the group has skipped what it has to; what has expired may be ended instead."""
    state = read_anew(with_what_has_ended(state, call.now))
    if state.options.max_lag_bytes is None:
        return state
    low, high = state.own.skipped
    for offset in state.live():
        course = state.course(offset)
        if offset >= end or course.state not in ("waiting", "leased") or course.transaction is not None:
            continue
        if course.state == "leased":  # in hand it does not expire
            is_sure = course.lease is None or call.now.mono < course.lease.low
        else:
            is_sure = not may_have_ended(state, offset, call.now)
        high += 1
        if is_sure:
            low += 1
            receipt = course.receipt
            state = settled(finished(state, offset), receipt, "run_out")
        else:
            state = perhaps_gone(state, offset)
    return with_group(state, replace(state.own, skipped=Span(low, high)))


RULES: dict[str, Callable[[State, Call, Answer], State | tuple[State, ...]]] = {"pass_over": pass_over}

"""Rules for settings that are changed: settings.md, "Changed later"; the docstring of ``configure``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from proof.second_model.facts import (
    OF_GROUP,
    SECOND_NS,
    Course,
    Now,
    State,
    expect,
    with_course,
    with_group,
    with_settings,
)
from proof.second_model.history import Answer, Call
from proof.second_model.rules.dead_letters import died_and_swept, may_be_dead, may_be_swept
from proof.second_model.rules.order import NO, expiry
from proof.second_model.rules.putting import can_work
from proof.second_model.rules.replaying import with_gone

CHANGED = 'settings.md "Changed later"'


def configure(state: State, call: Call, answer: Answer) -> State:
    """Judge configure: stored, and "they count here at once", in the handle that is open and in later ones."""
    changed, reset = call["settings"], call["reset"] or []
    after = configured(state, changed, reset, call.now)
    if not set(reset).isdisjoint(changed) or not can_work(after.options):
        expect(answer.error == "ConfigError", CHANGED, "ConfigError", answer)
        return state
    expect(answer.error is None, CHANGED, "changed", answer)
    return after


def configured(state: State, changed: Mapping[str, Any], reset: Iterable[str], now: Now) -> State:
    """Return the state under other settings; what has ended by the old ones, seen or not, does not come back."""
    state = replace(with_gone(state, now), was_keeping=state.was_keeping or state.options.keeps_finished)
    sweeps_from = now.wall if "dead_letter_seconds" in {*changed, *reset} else state.sweeps_from
    return replace(with_settings(with_what_has_ended(state, now), changed, reset), sweeps_from=sweeps_from)


def with_what_has_ended(state: State, now: Now) -> State:
    """Note what may have ended unseen by the settings that count till now."""
    blurred = state.own.blurred + died_and_swept(state, now)
    for offset in state.live():
        course = state.course(offset)
        ends = ends_of(state, offset, course, now)
        if ends - course.perhaps:
            state = with_course(state, offset, course._replace(perhaps=course.perhaps | ends))
    state = with_group(state, replace(state.own, blurred=blurred))
    window = round(state.options.dedup_window * SECOND_NS)
    ids = {
        name: known._replace(is_sure=known.is_sure and now.wall - known.at < window)
        for name, known in state.ids.items()
    }
    return replace(state, ids=ids)


def ends_of(state: State, offset: int, course: Course, now: Now) -> frozenset[str]:
    """Return how a message may have ended by now."""
    if course.state == "dead":
        return frozenset({"swept"} if may_be_swept(state, offset, now) else ())
    if course.state != "waiting" or course.is_left_out:
        return frozenset()
    ends = may_be_dead(state, offset, now)
    kept_ns = round(state.options.dead_letter_seconds * SECOND_NS)
    if ends and now.wall >= state.messages[offset].put_at + kept_ns:
        ends.add("swept")
    if expiry(state, offset, now) != NO and (state.options.expired == "drop" or state.own.blurred):
        ends.add("dropped")
    return frozenset(ends)


def cut_off(state: State, call: Call, answer: Answer) -> tuple[State, ...]:
    """Return what a change of both kinds leaves that a crash ends: it "writes those of the queue first"."""
    if call.verb != "configure" or answer.error is not None:
        return ()
    of_queue = {name: value for name, value in call["settings"].items() if name not in OF_GROUP}
    return (configured(state, of_queue, set(call["reset"] or ()) - OF_GROUP, call.now),)


def settings(state: State, call: Call, answer: Answer) -> State:
    """Judge ``queue.settings``: all of them as they count now, in this handle."""
    expect(answer.error is None, "PersistentQueue.settings", "all settings", answer)
    count_now = asdict(state.options)
    differs = {name for name, value in answer.value.items() if count_now[name] != value}
    expect(not differs, "PersistentQueue.settings", count_now, answer)
    return state


RULES: dict[str, Callable[[State, Call, Answer], State | tuple[State, ...]]] = {
    "configure": configure,
    "settings": settings,
}

"""Rules for pauses, groups, closing, opening, and the death of the process or of the power."""

from dataclasses import replace

from proof.second_model.expressions import EXPRESSIONS
from proof.second_model.facts import (
    NOTHING,
    Course,
    Group,
    Pause,
    Span,
    State,
    expect,
    with_course,
    with_group,
    with_settings,
)
from proof.second_model.history import Answer, Call
from proof.second_model.rules.putting import can_work, may_have_ended
from proof.second_model.rules.replaying import is_behind, is_used, judge_start, kept, unfinished, with_gone
from proof.second_model.rules.transitions import read_anew, with_transaction, without_leases

PAUSE = 'work-queue.md "Pause and browse"'


def pause(state: State, call: Call, answer: Answer) -> State:
    """Judge pause: nothing is handed out, over restarts too, until then or until resume."""
    expect(answer.error is None, PAUSE, "paused", answer)
    return with_group(state, replace(state.own, pause=Pause(call["until"], call["reason"] or "")))


def resume(state: State, call: Call, answer: Answer) -> State:
    """Judge resume."""
    expect(answer.error is None, PAUSE, "resumed", answer)
    return with_group(state, replace(state.own, pause=None))


def create_group(state: State, call: Call, answer: Answer) -> State:
    """Judge groups.create: "return the offset where it starts. Nothing happens where it exists"."""
    rule, name, expression = "Groups.create", call["name"], call["filter"]
    if expression not in (None, *EXPRESSIONS):
        expect(answer.error == "ConfigError", 'filters.md "Expressions"', "ConfigError", answer)
        return state
    if name in state.groups and expression not in (None, state.groups[name].filter):
        expect(answer.error == "ConfigError", 'filters.md "What is promised"', "ConfigError", answer)
        return state
    if name in state.groups:
        expect(answer.error is None, rule, "nothing happens", answer)
        return state
    if is_behind(state, call["start"]):
        expect(answer.error == "ConfigError", rule, "ConfigError", answer)
        return state
    expect(answer.error is None, rule, "made", answer)
    there = kept(state, call.now)  # what everybody has finished may be there still, or not any more
    judge_start(state, call, answer.value, there, answer)
    missing = frozenset(range(answer.value, len(state.messages))) - there
    group = Group(start=answer.value, missing=missing, settings=call["settings"] or {}, filter=expression)
    return with_group(replace(state, has_new_groups=True), group, name)


def delete_group(state: State, call: Call, answer: Answer) -> State:
    """Judge groups.delete: its progress goes; not while somebody reads for it."""
    rule, name = "Groups.delete", call["name"]
    if name not in state.groups:
        expect(answer.error == "GroupNotFoundError", rule, "GroupNotFoundError", answer)
        return state
    if name == state.group:
        expect(answer.error == "QueueLockedError", rule, "QueueLockedError", answer)
        return state
    expect(answer.error is None, rule, "deleted", answer)
    state = replace(state, has_new_groups=True)
    return replace(state, groups={other: group for other, group in state.groups.items() if other != name})


def list_groups(state: State, call: Call, answer: Answer) -> State:
    """Judge groups.list: the names, sorted; "the default group is among them once it was used"."""
    names = sorted(name for name in state.groups if name in answer.value or is_used(state, name))
    expect(answer.value == names, "Groups.list", names, answer)
    return state


def close(state: State, call: Call, answer: Answer) -> State:
    """Judge close: deliveries are given back uncounted; open transactions abort, prepared ones stay."""
    expect(answer.error is None, "PersistentQueue.close", "closed", answer)
    return replace(ended(state, call, counts=False), end="closed")


def kill(state: State, call: Call, answer: Answer) -> State:
    """Judge the death of the process: all that had returned is kept; what was in hand counts."""
    return ended(state, call, counts=True)


def ended(state: State, call: Call, *, counts: bool) -> State:
    """End a handle."""
    for number, tx in state.transactions.items():
        if tx.state == "open":
            state = with_transaction(state, number, "aborted")
    state = without_leases(state, counts=counts)
    receipts = {
        number: receipt._replace(state="lost", transaction=None) if receipt.state == "live" else receipt
        for number, receipt in state.receipts.items()
    }
    prepared = {name: replace(one, tx=None) for name, one in state.prepared.items()}
    return replace(state, receipts=receipts, prepared=prepared, transactions={})


def power_loss(state: State, call: Call, answer: Answer) -> State:
    """Judge a loss of power under ``every_commit``: puts, acks and decisions are kept.

    Of a nack, a release and a delivery only that the message comes again: "without its wait and perhaps with a smaller
    count" (durability.md, "What the other verbs survive").
    """
    state = ended(state, call, counts=True)
    own = state.group
    for name in state.groups:  # a kill may have left another group's entries unsynced too
        state = vague(replace(state, group=name))
    return replace(state, group=own)


def succession(state: State, call: Call, answer: Answer) -> State:
    """Judge another owner of a shared queue, with sessions that live: its log is read from the start."""
    return read_anew(state)


def vague(state: State) -> State:
    """Return what is sure of a group's progress after a loss of power."""
    for offset, course in state.own.courses.items():
        times = Span(0, course.times.high + (not course.comes_alone))  # a release that is lost counts
        reasons = {"lease_expired", "max_deliveries", "expired"}  # not by an acknowledgement: perhaps not synced
        if course.state == "waiting" or (course.state == "dead" and course.reasons & reasons):
            not_before = 0 if course.was_retried else state.messages[offset].not_before
            ready_at = Span(min(not_before, course.ready_at.high), course.ready_at.high)
            defies = None if course.was_retried else course.defies_expiry  # what used the retry up may be lost
            again = course._replace(state="waiting", times=times, ready_at=ready_at, place="either", dead_at=NOTHING)
            if course.state == "dead":  # or it is one still, whatever the settings are by then
                again = again._replace(reasons=frozenset(), perhaps=course.perhaps | course.reasons)
            state = with_course(state, offset, again._replace(comes_alone=False, defies_expiry=defies))
        elif "swept" in course.reasons:  # that may be lost too
            again = course._replace(state="waiting", times=times, ready_at=NOTHING, place="either", dead_at=NOTHING)
            again = again._replace(reasons=frozenset(), perhaps=course.reasons, defies_expiry=None, detail=None)
            state = with_course(state, offset, again)
        elif "filtered" in course.reasons:  # "messages that were filtered may be read again"
            delay = Span(state.messages[offset].not_before, state.messages[offset].not_before)
            again = course._replace(state="waiting", ready_at=delay, place="either", is_left_out=True)
            state = with_course(state, offset, again._replace(reasons=frozenset()))
        elif "skipped" in course.reasons:  # "a message that was skipped may come again"
            again = course._replace(state="waiting", place="either", reasons=frozenset(), may_be_gone=True)
            state = with_course(state, offset, again)
            low, high = state.own.skipped
            state = with_group(state, replace(state.own, skipped=Span(max(0, low - 1), high)))
        elif "dropped" in course.reasons:  # how durable that is is not said
            again = course._replace(state="waiting", place="either", reasons=frozenset(), perhaps=course.reasons)
            state = with_course(state, offset, again)
        elif course.state == "dead":  # "their text and their traceback ... may be missing"
            state = with_course(state, offset, course._replace(detail=None))
    return state


def open_again(state: State, call: Call, answer: Answer) -> State:
    """Judge an opening: settings are those that are stored; lines of order keys are as they were put.

    Another value than the stored one is refused, and "nothing has changed then"; so is one that cannot work with it.
    """
    group, before = call["group"] or state.group, state
    state = with_gone(state, call.now)
    if group not in state.groups:
        state = with_group(state, Group(start=0), group)
    state = replace(state, group=group)
    known, given = {**state.settings, **state.own.settings}, call["given"]
    differs = {name for name, value in given.items() if known.get(name, value) != value}
    state = with_settings(state, given)
    if differs or not can_work(state.options):
        expect(
            answer.error == "ConfigError", 'settings.md "Set first, then adopted"', f"ConfigError, as {known}", given
        )
        return before
    expect(answer.error is None, "PersistentQueue", "opened", answer)
    state = replace(
        state,
        dedup_max=state.options.dedup_max,
        read_end=0,
        end="",
        sweeps_from=call.now.wall,
        dropped=NOTHING,
        filtered=NOTHING,
        without_answer=frozenset(),
        forgotten=Span(0, len(state.ids)),
        has_new_groups=False,
    )
    own = state.own
    if (
        not is_used(state, group) and len(state.groups) > 1
    ):  # it "starts when it is first used", with what is there then
        own = replace(own, missing=frozenset(range(len(state.messages))) - kept(state, call.now))
        state = with_group(state, own)
    passing = sum(may_have_ended(state, offset, call.now) for offset in unfinished(state, own))
    courses = {offset: reopened(state, offset, course) for offset, course in own.courses.items()}
    return with_group(state, replace(own, courses=courses, passed=0, blurred=passing))


def reopened(state: State, offset: int, course: Course) -> Course:
    """Return what an opening makes of a message: it waits in the log until reading has come by it."""
    place = "either" if course.state == "waiting" else course.place
    return course._replace(rank=(offset, 0), place=place, receipt=None)


def tick(state: State, call: Call, answer: Answer) -> State:
    """Let time go by."""
    return state


RULES = {
    "pause": pause,
    "resume": resume,
    "create_group": create_group,
    "delete_group": delete_group,
    "list_groups": list_groups,
    "close": close,
    "kill": kill,
    "power_loss": power_loss,
    "succession": succession,
    "open": open_again,
    "tick": tick,
}

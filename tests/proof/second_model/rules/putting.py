"""Rules for puts: work-queue.md, "Delay and expiry", "Priority", "Deduplication"; the docstrings of put, put_many."""

from dataclasses import replace
from typing import Any

from proof.second_model.facts import SECOND_NS, Ask, Now, Span, State, expect
from proof.second_model.history import Answer, Call
from proof.second_model.rules.order import is_passing
from proof.second_model.rules.transitions import appended


def ask_of(options: dict[str, Any], now: Now) -> Ask:
    """Return what one put asks for; delay and ttl count from the call, also in a transaction."""
    delay, ttl = options.get("delay"), options.get("ttl")
    not_before = options.get("not_before")
    return Ask(
        payload=options["payload"],
        not_before=not_before or 0 if delay is None else now.wall + round(delay * SECOND_NS),
        expires=None if ttl is None else now.wall + round(ttl * SECOND_NS),
        priority=options.get("priority") or 0,
        order_key=options.get("order_key"),
    )


def unfinished(state: State, now: Now) -> Span:
    """Return how many messages the slowest group has not finished, dead letters left out (PersistentQueue: maxsize)."""
    low = high = 0
    for name, group in state.groups.items():
        every, theirs = range(group.start, len(state.messages)), replace(state, group=name)
        left = [offset for offset in every if theirs.course(offset).state in ("waiting", "leased", "held")]
        count, unsure = len(left), sum(may_have_ended(theirs, offset, now) for offset in left)
        high = max(high, count)
        if name != "default" or group.courses or len(state.groups) == 1:  # it "starts when it is first used"
            low = max(low, count - unsure)
    return Span(low, high)


def may_have_ended(state: State, offset: int, now: Now) -> bool:
    """Whether a message counts only until a consumer comes by it ("An expired one ... counts in depth until")."""
    expires = state.messages[offset].expires
    is_over = expires is not None and now.wall >= expires
    return is_passing(state, offset, now) or is_over or state.course(offset).may_be_gone


def room(state: State, count: int, now: Now) -> set[str]:
    """Return which answers a bounded queue may give: no more than ``maxsize`` with these, prepared puts left out."""
    maxsize = state.options.maxsize
    if not maxsize or not count:
        return {"room"}
    if state.has_new_groups:  # how soon a group counts that was made or deleted is not said
        return {"room", "Full"}
    taken = unfinished(state, now)
    answers = set()
    if taken.low + count <= maxsize:
        answers.add("room")
    if taken.high + count > maxsize:
        answers.add("Full")
    return answers


def put(state: State, call: Call, answer: Answer) -> State:
    """Judge a put."""
    dedup_id = call["dedup_id"]
    remembered = state.ids.get(dedup_id) if dedup_id is not None else None
    window = round(state.options.dedup_window * SECOND_NS)
    age = None if remembered is None else call.now.wall - remembered[1]
    if remembered is not None and age is not None and age <= window and answer.value == remembered[0]:
        return state  # "a second put of the same id within the window writes nothing and returns the first one's"
    rule = 'work-queue.md "Deduplication"'
    if age is not None and age < window:
        is_full = answer.error == "Full" and "Full" in room(state, 1, call.now)
        expect(is_full, rule, f"offset {remembered}, remembered", answer)
        return state
    answers = room(state, 1, call.now)
    if answer.error == "Full":
        expect("Full" in answers, "PersistentQueue: maxsize", "room", answer)
        return state
    expect("room" in answers, "PersistentQueue: maxsize", "Full", answer)
    expect(answer.value == len(state.messages), "durability.md promise 3", len(state.messages), answer)
    state = appended(state, ask_of(call.arguments, call.now), call.now)
    return state if dedup_id is None else remembering(state, dedup_id, call.now)


def remembering(state: State, dedup_id: str, now: Now) -> State:
    """Remember an id from now on: no more than dedup_max of them, "the oldest are forgotten early"."""
    window = round(state.options.dedup_window * SECOND_NS)
    ids = {name: known for name, known in state.ids.items() if name != dedup_id and now.wall - known[1] <= window}
    at_the_end = sum(now.wall - known[1] == window for known in ids.values())
    ids[dedup_id] = (len(state.messages) - 1, now.wall)
    forgotten = state.forgotten
    while len(ids) > state.options.dedup_max:
        oldest = min(ids, key=lambda name: ids[name][0])
        del ids[oldest]
        forgotten = Span(forgotten.low + (at_the_end == 0), forgotten.high + 1)
        at_the_end = max(at_the_end - 1, 0)
    return replace(state, ids=ids, forgotten=forgotten)


def put_many(state: State, call: Call, answer: Answer) -> State:
    """Judge a batch: "all of it or nothing", offsets in the order given."""
    items, most = call["items"], state.options.maxsize
    if 0 < most < len(items):
        expect(answer.error == "RecordTooLargeError", "PersistentQueue: maxsize", "RecordTooLargeError", answer)
        return state
    answers = room(state, len(items), call.now)
    if answer.error == "Full":
        expect("Full" in answers, "PersistentQueue: maxsize", "room", answer)
        return state
    expect("room" in answers, "PersistentQueue: maxsize", "Full", answer)
    offsets = list(range(len(state.messages), len(state.messages) + len(items)))
    expect(answer.value == offsets, "PersistentQueue.put_many", offsets, answer)
    for item in items:
        state = appended(state, ask_of(item, call.now), call.now)
    return state


RULES = {"put": put, "put_many": put_many}

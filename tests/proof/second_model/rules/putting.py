"""Rules for puts: work-queue.md, "Delay and expiry", "Priority", "Deduplication"; the docstrings of put, put_many."""

from dataclasses import replace
from typing import Any

from proof.second_model.facts import SECOND_NS, Ask, Now, Options, Remembered, Span, State, expect
from proof.second_model.history import Answer, Call
from proof.second_model.rules.order import is_passing
from proof.second_model.rules.transitions import appended

TOO_LARGE = "PersistentQueue: record_bytes_max"


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
        headers=tuple(sorted(options.get("headers", {}).items())),
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


def is_too_large(most: int, items: list[dict[str, Any]]) -> bool:
    """Whether a payload is larger than ``record_bytes_max``."""
    return any(len(item["payload"]) > most for item in items)


def room(state: State, put_count: int, call: Call, finished_count: int = 0) -> set[str]:
    """Return which answers a bounded queue may give: either bound may refuse, both have to allow."""
    if not put_count:
        return {"room"}
    both = room_for_messages(state, max(0, put_count - finished_count), call.now), room_for_files(state, call)
    answers = {"room"} if all("room" in each for each in both) else set()
    return answers | ({"Full"} if any("Full" in each for each in both) else set())


def room_for_files(state: State, call: Call) -> set[str]:
    """Return which answers ``max_bytes`` allows, from the data files that are there behind the call.

    "Puts wait while the data files take so much"; and "space comes back by whole data files" (work-queue.md, "Space"):
    at the latest when everything is finished, or, if retention kept it, "at the next pass" behind that (settings.md).
    """
    most, files = state.options.max_bytes, call["files"]
    if most is None:
        return {"room"}
    if files is None:
        return {"room", "Full"}
    answers = {"room"} if sum(size for _, size in files) - beyond_the_option(state, call) <= most else set()
    is_empty = not any(is_kept(state, offset) for offset in range(len(state.messages)))
    is_empty = is_empty and not (state.options.keeps_finished or state.was_keeping)
    kept = files[-1:] if is_empty else files  # the last one is being written
    return answers | ({"Full"} if sum(size for _, size in kept) + state.options.data_file_bytes > most else set())


def beyond_the_option(state: State, call: Call) -> int:
    """Return what the last file takes beyond its step: "a spare that is larger than the step is used as it is".

    A batch that is larger than ``data_file_bytes`` has a file of its own size (format.md, "Steps").
    """
    items = call.arguments.get("items") or ([call.arguments] if call.verb == "put" else [])
    asked = sum(len(item["payload"]) for item in items)
    last = max((size for _, size in call["files"][-1:]), default=0)
    return max(0, last - max(state.options.data_file_bytes, asked))


def is_kept(state: State, offset: int) -> bool:
    """Whether a message may keep its data file, in any group."""
    theirs = (replace(state, group=name) for name in state.groups)
    return any(offset >= each.own.start and each.course(offset).state != "done" for each in theirs)


def can_work(options: Options) -> bool:
    """Whether sizes go together: settings.md, the table: "at least two data files"."""
    return options.max_bytes is None or options.max_bytes >= 2 * options.data_file_bytes


def room_for_messages(state: State, count: int, now: Now) -> set[str]:
    """Return which answers ``maxsize`` allows: no more than that with these, prepared puts left out."""
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
    if is_too_large(state.options.record_bytes_max, [call.arguments]):
        expect(answer.error == "RecordTooLargeError", TOO_LARGE, "RecordTooLargeError", answer)
        return state
    if remembered is not None and call.now.wall - remembered.at <= window and answer.value == remembered.offset:
        # "a second put of the same id within the window writes nothing and returns the first one's"
        return replace(state, ids={**state.ids, dedup_id: remembered._replace(is_sure=True)})
    answers = room(state, 1, call)
    if remembered is not None and remembered.is_sure and call.now.wall - remembered.at < window:
        is_full = answer.error == "Full" and "Full" in answers
        expect(is_full, 'work-queue.md "Deduplication"', f"offset {remembered}, remembered", answer)
        return state
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
    ids = {name: known for name, known in state.ids.items() if name != dedup_id}
    kept = {dedup_id: Remembered(len(state.messages) - 1, now.wall)}
    newer = Span(1, 1)
    for name, known in sorted(ids.items(), key=lambda item: -item[1].offset):
        age = now.wall - known.at
        if age > window:  # a longer window may bring it back
            kept[name] = known
            continue
        is_sure = known.is_sure and age < window
        if newer.low < state.dedup_max:
            kept[name] = known._replace(is_sure=known.is_sure and newer.high < state.dedup_max)
        newer = Span(newer.low + is_sure, newer.high + 1)
    low, high = (max(0, count - state.dedup_max) for count in newer)
    return replace(state, ids=kept, forgotten=Span(state.forgotten.low + low, state.forgotten.high + high))


def put_many(state: State, call: Call, answer: Answer) -> State:
    """Judge a batch: "all of it or nothing", offsets in the order given."""
    items, most = call["items"], state.options.maxsize
    if is_too_large(state.options.record_bytes_max, items):
        expect(answer.error == "RecordTooLargeError", TOO_LARGE, "RecordTooLargeError", answer)
        return state
    if 0 < most < len(items):
        expect(answer.error == "RecordTooLargeError", "PersistentQueue: maxsize", "RecordTooLargeError", answer)
        return state
    answers = room(state, len(items), call)
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

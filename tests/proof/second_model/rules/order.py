"""What comes next: work-queue.md, "What comes next", "Priority", "Order keys", "Delay and expiry"."""

from proof.second_model.facts import Course, Now, State

CERTAIN, POSSIBLE, NO = "certain", "possible", "no"


def availability(state: State, offset: int, now: Now) -> str:
    """Return whether a message could be handed out now."""
    if state.own.pause is not None:
        return NO
    course = state.course(offset)
    if course.is_left_out:
        return NO
    if course.state == "leased":
        may_have_run_out = course.lease is not None and now.mono >= course.lease.low
        return POSSIBLE if may_have_run_out and doom(state, course) != CERTAIN else NO
    if course.state != "waiting" or course.ready_at.low > now.wall:
        return NO
    against = {doom(state, course), expiry(state, offset, now)} | ({POSSIBLE} if course.perhaps else set())
    turn = has_turn(state, offset, now)
    if CERTAIN in against or turn == NO:
        return NO
    is_ready = course.ready_at.high <= now.wall and against == {NO} and turn == CERTAIN
    return CERTAIN if is_ready and not course.may_be_gone else POSSIBLE


def doom(state: State, course: Course) -> str:
    """Return whether a message was handed out as often as it may be: it is a dead letter as soon as it is noticed."""
    most = state.options.max_deliveries
    if most is None or course.times.high < most:
        return NO
    return CERTAIN if course.times.low >= most else POSSIBLE


def expiry(state: State, offset: int, now: Now) -> str:
    """Return whether the time to live is over: from then on nobody is given the message."""
    expires = state.messages[offset].expires
    course = state.course(offset)
    if expires is None or now.wall < expires or course.defies_expiry is True:
        return NO
    return POSSIBLE if course.defies_expiry is None else CERTAIN


def is_passing(state: State, offset: int, now: Now) -> bool:
    """Whether a message may become a dead letter, or be dropped or left out, when a consumer reaches it."""
    course = state.course(offset)
    if course.is_left_out:
        return True
    if course.state == "leased" and course.lease is not None and now.mono >= course.lease.low:
        return doom(state, course) != NO
    if course.state != "waiting":
        return False
    return doom(state, course) != NO or expiry(state, offset, now) != NO or bool(course.perhaps)


def has_turn(state: State, offset: int, now: Now) -> str:
    """Return whether a message is the first of its order key: "the first one holds its key back"."""
    key = state.messages[offset].order_key
    if key is None:
        return CERTAIN
    mine, turn = state.course(offset), CERTAIN
    for other in state.live():
        if state.messages[other].order_key != key or other == offset:
            continue
        course = state.course(other)
        if course.state == "dead" or course.is_left_out:
            continue
        if either_first(mine, course):
            turn = POSSIBLE
        elif course.rank < mine.rank:
            if not is_passing(state, other, now) and not course.may_be_gone:
                return NO
            turn = POSSIBLE
    return turn


def either_first(mine: Course, other: Course) -> bool:
    """Whether it is open which of two of one key comes first.

    A retried dead letter "comes behind whoever has the turn then" and "joins the end of its key's line": whether a
    message has the turn, or a place in the line, that nobody was handed yet is not said.
    """
    both = (mine, other)
    if all(one.state == "waiting" for one in both) and any(one.rank[1] and one.place == "either" for one in both):
        return True  # retried before reading came by it: then it stands where it was put
    is_retried = mine.rank[1] > 0, other.rank[1] > 0
    has_begun = any(one.state in ("leased", "held") or one.times.high > 0 for one in both if not one.rank[1])
    return is_retried[0] != is_retried[1] and not has_begun


def surely_before(state: State, first: int, second: int) -> bool:
    """Whether one ready message has to be handed out before another."""
    larger, smaller = state.messages[first].priority, state.messages[second].priority
    if larger != smaller:
        return larger > smaller
    places = state.course(first).place, state.course(second).place
    if first > second:
        return places == ("aside", "log")
    return places[0] == "aside" or places[1] == "log"


def come_next(state: State, now: Now) -> list[int]:
    """Return the messages that may be the next to be handed out."""
    sure = certain(state, now)
    return [
        offset
        for offset in possible(state, now)
        if not any(other != offset and surely_before(state, other, offset) for other in sure)
    ]


def certain(state: State, now: Now) -> list[int]:
    """Return the messages that can be handed out without doubt."""
    return [offset for offset in state.live() if availability(state, offset, now) == CERTAIN]


def possible(state: State, now: Now) -> list[int]:
    """Return the messages that can be handed out, some of them only perhaps."""
    return [offset for offset in state.live() if availability(state, offset, now) != NO]


def may_share_batch(state: State, batch: list[int], offset: int) -> bool:
    """Whether a message may follow others in a batch: "What comes next", 4.

    Those from aside and from the log are not mixed, and one that was handed out before and not released comes alone.
    """
    courses = [state.course(member) for member in (*batch, offset)]
    if any(course.comes_alone and course.times.low > 0 for course in courses):
        return False
    places = {course.place for course in courses}
    return not {"aside", "log"} <= places

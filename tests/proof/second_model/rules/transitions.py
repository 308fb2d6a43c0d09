"""The transitions: each is a line of the table of states in work-queue.md, and makes a new state of an old one."""

from dataclasses import replace

from proof.second_model.facts import (
    NOTICED_LATE_NS,
    SECOND_NS,
    Ask,
    Course,
    Message,
    Now,
    Options,
    Receipt,
    Span,
    State,
    with_course,
    with_group,
)

AT_ONCE = Span(0, 0)


def appended(state: State, ask: Ask, now: Now) -> State:
    """Put one message: it gets the next offset (durability.md, promise 3: contiguous, 0, 1, 2 ...)."""
    message = Message(len(state.messages), put_at=now.wall, **ask._asdict())
    has_priorities = state.has_priorities or message.priority > 0
    return replace(state, messages=(*state.messages, message), has_priorities=has_priorities)


def handed_out(
    state: State, offset: int, receipt: int, count: int, now: Now, lease_ns: int, transaction: int | None
) -> State:
    """Lease a message: "every delivery counts, before it is handed out" (work-queue.md, "Leases")."""
    course = state.course(offset)
    end = now.mono + lease_ns
    lease = None if transaction is not None else Span(end, end + NOTICED_LATE_NS)
    leased = course._replace(
        state="leased",
        times=Span(count, count),
        place="aside",
        receipt=receipt,
        lease=lease,
        lease_ns=lease_ns,
        transaction=transaction,
        may_be_gone=False,
        perhaps=frozenset(),
    )
    state = with_course(passed(state, offset), offset, leased)
    receipts = {**state.receipts, receipt: Receipt(offset, transaction=transaction)}
    return replace(state, receipts=receipts)


def passed(state: State, offset: int) -> State:
    """Note that the log was taken from up to an offset: what waited before it is aside from now on."""
    own, course = state.own, state.course(offset)
    if course.state != "waiting" or course.place != "log" or offset < own.passed or state.messages[offset].priority:
        return state
    state = with_group(state, replace(own, passed=offset + 1))
    for earlier in range(own.passed, offset):
        course = state.course(earlier)
        if course.state in ("waiting", "leased") and course.place == "either" and not course.rank[1]:
            state = with_course(state, earlier, course._replace(place="aside"))
    return state


def finished(state: State, offset: int) -> State:
    """End a message: it is never delivered again."""
    course = state.course(offset)
    state = settled(state, course.receipt, "settled")
    return with_course(passed(state, offset), offset, Course("done", times=course.times))


def read_anew(state: State) -> State:
    """Have the log be read from its start: what waits, or is given back, stands in it until reading has come by it."""
    own = state.own
    courses = {
        offset: course._replace(place="either") if course.state in ("waiting", "leased") else course
        for offset, course in own.courses.items()
    }
    return replace(with_group(state, replace(own, courses=courses, passed=0)), read_end=0)


def settled(state: State, receipt: int | None, how: str) -> State:
    """End a handing-out."""
    if receipt is None or receipt not in state.receipts:
        return state
    old = state.receipts[receipt]
    return replace(state, receipts={**state.receipts, receipt: old._replace(state=how, transaction=None)})


def given_back(state: State, offset: int, *, counts: bool, ready_at: Span = AT_ONCE, how: str = "settled") -> State:
    """Have a message come again: aside, if the log was read up to it (work-queue.md, "What comes next", 3).

    Alone, if it failed (4).
    """
    course = state.course(offset)
    state = settled(state, course.receipt, how)
    count = course.times if counts else Span(max(course.times.low - 1, 0), max(course.times.high - 1, 0))
    defies = course.defies_expiry
    if defies is not False:  # "retried it is handed out all the same, once: a failure ends it again"
        defies = False if counts else None
    back = course._replace(
        state="waiting",
        times=count,
        ready_at=ready_at,
        place="aside" if course.state == "held" else course.place,
        comes_alone=counts,
        defies_expiry=defies,
        receipt=None,
        lease=None,
        transaction=None,
        prepared=None,
    )
    return with_course(state, offset, back)


def buried(
    state: State, offset: int, reasons: set[str], now: Now, detail: str | None = None, since: int | None = None
) -> State:
    """Make a message a dead letter: neither in the depth nor handed out (work-queue.md, "Dead letters").

    ``since`` is when it may have become one, where that was noticed later.
    """
    course = state.course(offset)
    state = settled(state, course.receipt, "settled")
    dead = Course(
        "dead",
        times=course.times,
        was_retried=course.was_retried,
        may_be_gone=course.may_be_gone,
        rank=course.rank,
        reasons=frozenset(reasons),
        detail=detail,
        dead_at=Span(now.wall if since is None else since, now.wall),
    )
    return with_course(state, offset, dead)


def failed(
    state: State, offset: int, reason: str, now: Now, ready_at: Span, how: str = "settled", detail: str | None = None
) -> State:
    """End a delivery badly: "comes again; after the last delivery it is a dead letter" (work-queue.md, "Verbs")."""
    most = state.options.max_deliveries
    if most is not None and state.course(offset).times.low >= most:
        receipt = state.course(offset).receipt
        return settled(buried(state, offset, {reason}, now, detail), receipt, how)
    return given_back(state, offset, counts=True, ready_at=ready_at, how=how)


def revived(state: State, offset: int, now: Now) -> State:
    """Retry a dead letter: "as if it never had been handed out"; at the end of its key's line ("Limits")."""
    message = state.messages[offset]
    defies = message.expires is not None and now.wall >= message.expires
    rank = (len(state.messages) - 1, state.retried + 1)
    place = "aside" if offset < state.own.passed else "either"  # in the log, where reading has not come by it yet
    back = Course(place=place, defies_expiry=defies, was_retried=True, rank=rank)
    return replace(with_course(state, offset, back), retried=state.retried + 1)


def backoff_wait(options: Options, failure_count: int) -> Span:
    """Return how long a message waits: doubled each time up to the cap, "less up to a half at random"."""
    backoff = options.backoff
    if backoff and backoff[0] == "doubling":
        _, base, cap, jitter = backoff
        whole = min(float(base) * 2 ** (failure_count - 1), float(cap))
        most = round(whole * SECOND_NS)
        return Span(most // 2 if jitter else most, most)
    waits = [float(wait) for wait in backoff]  # "whose last one is used for all later failures"; an empty one: at once
    wait = round(waits[min(failure_count, len(waits)) - 1] * SECOND_NS) if waits else 0
    return Span(wait, wait)


def after(now: Now, wait: Span) -> Span:
    """Return when a wait that begins now is over."""
    return Span(now.wall + wait.low, now.wall + wait.high)


def with_pause_over(state: State, now: Now) -> State:
    """Return the state without a pause whose time is over."""
    own = state.own
    if own.pause is not None and own.pause.until is not None and now.wall >= own.pause.until:
        return with_group(state, replace(own, pause=None))
    return state


def brought_up_to(state: State, now: Now) -> State:
    """Notice what time has ended: leases and transactions run out."""
    for number, tx in state.transactions.items():
        if tx.state == "open" and now.mono >= tx.deadline.high:
            state = aborted(state, number, now)
    for offset, course in state.own.courses.items():
        if course.state == "leased" and course.lease is not None and now.mono >= course.lease.high:
            state = failed(state, offset, "lease_expired", now, AT_ONCE, "run_out")
    return state


def aborted(state: State, number: int, now: Now, backoff: bool = False) -> State:
    """Abort a transaction: transactions.md, "What it means", the table of ends, and "Acknowledging"."""
    tx = state.transactions[number]
    for receipt in tx.received:
        offset = state.receipts[receipt].offset
        course = state.course(offset)
        if course.receipt != receipt or course.transaction != number:
            continue
        if backoff:
            wait = backoff_wait(state.options, course.times.high)
            state = failed(state, offset, "exception", now, after(now, wait))
        else:
            state = given_back(state, offset, counts=True)
    for receipt in set(tx.acknowledged) - set(tx.received):
        state = back_to_receiver(state, receipt, now)
    return with_transaction(state, number, "aborted")


def with_transaction(state: State, number: int, to: str, offsets: range = range(0)) -> State:
    """Return the state in which a transaction is in another one."""
    tx = replace(state.transactions[number], state=to, offsets=offsets)
    return replace(state, transactions={**state.transactions, number: tx})


def back_to_receiver(state: State, receipt: int, now: Now) -> State:
    """Give a delivery back to whoever received it; "their leases begin again"."""
    old = state.receipts[receipt]
    course = state.course(old.offset)
    if course.receipt != receipt:
        return state
    lease = None
    if not old.is_in_block:
        lease = Span(now.mono + course.lease_ns, now.mono + course.lease_ns + NOTICED_LATE_NS)
    state = with_course(
        state, old.offset, course._replace(state="leased", transaction=None, prepared=None, lease=lease)
    )
    return replace(state, receipts={**state.receipts, receipt: old._replace(transaction=None)})


def without_leases(state: State, *, counts: bool) -> State:
    """End what was in hand: uncounted at a close, counted where the process died (work-queue.md, "Leases")."""
    for offset, course in state.own.courses.items():
        if course.state != "leased":
            continue
        state = given_back(state, offset, counts=counts, how="lost")
    return state

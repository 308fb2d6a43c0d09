"""Rules for the verbs of a delivery and of a batch: work-queue.md, "Leases", "Verbs", "Batches"."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from proof.second_model.facts import NOTICED_LATE_NS, SECOND_NS, Now, Span, State, expect, with_course
from proof.second_model.history import Answer, Call
from proof.second_model.rules.transitions import (
    AT_ONCE,
    aborted,
    after,
    backoff_wait,
    buried,
    failed,
    finished,
    given_back,
)

VERBS = 'work-queue.md "Verbs"'


def refusals(state: State, receipt: int, now: Now) -> set[str]:
    """Return how a verb on one delivery may be answered: "" where it is done."""
    known = state.receipts[receipt]
    if known.state == "settled":
        return {"StaleReceiptError"}
    if known.state == "run_out":  # of a transaction, which a shared handle has it be, it says that until the commit
        return {"LeaseExpiredError"} | ({"TransactionStateError"} if known.was_of is not None else set())
    if known.state == "lost":  # "of one that was settled, or received before a restart, StaleReceiptError"
        return {"StaleReceiptError"}
    if known.transaction is not None:
        return {"TransactionStateError"}
    lease = state.course(known.offset).lease
    if lease is not None and now.mono >= lease.low:
        return {"", "LeaseExpiredError"}
    return {""}


def done_to(state: State, receipt: int, call: Call) -> State:
    """Do one verb to one delivery."""
    offset = state.receipts[receipt].offset
    course = state.course(offset)
    if call.verb == "ack":
        return finished(state, offset)
    if call.verb == "reject":
        return buried(state, offset, {"rejected"}, call.now, call["reason"])
    if call.verb == "release":
        return given_back(state, offset, counts=False)
    if call.verb == "nack":
        delay = call["delay"]
        wait = backoff_wait(state.options, course.times.high)
        if delay is not None:
            wait = Span(round(delay * SECOND_NS), round(delay * SECOND_NS))
        ready_at = after(call.now, wait) if wait.high else AT_ONCE
        return failed(state, offset, "max_deliveries", call.now, ready_at)
    seconds = call["seconds"]  # extend: "as long as it was leased for", or seconds from now
    given = course.lease_ns
    if seconds is not None:
        asked = round(seconds * SECOND_NS)
        given = asked  # "extend(20) would be 20 s, now and the next time"
    lease = Span(call.now.mono + given, call.now.mono + given + NOTICED_LATE_NS)
    lease_or_block = None if course.lease is None else lease
    return with_course(state, offset, course._replace(lease=lease_or_block, lease_ns=given))


def verb(state: State, call: Call, answer: Answer) -> tuple[State, ...]:
    """Judge a verb on some deliveries: where one is stale it raises, and none has changed."""
    if call["is_all"]:
        return all_unsettled(state, call, answer)
    refused = [refusals(state, receipt, call.now) for receipt in call["receipts"]]
    if answer.error is None:
        expect(all("" in each for each in refused), VERBS, refused, answer)
        for receipt in call["receipts"]:
            state = done_to(state, receipt, call)
        return (state,)
    culprits = [receipt for receipt, each in zip(call["receipts"], refused, strict=True) if answer.error in each]
    expect(bool(culprits), VERBS, refused, answer)
    if answer.error != "LeaseExpiredError" or any("" not in each for each in refused):
        return (state,)
    return tuple(ran_out(state, receipt, call.now) for receipt in culprits)


def ran_out(state: State, receipt: int, now: Now) -> State:
    """Notice that a lease is over."""
    known = state.receipts[receipt]
    if known.state != "live":
        return state
    return failed(state, known.offset, "lease_expired", now, AT_ONCE, "run_out")


def all_unsettled(state: State, call: Call, answer: Answer) -> tuple[State, ...]:
    """Judge a verb of a batch on all that are not settled: where a lease has run out it raises."""
    gone = [state.receipts[receipt] for receipt in call["receipts"] if state.receipts[receipt].state == "run_out"]
    is_told = any(receipt.was_of is None for receipt in gone)  # else that is for its transaction to tell
    if is_told or (gone and answer.error == "LeaseExpiredError"):
        expect(answer.error == "LeaseExpiredError", 'work-queue.md "Batches"', "LeaseExpiredError", answer)
        return (state,)
    expect(answer.error is None, 'work-queue.md "Batches"', "done to all that are not settled", answer)
    for receipt in unsettled(state, call["receipts"]):
        state = done_to(state, receipt, call)
    return (state,)


def has_run_out(state: State, receipts: Iterable[int]) -> bool:
    """Whether a lease of these is over."""
    return any(state.receipts[receipt].state == "run_out" for receipt in receipts)


def enter(state: State, call: Call, answer: Answer) -> State:
    """Judge the beginning of a ``with`` block: while it is open the lease does not run out.

    One that is over by then, and that nobody has noticed yet, continues.
    """
    expect(answer.error is None, 'work-queue.md "Leases"', "the block is entered", answer)
    for receipt in call["receipts"]:
        known = state.receipts[receipt]
        if known.state != "live":
            continue
        if known.transaction is None:  # the lease of another one does not run out, nor when it comes back
            state = with_course(state, known.offset, state.course(known.offset)._replace(lease=None))
        state = with_receipt(state, receipt, is_in_block=True)
    return state


def with_receipt(state: State, receipt: int, *, is_in_block: bool) -> State:
    """Return the state in which a delivery's block is open, or is not."""
    known = state.receipts[receipt]._replace(is_in_block=is_in_block)
    return replace(state, receipts={**state.receipts, receipt: known})


def leave(state: State, call: Call, answer: Answer) -> State:
    """Judge the end of a ``with`` block: acknowledged, or given back as failed after an exception."""
    if is_of_ended_transaction(state, call["receipts"]) and answer.error is None:
        return state  # it was the transaction's, which says so
    is_told_at_commit = call["is_shared"] and answer.error is None and is_of_transaction(state, call["receipts"])
    if has_run_out(state, call["receipts"]) and not call["error"] and not is_told_at_commit:
        expect(answer.error == "LeaseExpiredError", 'work-queue.md "Leases"', "LeaseExpiredError", answer)
        return state
    number = timed_out(state, call)
    if number is not None:  # "the next verb raises TransactionStateError"
        expect(answer.error == "TransactionStateError", 'transactions.md "Timeout"', "TransactionStateError", answer)
        return aborted(with_receipt(state, call["receipts"][0], is_in_block=False), number, call.now)
    expect(answer.error is None, 'work-queue.md "Leases"', "the block is left", answer)
    for receipt in call["receipts"]:
        state = with_receipt(state, receipt, is_in_block=False)
        known = state.receipts[receipt]
        number = known.was_of if known.transaction is None else known.transaction
        if number is not None and number in state.transactions and not call["error"]:
            state = acknowledged_inside(state, number, receipt)
    for receipt in unsettled(state, call["receipts"]):
        offset = state.receipts[receipt].offset
        if not call["error"]:
            state = finished(state, offset)
            continue
        wait = backoff_wait(state.options, state.course(offset).times.high)
        ready_at = after(call.now, wait) if wait.high else AT_ONCE
        state = failed(state, offset, "exception", call.now, ready_at, detail=call["error"])
    return state


def is_of_ended_transaction(state: State, receipts: Iterable[int]) -> bool:
    """Whether these were taken from a transaction by a seek, and it is not open any more."""
    taken = [state.receipts[receipt].was_of for receipt in receipts]
    known = [state.transactions[number] for number in taken if number is not None and number in state.transactions]
    return len(known) == len(taken) and all(tx.state != "open" for tx in known)


def is_of_transaction(state: State, receipts: Iterable[int]) -> bool:
    """Whether all of these that were taken away are a transaction's: replay.md, "Moving a group"."""
    taken = [state.receipts[receipt] for receipt in receipts if state.receipts[receipt].state == "run_out"]
    return all(receipt.was_of is not None for receipt in taken)


def timed_out(state: State, call: Call) -> int | None:
    """Return the transaction in which a clean end of a block acknowledges, where its time is over."""
    if call["error"] or call["is_all"]:
        return None
    known = state.receipts[call["receipts"][0]]
    if known.state != "live" or known.transaction is None:
        return None
    tx = state.transactions[known.transaction]
    return known.transaction if tx.state == "open" and call.now.mono >= tx.deadline.low else None


def acknowledged_inside(state: State, number: int, receipt: int) -> State:
    """Acknowledge in a transaction what it has received: the clean end of a block (transactions.md)."""
    tx = state.transactions[number]
    if tx.state != "open" or receipt in tx.acknowledged:
        return state
    tx = replace(tx, acknowledged=(*tx.acknowledged, receipt))
    return replace(state, transactions={**state.transactions, number: tx})


def unsettled(state: State, receipts: Iterable[int]) -> list[int]:
    """Return the deliveries that are still their receiver's."""
    return [
        receipt
        for receipt in receipts
        if state.receipts[receipt].state == "live" and state.receipts[receipt].transaction is None
    ]


RULES: dict[str, Callable[[State, Call, Answer], State | tuple[State, ...]]] = {
    **dict.fromkeys(("ack", "nack", "reject", "release", "extend"), verb),
    "enter": enter,
    "leave": leave,
}

"""Rules for transactions: transactions.md, "Using them", "States", "What it means", "What is remembered"."""

from collections.abc import Iterable
from dataclasses import replace

from proof.second_model.facts import NOTICED_LATE_NS, SECOND_NS, Prepared, Receipt, Span, State, Tx, expect, with_course
from proof.second_model.history import Answer, Call
from proof.second_model.rules.putting import TOO_LARGE, ask_of, is_too_large, room
from proof.second_model.rules.settling import refusals
from proof.second_model.rules.taking import receive
from proof.second_model.rules.transitions import (
    aborted,
    appended,
    finished,
    given_back,
    read_anew,
    settled,
    with_transaction,
)

STATES = 'transactions.md "States"'
ENDS = 'transactions.md "What it means"'
REMEMBERED = 'transactions.md "What is remembered"'
FAILS = "TransactionBase.__exit__: the exception comes out"
BOUNDED = 'transactions.md "Bounded queues"'
MOVED = 'replay.md "Moving a group": an open transaction that has taken messages'


def begin(state: State, call: Call, answer: Answer) -> State:
    """Judge begin: any number of transactions may be open."""
    expect(answer.error is None, ENDS, "a transaction", answer)
    end = call.now.mono + round((60 if call["timeout"] is None else call["timeout"]) * SECOND_NS)
    tx = Tx("open", Span(end, end + NOTICED_LATE_NS), record_bytes_max=state.options.record_bytes_max)
    return replace(state, transactions={**state.transactions, call["tx"]: tx})


def verb(state: State, call: Call, answer: Answer) -> State:
    """Judge a verb of a transaction: only what the table of states has is done, the rest is refused."""
    tx = state.transactions[call["tx"]]
    if tx.state == "open" and call.now.mono >= tx.deadline.low and call.verb not in ("tx_abort", "tx_fail"):
        state = aborted(state, call["tx"], call.now)
    tx = state.transactions[call["tx"]]
    legal = {"open": set(VERBS), "prepared": {"commit", "abort"}, "committed": {"commit"}, "aborted": {"abort"}}
    name = call.verb.removeprefix("tx_").replace("fail", "abort")
    if answer.error == "TransactionStateError" and name == "ack" and tx.state == "open" and is_anothers(state, call):
        return state
    if call.verb == "tx_fail" and (is_of_another(state, tx, call["tx"]) or is_decided_otherwise(state, tx, name)):
        expect(answer.error is None, FAILS, "the exception of the block", answer)
        return state
    if is_of_another(state, tx, call["tx"]) and name in legal["prepared"]:
        return again(state, tx, call, answer, {"commit": "committed", "abort": "aborted"}[name])
    if answer.error == "TransactionStateError":
        is_id_taken = name == "prepare" and call["id"] in state.prepared and tx.state == "open"
        is_refused = is_id_taken or name not in legal[tx.state]
        expect(is_refused or is_decided_otherwise(state, tx, name), STATES, f"{name} of an {tx.state} one", answer)
        return state
    expect(name in legal[tx.state], STATES, f"TransactionStateError from {name} of one {tx.state}", answer)
    return VERBS[name](state, tx, call, answer)


def is_anothers(state: State, call: Call) -> bool:
    """Whether one of the deliveries belongs to another transaction, or did until a seek took it away."""
    known = [state.receipts[receipt] for receipt in call["receipts"]]
    return any({each.transaction, each.was_of} - {None, call["tx"]} for each in known)


def is_of_another(state: State, tx: Tx, number: int) -> bool:
    """Whether a prepared transaction was decided by its id, which is in doubt again for another one."""
    waiting = None if tx.id is None else state.prepared.get(tx.id)
    return tx.state == "prepared" and waiting is not None and waiting.tx != number


def again(state: State, tx: Tx, call: Call, answer: Answer, verdict: str) -> State:
    """Judge a verdict on one that was decided by its id, which is in doubt for another: its own is remembered."""
    errors = ("TransactionStateError", "TransactionNotFoundError")
    if answer.error in errors:
        return state
    known = state.decided.get(tx.id or "")
    offsets = list(known[1]) if known is not None and verdict == "committed" else None
    is_same = known is not None and known[0] == verdict and answer == Answer(offsets)
    expect(is_same, f"{REMEMBERED}: the latest one answers", errors, answer)
    return with_transaction(state, call["tx"], verdict, range(0) if known is None else known[1])


def is_decided_otherwise(state: State, tx: Tx, name: str) -> bool:
    """Whether a prepared transaction was decided by its id, and not as this verb has it."""
    if tx.state != "prepared" or tx.id is None or tx.id in state.prepared:
        return False
    return tx.id in state.decided and state.decided[tx.id][0] != {"commit": "committed", "abort": "aborted"}[name]


def tx_receive(state: State, tx: Tx, call: Call, answer: Answer) -> State:
    """Judge a take: as receive, counted; it does not run out before the transaction ends."""
    arguments = {**call.arguments, "transaction": call["tx"]}
    state = receive(state, Call("receive", call.now, arguments), answer)
    if answer.error is None:
        tx = replace(tx, received=(*tx.received, answer.value[0].receipt))
    return replace(state, transactions={**state.transactions, call["tx"]: tx})


def tx_put(state: State, tx: Tx, call: Call, answer: Answer) -> State:
    """Judge puts: they have no offset before the commit."""
    if is_too_large(tx.record_bytes_max, call["items"]):  # "an open transaction keeps its bound of a payload"
        expect(answer.error == "RecordTooLargeError", TOO_LARGE, "RecordTooLargeError", answer)
        return state
    expect(answer == Answer(None), ENDS, None, answer)
    asks = tuple(ask_of(item, call.now) for item in call["items"])
    return replace(state, transactions={**state.transactions, call["tx"]: replace(tx, asks=tx.asks + asks)})


def tx_ack(state: State, tx: Tx, call: Call, answer: Answer) -> State:
    """Judge an ack: of its own, and of what receive has handed out; where one is stale none is taken."""
    number = call["tx"]
    refused = []
    for receipt in call["receipts"]:
        known = state.receipts[receipt]
        is_own = known.state == "live" and known.transaction == number
        is_twice = receipt in tx.acknowledged
        if is_own:
            refused.append({"", "StaleReceiptError", "TransactionStateError"} if is_twice else {""})
        else:
            answers = {"StaleReceiptError" if each else "" for each in refusals(state, receipt, call.now)}
            may_ask_later = call["is_shared"] and known.state == "run_out"  # "from ``ack`` or ``commit``"
            refused.append(answers | {""} if may_ask_later else answers)
    if answer.error is not None:
        names = set().union(*refused) | {"LeaseExpiredError"} | {"TransactionStateError"}
        is_refused = any(each != {""} for each in refused) and answer.error in names
        expect(is_refused, 'transactions.md "What can go wrong"', refused, answer)
        return state
    expect(all("" in each for each in refused), 'transactions.md "What can go wrong"', refused, answer)
    for receipt in call["receipts"]:
        known = state.receipts[receipt]
        if known.state == "run_out":
            state = with_known(state, receipt, known._replace(was_of=number))
            continue
        course = state.course(known.offset)
        state = with_course(state, known.offset, course._replace(transaction=number, lease=None))
        state = with_known(state, receipt, known._replace(transaction=number))
    new = tuple(receipt for receipt in call["receipts"] if receipt not in tx.acknowledged)
    return replace(
        state, transactions={**state.transactions, number: replace(tx, acknowledged=(*tx.acknowledged, *new))}
    )


def with_known(state: State, receipt: int, known: Receipt) -> State:
    """Return the state in which a delivery is another's."""
    return replace(state, receipts={**state.receipts, receipt: known})


def committed(state: State, number: int, tx: Tx, call: Call, *, is_cut_off: bool = False) -> State:
    """Do what a commit does: puts and acknowledgements together; the rest is ready again, uncounted.

    One that ``is_cut_off`` has not come to the rest, which is in hand still.
    """
    first = len(state.messages)
    for receipt in tx.acknowledged:
        state = finished(state, state.receipts[receipt].offset)
    if not is_cut_off:
        state = unacknowledged_back(state, number, tx, counts=False)
    for ask in tx.asks:
        state = appended(state, ask, call.now)
    return with_transaction(state, number, "committed", range(first, len(state.messages)))


def cut_off(state: State, call: Call, answer: Answer) -> tuple[State, ...]:
    """Return what a commit leaves if its process dies between the commit and giving back the rest: that counts."""
    if call.verb != "tx_commit" or answer.error is not None or state.transactions[call["tx"]].state != "open":
        return ()
    return (committed(state, call["tx"], state.transactions[call["tx"]], call, is_cut_off=True),)


def room_for(state: State, tx: Tx, call: Call) -> set[str]:
    """Return which answers a bounded queue may give: what the transaction itself acknowledges counts as gone."""
    return room(state, len(tx.asks), call, finished_count=len(tx.acknowledged))


def is_taken_away(state: State, tx: Tx, receipts: Iterable[int]) -> bool:
    """Whether a seek has taken messages away that a transaction has."""
    known = {*tx.acknowledged, *receipts}
    return any(state.receipts[receipt].state == "run_out" for receipt in known)


def unacknowledged_back(state: State, number: int, tx: Tx, *, counts: bool) -> State:
    """Have what was received and not acknowledged come again."""
    for receipt in tx.received:
        known = state.receipts[receipt]
        if receipt not in tx.acknowledged and known.state == "live" and known.transaction == number:
            state = given_back(state, known.offset, counts=counts)
    return state


def tx_commit(state: State, tx: Tx, call: Call, answer: Answer) -> State:
    """Judge a commit: it returns the offsets of what was put, which stand together; again, the same."""
    number = call["tx"]
    if tx.state == "committed":
        expect(answer.value == list(tx.offsets), f"{STATES}, commit again", tx.offsets, answer)
        return state
    if tx.state == "prepared" and tx.id is not None:
        state = decide(state, tx.id, call, answer, "committed")
        return with_transaction(state, number, "committed", state.decided[tx.id][1])
    if is_taken_away(state, tx, tx.acknowledged) and answer.error not in ("Full", "RecordTooLargeError"):
        expect(answer.error == "LeaseExpiredError", MOVED, "LeaseExpiredError", answer)
    if answer.error == "LeaseExpiredError" and is_taken_away(state, tx, tx.received):
        return state  # "the transaction is still open" (transactions.md, "What can go wrong")
    if answer.error == "Full":
        expect("Full" in room_for(state, tx, call), BOUNDED, "room", answer)
        return state
    if answer.error == "RecordTooLargeError" and 0 < state.options.maxsize < len(tx.asks):
        return state  # more than a bounded queue ever holds
    expect("room" in room_for(state, tx, call), BOUNDED, "Full", answer)
    expected = list(range(len(state.messages), len(state.messages) + len(tx.asks)))
    expect(answer.value == expected, f"{ENDS}, Offsets", expected, answer)
    return committed(state, number, tx, call)


def tx_abort(state: State, tx: Tx, call: Call, answer: Answer) -> State:
    """Judge an abort, or an exception out of the block."""
    expect(answer.error is None, STATES, "aborted", answer)
    if tx.state == "aborted":
        return state
    if tx.state == "prepared" and tx.id is not None:
        state = decide(state, tx.id, call, answer, "aborted")
        return with_transaction(state, call["tx"], "aborted")
    return aborted(state, call["tx"], call.now, backoff=call.verb == "tx_fail")


def tx_prepare(state: State, tx: Tx, call: Call, answer: Answer) -> State:
    """Judge prepare: durable and undecided; its messages stay taken, its puts invisible."""
    if is_taken_away(state, tx, tx.acknowledged) and answer.error not in ("Full", "RecordTooLargeError"):
        expect(answer.error == "LeaseExpiredError", MOVED, "LeaseExpiredError", answer)
        return aborted(state, call["tx"], call.now)  # "What can go wrong": "the same from ``prepare``"
    if answer.error == "Full":
        expect("Full" in room_for(state, tx, call), BOUNDED, "room", answer)
        return state
    if answer.error == "RecordTooLargeError" and 0 < state.options.maxsize < len(tx.asks):
        return state
    expect("room" in room_for(state, tx, call), BOUNDED, "Full", answer)
    expect(answer.value == call["id"], "Transaction.prepare", call["id"], answer)
    offsets = tuple(sorted(state.receipts[receipt].offset for receipt in tx.acknowledged))
    for receipt in tx.acknowledged:
        offset = state.receipts[receipt].offset
        state = with_course(state, offset, state.course(offset)._replace(state="held", prepared=answer.value))
        state = settled(state, receipt, "settled")
    state = unacknowledged_back(state, call["tx"], tx, counts=True)
    prepared = Prepared(tx.asks, offsets, state.group, call["tx"], call.now.wall)
    tx = replace(tx, state="prepared", id=answer.value)
    return replace(
        state,
        transactions={**state.transactions, call["tx"]: tx},
        prepared={**state.prepared, answer.value: prepared},
    )


def decide(state: State, name: str, call: Call, answer: Answer, verdict: str) -> State:
    """Judge the verdict on a prepared transaction, and remember it."""
    if name not in state.prepared:
        known = state.decided.get(name)
        if known is None:
            expect(answer.error == "TransactionNotFoundError", REMEMBERED, "TransactionNotFoundError", answer)
        elif known[0] != verdict:
            expect(answer.error == "TransactionStateError", REMEMBERED, "TransactionStateError", answer)
        else:
            offsets = list(known[1]) if verdict == "committed" else None
            expect(answer == Answer(offsets), REMEMBERED, offsets, answer)
        return state
    prepared = state.prepared[name]
    first = len(state.messages)
    end = first + len(prepared.asks) if verdict == "committed" else first
    expected = Answer(list(range(first, end)) if verdict == "committed" else None)
    expect(answer == expected, REMEMBERED, expected, answer)
    state = let_go(state, prepared, verdict)
    if verdict == "committed":
        for ask in prepared.asks:
            state = appended(state, ask, call.now)
    waiting = {other: one for other, one in state.prepared.items() if other != name}
    return replace(state, prepared=waiting, decided={**state.decided, name: (verdict, range(first, end))})


def let_go(state: State, prepared: Prepared, verdict: str) -> State:
    """End what a prepared transaction holds, in its group."""
    own, state = state.group, replace(state, group=prepared.group)
    for offset in prepared.held:
        state = finished(state, offset) if verdict == "committed" else given_back(state, offset, counts=True)
    state = replace(state, group=own)
    return read_anew(state) if prepared.held and prepared.group == own else state


def decide_by_id(state: State, call: Call, answer: Answer) -> State:
    """Judge commit_prepared and abort_prepared."""
    return decide(state, call["id"], call, answer, "committed" if call.verb == "commit_prepared" else "aborted")


def prepared_list(state: State, call: Call, answer: Answer) -> State:
    """Judge prepared(): what is undecided, oldest first; of one moment by id."""
    waiting = sorted(state.prepared.items(), key=lambda item: (item[1].at, item[0]))
    expected = [(name, len(one.asks), len(one.held)) for name, one in waiting]
    expect(answer.value == expected, "PersistentQueue.prepared", expected, answer)
    return state


VERBS = {
    "receive": tx_receive,
    "put": tx_put,
    "put_many": tx_put,
    "ack": tx_ack,
    "commit": tx_commit,
    "abort": tx_abort,
    "prepare": tx_prepare,
}
RULES = {
    "begin": begin,
    **{f"tx_{name}": verb for name in (*VERBS, "fail")},
    "commit_prepared": decide_by_id,
    "abort_prepared": decide_by_id,
    "prepared": prepared_list,
}

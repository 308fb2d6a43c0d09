"""The judge: follows a history, call by call, and says where an answer is not allowed."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from proof.second_model.facts import DisagreementError, Group, State, TooManyStatesError, with_settings
from proof.second_model.history import Answer, Call
from proof.second_model.rules import (
    configuring,
    dead_letters,
    life,
    looking,
    merging,
    purging,
    putting,
    replaying,
    retaining,
    settling,
    taking,
    transacting,
)
from proof.second_model.rules.settling import has_run_out, ran_out, unsettled
from proof.second_model.rules.transitions import aborted, brought_up_to, with_pause_over

Rule = Callable[[State, Call, Answer], State | tuple[State, ...]]

RULES: dict[str, Rule] = {
    **putting.RULES,
    **taking.RULES,
    **settling.RULES,
    **purging.RULES,
    **dead_letters.RULES,
    **looking.RULES,
    **transacting.RULES,
    **life.RULES,
    **configuring.RULES,
    **retaining.RULES,
    **merging.RULES,
    **replaying.RULES,
}

#: Leases are looked at "when somebody takes, waits, settles, looks or asks for figures" (work-queue.md, "Limits"):
#: by these verbs. What ran out before any other one may still not be noticed.
LOOKING = {"get", "get_many", "receive", "receive_many", "ack", "nack", "reject", "release", "extend", "tx_receive"}
LOOKING |= {"purge", "peek", "stats", "qsize", "empty", "browse", "dead_list", "dead_count"}

#: What a call may raise at all here, where no disk fails; which call may and when say the rules.
ERRORS = {"Empty", "Full", "StaleReceiptError", "LeaseExpiredError", "TransactionStateError"}
ERRORS |= {"TransactionNotFoundError", "GroupNotFoundError", "QueueLockedError", "ConfigError"}
ERRORS |= {"RecordTooLargeError", "UsageError", "ShutDown", "ClosedError"}

#: Of a history that leaves more states possible than this nothing more is said: the right one may be among the others.
STATES_MAX = 64

LONG_RUN = re.compile(r"(.)\1{20,}")


class Judge:
    """Holds all states that the queue may be in after the calls so far."""

    def __init__(self, given: Mapping[str, Any] | None = None, group: str = "default") -> None:
        state = with_settings(State(group, groups={"default": Group(), group: Group()}), given or {})
        self.states: tuple[State, ...] = (replace(state, dedup_max=state.options.dedup_max),)
        self.calls: list[tuple[Call, Answer]] = []
        self.gave_up = False

    @property
    def has_bytes_bound(self) -> bool:
        """Whether ``max_bytes`` may bound the queue."""
        return any(state.options.max_bytes is not None for state in self.states)

    def told(self, call: Call, answer: Answer) -> None:
        """Follow one call; raise DisagreementError where no state allows its answer.

        Raises
        ------
        TooManyStatesError
            Too many states are possible behind it: all later calls are allowed.
        """
        if self.gave_up:
            return
        self.calls.append((call, answer))
        with self.giving_up():
            self.states = self.states_after(call, answer)

    @contextmanager
    def giving_up(self) -> Iterator[None]:
        """Say no more once too many states are possible."""
        try:
            yield
        except TooManyStatesError:
            self.gave_up = True
            raise

    def states_after(self, call: Call, answer: Answer) -> tuple[State, ...]:
        """Return the states that are possible behind a call."""
        after: list[State] = []
        refusals: list[str] = []
        for state in self.states:
            try:
                after += step(state, call, answer)
            except DisagreementError as error:
                refusals.append(str(error))
        if not after:
            raise DisagreementError("\n  ".join([str(call), *dict.fromkeys(refusals)]))
        return unique(after)

    def may_be_before_or_after(self, attempted: Iterable[tuple[Call, Answer]]) -> None:
        """Leave open whether a call has happened that did not return: each of the answers it may have given, or none.

        "A put whose own process was killed may have happened or not" (transactions.md, "Submitted batches");
        durability.md, promise 2: wholly there or wholly absent.
        """
        if self.gave_up:
            return
        states = list(self.states)
        with self.giving_up():
            for call, answer in attempted:
                for state in self.states:
                    try:
                        states += step(state, call, answer)
                    except DisagreementError:
                        continue
                    states += transacting.cut_off(state, call, answer)
                    states += taking.cut_off(state, call, answer)
                    states += purging.cut_off(state, call, answer)
                    states += configuring.cut_off(state, call, answer)
            self.states = unique(states)

    def copy(self) -> "Judge":
        """Return a judge that knows the same and goes its own way."""
        other = Judge()
        other.states, other.calls, other.gave_up = self.states, list(self.calls), self.gave_up
        return other

    def trace(self) -> str:
        """Return the history, a line for each call; a long run of one character is cut."""
        return "\n".join(LONG_RUN.sub(r"\1...", f"{call} -> {answer}") for call, answer in self.calls)


def step(state: State, call: Call, answer: Answer) -> tuple[State, ...]:
    """Return the states that the queue may be in if it was asked this and answered that.

    Raises
    ------
    DisagreementError
        The documentation does not allow the answer.
    """
    if answer.error is not None and answer.error not in ERRORS:
        raise DisagreementError(f"no such error: {answer}")
    state = with_pause_over(state, call.now)
    if state.options.keeps_finished:
        state = replaying.with_gone(state, call.now)
    if not looks(state, call):
        return several(RULES[call.verb](state, call, answer))
    after: list[State] = []
    refusal = DisagreementError()
    for one in at_the_edge(brought_up_to(state, call.now), call):
        try:
            after += several(RULES[call.verb](one, call, answer))
        except DisagreementError as error:
            refusal = error
    if not after:
        raise refusal
    return tuple(after)


def looks(state: State, call: Call) -> bool:
    """Whether a call looks at leases: some do only where they find something to settle, or somebody to ask."""
    if call.verb in ("dead_retry", "dead_discard"):
        return call["reason"] is not None  # "with reason= they look first"
    if call.verb == "seek":
        return bool(call["name"] == state.group)
    if call.verb in ("tx_receive", "tx_ack"):
        tx = state.transactions[call["tx"]]
        if tx.state != "open" or call.now.mono >= tx.deadline.low:
            return False
    if call.verb == "tx_ack":
        return any(state.receipts[receipt].transaction != call["tx"] for receipt in call["receipts"])
    if call.verb == "leave" or (call.verb in LOOKING and call["is_all"]):
        return bool(unsettled(state, call["receipts"])) or (not call["error"] and has_run_out(state, call["receipts"]))
    return call.verb in LOOKING


def several(after: State | tuple[State, ...]) -> tuple[State, ...]:
    """Return one or more states as several."""
    return after if isinstance(after, tuple) else (after,)


def at_the_edge(state: State, call: Call) -> tuple[State, ...]:
    """Leave open whether what is over just now has been noticed: transactions that time out, and leases."""
    states: tuple[State, ...] = (state,)
    for number, tx in state.transactions.items():
        if tx.state == "open" and call.now.mono >= tx.deadline.low:
            states = (*states, *(aborted(one, number, call.now) for one in states))
    for course in state.own.courses.values():
        if course.lease is not None and course.receipt is not None and call.now.mono >= course.lease.low:
            states = unique((*states, *(ran_out(one, course.receipt, call.now) for one in states)))
    return states


def unique(states: Iterable[State]) -> tuple[State, ...]:
    """Return different states."""
    found: list[State] = []
    for state in states:
        if state not in found:
            found.append(state)
        if len(found) > STATES_MAX:
            raise TooManyStatesError
    return tuple(found)

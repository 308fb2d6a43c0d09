"""Which workloads there are: sequences of actions, each of which may follow the ones before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from proof.crash_states.life import LARGE_BYTES, Life

Workload = tuple[str, ...]

ROLLS_BYTES = 7000  # two of them and a little more do not fit into one data file
SMALL_BYTES = 600  # crosses a border between sectors


@dataclass(frozen=True)
class Action:
    """Something to do with a queue, and when it can be done."""

    may: Callable[[Life], bool]
    do: Callable[[Life], None]


def _always(life: Life) -> bool:
    return True


def _has_ready(life: Life) -> bool:
    return bool(life.ready())


def _has_in_hand(life: Life) -> bool:
    return bool(life.in_hand)


def _may_begin(life: Life) -> bool:
    return life.tx is None and not life.held


def _may_take(life: Life) -> bool:
    return bool(life.ready()) and not life.held


def _may_prepare(life: Life) -> bool:
    return life.tx is not None and not life.held


def _may_decide(life: Life) -> bool:
    return life.tx is not None or bool(life.held)


EXHAUSTIVE = {
    "put": Action(_always, lambda life: life.put(SMALL_BYTES)),
    "put_many": Action(_always, lambda life: life.put(30, 0, SMALL_BYTES)),
    "roll": Action(_always, lambda life: life.put(ROLLS_BYTES)),
    "get": Action(_has_ready, Life.get),
    "receive": Action(_has_ready, Life.receive),
    "ack": Action(_has_in_hand, Life.ack),
    "nack": Action(_has_in_hand, Life.nack),
    "begin": Action(_may_begin, lambda life: life.begin(SMALL_BYTES, 20)),
    "take": Action(_may_take, Life.take),
    "prepare": Action(_may_prepare, Life.prepare),
    "commit": Action(_may_decide, Life.commit),
    "abort": Action(_may_decide, Life.abort),
    "two_queues": Action(_always, Life.two_queues),
    "reopen": Action(_always, Life.reopen),
    "kill": Action(_always, Life.kill),
}
"""All sequences of up to four of these are explored."""

RANDOM = EXHAUSTIVE | {
    "get_many": Action(_has_ready, lambda life: life.get(5)),
    "release": Action(_has_in_hand, Life.release),
    "reject": Action(_has_in_hand, Life.reject),
    "retry": Action(lambda life: life.groups["a"] is not None and bool(life.groups["a"].dead), Life.retry),
    "begin_large": Action(_may_begin, lambda life: life.begin(LARGE_BYTES, 300)),
    "flush": Action(_always, Life.flush),
}
"""Longer sequences are drawn from these."""


def fresh(life: Life) -> None:
    """There is no queue yet."""


def used(life: Life) -> None:
    """A data file that is nearly finished, one that is nearly full, and a spare one full of stale frames."""
    life.open()
    for _ in range(2):
        life.put(ROLLS_BYTES)
        life.put(ROLLS_BYTES)
        life.get(5)
    life.put(ROLLS_BYTES)
    life.put(40)
    life.put(50)
    life.get()
    life.close()


BEGINNINGS = {"fresh": fresh, "used": used}
"""The past of a life; it begins with opening the queue."""

"""What becomes of a message in a consumer group: one table, that of docs/work-queue.md. Pure."""

from __future__ import annotations

from enum import Enum

from holdfast.errors import UsageError
from holdfast.queue.inspect.browse import MessageState


class Event(Enum):
    """An event in the life of a message."""

    RECEIVE = "receive"
    GET = "get"
    ACK = "ack"
    NACK_AT_ONCE = "nack, no delay"
    NACK_LATER = "nack, delay"
    RELEASE = "release"
    RUNS_OUT = "lease runs out"
    GIVE_UP = "last delivery fails"
    REJECT = "reject"
    BECOMES_DUE = "time comes"
    EXPIRE_DROP = "ttl over, dropped"
    EXPIRE_DEAD = "ttl over, kept"
    RETRY = "dead.retry"
    DISCARD = "dead.discard"


_S, _E = MessageState, Event

TRANSITIONS: dict[tuple[MessageState, Event], MessageState] = {
    (_S.READY, _E.RECEIVE): _S.LEASED,
    (_S.READY, _E.GET): _S.DONE,
    (_S.READY, _E.EXPIRE_DROP): _S.DONE,
    (_S.READY, _E.EXPIRE_DEAD): _S.DEAD,
    (_S.READY, _E.GIVE_UP): _S.DEAD,
    (_S.DELAYED, _E.BECOMES_DUE): _S.READY,
    (_S.DELAYED, _E.EXPIRE_DROP): _S.DONE,
    (_S.DELAYED, _E.EXPIRE_DEAD): _S.DEAD,
    (_S.LEASED, _E.ACK): _S.DONE,
    (_S.LEASED, _E.NACK_AT_ONCE): _S.READY,
    (_S.LEASED, _E.NACK_LATER): _S.DELAYED,
    (_S.LEASED, _E.RELEASE): _S.READY,
    (_S.LEASED, _E.RUNS_OUT): _S.READY,
    (_S.LEASED, _E.GIVE_UP): _S.DEAD,
    (_S.LEASED, _E.REJECT): _S.DEAD,
    (_S.DEAD, _E.RETRY): _S.READY,
    (_S.DEAD, _E.DISCARD): _S.DONE,
}
"""Ready gives up where the process died at the last delivery: nobody was there to fail it."""


def next_state(state: MessageState, event: Event) -> MessageState:
    """Return the state after an event.

    Raises
    ------
    UsageError
        It cannot happen in that state; nothing has changed.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise UsageError(f"a message that is {state.value} cannot go through {event.value!r}") from None

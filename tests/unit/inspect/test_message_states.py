"""docs/work-queue.md, the code's table and the real queue agree on what becomes of a message."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Delivery, Empty, PersistentQueue, UsageError
from holdfast.queue.inspect.browse import MessageState
from support.builders.jobs import Jobs
from support.models.message_states import TRANSITIONS, Event, next_state
from support.models.state_tables import state_arrows, state_rows

PAGE = Path(__file__).resolve().parents[3] / "docs" / "work-queue.md"

READY, LEASED, DELAYED, DEAD = MessageState.READY, MessageState.LEASED, MessageState.DELAYED, MessageState.DEAD
PAIRS = [(state, event) for state in MessageState for event in Event]
TTL_SECONDS = 20


# -- The documentation -----------------------------------------------------------------------------------------------


def documented_rows() -> list[tuple[MessageState, Event, MessageState]]:
    """Return the rows of the table."""
    return [
        (MessageState(state), Event(event), MessageState(following)) for state, event, following in state_rows(PAGE)
    ]


def test_the_documented_table_is_that_of_the_code() -> None:
    """Each transition stands there once, and no other one does."""
    rows = documented_rows()
    assert len(rows) == len(set(rows)) == len(TRANSITIONS)
    assert {(state, event): following for state, event, following in rows} == TRANSITIONS


def test_the_documented_diagram_is_the_table_of_the_code() -> None:
    """Each transition is one arrow; beside them messages come in by two puts, and go when they are done."""
    arrows = state_arrows(PAGE)
    inside = [arrow for arrow in arrows if "[*]" not in arrow]
    ends = [arrow for arrow in arrows if "[*]" in arrow]
    expected = {(state.value, event.value, following.value) for (state, event), following in TRANSITIONS.items()}
    assert len(inside) == len(TRANSITIONS)
    assert set(inside) == expected
    assert ends == [("[*]", "put", "ready"), ("[*]", "put with a delay", "delayed"), ("done", "", "[*]")]


# -- The code --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "event"), sorted(set(PAIRS) - TRANSITIONS.keys(), key=PAIRS.index))
def test_what_does_not_stand_in_the_table_is_refused(state: MessageState, event: Event) -> None:
    """With the state and the event in its words."""
    with pytest.raises(UsageError, match=f"{state.value}.*{re.escape(repr(event.value))}"):
        next_state(state, event)


# -- The real queue --------------------------------------------------------------------------------------------------


class OneMessage:
    """A queue with one message in a state, and the verbs that are events."""

    def __init__(self, state: MessageState, event: Event) -> None:
        self.jobs = Jobs()
        self.options = {
            "max_deliveries": 1 if event is Event.GIVE_UP else 2,
            "expired": "dead" if event is Event.EXPIRE_DEAD else "drop",
        }
        expires = event in (Event.EXPIRE_DROP, Event.EXPIRE_DEAD)
        self.queue = self.jobs.open(**self.options)
        self.delivery: Delivery | None = None
        delay = 2 * TTL_SECONDS if state is DELAYED else None
        self.queue.put(b"message", ttl=TTL_SECONDS if expires else None, delay=delay)
        if state in (LEASED, DEAD):
            self.delivery = self.queue.receive()
        if state is DEAD:
            self.in_hand.reject("no good")
        if (state, event) == (READY, Event.GIVE_UP):
            self.queue.receive()
            self.die()

    @property
    def in_hand(self) -> Delivery:
        """The delivery."""
        assert self.delivery is not None
        return self.delivery

    def die(self) -> None:
        """Have the process die, and another one open the queue."""
        dead, self.jobs = self.queue, self.jobs.killed()
        dead.close()  # on the disk that nobody looks at any more
        self.queue = self.jobs.open(**self.options)

    def states(self) -> list[MessageState]:
        """Return in which states the message is seen: in one, or in none once it is done."""
        found = [state for state in MessageState if state is not MessageState.DONE and self.queue.browse(state.value)]
        return found or [MessageState.DONE]


def pass_time(one: OneMessage) -> None:
    """Let the longest time pass that any message here waits for; nobody takes anything."""
    one.jobs.clock.advance(3 * TTL_SECONDS)


def find_nothing(one: OneMessage) -> None:
    """Look for a message, and find none."""
    with pytest.raises(Empty):
        one.queue.receive(timeout=0)


def expire(one: OneMessage) -> None:
    """Let the time to live pass, and look for the message."""
    one.jobs.clock.advance(TTL_SECONDS)
    find_nothing(one)


def give_up(one: OneMessage) -> None:
    """Fail at the last delivery, or find that somebody has died at it."""
    if one.delivery is None:
        find_nothing(one)
    else:
        one.delivery.nack()


VERBS: dict[Event, Callable[[OneMessage], object]] = {
    Event.RECEIVE: lambda one: one.queue.receive(timeout=0),
    Event.GET: lambda one: one.queue.get(timeout=0),
    Event.ACK: lambda one: one.in_hand.ack(),
    Event.NACK_AT_ONCE: lambda one: one.in_hand.nack(delay=0),
    Event.NACK_LATER: lambda one: one.in_hand.nack(delay=10),
    Event.RELEASE: lambda one: one.in_hand.release(),
    Event.RUNS_OUT: pass_time,
    Event.GIVE_UP: give_up,
    Event.REJECT: lambda one: one.in_hand.reject("no good"),
    Event.BECOMES_DUE: pass_time,
    Event.EXPIRE_DROP: expire,
    Event.EXPIRE_DEAD: expire,
    Event.RETRY: lambda one: one.queue.dead.retry(0),
    Event.DISCARD: lambda one: one.queue.dead.discard(0),
}


@pytest.mark.parametrize(("state", "event"), TRANSITIONS)
def test_the_real_queue_goes_where_the_table_says(state: MessageState, event: Event) -> None:
    """A message in one state, one event, and what ``browse`` shows of it then, and in the next process too."""
    one = OneMessage(state, event)
    with one.queue:
        assert one.states() == [state]
        VERBS[event](one)
        following = TRANSITIONS[state, event]
        assert one.states() == [following]
        one.die()
    with one.queue:
        assert one.states() == [READY if following is LEASED else following]


def test_a_message_that_is_done_goes_nowhere_any_more() -> None:
    """Whatever is tried with it."""
    one = OneMessage(LEASED, Event.ACK)
    with one.queue:
        one.in_hand.ack()
        for verb in (one.queue.dead.retry, one.queue.dead.discard):
            assert verb(0) == 0
        find_nothing(one)
        pass_time(one)
        find_nothing(one)
        assert one.states() == [MessageState.DONE]


def test_every_event_has_its_verb_here() -> None:
    """Else an event could stand in the table that the queue does not know."""
    assert VERBS.keys() == set(Event)


def test_a_message_is_in_one_state_at_a_time() -> None:
    """All of them, one of each, each shown once."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"leased", b"dead", b"done", b"ready"])
        queue.put(b"delayed", delay=60)
        leased, dead, done = (queue.receive() for _ in range(3))
        dead.reject("no good")
        done.ack()
        assert not leased.is_settled
        assert shown(queue) == {state.value: [state.value.encode()] for state in (READY, LEASED, DELAYED, DEAD)}


def shown(queue: PersistentQueue) -> dict[str, list[bytes]]:
    """Return the payloads that are shown in each state."""
    states = [state.value for state in MessageState if state is not MessageState.DONE]
    return {state: [each.payload for each in queue.browse(state)] for state in states}

"""Every storage prefix of takes with numbers: a successor finds in hand what ADR 50 says, and what was taken away.

The oracle is a few sets that follow what the calls have answered. A killed owner leaves what was known before the call
that was under way, or after it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from holdfast import Empty, PersistentQueue
from holdfast.persistence.format.constants import SESSION_SHIFT
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.dispatch.standing import Standing
from support.builders.handles import handle_of
from support.builders.jobs import Jobs
from support.builders.small_steps import small_steps

ALIVE, GONE = 0xC0FFEE01, 0xDEADBEEF
MESSAGE_COUNT, CALL_COUNT, CHURN_COUNT, LEASE_SECONDS = 8, 16, 4, 30


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of recoveries say what they did."""
    caplog.set_level(logging.CRITICAL, "holdfast")


@dataclass
class Known:
    """What is in hand under numbers, what was taken away, of what the session was told, what is finished, or dead."""

    in_hand: dict[int, int] = field(default_factory=dict)
    taken_away: set[tuple[int, int]] = field(default_factory=set)
    told: set[tuple[int, int]] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)


def is_alive(number: int) -> bool:
    """Whether a delivery is of the session that lives on."""
    return number >> SESSION_SHIFT == ALIVE


@dataclass
class World:
    """A queue in use by two sessions, and what is known after each of its calls."""

    rng: random.Random
    jobs: Jobs = field(default_factory=Jobs)
    known: Known = field(default_factory=Known)
    steps: list[tuple[int, str, Known]] = field(default_factory=list)
    take_count: int = 0

    def run(self) -> None:
        """Put the messages, and make calls at random; the process dies behind the last one."""
        queue = self.jobs.open(living=[ALIVE, GONE], lease_seconds=LEASE_SECONDS)
        queue.put_many([b"%d" % number for number in range(MESSAGE_COUNT)])
        self.side = handle_of(queue).require_read_side()
        self.side.begin()
        self.note("begin")
        calls = [self.take, self.take, self.settle, self.lapse, self.churn, self.tell, self.end, self.keep]
        first = [self.take, self.take, self.churn, self.lapse, self.take, self.take, self.churn]
        for call in [*first, *self.rng.choices(calls, k=CALL_COUNT)]:
            call()
            self.note(call.__name__)

    def note(self, call: str) -> None:
        """Keep what is known behind a call, with the length of the storage's log."""
        self.steps.append((len(self.jobs.storage.log), call, deepcopy(self.known)))

    def take(self) -> None:
        """Take with a new number or an old one, for one of the sessions."""
        self.take_count += self.rng.random() < 0.7
        number = self.rng.choice((ALIVE, ALIVE, GONE)) << SESSION_SHIFT | self.take_count
        if self.side.in_hand(number):
            return
        try:
            found = self.side.receive(self.rng.choice((1, 2)), 0, number=number)
        except Empty:
            return
        for each in found:
            self.known.in_hand[each.offset] = number
            self.known.taken_away.discard((number, each.offset))

    def settle(self) -> None:
        """Acknowledge a message, or give it back, or make it a dead letter."""
        if not self.known.in_hand:
            return
        offset, number = self.rng.choice(sorted(self.known.in_hand.items()))
        delivery = self.side.find(number, offset)
        assert isinstance(delivery, Delivery)
        verb = self.rng.choice(("ack", "nack", "release", "reject"))
        del self.known.in_hand[offset]
        if verb == "ack":
            delivery.ack()
            self.known.finished.add(offset)
        elif verb == "reject":
            delivery.reject("no")
            self.known.dead.add(offset)
        else:
            getattr(delivery, verb)()

    def lapse(self) -> None:
        """Let all leases end."""
        self.jobs.clock.advance(LEASE_SECONDS + 1)
        self.side.give_back_due()
        self.known.taken_away |= {(number, offset) for offset, number in self.known.in_hand.items()}
        self.known.in_hand.clear()

    def churn(self) -> None:
        """Take and give back until another position file has begun: its checkpoint has all that is known."""
        for _ in range(CHURN_COUNT):
            with suppress(Empty):
                self.side.release(self.side.receive(1, 0))

    def tell(self) -> None:
        """Tell a session of something that was taken away from it."""
        if self.known.taken_away:
            number, offset = self.rng.choice(sorted(self.known.taken_away))
            self.side.forget_taken_away(number, offset)
            self.known.taken_away.discard((number, offset))
            self.known.told.add((number, offset))

    def end(self) -> None:
        """One session is found dead; another process gets its number, which is as good as any."""
        self.side.end_session(GONE)
        self.forget(lambda number: number >> SESSION_SHIFT == GONE)

    def keep(self) -> None:
        """The other session says hello, and names some of its takes."""
        numbers = {number for number in self.known.in_hand.values() if self.rng.random() < 0.7}
        self.side.keep_only(ALIVE, numbers)
        self.forget(lambda number: is_alive(number) and number not in numbers)

    def forget(self, is_gone: Callable[[int], bool]) -> None:
        """Forget all about some takes."""
        self.known.told |= {each for each in self.known.taken_away if is_gone(each[0])}
        self.known.taken_away = {each for each in self.known.taken_away if not is_gone(each[0])}
        self.known.in_hand = {at: number for at, number in self.known.in_hand.items() if not is_gone(number)}


def payloads_of(queue: PersistentQueue) -> set[int]:
    """Return which messages are ready."""
    return {int(message.payload) for message in queue.peek(MESSAGE_COUNT)}


def fits(side: ReadSide, queue: PersistentQueue, known: Known) -> bool:
    """Whether a successor knows just this of the session that lives; what it was told may be known still."""
    in_hand = {each.offset: each.number for each in side.leased.values()}
    taken_away = {(number, offset) for number, offsets in side.progress.taken_away.items() for offset in offsets}
    expected = {offset: number for offset, number in known.in_hand.items() if is_alive(number)}
    least = {each for each in known.taken_away if is_alive(each[0])}
    every = set(range(MESSAGE_COUNT))
    return (
        in_hand == expected
        and least <= taken_away <= least | known.told
        and payloads_of(queue) == every - known.finished - known.dead - in_hand.keys()
        and all(side.find(number, offset) is Standing.TAKEN_AWAY for number, offset in least)
        and all(payload_matches(each) for each in side.leased.values())
    )


def payload_matches(delivery: Delivery) -> bool:
    """Whether it is the message of its offset."""
    return delivery.payload == b"%d" % delivery.offset


@pytest.mark.parametrize("seed", range(5))
def test_a_successor_finds_in_hand_what_living_sessions_have(seed: int) -> None:
    """At each change of the disk, over many generations of the position file."""
    with small_steps():
        world = World(random.Random(seed))
        world.run()
        begun = world.steps[0][0]
        for count, storage in enumerate(world.jobs.storage.replay()):
            if count < begun:
                continue
            before = max(at for at, (end, _, _) in enumerate(world.steps) if end <= count)
            under_way = world.steps[before : before + 2]
            left = Jobs(storage.crash_keeping_all(), world.jobs.clock)
            with left.open(living=[ALIVE]) as queue:
                side = handle_of(queue).require_read_side()
                allowed = under_way[:1] if under_way[0][0] == count else under_way
                assert any(fits(side, queue, known) for _, _, known in allowed), (
                    count,
                    [call for _, call, _ in allowed],
                )
            if not count % 5:
                power = Jobs(storage.crash_dropping_unsynced(), world.jobs.clock)
                with power.open() as queue:
                    assert not handle_of(queue).require_read_side().leased, "all sessions are dead"
                    assert (
                        payloads_of(queue) | under_way[-1][2].dead
                        >= set(range(MESSAGE_COUNT)) - under_way[-1][2].finished
                    )

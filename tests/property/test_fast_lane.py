"""The fast lane beside the general way: random work on two queues; one has only the general way."""

import os
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any
from unittest import mock

import pytest

from holdfast import Delivery, PersistentQueue
from holdfast.queue.consumer.read_side import ReadSide
from support.builders.clocks import FakeClock
from support.builders.handles import no_passes, position_entries, without_fast_lane
from support.builders.jobs import Jobs
from support.storages.simulated_storage import SimulatedStorage

SEED = int(os.environ.get("HOLDFAST_TEST_SEED", "20240521"))
STEP_COUNT = 120
ASKS: tuple[dict[str, Any], ...] = (
    *({},) * 6,
    {"priority": 3},
    {"order_key": "a"},
    {"order_key": "b"},
    {"delay": 5},
    {"ttl": 7},
    {"dedup_id": "once"},
    {"headers": {"kind": "order"}},
)
"""What a put may ask for; plain ones are the most."""


@dataclass
class Side:
    """One of the two queues, with the deliveries that came from it: those in hand, and those that are over."""

    jobs: Jobs
    has_lane: bool
    in_hand: list[Delivery] = field(default_factory=list)
    over: list[Delivery] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Open the queue; what was in hand is over."""
        self.over += self.in_hand
        self.in_hand = []
        queue = self.jobs.open(max_deliveries=3, backoff=[2], lease_seconds=10)
        self.queue: PersistentQueue = queue if self.has_lane else without_fast_lane(queue)

    def answer(self, call: Callable[[], object]) -> object:
        """Return what a call answers; an error by its class and text."""
        try:
            return call()
        except Exception as error:
            return type(error), str(error)

    def take(self, count: int, lease_seconds: float | None) -> object:
        """Receive one or several."""
        if count == 1:
            taken = [self.queue.receive(timeout=0, lease_seconds=lease_seconds)]
        else:
            taken = list(self.queue.receive_many(count, timeout=0, lease_seconds=lease_seconds))
        self.in_hand += taken
        return [(each.offset, each.payload, each.delivery_count, each.headers, each.timestamp_ns) for each in taken]

    def settle(self, verb: str, at: float, *, is_over: bool) -> object:
        """Do something with a delivery; in hand or not any more."""
        among = self.over if is_over else self.in_hand
        if not among:
            return None
        delivery = among.pop(int(at * len(among)))
        self.over.append(delivery)
        verbs = {
            "ack": delivery.ack,
            "nack": delivery.nack,
            "nack now": lambda: delivery.nack(0),
            "release": delivery.release,
            "reject": lambda: delivery.reject("no"),
        }
        return self.answer(verbs[verb]), delivery.is_settled, delivery.has_expired

    def kill(self) -> None:
        """End the process without an order."""
        self.jobs = self.jobs.killed()
        self.open()

    def reopen(self) -> None:
        """Close the queue and open it again."""
        self.queue.close()
        self.open()

    def seen(self) -> object:
        """Return all that can be seen, on the disk and from outside."""
        figures = asdict(self.queue.stats())
        del figures["bytes_on_disk"]  # of the write side, and looked up now and then by the real clock
        dead = [(letter.offset, letter.reason) for letter in self.queue.dead.list()]
        return figures, dead, self.queue.unfinished_tasks, position_entries(self.queue)


def a_step(choice: random.Random, clock: FakeClock) -> Callable[[Side], object]:
    """Return one thing to do, with all that is random in it drawn."""
    at, count, lease = choice.random(), choice.choice([1, 1, 1, 5]), choice.choice([None, None, 1, 30])
    payloads, asks = [b"%d" % choice.randrange(100) for _ in range(count)], choice.choice(ASKS)
    verb = choice.choice(["ack", "ack", "ack", "nack", "nack now", "release", "reject"])
    steps: list[Callable[[Side], object]] = [
        *[lambda side: [side.queue.put(each, **asks) for each in payloads]] * 4,
        *[lambda side: side.answer(lambda: side.take(count, lease))] * 5,
        *[lambda side: side.settle(verb, at, is_over=False)] * 6,
        lambda side: side.settle(verb, at, is_over=True),
        *[lambda side: side.answer(lambda: side.queue.get(timeout=0))] * 2,
        lambda side: side.answer(lambda: side.queue.get_many(count, timeout=0)),
        lambda side: side.queue.peek(count),
        lambda side: side.queue.dead.retry(side.queue.dead.list(limit=1)),
    ]
    if choice.random() < 0.1:
        steps += [lambda side: side.queue.pause(reason="tea"), Side.kill, Side.reopen]
    if choice.random() < 0.3:
        steps.append(lambda side: side.queue.resume())
    if choice.random() < 0.2:
        clock.advance(choice.choice([0.5, 3, 12, 70]))
    return choice.choice(steps)


@pytest.mark.parametrize("number", range(8))
def test_the_fast_lane_answers_and_writes_what_the_general_way_does(number: int) -> None:
    """After every step: each answer, the figures, and the position file are equal."""
    choice, clock = random.Random(SEED + number), FakeClock()
    with no_passes():
        sides = [Side(Jobs(SimulatedStorage(), clock), has_lane) for has_lane in (True, False)]
        for step in range(STEP_COUNT):
            do = a_step(choice, clock)
            answers = [(do(side), side.seen()) for side in sides]
            assert answers[0] == answers[1], f"HOLDFAST_TEST_SEED={SEED}, number {number}, step {step}"
        for side in sides:
            side.queue.close()


@pytest.mark.parametrize("asks", [{}, {"priority": 3}, {"order_key": "a"}, {"headers": {"kind": "order"}}], ids=str)
def test_a_message_that_is_at_hand_takes_the_fast_lane(asks: dict[str, Any]) -> None:
    """Else the test above compares the general way with itself."""
    with Jobs().open() as queue:
        queue.put(b"later", delay=1000)
        for payload in (b"first", b"second"):
            queue.put(payload, **asks)
        queue.receive().nack(0)  # the first take begins the group, and reads
        with mock.patch.object(ReadSide, "_take", side_effect=AssertionError("the general way")):
            queue.receive().nack(0)
            assert queue.get() == b"first"
            queue.receive().ack()
        assert queue.stats().depth == 1

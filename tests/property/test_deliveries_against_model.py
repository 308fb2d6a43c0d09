"""Leases, verbs, waits, dead letters, restarts and kills at random, beside a model that says where each message is."""

import os
import random
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest

from holdfast import Delivery, Empty, PersistentQueue, StaleReceiptError
from proof.second_model.witness import watching
from support.builders.jobs import Jobs, fail

SEED = int(os.environ.get("HOLDFAST_TEST_SEED", "20240521"))
MAX_DELIVERIES = 3
BACKOFF_SECONDS = 5
LEASE_SECONDS = 10
STEP_COUNT = 200


@dataclass
class Known:
    """What the model knows of one message."""

    state: str = "ready"
    count: int = 0
    until: float = 0.0
    reason: str = ""

    @property
    def is_exhausted(self) -> bool:
        """Whether its process died at the last delivery: nobody has noticed, or it is a dead letter by now."""
        return self.state == "ready" and self.count >= MAX_DELIVERIES

    def fail(self, now: float, seconds: float, reason: str) -> None:
        """Go where a failure leads."""
        if self.count >= MAX_DELIVERIES:
            self.state, self.reason = "dead", reason
        elif seconds:
            self.state, self.until = "delayed", now + seconds
        else:
            self.state = "ready"


@dataclass
class World:
    """A queue, its model, and the deliveries that were received in this life of the process."""

    choice: random.Random
    jobs: Jobs = field(default_factory=Jobs)
    known: list[Known] = field(default_factory=list)
    held: dict[int, tuple[Delivery, float]] = field(default_factory=dict)
    stale: list[Delivery] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.queue = self._open()

    def _open(self) -> PersistentQueue:
        return self.jobs.open(max_deliveries=MAX_DELIVERIES, backoff=[BACKOFF_SECONDS], lease_seconds=LEASE_SECONDS)

    # -- Steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do one thing at random."""
        steps = [self.put, self.receive, self.receive, self.receive_many, self.settle, self.settle, self.settle]
        steps += [self.wait, self.wait, self.use_stale, self.retry, self.discard]
        if self.choice.random() < 0.15:
            steps.append(self.reopen)
        self.choice.choice(steps)()

    def put(self) -> None:
        """Put some messages."""
        count = self.choice.randrange(1, 6)
        self.queue.put_many([b"%d" % (len(self.known) + number) for number in range(count)])
        self.known += [Known() for _ in range(count)]

    def receive(self) -> None:
        """Take one."""
        try:
            self._take([self.queue.receive(timeout=0)], LEASE_SECONDS)
        except Empty:
            assert not self.ready(), "nothing was handed out"

    def receive_many(self) -> None:
        """Take several, for another time."""
        seconds, count = self.choice.choice([1, 30]), self.choice.randrange(1, 8)
        try:
            self._take(list(self.queue.receive_many(count, timeout=0, lease_seconds=seconds)), seconds)
        except Empty:
            assert not self.ready(), "nothing was handed out"

    def _take(self, deliveries: list[Delivery], seconds: float) -> None:
        for each in deliveries:
            known = self.known[each.offset]
            assert known.state == "ready", f"{each} was handed out, and it is {known}"
            assert each.payload == b"%d" % each.offset
            known.state, known.count = "leased", known.count + 1
            assert each.delivery_count == known.count
            assert known.count == 1 or len(deliveries) == 1, "what was handed out before comes alone"
            self.held[each.offset] = (each, self.now + seconds)

    def settle(self) -> None:
        """Do something with a delivery in hand."""
        if not self.held:
            return
        delivery, _ = self.held.pop(self.choice.choice(list(self.held)))
        known = self.known[delivery.offset]
        match self.choice.choice(["ack", "ack", "nack", "nack now", "fail", "reject", "release", "extend"]):
            case "ack":
                delivery.ack()
                known.state = "done"
            case "nack":
                delivery.nack()
                known.fail(self.now, BACKOFF_SECONDS, "max_deliveries")
            case "nack now":
                delivery.nack(0)
                known.fail(self.now, 0, "max_deliveries")
            case "fail":
                fail(delivery)
                known.fail(self.now, BACKOFF_SECONDS, "exception")
            case "reject":
                delivery.reject("no")
                known.state, known.reason = "dead", "rejected"
            case "release":
                delivery.release()
                known.state, known.count = "ready", known.count - 1
            case "extend":
                delivery.extend(20)
                self.held[delivery.offset] = (delivery, self.now + 20)
                return
        self.stale.append(delivery)

    def wait(self) -> None:
        """Let time pass: leases run out, and waits end."""
        seconds = self.choice.choice([0.5, 2, 6, 12])
        self.jobs.clock.advance(seconds)
        self.now += seconds
        for offset, (delivery, until) in list(self.held.items()):
            if until <= self.now:
                self.stale.append(delivery)
                del self.held[offset]
                self.known[offset].fail(self.now, 0, "lease_expired")
        for known in self.known:
            if known.state == "delayed" and known.until <= self.now:
                known.state = "ready"

    def use_stale(self) -> None:
        """Try something with a delivery that is over."""
        if self.stale:
            delivery = self.choice.choice(self.stale)
            verbs = [delivery.ack, delivery.nack, delivery.release, delivery.extend, lambda: delivery.reject("no")]
            with pytest.raises(StaleReceiptError):
                self.choice.choice(verbs)()

    def retry(self) -> None:
        """Have some dead letters handed out again, and ask the same of messages that are none."""
        dead = [letter.offset for letter in self.queue.dead.list()]
        chosen = {self.choice.randrange(len(self.known)) for _ in range(3)} if self.known else set()
        assert self.queue.dead.retry(chosen) == len(chosen.intersection(dead))
        for offset in chosen.intersection(dead):
            self.known[offset] = Known()

    def discard(self) -> None:
        """Finish one, now and then."""
        if self.choice.random() < 0.3:
            letters = self.queue.dead.list(limit=1)
            assert self.queue.dead.discard(letters) == len(letters)
            for each in letters:
                self.known[each.offset].state = "done"

    def reopen(self) -> None:
        """End the process, in order or not, and begin another one."""
        is_clean = self.choice.random() < 0.5
        if is_clean:
            self.queue.close()
        else:
            self.jobs = self.jobs.killed()
        for offset in self.held:
            known = self.known[offset]
            known.state, known.count = "ready", known.count - is_clean
        self.held, self.stale = {}, []
        self.queue = self._open()
        assert not self.queue.recovery.damage
        assert not self.queue.recovery.progress_damage

    # -- Checks ------------------------------------------------------------------------------------------------------

    def ready(self) -> list[int]:
        """Return the offsets of messages that can be handed out."""
        return [at for at, known in enumerate(self.known) if known.state == "ready" and not known.is_exhausted]

    def check(self) -> None:
        """Compare all that can be seen."""
        dead = {letter.offset: letter.reason for letter in self.queue.dead.list()}
        for offset, known in enumerate(self.known):
            if known.is_exhausted and offset in dead:
                known.state, known.reason = "dead", "max_deliveries"
        for state in ("ready", "leased", "delayed", "dead"):
            found = {each.offset: each.delivery_count for each in self.queue.browse(state, limit=10_000)}
            assert found == {at: known.count for at, known in enumerate(self.known) if known.state == state}, state
        assert dead == {at: known.reason for at, known in enumerate(self.known) if known.state == "dead"}
        stats = self.queue.stats()
        live = [known for known in self.known if known.state not in ("done", "dead")]
        assert (stats.depth, stats.in_flight, stats.dead) == (len(live), len(self.held), len(dead))
        assert sorted(each.offset for each in self.queue.peek(10_000)) == self.ready()


@pytest.mark.parametrize("number", range(40))
def test_each_message_is_where_the_model_says_it_is(number: int) -> None:
    """After every step, whichever way it came there; of the first run the second model judges every answer too."""
    with watching() if number == 0 else nullcontext():
        world = World(random.Random(SEED + number))
        for step in range(STEP_COUNT):
            try:
                world.step()
                world.check()
            except BaseException as error:
                error.add_note(f"HOLDFAST_TEST_SEED={SEED}, number {number}, step {step}")
                raise
        world.queue.close()
    assert any(known.state == "done" for known in world.known)

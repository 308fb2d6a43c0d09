"""Every storage prefix of small workloads with options recovers: nothing early, keys in order, priorities found.

The oracle knows for each length of the storage's log what had been put and finished, and what was being so.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from holdfast import Empty, FlushPolicy, PersistentQueue, Put
from support.builders.clocks import FakeClock
from support.builders.takes import shown
from support.builders.transactions import open_queue
from support.storages.simulated_storage import SimulatedStorage

POLICIES = (FlushPolicy.every_commit(), FlushPolicy.never())
RANDOM_CRASHES = 2
DELAY = 1000


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of recoveries say what they did."""
    caplog.set_level(logging.CRITICAL, "holdfast")


@dataclass
class Run:
    """A queue in use, and what each of its calls puts or finishes: names begin with what they ask for.

    ``late`` is delayed, ``p<n>`` has a priority, ``k<key>`` an order key, ``ttl`` a time to live of half the delay.
    """

    policy: FlushPolicy
    storage: SimulatedStorage = field(default_factory=SimulatedStorage)
    clock: FakeClock = field(default_factory=FakeClock)
    steps: list[tuple[int, int, str, frozenset[bytes]]] = field(default_factory=list)

    def do(self, kind: str, names: list[bytes], call: Callable[[], object]) -> None:
        """Make a call, and note between which operations it ran."""
        begun = len(self.storage.log)
        call()
        self.steps.append((begun, len(self.storage.log), kind, frozenset(names)))

    def put(self, queue: PersistentQueue, *names: bytes) -> None:
        """Put a batch."""
        self.do("put", list(names), lambda: queue.put_many([asking(name) for name in names]))

    def ack(self, queue: PersistentQueue) -> None:
        """Receive the next message and finish it."""
        delivery = queue.receive(timeout=0)
        self.do("finish", [delivery.payload], delivery.ack)

    def names(self, kind: str, count: int, *, returned: bool) -> frozenset[bytes]:
        """Return what calls of a kind had done after so many operations: those that returned, or were begun."""
        at = [names for begun, end, was, names in self.steps if was == kind and (end if returned else begun) <= count]
        return frozenset().union(*at)


def asking(name: bytes) -> Put:
    """Return a message that asks for what its name says."""
    return Put(
        name,
        delay=DELAY if b"late" in name else None,
        priority=int(name[1:2]) if name.startswith(b"p") else 0,
        order_key=name[:2].decode() if name.startswith(b"k") else None,
        ttl=DELAY / 2 if b"ttl" in name else None,
    )


def puts_and_takes(run: Run) -> None:
    """All options, acknowledged one by one."""
    with open_queue(run.storage, clock=run.clock, flush=run.policy) as queue:
        run.put(queue, b"late 1", b"ka 1", b"x 1")
        run.put(queue, b"p3 1", b"ka 2", b"kb 1")
        run.ack(queue)
        run.ack(queue)
        run.put(queue, b"ka 3", b"p7 late", b"p7 1", b"ttl 1", b"ka ttl")
        run.ack(queue)
        run.ack(queue)


def failures(run: Run) -> None:
    """Nacked, released and killed deliveries of each kind; the next owner continues."""
    options = {"clock": run.clock, "flush": run.policy}
    with open_queue(run.storage, **options) as queue:
        run.put(queue, b"ka 1", b"ka 2", b"kb 1", b"p2 1", b"p2 2", b"x 1", b"late 1")
        for delay in (None, 0, DELAY):
            queue.receive(timeout=0).nack(delay=delay)
        run.ack(queue)
        queue.receive(timeout=0)
    with open_queue(run.storage, **options) as queue:
        run.put(queue, b"p9 1", b"ka 3")
        run.ack(queue)
        run.ack(queue)


def transactions(run: Run) -> None:
    """Puts and acknowledgements that commit together."""
    with open_queue(run.storage, clock=run.clock, flush=run.policy) as queue:
        run.put(queue, b"ka 1", b"ka 2", b"x 1")
        tx = queue.begin()
        tx.ack(tx.receive(timeout=0))
        names = [b"p5 1", b"ka 3", b"late 1", b"ttl 1"]
        tx.put_many([asking(name) for name in names])
        begun = len(run.storage.log)
        tx.commit()
        for kind, of in (("put", names), ("finish", [b"ka 1"])):
            run.steps.append((begun, len(run.storage.log), kind, frozenset(of)))
        run.ack(queue)


WORKLOADS = (puts_and_takes, failures, transactions)


def drain(queue: PersistentQueue) -> list[bytes]:
    """Take all that can be taken now, one by one; what is looked at agrees with it each time."""
    found: list[bytes] = []
    while True:
        first = shown(queue)[:1]
        try:
            found.append(queue.get(timeout=0))
        except Empty:
            assert not first
            return found
        assert first == found[-1:]


def hold_to(run: Run, crashed: SimulatedStorage, count: int, *, keeps_all: bool) -> None:
    """Recover a disk and hold what it gives to the promises."""
    clock = FakeClock()
    clock.set_time_ns(run.clock.time_ns())
    with open_queue(crashed, clock=clock, flush=run.policy) as queue:
        now = drain(queue)
        assert not [name for name in now if b"late" in name], f"early: {now}"
        fresh = [name for name in now if name.startswith(b"p")]
        assert fresh == sorted(fresh, key=lambda name: -int(name[1:2])), f"not by priority: {now}"
        assert now[: len(fresh)] == fresh, f"a priority was not looked for: {now}"
        clock.advance(DELAY / 2)
        later = drain(queue)
        assert not [name for name in later if b"ttl" in name], f"its time is over: {later}"
        clock.advance(DELAY * 4)
        found = now + later + drain(queue)
        assert queue.stats().depth == 0
    for key in (b"ka", b"kb"):
        of_key = [name for name in found if name.startswith(key) and b"ttl" not in name]
        assert of_key == sorted(of_key), f"key {key!r} out of order: {found}"
    assert len(found) == len(set(found)), f"twice: {found}"
    put, finished = run.names("put", count, returned=False), run.names("finish", count, returned=True)
    assert set(found) <= put
    if keeps_all:
        assert not finished & set(found), f"finished, and there again: {finished & set(found)}"
        must = run.names("put", count, returned=True) - run.names("finish", count, returned=False)
        missing = {name for name in must - set(found) if b"ttl" not in name}
        assert not missing, f"lost: {missing}"


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_every_prefix_keeps_what_messages_ask_for(workload: Callable[[Run], None], policy: FlushPolicy) -> None:
    """After a kill, a power loss that takes all it can, and random ones, at each operation."""
    run = Run(policy)
    workload(run)
    rng = random.Random(f"{workload.__name__} {policy}")
    is_durable = policy.syncs_every_commit
    for count, prefix in enumerate(run.storage.replay()):
        hold_to(run, prefix.crash_keeping_all(), count, keeps_all=True)
        hold_to(run, prefix.crash_dropping_unsynced(), count, keeps_all=is_durable)
        for number in range(RANDOM_CRASHES):
            hold_to(run, prefix.random_crash(rng, keep=0.95 if number else 0.5), count, keeps_all=is_durable)

"""KeyboardInterrupt wherever it can hit put, get, receive, ack: memory and disk agree, or the queue is poisoned."""

import logging
from collections.abc import Callable

import pytest

from holdfast import FlushPolicy, PersistentQueue, PoisonedError
from holdfast.persistence.filesystem.fence import WINDOW_NS
from proof.interruptions.operations import OPERATIONS
from proof.interruptions.sweep import find_points, promised, sweep
from support.builders.clocks import NS_PER_SECOND, FakeClock
from support.processes.interruptions import interrupt, without_hanging
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.recorded_run import message, open_queue

Verb = Callable[[PersistentQueue], object]


def get(queue: PersistentQueue) -> object:
    """Take and acknowledge."""
    return queue.get(block=False)


def ack(queue: PersistentQueue) -> object:
    """Take, then acknowledge."""
    return queue.receive(timeout=0).ack()


VERBS: dict[str, Verb] = {
    "put": lambda queue: queue.put(message(50, 100)),
    "put with headers": lambda queue: queue.put(message(50, 100), headers={"tenant": "acme"}),
    "put_many": lambda queue: queue.put_many([message(50, 100), message(51, 200), message(52, 50)]),
    "put that rolls": lambda queue: queue.put(message(50, 12_000)),
    "get": get,
    "get_many": lambda queue: queue.get_many(3, timeout=0),
    "receive": lambda queue: queue.receive(timeout=0),
    "ack": ack,
    "nack": lambda queue: queue.receive(timeout=0).nack(delay=0),
}
POLICIES = [FlushPolicy.every_commit(), FlushPolicy.never()]


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Poisoning is logged, hundreds of times here."""
    caplog.set_level(logging.CRITICAL, "holdfast")


def prepared(policy: FlushPolicy) -> tuple[SimulatedStorage, PersistentQueue]:
    """Return a queue with a little behind it: some taken, six waiting; the next call looks for other owners."""
    storage, clock = SimulatedStorage(), FakeClock()
    queue = open_queue(storage, policy, clock=clock)
    for number in range(8):
        queue.put(message(number, 100))
    queue.get_many(2)
    clock.advance(2 * WINDOW_NS / NS_PER_SECOND)
    return storage, queue


def left(queue: PersistentQueue) -> list[bytes]:
    """Return all payloads that are not finished, those in flight included."""
    side = queue._read_side
    assert side is not None
    in_flight = [item for item in side._leases.by_offset.values() if not side.progress.is_finished(item.offset)]
    shown = {entry.offset: entry.payload for entry in queue.peek(100)}
    return [payload for _, payload in sorted(shown.items() | {(item.offset, item.payload) for item in in_flight})]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("name", VERBS)
def test_memory_and_disk_agree_wherever_a_call_is_interrupted(name: str, policy: FlushPolicy) -> None:
    """What the handle shows afterwards is what a killed process would find; or it refuses, and reopening finds all."""
    at = 1
    while True:
        storage, queue = prepared(policy)
        before = left(queue)
        if not interrupt(lambda queue=queue: VERBS[name](queue), at):  # type: ignore[misc]
            break
        flushed = without_hanging(queue.flush)
        reopened = open_queue(storage.crash_keeping_all(), policy)
        there = left(reopened)
        if not isinstance(flushed, Exception):
            assert left(queue) == there, f"point {at}: memory and disk are apart"
            further = without_hanging(lambda queue=queue: queue.put(b"next"))  # type: ignore[misc]
            assert isinstance(further, int | PoisonedError)
            assert isinstance(further, PoisonedError) or without_hanging(lambda queue=queue: left(queue)) == [
                *there,
                b"next",
            ]  # type: ignore[misc]
        new = [payload for payload in there if payload not in before]
        assert new in ([], *([added] for added in [message(50, 100)])) or name in {"put_many", "put that rolls"}
        if name == "put_many":
            assert len(new) in {0, 3}, f"point {at}: a part of a batch"
        if name in {"receive", "nack"} or name.startswith("put"):
            assert [payload for payload in there if payload in before] == before, f"point {at}: lost"
        without_hanging(queue.close)
        reopened.close()
        at += 1
    queue.close()
    assert at > 5, "nothing was interrupted"


def test_an_interrupted_opening_leaves_nothing_locked() -> None:
    """Wherever the queue or its handle has opened a side and continues: the next opening finds both sides free."""
    (opening,) = (each for each in OPERATIONS if each.name == "open")
    points = promised(find_points(opening, POLICIES[0]))
    chosen = [each for each in points if each.where.startswith(("PersistentQueue.__init__", "QueueHandle._open"))]
    swept = sweep(opening, POLICIES[0], chosen)
    assert swept.judged.total() == len(chosen) > 50
    assert swept.violations == []

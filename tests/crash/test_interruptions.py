"""KeyboardInterrupt wherever it can hit put, get, receive, ack: memory and disk agree, or the queue is poisoned."""

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import holdfast
from holdfast import CommitUnknownError, FlushPolicy, PersistentQueue, PoisonedError
from support.recorded_run import message, open_queue
from support.simulated_storage import SimulatedStorage

SOURCE = str(Path(holdfast.__file__).parent)
HANG_SECONDS = 20.0

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
    "nack": lambda queue: queue.receive(timeout=0).nack(),
}
POLICIES = [FlushPolicy.every_commit(), FlushPolicy.never()]


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Poisoning is logged, hundreds of times here."""
    caplog.set_level(logging.CRITICAL, "holdfast")


def interrupt(call: Callable[[], object], at: int) -> bool:
    """Make a call and interrupt it at point number ``at``; return whether it came so far.

    The points are those where the interpreter looks for signals: where a function of ours begins, and where one that is
    written in C has returned to ours. A loop's jump back is one too; ours call something in every turn.
    """
    count = 0

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        if event in {"call", "c_return"} and frame.f_code.co_filename.startswith(SOURCE):
            count += 1
            if count == at:
                raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def without_hanging(call: Callable[[], object]) -> object:
    """Return what a call returns in a thread of its own; a lock that was left locked fails the test, not the run."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(outcome(call)), daemon=True)
    thread.start()
    thread.join(HANG_SECONDS)
    assert not thread.is_alive(), "the queue hangs after an interruption"
    return results[0]


def outcome(call: Callable[[], object]) -> object:
    """Return what a call returns, or the error of ours that says to reopen."""
    try:
        return call()
    except (PoisonedError, CommitUnknownError) as error:
        return error


def prepared(policy: FlushPolicy) -> tuple[SimulatedStorage, PersistentQueue]:
    """Return a queue with a little behind it: some taken, six waiting."""
    storage = SimulatedStorage()
    queue = open_queue(storage, policy)
    for number in range(8):
        queue.put(message(number, 100))
    queue.get_many(2)
    return storage, queue


def left(queue: PersistentQueue) -> list[bytes]:
    """Return all payloads that are not finished, those in flight included."""
    side = queue._read_side
    assert side is not None
    in_flight = [item for item in side._in_flight.values() if not side.progress.is_finished(item.offset)]
    shown = {entry.offset: entry.payload for entry in queue.peek(100)}
    return [payload for _, payload in sorted(shown.items() | {(item.offset, item.payload) for item in in_flight})]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("name", VERBS)
def test_memory_and_disk_agree_wherever_a_call_is_interrupted(name: str, policy: FlushPolicy) -> None:
    """What the handle goes on to show is what a killed process would find; or it refuses, and reopening finds all."""
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

"""A call that is refused leaves pieces behind that nothing has synced; a loss of power may keep any of them.

What returns behind it is durable all the same, and what had returned before stays so. Every storage call of the call
that is refused fails in turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import CommitUnknownError, HoldfastError, PersistentQueue, PoisonedError
from support.builders.takes import taken
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

QUEUE = Path("/queue")
FILE_BYTES = 64 * 2**10
DRAWN_COUNT = 12
ENTRIES_MAX = 400


def open_queue(storage: SimulatedStorage, mode: str = "exclusive") -> PersistentQueue:
    """Open the queue of these tests: a message may be handed out as often as it takes."""
    return PersistentQueue(QUEUE, storage=storage, mode=mode, data_file_bytes=FILE_BYTES, max_deliveries=None)


def losses(storage: SimulatedStorage) -> Iterator[SimulatedStorage]:
    """Yield what losses of power leave: all that is there, nothing that need not be, and some of it by chance."""
    rng = random.Random(1)
    yield storage.crash_dropping_unsynced()
    for number in range(1, DRAWN_COUNT + 1):
        yield storage.random_crash(rng, keep=number / DRAWN_COUNT)


def refused(storage: SimulatedStorage, call_number: int, call: Callable[[], object]) -> bool | None:
    """Make a call of which one storage call fails; return whether it was refused, None where it has not so many.

    Refused means that nothing has happened, and that it may be tried again; not that nobody knows.
    """
    storage.faults = plan = FaultPlan(call_number)
    try:
        call()
        was_refused = False
    except (CommitUnknownError, PoisonedError):
        was_refused = False
    except HoldfastError:
        was_refused = True
    storage.faults = None
    return was_refused if plan.fired_count else None


def each_refusal(begin: Callable[[], tuple[SimulatedStorage, Callable[[], object]]]) -> Iterator[SimulatedStorage]:
    """Yield the storage behind each way in which a call can be refused, which has to be one at least."""
    refusal_count = 0
    for call_number in range(1, ENTRIES_MAX):
        storage, call = begin()
        was_refused = refused(storage, call_number, call)
        if was_refused is None:
            break
        if was_refused:
            refusal_count += 1
            yield storage
    assert refusal_count, "it was never refused"


def nearly_full_position_file(queue: PersistentQueue, storage: SimulatedStorage) -> None:
    """Take messages one by one until few entries are left in the position file, which is not the first one."""

    def current() -> str:
        return max(name for name in storage.list(QUEUE / "groups" / "default") if name[0].isdigit())

    def fill() -> int:
        before, count = current(), 0
        while current() == before:
            queue.put(b"filler")
            queue.get(timeout=0)
            count += 1
            assert count < ENTRIES_MAX, "the position file is never full"
        return count

    fill()
    for _ in range(fill() - 5):
        queue.put(b"filler")
        queue.get(timeout=0)


def test_what_is_acknowledged_behind_a_refused_acknowledgement_stays_so() -> None:
    """The refused one has many runs of messages, so it begins a new position file, which recovery may come to read."""
    queues: list[PersistentQueue] = []
    acks: list[Callable[[], object]] = []
    payloads = [b"%02d" % number for number in range(41)]

    def begin() -> tuple[SimulatedStorage, Callable[[], object]]:
        storage = SimulatedStorage()
        queue = open_queue(storage)
        queue.put(b"first")
        queue.get(timeout=0)
        nearly_full_position_file(queue, storage)
        queue.put_many(payloads)
        batch = queue.receive_many(len(payloads), timeout=0)
        deliveries = list(batch)
        queues.append(queue)
        acks.append(deliveries[-1].ack)
        return storage, lambda: batch.ack(deliveries[:-1:2])

    for storage in each_refusal(begin):
        acks[-1]()
        for left in losses(storage):
            with open_queue(left) as queue:
                assert taken(queue) == payloads[:-1]
    for queue in queues:
        queue.close()


def make_a_group(queue: PersistentQueue) -> None:
    """Make one that is not there."""
    queue.groups.create("new")


def resume(queue: PersistentQueue) -> None:
    """End the pause."""
    queue.resume()


def prepare(queue: PersistentQueue) -> None:
    """Prepare the first transaction of the queue."""
    tx = queue.begin()
    tx.put(b"prepared")
    tx.prepare("id")


def prepare_large(queue: PersistentQueue) -> None:
    """The same, with more puts than memory should hold."""
    tx = queue.begin()
    tx.put_many([bytes(3000)] * 6)
    tx.prepare("id")


def delete_a_group(queue: PersistentQueue) -> None:
    """Delete one that is there; refused, it may be gone all the same."""
    if "old" in queue.groups.list():
        queue.groups.delete("old")


VERBS = [make_a_group, delete_a_group, resume, prepare, prepare_large]


def what_is_known(queue: PersistentQueue) -> dict[str, object]:
    """Return what those verbs change."""
    return {
        "groups": queue.groups.list(),
        "paused": queue.stats().paused,
        "prepared": [each.id for each in queue.prepared()],
    }


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_verb_that_was_refused_and_is_tried_again_is_durable(verb: Callable[[PersistentQueue], None]) -> None:
    """A second sync could succeed over what the first one lost: so the second attempt makes a change of its own."""
    queues: list[PersistentQueue] = []

    def begin() -> tuple[SimulatedStorage, Callable[[], object]]:
        storage = SimulatedStorage()
        queue = open_queue(storage)
        queues.append(queue)
        queue.groups.create("old")
        queue.put(b"first")
        queue.get(timeout=0)
        queue.pause()
        return storage, lambda: verb(queue)

    for storage in each_refusal(begin):
        verb(queues[-1])
        known = what_is_known(queues[-1])
        for left in losses(storage):
            with open_queue(left) as queue:
                assert what_is_known(queue) == known
    for queue in queues:
        queue.close()

"""Returned means durable, where a call has company: a bound, another group's name, a decision, a sync under way.

Each call that has returned is there after a loss of power that takes all it can.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Empty, FlushPolicy, PersistentQueue
from support.builders.takes import taken
from support.processes.threads import Threads, wait_until
from support.storages.held_syncs import HeldSyncs
from support.storages.simulated_storage import SimulatedStorage

QUEUE, OTHER = Path("/queue"), Path("/other")
FILE_BYTES = 16 * 2**10


def open_queue(storage: SimulatedStorage, path: Path = QUEUE, **options: object) -> PersistentQueue:
    """Open a queue of small data files."""
    return PersistentQueue(path, storage=storage, data_file_bytes=FILE_BYTES, **{"mode": "exclusive", **options})  # type: ignore[arg-type]


def cut_power(storage: SimulatedStorage, *queues: PersistentQueue) -> SimulatedStorage:
    """Return what a loss of power leaves that takes all it can."""
    left = storage.crash_dropping_unsynced()
    for queue in queues:
        queue.close()
    return left


@pytest.mark.parametrize("bound", [{"maxsize": 100}, {"max_bytes": 4 * FILE_BYTES}], ids=["maxsize", "max_bytes"])
def test_a_put_into_a_bounded_queue_is_there(bound: dict[str, int]) -> None:
    """Single ones and batches; there is room, so nothing waits."""
    storage = SimulatedStorage()
    queue = open_queue(storage, **bound)
    queue.put(b"one")
    single = storage.crash_dropping_unsynced()
    queue.put_many([b"two", b"three"])
    with open_queue(cut_power(storage, queue)) as queue:
        assert taken(queue) == [b"one", b"two", b"three"]
    with open_queue(single) as queue:
        assert taken(queue) == [b"one"]


def test_a_pause_of_a_group_that_has_not_begun_is_there() -> None:
    """The directory that says so is as new as the pause."""
    storage = SimulatedStorage()
    queue = open_queue(storage)
    queue.put(b"waits")
    queue.pause(reason="for now")
    with open_queue(cut_power(storage, queue)) as queue:
        assert queue.stats().paused == "for now"
        with pytest.raises(Empty):
            queue.get(timeout=0)


def test_a_commit_that_acknowledges_in_two_queues_and_puts_nothing_is_there() -> None:
    """Its decision has no message whose sync could have been done before."""
    storage = SimulatedStorage()
    first, second = open_queue(storage), open_queue(storage, OTHER)
    for queue in (first, second):
        queue.put_many([b"done", b"left"])
    with holdfast.transaction(first, second) as tx:
        for queue in (first, second):
            tx.ack(queue, tx.receive(queue, timeout=0))
    left = cut_power(storage, first, second)
    for path in (QUEUE, OTHER):
        with open_queue(left, path) as queue:
            assert taken(queue) == [b"left"]


@pytest.mark.parametrize("policy", [FlushPolicy.every_commit(), FlushPolicy.never()], ids=str)
def test_what_a_transaction_acknowledged_stays_so_when_its_data_file_is_left(policy: FlushPolicy) -> None:
    """The decision says it as long as the position file may not; the next data file does not have to."""
    storage = SimulatedStorage()
    queue = open_queue(storage, flush=policy)
    queue.put(b"done")
    with queue.transaction() as tx:
        tx.ack(tx.receive(timeout=0))
        tx.put(b"put")
    before = len(storage.list(QUEUE / "data"))
    while len(storage.list(QUEUE / "data")) == before:
        queue.put(bytes(3000))
    with open_queue(cut_power(storage, queue)) as queue:
        assert queue.get(timeout=0) == b"put"


def test_a_message_is_not_given_out_before_its_put_is_durable() -> None:
    """Else a loss of power would take what a consumer has finished."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.put(b"first")
        assert queue.get(timeout=0) == b"first"
        held = HeldSyncs(lambda path: path.suffix == ".data")
        storage.before_verb = held.before_verb
        threads = Threads()
        try:
            threads.start(lambda: queue.put(b"second"))
            wait_until(lambda: held.held_count == 1, seconds=60)
            with pytest.raises(Empty):
                queue.get(timeout=0)
        finally:
            held.end()
            threads.join()
        assert queue.get(timeout=0) == b"second"

"""Every call of the storage fails once, or for ever: errors are ours, and what was acknowledged stays.

``HOLDFAST_TEST_CRASH_FULL=1`` lets each call fail with each fault, and not every third with each in turn: that is what
the fault loop in tests/proof/faults does for single operations.
"""

import errno
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from holdfast import CommitUnknownError, DiskFullError, FlushPolicy, HoldfastError, PersistentQueue, PoisonedError
from support.storages.disk_operations import Allocate, Operation, Write
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.recorded_run import ROOT, message, open_queue

POLICY = FlushPolicy.every_commit()
LARGE = 4000  # two of them fill a data file
STRIDE = 1 if os.environ.get("HOLDFAST_TEST_CRASH_FULL") else 3

FAULTS: dict[str, Callable[[int], FaultPlan]] = {
    "EIO once": lambda at: FaultPlan(at, errno.EIO),
    "EIO for ever": lambda at: FaultPlan(at, errno.EIO, forever=True),
    "ENOSPC once": lambda at: FaultPlan(at, errno.ENOSPC),
    "ENOSPC for ever": lambda at: FaultPlan(at, errno.ENOSPC, forever=True),
    "short write once": lambda at: FaultPlan(at, errno.ENOSPC, short_write=True),
    "short write, then no room": lambda at: FaultPlan(at, errno.ENOSPC, short_write=True, forever=True),
}


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of failures are logged; one of ours would drown in it."""
    caplog.set_level(logging.CRITICAL, "holdfast")


@dataclass
class Ledger:
    """What the application knows of its messages: by payload, in the order of the puts."""

    attempted: list[bytes] = field(default_factory=list)
    there: set[bytes] = field(default_factory=set)
    unknown: set[bytes] = field(default_factory=set)
    done: set[bytes] = field(default_factory=set)

    def judge(self, left: list[bytes]) -> None:
        """Compare with what a queue has left: all that is there and not done, in order; the unknown may be there."""
        assert left == [payload for payload in self.attempted if payload in set(left)], "doubled, or out of order"
        surely = self.there - self.done - self.unknown
        assert surely <= set(left), f"lost: {sorted(surely - set(left))!r:.200}"
        assert set(left) <= surely | self.unknown, f"back again: {sorted(set(left) - surely - self.unknown)!r:.200}"


class Application:
    """Uses a queue whose storage fails, and believes what the calls say.

    A call may fail with an error of ours and nothing else. After one that says "unknown" or "poisoned" the application
    opens the queue again.
    """

    def __init__(self) -> None:
        self.storage = SimulatedStorage()
        self.ledger = Ledger()
        self.queue: PersistentQueue | None = None
        self.failure_count = 0

    def run(self) -> None:
        """Open, put one by one and in batches, take in every way, roll, reclaim, close, and all that again."""
        for life in range(2):
            self.attempt(self.open)
            self.put(100)
            self.put(20, 30, 40)
            self.attempt(self.get)
            self.attempt(self.receive_and_settle)
            self.put(LARGE)
            self.put(LARGE, 10)
            self.put(LARGE)
            for _ in range(5 + life):
                self.attempt(self.get)
            self.put(LARGE)
            self.attempt(self.close)

    def attempt(self, call: Callable[[], None]) -> None:
        """Make a call that may fail with an error of ours."""
        if self.queue is None and call not in (self.open, self.close):
            self.attempt(self.open)
            if self.queue is None:
                return
        try:
            call()
        except (CommitUnknownError, PoisonedError):
            self.failure_count += 1
            self.attempt(self.close)
        except HoldfastError:
            self.failure_count += 1

    def open(self) -> None:
        """Open the queue."""
        self.queue = open_queue(self.storage, POLICY)

    def close(self) -> None:
        """Close the queue; where that fails, it is closed all the same."""
        queue, self.queue = self.queue, None
        if queue is not None:
            queue.close()

    def put(self, *sizes: int) -> None:
        """Put one message or a batch."""
        payloads = [message(len(self.ledger.attempted) + number, size) for number, size in enumerate(sizes)]
        self.attempt(lambda: self._put(payloads))

    def _put(self, payloads: list[bytes]) -> None:
        assert self.queue is not None
        self.ledger.attempted += payloads
        try:
            if len(payloads) == 1:
                self.queue.put(payloads[0])
            else:
                self.queue.put_many(payloads)
        except CommitUnknownError:
            self.ledger.unknown.update(payloads)
            raise
        self.ledger.there.update(payloads)

    def get(self) -> None:
        """Take what is there next; where it is unknown whether that was noted, so is whether it comes again."""
        assert self.queue is not None
        expected = [entry.payload for entry in self.queue.peek()]
        if expected:
            try:
                assert [self.queue.get(block=False)] == expected
            except CommitUnknownError:
                self.ledger.unknown.update(expected)
                raise
            self.ledger.done.update(expected)
            self.ledger.unknown.difference_update(expected)

    def receive_and_settle(self) -> None:
        """Take two messages, give the second back, acknowledge the first."""
        assert self.queue is not None
        if self.queue.empty():
            return
        batch = self.queue.receive_many(2, timeout=0)
        batch.nack(batch[1:], delay=0)
        try:
            batch[0].ack()
        except CommitUnknownError:
            self.ledger.unknown.add(batch[0].payload)
            raise
        self.ledger.done.add(batch[0].payload)
        self.ledger.unknown.discard(batch[0].payload)


def left_in(storage: SimulatedStorage) -> list[bytes]:
    """Open the queue on a storage without faults, take everything, put one more and take it; return the payloads."""
    storage.faults = None
    with open_queue(storage, POLICY) as queue:
        left = [entry.payload for entry in queue.peek(10**6)]
        taken: list[bytes] = []
        while len(taken) < len(left):
            taken += queue.get_many(10**6, timeout=0)
        assert taken == left
        queue.put(b"and one more")
        assert queue.get(block=False) == b"and one more"
        assert queue.stats().lost == 0
        return left


def test_the_application_runs_through_where_nothing_fails() -> None:
    """The other tests would prove nothing if it did not."""
    application = Application()
    application.run()
    application.ledger.judge(left_in(application.storage))
    assert len(application.ledger.there) == len(application.ledger.attempted) == 18
    assert not application.ledger.unknown


@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_acknowledged_survives_a_failure_of_any_storage_call(fault: str) -> None:
    """Each call of the storage in turn fails; afterwards the queue opens, with or without a power loss before."""
    at, struck = list(FAULTS).index(fault) % STRIDE + 1 - STRIDE, True
    while struck:
        at += STRIDE
        application = Application()
        plan = application.storage.faults = FAULTS[fault](at)
        try:
            application.run()
            struck = plan.fired_count > 0
            if not plan.forever:
                assert application.failure_count <= 2, "one fault, and the queue is of no use any more"
            without_power = application.storage.crash_dropping_unsynced()
            application.storage.faults = None
            application.attempt(application.close)
            application.ledger.judge(left_in(application.storage))
            application.ledger.judge(left_in(without_power))
        except BaseException as error:
            error.add_note(f"{fault}, call {at}")
            raise
    assert at > 60, "the fault has to strike in every part of the run"


class FullDisk(SimulatedStorage):
    """A disk without room while ``is_full``: what is reserved already can be written, nothing can grow."""

    is_full = False

    def _record(self, operation: Operation) -> None:
        grows = isinstance(operation, Allocate) or (
            isinstance(operation, Write)
            and operation.position + len(operation.data) > len(self._disk.image(operation.inode))
        )
        if self.is_full and grows:
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._record(operation)


def test_consumers_drain_a_full_disk_and_puts_work_again_when_there_is_room() -> None:
    """Only puts fail, each with DiskFullError; nothing partial becomes visible."""
    storage = FullDisk()
    with open_queue(storage, POLICY) as queue:
        queue.put_many([b"one", b"two", b"three", b"four"])
        assert queue.get(block=False) == b"one"
        storage.is_full = True
        for _ in range(3):
            with pytest.raises(DiskFullError):
                queue.put(bytes(3 * LARGE))
            with pytest.raises(DiskFullError):
                queue.put_many([bytes(LARGE)] * 5)
        delivery = queue.receive(timeout=0)
        assert delivery.payload == b"two"
        delivery.ack()
        assert queue.put(b"five, in the space that is reserved") == 4
        storage.is_full = False
        assert queue.put(bytes(3 * LARGE)) == 5
        assert [queue.get(block=False) for _ in range(3)] == [b"three", b"four", b"five, in the space that is reserved"]
        assert queue.put(b"seven") == 6
    assert left_in(storage) == [bytes(3 * LARGE), b"seven"]


def test_acknowledging_goes_on_for_ever_on_a_full_disk() -> None:
    """The next generation of the position file has its space reserved, so a thousand acknowledgements need none."""
    storage = FullDisk()
    with open_queue(storage, POLICY) as queue:
        queue.put_many([b"%d" % number for number in range(1000)])
        assert queue.get(block=False) == b"0"
        storage.is_full = True
        assert [queue.get(block=False) for _ in range(999)] == [b"%d" % number for number in range(1, 1000)]
        storage.is_full = False
    assert left_in(storage) == []


def test_a_put_whose_sync_failed_is_unknown_and_the_write_side_is_poisoned() -> None:
    """A second sync could succeed over lost data, so nobody tries one; consumers go on."""
    storage = SimulatedStorage()
    queue = open_queue(storage, POLICY)
    queue.put(b"one")
    storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"sync"}))
    with pytest.raises(CommitUnknownError):
        queue.put(b"two")
    with pytest.raises(PoisonedError):
        queue.put(b"three")
    with pytest.raises(PoisonedError):
        queue.put_many([b"four", b"five"])
    assert queue.get_many(10, timeout=0) == [b"one"]
    queue.close()
    assert left_in(storage.crash_dropping_unsynced()) == []
    assert left_in(storage) in ([], [b"two"])


def test_an_acknowledgement_whose_sync_failed_is_unknown_and_the_read_side_is_poisoned() -> None:
    """The same for consumers; producers go on."""
    storage = SimulatedStorage()
    queue = open_queue(storage, POLICY)
    queue.put_many([b"one", b"two", b"three"])
    assert queue.get(block=False) == b"one"
    storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"sync"}))
    with pytest.raises(CommitUnknownError):
        queue.get(block=False)
    with pytest.raises(PoisonedError):
        queue.get(block=False)
    assert queue.put(b"four") == 3
    queue.close()
    assert left_in(storage.crash_dropping_unsynced()) == [b"two", b"three", b"four"]
    assert left_in(storage) in ([b"two", b"three", b"four"], [b"three", b"four"])


def test_a_queue_that_could_not_be_opened_holds_no_lock() -> None:
    """Whatever fails, the next attempt finds the queue free."""
    base = SimulatedStorage()
    with open_queue(base, POLICY) as queue:
        queue.put(b"one")
        queue.receive(timeout=0)
    at, struck = 0, True
    while struck:
        at += 1
        storage = base.crash_keeping_all()
        plan = storage.faults = FaultPlan(at)
        try:
            open_queue(storage, POLICY).close()
        except HoldfastError:
            pass
        except BaseException as error:
            error.add_note(f"call {at}")
            raise
        struck = plan.fired_count > 0
        storage.faults = None
        with open_queue(storage, POLICY) as queue:
            assert [entry.payload for entry in queue.peek(10)] == [b"one"], f"call {at}"
    assert at > 20


def test_the_faults_strike_inside_the_queue() -> None:
    """The directory of the runs is the one that fails."""
    application = Application()
    application.storage.faults = plan = FaultPlan(1, forever=True)
    application.run()
    assert plan.fired_count > 0
    assert ROOT not in application.storage.tree()

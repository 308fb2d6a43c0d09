"""Storage calls that fail, and disks without room, under nack, reject, release, expiry and dead letters.

The calls raise errors of ours, a note is at most lost, and no message is: it is where it was, or where it was to go.
"""

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import CommitUnknownError, Delivery, Empty, HoldfastError, PersistentQueue, PoisonedError
from support.builders.jobs import Jobs, fail
from support.storages.disk_operations import Allocate, Create, Operation, Write
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage
from support.storages.small_disk import small_disk, take_all_room

COUNT = 8
FAULTS: dict[str, Callable[[int], FaultPlan]] = {
    "EIO once": lambda at: FaultPlan(at, errno.EIO),
    "EIO for ever": lambda at: FaultPlan(at, errno.EIO, forever=True),
    "ENOSPC once": lambda at: FaultPlan(at, errno.ENOSPC),
    "ENOSPC for ever": lambda at: FaultPlan(at, errno.ENOSPC, forever=True),
    "short write once": lambda at: FaultPlan(at, errno.ENOSPC, short_write=True),
    "short write, then no room": lambda at: FaultPlan(at, errno.ENOSPC, short_write=True, forever=True),
}
Verb = Callable[[PersistentQueue, list[Delivery], Jobs], object]
VERBS: dict[str, Verb] = {
    "nack": lambda queue, held, jobs: held[0].nack(),
    "nack later": lambda queue, held, jobs: held[0].nack(50),
    "failed block": lambda queue, held, jobs: fail(held[0]),
    "reject": lambda queue, held, jobs: held[0].reject("no"),
    "release": lambda queue, held, jobs: held[0].release(),
    "runs out": lambda queue, held, jobs: (jobs.clock.advance(31), queue.peek()),
    "retry": lambda queue, held, jobs: queue.dead.retry([0, 1]),
    "discard": lambda queue, held, jobs: queue.dead.discard([0, 1]),
    "sweep": lambda queue, held, jobs: (jobs.clock.advance(15 * 86400), queue.receive(timeout=0)),
    "close": lambda queue, held, jobs: queue.close(),
}


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Failures are logged, hundreds of times here."""
    caplog.set_level(logging.CRITICAL, "holdfast")


def prepared(
    max_deliveries: int, storage: SimulatedStorage | None = None
) -> tuple[Jobs, PersistentQueue, list[Delivery]]:
    """Return a queue of eight messages: two dead, three in hand of which the first is at its last delivery."""
    jobs = Jobs(storage or SimulatedStorage())
    queue = jobs.open(max_deliveries=max_deliveries)
    queue.put_many([b"%d" % number for number in range(COUNT)])
    for number in (0, 1):
        queue.receive().reject(f"no {number}")
    for _ in range(max_deliveries - 1):
        queue.receive().nack(0)
    return jobs, queue, [queue.receive() for _ in range(3)]


def everything(queue: PersistentQueue, jobs: Jobs) -> set[bytes]:
    """Have all leases run out, take and finish all there is, and return it together with the dead letters."""
    jobs.clock.advance(200)
    found: list[bytes] = []
    with suppress(Empty):
        while True:
            delivery = queue.receive(timeout=0)
            found.append(delivery.payload)
            delivery.ack()
    found += [letter.payload for letter in queue.dead.list()]
    assert len(set(found)) == len(found), "twice"
    stats = queue.stats()
    assert (stats.depth, stats.in_flight, stats.delayed) == (0, 0, 0), "something is out of reach"
    return set(found)


def check(name: str, found: set[bytes], *, did: bool) -> None:
    """Compare with the eight messages that were there; ``did``: the verb said that it was done."""
    there = {b"%d" % number for number in range(COUNT)}
    if name in ("discard", "sweep"):
        assert there - found <= {b"0", b"1"}
        assert not (did and name == "discard") or found == there - {b"0", b"1"}
    else:
        assert found == there


@pytest.mark.parametrize("max_deliveries", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", VERBS)
def test_no_message_is_lost_whichever_storage_call_fails(name: str, fault: str, max_deliveries: int) -> None:
    """The handle continues or says that it must be reopened; so it is after a kill and after the loss of power."""
    at, struck = 0, True
    while struck:
        at += 1
        jobs, queue, held = prepared(max_deliveries)
        plan = jobs.storage.faults = FAULTS[fault](at)
        did = poisoned = False
        try:
            try:
                VERBS[name](queue, held, jobs)
                did = True
            except (PoisonedError, CommitUnknownError):
                poisoned = True
            except HoldfastError:
                pass
            struck = plan.fired_count > 0
            jobs.storage.faults = None
            for left in (jobs.killed(), jobs.without_power()):
                with left.open(max_deliveries=max_deliveries) as again:
                    check(name, everything(again, left), did=did)
            if name != "close" and not poisoned:
                with suppress(PoisonedError, CommitUnknownError):
                    check(name, everything(queue, jobs), did=did)
            with suppress(HoldfastError):
                queue.close()
            with jobs.open(max_deliveries=max_deliveries) as again:
                everything(again, jobs)
        except BaseException as error:
            error.add_note(f"{name}, {fault}, call {at}")
            raise
    assert at > 1, "the fault never struck"


class FullDisk(SimulatedStorage):
    """A disk without room while ``is_full``: what is reserved already can be written, nothing can grow or be made."""

    is_full = False

    def _record(self, operation: Operation) -> None:
        grows = isinstance(operation, Allocate | Create) or (
            isinstance(operation, Write)
            and operation.position + len(operation.data) > len(self._disk.image(operation.inode))
        )
        if self.is_full and grows:
            raise OSError(errno.ENOSPC, "No space left on device")
        super()._record(operation)


@pytest.mark.parametrize("name", [name for name in VERBS if name != "close"])
def test_on_a_full_disk_each_verb_does_its_work(name: str) -> None:
    """What is noted of messages has its room; only the notes for people are lost."""
    storage = FullDisk()
    jobs, queue, held = prepared(1, storage)
    storage.is_full = True
    VERBS[name](queue, held, jobs)
    dead = {letter.payload: letter for letter in queue.dead.list()}
    if name in ("nack", "nack later", "failed block", "reject"):
        assert dead.keys() == {b"0", b"1", b"2"}
        assert dead[b"2"].exception == ""
    elif name == "runs out":
        assert dead.keys() == {b"0", b"1", b"2", b"3", b"4"}
    elif name in ("retry", "discard", "sweep"):
        assert not dead.keys() & {b"0", b"1"}
    check(name, everything(queue, jobs), did=True)
    storage.is_full = False
    queue.close()


def test_a_thousand_failures_go_on_a_full_disk() -> None:
    """Position files of the next generations have their room too."""
    storage = FullDisk()
    jobs, queue, held = prepared(3, storage)
    for delivery in held:
        delivery.release()
    storage.is_full = True
    for _ in range(1000):
        queue.receive().release()
    while queue.stats().depth:
        fail(queue.receive())
    assert len(queue.dead) == COUNT
    assert queue.dead.retry(queue.dead.list()) == COUNT
    storage.is_full = False
    assert everything(queue, jobs) == {b"%d" % number for number in range(COUNT)}
    queue.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MiB."""
    with small_disk(tmp_path / "disk", 2 * 2**20) as place:
        yield place


def test_on_a_real_full_disk_messages_fail_die_and_are_retried(disk: Path) -> None:
    """And what became of them is there after a restart."""
    options = {"max_deliveries": 2, "backoff": [], "data_file_bytes": 64 * 2**10}
    with PersistentQueue(disk / "orders", **{"mode": "exclusive", **options}) as queue:  # type: ignore[arg-type]
        queue.put_many([b"%d" % number for number in range(20)])
        queue.receive().ack()
        take_all_room(disk)
        for _ in range(2):
            for _ in range(19):
                fail(queue.receive())
        assert len(queue.dead) == 19
        assert queue.dead.retry(range(1, 10)) == 9
        assert queue.dead.discard(range(15, 20)) == 5
    with PersistentQueue(disk / "orders", **{"mode": "exclusive", **options}) as queue:  # type: ignore[arg-type]
        assert [letter.offset for letter in queue.dead.list()] == [10, 11, 12, 13, 14]
        assert [each.payload for each in queue.receive_many(100)] == [b"%d" % number for number in range(1, 10)]

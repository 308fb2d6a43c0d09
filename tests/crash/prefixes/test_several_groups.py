"""Several consumer groups of one queue: retiring files waits for all of them, at any loss of power and in any order.

Files are retired by whoever finishes last, or by whoever deletes a group; groups are made by anybody, meanwhile too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import FlushPolicy, PersistentQueue
from holdfast.queue.options.queue_options import Mode
from support.builders.takes import taken
from support.owners.machine_link import machine_links
from support.storages.simulated_storage import SimulatedStorage

QUEUE = Path("/queue")
FILE_BYTES = 16 * 2**10
COUNT = 60  # about four data files
SECONDS_MAX = 60.0
HEAD_START_SECONDS = 0.3


def open_queue(
    storage: SimulatedStorage, mode: Mode = "exclusive", group: str = "default", flush: FlushPolicy | None = None
) -> PersistentQueue:
    """Open the queue of these tests."""
    policy = FlushPolicy.every_commit() if flush is None else flush
    return PersistentQueue(QUEUE, storage=storage, mode=mode, group=group, flush=policy, data_file_bytes=FILE_BYTES)


def payload(number: int) -> bytes:
    """Return a message of which about fifteen make a data file."""
    return b"%06d" % number + bytes(994)


PAYLOADS = [payload(number) for number in range(COUNT)]


def data_file_count(storage: SimulatedStorage) -> int:
    """Return how many data files there are."""
    return len(storage.list(QUEUE / "data"))


def assert_takes(queue: PersistentQueue, expected: list[bytes]) -> None:
    """Take all that a group is given: nothing is lost and nothing comes again."""
    assert taken(queue) == expected
    assert (queue.stats().lost, queue.recovery.damage) == (0, ())


@pytest.mark.parametrize("slow", ["a", "b", "c"])
def test_the_slowest_of_several_groups_keeps_every_file_that_it_has_not_finished(slow: str) -> None:
    """Whichever it is in the order of their names, and though all others have finished everything."""
    storage = SimulatedStorage()
    with open_queue(storage, "exclusive") as producer:
        for name in "abc":
            producer.groups.create(name)
        for each in PAYLOADS:
            producer.put(each)
    before = data_file_count(storage)
    with open_queue(storage, group=slow) as queue:
        assert queue.get() == PAYLOADS[0]
    for name in sorted({"a", "b", "c"} - {slow}):
        with open_queue(storage, group=name) as queue:
            assert_takes(queue, PAYLOADS)
    assert data_file_count(storage) == before
    with open_queue(storage, group=slow) as queue:
        assert_takes(queue, PAYLOADS[1:])
    assert data_file_count(storage) < before


def test_a_file_goes_once_it_is_on_the_disk_that_every_group_has_finished_it() -> None:
    """A group whose policy does not sync has its progress synced by the one that retires the file."""
    storage = SimulatedStorage()
    with open_queue(storage, "exclusive", flush=FlushPolicy.never()) as producer:
        producer.groups.create("fast")
        producer.groups.create("lazy")
        for each in PAYLOADS:
            producer.put(each)
    with machine_links(), open_queue(storage, "shared", "lazy", FlushPolicy.never()) as lazy:
        assert_takes(lazy, PAYLOADS)
        before = data_file_count(storage)
        with open_queue(storage, "shared", "fast") as fast:
            assert_takes(fast, PAYLOADS)
            assert data_file_count(storage) < before
            left = storage.crash_dropping_unsynced()
    first_offset = min(int(name.split("-")[1].split(".")[0]) for name in left.list(QUEUE / "data"))
    with open_queue(left, group="lazy") as lazy:
        again = taken(lazy)
        assert (lazy.stats().lost, lazy.recovery.damage) == (0, ())
    assert again == PAYLOADS[COUNT - len(again) :], "in one run, up to the end"
    assert len(again) <= COUNT - first_offset


@contextmanager
def once_before(
    storage: SimulatedStorage, is_it: Callable[[str, Path], bool], do: Callable[[], None]
) -> Iterator[None]:
    """Do something before the first call of the storage that is the one, inside of the block."""
    has_come = threading.Event()

    def before_verb(verb: str, path: Path) -> None:
        if not has_come.is_set() and is_it(verb, path):
            has_come.set()
            do()

    storage.before_verb = before_verb
    yield
    storage.before_verb = None
    assert has_come.is_set(), "the moment never came"


def filled(storage: SimulatedStorage) -> PersistentQueue:
    """Return a queue of a few data files, of which the default group has finished nothing."""
    queue = open_queue(storage)
    for each in PAYLOADS:
        queue.put(each)
    return queue


def assert_late_has_what_is_left(queue: PersistentQueue, storage: SimulatedStorage) -> None:
    """Close a queue that has finished all, and take as the new group: it begins somewhere, and misses nothing."""
    queue.put(b"last")
    queue.close()
    with open_queue(storage, group="late") as late:
        found = taken(late)
        assert (late.stats().lost, late.recovery.damage) == (0, ())
    everything = [*PAYLOADS, b"last"]
    assert found == everything[len(everything) - len(found) :]
    assert b"last" in found


def test_files_that_go_while_a_group_is_about_to_be_made_are_none_of_its_business() -> None:
    """It chooses its start under the lock under which files go."""
    storage = SimulatedStorage()
    queue = filled(storage)
    before = data_file_count(storage)
    with once_before(
        storage, lambda verb, path: verb == "try_lock" and path == QUEUE / "groups" / ".lock", lambda: taken(queue)
    ):
        queue.groups.create("late")
    assert data_file_count(storage) < before
    assert_late_has_what_is_left(queue, storage)


def test_a_group_that_is_made_while_a_file_goes_waits_for_that() -> None:
    """A file that is about to go, as no group wants it, is gone before the new group chooses its start."""
    storage = SimulatedStorage()
    queue = filled(storage)
    before = data_file_count(storage)
    maker = threading.Thread(target=lambda: queue.groups.create("late"))

    def make_a_group_meanwhile() -> None:
        maker.start()
        maker.join(HEAD_START_SECONDS)

    with once_before(storage, lambda verb, path: verb == "rename" and path.suffix == ".data", make_a_group_meanwhile):
        taken(queue)
    maker.join(SECONDS_MAX)
    assert not maker.is_alive()
    assert data_file_count(storage) < before
    assert_late_has_what_is_left(queue, storage)

"""``dedup.ids``: the ring itself, apart from any queue."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from holdfast import DiskFullError, StorageError
from holdfast.persistence.format.constants import DEDUP_SLOT
from holdfast.persistence.index.dedup_ring import DedupRing, Remembered, digest_of
from support.storages.faults import FaultPlan
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/q")
PATH = ROOT / "dedup.ids"
QUEUE_ID = bytes(range(16))
SLOTS = 40
AT = 10**18


def storage_with_queue() -> SimulatedStorage:
    """Return a storage in which a queue's directory is durable."""
    storage = SimulatedStorage()
    storage.make_directory(ROOT)
    storage.sync_directory(Path("/"))
    return storage


def notify_in(storage: SimulatedStorage, slot_count: int = SLOTS, queue_id: bytes = QUEUE_ID) -> DedupRing:
    """Return a ring that was not read."""
    return DedupRing(storage, PATH, queue_id, slot_count)


def remembered(number: int) -> Remembered:
    """Return what is remembered of a message."""
    return Remembered(digest_of(f"id {number}"), 3 * number, AT + number)


def fill(ring: DedupRing, numbers: range) -> None:
    """Note so many, and keep them."""
    ring.reserve(list)
    for number in numbers:
        ring.note(remembered(number))
    ring.keep(list)


def read(storage: SimulatedStorage, slot_count: int = SLOTS) -> list[Remembered]:
    """Return what another process finds."""
    return notify_in(storage, slot_count).read()


def expected(numbers: range) -> list[Remembered]:
    """Return what is remembered of messages."""
    return [remembered(number) for number in numbers]


def test_what_was_kept_is_read_in_order() -> None:
    """And nothing of it before it was kept."""
    storage = storage_with_queue()
    ring = notify_in(storage)
    assert (ring.read(), ring.exists) == ([], False)
    ring.reserve(list)
    for number in range(5):
        ring.note(remembered(number))
    assert read(storage) == []
    ring.keep(list)
    assert read(storage.crash_dropping_unsynced()) == expected(range(5))


def test_looking_makes_nothing_and_neither_does_keeping_nothing() -> None:
    """Most queues never see an id."""
    storage = storage_with_queue()
    before = storage.mutation_count
    ring = notify_in(storage)
    ring.read()
    ring.keep(lambda: [remembered(0)])
    assert storage.mutation_count == before


def test_the_ring_takes_its_room_at_once_and_no_more() -> None:
    """Keeping the last of many needs no room on a full disk."""
    storage = storage_with_queue()
    ring = notify_in(storage)
    for start in range(0, 3 * SLOTS, 7):
        fill(ring, range(start, start + 7))
        content = storage.tree()[PATH]
        assert content is not None
        assert len(content) == SLOTS * DEDUP_SLOT.size
    assert storage.list(ROOT) == ["dedup.ids"]


@pytest.mark.parametrize("step", [1, 7, SLOTS - 1, SLOTS, SLOTS + 1, 3 * SLOTS])
def test_the_oldest_are_written_over_first(step: int) -> None:
    """Through several rounds and openings, also where more are kept at once than there is room for."""
    storage = storage_with_queue()
    ring = notify_in(storage)
    end = 0
    while end < 4 * SLOTS:
        fill(ring, range(end, end + step))
        end += step
        assert read(storage) == expected(range(max(0, end - SLOTS), end))
        if end % 3 == 0:
            ring = notify_in(storage)
            ring.read()


def test_everything_is_written_anew_where_that_is_asked_for() -> None:
    """What stood there does not count any more, and notes are part of everything."""
    storage = storage_with_queue()
    fill(notify_in(storage), range(30))
    ring = notify_in(storage)
    ring.read()
    ring.renew()
    ring.note(remembered(50))
    ring.keep(lambda: expected(range(8, 10)))
    assert read(storage.crash_dropping_unsynced()) == expected(range(8, 10))
    fill(ring, range(10, 12))
    assert read(storage) == expected(range(8, 12))


@pytest.mark.parametrize("slot_count", [5, 41, 1000])
def test_another_size_is_taken_with_the_next_note(slot_count: int) -> None:
    """Until then the file stays as it is."""
    storage = storage_with_queue()
    fill(notify_in(storage), range(70))
    ring = notify_in(storage, slot_count)
    everything = ring.read()
    assert (everything, ring.slot_count) == (expected(range(30, 70)), SLOTS)
    ring.keep(lambda: everything)
    ring.resize(slot_count)
    everything.append(remembered(70))
    ring.keep(lambda: everything)
    content = storage.tree()[PATH]
    assert content is not None
    assert len(content) == slot_count * DEDUP_SLOT.size
    kept = expected(range(max(30, 71 - slot_count), 71))
    assert notify_in(storage).read() == kept
    fill(ring, range(71, 73))
    assert read(storage) == (kept + expected(range(71, 73)))[-slot_count:]


@pytest.mark.parametrize("at", range(DEDUP_SLOT.size))
def test_a_slot_that_does_not_verify_is_forgotten(at: int) -> None:
    """The others are not."""
    storage = storage_with_queue()
    fill(notify_in(storage), range(3))
    file = storage.open(PATH)
    position = DEDUP_SLOT.size + at
    file.write_at((bytes((file.read_at(1, position)[0] ^ 0x20,)),), position)
    assert read(storage) == [remembered(0), remembered(2)]


def test_slots_in_the_wrong_place_and_of_another_queue_are_forgotten() -> None:
    """The number says where a slot belongs, the checksum whose it is."""
    storage = storage_with_queue()
    fill(notify_in(storage), range(3))
    assert notify_in(storage, queue_id=bytes(16)).read() == []
    file = storage.open(PATH)
    file.write_at((file.read_at(DEDUP_SLOT.size, 0),), 5 * DEDUP_SLOT.size)
    file.write_at((bytes(DEDUP_SLOT.size),), 0)
    assert read(storage) == expected(range(1, 3))


@pytest.mark.parametrize("size", [0, 1, 2 * DEDUP_SLOT.size + 7])
def test_a_file_that_was_cut_is_made_whole_again(size: int) -> None:
    """What was cut off is forgotten, unless it is still known."""
    storage = storage_with_queue()
    fill(notify_in(storage), range(3))
    storage.open(PATH).truncate(size)
    ring = notify_in(storage)
    found = ring.read()
    assert found == expected(range(size // DEDUP_SLOT.size))
    ring.resize(SLOTS)
    ring.keep(lambda: [*found, remembered(7)])
    assert read(storage) == [*found, remembered(7)]


@pytest.mark.parametrize("fail_at", range(1, 7))
def test_room_that_cannot_be_made_is_asked_for_again(fail_at: int) -> None:
    """Whichever step fails, on a full disk; nothing is left of the attempt."""
    storage = storage_with_queue()
    ring = notify_in(storage)
    storage.faults = FaultPlan(fail_at, error=28)
    try:
        ring.reserve(list)
    except DiskFullError:
        assert storage.faults.fired_count == 1
        assert not ring.exists
        storage.faults = None
        assert storage.list(ROOT) == []
    storage.faults = None
    fill(ring, range(2))
    assert read(storage.crash_dropping_unsynced()) == expected(range(2))


@pytest.mark.parametrize("verb", ["open", "write_at", "sync"])
def test_a_failure_to_keep_leaves_everything_to_the_next_attempt(verb: str) -> None:
    """A new file: a second sync of the old one could succeed over what the first one has lost."""
    storage = storage_with_queue()
    ring = notify_in(storage)
    fill(ring, range(3))
    ring.note(remembered(3))
    storage.faults = FaultPlan(1, verbs=frozenset({verb}))
    with pytest.raises(StorageError, match="keeping deduplication ids"):
        ring.keep(lambda: expected(range(4)))
    storage.faults = None
    ring.note(remembered(4))
    ring.keep(lambda: expected(range(5)))
    assert read(storage.crash_dropping_unsynced()) == expected(range(5))
    fill(ring, range(5, 6))
    assert read(storage.crash_dropping_unsynced()) == expected(range(6))


def test_what_was_kept_survives_every_crash_of_what_follows() -> None:
    """The latest that were kept are there, except those that newer ones may be written over."""
    rng = random.Random(4)
    storage = storage_with_queue()
    ring = notify_in(storage)
    moments = [(len(storage.log), 0)]
    for start in range(0, 100, 10):
        if start == 50:
            ring.renew()
            ring.keep(lambda: expected(range(10, 50)))
        fill(ring, range(start, start + 10))
        moments.append((len(storage.log), start + 10))
    moments.reverse()
    for at, moment in enumerate(storage.replay()):
        kept = next((count for length, count in moments if length <= at), None)
        if kept is None:
            continue
        for crashed in (moment.crash_keeping_all(), moment.crash_dropping_unsynced(), moment.random_crash(rng)):
            found = [each for each in read(crashed) if each.offset < 3 * kept]
            assert found[-(SLOTS - 10) :] == expected(range(kept))[-(SLOTS - 10) :]


def test_a_disk_that_refuses_is_not_taken_for_an_empty_ring() -> None:
    """Else what was put before would be put again."""
    storage = storage_with_queue()
    fill(notify_in(storage), range(3))
    with refusing(storage, "open", PATH.name), pytest.raises(StorageError, match="reading deduplication ids"):
        read(storage)

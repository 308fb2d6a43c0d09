"""The memory of decided transactions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from holdfast import DiskFullError, PoisonedError, StorageError
from holdfast.persistence.format.constants import OUTCOME_SLOT, OUTCOMES_MAX
from holdfast.persistence.outcomes.outcome_log import ABORTED, COMMITTED, OutcomeEntry, OutcomeLog
from support.storages.faults import FaultPlan
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

QUEUE = Path("/q")
PATH = QUEUE / "prepared" / "decided"
AT = 10**18


def storage_with_queue() -> SimulatedStorage:
    """Return a storage in which a queue's directory is durable, without ``prepared/``."""
    storage = SimulatedStorage()
    storage.make_directory(QUEUE)
    storage.sync_directory(Path("/"))
    return storage


def nonce(number: int) -> bytes:
    """Return the nonce of a transaction."""
    return number.to_bytes(16, "big")


def note(decided: OutcomeLog, number: int, verdict: int = COMMITTED, name: str = "") -> None:
    """Note a transaction whose id, unless given, nonce and offsets follow from its number."""
    decided.note(name or f"t{number}", nonce(number), verdict, range(number, 2 * number), AT + number)


def expected(number: int, verdict: int = COMMITTED, name: str = "", at: int | None = None) -> OutcomeEntry:
    """Return what is remembered of it; ``at`` is how many were noted before."""
    offsets = range(number, 2 * number)
    return OutcomeEntry(
        number if at is None else at, name or f"t{number}", nonce(number), verdict, offsets, AT + number
    )


def test_what_was_noted_is_found_by_id_and_by_nonce() -> None:
    """In the object that noted it, and in one that reads it later."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    note(decided, 0)
    note(decided, 1, ABORTED)
    note(decided, 2, name="x" * 100)
    decided.close()
    for each in (decided, OutcomeLog(storage, PATH)):
        assert each.find("t0") == each.find_nonce(nonce(0)) == expected(0)
        assert each.find("t1") == expected(1, ABORTED)
        assert each.find("x" * 100) == expected(2, name="x" * 100)
        assert (each.find("t3"), each.find_nonce(nonce(3))) == (None, None)
        assert len(each) == 3
    assert expected(0).is_committed
    assert not expected(1, ABORTED).is_committed


def test_looking_makes_nothing() -> None:
    """Not even the directory: most queues never prepare a transaction."""
    storage = storage_with_queue()
    before = storage.mutation_count
    decided = OutcomeLog(storage, PATH)
    assert decided.find("t") is None
    decided.sync()
    decided.close()
    assert storage.mutation_count == before


def test_the_ring_takes_its_room_at_once_and_no_more() -> None:
    """Noting the last of many needs no room on a full disk."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    for number in range(OUTCOMES_MAX + 5):
        note(decided, number)
        content = storage.tree()[PATH]
        assert content is not None
        assert len(content) == OUTCOMES_MAX * OUTCOME_SLOT.size
    assert storage.list(PATH.parent) == ["decided"]


def test_the_oldest_is_forgotten_first() -> None:
    """In memory as on the disk, through several rounds and openings."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    total = 2 * OUTCOMES_MAX + 10
    for number in range(total):
        if number % 700 == 0:
            decided.close()
            decided = OutcomeLog(storage, PATH)
        note(decided, number)
    for each in (decided, OutcomeLog(storage, PATH)):
        assert len(each) == OUTCOMES_MAX
        assert each.find(f"t{total - OUTCOMES_MAX - 1}") is None
        assert each.find(f"t{total - OUTCOMES_MAX}") == expected(total - OUTCOMES_MAX)
        assert each.find(f"t{total - 1}") == expected(total - 1)


def test_an_id_that_was_used_again_answers_with_the_latest() -> None:
    """The nonce tells the two apart."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    note(decided, 5, name="same")
    note(decided, 6, ABORTED, name="same")
    for each in (decided, OutcomeLog(storage, PATH)):
        assert each.find("same") == expected(6, ABORTED, "same", at=1)
        assert each.find_nonce(nonce(5)) == expected(5, name="same", at=0)


def test_the_same_is_not_noted_twice() -> None:
    """Recovery does it again; the ring does not turn for that, and yet it is synced: the first sync may be missing."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    note(decided, 0)
    note(decided, 0)
    decided.abandon()
    again = OutcomeLog(storage.crash_keeping_all(), PATH)
    assert len(again) == 1
    killed = storage.crash_keeping_all()
    again = OutcomeLog(killed, PATH)
    note(again, 0)
    again.sync()
    assert len(again) == 1
    assert OutcomeLog(killed.crash_dropping_unsynced(), PATH).find("t0") == expected(0)


@pytest.mark.parametrize("at", range(0, OUTCOME_SLOT.size))
def test_a_slot_that_does_not_verify_is_forgotten(at: int) -> None:
    """The others are not, and noting continues."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    for number in range(3):
        note(decided, number)
    decided.close()
    file = storage.open(PATH)
    position = OUTCOME_SLOT.size + at
    file.write_at((bytes((file.read_at(1, position)[0] ^ 0x20,)),), position)
    damaged = OutcomeLog(storage, PATH)
    assert damaged.find("t1") is None
    assert (damaged.find("t0"), damaged.find("t2")) == (expected(0), expected(2))
    note(damaged, 3)
    assert OutcomeLog(storage, PATH).find("t3") == expected(3)


def test_a_slot_in_the_wrong_place_is_forgotten() -> None:
    """Its number says where it belongs."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    note(decided, 0)
    decided.close()
    file = storage.open(PATH)
    file.write_at((file.read_at(OUTCOME_SLOT.size, 0),), 5 * OUTCOME_SLOT.size)
    file.write_at((bytes(OUTCOME_SLOT.size),), 0)
    assert len(OutcomeLog(storage, PATH)) == 0


def test_a_file_that_was_cut_says_what_is_left() -> None:
    """In the middle of a slot too."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    for number in range(3):
        note(decided, number)
    decided.close()
    storage.open(PATH).truncate(2 * OUTCOME_SLOT.size + 7)
    assert len(OutcomeLog(storage, PATH)) == 2


@pytest.mark.parametrize("fail_at", range(1, 9))
def test_a_note_that_fails_is_not_remembered_and_can_be_tried_again(fail_at: int) -> None:
    """Whichever step of making the file fails, on a full disk."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    storage.faults = FaultPlan(fail_at, error=28)
    with pytest.raises(DiskFullError):
        note(decided, 0)
    assert storage.faults.fired_count == 1
    assert decided.find("t0") is None
    storage.faults = None
    note(decided, 0)
    decided.close()
    assert OutcomeLog(storage.crash_dropping_unsynced(), PATH).find("t0") == expected(0)


def test_after_a_failed_sync_nothing_is_noted_any_more() -> None:
    """A second sync could succeed over lost data."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    note(decided, 0)
    storage.faults = FaultPlan(1, verbs=frozenset({"sync"}))
    with pytest.raises(StorageError, match="syncing decided transactions"):
        decided.sync()
    for attempt in (decided.sync, lambda: note(decided, 1)):
        with pytest.raises(PoisonedError):
            attempt()
    decided.close()


def test_what_was_synced_survives_every_crash_of_a_later_note() -> None:
    """Through the making of the file, and while the oldest is written over."""
    rng = random.Random(4)
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    moments = [(len(storage.log), 0)]
    for number in range(OUTCOMES_MAX + 6):
        note(decided, number)
        if number < 3 or number > OUTCOMES_MAX - 2:
            decided.sync()
            moments.append((len(storage.log), number + 1))
    decided.close()
    moments.reverse()
    for at, moment in enumerate(storage.replay()):
        synced = next((count for length, count in moments if length <= at), None)
        if synced is None or 3 < synced < OUTCOMES_MAX - 1 or (synced == 3 and rng.random() > 0.02):
            continue
        states = [moment.crash_keeping_all(), moment.crash_dropping_unsynced()]
        for crashed in states + [moment.random_crash(rng) for _ in range(5)]:
            found = OutcomeLog(crashed, PATH)
            for number in range(max(0, synced - 5), synced):
                assert found.find(f"t{number}") == expected(number)
            note(found, synced)
            found.close()
            again = OutcomeLog(crashed.crash_dropping_unsynced(), PATH).find(f"t{synced}")
            assert again is not None
            assert again == expected(synced, at=again.number)


def test_a_slot_of_another_size_or_verdict_says_nothing() -> None:
    """A later version may know more verdicts; its checksum is right."""
    slot = expected(0).encode()
    assert OutcomeEntry.decode(slot) == expected(0)
    with pytest.raises(ValueError, match="cut off"):
        OutcomeEntry.decode(slot[:-1])
    with pytest.raises(ValueError, match="verdict 9"):
        OutcomeEntry.decode(expected(0, 9).encode())


def test_an_id_used_again_outlives_its_first_use() -> None:
    """Once the ring has gone round, the first one is forgotten and the latest still answers."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    note(decided, 0, name="same")
    for number in range(1, OUTCOMES_MAX):
        note(decided, number)
    note(decided, OUTCOMES_MAX, ABORTED, name="same")
    for each in (decided, OutcomeLog(storage, PATH)):
        assert each.find_nonce(nonce(0)) is None
        assert each.find("same") == expected(OUTCOMES_MAX, ABORTED, "same")


def test_a_disk_that_refuses_is_not_taken_for_an_empty_memory() -> None:
    """Else a decision could be taken a second time."""
    storage = storage_with_queue()
    note(OutcomeLog(storage, PATH), 0)
    with refusing(storage, "open", PATH.name), pytest.raises(StorageError, match="reading decided transactions"):
        OutcomeLog(storage, PATH)


def test_a_note_that_is_interrupted_leaves_nothing_behind() -> None:
    """It may stand in the file, and nobody remembers it: so it is taken out."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    with refusing(storage, "open", "", KeyboardInterrupt(), count=1), pytest.raises(KeyboardInterrupt):
        note(decided, 0)
    note(decided, 1)
    with refusing(storage, "write_at", "", KeyboardInterrupt(), count=1), pytest.raises(KeyboardInterrupt):
        note(decided, 2)
    note(decided, 3)
    decided.close()
    for each in (decided, OutcomeLog(storage, PATH)):
        assert [each.find(f"t{number}") is not None for number in range(4)] == [False, True, False, True]


def test_an_interrupted_note_that_cannot_be_taken_out_is_the_last_one() -> None:
    """The next reader may find what this one does not know."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    note(decided, 0)
    with refusing(storage, "write_at", "", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        note(decided, 1)
    with pytest.raises(PoisonedError):
        note(decided, 2)


def test_nothing_is_noted_behind_a_sync_that_was_interrupted() -> None:
    """Nobody knows what it has put on the disk."""
    storage = storage_with_queue()
    decided = OutcomeLog(storage, PATH)
    note(decided, 0)
    with refusing(storage, "sync", "", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        decided.sync()
    with pytest.raises(PoisonedError):
        note(decided, 1)

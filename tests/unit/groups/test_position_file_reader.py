"""Reading progress: what counts, what is skipped, where reading stops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast import UnsupportedVersionError
from holdfast.persistence.filesystem.layout import position_file, queue_directory
from holdfast.persistence.format.constants import (
    ENTRY,
    ENTRY_DONE,
    ENTRY_FLAG_FIRST,
    ENTRY_FLAG_LAST,
    ENTRY_FLOOR,
    FORMAT_VERSION,
    FRAMES_START,
    HEADER_COPY_POSITIONS,
)
from holdfast.persistence.format.file_header import PositionFileHeader, block_buffers
from holdfast.persistence.groups import position_file_reader
from holdfast.persistence.groups.position_entry import Change, encode_entry
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.reach import Reach
from support.builders.log_parts import put
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

GROUP = Path("/group")
QUEUE_ID, GROUP_ID = b"q" * 16, b"g" * 16
SINGLE = ENTRY_FLAG_FIRST | ENTRY_FLAG_LAST
HEADER = PositionFileHeader(QUEUE_ID, GROUP_ID, 1, b"f" * 16, 77)


@pytest.fixture(autouse=True, params=[1, 2, 3, 2**14])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read so many entries at once: where the pieces end makes no difference."""
    monkeypatch.setattr(position_file_reader, "_WINDOW_BYTES", request.param * ENTRY.size)


def entry(number: int, *, synced: int = 0, flags: int = SINGLE, header: PositionFileHeader = HEADER) -> bytes:
    """Return entry ``number``: it finishes the message of that offset; entry 0 is a checkpoint with that floor."""
    change = Change(ENTRY_DONE, number, 1, (1, 5000)) if number else Change(ENTRY_FLOOR, 1, 0, (1, 5000))
    return encode_entry(
        header.salt,
        change,
        number=number,
        flags=flags,
        timestamp_ns=0,
        synced_mark=synced,
        generation=header.generation,
    )


def group(
    entries: Sequence[bytes], header: PositionFileHeader = HEADER, storage: SimulatedStorage | None = None
) -> SimulatedStorage:
    """Return a storage with a position file of these entries, and reserved space behind them."""
    storage = storage or SimulatedStorage()
    storage.make_directory(GROUP)
    content = block_buffers(header.encode()) + b"".join(entries) + bytes(5 * ENTRY.size)
    put(storage, position_file(GROUP, header.generation), content)
    return storage


def reader(storage: SimulatedStorage, start: int = 0) -> PositionFileReader:
    """Return a reader that has read once."""
    positions = PositionFileReader(
        storage, GROUP, QUEUE_ID, GROUP_ID, Reach(storage, queue_directory(GROUP.parent)), lambda: GroupProgress(start)
    )
    positions.refresh()
    return positions


def finished(positions: PositionFileReader) -> list[int]:
    """Return what is finished."""
    return [offset for offset in range(20) if positions.progress.is_finished(offset)]


def bad(raw: bytes) -> bytes:
    """Return an entry with a flipped bit."""
    return raw[:30] + bytes((raw[30] ^ 1,)) + raw[31:]


def test_a_group_without_a_file_stands_where_it_started() -> None:
    """Nothing was ever taken."""
    storage = SimulatedStorage()
    storage.make_directory(GROUP)
    positions = reader(storage, 7)
    assert (positions.progress.floor, positions.generation) == (7, 0)
    positions.sync()


def test_entries_count_up_to_the_reserved_space() -> None:
    """Zeros end them."""
    positions = reader(group([entry(0), entry(1)]))
    assert finished(positions) == [0, 1]
    assert not positions.damage


def test_reading_goes_on_where_it_stopped() -> None:
    """A look costs what is new."""
    storage = group([entry(0), entry(1)])
    positions = reader(storage)
    group([entry(0), entry(1), entry(2)], storage=storage)
    positions.refresh()
    assert finished(positions) == [0, 1, 2]


def test_a_damaged_entry_below_the_synced_mark_is_skipped_and_reported() -> None:
    """A later entry says that it was on the disk."""
    positions = reader(group([entry(0), bad(entry(1)), entry(2, synced=2)]))
    assert finished(positions) == [0, 2]
    assert [(damage.position, damage.size_bytes) for damage in positions.damage] == [
        (FRAMES_START + ENTRY.size, ENTRY.size)
    ]
    assert "entry 1" in str(positions.damage[0])


def test_a_damaged_entry_that_nobody_knows_to_be_synced_stops_reading() -> None:
    """It is the torn end; what stands behind it came back by chance."""
    positions = reader(group([entry(0), bad(entry(1)), entry(2, synced=1)]))
    assert finished(positions) == [0]
    assert not positions.damage


def test_a_torn_entry_at_the_end_stops_reading() -> None:
    """Half of it is there."""
    positions = reader(group([entry(0), entry(1)[:32] + bytes(32)]))
    assert finished(positions) == [0]
    assert not positions.damage


def test_an_entry_that_is_completed_later_is_read_then() -> None:
    """A reader may look while it is being written."""
    storage = group([entry(0), entry(1)[:32] + bytes(32)])
    positions = reader(storage)
    group([entry(0), entry(1), entry(2)], storage=storage)
    positions.refresh()
    assert finished(positions) == [0, 1, 2]


def test_a_run_without_its_last_entry_does_not_count() -> None:
    """All or nothing; the next run counts by itself."""
    run = [entry(1, flags=ENTRY_FLAG_FIRST), entry(2, flags=0)]
    assert finished(reader(group([entry(0), *run]))) == [0]
    assert finished(reader(group([entry(0), *run, entry(3, flags=ENTRY_FLAG_LAST)]))) == [0, 1, 2, 3]
    assert finished(reader(group([entry(0), *run, entry(3)]))) == [0, 3]


def test_a_run_whose_last_entry_is_damaged_counts_as_far_as_it_is_there() -> None:
    """It was synced, so it was whole: only what the damaged entry said is done again."""
    run = [entry(1, flags=ENTRY_FLAG_FIRST), entry(2, flags=0), bad(entry(3, flags=ENTRY_FLAG_LAST))]
    positions = reader(group([entry(0), *run, entry(4, synced=4)]))
    assert finished(positions) == [0, 1, 2, 4]
    assert [damage.position for damage in positions.damage] == [FRAMES_START + 3 * ENTRY.size]
    torn = bad(entry(4))
    assert finished(reader(group([entry(0), *run, torn, entry(5, synced=4)]))) == [0, 1, 2]


def test_entries_of_an_older_generation_behind_the_end_do_not_count() -> None:
    """Position files are made from the space of older ones."""
    stale = PositionFileHeader(QUEUE_ID, GROUP_ID, 1, b"o" * 16, 12)
    positions = reader(group([entry(0), *[entry(number, header=stale) for number in range(1, 5)]]))
    assert finished(positions) == [0]
    assert not positions.damage


def test_the_newest_generation_counts() -> None:
    """The one before it is kept for its space only."""
    storage = group([entry(0), entry(1)])
    newer = PositionFileHeader(QUEUE_ID, GROUP_ID, 2, b"n" * 16, 78)
    group([entry(0, header=newer)], newer, storage)
    positions = reader(storage)
    assert finished(positions) == [0]
    assert positions.generation == 2


def test_a_reader_follows_to_the_next_generation() -> None:
    """Its progress starts over from the checkpoint there."""
    storage = group([entry(0)])
    positions = reader(storage)
    newer = PositionFileHeader(QUEUE_ID, GROUP_ID, 2, b"n" * 16, 78)
    group([entry(0, header=newer), entry(1, header=newer)], newer, storage)
    storage.remove(position_file(GROUP, 1))
    positions.refresh()
    assert finished(positions) == [0, 1]


def test_a_generation_without_a_good_header_is_reported_and_the_one_before_it_counts() -> None:
    """Better again than never."""
    storage = group([entry(0)])
    newer = PositionFileHeader(QUEUE_ID, GROUP_ID, 2, b"n" * 16, 78)
    group([entry(0, header=newer), entry(1, header=newer)], newer, storage)
    file = storage.open(position_file(GROUP, 2))
    for at in HEADER_COPY_POSITIONS:
        file.write_at((b"\xff",), at + 60)
    positions = reader(storage)
    assert finished(positions) == [0]
    assert [damage.path for damage in positions.damage] == [position_file(GROUP, 2)]


@pytest.mark.parametrize(
    "header",
    [
        PositionFileHeader(b"x" * 16, GROUP_ID, 1, b"f" * 16, 77),
        PositionFileHeader(QUEUE_ID, b"x" * 16, 1, b"f" * 16, 77),
    ],
)
def test_a_file_of_another_queue_or_of_an_earlier_life_of_the_group_does_not_count(header: PositionFileHeader) -> None:
    """It speaks of other messages."""
    assert finished(reader(group([entry(0), entry(1)], header))) == []


def test_a_file_under_the_name_of_another_generation_does_not_count() -> None:
    """The header says which it is."""
    storage = group([entry(0)])
    storage.rename(position_file(GROUP, 1), position_file(GROUP, 9))
    assert finished(reader(storage)) == []


def test_a_newer_version_is_an_error_of_its_own() -> None:
    """It is not damaged."""
    storage = group([entry(0)])
    file = storage.open(position_file(GROUP, 1))
    for at in HEADER_COPY_POSITIONS:
        file.write_at((bytes((FORMAT_VERSION + 1,)),), at + 8)
    with pytest.raises(UnsupportedVersionError):
        reader(storage)


def test_a_generation_that_has_lost_both_floors_is_reported_and_the_one_before_it_counts() -> None:
    """Without its checkpoint it would say too little; the older one says more."""
    storage = group([entry(0), entry(1)])
    newer = PositionFileHeader(QUEUE_ID, GROUP_ID, 2, b"n" * 16, 78)
    group([bad(entry(0, header=newer)), entry(1, header=newer, synced=1)], newer, storage)
    positions = reader(storage)
    assert finished(positions) == [0, 1]
    assert "floor" in str(positions.damage[-1])
    count = len(positions.damage)
    positions.refresh()
    assert finished(positions) == [0, 1]
    assert len(positions.damage) == count, "reported once, however often somebody looks"


def test_reading_changes_nothing() -> None:
    """It takes no lock either."""
    storage = group([entry(0), bad(entry(1)), entry(2, synced=2)])
    count = storage.mutation_count
    reader(storage)
    assert storage.mutation_count == count


def two_generations() -> SimulatedStorage:
    """Return a storage in which the newer one says less."""
    storage = group([entry(0), entry(1)])
    newer = PositionFileHeader(QUEUE_ID, GROUP_ID, 2, b"n" * 16, 78)
    return group([entry(0, header=newer)], newer, storage)


def test_a_generation_that_goes_while_it_is_looked_for_is_passed_over() -> None:
    """It was listed, and the writer has taken its file for the next one."""
    storage = two_generations()

    def take(verb: str, path: Path) -> None:
        if verb == "open":
            storage.before_verb = None
            storage.remove(path)

    storage.before_verb = take
    positions = reader(storage)
    assert (positions.generation, finished(positions), positions.damage) == (1, [0, 1], [])


def test_a_disk_that_refuses_the_newest_generation_is_not_answered_with_an_older_one() -> None:
    """What it says may be done again for ever."""
    storage = two_generations()
    with refusing(storage, "open", ".position") as failed, pytest.raises(OSError, match="Input/output error"):
        reader(storage)
    assert failed == [position_file(GROUP, 2)]


def test_a_reader_does_not_go_back_to_an_older_generation() -> None:
    """Somebody has removed the one it has read."""
    storage = two_generations()
    positions = reader(storage)
    storage.remove(position_file(GROUP, 2))
    positions.refresh()
    assert (positions.generation, finished(positions)) == (2, [0])

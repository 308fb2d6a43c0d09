"""Writing progress: entries, generations, checkpoints, reserved space."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import ClosedError, CommitUnknownError, DiskFullError, PoisonedError, StorageError
from holdfast.persistence.filesystem.layout import list_generations, position_file, queue_directory
from holdfast.persistence.format.constants import ENTRY, ENTRY_DELIVERED, ENTRY_DONE, FRAMES_START
from holdfast.persistence.groups import position_file_writer
from holdfast.persistence.groups.position_entry import NO_HINT, Change, returned_change
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.groups.position_file_writer import POSITION_FILE_BYTES_MIN, PositionFileWriter
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.reach import Reach
from support.builders.clocks import FakeClock
from support.builders.known_progress import KnownProgress
from support.builders.log_parts import put
from support.processes.log_handlers import text_said
from support.storages.disk_operations import Allocate, Create, Write
from support.storages.faults import FaultPlan
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

GROUP = Path("/group")
QUEUE_ID, GROUP_ID = b"q" * 16, b"g" * 16
SLOTS = 20
FILE_BYTES = FRAMES_START + SLOTS * ENTRY.size
OFFSETS, COUNTS = st.integers(0, 12), st.integers(1, 3)
NUMBERS = st.sampled_from([0, 2**32 + 1, 2**32 + 2, 2**64 - 1])


def new_storage() -> SimulatedStorage:
    """Return a storage with the directory of a group, durable."""
    storage = SimulatedStorage()
    storage.make_directory(GROUP)
    storage.sync_directory(Path("/"))
    return storage.crash_dropping_unsynced()


def writer(storage: SimulatedStorage, progress: GroupProgress | None = None) -> PositionFileWriter:
    """Return a writer of small files."""
    return PositionFileWriter(storage, GROUP, FakeClock(), known(storage, progress), file_bytes=FILE_BYTES)


def known(storage: SimulatedStorage, progress: GroupProgress | None) -> KnownProgress:
    """Return a reader that says what the test says."""
    return KnownProgress(storage, GROUP, QUEUE_ID, GROUP_ID, progress or GroupProgress())


def read(storage: SimulatedStorage, start: int = 0) -> PositionFileReader:
    """Return a reader that has read everything."""
    reader = PositionFileReader(
        storage, GROUP, QUEUE_ID, GROUP_ID, Reach(storage, queue_directory(GROUP.parent)), lambda: GroupProgress(start)
    )
    reader.refresh()
    return reader


def done(first: int, count: int = 1) -> Change:
    """Return an entry that finishes messages."""
    return Change(ENTRY_DONE, first, count, (1, 5000 + first))


def state(progress: GroupProgress) -> tuple[object, ...]:
    """Return all of a progress, to compare."""
    hands = progress.deliveries, progress.numbers, progress.taken_away
    return progress.floor, progress.finished_count, list(progress.runs()), hands, progress.lost_count


def test_what_was_appended_is_read() -> None:
    """By anybody who looks, at once; and the writer's own progress says the same."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    positions.append([done(0, 3), Change(ENTRY_DELIVERED, 5, 2, (1, 0), 4)])
    positions.append([done(4)])
    assert state(read(storage).progress) == state(progress)
    assert progress.floor == 3
    assert progress.deliveries == {5: 4, 6: 4}


def test_a_new_writer_goes_on_where_the_last_one_was() -> None:
    """In a generation of its own, whose checkpoint says everything."""
    storage = new_storage()
    writer(storage).append([done(0, 3), done(7)])
    reader = read(storage)
    again = writer(storage, reader.progress)
    assert list_generations(storage, GROUP)[-1] == reader.generation + 1
    again.append([done(3)])
    again.close()
    found = read(storage)
    assert (found.progress.floor, next(found.progress.runs())[:2]) == (4, (7, 8))
    assert not found.damage


def test_a_full_file_is_followed_by_the_next_generation() -> None:
    """Any number of acknowledgements fits into two files."""
    storage = new_storage()
    positions = writer(storage)
    for offset in range(20 * SLOTS):
        positions.append([done(offset)])
        assert len(list_generations(storage, GROUP)) <= 2
    assert read(storage).progress.floor == 20 * SLOTS
    assert list_generations(storage, GROUP)[-1] > 15


@given(
    st.lists(
        st.one_of(
            st.builds(Change, st.just(ENTRY_DONE), OFFSETS, COUNTS, st.just((1, 600))),
            st.builds(Change, st.just(ENTRY_DELIVERED), OFFSETS, COUNTS, st.just(NO_HINT), COUNTS, NUMBERS),
            st.builds(returned_change, OFFSETS, st.integers(0, 3), st.just(0), st.just(0), COUNTS, NUMBERS),
        ),
        max_size=60,
    ),
    st.data(),
)
def test_any_history_is_read_back_over_generations_and_openings(changes: list[Change], data: st.DataObject) -> None:
    """Delivery numbers, and what was taken away, are part of it; 20 entries fill a file."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    for change in changes:
        positions.append([change])
        if data.draw(st.integers(0, 9)) == 0:
            storage = storage.crash_keeping_all()
            progress = read(storage).progress
            positions = writer(storage, progress)
        assert state(read(storage).progress) == state(positions.progress)


def test_a_checkpoint_with_many_runs_gets_a_file_that_holds_it() -> None:
    """Progress full of holes, larger than the usual file."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    for offset in range(1, 400, 2):
        positions.append([done(offset)])
    positions.close()
    found = read(storage).progress
    assert found.floor == 0
    assert len(list(found.runs())) == 200
    again = writer(storage, found)
    again.append([done(0)])
    assert read(storage).progress.floor == 2


def test_a_run_larger_than_a_file_is_written_whole() -> None:
    """Atomic runs are never split over two generations."""
    storage = new_storage()
    positions = writer(storage)
    positions.append([done(2 * number) for number in range(3 * SLOTS)])
    assert read(storage).progress.finished_count == 3 * SLOTS


def test_acknowledging_needs_no_new_room() -> None:
    """The space of one more generation is kept, so a full disk does not stop consumers."""
    storage = new_storage()
    positions = writer(storage)
    for offset in range(2 * SLOTS):  # two generations exist from here on
        positions.append([done(offset)])
    before = storage.mutation_count
    for offset in range(2 * SLOTS, 10 * SLOTS):
        positions.append([done(offset)])
    assert not [operation for operation in storage.log[before:] if isinstance(operation, Allocate | Create)]


def test_a_run_counts_whole_or_not_at_all_after_every_crash() -> None:
    """One entry of two never shows."""
    storage = new_storage()
    positions = writer(storage)
    positions.append([done(0), done(10)])
    positions.append([done(1), done(11)])
    positions.sync()
    for crash in storage.prefix_crashes():
        progress = read(crash.storage).progress
        assert progress.is_finished(0) == progress.is_finished(10)
        assert progress.is_finished(1) == progress.is_finished(11)


def test_what_was_synced_survives_every_crash_after_it_also_over_generations() -> None:
    """No moment of a roll loses progress."""
    storage = new_storage()
    positions = writer(storage)
    synced: list[tuple[int, int]] = []
    for offset in range(2 * SLOTS):
        positions.append([done(offset)])
        positions.sync()
        synced.append((storage.mutation_count, offset + 1))
    for crash in storage.prefix_crashes():
        promised = max((floor for count, floor in synced if count <= crash.operation_count), default=0)
        assert promised <= read(crash.storage).progress.floor <= promised + 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_append_that_fails_does_not_count_and_the_next_one_takes_its_place(number: int) -> None:
    """Neither in memory nor on the disk."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    positions.append([done(0)])
    storage.faults = FaultPlan(1, error=number, verbs=frozenset({"write_at"}))
    with pytest.raises(DiskFullError if number == errno.ENOSPC else StorageError):
        positions.append([done(1)])
    storage.faults = None
    assert progress.floor == read(storage).progress.floor == 1
    positions.append([done(2)])
    assert state(read(storage).progress) == state(progress)
    assert not progress.is_finished(1)


def test_a_failed_sync_poisons_the_read_side() -> None:
    """A second sync could succeed over lost data, so there is none."""
    storage = new_storage()
    positions = writer(storage)
    positions.append([done(0)])
    storage.faults = FaultPlan(1, verbs=frozenset({"sync"}))
    with pytest.raises(CommitUnknownError, match="reopen"):
        positions.sync()
    storage.faults = None
    for call in (positions.sync, lambda: positions.append([done(1)])):
        with pytest.raises(PoisonedError):
            call()
    positions.close()
    assert read(storage).progress.floor == 1


def test_closing_leaves_a_witness_behind_the_last_entry() -> None:
    """So that a flipped bit in any acknowledgement is found, and costs nothing."""
    storage = new_storage()
    positions = writer(storage)
    for offset in range(3):
        positions.append([done(offset)])
    positions.close()
    path = position_file(GROUP, 1)
    for number in range(2, 5):
        broken = storage.crash_keeping_all()
        file = broken.open(path)
        file.write_at((b"\xff",), FRAMES_START + number * ENTRY.size + 40)
        reader = read(broken)
        assert [damage.position for damage in reader.damage] == [FRAMES_START + number * ENTRY.size]
        assert reader.progress.floor == 3


def test_a_file_whose_close_was_interrupted_before_its_sync_is_not_taken_for_synced() -> None:
    """A commit record that ends on the word of such a sync would be gone after a power cut, and its entries too."""
    storage = new_storage()
    positions = writer(storage)
    positions.append([done(0)])
    positions.abandon()  # what an interruption at the first bytecode of the sync leaves
    with pytest.raises(ClosedError, match="before its last entries were synced"):
        positions.sync()
    assert read(storage.crash_dropping_unsynced()).progress.floor == 0
    positions = writer(storage)
    ticket = positions.append([done(1)])
    positions.close()
    assert positions.sync() > ticket  # the witness behind it needs no sync
    assert positions.unsynced_count == 0


def test_closing_without_an_append_proves_the_name_of_the_file_and_syncs_nothing() -> None:
    """The checkpoint was synced already; the next opening may use the space of the file before."""
    storage = new_storage()
    positions = writer(storage)
    count = storage.mutation_count
    positions.close()
    assert storage.mutation_count == count + 1
    assert isinstance(storage.log[-1], Write)
    assert read(storage).has_appended


def test_an_interrupted_append_does_not_count_and_the_interruption_goes_on() -> None:
    """Its place is taken by the next one."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    with refusing(storage, "write_at", error=KeyboardInterrupt(), count=1), pytest.raises(KeyboardInterrupt):
        positions.append([done(0)])
    assert progress.floor == read(storage).progress.floor == 0
    positions.append([done(0)])
    assert state(read(storage).progress) == state(progress)
    assert progress.floor == 1


def test_an_append_that_is_interrupted_behind_the_write_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the disk it does, so in memory too."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    apply_run, calls = position_file_writer.apply_run, 0

    def interrupted(changes: list[Change], of: GroupProgress) -> list[str]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        return apply_run(changes, of)

    monkeypatch.setattr(position_file_writer, "apply_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        positions.append([done(0, 3)])
    assert progress.floor == 3
    positions.append([done(3)])
    assert state(read(storage).progress) == state(progress)


def test_an_interrupted_sync_poisons() -> None:
    """Nobody knows what it has done."""
    storage = new_storage()
    positions = writer(storage)
    positions.append([done(0)])
    with refusing(storage, "sync", error=KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        positions.sync()
    with pytest.raises(PoisonedError):
        positions.append([done(1)])


def fill(positions: PositionFileWriter, count: int) -> None:
    """Append so many entries, one by one."""
    for offset in range(count):
        positions.append([done(offset)])


@pytest.mark.parametrize(
    ("verb", "error"),
    [
        (verb, error)
        for verb in ("open", "allocate", "write_at", "sync", "rename", "sync_directory")
        for error in (errno.ENOSPC, errno.EIO, KeyboardInterrupt())
        if (verb, error) != ("allocate", errno.ENOSPC)  # it is content with the space that it has: see below
    ],
)
def test_a_generation_that_cannot_begin_costs_nothing_that_was_noted(verb: str, error: int | BaseException) -> None:
    """The file it was made in is not synced again; the next attempt continues with the same entries and the new one."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    room = positions._slots - positions._slot
    fill(positions, room)
    expected = KeyboardInterrupt if isinstance(error, BaseException) else StorageError
    with refusing(storage, verb, error=error, count=1), pytest.raises(expected):
        positions.append([done(room)])
    assert progress.floor == room
    positions.append([done(room)])
    positions.sync()
    assert progress.floor == room + 1
    assert state(read(storage.crash_dropping_unsynced()).progress) == state(progress)


LARGEST = 2**17


def sizes(storage: SimulatedStorage) -> list[int]:
    """Return the sizes of the position files, in order of their generations."""
    contents = [storage.tree()[position_file(GROUP, each)] for each in list_generations(storage, GROUP)]
    return [len(content) for content in contents if content is not None]


def large_writer(storage: SimulatedStorage, progress: GroupProgress) -> PositionFileWriter:
    """Return a writer of files that grow."""
    return PositionFileWriter(storage, GROUP, FakeClock(), known(storage, progress), file_bytes=LARGEST)


def test_each_file_behind_a_full_one_is_twice_as_large_up_to_the_largest() -> None:
    """It begins with 16 KiB, and the next one is reserved; all of a file is used."""
    storage, progress = new_storage(), GroupProgress()
    positions = large_writer(storage, progress)
    assert sizes(storage) == [POSITION_FILE_BYTES_MIN]
    assert len(storage.tree()[GROUP / "next.position"] or b"") == POSITION_FILE_BYTES_MIN
    met, generation, offset = [POSITION_FILE_BYTES_MIN], 1, 0
    while len(met) < 6:
        assert positions._slots == (met[-1] - FRAMES_START) // ENTRY.size
        while list_generations(storage, GROUP)[-1] == generation:
            positions.append([done(offset)])
            offset += 1
        generation += 1
        met.append(sizes(storage)[-1])
    assert met == [2**14, 2**15, 2**16, 2**17, 2**17, 2**17]
    assert read(storage).progress.floor == offset


def test_the_next_opening_uses_the_space_of_the_files_that_are_there() -> None:
    """They are not cut, and it does not begin small again."""
    storage, progress = new_storage(), GroupProgress()
    positions = large_writer(storage, progress)
    fill(positions, 2000)
    positions.close()
    before = sizes(storage)
    assert min(before) > POSITION_FILE_BYTES_MIN
    again = large_writer(storage, read(storage).progress)
    assert sizes(storage) == [before[1], before[0]]
    assert again._slots == (before[0] - FRAMES_START) // ENTRY.size


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_on_a_full_disk_a_generation_has_the_space_of_the_one_before(error: int) -> None:
    """So acknowledging continues for ever; once there is space again the files grow."""
    storage, progress = new_storage(), GroupProgress()
    positions = large_writer(storage, progress)
    with refusing(storage, "allocate", ".position", error) as refused:
        fill(positions, 1000)
    assert len(refused) > 3
    assert sizes(storage) == [POSITION_FILE_BYTES_MIN] * 2
    fill(positions, 1500)
    assert sizes(storage)[-1] > POSITION_FILE_BYTES_MIN
    assert read(storage).progress.floor == 1500


def test_space_that_was_allocated_in_part_is_not_counted_on() -> None:
    """A full disk may give some of what was asked for; entries go only where there was space before."""
    storage, progress = new_storage(), GroupProgress()
    positions = large_writer(storage, progress)

    def allocate_a_part(verb: str, path: Path) -> None:
        if verb == "allocate":
            storage.before_verb = None
            with storage.open(path) as file:
                file.allocate(POSITION_FILE_BYTES_MIN + 4096)
            raise OSError(errno.ENOSPC, "full", str(path))

    storage.before_verb = allocate_a_part
    fill(positions, 200)
    assert storage.before_verb is None
    assert len(list_generations(storage, GROUP)) == 2
    assert positions._slots == (POSITION_FILE_BYTES_MIN - FRAMES_START) // ENTRY.size
    fill(positions, 2000)
    assert read(storage).progress.floor == 2000


def finish_every_second(positions: PositionFileWriter) -> None:
    """Append entries that become one run each."""
    for offset in range(1, 1000, 2):
        positions.append([done(offset)])


def test_a_checkpoint_that_its_space_does_not_hold_needs_more() -> None:
    """On a full disk it is refused, and counts as soon as there is space."""
    storage, progress = new_storage(), GroupProgress()
    positions = large_writer(storage, progress)
    with refusing(storage, "allocate", ".position", errno.ENOSPC), pytest.raises(DiskFullError):
        finish_every_second(positions)
    count = progress.finished_count
    assert 100 < count < 300
    positions.append([done(2 * count + 1)])
    assert read(storage).progress.finished_count == count + 1


def test_room_that_cannot_be_reserved_is_told_and_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing depends on it yet; a file that is only half made is not kept."""
    storage = new_storage()
    allocated = []

    def refuse(verb: str, path: Path) -> None:
        if verb == "allocate":
            allocated.append(path)
            if len(allocated) == 2:
                raise OSError(errno.ENOSPC, "no room")

    storage.before_verb = refuse
    positions = writer(storage)
    storage.before_verb = None
    assert "no room to reserve" in text_said(caplog)
    assert storage.list(GROUP) == [position_file(GROUP, 1).name]
    fill(positions, 2 * SLOTS)
    assert read(storage).progress.floor == 2 * SLOTS


def test_generations_that_were_left_behind_go_when_the_next_one_begins() -> None:
    """One of them is used again, the others are removed: a killed process may have left three."""
    storage = new_storage()
    positions = writer(storage)
    fill(positions, 3 * SLOTS)
    newest = list_generations(storage, GROUP)[-1]
    content = storage.tree()[position_file(GROUP, newest)]
    assert content is not None
    for left in (newest - 2, newest - 3):
        put(storage, position_file(GROUP, left), content)
    again = writer(storage, read(storage).progress)
    assert list_generations(storage, GROUP) == [newest, newest + 1]
    again.close()
    again.close()
    assert read(storage).progress.floor == 3 * SLOTS


@pytest.mark.parametrize(("number", "is_refused"), [(errno.EIO, True), (errno.ENOENT, False)])
def test_a_position_file_that_cannot_be_claimed_fails_the_opening_unless_it_is_gone(
    number: int, is_refused: bool
) -> None:
    """An owner elsewhere may just have used its space again: then what is listed next is claimed."""
    storage = new_storage()
    writer(storage).close()
    struck: list[Path] = []

    def strike(verb: str, path: Path) -> None:
        if verb == "open" and path.suffix == ".position" and path.stem.isdigit() and not struck:
            struck.append(path)
            raise OSError(number, os.strerror(number), str(path))

    storage.before_verb = strike
    if is_refused:
        with pytest.raises(StorageError, match="claiming progress"):
            writer(storage)
    else:
        writer(storage).close()
    assert struck


CHECKPOINT_BYTES = 102 * ENTRY.size


@pytest.mark.parametrize(
    ("refused", "size"),
    [
        (0, FRAMES_START + 4 * CHECKPOINT_BYTES),
        (1, (FRAMES_START + 4 * CHECKPOINT_BYTES) // 2),
        (2, FRAMES_START + CHECKPOINT_BYTES),
    ],
)
def test_on_a_full_disk_a_smaller_file_is_enough(refused: int, size: int) -> None:
    """Half of what it should have, and half of that, down to what its checkpoint takes."""
    storage, progress = new_storage(), GroupProgress()
    for offset in range(1, 200, 2):
        progress.finish(offset, 1)
    if refused:
        with refusing(storage, "allocate", "next.position", errno.ENOSPC, count=refused):
            positions = writer(storage, progress)
    else:
        positions = writer(storage, progress)
    with storage.open(position_file(GROUP, 1), writable=False) as file:
        assert file.size() == size
    positions.append([done(0)])
    positions.close()
    assert (read(storage).progress.floor, read(storage).progress.finished_count) == (2, 101)


def test_closing_a_file_that_is_full_begins_no_other_one() -> None:
    """There is no room for a witness, and none is needed: only a clean close is not seen to be one."""
    storage = new_storage()
    positions = writer(storage)
    offset = 0
    while positions._slot < positions._slots:
        positions.append([done(offset)])
        offset += 1
    names, count = list_generations(storage, GROUP), len(storage.log)
    positions.close()
    assert list_generations(storage, GROUP) == names
    assert not any(isinstance(each, Write) for each in storage.log[count:])
    assert read(storage).progress.floor == offset


def test_an_opening_on_a_full_disk_takes_the_space_of_an_earlier_file() -> None:
    """Nothing is appended behind the checkpoint of the latest one, so that its name may be lost; a sync has to do."""
    storage = new_storage()
    for _ in range(3):
        PositionFileWriter(storage, GROUP, FakeClock(), read(storage), file_bytes=FILE_BYTES).abandon()
    with refusing(storage, "allocate", error=errno.ENOSPC):
        again = PositionFileWriter(storage, GROUP, FakeClock(), read(storage), file_bytes=FILE_BYTES)
        again.append([done(0)])
        again.close()
    assert read(storage).progress.floor == 1

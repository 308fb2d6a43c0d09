"""Data files that are missing, swapped, foreign, newer, or have lost their header."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import CorruptionError, PersistentQueue, UnsupportedVersionError
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    FORMAT_VERSION,
    HEADER_BLOCK_BYTES,
    HEADER_COPY_POSITIONS,
    HEADER_CRC,
)
from support.builders.handles import handle_of
from support.builders.small_queues import SmallQueue, build, drain, judge, lost_offsets, payload
from support.storages.simulated_storage import SimulatedStorage

FIRST_COPY, SECOND_COPY = HEADER_COPY_POSITIONS
ID_AT = 40  # inside the file id: no magic, no version


def offsets_of(queue: SmallQueue, number: int) -> range:
    """Return the offsets that stand in a data file."""
    starts = [queue.header(path).first_offset for path in queue.data_files()] + [queue.put_count]
    return range(starts[number], starts[number + 1])


def test_a_missing_first_file_loses_what_nobody_had_taken(queue: SmallQueue) -> None:
    """Messages of it that were taken before are nobody's loss."""
    lost = [offset for offset in offsets_of(queue, 0) if offset >= queue.taken_count]
    queue.storage.remove(queue.data_files()[0])
    _, drained = judge(queue)
    assert sorted(drained.lost) == lost


def test_a_missing_middle_file_loses_its_messages(queue: SmallQueue) -> None:
    """The names of its neighbours say which they were."""
    lost = offsets_of(queue, 1)
    queue.storage.remove(queue.data_files()[1])
    report, drained = judge(queue)
    assert sorted(drained.lost) == list(lost)
    assert report.lost == (lost,)
    assert "missing" in str(report)


def test_only_what_was_not_finished_is_lost_with_a_missing_file() -> None:
    """The file before it had been retired: both make one gap, and the report names the messages of one of them."""
    queue = build(Path("/queue"), SimulatedStorage(), file_count=5)
    third, fourth = offsets_of(queue, 2), offsets_of(queue, 3)
    with queue.open() as handle:
        pinned = [handle.receive(timeout=0) for _ in range(third.start)]
        for _ in third:
            handle.get(timeout=0)
        for delivery in [*pinned, handle.receive(timeout=0)]:  # coming to the next file, the reader leaves this one
            delivery.nack(delay=0)
    assert len(queue.data_files()) == 4, "the third file is retired"
    queue.storage.remove(queue.data_files()[2])
    report, drained = queue.verify(), drain(queue)
    assert report.lost == (fourth,)
    assert [damage.offsets for damage in drained.damage] == [fourth]
    assert sorted(drained.payloads) == [*range(third.start), *range(fourth.stop, queue.put_count)]


def test_a_missing_last_file_loses_its_messages_and_their_offsets_are_not_given_again(queue: SmallQueue) -> None:
    """write.mark still speaks of it."""
    lost = offsets_of(queue, 2)
    queue.storage.remove(queue.data_files()[2])
    report, drained = judge(queue)
    assert sorted(drained.lost) == list(lost)
    assert report.lost == (lost,)
    assert sum(len(damage.offsets) for damage in drained.damage) == len(lost), "counted once"
    with queue.open() as handle:
        assert handle.put(b"new") == queue.put_count
        assert handle.get(timeout=1) == b"new"


def test_a_missing_last_file_is_reported_at_every_opening_until_something_is_put(queue: SmallQueue) -> None:
    """Opening only to look, or crashing before the first put, does not make the loss forgotten."""
    lost = offsets_of(queue, 2)
    queue.storage.remove(queue.data_files()[2])
    for _ in range(2):
        with queue.open(mode="exclusive") as handle:
            assert [damage.offsets for damage in handle.recovery.damage] == [lost]
            assert handle.stats().next_offset == queue.put_count


def test_several_missing_last_files_are_reported_with_all_their_messages(queue: SmallQueue) -> None:
    """``write.mark`` says where the last one's offsets start and end, so none is missed and none is given again."""
    first = offsets_of(queue, 1).start
    for path in queue.data_files()[1:]:
        queue.storage.remove(path)
    report, drained = queue.verify(), drain(queue)
    assert lost_offsets(report) == drained.lost
    assert drained.lost == set(range(first, queue.put_count))
    assert drained.payloads == {offset: payload(offset) for offset in range(queue.taken_count, first)}


@pytest.mark.parametrize("count", [3, 2**32 - 1, 2**32, 2**62])
def test_a_queue_whose_data_files_are_all_gone_goes_on_behind_what_its_group_has_finished(count: int) -> None:
    """However much that is: no data file holds 2**32 messages, and no offset is given a second time."""
    storage, path = SimulatedStorage(), Path("/queue")
    with PersistentQueue(path, mode="exclusive", storage=storage) as handle:
        handle.put(b"one")
        assert handle.get() == b"one"
        books = handle_of(handle).require_read_side().progress_store
        assert books is not None
        books.lose(range(1, count))
    for name in storage.list(path / "data"):
        storage.remove(path / "data" / name)
    storage.remove(path / "write.mark")
    for life in range(3):
        with PersistentQueue(path, mode="exclusive", storage=storage) as handle:
            assert handle.put(b"new") == count + life
            assert handle.get(timeout=0) == b"new"


def test_no_data_file_at_all_is_reported(queue: SmallQueue) -> None:
    """An emptied data directory does not look like an empty queue."""
    for path in queue.data_files():
        queue.storage.remove(path)
    assert not queue.verify().ok
    drained = drain(queue)
    assert drained.lost
    assert not drained.payloads


def test_two_swapped_sealed_files_are_lost_and_nothing_comes_under_a_wrong_offset(queue: SmallQueue) -> None:
    """A file whose header does not fit its name is not believed."""
    lost = range(queue.taken_count, offsets_of(queue, 1).stop)
    first, second = queue.data_files()[:2]
    contents = queue.read(first), queue.read(second)
    queue.write(first, contents[1])
    queue.write(second, contents[0])
    report, drained = judge(queue)
    assert sorted(drained.lost) == list(lost)
    assert "give it that name back" in str(report)


def test_a_swapped_last_file_refuses_the_queue_before_anything_is_overwritten(queue: SmallQueue) -> None:
    """Going on from its header would make a next file of the name of one that is there."""
    second, third = queue.data_files()[1:]
    contents = queue.read(second), queue.read(third)
    queue.write(second, contents[1])
    queue.write(third, contents[0])
    assert not queue.verify().ok
    with pytest.raises(CorruptionError, match="give it that name back") as caught:
        queue.open()
    assert caught.value.path == str(third)
    assert (queue.read(second), queue.read(third)) == (contents[1], contents[0])


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("at", [FIRST_COPY, SECOND_COPY])
def test_one_bad_copy_of_a_header_loses_nothing_and_is_reported(queue: SmallQueue, number: int, at: int) -> None:
    """The other copy stands in another page."""
    path = queue.data_files()[number]
    queue.flip(path, at + ID_AT)
    report, drained = judge(queue)
    assert [(damage.path, damage.position, len(damage.offsets)) for damage in report.damage] == [(path, at, 0)]
    assert not drained.lost


@pytest.mark.parametrize("number", [0, 1, 2])
def test_two_bad_copies_of_a_header_lose_the_file(queue: SmallQueue, number: int) -> None:
    """Without the salt no frame verifies; the next file, or write.mark, says how many messages that were."""
    path = queue.data_files()[number]
    lost = [offset for offset in offsets_of(queue, number) if offset >= queue.taken_count]
    for at in HEADER_COPY_POSITIONS:
        queue.flip(path, at + ID_AT)
    _, drained = judge(queue)
    assert sorted(drained.lost) == lost


def test_a_last_file_without_header_and_without_mark_is_counted_by_stx_and_size(queue: SmallQueue) -> None:
    """A reader that knows only the seed of the format can still walk the file."""
    path = queue.data_files()[2]
    lost = offsets_of(queue, 2)
    for at in HEADER_COPY_POSITIONS:
        queue.flip(path, at + ID_AT)
    queue.storage.remove(queue.root / "write.mark")
    report, drained = judge(queue)
    assert sorted(drained.lost) == list(lost)
    assert {damage.verdict for damage in report.damage} == {"unsynced or damaged"}
    with queue.open() as handle:
        assert handle.put(b"new") == queue.put_count


@pytest.mark.parametrize("size", [0, 300])
@pytest.mark.parametrize("number", [1, 2])
def test_a_data_file_cut_inside_its_header_is_lost(queue: SmallQueue, number: int, size: int) -> None:
    """The rest of the queue is delivered."""
    path = queue.data_files()[number]
    lost = offsets_of(queue, number)
    queue.write(path, queue.read(path)[:size])
    _, drained = judge(queue)
    assert sorted(drained.lost) == list(lost)


def test_a_file_of_another_queue_in_the_middle_is_not_delivered(queue: SmallQueue) -> None:
    """Its frames verify with its own salt, but its header names another queue."""
    other = build(Path("/other"), SimulatedStorage())
    queue.write(queue.data_files()[1], other.read(other.data_files()[1]))
    report, drained = judge(queue)
    assert sorted(drained.lost) == list(offsets_of(other, 1))
    assert "belongs to another queue" in str(report)


def test_a_file_of_another_queue_as_the_last_one_refuses_the_queue(queue: SmallQueue) -> None:
    """Nothing may be appended to it, and nothing after it."""
    other = build(Path("/other"), SimulatedStorage())
    path = queue.data_files()[2]
    queue.write(path, other.read(other.data_files()[2]))
    assert not queue.verify().ok
    with pytest.raises(CorruptionError, match="belongs to another queue"):
        queue.open()


def make_newer(queue: SmallQueue, path: Path) -> None:
    """Give both copies of a header the next version, with a good checksum."""
    for at in HEADER_COPY_POSITIONS:
        block = bytearray(queue.read(path)[at : at + HEADER_BLOCK_BYTES - HEADER_CRC.size])
        block[8:10] = (FORMAT_VERSION + 1).to_bytes(2, "little")
        queue.patch(path, at, bytes(block) + HEADER_CRC.pack(crc32c(0, bytes(block))))


def test_a_last_file_of_a_newer_version_refuses_the_queue(queue: SmallQueue) -> None:
    """It is not damaged: a newer Holdfast can read it."""
    path = queue.data_files()[2]
    make_newer(queue, path)
    with pytest.raises(UnsupportedVersionError) as caught:
        queue.open()
    assert caught.value.version == FORMAT_VERSION + 1
    with pytest.raises(UnsupportedVersionError):
        queue.verify()


def test_a_sealed_file_of_a_newer_version_is_never_given_up(queue: SmallQueue) -> None:
    """Taking stops in front of it with an error, and nothing of it is noted as lost."""
    make_newer(queue, queue.data_files()[1])
    with queue.open() as handle:
        handle.get_many(100, timeout=0)
        with pytest.raises(UnsupportedVersionError):
            handle.get_many(100, timeout=0)
        assert not handle.recovery.damage
    with pytest.raises(UnsupportedVersionError):
        queue.verify()


def test_names_that_are_not_ours_are_left_alone(queue: SmallQueue) -> None:
    """A file that an operator put into data/ is noted and neither read nor removed."""
    strange = queue.root / "data" / "backup.tar"
    queue.write(strange, b"something")
    report, _ = judge(queue)
    assert report.ok
    assert any("backup.tar" in note for note in report.notes)
    assert queue.read(strange) == b"something"

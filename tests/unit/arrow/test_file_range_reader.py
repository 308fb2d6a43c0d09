"""What a task reads: the right rows or an error, whatever happens to the files meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Damage
from holdfast.arrow.reading import file_range_reader
from holdfast.arrow.reading.file_range import FileRange
from holdfast.arrow.reading.file_range_reader import ConsumedMeanwhileError, FileRangeReader
from holdfast.arrow.reading.selection import Selection
from holdfast.arrow.reading.snapshot import take_snapshot
from holdfast.errors import CorruptionError, RetryableError
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.format.file_header import DataFileHeader, block_buffers
from holdfast.persistence.format.framing import Frame
from support.arrow.range_rows import read_parts
from support.arrow.reused_files import OnRead, begin_anew
from support.builders.small_queues import SmallQueue, build, payload
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture(scope="module")
def template() -> SmallQueue:
    """Return a closed queue of three data files; copy it, do not change it."""
    return build(Path("/queue"), SimulatedStorage(), taken_count=3)


@pytest.fixture
def queue(template: SmallQueue) -> SmallQueue:
    """Return such a queue to be damaged."""
    return template.copy()


def everything(queue: SmallQueue) -> dict[int, bytes]:
    """Return what was put."""
    return {offset: payload(offset) for offset in range(queue.put_count)}


def second_message(queue: SmallQueue, number: int) -> tuple[Frame, int]:
    """Return the second message frame of a data file, and its offset."""
    path = queue.data_files()[number]
    frame = queue.frames(path)[1]
    return frame, queue.header(path).first_offset + frame.index


def part_of(queue: SmallQueue, number: int) -> tuple[FileRangeReader, list[Damage]]:
    """Return a reader of one planned file, and the losses that it is going to report."""
    snapshot = take_snapshot(queue.storage, Selection(queue.root))
    part = snapshot.parts[number]
    losses: list[Damage] = []
    path = QueueDirectory(queue.root).data_file(part.name)
    return FileRangeReader(queue.storage, path, snapshot.queue_id, part, losses.append), losses


def test_every_message_is_read_once(queue: SmallQueue) -> None:
    """In order, and as it was put; empty ones too."""
    assert read_parts(queue.storage, queue.root) == (everything(queue), [])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_message_is_lost_alone_with_its_place(queue: SmallQueue, number: int) -> None:
    """In a sealed file and in the last one."""
    frame, offset = second_message(queue, number)
    queue.flip(queue.data_files()[number], frame.end - 1)
    found, losses = read_parts(queue.storage, queue.root)
    assert found == {key: value for key, value in everything(queue).items() if key != offset}
    assert [(damage.path, damage.position, damage.offsets) for damage in losses] == [
        (queue.data_files()[number], frame.position, range(offset, offset + 1))
    ]


def test_a_record_size_that_cannot_be_loses_one_message(queue: SmallQueue) -> None:
    """Nothing is read or allocated on its word."""
    frame, offset = second_message(queue, 1)
    queue.patch(queue.data_files()[1], frame.position + 1, b"\xff\xff\xff\xff")
    found, losses = read_parts(queue.storage, queue.root)
    assert [damage.offsets for damage in losses] == [range(offset, offset + 1)]
    assert len(found) == queue.put_count - 1


def test_damage_to_what_nobody_asked_for_is_no_loss(queue: SmallQueue) -> None:
    """Nor is it in the way of what was asked for."""
    frame, offset = second_message(queue, 1)
    queue.flip(queue.data_files()[1], frame.position + 20)
    found, losses = read_parts(queue.storage, queue.root, offset_start=offset + 1)
    assert losses == []
    assert list(found) == list(range(offset + 1, queue.put_count))


def test_a_file_without_a_good_header_is_lost_whole(queue: SmallQueue) -> None:
    """Both copies have to be damaged for that."""
    path = queue.data_files()[1]
    wanted = take_snapshot(queue.storage, Selection(queue.root)).parts[1].wanted
    queue.flip(path, 100)
    assert read_parts(queue.storage, queue.root)[1] == []
    queue.flip(path, 4096 + 100)
    assert [damage.offsets for damage in read_parts(queue.storage, queue.root)[1]] == [range(*wanted[0])]


def test_a_sealed_file_that_was_cut_has_lost_its_end(queue: SmallQueue) -> None:
    """The next file says where it should have ended."""
    frame, offset = second_message(queue, 1)
    path = queue.data_files()[1]
    queue.write(path, queue.read(path)[: frame.end + 7])
    end = queue.header(queue.data_files()[2]).first_offset
    found, losses = read_parts(queue.storage, queue.root)
    assert [damage.offsets for damage in losses] == [range(offset + 1, end)]
    assert len(found) == queue.put_count - len(losses[0].offsets)


def test_a_file_of_another_queue_is_refused(queue: SmallQueue) -> None:
    """Somebody copied it here."""
    path = queue.data_files()[1]
    header = queue.header(path)
    other = DataFileHeader(bytes(16), header.sequence, header.first_offset, 0, file_id=header.file_id, salt=header.salt)
    queue.patch(path, 0, block_buffers(other.encode()))
    reader, _ = part_of(queue, 1)
    with pytest.raises(CorruptionError, match="belongs to another queue"):
        list(reader.walked())


def test_a_file_that_was_removed_meanwhile_is_an_error(queue: SmallQueue) -> None:
    """It had been there when the read was planned."""
    reader, losses = part_of(queue, 1)
    queue.storage.remove(queue.data_files()[1])
    with pytest.raises(ConsumedMeanwhileError, match="was consumed after this read was planned") as raised:
        list(reader.walked())
    assert isinstance(raised.value, RetryableError)
    assert losses == []


@pytest.mark.parametrize("before", [True, False])
def test_a_file_that_is_reused_while_it_is_read_gives_no_row(queue: SmallQueue, before: bool) -> None:
    """Neither of its old life nor of its new one: its id is looked at behind every read."""
    snapshot = take_snapshot(queue.storage, Selection(queue.root))
    path = queue.data_files()[1]
    storage = OnRead(queue.storage, lambda: begin_anew(queue, path), before=before)
    reader = FileRangeReader(storage, path, snapshot.queue_id, snapshot.parts[1], lambda damage: None)  # type: ignore[arg-type]
    with pytest.raises(ConsumedMeanwhileError):
        next(reader.walked())


def test_the_file_being_written_is_known_by_its_id(queue: SmallQueue) -> None:
    """After a power failure another one may have its name."""
    reader, _ = part_of(queue, 2)
    begin_anew(queue, queue.data_files()[2])
    with pytest.raises(ConsumedMeanwhileError):
        list(reader.walked())


def test_a_file_that_says_another_name_is_not_the_one_that_was_planned(queue: SmallQueue) -> None:
    """It was begun anew under this handle's feet."""
    snapshot = take_snapshot(queue.storage, Selection(queue.root))
    path = queue.data_files()[1]
    other = FileRange(DataFileName(9, 90), ((90, 91),))
    with pytest.raises(ConsumedMeanwhileError):
        list(FileRangeReader(queue.storage, path, snapshot.queue_id, other, lambda damage: None).walked())


def test_large_records_and_small_chunks_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is larger than what is read at once is read whole, and batches end where they should."""
    monkeypatch.setattr(file_range_reader, "CHUNK_BYTES", 200)
    monkeypatch.setattr(file_range_reader, "BATCH_COUNT_MAX", 2)
    queue = build(tmp_path / "queue", OsStorage())
    with queue.open() as opened:
        opened.put(b"large" * 300)
    found, losses = read_parts(queue.storage, queue.root)
    assert losses == []
    assert found == {**everything(queue), queue.put_count: b"large" * 300}
    for start in range(queue.put_count):  # through the index of a seal too
        assert min(read_parts(queue.storage, queue.root, offset_start=start)[0]) == start


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_never_make_a_wrong_row(template: SmallQueue, data: st.DataObject) -> None:
    """Every message that is asked for is there as it was put, or is named as lost; and nothing else is there."""
    queue = template.copy()
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(queue.data_files()))
        size = len(queue.read(path))
        position = data.draw(st.integers(0, 700) | st.integers(FRAMES_START, size - 1))
        queue.flip(path, position, data.draw(st.integers(0, 7)))
    start = data.draw(st.integers(0, queue.put_count))
    end = data.draw(st.integers(start, queue.put_count))
    found, losses = read_parts(queue.storage, queue.root, offset_start=start, offset_end=end)
    lost = {offset for damage in losses for offset in damage.offsets}
    assert all(found[offset] == payload(offset) for offset in found)
    assert not lost & set(found)
    assert lost | set(found) == set(range(start, end))

"""One test for each malformed shape of the frames of a data file, in a sealed file and in the last one."""

from __future__ import annotations

import pytest

from holdfast.persistence.format.constants import FRAME_HEADER_BYTES, FRAMES_START, KIND_MESSAGE, KIND_SEAL
from holdfast.persistence.format.framing import Frame, encode_frame
from support.builders.small_queues import SmallQueue, drain, judge, lost_offsets, payload

SEALED, LAST = 1, 2

pytestmark = pytest.mark.parametrize("number", [SEALED, LAST])


def message(queue: SmallQueue, number: int, at: int = 1) -> tuple[Frame, int]:
    """Return a message frame of a data file, and its offset."""
    path = queue.data_files()[number]
    frame = queue.frames(path)[at]
    assert frame.kind == KIND_MESSAGE
    return frame, queue.header(path).first_offset + frame.index


def loses_exactly(queue: SmallQueue, *offsets: int) -> None:
    """Judge the queue; only these messages may be lost, and the damage says where."""
    report, drained = judge(queue)
    assert sorted(lost_offsets(report)) == sorted(offsets)
    assert sorted(drained.lost) == sorted(offsets)
    assert not report.ok
    assert all(str(damage) in str(report) for damage in report.damage)


def patched(queue: SmallQueue, number: int, at: int, content: bytes) -> int:
    """Overwrite bytes of the second message of a data file, counted from its frame; return its offset."""
    frame, offset = message(queue, number)
    queue.patch(queue.data_files()[number], frame.position + at, content)
    return offset


def test_a_frame_without_its_stx_is_lost_alone(queue: SmallQueue, number: int) -> None:
    """The frames around it are delivered."""
    loses_exactly(queue, patched(queue, number, 0, b"\x03"))


def test_a_record_size_too_small_loses_one_message(queue: SmallQueue, number: int) -> None:
    """A size that ends inside the frame does not make the rest of it a frame."""
    loses_exactly(queue, patched(queue, number, 1, (28).to_bytes(4, "little")))


def test_a_record_size_below_the_frame_header_loses_one_message(queue: SmallQueue, number: int) -> None:
    """A size that cannot be is not believed."""
    loses_exactly(queue, patched(queue, number, 1, bytes(4)))


def test_a_record_size_of_4_gb_is_not_allocated(queue: SmallQueue, number: int) -> None:
    """It is bounded by the bytes that are left in the file."""
    import tracemalloc

    offset = patched(queue, number, 1, b"\xff\xff\xff\xff")
    tracemalloc.start()
    try:
        loses_exactly(queue, offset)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 * 2**20


def test_a_wrong_checksum_loses_one_message(queue: SmallQueue, number: int) -> None:
    """The payload may be whole, but nobody can know."""
    loses_exactly(queue, patched(queue, number, 5, b"\0\0\0\0"))


def test_a_wrong_kind_loses_one_message(queue: SmallQueue, number: int) -> None:
    """A message does not become a seal."""
    loses_exactly(queue, patched(queue, number, 9, bytes((KIND_SEAL,))))


def test_a_wrong_index_loses_one_message(queue: SmallQueue, number: int) -> None:
    """A message is never delivered under another offset."""
    loses_exactly(queue, patched(queue, number, 16, b"\x07\0\0\0"))


def test_a_wrong_payload_byte_loses_one_message(queue: SmallQueue, number: int) -> None:
    """A payload that changed is not delivered."""
    loses_exactly(queue, patched(queue, number, FRAME_HEADER_BYTES + 2, b"\xff"))


def test_a_file_cut_in_the_middle_of_a_frame_loses_what_stood_behind(queue: SmallQueue, number: int) -> None:
    """Also in the last file: its end was published, so this is no torn tail."""
    path = queue.data_files()[number]
    frame, offset = message(queue, number)
    count = sum(each.kind == KIND_MESSAGE for each in queue.frames(path)[1:])
    queue.write(path, queue.read(path)[: frame.position + 40])
    loses_exactly(queue, *range(offset, offset + count))


def test_a_file_cut_between_two_frames_loses_what_stood_behind(queue: SmallQueue, number: int) -> None:
    """Nothing that does not verify is left, and still the messages are missed."""
    path = queue.data_files()[number]
    frame, offset = message(queue, number)
    count = sum(each.kind == KIND_MESSAGE for each in queue.frames(path)[1:])
    queue.write(path, queue.read(path)[: frame.position])
    loses_exactly(queue, *range(offset, offset + count))


def test_a_hole_of_zeros_loses_the_frames_it_touches(queue: SmallQueue, number: int) -> None:
    """What stands behind the hole is delivered."""
    frame, offset = message(queue, number)
    queue.patch(queue.data_files()[number], frame.position - 3, bytes(10))
    loses_exactly(queue, offset - 1, offset)


def test_all_frames_zeroed_lose_all_messages_of_the_file(queue: SmallQueue, number: int) -> None:
    """The other files are delivered."""
    path = queue.data_files()[number]
    frames = queue.frames(path)
    first, count = queue.header(path).first_offset, sum(frame.kind == KIND_MESSAGE for frame in frames)
    queue.patch(path, FRAMES_START, bytes(frames[-1].end - FRAMES_START))
    loses_exactly(queue, *range(first, first + count))


def test_a_frame_written_over_the_next_one_is_not_delivered_twice(queue: SmallQueue, number: int) -> None:
    """A copy of a good frame verifies, but its index says that it stands in the wrong place."""
    path = queue.data_files()[number]
    frame, offset = message(queue, number)
    content = queue.read(path)
    queue.patch(path, frame.position, content[FRAMES_START : frame.position])
    loses_exactly(queue, offset)


def test_an_inserted_copy_of_a_block_loses_what_was_pushed_behind_the_end(queue: SmallQueue, number: int) -> None:
    """Every message of the block comes once; what no longer stands below the file's end is reported."""
    path = queue.data_files()[number]
    content = queue.read(path)
    frame, _ = message(queue, number)
    queue.write(path, content[: frame.end] + content[frame.position : frame.end] + content[frame.end :])
    report, _ = judge(queue)
    assert not report.ok


def test_stale_frames_of_another_life_of_the_file_are_not_delivered(queue: SmallQueue, number: int) -> None:
    """A frame whose index fits and whose checksum started from another salt is not ours."""
    path = queue.data_files()[number]
    frame, offset = message(queue, number)
    stale = b"".join(
        encode_frame(
            queue.header(path).salt ^ 1,
            b"stale".ljust(len(frame.payload)),
            index=frame.index,
            durable_mark=0,
            timestamp_ns=frame.timestamp_ns,
        )
    )
    queue.patch(path, frame.position, stale)
    loses_exactly(queue, offset)


def test_two_damaged_places_are_two_reports(queue: SmallQueue, number: int) -> None:
    """Each names its own position and offset, and the messages between them are delivered."""
    path = queue.data_files()[number]
    first, last = queue.frames(path)[0], queue.frames(path)[2]
    for frame in (first, last):
        queue.flip(path, frame.position + 6)
    report, drained = judge(queue)
    assert [damage.position for damage in report.damage] == [first.position, last.position]
    assert [damage.position for damage in drained.damage] == [first.position, last.position]
    assert [damage.size_bytes for damage in report.damage] == [
        first.end - first.position,
        last.end - last.position,
    ]


def test_damage_in_the_last_control_frame_loses_no_message(queue: SmallQueue, number: int) -> None:
    """A seal or a mark of a clean close is found damaged, and all messages come."""
    path = queue.data_files()[number]
    frame = queue.frames(path)[-1]
    assert frame.kind != KIND_MESSAGE
    queue.flip(path, frame.position + 12, 3)
    loses_exactly(queue)


def test_a_queue_with_damage_goes_on_being_written(queue: SmallQueue, number: int) -> None:
    """What is put after the damage was met gets new offsets, and comes."""
    offset = patched(queue, number, 5, b"\0\0\0\0")
    with queue.open() as handle:
        assert handle.put(b"new") == queue.put_count
    waiting = set(queue.waiting) - {offset}
    drained = drain(queue)
    assert drained.payloads == {each: payload(each) for each in waiting} | {queue.put_count: b"new"}
    assert drained.lost == {offset}

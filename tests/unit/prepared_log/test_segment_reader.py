"""A segment of the prepared log is read whole, torn or damaged, and says what it has lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import (
    ENTRY_BEGIN,
    FLAG_FIRST,
    FRAMES_START,
    KIND_BEGIN,
    KIND_ENDED,
    KIND_SEAL,
    OUTCOME_COMMITTED,
    SYNCED_END_POSITION,
)
from holdfast.persistence.format.file_header import SegmentHeader, block_buffers
from holdfast.persistence.format.framing import encode_frame, encode_messages
from holdfast.persistence.prepared_log.entry import (
    Entry,
    decode_begin,
    decode_ended,
    encode_ended,
    encode_entry,
    entry_bytes,
    entry_messages,
)
from holdfast.persistence.prepared_log.segment_reader import SegmentContent, encode_synced_end, read_segment

QUEUE_ID = bytes(range(16))
HEADER = SegmentHeader(QUEUE_ID, 1, salt=12345)
ROOM = bytes(4096)
"""Space that is reserved behind the last frame."""


class Segment:
    """A segment in the making."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = bytearray(block_buffers(HEADER.encode()))
        self.mark = FRAMES_START

    def put(self, number: int, count: int = 2) -> tuple[int, int]:
        """Add an entry; return its place."""
        payloads = [b"%d of %d" % (each, number) for each in range(count)]
        headers = {0: b"\3\0\1\0\1"} if count else {}
        buffers, _ = encode_entry(HEADER.salt, self.mark, payloads, headers, record(number, count))
        assert entry_bytes(payloads, headers, record(number, count)) == sum(map(len, buffers))
        return self.add(buffers)

    def end(self, number: int) -> tuple[int, int]:
        """Add the frame that makes an entry void."""
        return self.add(encode_ended(HEADER.salt, self.mark, 5, nonce(number), OUTCOME_COMMITTED))

    def add(self, buffers: list[bytes] | tuple[bytes, ...]) -> tuple[int, int]:
        """Add bytes; return their place."""
        start = len(self.content)
        self.content += b"".join(buffers)
        return start, len(self.content)

    def sync(self) -> None:
        """Have all of it synced."""
        self.mark = len(self.content)
        self.content[SYNCED_END_POSITION : SYNCED_END_POSITION + 12] = encode_synced_end(self.mark, HEADER.salt)

    def read(self, *damaged: int) -> SegmentContent:
        """Read it with a flipped bit at each of these positions."""
        content = bytearray(self.content + ROOM)
        for position in damaged:
            content[position] ^= 1
        self.path.write_bytes(content)
        return read_segment(OsStorage(), self.path, QUEUE_ID)


def nonce(number: int) -> bytes:
    """Return a nonce."""
    return number.to_bytes(16, "big")


def record(number: int, count: int) -> CommitRecord:
    """Return a commit record."""
    return CommitRecord(f"t{number}", nonce(number), count, 7)


def ids(content: SegmentContent) -> list[str]:
    """Return the ids of whole entries."""
    return [each.commit_record.id for each in content.entries]


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    """Return an empty segment."""
    return Segment(tmp_path / "0000000001.log")


def test_entries_and_ends_are_read_in_order(segment: Segment) -> None:
    """Whole entries of any size, and what ended."""
    segment.put(1)
    segment.put(2, 0)
    segment.end(1)
    _, end = segment.put(3, 500)
    found = segment.read()
    assert ids(found) == ["t1", "t2", "t3"]
    assert found.ended == {nonce(1): OUTCOME_COMMITTED}
    assert (found.end, found.witness, found.lost, found.damaged_entries) == (end, FRAMES_START, [], [])
    first, empty, last = found.entries
    assert (first.nonce, first.message_count, empty.message_count, empty.frames_bytes) == (nonce(1), 2, 0, 0)
    assert list(entry_messages(OsStorage(), first)) == [(b"0 of 1", b"\3\0\1\0\1"), (b"1 of 1", b"")]
    assert len(list(entry_messages(OsStorage(), last))) == 500
    assert last.frames_bytes == 500 * 32 + 5 + sum(len(payload) for payload, _ in entry_messages(OsStorage(), last))


def test_an_empty_segment_has_nothing(segment: Segment) -> None:
    """Reserved space is no damage."""
    found = segment.read()
    assert (found.entries, found.ended, found.lost, found.end) == ([], {}, [], FRAMES_START)


def test_a_torn_tail_does_not_count_nor_does_what_is_behind_it(segment: Segment) -> None:
    """Above the witness a bad frame ends the segment."""
    segment.put(1)
    segment.sync()
    start, _ = segment.put(2)
    segment.put(3)
    found = segment.read(start + 60)
    assert ids(found) == ["t1"]
    assert (found.end, found.lost, found.damaged_entries) == (start, [], [])


def test_a_durable_mark_behind_it_tells_damage_from_a_torn_tail(segment: Segment) -> None:
    """The marks of frames are witnesses too."""
    start, _ = segment.put(1)
    segment.mark = len(segment.content)  # synced; the mark at the start of the file is lost
    segment.put(2)
    found = segment.read(start + 80)
    assert ids(found) == ["t2"]
    assert [(each.id, each.nonce) for each in found.damaged_entries] == [("t1", nonce(1))]
    assert found.lost == []


@pytest.mark.parametrize("where", ["begin", "message", "commit record"])
def test_damage_in_an_entry_names_it(segment: Segment, where: str) -> None:
    """The first frame or the last one knows the transaction."""
    start, end = segment.put(1)
    segment.put(2)
    segment.sync()
    position = {"begin": start + 40, "message": start + 32 + 24 + 2 + 40, "commit record": end - 3}[where]
    found = segment.read(position)
    assert ids(found) == ["t2"]
    assert [(each.id, each.nonce) for each in found.damaged_entries] == [("t1", nonce(1))]
    assert found.damaged_entries[0].damage.path == segment.path
    assert found.lost == []


def test_damage_at_both_ends_of_an_entry_loses_what_cannot_be_named(segment: Segment) -> None:
    """Then a transaction may be missing."""
    start, end = segment.put(1)
    segment.put(2)
    segment.sync()
    found = segment.read(start + 40, end - 3)
    assert ids(found) == ["t2"]
    assert found.damaged_entries == []
    assert [(each.position, each.size_bytes) for each in found.lost] == [(start, end - start)]


def test_damage_in_the_last_entry_is_told_from_space_that_was_never_written(segment: Segment) -> None:
    """The synced end is a witness without frames behind it."""
    start, end = segment.put(1)
    segment.sync()
    found = segment.read(start + 40, end - 3)
    assert [each.position for each in found.lost] == [start]


def test_a_damaged_end_may_have_been_any(segment: Segment) -> None:
    """The entry that it ended looks undecided."""
    segment.put(1)
    start, end = segment.end(1)
    segment.sync()
    found = segment.read(start + 40)
    assert (ids(found), found.ended) == (["t1"], {})
    assert [each.position for each in found.lost] == [start]
    assert end == start + 32 + 17


def test_a_damaged_synced_end_is_left_out(segment: Segment) -> None:
    """The frames count without it."""
    segment.put(1)
    segment.sync()
    found = segment.read(SYNCED_END_POSITION)
    assert (ids(found), found.witness) == (["t1"], FRAMES_START)


def frame(kind: int, payload: bytes, flags: int) -> tuple[bytes, bytes]:
    """Return a frame of any kind."""
    first, second = encode_frame(HEADER.salt, payload, index=0, durable_mark=0, timestamp_ns=1, kind=kind, flags=flags)
    return first, second


def other_count() -> list[bytes]:
    """Return an entry whose commit record names more messages."""
    buffers, _ = encode_entry(HEADER.salt, 0, [b"a"], {}, record(1, 2))
    return buffers


def other_index() -> list[bytes]:
    """Return an entry whose messages do not begin at 0, with another end."""
    name = b"t1"
    content = encode_messages(HEADER.salt, 4, 0, 7, {}, [b"a"], False, False)
    last = frame(KIND_SEAL, b"", 3)
    size = 32 + 24 + len(name) + sum(map(len, [*content, *last]))
    return [*frame(KIND_BEGIN, ENTRY_BEGIN.pack(nonce(1), size) + name, FLAG_FIRST), *content, *last]


@pytest.mark.parametrize(
    "make",
    [
        lambda: frame(KIND_SEAL, b"", 3),
        lambda: frame(KIND_ENDED, b"short", 3),
        lambda: frame(KIND_BEGIN, b"short", FLAG_FIRST),
        lambda: frame(KIND_BEGIN, ENTRY_BEGIN.pack(nonce(1), 2**40) + b"t", FLAG_FIRST),
        other_count,
        other_index,
    ],
)
def test_good_frames_that_make_no_entry_are_damage(
    segment: Segment, make: Callable[[], tuple[bytes, ...] | list[bytes]]
) -> None:
    """Checksums alone make no entry."""
    start, end = segment.add(make())
    segment.put(2)
    segment.sync()
    found = segment.read()
    assert ids(found) == ["t2"]
    bad = [each.damage for each in found.damaged_entries] + found.lost
    assert [(each.position, each.size_bytes) for each in bad] == [(start, end - start)]


def test_a_segment_of_another_queue_is_refused(segment: Segment) -> None:
    """As data files are."""
    segment.read()
    with pytest.raises(CorruptionError, match="belongs to another queue"):
        read_segment(OsStorage(), segment.path, bytes(16))


def test_an_entry_that_is_damaged_later_is_refused_when_it_is_read(segment: Segment) -> None:
    """Its messages are checked again."""
    segment.put(1)
    (entry,) = segment.read().entries
    segment.read(entry.messages_start + 33)
    with pytest.raises(CorruptionError, match=r"transaction t1 in .* is damaged"):
        list(entry_messages(OsStorage(), entry))
    moved = Entry(
        entry.path, 1, entry.salt, entry.position, entry.end, entry.commit_record_position,
        entry.commit_record, entry.commit_record_position,
    )  # fmt: skip
    with pytest.raises(CorruptionError, match="another frame is in the place of message 0"):
        list(entry_messages(OsStorage(), moved))


def test_frames_of_other_sizes_are_none(segment: Segment) -> None:
    """No byte outside of a payload is read."""
    assert not segment.content[FRAMES_START:]
    with pytest.raises(ValueError, match="too short"):
        decode_begin(bytes(24))
    with pytest.raises(ValueError, match="another size"):
        decode_ended(bytes(16))

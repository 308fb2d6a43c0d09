"""A segment of the prepared log is read whole, torn or damaged, and says what it has lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import (
    ENTRY_BEGIN,
    FLAG_FIRST,
    FRAMES_START,
    KIND_BEGIN,
    KIND_COMMIT_RECORD,
    KIND_ENDED,
    KIND_SEAL,
    OUTCOME_COMMITTED,
    SYNCED_END_POSITION,
)
from holdfast.persistence.format.framing import encode_frame, encode_messages
from holdfast.persistence.prepared_log.entry import (
    Entry,
    begin_bytes,
    decode_begin,
    decode_ended,
    encode_entry,
    entry_messages,
)
from holdfast.persistence.prepared_log.segment_reader import SegmentContent, read_segment, torn_bytes
from support.builders.segments import QUEUE_ID, Segment, nonce, record


def ids(content: SegmentContent) -> list[str]:
    """Return the ids of whole entries."""
    return [each.commit_record.id for each in content.entries]


SALT = Segment(Path()).header.salt


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    """Return an empty segment."""
    return Segment(tmp_path)


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


def test_messages_that_fill_more_than_one_read_are_one_entry(segment: Segment) -> None:
    """All of them are checked."""
    payloads = [bytes([number]) * 700_000 for number in range(4)]
    buffers, _ = encode_entry(SALT, FRAMES_START, payloads, {}, record(1, 4))
    _, end = segment.add(buffers)
    found = segment.read()
    assert (ids(found), found.end) == (["t1"], end)
    assert [payload for payload, _ in entry_messages(OsStorage(), found.entries[0])] == payloads


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


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_the_last_frame_names_an_entry_of_any_size(segment: Segment, count: int) -> None:
    """Frames that follow one another are all seen behind damage."""
    segment.put(1)
    start, _ = segment.put(2, count)
    segment.sync()
    found = segment.read(start + 40)
    assert (ids(found), [each.id for each in found.damaged_entries], found.lost) == (["t1"], ["t2"], [])


def test_damage_before_an_entry_may_hide_more_than_its_beginning(segment: Segment) -> None:
    """The end of an earlier entry was there: without it that one looks undecided."""
    segment.put(1)
    start, _ = segment.end(1)
    behind, _ = segment.put(2, 1)
    segment.put(3)
    segment.sync()
    found = segment.read(start + 40, behind + 40)
    assert (ids(found), [each.id for each in found.damaged_entries]) == (["t1", "t3"], ["t2"])
    assert [each.position for each in found.lost] == [start]


def test_damage_between_two_ends_of_entries_hides_what_was_there(segment: Segment) -> None:
    """The first message of one entry and the last frame of another one do not make one entry."""
    first, end = segment.put(1)
    segment.end(3)
    last, _ = segment.put(2)
    segment.sync()
    found = segment.read(first + 40, end - 3, end + 40, last + 40)
    assert (ids(found), [each.id for each in found.damaged_entries]) == ([], ["t2"])
    assert [each.position for each in found.lost] == [first]


def test_a_gap_in_an_entry_may_be_the_place_of_others(segment: Segment) -> None:
    """Frames behind a gap belong together only if they follow one another."""
    start, _ = segment.put(1, 3)
    segment.sync()
    found = segment.read(start + 40, start + 32 + 24 + 2 + 32 + 5 + 6 + 40)
    assert [each.id for each in found.damaged_entries] == ["t1"]
    assert [each.position for each in found.lost] == [start]


def test_a_segment_in_the_place_of_another_one_is_refused(tmp_path: Path) -> None:
    """It would be removed before those that it speaks of."""
    segment = Segment(tmp_path, 2)
    segment.write()
    segment.path = segment.path.rename(tmp_path / "0000000003.log")
    with pytest.raises(CorruptionError, match=r"is named 0000000002\.log by its header"):
        read_segment(OsStorage(), segment.path, QUEUE_ID)


def test_a_torn_tail_is_measured_and_space_is_none(segment: Segment) -> None:
    """What was written behind the end, up to its last byte; nothing once the segment is gone."""
    segment.put(1)
    segment.sync()
    assert torn_bytes(OsStorage(), segment.read()) == 0
    start, end = segment.put(2)
    found = segment.read(start + 60)
    size = end - start - 3  # the commit record ends with zeros, which look like space
    assert (found.tail, torn_bytes(OsStorage(), found)) == (start, size)
    segment.sync()
    assert torn_bytes(OsStorage(), segment.read(start + 40, end - 3)) == 0
    segment.path.unlink()
    assert torn_bytes(OsStorage(), found) == 0


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
    first, second = encode_frame(SALT, payload, index=0, durable_mark=0, timestamp_ns=1, kind=kind, flags=flags)
    return first, second


def other_count() -> list[bytes]:
    """Return an entry whose commit record names more messages."""
    buffers, _ = encode_entry(SALT, 0, [b"a"], {}, record(1, 2))
    return buffers


def other_index() -> list[bytes]:
    """Return an entry whose messages do not begin at 0, with another end."""
    name = b"t1"
    content = encode_messages(SALT, 4, 0, 7, {}, [b"a"], False, False)
    last = frame(KIND_SEAL, b"", 3)
    size = 32 + 24 + len(name) + sum(map(len, [*content, *last]))
    return [*frame(KIND_BEGIN, ENTRY_BEGIN.pack(nonce(1), size) + name, FLAG_FIRST), *content, *last]


def other_flags() -> list[bytes]:
    """Return an entry whose commit record begins something."""
    content = encode_messages(SALT, 0, 0, 7, {}, [b"a"], False, False)
    payload = record(1, 1).encode()
    parts = encode_frame(SALT, payload, index=1, durable_mark=0, timestamp_ns=7, kind=KIND_COMMIT_RECORD, flags=3)
    size = begin_bytes("t1") + sum(map(len, [*content, *parts]))
    return [*frame(KIND_BEGIN, ENTRY_BEGIN.pack(nonce(1), size) + b"t1", FLAG_FIRST), *content, *parts]


@pytest.mark.parametrize(
    "make",
    [
        lambda: frame(KIND_SEAL, b"", 3),
        lambda: frame(KIND_ENDED, b"short", 3),
        lambda: frame(KIND_BEGIN, b"short", FLAG_FIRST),
        lambda: frame(KIND_BEGIN, ENTRY_BEGIN.pack(nonce(1), 2**40) + b"t", FLAG_FIRST),
        other_count,
        other_index,
        other_flags,
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

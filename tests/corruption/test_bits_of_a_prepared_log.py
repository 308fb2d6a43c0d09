"""Bits of a segment of the prepared log, flipped one at a time: what waits is shown, or said to be damaged.

``HOLDFAST_TEST_CRASH_FULL=1`` flips each of them, and not one in some.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import FRAMES_START, SYNCED_END, SYNCED_END_POSITION
from holdfast.persistence.prepared_log.segment_reader import SegmentContent, read_segment
from support.builders.segments import QUEUE_ID, Segment
from support.models.prepared_log_model import ModelSegment, read_log

FULL = bool(os.environ.get("HOLDFAST_TEST_CRASH_FULL"))
STRIDE = 1 if FULL else 41
"""A prime, so that it meets all eight bits."""

UNDECIDED = {"t2", "t4", "t5"}


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    """Five entries, one of them without messages, and two that have ended; all of it was synced."""
    segment = Segment(tmp_path)
    for number, count in ((1, 2), (2, 3), (3, 1)):
        segment.put(number, count)
    segment.end(1)
    segment.sync()
    segment.put(4, 0)
    segment.sync()
    segment.end(3)
    segment.put(5, 1)
    segment.sync()
    return segment


def bits(segment: Segment) -> list[tuple[int, int]]:
    """Return byte and bit of each flip: in the first header block, the synced end, and all frames."""
    end = SYNCED_END_POSITION + SYNCED_END.size
    places = [*range(512), *range(SYNCED_END_POSITION, end), *range(FRAMES_START, len(segment.content))]
    return [(at, bit) for at in places for bit in range(8)][::STRIDE]


def read(path: Path) -> SegmentContent:
    """Read a segment as the package does."""
    return read_segment(OsStorage(), path, QUEUE_ID)


def as_read(content: SegmentContent) -> tuple[object, ...]:
    """Return what the package has read, in words that both readers share."""
    whole = [(each.id, each.nonce) for each in content.entries]
    damaged = [(each.id, each.nonce) for each in content.damaged_entries]
    return whole, damaged, content.ended, [each.position for each in content.lost], content.witness


def as_modelled(found: ModelSegment) -> tuple[object, ...]:
    """Return the same of the second reader."""
    whole = [(each.id, each.nonce) for each in found.entries if each.puts is not None]
    damaged = [(each.id, each.nonce) for each in found.entries if each.puts is None]
    return whole, damaged, found.ended, found.lost, found.witness


def test_two_readers_agree_on_each_bit_and_none_loses_what_waits(segment: Segment) -> None:
    """What is undecided is shown whole or damaged, or the segment says that something is lost; nothing else appears."""
    whole = as_modelled(read_log({segment.path.name: bytes(segment.content)}).segments[0])
    for at, bit in bits(segment):
        content = bytearray(segment.content)
        content[at] ^= 1 << bit
        segment.path.write_bytes(content)
        seen = read(segment.path)
        model = read_log({segment.path.name: bytes(content)}).segments[0]
        assert as_read(seen) == as_modelled(model), f"bit {bit} of byte {at}"
        names = {each.id for each in seen.all_entries() if each.nonce not in seen.ended}
        if seen.lost:
            continue
        assert names == UNDECIDED, f"bit {bit} of byte {at}: {names} is undecided"
        if at >= FRAMES_START:
            assert seen.damaged_entries or seen.ended != whole[2], f"bit {bit} of byte {at} does not matter"
        else:
            assert as_read(seen)[:4] == whole[:4], f"bit {bit} of byte {at}"


def test_two_readers_agree_on_each_sector_that_is_lost(segment: Segment) -> None:
    """Zeros in the place of 64 bytes, which take a frame and a part of the next one, or both headers."""
    for at in range(0, len(segment.content), 64 if FULL else 192):
        content = bytearray(segment.content)
        content[at : at + 64] = bytes(len(content[at : at + 64]))
        segment.path.write_bytes(content)
        seen = read(segment.path)
        assert as_read(seen) == as_modelled(read_log({segment.path.name: bytes(content)}).segments[0]), at
        names = {each.id for each in seen.all_entries() if each.nonce not in seen.ended}
        assert seen.lost or names == UNDECIDED, f"at {at}"


def test_two_readers_agree_on_each_torn_tail(segment: Segment) -> None:
    """What was not synced ends anywhere."""
    synced = len(segment.content)
    segment.put(6, 2)
    segment.end(2)
    for size in range(synced, len(segment.content), 1 if FULL else 7):
        content = bytes(segment.content[:size]) + bytes(600)
        segment.path.write_bytes(content)
        seen = read(segment.path)
        assert as_read(seen) == as_modelled(read_log({segment.path.name: content}).segments[0]), size
        assert not seen.lost, size
        assert not seen.damaged_entries, size


def test_a_segment_without_a_header_has_lost_all(segment: Segment) -> None:
    """The package refuses it, and the second reader says so."""
    content = bytearray(segment.content)
    content[60] ^= 1
    content[4096 + 60] ^= 1
    segment.path.write_bytes(content)
    with pytest.raises(CorruptionError):
        read(segment.path)
    assert read_log({segment.path.name: bytes(content)}).is_damaged

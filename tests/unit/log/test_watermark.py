"""``write.mark`` says where the log ends, or nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import UnsupportedVersionError
from holdfast.persistence.filesystem.fence import Fence
from holdfast.persistence.filesystem.locks import LockOwner
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import FORMAT_VERSION, HEADER_CRC, WRITE_MARK, WRITE_MARK_BYTES
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.log.watermark import Watermark, WatermarkFile, read_write_mark
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedFile, SimulatedStorage
from support.workloads.storage_runs import durable_file

QUEUE_ID = b"q" * 16
FENCE = Fence(LockOwner)
MARK = Watermark(QUEUE_ID, b"f" * 16, 3, 500, 9000, 40, 8000, 30, 7000, 10**18, synced_only=True)


def holding(content: bytes) -> SimulatedFile:
    """Return an open file with this content."""
    return durable_file(content)[1]


@pytest.mark.parametrize("synced_only", [True, False])
def test_a_mark_comes_back(synced_only: bool) -> None:
    """Every field survives encoding."""
    mark = replace(MARK, synced_only=synced_only)
    assert len(mark.encode()) == WRITE_MARK_BYTES
    assert read_write_mark(holding(mark.encode()), QUEUE_ID) == mark


def test_what_is_visible_follows_the_flush_policy() -> None:
    """Synced records with every_commit, written ones with the others."""
    assert MARK.visible == (8000, 30)
    assert replace(MARK, synced_only=False).visible == (9000, 40)


def test_a_mark_of_another_queue_says_nothing() -> None:
    """A directory may have been copied together from two."""
    assert read_write_mark(holding(MARK.encode()), b"x" * 16) is None


@pytest.mark.parametrize("size", [0, 1, 87, 88, 91])
def test_a_short_mark_says_nothing(size: int) -> None:
    """One that was never written, or cut."""
    assert read_write_mark(holding(MARK.encode()[:size]), QUEUE_ID) is None


@pytest.mark.parametrize(
    "mark",
    [
        replace(MARK, sequence=2**63),
        replace(MARK, first_offset=2**63 - 40),
        replace(MARK, first_offset=2**64 - 1, synced_count=0, written_count=0),
        replace(MARK, timestamp_ns=2**63),
    ],
)
def test_a_mark_of_numbers_that_no_queue_comes_to_says_nothing(mark: Watermark) -> None:
    """Its checksum is right; recovery would count with them."""
    assert read_write_mark(holding(mark.encode()), QUEUE_ID) is None
    assert read_write_mark(holding(replace(MARK, first_offset=2**63 - 41).encode()), QUEUE_ID) is not None


def test_a_mark_of_another_version_is_refused_and_not_taken_for_damage() -> None:
    """Where it is sound."""
    raw = bytearray(MARK.encode())
    raw[8] = FORMAT_VERSION - 1
    assert read_write_mark(holding(bytes(raw)), QUEUE_ID) is None
    HEADER_CRC.pack_into(raw, WRITE_MARK.size, crc32c(0, bytes(raw[: WRITE_MARK.size])))
    with pytest.raises(UnsupportedVersionError, match=r"here/write\.mark has format version 1") as caught:
        read_write_mark(holding(bytes(raw)), QUEUE_ID, Path("here/write.mark"))
    assert caught.value.version == FORMAT_VERSION - 1


def test_every_flipped_bit_of_a_mark_makes_it_say_nothing() -> None:
    """It is never believed wrongly."""
    raw = MARK.encode()
    for bit in range(8 * len(raw)):
        broken = bytearray(raw)
        broken[bit // 8] ^= 1 << bit % 8
        assert read_write_mark(holding(bytes(broken)), QUEUE_ID) is None


def test_a_mark_is_published_only_where_it_has_changed() -> None:
    """A writer that stands still costs no system call."""
    storage = SimulatedStorage()
    file = storage.open(Path("/write.mark"), create=True)
    header = DataFileHeader(QUEUE_ID, 3, 100, 0)
    marks = WatermarkFile(storage, Path("/write.mark"), file, FENCE, synced_only=True)
    marks.publish(header, (3, 9000, 140), (3, 8000, 130), 7000, 10)
    count = storage.mutation_count
    marks.publish(header, (3, 9000, 140), (3, 8000, 130), 7000, 10)
    assert storage.mutation_count == count
    found = read_write_mark(file, QUEUE_ID)
    assert found is not None
    assert (found.written_count, found.synced_count, found.redo) == (40, 30, 7000)
    assert (found.file_id, found.timestamp_ns) == (header.file_id, 10)


def test_a_mark_is_published_where_only_the_first_open_decision_has_changed() -> None:
    """A decision that has ended spares the next opening reading from it."""
    storage = SimulatedStorage()
    file = storage.open(Path("/write.mark"), create=True)
    header = DataFileHeader(QUEUE_ID, 3, 100, 0)
    marks = WatermarkFile(storage, Path("/write.mark"), file, FENCE, synced_only=True)
    marks.publish(header, (3, 9000, 140), (3, 9000, 140), 7000, 10)
    marks.publish(header, (3, 9000, 140), (3, 9000, 140), 9000, 10)
    found = read_write_mark(file, QUEUE_ID)
    assert found is not None
    assert found.redo == 9000


def test_a_mark_that_cannot_be_written_is_written_with_the_next_one() -> None:
    """Durability does not depend on it: the thread that publishes continues."""
    storage = SimulatedStorage()
    file = storage.open(Path("/write.mark"), create=True)
    header = DataFileHeader(QUEUE_ID, 1, 0, 0)
    marks = WatermarkFile(storage, Path("/write.mark"), file, FENCE, synced_only=True)
    storage.faults = FaultPlan(1, verbs=frozenset({"write_at"}))
    with pytest.raises(OSError, match=r"write\.mark"):
        marks.publish(header, (1, 5000, 1), (1, 5000, 1), 5000, 1)
    assert read_write_mark(file, QUEUE_ID) is None
    marks.publish(header, (1, 5000, 1), (1, 5000, 1), 5000, 1)
    assert read_write_mark(file, QUEUE_ID) is not None


def test_a_mark_that_rests_is_opened_again_by_the_next_one_that_is_published() -> None:
    """A queue that is idle for a while needs no handle for it; one that publishes keeps it."""
    storage = SimulatedStorage()
    file = storage.open(Path("/write.mark"), create=True)
    header = DataFileHeader(QUEUE_ID, 3, 100, 0)
    marks = WatermarkFile(storage, Path("/write.mark"), file, FENCE, synced_only=True)
    for end in range(9000, 9005):
        marks.publish(header, (3, end, 140), (3, end, 140), end, 10)
        marks.rest()
        assert marks._file is not None
        marks.rest()
        assert marks._file is None
        found = read_write_mark(storage.open(Path("/write.mark")), QUEUE_ID)
        assert found is not None
        assert found.written == end


def test_a_mark_that_is_closed_publishes_no_more() -> None:
    """The next owner may have published meanwhile."""
    storage = SimulatedStorage()
    file = storage.open(Path("/write.mark"), create=True)
    header = DataFileHeader(QUEUE_ID, 3, 100, 0)
    marks = WatermarkFile(storage, Path("/write.mark"), file, FENCE, synced_only=True)
    marks.publish(header, (3, 9000, 140), (3, 9000, 140), 9000, 10)
    marks.close()
    count = storage.mutation_count
    marks.publish(header, (3, 9500, 150), (3, 9500, 150), 9500, 10)
    assert storage.mutation_count == count

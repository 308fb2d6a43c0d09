"""Batch files where chunks and windows meet: written alike however they are cut, and damage told alike fast or slow."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import (
    FLAG_FIRST,
    FLAG_HEADERS,
    FLAG_LAST,
    FRAME_BODY,
    FRAME_HEADER_BYTES,
    FRAME_PREFIX,
    FRAMES_START,
    KIND_COMMIT_RECORD,
    KIND_MARK,
    KIND_MESSAGE,
    KIND_SEAL,
    RECORD_SIZE_MIN,
    STX,
)
from holdfast.persistence.format.framing import encode_frame
from holdfast.persistence.format.report import Damage
from holdfast.persistence.segment import batch_file, batch_file_buffer, batch_file_reader, frame_scanner
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.batch_file_buffer import CHUNK_BYTES
from holdfast.persistence.segment.batch_file_reader import messages, read_summary, verify_batch
from holdfast.persistence.segment.frame_scanner import FrameScanner
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.storage_runs import durable_file

QUEUE_ID = b"q" * 16
PATH = Path("/t.batch")
AT = 10**18

payloads = st.one_of(st.just(b""), st.binary(max_size=40), st.integers(60, 300).map(bytes))
headers = st.sampled_from([b"", b"", b"\x01\x00\x03\x00\x01kv", b"\x01\x00\x2a\x00\x01k" + b"v" * 40])
contents = st.lists(st.tuples(payloads, headers), max_size=12)


def decision(count: int) -> CommitRecord:
    """Return a decision about so many messages."""
    return CommitRecord("t", b"n" * 16, count, AT)


@contextmanager
def small(*, chunk: int = 2**20, copied: int = 2**17, buffers: int = 1000, stride: int = 2**16) -> Iterator[None]:
    """Make everything small that cuts what is written."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (batch_file, batch_file_buffer):
            patch.setattr(module, "CHUNK_BYTES", chunk)
        for module in (batch_file, batch_file_reader):
            patch.setattr(module, "INDEX_STRIDE_BYTES", stride)
        patch.setattr(batch_file_buffer, "COPY_BYTES_MAX", copied)
        patch.setattr(batch_file, "BUFFERS_MAX", buffers)
        yield


# -- Writing ---------------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    st.lists(contents, max_size=5),
    st.integers(1, 400),
    st.integers(0, 400),
    st.integers(2, 9),
    st.integers(1, 500),
)
def test_frames_and_index_are_the_same_however_messages_are_cut(
    groups: list[list[tuple[bytes, bytes]]], chunk: int, copied: int, buffers: int, stride: int
) -> None:
    """What is added together, encoded together or written together shows nowhere in the file."""
    storage = SimulatedStorage()
    with small(chunk=chunk, copied=copied, buffers=buffers, stride=stride):
        writer = BatchFileWriter(storage, PATH, QUEUE_ID)
        for group in groups:
            stored = {number: each for number, (_, each) in enumerate(group)}
            writer.add_many([payload for payload, _ in group], stored, AT)
        everything = [each for group in groups for each in group]
        told = writer.finish(decision(len(everything)))
        expected = b"".join(
            part
            for index, (payload, stored) in enumerate(everything)
            for part in encode_frame(
                writer.header.salt,
                payload,
                index=index,
                durable_mark=0,
                timestamp_ns=AT,
                flags=(0 if index else FLAG_FIRST) | (FLAG_HEADERS if stored else 0),
                headers=stored,
            )
        )
        size = writer.file.size()
        assert writer.file.read_at(told.commit_record_position - FRAMES_START, FRAMES_START) == expected
        assert list(messages(storage, PATH, QUEUE_ID)) == everything
        assert read_summary(storage, PATH, QUEUE_ID) == told
        writer.file.truncate(size - 1)  # without its seal, the index is made anew from the messages
        assert read_summary(storage, PATH, QUEUE_ID).seal == told.seal


@pytest.mark.parametrize(("size", "count"), [(10, 30_000), (2000, 10_000), (100_000, 300)])
def test_memory_stays_near_a_chunk_however_many_messages_are_added(tmp_path: Path, size: int, count: int) -> None:
    """Frames are written as they come, and large runs of them are not copied."""
    writer = BatchFileWriter(OsStorage(), tmp_path / "t.batch", QUEUE_ID)
    together = [bytes(size)] * count
    tracemalloc.start()
    try:
        writer.add_many(together, {}, AT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        writer.close()
    assert peak < 3 * CHUNK_BYTES


# -- Verifying -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What the header of one frame says, its checksum being right."""

    kind: int = KIND_MESSAGE
    flags: int = 0
    headers_size: int = 0
    count: int = 1
    index_shift: int = 0
    mark_shift: int | None = None
    payload: bytes = b"payload"
    size: int | None = None

    def encode(self, salt: int, index: int, position: int) -> bytes:
        """Return the frame; without ``mark_shift`` the mark is 0, and without ``size`` the size is right."""
        mark = 0 if self.mark_shift is None else position + self.mark_shift
        index += self.index_shift
        flags = self.flags ^ (0 if index else FLAG_FIRST)
        body = FRAME_BODY.pack(self.kind, flags, self.headers_size, self.count, index, mark, AT) + self.payload
        size = len(body) + 4 if self.size is None else self.size
        body = body[: max(0, size - 4)]
        return FRAME_PREFIX.pack(STX, size, crc32c(salt ^ size, body)) + body


GOOD = Shape()
ODD = [
    Shape(flags=FLAG_FIRST),
    Shape(flags=FLAG_LAST),
    Shape(flags=FLAG_HEADERS, headers_size=7),
    Shape(flags=FLAG_HEADERS, headers_size=8),
    Shape(flags=0x4000),
    Shape(count=0),
    Shape(count=2),
    Shape(index_shift=1),
    Shape(index_shift=2),
    Shape(mark_shift=0),
    Shape(mark_shift=1),
    Shape(mark_shift=-1),
    Shape(kind=KIND_MARK),
    Shape(kind=KIND_SEAL),
    Shape(kind=KIND_COMMIT_RECORD),
    Shape(kind=KIND_COMMIT_RECORD, flags=FLAG_LAST, payload=decision(3).encode()),
    Shape(kind=0x13),
    Shape(payload=b""),
    Shape(payload=bytes(700)),
    Shape(size=RECORD_SIZE_MIN - 1),
    Shape(size=RECORD_SIZE_MIN - 4),
    Shape(size=RECORD_SIZE_MIN),
    Shape(size=0),
]


def built(shapes: list[Shape]) -> bytes:
    """Return a batch file of these frames, with its decision and its seal behind them."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    writer.add_many([b""] * len(shapes), {}, AT)
    told = writer.finish(decision(len(shapes)))
    start, end = writer.file.read_at(FRAMES_START, 0), writer.file.read_at(told.size_bytes, told.commit_record_position)
    for index, shape in enumerate(shapes):
        start += shape.encode(writer.header.salt, index, len(start))
    return start + end


def reports(content: bytes, window: int) -> tuple[list[Damage], list[Damage]]:
    """Return what ``verify_batch`` says of a file, and what it says where it makes one frame after the other."""
    storage, _ = durable_file(content, PATH)

    def verified(pass_messages: Callable[[FrameScanner, int], int]) -> list[Damage]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frame_scanner, "WINDOW_BYTES", window)
            patch.setattr(FrameScanner, "pass_messages", pass_messages)
            return verify_batch(storage, PATH, QUEUE_ID)

    return verified(FrameScanner.pass_messages), verified(lambda _, index: index)


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_a_frame_of_any_shape_is_told_the_same_fast_or_slow(odd: Shape) -> None:
    """As the first, in the middle or as the last message, wherever it stands in the window."""
    for place in (0, 1, 3, 5):
        content = built([odd if number == place else GOOD for number in range(6)])
        for window in (FRAME_HEADER_BYTES, 100, 2**20):
            fast, slow = reports(content, window)
            assert fast == slow


def test_the_shapes_are_good_and_bad() -> None:
    """Else they would show nothing."""
    verdicts = {bool(reports(built([GOOD, odd, GOOD]), 2**20)[0]) for odd in ODD}
    assert verdicts == {True, False}
    assert not reports(built([GOOD] * 6), 2**20)[0]


@settings(max_examples=150)
@given(
    st.lists(st.builds(replace, st.sampled_from([GOOD, GOOD, GOOD, *ODD]), payload=payloads), max_size=10),
    st.integers(FRAME_HEADER_BYTES, 400),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=2),
    st.floats(0, 1),
)
@example([GOOD] * 9, FRAME_HEADER_BYTES + 7, [], 0.0)  # every frame ends with its window
@example([replace(GOOD, payload=b"")] * 9, FRAME_HEADER_BYTES, [], 0.0)
@example([GOOD, replace(GOOD, payload=bytes(900)), GOOD], 100, [], 0.0)  # larger than a window
def test_damage_is_told_the_same_fast_or_slow(
    shapes: list[Shape], window: int, flips: list[tuple[float, int]], cut: float
) -> None:
    """Whatever frames there are, which bytes changed and where the file ends."""
    content = bytearray(built(shapes))
    for place, flip in flips:
        content[FRAMES_START + int(place * (len(content) - FRAMES_START - 1))] ^= flip
    kept = len(content) - int(cut * (len(content) - FRAMES_START)) if cut > 0.5 else len(content)
    fast, slow = reports(bytes(content[:kept]), window)
    assert fast == slow


def test_every_damaged_byte_is_told_the_same_fast_or_slow() -> None:
    """In headers and payloads, in the first window and where two meet."""
    content = built([GOOD, replace(GOOD, payload=b""), *[GOOD] * 3])
    for at in range(FRAMES_START, len(content)):
        broken = bytearray(content)
        broken[at] ^= 0x11
        fast, slow = reports(bytes(broken), 90)
        assert fast
        assert fast == slow


def test_good_messages_are_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """One frame of a window is, the others are only checked: a large batch is verified while its owner waits."""
    content = built([GOOD] * 10_000)
    decoded = 0
    decode = frame_scanner.decode_frame

    def counted(data: bytes, at: int, position: int, salt: int, end: int) -> object:
        nonlocal decoded
        decoded += 1
        return decode(data, at, position, salt, end)

    monkeypatch.setattr(frame_scanner, "decode_frame", counted)
    monkeypatch.setattr(frame_scanner, "WINDOW_BYTES", 2**16)
    assert verify_batch(durable_file(content, PATH)[0], PATH, QUEUE_ID) == []
    assert decoded <= 3 * (1 + len(content) // 2**16)

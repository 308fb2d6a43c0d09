"""Reading the log: places found without reading, files that come and go beneath a reader, a disk that refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.persistence.format.constants import FRAMES_START, HEADER_COPY_POSITIONS
from holdfast.persistence.format.file_header import DataFileHeader, block_buffers
from holdfast.persistence.format.report import Damage
from holdfast.persistence.log.log_reader import LogReader
from holdfast.persistence.log.log_tail import LogEnd
from support.builders.log_parts import LogParts, frame
from support.storages.refusals import refusing


class Reading:
    """A reader from the start, and what it reported."""

    def __init__(self, parts: LogParts, *, recheck: bool = False, chunk_bytes: int = 2**16) -> None:
        self.lost: list[Damage] = []
        self.reader = LogReader(
            parts.files(),
            self.lost.append,
            recheck=recheck,
            chunk_bytes=chunk_bytes,
        )
        self.reader.seek(0)

    def read(self, end: LogEnd, count: int = 100) -> list[int]:
        """Return the offsets that come next: as many as one call gives."""
        return [record[0] for record in self.reader.read(count, end)]

    def read_all(self, end: LogEnd) -> list[int]:
        """Return all the offsets that are left."""
        offsets: list[int] = []
        while found := self.read(end):
            offsets += found
        return offsets


def messages(parts: LogParts, header: DataFileHeader | None = None, count: int = 3) -> list[bytes]:
    """Return the frames of messages."""
    header = header or parts.header()
    return [frame(header, b"message %d" % index, index) for index in range(count)]


def end_of(header: DataFileHeader, frames: list[bytes]) -> LogEnd:
    """Return the end of a log that ends with these."""
    return header.sequence, FRAMES_START + sum(map(len, frames)), header.first_offset + len(frames)


def second_file(parts: LogParts, frames: list[bytes]) -> tuple[Path, LogEnd]:
    """Make the file behind one of ``frames``; return it, and the end of the log."""
    header = parts.header(2, len(frames), FRAMES_START + sum(map(len, frames)))
    following = messages(parts, header, 2)
    return parts.data_file(following, header=header)[0], end_of(header, following)


def test_going_far_ahead_in_a_file_reads_nothing_on_the_way(parts: LogParts) -> None:
    """The seal knows a place near by; from there the caller passes over a few."""
    writer = parts.writer(file_bytes=2**19)
    while writer.end[0] <= 1:
        writer.append(bytes(200))
    put_count = writer.end[2]
    reading = Reading(parts)
    assert reading.read(writer.end, 1) == [0]
    with_reads: list[Path] = []
    parts.storage.before_verb = lambda verb, path: with_reads.append(path) if verb == "read_at" else None
    reading.reader.go_on_to(put_count - 2)
    assert put_count - 400 < reading.reader.next_offset < put_count - 1
    assert len(with_reads) <= 3, "the seal, and nothing of the messages"
    parts.storage.before_verb = None
    assert reading.read_all(writer.end)[-1] == put_count - 1
    assert reading.lost == []


def test_a_disk_that_refuses_a_file_is_not_taken_for_a_loss(parts: LogParts) -> None:
    """The error goes to the caller, nothing is reported, and the next read continues."""
    frames = messages(parts)
    parts.data_file(frames)
    path, end = second_file(parts, frames)
    reading = Reading(parts)
    assert reading.read(end, 3) == [0, 1, 2]
    with refusing(parts.storage, "open", path.name), pytest.raises(OSError, match="Input/output error"):
        reading.read(end)
    assert reading.lost == []
    assert reading.read(end) == [3, 4]


def test_a_following_file_that_knows_nothing_of_the_one_before_does_not_cut_it(parts: LogParts) -> None:
    """Its header speaks of another file: the one before is read to its end."""
    frames = messages(parts)
    parts.data_file(frames)
    header = replace(parts.header(2, 3, FRAMES_START), previous_sequence=0)
    following = messages(parts, header, 1)
    parts.data_file(following, header=header)
    reading = Reading(parts)
    end = end_of(header, following)
    assert reading.read_all(end) == [0, 1, 2, 3]
    assert reading.lost == []


# -- Files that go beneath a reader whose progress pins nothing --------------------------------------------------------

GONE = (range(1, 3), "a data file is missing")
"""What is told of the first file, of which one message was read."""


@pytest.mark.parametrize("is_whole", [True, False], ids=["reused", "being reused"])
@pytest.mark.parametrize("has_next", [True, False], ids=["next", "last"])
def test_a_file_that_is_reused_beneath_a_reader_is_left(parts: LogParts, is_whole: bool, has_next: bool) -> None:
    """Nothing of its next life is shown or taken for damage; that it is gone is told to who knows what was consumed."""
    frames = messages(parts)
    path, header = parts.data_file(frames)
    end = second_file(parts, frames)[1] if has_next else end_of(header, frames)
    reading = Reading(parts, recheck=True, chunk_bytes=len(frames[0]))
    assert reading.read(end, 1) == [0]
    file = parts.storage.open(path)
    parts.storage.remove(path)
    if is_whole:
        file.write_at((block_buffers(replace(header, sequence=7, file_id=b"x" * 16).encode()),), 0)
    else:
        for at in HEADER_COPY_POSITIONS:
            file.write_at((b"\xff" * 8,), at + 40)
    assert reading.read_all(end) == ([3, 4] if has_next else [])
    assert [(damage.offsets, damage.reason) for damage in reading.lost] == ([GONE] if has_next else [])


def test_a_file_that_is_reused_between_two_looks_at_it_is_left(parts: LogParts) -> None:
    """What was read verifies no more, and the second look says why."""
    frames = messages(parts)
    path, header = parts.data_file(frames)
    _, end = second_file(parts, frames)
    reading = Reading(parts, recheck=True, chunk_bytes=len(frames[0]))
    assert reading.read(end, 1) == [0]
    file = parts.storage.open(path)
    file.write_at((b"?",), FRAMES_START + len(frames[0]))
    looks: list[str] = []

    def reuse(verb: str, of: Path) -> None:
        looks.append(verb)
        if looks.count("read_at") == 3:  # the frame, the header, and the header again where the frame was bad
            parts.storage.before_verb = None
            file.write_at((block_buffers(replace(header, file_id=b"x" * 16).encode()),), 0)

    parts.storage.before_verb = reuse
    assert reading.read_all(end) == [3, 4]
    assert parts.storage.before_verb is None
    assert [(damage.offsets, damage.reason) for damage in reading.lost] == [GONE]


@pytest.mark.parametrize("recheck", [True, False], ids=["looks", "owns"])
def test_a_last_file_that_goes_is_a_loss_only_for_who_pins_it(parts: LogParts, recheck: bool) -> None:
    """It was listed, and is not there when it is opened."""
    frames = messages(parts)
    parts.data_file(frames)
    path, end = second_file(parts, frames)
    reading = Reading(parts, recheck=recheck)
    assert reading.read(end) == [0, 1, 2]
    parts.storage.remove(path)
    for _ in range(2):
        assert reading.read(end) == []
    assert [damage.offsets for damage in reading.lost] == ([] if recheck else [range(3, 5)])

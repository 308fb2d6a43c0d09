"""Deduplication ids of a last data file that is damaged: those that can be read are remembered."""

from __future__ import annotations

import pytest

from holdfast.persistence.format.constants import FLAG_HEADERS, FLAGS_SINGLE, FRAMES_START, HEADER_COPY_POSITIONS
from holdfast.persistence.format.framing import encode_frame
from holdfast.persistence.format.message_options import MessageOptions
from holdfast.persistence.index.dedup_ring import DedupRing, Remembered, digest_of
from holdfast.persistence.log.log_tail import LogTail
from holdfast.persistence.recovery.dedup_scan import recall
from support.builders.clocks import START_NS
from support.builders.log_parts import LogParts, with_options

KEPT = Remembered(digest_of("in the ring"), 0, START_NS)
FIRST_OFFSET = 5


def ring_of(parts: LogParts) -> DedupRing:
    """Return a ring that holds one id of a file before the last, not read."""
    ring = DedupRing(parts.storage, parts.directory.root / "dedup.ids", parts.queue_id, 40)
    ring.reserve(list)
    ring.note(KEPT)
    ring.keep(lambda: [KEPT])
    return DedupRing(parts.storage, parts.directory.root / "dedup.ids", parts.queue_id, 40)


def last_file(parts: LogParts, cut: int = 0, damage_at: int | None = None) -> int:
    """Make a last data file of three messages with ids, cut somewhere or damaged in the second; return its end."""
    header = parts.header(2, FIRST_OFFSET)
    frames = [
        b"".join(
            encode_frame(
                header.salt,
                b"payload",
                index=index,
                durable_mark=FRAMES_START,
                timestamp_ns=START_NS,
                headers=with_options(MessageOptions(dedup_id=f"id {index}"), b""),
                flags=FLAGS_SINGLE | FLAG_HEADERS,
            )
        )
        for index in range(3)
    ]
    path, _ = parts.data_file(frames, header=header)
    file = parts.storage.open(path)
    if damage_at is not None:
        at = FRAMES_START + len(frames[0]) + damage_at
        file.write_at((bytes((file.read_at(1, at)[0] ^ 0x10,)),), at)
    if cut:
        file.truncate(file.size() - cut)
    file.close()
    return FRAMES_START + sum(map(len, frames))


def recalled(parts: LogParts, ring: DedupRing, end: int, sequence: int = 2) -> list[Remembered]:
    """Return what is remembered where recovery says that the last file ends there, or that a later one is missing."""
    tail = LogTail(parts.header(sequence, FIRST_OFFSET), end, 3, START_NS, None)
    return recall(parts.files(), tail, ring)


def ids(*numbers: int) -> list[Remembered]:
    """Return what is remembered of the last file, behind what the ring says."""
    return [KEPT, *(Remembered(digest_of(f"id {index}"), FIRST_OFFSET + index, START_NS) for index in numbers)]


def test_a_last_file_says_its_own_ids(parts: LogParts) -> None:
    """The ring knows them only once it is left for the next."""
    assert recalled(parts, ring_of(parts), last_file(parts)) == ids(0, 1, 2)


@pytest.mark.parametrize("at", [0, 2, 16, 25], ids=["start", "size", "index", "timestamp"])
def test_damage_in_a_message_forgets_its_id_and_no_other(parts: LogParts, at: int) -> None:
    """Wherever it shows: where the frame begins, or in where it says that it ends."""
    assert recalled(parts, ring_of(parts), last_file(parts, damage_at=at)) == ids(0, 2)


@pytest.mark.parametrize("left", [1, 40], ids=["in the header", "in the payload"])
def test_a_file_that_is_cut_says_what_is_left(parts: LogParts, left: int) -> None:
    """Recovery has accepted more than there is, or a later file is missing: then nobody says where this one ends."""
    size = last_file(parts)
    frame_bytes = (size - FRAMES_START) // 3
    ring = ring_of(parts)
    last_file(parts, cut=frame_bytes - left)
    assert recalled(parts, ring, size) == ids(0, 1)
    assert recalled(parts, ring, 0, sequence=3) == ids(0, 1)


def test_a_file_without_a_header_says_nothing_and_the_ring_what_it_knows(parts: LogParts) -> None:
    """Recovery has reported the file."""
    end = last_file(parts)
    file = parts.storage.open(parts.files().path(parts.files().names()[-1]))
    for at in HEADER_COPY_POSITIONS:
        file.write_at((b"\xff" * 8,), at + 40)
    assert recalled(parts, ring_of(parts), end) == [KEPT]

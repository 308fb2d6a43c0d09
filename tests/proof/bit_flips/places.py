"""Which bits are flipped: every one that means something; of what means nothing, eight of each sector.

What means nothing: zeros that pad a header block or stand between its copies, space that was reserved and not used yet,
the notes in lock files, and the token of an owner that is not there any more. A flip there may go unnoticed, and then
everything has to be shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.persistence.format.constants import (
    DATA_HEADER_REST,
    ENTRY,
    FRAMES_START,
    HEADER_BLOCK_BYTES,
    HEADER_COPY_POSITIONS,
    HEADER_CRC,
    HEADER_PREFIX,
    PREPARED_HEADER_REST,
    SYNCED_END,
    SYNCED_END_POSITION,
    WRITE_MARK_BYTES,
)
from holdfast.persistence.format.file_header import DataFileHeader, SegmentHeader, block_copies
from holdfast.persistence.prepared_log.segment_reader import synced_end
from proof.bit_flips.victim import Victim, frames_of

SAMPLE_BYTES = 64
"""In bytes without a meaning: one bit of so many bytes is flipped, eight of each sector of 512 bytes."""

HEADER_USED_BYTES = HEADER_PREFIX.size + DATA_HEADER_REST.size
SEGMENT_HEADER_USED_BYTES = HEADER_PREFIX.size + PREPARED_HEADER_REST.size
NOTHING_MEANT = (".lock", ".reserve", "next.position")
"""Files that nobody reads for what they hold; so are position files before a group's last one."""

HARMLESS = "nothing meant"
WITNESS = "witness of a clean close"
PADDING = "padding of a header"


@dataclass(frozen=True)
class Region:
    """Bytes of one file that are alike.

    Attributes
    ----------
    path : Path
        The file.
    kind : str
        What the figures are grouped by.
    part : str
        What stands there.
    where : range
        Its bytes.
    lost : frozenset of int
        The messages that a flip there costs.
    left_out : frozenset of int
        Offsets that a merged file has not, and that ``verify`` cannot tell from what is lost.
    """

    path: Path
    kind: str
    part: str
    where: range
    lost: frozenset[int] = frozenset()
    left_out: frozenset[int] = frozenset()

    @property
    def is_sampled(self) -> bool:
        """Whether only some of its bits are tried."""
        return self.part in (HARMLESS, PADDING)

    def bits(self) -> Iterator[tuple[int, int]]:
        """Yield byte and bit of each flip."""
        if self.is_sampled:
            for at in self.where[::SAMPLE_BYTES]:
                yield at, at // SAMPLE_BYTES % 8
            return
        for at in self.where:
            for bit in range(8):
                yield at, bit


def regions(victim: Victim) -> list[Region]:
    """Return all regions of all files."""
    found: list[Region] = []
    files = victim.files()
    for path, content in files.items():
        is_superseded = path.suffix == ".position" and any(
            other.parent == path.parent and other.suffix == ".position" and path < other for other in files
        )
        if path.name.endswith(NOTHING_MEANT) or is_superseded:
            found.append(Region(path, "locks, reserves, old progress", HARMLESS, range(len(content))))
        elif path.suffix in (".data", ".batch"):
            found += _data_file(victim, path, content)
        elif path.suffix == ".log":
            found += _segment(path, content)
        elif path.suffix == ".position":
            found += _position_file(path, content)
        elif path.name == "write.mark":
            found.append(Region(path, path.name, "the mark", range(WRITE_MARK_BYTES)))
            found.append(Region(path, path.name, HARMLESS, range(WRITE_MARK_BYTES, len(content))))
        elif path.name == "decided":
            used = -(-len(content.rstrip(b"\0")) // 160) * 160
            found.append(Region(path, "decided", "slots", range(used)))
            found.append(Region(path, "decided", HARMLESS, range(used, len(content))))
        else:
            kind = "notes of dead letters" if path.name.startswith("dead-") else path.name
            found.append(Region(path, kind, "all of it", range(len(content))))
    return found


def _data_file(victim: Victim, path: Path, content: bytes) -> Iterator[Region]:
    header = DataFileHeader.decode(block_copies(content), str(path))
    if header.is_merged:
        yield from _merged_file(victim, path, content, header.first_offset)
        return
    is_batch = path.suffix == ".batch"
    kind = "prepared batch" if is_batch else "data files"
    yield from _header(path, kind)
    yield _between_headers(path, kind)
    for where, offset in frames_of(content, victim.storage, path):
        lost = frozenset[int]() if is_batch or offset is None else frozenset({offset})
        yield Region(path, kind, "frame", where, lost)


def _merged_file(victim: Victim, path: Path, content: bytes, first: int) -> Iterator[Region]:
    """Yield its regions: of a damaged frame only its neighbours tell which messages it may have been."""
    kind = "merged data files"
    yield from _header(path, kind)
    yield _between_headers(path, kind)
    frames = frames_of(content, victim.storage, path)
    following = victim.data_files[victim.data_files.index(path) + 1]
    end = DataFileHeader.decode(block_copies(victim.files()[following]), str(following)).first_offset
    ends = [*(offset for _, offset in frames[1:] if offset is not None), end, end]
    for (where, offset), stop in zip(frames, ends, strict=True):
        lost = frozenset[int]() if offset is None else frozenset({offset})
        yield Region(path, kind, "frame", where, lost, frozenset(range(first, stop)) - lost)
        first = stop if offset is None else offset + 1


def _segment(path: Path, content: bytes) -> Iterator[Region]:
    """Yield its regions: without the synced end, the marks in the frames tell how far it was synced."""
    kind = "segments of the prepared log"
    yield from _header(path, kind, SEGMENT_HEADER_USED_BYTES)
    start, end = SYNCED_END_POSITION, SYNCED_END_POSITION + SYNCED_END.size
    first, second = HEADER_COPY_POSITIONS
    yield Region(path, kind, HARMLESS, range(first + HEADER_BLOCK_BYTES, start))
    yield Region(path, kind, WITNESS, range(start, end))
    yield Region(path, kind, HARMLESS, range(end, second))
    used = synced_end(content[:FRAMES_START], SegmentHeader.decode(block_copies(content), str(path)).salt)
    yield Region(path, kind, "frames", range(FRAMES_START, used))
    yield Region(path, kind, HARMLESS, range(used, len(content)))


def _position_file(path: Path, content: bytes) -> Iterator[Region]:
    yield from _header(path, "position files")
    yield _between_headers(path, "position files")
    end = -(-len(content.rstrip(b"\0")) // ENTRY.size) * ENTRY.size
    yield Region(path, "position files", "entries", range(FRAMES_START, end - ENTRY.size))
    yield Region(path, "position files", WITNESS, range(end - ENTRY.size, end))
    yield Region(path, "position files", HARMLESS, range(end, len(content)))


def _header(path: Path, kind: str, used_bytes: int = HEADER_USED_BYTES) -> Iterator[Region]:
    for at in HEADER_COPY_POSITIONS:
        end = at + HEADER_BLOCK_BYTES
        yield Region(path, kind, "header", range(at, at + used_bytes))
        yield Region(path, kind, PADDING, range(at + used_bytes, end - HEADER_CRC.size))
        yield Region(path, kind, "header", range(end - HEADER_CRC.size, end))


def _between_headers(path: Path, kind: str) -> Region:
    first, second = HEADER_COPY_POSITIONS
    return Region(path, kind, HARMLESS, range(first + HEADER_BLOCK_BYTES, second))

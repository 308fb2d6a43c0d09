"""Segments of a prepared log, in the making."""

from __future__ import annotations

from pathlib import Path

from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.commit_record import CommitRecord, Participant
from holdfast.persistence.format.constants import FRAMES_START, OUTCOME_COMMITTED, SYNCED_END_POSITION
from holdfast.persistence.format.file_header import SegmentHeader, block_buffers
from holdfast.persistence.prepared_log.entry import encode_ended, encode_entry, entry_room
from holdfast.persistence.prepared_log.segment_reader import SegmentContent, encode_synced_end, read_segment

QUEUE_ID = bytes(range(16))
ROOM = bytes(4096)
"""Space that is reserved behind the last frame."""


class Segment:
    """A segment in the making.

    Parameters
    ----------
    directory : Path
        Where ``prepared/`` is, or what stands for it.
    sequence : int
        Its sequence.
    queue_id : bytes
        Id of its queue.
    """

    def __init__(self, directory: Path, sequence: int = 1, queue_id: bytes = QUEUE_ID) -> None:
        self.path = directory / f"{sequence:010d}.log"
        self.header = SegmentHeader(queue_id, sequence, salt=12345 + sequence)
        self.content = bytearray(block_buffers(self.header.encode()))
        self.mark = FRAMES_START

    def put(
        self, number: int, count: int = 2, *, coordinator: Participant | None = None, name: str | None = None
    ) -> tuple[int, int]:
        """Add an entry; return its place."""
        payloads = [b"%d of %d" % (each, number) for each in range(count)]
        headers = {0: b"\3\0\1\0\1"} if count else {}
        made = record(number, count, coordinator=coordinator, name=name)
        buffers, _ = encode_entry(self.header.salt, self.mark, payloads, headers, made)
        assert entry_room(payloads, headers) >= sum(map(len, buffers))
        return self.add(buffers)

    def end(self, number: int, outcome: int = OUTCOME_COMMITTED) -> tuple[int, int]:
        """Add the frame that makes an entry void."""
        return self.add(encode_ended(self.header.salt, self.mark, 5, nonce(number), outcome))

    def add(self, buffers: list[bytes] | tuple[bytes, ...]) -> tuple[int, int]:
        """Add bytes; return their place."""
        start = len(self.content)
        self.content += b"".join(buffers)
        return start, len(self.content)

    def sync(self) -> None:
        """Have all of it synced."""
        self.mark = len(self.content)
        synced = encode_synced_end(self.mark, self.header.salt)
        self.content[SYNCED_END_POSITION : SYNCED_END_POSITION + 12] = synced

    def write(self, *damaged: int) -> None:
        """Write it with a flipped bit at each of these positions."""
        content = bytearray(self.content + ROOM)
        for position in damaged:
            content[position] ^= 1
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_bytes(content)

    def read(self, *damaged: int) -> SegmentContent:
        """Read it with a flipped bit at each of these positions."""
        self.write(*damaged)
        return read_segment(OsStorage(), self.path, self.header.queue_id)


def nonce(number: int) -> bytes:
    """Return a nonce."""
    return number.to_bytes(16, "big")


def record(number: int, count: int, *, coordinator: Participant | None = None, name: str | None = None) -> CommitRecord:
    """Return a commit record."""
    return CommitRecord(name or f"t{number}", nonce(number), count, 7, coordinator=coordinator)

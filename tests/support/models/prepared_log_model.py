"""A second reader of the prepared log, that follows docs/format.md and shares nothing with the package.

It reads bytes, slowly, and says which transactions wait, what ended, and what is damaged.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

MAGIC = b"\x89HFPREP\n"
START = 4608
MESSAGE, DECISION, BEGIN, ENDED = 0x01, 0x12, 0x13, 0x14
FIRST, LAST, HEADERS = 1, 2, 4
BOTH = FIRST | LAST
HEAD_BYTES = 32

_SEGMENT = re.compile(r"(?:0\d{9}|[1-9]\d{9,})\.log")
_HEAD = struct.Struct("<BIIBHHHIIQ")


def _table() -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_TABLE = _table()


def crc(content: bytes, start: int = 0) -> int:
    """Return the CRC-32C of bytes, continued as if ``start`` were that of the bytes before."""
    value = start ^ 0xFFFFFFFF
    for byte in content:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


@dataclass(frozen=True)
class Frame:
    """A frame that counts."""

    at: int
    end: int
    kind: int
    flags: int
    index: int
    mark: int
    payload: bytes


@dataclass(frozen=True)
class ModelEntry:
    """A transaction in a segment; ``puts`` is None if it is damaged."""

    id: str
    nonce: bytes
    segment: str
    puts: tuple[bytes, ...] | None
    waiting_file: str = ""


@dataclass
class ModelSegment:
    """What a segment says.

    Attributes
    ----------
    name : str
        Its name in ``prepared/``.
    entries : list of ModelEntry
        Whole and damaged ones.
    ended : dict of bytes to int
        What became of entries, by nonce.
    lost : list of int
        Positions of bad bytes that may have been entries or "ended" frames.
    witness : int
        Everything below it was on the disk once.
    """

    name: str
    entries: list[ModelEntry] = field(default_factory=list)
    ended: dict[bytes, int] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    witness: int = START


@dataclass
class ModelLog:
    """What a prepared log says."""

    segments: list[ModelSegment]

    @property
    def ended(self) -> dict[bytes, int]:
        """What became of entries, of any segment."""
        return {nonce: outcome for each in self.segments for nonce, outcome in each.ended.items()}

    @property
    def not_ended(self) -> list[ModelEntry]:
        """Entries that no segment ends, oldest first; in doubt, unless the log or ``decided`` has their nonce."""
        ended = self.ended
        return [entry for each in self.segments for entry in each.entries if entry.nonce not in ended]

    @property
    def is_damaged(self) -> bool:
        """Whether anything that was on the disk once does not verify."""
        return any(each.lost or any(entry.puts is None for entry in each.entries) for each in self.segments)


def read_log(files: Mapping[str, bytes]) -> ModelLog:
    """Return what the files of ``prepared/`` say, by their names; others than segments are left out."""
    names = sorted((name for name in files if _SEGMENT.fullmatch(name)), key=lambda name: int(name[:-4]))
    return ModelLog([_segment(name, files[name]) for name in names])


def _segment(name: str, content: bytes) -> ModelSegment:
    found = ModelSegment(name)
    salt = _salt(name, content)
    if salt is None:
        found.lost.append(0)
        return found
    frames = list(_frames(content, salt))
    found.witness = max([_synced_end(content, salt), *(frame.mark for frame in frames)])
    at, number = START, 0
    while at < found.witness or number < len(frames):
        frame = frames[number] if number < len(frames) else None
        if frame is not None and frame.at == at and frame.kind == ENDED and frame.flags == BOTH:
            if len(frame.payload) == 17:
                found.ended[frame.payload[:16]] = frame.payload[16]
                at, number = frame.end, number + 1
                continue
        elif frame is not None and frame.at == at and frame.kind == BEGIN and frame.flags == FIRST:
            end = frame.at + int.from_bytes(frame.payload[16:24], "little")
            parts = [each for each in frames[number:] if each.end <= end]
            entry = _entry(name, parts, end)
            if entry.puts is None and at >= found.witness:
                return found  # a torn tail
            found.entries.append(entry)
            at, number = end, number + len(parts)
            continue
        if at >= found.witness:
            return found  # a torn tail
        at, number = _pass_bad(found, frames, number, at, len(content))
    return found


def _pass_bad(found: ModelSegment, frames: list[Frame], number: int, at: int, end: int) -> tuple[int, int]:
    """Note bad bytes; return where what follows begins, as a position and as the number of a frame."""
    rest = number
    while rest < len(frames) and (frames[rest].at <= at or frames[rest].kind not in (BEGIN, ENDED, DECISION)):
        rest += 1
    if rest == len(frames):
        found.lost.append(at)
        return max(end, found.witness), rest
    frame = frames[rest]
    if frame.kind != DECISION:
        found.lost.append(at)
        return frame.at, rest
    record = json.loads(frame.payload[:-4])
    found.entries.append(ModelEntry(record["id"], bytes.fromhex(record["nonce"]), found.name, None))
    seen = [each for each in frames[number : rest + 1] if each.at > at]
    begins = seen[0].at - HEAD_BYTES - 24 - len(record["id"].encode())
    follow = all(first.end == second.at for first, second in pairwise(seen))
    if begins != at or seen[0].index != 0 or not follow:
        found.lost.append(at)  # more than the frame that begins it is bad: perhaps one that ends another entry
    return frame.end, rest + 1


def _entry(name: str, parts: list[Frame], end: int) -> ModelEntry:
    begin, last = parts[0], parts[-1]
    nonce, transaction_id = begin.payload[:16], begin.payload[24:].decode()
    puts = tuple(each.payload for each in parts[1:-1])
    follow = all(first.end == second.at for first, second in pairwise(parts))
    is_right = follow and last.end == end and (last.kind, last.flags, last.index) == (DECISION, LAST, len(puts))
    is_right = is_right and [(each.kind, each.index) for each in parts[1:-1]] == [
        (MESSAGE, index) for index in range(len(puts))
    ]
    record = json.loads(last.payload[:-4]) if is_right else {}
    if (record.get("id"), record.get("nonce"), record.get("count")) != (transaction_id, nonce.hex(), len(puts)):
        return ModelEntry(transaction_id, nonce, name, None)
    return ModelEntry(transaction_id, nonce, name, puts, record.get("waiting_file", ""))


def _salt(name: str, content: bytes) -> int | None:
    """Return the salt of the first copy of the header block that verifies."""
    for at in (0, 4096):
        block = content[at : at + 512]
        if len(block) == 512 and block[:8] == MAGIC and crc(block[:508]) == int.from_bytes(block[508:], "little"):
            sequence = int.from_bytes(block[60:68], "little")
            return int.from_bytes(block[56:60], "little") if f"{sequence:010d}.log" == name else None
    return None


def _synced_end(content: bytes, salt: int) -> int:
    position, checksum = struct.unpack_from("<QI", content, 1024)
    return max(START, position) if checksum == crc(content[1024:1032], salt) else START


def _frames(content: bytes, salt: int) -> Iterator[Frame]:
    """Yield all frames that verify, in order; the next one is looked for from behind each, or byte by byte."""
    at = START
    while (at := content.find(b"\x02", at)) >= 0:
        frame = _frame(content, at, salt)
        if frame is None:
            at += 1
        else:
            yield frame
            at = frame.end


def _frame(content: bytes, at: int, salt: int) -> Frame | None:
    if at + HEAD_BYTES > len(content):
        return None
    _, size, checksum, kind, flags, header_bytes, count, index, mark, _ = _HEAD.unpack_from(content, at)
    end = at + 5 + size
    if size < 27 or end > len(content) or checksum != crc(content[at + 9 : end], salt ^ size):
        return None
    if kind not in (MESSAGE, DECISION, BEGIN, ENDED) or count != 1 or mark > at or header_bytes > size - 27:
        return None
    return Frame(at, end, kind, flags & BOTH, index, mark, content[at + HEAD_BYTES + header_bytes : end])

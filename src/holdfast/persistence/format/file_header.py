"""The block that opens every data file and position file, written twice. docs/format.md, "Header block". Pure.

Checked in this order, each with its own error: magic (not ours), version and feature bits (a newer Holdfast wrote it),
CRC (damaged), version again (an older Holdfast wrote it: version 1 had the same block). One good copy is enough.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import CorruptionError, StorageError, UnsupportedVersionError
from holdfast.persistence.format import constants as layout
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.format.version import other_version

_CRC_AT = layout.HEADER_BLOCK_BYTES - layout.HEADER_CRC.size

_Block = tuple[int, int, bytes, bytes, int, bytes]
"""Compatible and incompatible features, queue id, file id, salt, and the rest behind them."""

_INCOMPATIBLE_KNOWN = {
    layout.DATA_MAGIC: layout.INCOMPATIBLE_MERGED,
    layout.POSITION_MAGIC: 0,
    layout.PREPARED_MAGIC: 0,
}
"""Bits of the incompatible features that this version understands; an unknown one refuses the file."""


def random_id() -> bytes:
    """Return 16 random bytes, which name a queue, a group or one life of a file."""
    return secrets.token_bytes(16)


def random_salt() -> int:
    """Return 32 random bits: they make the checksums of one life of a file unlike those of any other."""
    return secrets.randbits(32)


@dataclass(frozen=True, slots=True)
class DataFileHeader:
    """The header of a data file.

    Attributes
    ----------
    queue_id, file_id : bytes, length 16
        The queue, and this life of this file: a reused file has another.
    sequence : int
        Number of the file in its queue, from 1.
    first_offset : int
        Offset of the file's first message.
    base_timestamp_ns : int
        A lower bound for the timestamps of the file's messages.
    previous_sequence, previous_end : int
        The file before this one, and the position behind its last accepted byte: bytes from there on are void.
    salt : int
        Starts the checksum of every frame.
    features : int
        Compatible features: ``COMPATIBLE_*`` of ``constants.py``. Unknown ones are kept and ignored.
    merged_count : int
        Messages of a merged file, which has gaps between them; 0 for any other file.
    """

    queue_id: bytes
    sequence: int
    first_offset: int
    base_timestamp_ns: int
    previous_sequence: int = 0
    previous_end: int = 0
    file_id: bytes = field(default_factory=random_id)
    salt: int = field(default_factory=random_salt)
    features: int = 0
    merged_count: int = 0

    @property
    def is_merged(self) -> bool:
        """Whether the file has taken the place of others: offsets that it does not have were finished by all groups."""
        return self.merged_count > 0

    def encode(self) -> bytes:
        """Return the block of ``HEADER_BLOCK_BYTES``."""
        features = self.features, layout.INCOMPATIBLE_MERGED if self.is_merged else 0
        rest = layout.DATA_HEADER_REST.pack(
            self.sequence,
            self.first_offset,
            self.base_timestamp_ns,
            self.previous_sequence,
            self.previous_end,
            0,  # codec id: frames are stored as they are
            0,  # key id: frames are not encrypted
            self.merged_count,
        )
        return _encode_block(layout.DATA_MAGIC, features, self.queue_id, self.file_id, self.salt, rest)

    @classmethod
    def decode(cls, copies: list[bytes], path: str) -> DataFileHeader:
        """Return the header that the first good copy holds; raises the error of the first copy if none is good.

        An error about another version takes precedence over one about damage.
        """
        features, incompatible, queue_id, file_id, salt, rest = _decode_copies(copies, layout.DATA_MAGIC, path)
        sequence, first, base, previous, previous_end, _, _, merged = layout.DATA_HEADER_REST.unpack_from(rest)
        if max(sequence, first, base) > layout.NUMBER_MAX or bool(merged) != bool(incompatible):
            raise CorruptionError(f"the header of {path} has numbers that are out of range", path=path, position=0)
        return cls(queue_id, sequence, first, base, previous, previous_end, file_id, salt, features, merged)


@dataclass(frozen=True, slots=True)
class PositionFileHeader:
    """The header of a position file: queue, group, the generation of the group's progress, and the file's salt."""

    queue_id: bytes
    group_id: bytes
    generation: int
    file_id: bytes = field(default_factory=random_id)
    salt: int = field(default_factory=random_salt)

    def encode(self) -> bytes:
        """Return the block of ``HEADER_BLOCK_BYTES``."""
        rest = layout.POSITION_HEADER_REST.pack(self.group_id, self.generation)
        return _encode_block(layout.POSITION_MAGIC, (0, 0), self.queue_id, self.file_id, self.salt, rest)

    @classmethod
    def decode(cls, copies: list[bytes], path: str) -> PositionFileHeader:
        """Return the header that the first good copy holds; raises the error of the first copy if none is good.

        An error about another version takes precedence over one about damage.
        """
        _, _, queue_id, file_id, salt, rest = _decode_copies(copies, layout.POSITION_MAGIC, path)
        group_id, generation = layout.POSITION_HEADER_REST.unpack_from(rest)
        return cls(queue_id, group_id, generation, file_id, salt)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment of the prepared log: queue, number of the segment, and its salt."""

    queue_id: bytes
    sequence: int
    file_id: bytes = field(default_factory=random_id)
    salt: int = field(default_factory=random_salt)

    def encode(self) -> bytes:
        """Return the block of ``HEADER_BLOCK_BYTES``."""
        rest = layout.PREPARED_HEADER_REST.pack(self.sequence)
        return _encode_block(layout.PREPARED_MAGIC, (0, 0), self.queue_id, self.file_id, self.salt, rest)

    @classmethod
    def decode(cls, copies: list[bytes], path: str) -> SegmentHeader:
        """Return the header that the first good copy holds; raises the error of the first copy if none is good.

        An error about another version takes precedence over one about damage.
        """
        _, _, queue_id, file_id, salt, rest = _decode_copies(copies, layout.PREPARED_MAGIC, path)
        (sequence,) = layout.PREPARED_HEADER_REST.unpack_from(rest)
        return cls(queue_id, sequence, file_id, salt)


def block_buffers(block: bytes, fence: bytes = b"") -> bytes:
    """Return the first ``FRAMES_START`` bytes of a file: the block twice, and between its token and zeros."""
    return (block + fence).ljust(layout.HEADER_COPY_POSITIONS[1], b"\0") + block


def block_copies(start: bytes) -> list[bytes]:
    """Return the copies of the block in ``start``, the first bytes of a file."""
    return [start[at : at + layout.HEADER_BLOCK_BYTES] for at in layout.HEADER_COPY_POSITIONS]


def damaged_copies(start: bytes, magic: bytes, path: str) -> list[int]:
    """Return the positions of copies that are not whole."""
    bad = []
    for at, copy in zip(layout.HEADER_COPY_POSITIONS, block_copies(start), strict=True):
        try:
            _decode_block(copy, magic, path, at)
        except StorageError:
            bad.append(at)
    return bad


def header_damage(path: Path, start: bytes, magic: bytes) -> list[Damage]:
    """Return the damage of a header with one good copy."""
    reason = "one of the two copies of the header does not verify"
    copies = damaged_copies(start, magic, str(path))
    return [Damage(path, at, layout.HEADER_BLOCK_BYTES, range(0), DAMAGED, reason) for at in copies]


def _encode_block(
    magic: bytes, features: tuple[int, int], queue_id: bytes, file_id: bytes, salt: int, rest: bytes
) -> bytes:
    """Return a block; ``features`` are the compatible ones, and the incompatible ones."""
    compatible, incompatible = features
    prefix = layout.HEADER_PREFIX.pack(
        magic, layout.FORMAT_VERSION, layout.HEADER_BLOCK_BYTES, compatible, 0, incompatible, queue_id, file_id, salt
    )
    body = (prefix + rest).ljust(_CRC_AT, b"\0")
    return body + layout.HEADER_CRC.pack(crc32c(0, body))


def _decode_copies(copies: list[bytes], magic: bytes, path: str) -> _Block:
    first_error: StorageError | None = None
    for at, copy in zip(layout.HEADER_COPY_POSITIONS, copies, strict=True):
        try:
            return _decode_block(copy, magic, path, at)
        except StorageError as error:
            if first_error is None or isinstance(error, UnsupportedVersionError):  # then it must not be given up
                first_error = error
    assert first_error is not None, "HEADER_COPY_POSITIONS is not empty"
    raise first_error


def _decode_block(block: bytes, magic: bytes, path: str, at: int) -> _Block:
    try:
        found, version, _, features, _, incompatible, queue_id, file_id, salt = layout.HEADER_PREFIX.unpack_from(block)
    except struct.error:
        raise CorruptionError(f"{path} is too short to hold a header", path=path, position=at) from None
    if found != magic:
        raise CorruptionError(f"{path} does not start with the magic of its kind", path=path, position=at)
    is_unknown = version == layout.FORMAT_VERSION and incompatible & ~_INCOMPATIBLE_KNOWN[magic]
    if version > layout.FORMAT_VERSION or is_unknown:
        raise other_version(path, version, incompatible)
    if len(block) < layout.HEADER_BLOCK_BYTES:
        raise CorruptionError(f"{path} is too short to hold a header", path=path, position=at)
    if layout.HEADER_CRC.unpack_from(block, _CRC_AT)[0] != crc32c(0, block[:_CRC_AT]):
        raise CorruptionError(f"the header of {path} does not match its checksum", path=path, position=at)
    if version < layout.FORMAT_VERSION:
        raise other_version(path, version)
    return features, incompatible, queue_id, file_id, salt, block[layout.HEADER_PREFIX.size :]

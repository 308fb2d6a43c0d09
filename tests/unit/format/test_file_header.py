"""The block that opens data files and position files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast import CorruptionError, UnsupportedVersionError
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    COMPATIBLE_BORN_SEALED,
    DATA_MAGIC,
    FORMAT_VERSION,
    FRAMES_START,
    HEADER_BLOCK_BYTES,
    HEADER_COPY_POSITIONS,
    HEADER_CRC,
)
from holdfast.persistence.format.file_header import (
    DataFileHeader,
    PositionFileHeader,
    block_buffers,
    block_copies,
    damaged_copies,
    random_id,
    random_salt,
)

QUEUE_ID, GROUP_ID = b"q" * 16, b"g" * 16
HEADER = DataFileHeader(QUEUE_ID, 7, 2**40, 10**18, 6, 12_345, b"f" * 16, 0xDEADBEEF)
VERSION_AT, COMPATIBLE_AT, READ_ONLY_COMPATIBLE_AT, INCOMPATIBLE_AT = 8, 12, 16, 20


def sealed(block: bytearray) -> bytes:
    """Return a block with the checksum that fits it."""
    body = bytes(block[: -HEADER_CRC.size])
    return body + HEADER_CRC.pack(crc32c(0, body))


def test_a_data_file_header_comes_back() -> None:
    """Every field survives encoding."""
    block = HEADER.encode()
    assert len(block) == HEADER_BLOCK_BYTES
    assert DataFileHeader.decode([block, block], "f") == HEADER


def test_a_position_file_header_comes_back() -> None:
    """Every field survives encoding."""
    header = PositionFileHeader(QUEUE_ID, GROUP_ID, 9)
    assert PositionFileHeader.decode([header.encode()] * 2, "f") == header


def test_ids_and_salts_are_drawn_afresh() -> None:
    """Two lives of a file never share them."""
    assert len({random_id() for _ in range(100)}) == 100
    assert len({random_salt() for _ in range(100)}) > 95
    assert DataFileHeader(QUEUE_ID, 1, 0, 0).file_id != DataFileHeader(QUEUE_ID, 1, 0, 0).file_id


def test_the_start_of_a_file_holds_both_copies() -> None:
    """They stand where the format says, with zeros between them."""
    start = block_buffers(HEADER.encode())
    assert len(start) == FRAMES_START
    assert block_copies(start) == [HEADER.encode()] * 2
    assert not start[HEADER_BLOCK_BYTES : HEADER_COPY_POSITIONS[1]].strip(b"\0")


@pytest.mark.parametrize("bad", [0, 1])
def test_one_good_copy_is_enough(bad: int) -> None:
    """Whichever of the two it is."""
    copies = [HEADER.encode(), HEADER.encode()]
    copies[bad] = bytes(HEADER_BLOCK_BYTES)
    assert DataFileHeader.decode(copies, "f") == HEADER
    start = bytearray(block_buffers(HEADER.encode()))
    start[HEADER_COPY_POSITIONS[bad] + 100] ^= 1
    assert damaged_copies(bytes(start), DATA_MAGIC, "f") == [HEADER_COPY_POSITIONS[bad]]


def test_every_flipped_bit_of_a_block_is_found() -> None:
    """No bit of the 4,096 is without a check."""
    block = HEADER.encode()
    for bit in range(8 * len(block)):
        broken = bytearray(block)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptionError, UnsupportedVersionError)):
            DataFileHeader.decode([bytes(broken)] * 2, "f")


def test_another_kind_of_file_is_told_by_its_magic() -> None:
    """A position file does not pass for a data file."""
    block = PositionFileHeader(QUEUE_ID, GROUP_ID, 1).encode()
    with pytest.raises(CorruptionError, match="magic") as caught:
        DataFileHeader.decode([block, block], "some/path")
    assert caught.value.path == "some/path"


def test_a_newer_version_is_told_before_the_checksum() -> None:
    """What this version cannot read may be laid out otherwise."""
    block = bytearray(HEADER.encode())
    block[VERSION_AT] = FORMAT_VERSION + 1
    for each in (bytes(block), sealed(block)):
        with pytest.raises(UnsupportedVersionError, match="newer Holdfast") as caught:
            DataFileHeader.decode([each, each], "f")
        assert caught.value.version == FORMAT_VERSION + 1


def test_an_older_version_is_told_behind_the_checksum() -> None:
    """It was laid out as this one: a damaged version number is damage."""
    block = bytearray(HEADER.encode())
    block[VERSION_AT] = FORMAT_VERSION - 1
    with pytest.raises(CorruptionError, match="checksum"):
        DataFileHeader.decode([bytes(block)] * 2, "f")
    with pytest.raises(UnsupportedVersionError, match="drain the queue with the Holdfast that wrote it") as caught:
        DataFileHeader.decode([sealed(block)] * 2, "f")
    assert caught.value.version == FORMAT_VERSION - 1


@pytest.mark.parametrize("first", [True, False])
def test_another_version_goes_before_damage(first: bool) -> None:
    """One copy is enough to say that the file is not ours to give up."""
    block = bytearray(HEADER.encode())
    block[VERSION_AT] = FORMAT_VERSION - 1
    copies = [sealed(block), bytes(len(block))]
    with pytest.raises(UnsupportedVersionError):
        DataFileHeader.decode(copies if first else copies[::-1], "f")


def test_an_unknown_incompatible_feature_refuses_the_file() -> None:
    """The version is ours, but something in the file is not."""
    block = bytearray(HEADER.encode())
    block[INCOMPATIBLE_AT] |= 4
    with pytest.raises(UnsupportedVersionError, match="0x4"):
        DataFileHeader.decode([sealed(block)] * 2, "f")


@pytest.mark.parametrize("at", [COMPATIBLE_AT, READ_ONLY_COMPATIBLE_AT])
def test_an_unknown_compatible_feature_does_not(at: int) -> None:
    """Neither a compatible nor a read-only compatible one keeps a reader out."""
    block = bytearray(HEADER.encode())
    block[at] |= 4
    header = DataFileHeader.decode([sealed(block)] * 2, "f")
    assert replace(header, features=0) == HEADER
    assert header.features == (4 if at == COMPATIBLE_AT else 0)


def test_a_file_that_was_born_sealed_says_so() -> None:
    """The bit stands among the compatible features, and is no part of a file that was not."""
    born = replace(HEADER, features=COMPATIBLE_BORN_SEALED)
    assert DataFileHeader.decode([born.encode()] * 2, "f") == born
    assert born.encode()[COMPATIBLE_AT] == 1
    assert HEADER.encode()[COMPATIBLE_AT] == 0


@pytest.mark.parametrize("size", [0, 10, 59, 60, 511])
def test_a_short_block_is_damage(size: int) -> None:
    """A file that was cut inside its header raises nothing else."""
    block = HEADER.encode()[:size]
    with pytest.raises(CorruptionError, match="too short"):
        DataFileHeader.decode([block, b""], "f")

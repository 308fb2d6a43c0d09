"""The sizes that docs/format.md promises."""

from __future__ import annotations

import struct

import pytest

from holdfast.persistence.format import constants as layout


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("HEADER_PREFIX", 60),
        ("DATA_HEADER_REST", 56),
        ("POSITION_HEADER_REST", 24),
        ("HEADER_CRC", 4),
        ("FRAME_PREFIX", 9),
        ("FRAME_BODY", 23),
        ("FRAME_HEADER", 32),
        ("TLV", 4),
        ("COMMIT_RECORD_TRAILER", 4),
        ("SEAL", 24),
        ("SEAL_ENTRY", 8),
        ("SEAL_TRAILER", 4),
        ("ENTRY", 64),
        ("ENTRY_BODY", 60),
        ("ENTRY_CRC", 4),
        ("VOTE_START", 24),
        ("VOTE_WORDS", 24),
        ("OUTCOME_SLOT", 160),
        ("DEDUP_SLOT", 48),
        ("WRITE_MARK", 88),
    ],
)
def test_every_struct_has_the_size_of_version_1(name: str, size: int) -> None:
    """A change of one of these is a change of the format."""
    fields = getattr(layout, name)
    assert fields.size == size
    assert fields.format.startswith("<"), "little-endian, without padding"


def test_every_struct_of_the_format_is_little_endian() -> None:
    """Files can be carried from one machine to another."""
    structs = [value for value in vars(layout).values() if isinstance(value, struct.Struct)]
    assert structs
    assert all(fields.format.startswith("<") for fields in structs)


def test_the_copies_of_a_header_stand_in_different_pages() -> None:
    """A drive with sectors of 4 KiB fails by the page."""
    first, second = layout.HEADER_COPY_POSITIONS
    assert first // 4096 != second // 4096
    assert second + layout.HEADER_BLOCK_BYTES == layout.FRAMES_START == 4608


def test_magics_differ_and_name_their_kind() -> None:
    """No kind of file is taken for another."""
    magics = {layout.DATA_MAGIC, layout.POSITION_MAGIC, layout.WRITE_MARK_MAGIC}
    assert len(magics) == 3
    assert all(len(magic) == 8 and magic[0] >= 0x80 and magic.endswith(b"\n") for magic in magics)


def test_the_halves_of_a_frame_header_are_the_whole_of_it() -> None:
    """Prefix and body are written apart and read together."""
    fields = (2, 30, 77, 1, 3, 0, 1, 5, 4608, 10**18)
    assert layout.FRAME_PREFIX.pack(*fields[:3]) + layout.FRAME_BODY.pack(*fields[3:]) == layout.FRAME_HEADER.pack(
        *fields
    )

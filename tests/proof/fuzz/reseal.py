"""Puts right checksums over changed bytes, so that fuzzing does not end at the first of them.

Each target takes this from its input: one bit of the first byte says whether the bytes behind it are resealed. So half
of what a fuzzer tries is damage, the other half is what no disk would ever do, and an input kept in the corpus does the
same again without a fuzzer. The checksums are those of ``crcmod``, not of the library that is under test.
"""

from __future__ import annotations

import json

from holdfast.persistence.format.checksum import portable_crc32c
from holdfast.persistence.format.constants import (
    ENTRY,
    ENTRY_CRC,
    FRAME_BODY_START,
    FRAME_HEADER_BYTES,
    FRAME_PREFIX,
    FRAME_SIZE_END,
    FRAMES_START,
    HEADER_BLOCK_BYTES,
    HEADER_COPY_POSITIONS,
    HEADER_CRC,
    STX,
)

crc = portable_crc32c()
"""``crc(seed, data)``, by another library than the one that reads."""


def reseal_frames(data: bytearray, salt: int, start: int = 0) -> None:
    """Give each frame from ``start`` on its checksum, as far as record sizes lead from one to the next."""
    at = start
    while at + FRAME_HEADER_BYTES <= len(data) and data[at] == STX:
        size = int.from_bytes(data[at + 1 : at + FRAME_SIZE_END], "little")
        end = at + FRAME_SIZE_END + size
        if size < FRAME_HEADER_BYTES - FRAME_SIZE_END or end > len(data):
            return
        checksum = crc(salt ^ size, bytes(data[at + FRAME_BODY_START : end]))
        FRAME_PREFIX.pack_into(data, at, STX, size, checksum)
        at = end


def reseal_blocks(data: bytearray) -> None:
    """Give both copies of a header block their checksum."""
    for at in HEADER_COPY_POSITIONS:
        end = at + HEADER_BLOCK_BYTES
        if end <= len(data):
            HEADER_CRC.pack_into(data, end - HEADER_CRC.size, crc(0, bytes(data[at : end - HEADER_CRC.size])))


def reseal_entries(data: bytearray, salt: int, start: int = FRAMES_START) -> None:
    """Give each position entry its checksum, but for those that are zeros."""
    for at in range(start, len(data) - ENTRY.size + 1, ENTRY.size):
        body = bytes(data[at + ENTRY_CRC.size : at + ENTRY.size])
        if body.strip(b"\0"):
            ENTRY_CRC.pack_into(data, at, crc(salt, body))


def reseal_slots(data: bytearray, size: int, seed: int = 0) -> None:
    """Give each slot of a ring its checksum."""
    for at in range(0, len(data) - size + 1, size):
        HEADER_CRC.pack_into(data, at, crc(seed, bytes(data[at + HEADER_CRC.size : at + size])))


def resealed_end(data: bytes) -> bytes:
    """Return bytes whose last four are the checksum of those before them."""
    return data + HEADER_CRC.pack(crc(0, data))


def resealed_document(text: bytes) -> bytes:
    """Return a JSON document with its checksum; what is no JSON object is left as it is."""
    try:
        fields = json.loads(text)
        fields.pop("crc32c", None)
        fields["crc32c"] = f"{crc(0, json.dumps(fields, sort_keys=True).encode()):08x}"
        return json.dumps(fields).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return text

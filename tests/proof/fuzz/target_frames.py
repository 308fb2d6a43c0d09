"""Frames, and what stands in them: headers, options, seals, decisions."""

from __future__ import annotations

from contextlib import suppress

from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import (
    FRAME_BODY_START,
    FRAME_HEADER,
    FRAME_SIZE_END,
    KIND_COMMIT_RECORD,
    KIND_MESSAGE,
    KIND_SEAL,
)
from holdfast.persistence.format.framing import Frame, encode_frame
from holdfast.persistence.format.message_headers import decode_headers, encode_headers
from holdfast.persistence.format.message_options import decode_options, dedup_id_of, has_options, has_priority
from holdfast.persistence.format.seal import Seal
from holdfast.persistence.segment.frame_scanner import FrameScanner
from holdfast.persistence.segment.frame_trailer import frame_before
from proof.fuzz.memory_files import BytesFile
from proof.fuzz.reseal import crc, reseal_frames

SALT = 0x5A17


def frames(data: bytes) -> None:
    """Walk frames past all damage: what verifies is right, and encodes to what stands there."""
    if not data:
        return
    content = bytearray(data[1:])
    if data[0] & 1:
        reseal_frames(content, SALT)
    stored = bytes(content)
    file = BytesFile(stored)
    end = 0
    for frame in FrameScanner(file, SALT, 0, len(stored)).past_damage():
        assert end <= frame.position < frame.end <= len(stored), "frames overlap"
        end = frame.end
        _check(frame, stored)
        _decode(frame)
    _pass(file, stored)
    frame_before(file, SALT, len(stored), KIND_SEAL)


def _check(frame: Frame, stored: bytes) -> None:
    raw = stored[frame.position : frame.end]
    size = len(raw) - FRAME_SIZE_END
    checksum = FRAME_HEADER.unpack_from(raw)[2]
    assert crc(SALT ^ size, raw[FRAME_BODY_START:]) == checksum, "a payload whose checksum does not match"
    again = encode_frame(
        SALT,
        frame.payload,
        index=frame.index,
        durable_mark=frame.durable_mark,
        timestamp_ns=frame.timestamp_ns,
        kind=frame.kind,
        flags=frame.flags,
        headers=frame.headers,
    )
    assert b"".join(again) == raw, "what was decoded encodes to something else"


def _decode(frame: Frame) -> None:
    if frame.kind == KIND_MESSAGE:
        headers(frame.headers)
    elif frame.kind == KIND_SEAL:
        with suppress(ValueError):
            seal = Seal.decode(frame.payload)
            assert Seal.decode(seal.encode()) == seal
            seal.position_before(frame.index)
    elif frame.kind == KIND_COMMIT_RECORD:
        decision(frame.payload)


def _pass(file: BytesFile, stored: bytes) -> None:
    """Passing over messages stops nowhere but in front of what is none."""
    scanner = FrameScanner(file, SALT, 0, len(stored))
    with suppress(ValueError):
        first = scanner.next()
        start, index = scanner.position, first.next_index
        index_end = scanner.pass_messages(index)
        end = scanner.position
        scanner.position = start
        while scanner.position < end:
            frame = scanner.next()
            assert (frame.kind, frame.index) == (KIND_MESSAGE, index), "something else was passed over"
            index += 1
        assert (scanner.position, index) == (end, index_end), "passed over by another way"


def headers(data: bytes) -> None:
    """Read an application's headers, and what a message asks for: ValueError and nothing else."""
    has_priority(data)
    dedup_id_of(data)
    with suppress(ValueError):
        decoded = decode_headers(data)
        if not has_options(data):
            assert decode_headers(encode_headers(decoded)) == decoded
    with suppress(ValueError):
        options = decode_options(data)
        assert decode_options(options.encode()) == options


def decision(data: bytes) -> None:
    """Read a decision: ValueError and nothing else; what it says can be acted upon."""
    try:
        decided = CommitRecord.decode(data)
    except ValueError:
        return
    assert CommitRecord.decode(decided.encode()) == decided
    assert decided.offsets.start >= 0
    assert isinstance(decided.is_remembered, bool)
    for each in decided.acknowledged:
        assert isinstance(each.group, str)
        assert all(isinstance(number, int) for run in each.runs for number in run)


def message_headers(data: bytes) -> None:
    """The same without a frame around: the first byte says which."""
    if data:
        (decision if data[0] & 1 else headers)(data[1:])

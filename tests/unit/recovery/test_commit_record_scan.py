"""Finding open decisions in a last data file that is damaged."""

from __future__ import annotations

from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import FRAMES_START, KIND_COMMIT_RECORD
from holdfast.persistence.log.pending_commit_records import PendingCommitRecords
from holdfast.persistence.recovery.commit_record_scan import find_commit_records
from holdfast.persistence.recovery.tail_scan import TailScan
from support.builders.log_parts import LogParts, frame

DECISION = CommitRecord("t", b"n" * 16, 1, 0)


def found_in(parts: LogParts, *frames: bytes) -> PendingCommitRecords:
    """Return the decisions of a file that recovery keeps whole."""
    path, header = parts.data_file(frames)
    end = FRAMES_START + sum(map(len, frames))
    return find_commit_records(parts.storage.open(path), header, TailScan(end, len(frames), end, 0))


def message(parts: LogParts, index: int) -> bytes:
    """Return a message."""
    return frame(parts.header(), b"message %d" % index, index)


def decided(parts: LogParts, index: int, payload: bytes = b"") -> bytes:
    """Return a decision over the message before it."""
    return frame(parts.header(), payload or DECISION.encode(), index, kind=KIND_COMMIT_RECORD)


def bad(raw: bytes) -> bytes:
    """Return a frame whose last byte was lost."""
    return raw[:-1] + bytes((raw[-1] ^ 0xFF,))


def test_a_decision_is_found_behind_damage_with_the_offset_of_its_first_message(parts: LogParts) -> None:
    """Recovery reports the damage; what is decided stays decided."""
    frames = [bad(message(parts, 0)), message(parts, 1), decided(parts, 2)]
    (decision,) = found_in(parts, *frames)
    assert decision == DECISION.placed(1)


def test_damage_up_to_the_end_hides_what_stood_there(parts: LogParts) -> None:
    """The search ends with it."""
    frames = [message(parts, 0), decided(parts, 1), bad(message(parts, 1)), bad(decided(parts, 2))]
    assert [decision.first_offset for decision in found_in(parts, *frames)] == [0]


def test_what_claims_to_be_a_decision_and_is_none_is_not_acted_upon(parts: LogParts) -> None:
    """Its checksum is right; the next one counts."""
    frames = [message(parts, 0), decided(parts, 1, b"no decision"), message(parts, 1), decided(parts, 2)]
    assert [decision.first_offset for decision in found_in(parts, *frames)] == [1]

"""The payload of a decision frame."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.persistence.format.commit_record import Acknowledged, CommitRecord, Participant, PartOf
from holdfast.persistence.format.constants import COMMIT_RECORD_TRAILER, KIND_COMMIT_RECORD
from holdfast.persistence.format.framing import encode_frame

SMALLEST = CommitRecord("t", b"n" * 16, 0, 0)
PUT = CommitRecord((b"n" * 16).hex(), b"n" * 16, 3, 10**18, session=2**32 - 1)
FULL = CommitRecord(
    id="orders-2026.07_5",
    nonce=bytes(range(16)),
    count=3,
    timestamp_ns=10**18,
    first_offset=0,
    acknowledged=(
        Acknowledged("default", b"g" * 16, ((0, 5, 1, 4700), (9, 2**40, 2, 2**32 - 1))),
        Acknowledged("other", b"h" * 16, ()),
    ),
    participants=(Participant("../payments", b"p" * 16, "default"), Participant(".", b"q" * 16)),
    coordinator=Participant("../grüße", b"c" * 16),
    waiting_file="prepared/orders-2026.07_5.batch",
)


@pytest.mark.parametrize(
    "decision",
    [
        SMALLEST,
        FULL,
        replace(FULL, first_offset=None),
        replace(FULL, coordinator=None),
        replace(FULL, acknowledged=()),
        replace(FULL, session=2**32 - 1),
        PUT,
        replace(PUT, count=0, timestamp_ns=0, first_offset=0, session=1),
    ],
)
def test_a_decision_comes_back(decision: CommitRecord) -> None:
    """Every field survives encoding, and so does every one that is missing."""
    assert CommitRecord.decode(decision.encode()) == decision


def test_a_decision_is_found_from_behind() -> None:
    """The last four bytes of its frame are the size of the frame."""
    for decision in (SMALLEST, FULL):
        buffers = encode_frame(1, decision.encode(), index=3, durable_mark=0, timestamp_ns=9, kind=KIND_COMMIT_RECORD)
        frame = b"".join(buffers)
        assert int.from_bytes(frame[-COMMIT_RECORD_TRAILER.size :], "little") == len(frame)


def test_fields_that_say_nothing_are_left_out() -> None:
    """A transaction without acknowledgements costs few bytes."""
    fields = json.loads(SMALLEST.encode()[: -COMMIT_RECORD_TRAILER.size])
    assert sorted(fields) == ["at", "count", "id", "nonce"]


def test_a_field_of_a_later_version_is_passed_over() -> None:
    """What has to be understood comes with a new format version."""
    fields = json.loads(SMALLEST.encode()[: -COMMIT_RECORD_TRAILER.size])
    text = json.dumps({**fields, "colour": "red"}).encode()
    assert CommitRecord.decode(text + bytes(COMMIT_RECORD_TRAILER.size)) == SMALLEST


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"\xff",
        b"{}",
        b'{"id": "t", "nonce": "xyz", "count": 0, "at": 0}',
        b'{"id": "t", "nonce": "00", "count": null, "at": 0}',
        b'{"id": "t", "nonce": "00", "count": Infinity, "at": 0}',
        b'{"id": "t", "nonce": "00", "count": 0, "at": 0, "acknowledged": [["g", "00", [[1, 2]]]]}',
        b'{"id": "t", "nonce": "00", "count": 0, "at": 0, "participants": [[".", "00"]]}',
        b'{"id": "t", "nonce": "00", "count": 0, "at": 0, "participants": 5}',
        b'{"id": "t", "nonce": "00", "count": 0, "at": 0, "coordinator": 5}',
        b'{"id": "t", "nonce": "%s", "count": 0, "at": 0, "session": %d}' % (b"6e" * 16, 2**32),
        b'{"id": "t", "nonce": "%s", "count": 0, "at": 0, "session": -1}' % (b"6e" * 16),
        b'{"id": "t", "nonce": "%s", "count": 0, "at": 0, "session": "1"}' % (b"6e" * 16),
        b'{"id": "t", "nonce": "%s", "count": 0, "at": 0, "session": null}' % (b"6e" * 16),
    ],
)
def test_anything_else_is_no_decision(text: bytes) -> None:
    """One kind of error, whatever is wrong."""
    with pytest.raises(ValueError, match="not a commit record"):
        CommitRecord.decode(text + bytes(COMMIT_RECORD_TRAILER.size))


def test_offsets_follow_once_the_batch_has_its_place() -> None:
    """The first one is known when it stands in the log."""
    placed = replace(FULL, first_offset=None).placed(500)
    assert placed.offsets == range(500, 503)
    assert SMALLEST.placed(7).offsets == range(7, 7)
    assert replace(placed, first_offset=None) == replace(FULL, first_offset=None)
    assert PUT.placed(0) == replace(PUT, first_offset=0)


@pytest.mark.parametrize("count", [0, 1, 100])
@pytest.mark.parametrize("first_offset", [None, 0, 2**40])
@pytest.mark.parametrize("session", [1, 2**32 - 1])
def test_the_short_way_to_encode_a_put_writes_the_same_bytes(
    count: int, first_offset: int | None, session: int
) -> None:
    """As the one for all commit records."""
    put = replace(PUT, count=count, first_offset=first_offset, session=session)
    assert put.encode()[: -COMMIT_RECORD_TRAILER.size] == put._encode_fields()


@pytest.mark.parametrize(
    "more",
    [
        {"id": "t"},
        {"session": 0},
        {"waiting_file": "prepared/t.batch"},
        {"acknowledged": FULL.acknowledged},
        {"participants": FULL.participants},
        {"coordinator": FULL.coordinator},
        {"part_of": PartOf("spark", 7)},
        {"part_of": PartOf("spark", 7, "../.joint", bytes(range(16)))},
    ],
)
def test_what_is_more_than_a_put_is_encoded_in_full(more: dict[str, Any]) -> None:
    """Nothing of it is lost, with its offset neither."""
    record = replace(PUT, **more)
    assert CommitRecord.decode(record.encode()) == record
    assert record.placed(9) == replace(record, first_offset=9)


@pytest.mark.parametrize("part_of", [["spark"], ["spark", 7, "../.joint"], ["spark", 7, "", "00" * 16]])
def test_a_part_of_a_joint_commit_that_is_not_all_there_is_refused(part_of: list[Any]) -> None:
    """Two values, or four: with a document, and its id."""
    text = json.dumps({"id": "t", "nonce": "00" * 16, "count": 1, "at": 1, "part_of": part_of}).encode()
    with pytest.raises(ValueError, match="not a commit record"):
        CommitRecord.decode(text + bytes(COMMIT_RECORD_TRAILER.size))

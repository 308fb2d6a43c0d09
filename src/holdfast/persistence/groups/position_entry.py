"""One entry of a position file: 64 bytes with a change of progress for a run of messages. docs/format.md. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.compiled import compiled
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    ENTRY,
    ENTRY_BODY,
    ENTRY_CRC,
    ENTRY_DEAD,
    ENTRY_DELIVERED,
    ENTRY_DONE,
    ENTRY_FLAG_CHECKPOINT,
    ENTRY_FLAG_FIRST,
    ENTRY_FLAG_LAST,
    ENTRY_FLOOR,
    ENTRY_KINDS,
    ENTRY_KINDS_NUMBERED,
    ENTRY_OUTCOME,
    ENTRY_RETURNED,
    ENTRY_TAKEN_AWAY,
    ENTRY_TEXT,
    ENTRY_VOTE,
    NUMBER_MAX,
)
from holdfast.persistence.format.dead_letter import DeadMark

Hint = tuple[int, int]
"""Sequence of a data file and the position in it behind a record: where reading goes on."""

NO_HINT: Hint = (0, 0)

_KINDS_OF_RUNS = ENTRY_KINDS - {ENTRY_VOTE, ENTRY_TEXT, ENTRY_OUTCOME}
"""Those whose fields are offsets; the second one of a dead letter is a time."""
DELIVERY_COUNT_MAX = 2**16 - 1
_FIRST_FAILURE_S_MAX = 2**32 - 1
"""In 2106, or where a clock is set to that: a wrong time is better than a message that cannot be given back."""

_pack_body, _pack_crc = ENTRY_BODY.pack, ENTRY_CRC.pack  # looked up once: every acknowledgement uses them


@dataclass(slots=True)  # not frozen: one is made for every acknowledgement, and frozen ones take three times as long
class Change:
    """A change of progress for a run of messages, before it is numbered and written.

    Attributes
    ----------
    kind : int
        ``ENTRY_*`` of ``constants.py``.
    first_offset, count : int
        The run. For ENTRY_FLOOR, ``count`` is how many messages were lost to damage so far.
    hint : Hint
        Data file of the run, and the position behind its last record.
    delivery_count : int
        For ENTRY_DELIVERED; for ENTRY_OUTCOME, 1 if it is committed.
    delivery_number : int
        For ENTRY_DELIVERED the take, for ENTRY_FLOOR how many messages were skipped so far, for the other kinds that
        have one the delivery that was taken away; 0: none.

    Notes
    -----
    ``vote.py`` defines these fields for ENTRY_VOTE, ENTRY_TEXT and ENTRY_OUTCOME.
    """

    kind: int
    first_offset: int
    count: int
    hint: Hint
    delivery_count: int = 0
    delivery_number: int = 0


def floor_change(floor: int, lost_count: int, skipped_count: int, hint: Hint) -> Change:
    """Return the entry for a floor, with what was lost to damage and what was skipped so far."""
    return Change(ENTRY_FLOOR, floor, lost_count, hint, delivery_number=skipped_count)


def done_changes(offsets: Iterable[int]) -> list[Change]:
    """Return the entries that finish messages, which are named in ascending order."""
    runs: list[Change] = []
    for offset in offsets:
        if runs and offset == runs[-1].first_offset + runs[-1].count:
            runs[-1].count += 1
        else:
            runs.append(Change(ENTRY_DONE, offset, 1, NO_HINT))
    return runs


def returned_change(
    offset: int, delivery_count: int, until_ns: int, first_failure_s: int, count: int = 1, taken_away_from: int = 0
) -> Change:
    """Return the entry that gives messages back; by their owner, if they are ``taken_away_from`` a delivery."""
    hint = (until_ns, min(first_failure_s, _FIRST_FAILURE_S_MAX))
    return Change(ENTRY_RETURNED, offset, count, hint, delivery_count, taken_away_from)


def dead_change(offset: int, mark: DeadMark, taken_away_from: int = 0) -> Change:
    """Return the entry that makes a message a dead letter; it may be ``taken_away_from`` a delivery by that."""
    hint = (mark.last_failure_ns, mark.reason_number)
    return Change(ENTRY_DEAD, offset, mark.first_failure_ns, hint, mark.delivery_count, taken_away_from)


class Entry(NamedTuple):
    """A verified entry: its number, its flags, how many entries were known to be synced, and its change."""

    number: int
    flags: int
    synced_mark: int
    change: Change


@compiled
def pack_entry(
    salt: int,
    kind: int,
    flags: int,
    delivery_count: int,
    number: int,
    synced_mark: int,
    sequence: int,
    first_offset: int,
    count: int,
    timestamp_ns: int,
    delivery_number: int,
    end_position: int,
    generation: int,
    /,
) -> bytes:
    """Return the 64 bytes with these fields of ``ENTRY``."""
    body = _pack_body(
        kind,
        flags,
        delivery_count,
        number,
        synced_mark,
        sequence,
        first_offset,
        count,
        timestamp_ns,
        delivery_number,
        end_position,
        generation,
    )
    return _pack_crc(crc32c(salt, body)) + body


@compiled
def unpack_entry(
    data: bytes, at: int, salt: int, number: int, /
) -> tuple[int, int, int, int, int, int, int, int, int] | None:
    """Return the fields of the entry ``number`` at ``data[at]`` that count, in order; None if it does not verify.

    Its checksum, number, timestamp and generation are left out.
    """
    raw = data[at : at + ENTRY.size]
    if len(raw) < ENTRY.size:
        return None
    fields = ENTRY.unpack(raw)
    crc, kind, flags, deliveries, found, synced_mark, sequence, first, count, _, delivery, end_position, _ = fields
    if found != number or crc32c(salt, raw[ENTRY_CRC.size :]) != crc:
        return None
    return kind, flags, deliveries, synced_mark, sequence, first, count, delivery, end_position


def encode_entry(
    salt: int, change: Change, number: int, flags: int, timestamp_ns: int, synced_mark: int, generation: int
) -> bytes:
    """Return the 64 bytes of an entry."""
    sequence, end_position = change.hint
    delivery_count = change.delivery_count
    return pack_entry(
        salt,
        change.kind,
        flags,
        delivery_count if delivery_count < DELIVERY_COUNT_MAX else DELIVERY_COUNT_MAX,
        number,
        synced_mark,
        sequence,
        change.first_offset,
        change.count,
        timestamp_ns,
        change.delivery_number,
        end_position,
        generation & 0xFFFFFFFF,
    )


def encode_run(
    salt: int,
    changes: Sequence[Change],
    first_number: int,
    timestamp_ns: int,
    synced_mark: int,
    generation: int,
    *,
    is_checkpoint: bool = False,
) -> list[bytes]:
    """Return the entries of changes that count together, from this number on."""
    count = len(changes)
    return [
        encode_entry(
            salt,
            change,
            first_number + number,
            run_flags(number, count, is_checkpoint=is_checkpoint),
            timestamp_ns,
            synced_mark,
            generation,
        )
        for number, change in enumerate(changes)
    ]


def decode_entry(data: bytes, at: int, salt: int, number: int) -> Entry | None:
    """Return the entry ``number`` at ``data[at]``, or None if the bytes are not that entry."""
    fields = unpack_entry(data, at, salt, number)
    if fields is None:
        return None
    kind, flags, deliveries, synced_mark, sequence, first, count, delivery, end_position = fields
    if kind not in ENTRY_KINDS:
        return None
    if kind in _KINDS_OF_RUNS and first + (0 if kind == ENTRY_DEAD else count) > NUMBER_MAX:
        return None
    if (delivery or kind == ENTRY_TAKEN_AWAY) and not _may_have_number(kind, flags, delivery):
        return None
    return Entry(number, flags, synced_mark, Change(kind, first, count, (sequence, end_position), deliveries, delivery))


def _may_have_number(kind: int, flags: int, delivery_number: int) -> bool:
    """Whether an entry of this kind may have this delivery number: what was taken away is told once."""
    if kind == ENTRY_FLOOR:
        return delivery_number <= NUMBER_MAX
    if flags & ENTRY_FLAG_CHECKPOINT:
        return kind in (ENTRY_DELIVERED, ENTRY_TAKEN_AWAY) and delivery_number > 0
    return kind in ENTRY_KINDS_NUMBERED


def reach_of(change: Change) -> int:
    """Return the offset behind the last message that an entry names; 0 if it names none."""
    if change.kind == ENTRY_DEAD:
        return change.first_offset + 1
    if change.kind == ENTRY_FLOOR:  # as many were lost or skipped as were there
        return max(change.first_offset, change.count, change.delivery_number)
    return change.first_offset + change.count if change.kind in _KINDS_OF_RUNS else 0


def run_flags(number: int, count: int, *, is_checkpoint: bool = False) -> int:
    """Return the flags of entry ``number`` of an atomic run of ``count``."""
    flags = ENTRY_FLAG_CHECKPOINT if is_checkpoint else 0
    flags |= ENTRY_FLAG_FIRST if number == 0 else 0
    return flags | (ENTRY_FLAG_LAST if number == count - 1 else 0)

"""One entry of a position file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persistence.format.constants import (
    ENTRY,
    ENTRY_DELIVERED,
    ENTRY_DONE,
    ENTRY_FLAG_CHECKPOINT,
    ENTRY_FLAG_FIRST,
    ENTRY_FLAG_LAST,
    ENTRY_KINDS,
    ENTRY_KINDS_NUMBERED,
    ENTRY_OUTCOME,
    ENTRY_RETURNED,
    ENTRY_TAKEN_AWAY,
    ENTRY_TEXT,
    ENTRY_VOTE,
    NUMBER_MAX,
)
from holdfast.persistence.groups.position_entry import NO_HINT, Change, decode_entry, encode_entry, run_flags

SALT = 99


def encoded(change: Change, number: int = 5, salt: int = SALT, flags: int = 3) -> bytes:
    """Return an entry."""
    return encode_entry(
        salt, change, number=number, flags=flags, timestamp_ns=10**18, synced_mark=4, generation=2**33 + 1
    )


OF_TEXT = (ENTRY_VOTE, ENTRY_TEXT, ENTRY_OUTCOME)  # their numbers may be any eight bytes
OF_RUNS = sorted(ENTRY_KINDS - {*OF_TEXT, ENTRY_TAKEN_AWAY})
ANY, OFFSETS = st.integers(0, 2**64 - 1), st.integers(0, NUMBER_MAX // 2)


@given(
    st.tuples(st.sampled_from(OF_RUNS), OFFSETS, OFFSETS) | st.tuples(st.sampled_from(OF_TEXT), ANY, ANY),
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)),
    st.integers(0, 2**16 - 1),
)
def test_an_entry_comes_back(numbers: tuple[int, int, int], hint: tuple[int, int], deliveries: int) -> None:
    """Every field survives encoding, in 64 bytes."""
    kind, first, count = numbers
    change = Change(kind, first, count, hint, deliveries)
    raw = encoded(change)
    assert len(raw) == ENTRY.size == 64
    entry = decode_entry(b"x" + raw, 1, SALT, 5)
    assert entry is not None
    assert (entry.number, entry.flags, entry.synced_mark, entry.change) == (5, 3, 4, change)


@pytest.mark.parametrize("kind", sorted(ENTRY_KINDS))
@pytest.mark.parametrize("is_checkpoint", [False, True])
def test_an_entry_has_a_delivery_number_if_its_kind_has_one_there(kind: int, is_checkpoint: bool) -> None:
    """Another one was never written: what is taken away is told once, by its own kind in a checkpoint."""
    numbered = Change(kind, 7, 1, (1, 5000), 1, 2**64 - 1)
    entry = decode_entry(encoded(numbered, flags=run_flags(1, 3, is_checkpoint=is_checkpoint)), 0, SALT, 5)
    in_checkpoint = {ENTRY_DELIVERED, ENTRY_TAKEN_AWAY}
    if kind in (in_checkpoint if is_checkpoint else ENTRY_KINDS_NUMBERED):
        assert entry is not None
        assert entry.change == numbered
    else:
        assert entry is None


@pytest.mark.parametrize("is_checkpoint", [False, True])
def test_nothing_is_taken_away_from_no_delivery(is_checkpoint: bool) -> None:
    """An entry that says so was never written."""
    flags = run_flags(1, 3, is_checkpoint=is_checkpoint)
    assert decode_entry(encoded(Change(ENTRY_TAKEN_AWAY, 7, 1, NO_HINT), flags=flags), 0, SALT, 5) is None
    assert decode_entry(encoded(Change(ENTRY_RETURNED, 7, 1, NO_HINT), flags=flags), 0, SALT, 5) is not None


def test_a_delivery_count_stops_at_its_largest() -> None:
    """A message that was delivered 70,000 times is not written as one delivered 4,464 times."""
    entry = decode_entry(encoded(Change(ENTRY_DELIVERED, 0, 1, (0, 0), 70_000)), 0, SALT, 5)
    assert entry is not None
    assert entry.change.delivery_count == 65_535


def test_every_flipped_bit_of_an_entry_is_found() -> None:
    """It is read as what was written, or not at all."""
    raw = encoded(Change(ENTRY_DONE, 7, 3, (1, 5000)))
    for bit in range(8 * len(raw)):
        broken = bytearray(raw)
        broken[bit // 8] ^= 1 << bit % 8
        assert decode_entry(bytes(broken), 0, SALT, 5) is None


def test_an_entry_of_another_place_file_or_kind_is_refused() -> None:
    """A stale one of an older generation, one in the wrong slot, one that is cut off, and an unknown kind."""
    change = Change(ENTRY_DONE, 7, 3, (1, 5000))
    assert decode_entry(encoded(change), 0, SALT + 1, 5) is None
    assert decode_entry(encoded(change), 0, SALT, 6) is None
    assert decode_entry(encoded(change)[:-1], 0, SALT, 5) is None
    assert decode_entry(encoded(Change(max(ENTRY_KINDS) + 1, 7, 3, (1, 5000))), 0, SALT, 5) is None


def test_flags_of_a_run_say_first_last_and_checkpoint() -> None:
    """So that a run counts whole or not at all."""
    assert run_flags(0, 1) == ENTRY_FLAG_FIRST | ENTRY_FLAG_LAST
    assert [run_flags(number, 3) for number in range(3)] == [ENTRY_FLAG_FIRST, 0, ENTRY_FLAG_LAST]
    assert run_flags(1, 3, is_checkpoint=True) == ENTRY_FLAG_CHECKPOINT

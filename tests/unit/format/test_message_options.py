"""What a message asks for, as bytes in front of its headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import RecordTooLargeError
from holdfast.persistence.format.constants import (
    HEADERS_BYTES_MAX,
    PRIORITY_MAX,
    TLV,
    TLV_DEDUP_ID,
    TLV_EXPIRES,
    TLV_NOT_BEFORE,
    TLV_ORDER_KEY,
    TLV_PRIORITY,
)
from holdfast.persistence.format.message_headers import decode_headers, encode_headers
from holdfast.persistence.format.message_options import (
    NO_OPTIONS,
    MessageOptions,
    decode_options,
    dedup_id_of,
    has_options,
    has_priority,
)
from support.builders.log_parts import with_options

times = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
options_of_any_kind = st.builds(MessageOptions, times, st.integers(0, 9), times, texts, texts)
headers_of_any_kind = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), texts, max_size=3)
UNKNOWN = 0x7FF0


@given(options_of_any_kind, headers_of_any_kind)
def test_options_and_headers_come_back_apart(options: MessageOptions, headers: dict[str, str]) -> None:
    """Neither shows among the other; what says quickly whether there are any agrees."""
    stored = with_options(options, encode_headers(headers))
    assert decode_options(stored) == options
    assert decode_headers(stored) == headers
    assert has_options(stored) == (options != NO_OPTIONS)
    assert has_priority(stored) == (options.priority > 0)
    assert dedup_id_of(stored) == options.dedup_id


def test_nothing_asked_for_takes_no_room() -> None:
    """And a plain message is decoded without looking at its headers."""
    assert NO_OPTIONS.encode() == b""
    assert with_options(NO_OPTIONS, b"") == b""
    assert decode_options(b"") is NO_OPTIONS
    assert decode_options(encode_headers({"a": "b"})) is NO_OPTIONS


def test_fields_of_a_later_version_are_passed_over() -> None:
    """Those before and behind them count."""
    fields = (
        MessageOptions(priority=4).encode() + TLV.pack(UNKNOWN, 3) + b"new" + MessageOptions(order_key="k").encode()
    )
    assert decode_options(fields) == MessageOptions(priority=4, order_key="k")
    assert has_priority(TLV.pack(UNKNOWN, 3) + b"new" + MessageOptions(priority=4).encode())


@pytest.mark.parametrize(
    "options",
    [
        MessageOptions(not_before_ns=5),
        MessageOptions(expires_ns=5),
        MessageOptions(dedup_id="some id"),
        MessageOptions(order_key="some key"),
    ],
)
def test_a_field_that_is_not_whole_asks_for_nothing(options: MessageOptions) -> None:
    """Cut anywhere in its value: never half a key or another time. What stands before it counts."""
    whole = options.encode()
    for size in range(TLV.size, len(whole)):
        assert decode_options(whole[:size]) == NO_OPTIONS
        assert decode_options(MessageOptions(priority=4).encode() + whole[:size]) == MessageOptions(priority=4)
        assert dedup_id_of(whole[:size]) == ""


@pytest.mark.parametrize("number", [TLV_NOT_BEFORE, TLV_EXPIRES, TLV_PRIORITY, TLV_DEDUP_ID, TLV_ORDER_KEY])
def test_a_field_that_cannot_be_read_asks_for_nothing(number: int) -> None:
    """It has another size, or is no text; what stands behind it counts."""
    unreadable = TLV.pack(number, 3) + b"\xff\xfe\xfd"
    behind = MessageOptions(0, 0, 0, "", "k") if number != TLV_ORDER_KEY else MessageOptions(0, 0, 0, "i", "")
    assert decode_options(unreadable + behind.encode()) == behind


@pytest.mark.parametrize("priority", [PRIORITY_MAX + 1, 255])
def test_a_priority_that_there_is_not_asks_for_nothing(priority: int) -> None:
    """What was read can be written again; what stands behind it counts."""
    stored = TLV.pack(TLV_PRIORITY, 1) + bytes((priority,)) + MessageOptions(order_key="k").encode()
    options = decode_options(stored)
    assert options == MessageOptions(order_key="k")
    assert decode_options(options.encode()) == options


def test_headers_that_leave_no_room_for_what_is_asked_are_too_large() -> None:
    """The size said is that of both, and just fitting fits."""
    options = MessageOptions(priority=1)
    room = HEADERS_BYTES_MAX - len(options.encode())
    assert len(with_options(options, bytes(room))) == HEADERS_BYTES_MAX
    with pytest.raises(RecordTooLargeError) as caught:
        with_options(options, bytes(room + 1))
    assert (caught.value.size_bytes, caught.value.max_bytes) == (HEADERS_BYTES_MAX + 1, HEADERS_BYTES_MAX)

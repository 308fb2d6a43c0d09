"""Headers of messages: type, length, value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import RecordTooLargeError
from holdfast.messages import CommonHeaders
from holdfast.persistence.format.constants import TLV, TLV_MUST_UNDERSTAND
from holdfast.persistence.format.message_headers import decode_headers, encode_headers

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@given(st.dictionaries(TEXT, TEXT, max_size=8))
def test_headers_come_back(headers: dict[str, str]) -> None:
    """Every name and value of text, in any order, empty ones too."""
    assert decode_headers(encode_headers(headers)) == headers


def test_no_headers_take_no_bytes() -> None:
    """A message without them pays nothing."""
    assert encode_headers({}) == b""
    assert decode_headers(b"") == {}


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": b"b"}, {None: "a"}])
def test_headers_that_are_no_text_are_refused_by_type(headers: dict[str, str]) -> None:
    """The error names both types."""
    with pytest.raises(TypeError, match="str to str"):
        encode_headers(headers)


def test_a_name_has_at_most_255_bytes() -> None:
    """Counted as UTF-8, not as characters."""
    assert decode_headers(encode_headers({"n" * 255: "v"})) == {"n" * 255: "v"}
    with pytest.raises(RecordTooLargeError) as caught:
        encode_headers({"ü" * 128: "v"})
    assert (caught.value.size_bytes, caught.value.max_bytes) == (256, 255)


def test_all_headers_together_have_at_most_65535_bytes() -> None:
    """One large one, or several."""
    room = 65_535 - TLV.size - 2
    assert decode_headers(encode_headers({"n": "v" * room})) == {"n": "v" * room}
    for headers in ({"n": "v" * (room + 1)}, {"a": "v" * 40_000, "b": "v" * 40_000}, {"n": "v" * 70_000}):
        with pytest.raises(RecordTooLargeError, match="payload"):
            encode_headers(headers)


def test_an_unknown_number_is_passed_over() -> None:
    """A later version may have written it for itself."""
    unknown = TLV.pack(77, 3) + b"abc"
    assert decode_headers(unknown + encode_headers({"a": "b"}) + unknown) == {"a": "b"}


def test_an_unknown_number_that_must_be_understood_is_an_error() -> None:
    """Handing the message out would be wrong."""
    with pytest.raises(ValueError, match="must be understood"):
        decode_headers(TLV.pack(TLV_MUST_UNDERSTAND | 77, 0))


@pytest.mark.parametrize(
    "encoded",
    [
        b"\x01",
        TLV.pack(1, 5) + b"abc",
        TLV.pack(1, 0),
        TLV.pack(1, 2) + b"\x05a",
        encode_headers({"a": "b"})[:-1],
        encode_headers({"a": "b"}) + b"\x01\x00",
    ],
)
def test_headers_that_are_cut_off_are_an_error(encoded: bytes) -> None:
    """Never half a value."""
    with pytest.raises(ValueError, match="field"):
        decode_headers(encoded)


def test_common_headers_are_encoded_once_and_as_any_others() -> None:
    """They are a mapping like any other, that cannot change."""
    source = {"content-type": "application/json"}
    common = CommonHeaders(source)
    source["more"] = "later"
    assert dict(common) == {"content-type": "application/json"}
    assert (len(common), common["content-type"], common.encoded) == (1, "application/json", b"")
    encoded = encode_headers(common)
    assert encoded == encode_headers(dict(common)) == common.encoded
    assert encode_headers(common) is encoded
    assert "application/json" in repr(common)
    assert encode_headers(CommonHeaders({})) == b""

"""The headers between a frame's header and its payload: numbered type-length-value. docs/format.md, "Headers". Pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import HeadersError, RecordTooLargeError
from holdfast.messages import CommonHeaders
from holdfast.persistence.format.constants import (
    HEADERS_BYTES_MAX,
    TLV,
    TLV_DEDUP_ID,
    TLV_EXPIRES,
    TLV_MUST_UNDERSTAND,
    TLV_NOT_BEFORE,
    TLV_ORDER_KEY,
    TLV_PRIORITY,
    TLV_USER_HEADER,
)

_OPTIONS = frozenset({TLV_NOT_BEFORE, TLV_PRIORITY, TLV_EXPIRES, TLV_DEDUP_ID, TLV_ORDER_KEY})
"""The business of ``message_options.py``."""

_NAME_BYTES_MAX = 255


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Return the bytes of an application's headers.

    Raises
    ------
    TypeError
        A name or a value is not a string.
    RecordTooLargeError
        A name over 255 bytes, or more than 65,535 bytes in all.
    """
    if type(headers) is CommonHeaders:
        headers.encoded = headers.encoded or _encode(headers)
        return headers.encoded
    return _encode(headers)


def _encode(headers: Mapping[str, str]) -> bytes:
    parts = []
    try:
        items = headers.items()
    except AttributeError:
        raise TypeError(f"headers map str to str, as a dict does, not {type(headers).__name__}") from None
    for name, value in items:
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"headers map str to str, not {type(name).__name__} to {type(value).__name__}")
        name_bytes, value_bytes = name.encode(), value.encode()
        if len(name_bytes) > _NAME_BYTES_MAX:
            raise RecordTooLargeError(
                f"a header name has {len(name_bytes)} bytes; at most {_NAME_BYTES_MAX}",
                size_bytes=len(name_bytes),
                max_bytes=_NAME_BYTES_MAX,
            )
        body = bytes((len(name_bytes),)) + name_bytes + value_bytes
        if len(body) > HEADERS_BYTES_MAX:
            raise _too_large(len(body))
        parts.append(TLV.pack(TLV_USER_HEADER, len(body)) + body)
    encoded = b"".join(parts)
    if len(encoded) > HEADERS_BYTES_MAX:
        raise _too_large(len(encoded))
    return encoded


def decode_headers(encoded: bytes) -> dict[str, str]:
    """Return an application's headers; unknown numbers are skipped unless they must be understood.

    Raises
    ------
    HeadersError
        The bytes are not what :func:`encode_headers` makes, or hold an unknown number that must be understood.
    """
    try:
        return _decode(encoded)
    except ValueError as error:
        text = f"the headers of a message cannot be read: {error}; get its payload with get()"
        raise HeadersError(text, content_type=None, offset=None) from error


def readable_headers(encoded: bytes) -> dict[str, str]:
    """As :func:`decode_headers`, for listings of many messages; none if they cannot be read."""
    try:
        return decode_headers(encoded)
    except HeadersError:
        return {}


def _decode(encoded: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    at = 0
    while at < len(encoded):
        if at + TLV.size > len(encoded):
            raise ValueError("headers end in the middle of a field")
        number, size = TLV.unpack_from(encoded, at)
        value = encoded[at + TLV.size : at + TLV.size + size]
        at += TLV.size + size
        if len(value) != size:
            raise ValueError("headers end in the middle of a field")
        if number == TLV_USER_HEADER:
            if not value or 1 + value[0] > size:
                raise ValueError("a header's name is longer than its field")
            headers[value[1 : 1 + value[0]].decode()] = value[1 + value[0] :].decode()
        elif number & TLV_MUST_UNDERSTAND and number not in _OPTIONS:
            raise ValueError(f"header number {number:#x} must be understood, and this version does not know it")
    return headers


def _too_large(size: int) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"headers take {size} bytes; at most {HEADERS_BYTES_MAX}. Put large values into the payload",
        size_bytes=size,
        max_bytes=HEADERS_BYTES_MAX,
    )

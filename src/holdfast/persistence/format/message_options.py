"""The delivery options of a message: fields in front of its headers. docs/format.md, "Headers". Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from holdfast.errors import RecordTooLargeError
from holdfast.persistence.format.constants import (
    HEADERS_BYTES_MAX,
    PRIORITY_MAX,
    TLV,
    TLV_DEDUP_ID,
    TLV_EXPIRES,
    TLV_NOT_BEFORE,
    TLV_ORDER_KEY,
    TLV_PRIORITY,
    TLV_TIME,
    TLV_USER_HEADER,
)

_FIRST_USER_HEADER = TLV.pack(TLV_USER_HEADER, 0)[:2]
_PRIORITY_NUMBER = TLV.pack(TLV_PRIORITY, 0)[:2]

ENCODED_PRIORITIES = (b"", *(TLV.pack(TLV_PRIORITY, 1) + bytes((priority,)) for priority in range(1, PRIORITY_MAX + 1)))
"""What is stored of each priority."""

_CACHED_COUNT, _CACHED_BYTES_MAX = 256, 64
"""Decoded options that are kept, and how large they may be: many messages have the same few."""


class MessageOptions(NamedTuple):
    """The delivery options of a message.

    Attributes
    ----------
    not_before_ns : int
        Not delivered before this time, in nanoseconds since the epoch; 0: at once.
    priority : int
        0 to 9, larger first.
    expires_ns : int
        Expires at this time, in nanoseconds since the epoch; 0: never.
    dedup_id : str
        The deduplication id; empty: none.
    order_key : str
        Messages of one key are delivered in order, one at a time; empty: none.
    """

    not_before_ns: int = 0
    priority: int = 0
    expires_ns: int = 0
    dedup_id: str = ""
    order_key: str = ""

    def encode(self) -> bytes:
        """Return the fields that are set, to be put in front of an application's headers."""
        not_before_ns, priority, expires_ns, dedup_id, order_key = self
        return encode_options(not_before_ns, priority, expires_ns, dedup_id.encode(), order_key.encode())


NO_OPTIONS = MessageOptions()


def encode_options(not_before_ns: int, priority: int, expires_ns: int, dedup_id: bytes, order_key: bytes) -> bytes:
    """Return the fields that are set: those of :class:`MessageOptions`, texts as UTF-8."""
    stored = b""
    if not_before_ns:
        stored = TLV.pack(TLV_NOT_BEFORE, TLV_TIME.size) + TLV_TIME.pack(not_before_ns)
    if priority:
        stored += ENCODED_PRIORITIES[priority]
    if expires_ns:
        stored += TLV.pack(TLV_EXPIRES, TLV_TIME.size) + TLV_TIME.pack(expires_ns)
    if dedup_id:
        stored += TLV.pack(TLV_DEDUP_ID, len(dedup_id)) + dedup_id
    if order_key:
        stored += TLV.pack(TLV_ORDER_KEY, len(order_key)) + order_key
    return stored


def has_options(headers: bytes) -> bool:
    """Whether a message has options: they are in front, so its first two bytes tell."""
    return bool(headers) and not headers.startswith(_FIRST_USER_HEADER)


def has_priority(headers: bytes) -> bool:
    """Whether a message has a priority; incomplete headers may seem to have one too."""
    if headers.startswith(_FIRST_USER_HEADER) or _PRIORITY_NUMBER not in headers:  # most have none: every put asks
        return False
    at = 0
    while at + TLV.size <= len(headers):
        number, size = TLV.unpack_from(headers, at)
        if number == TLV_PRIORITY:
            return True
        if number == TLV_USER_HEADER:
            break
        at += TLV.size + size
    return False


def dedup_id_of(headers: bytes) -> str:
    """Return a message's deduplication id; empty if it has none."""
    return decode_options(headers).dedup_id


def decode_options(headers: bytes) -> MessageOptions:
    """Return a message's options; unreadable options are ignored, so that the message does not block the queue."""
    if not headers or headers.startswith(_FIRST_USER_HEADER):  # as has_options() says, without the call
        return NO_OPTIONS
    return _decoded(headers) if len(headers) <= _CACHED_BYTES_MAX else _decode(headers)


def _decode(headers: bytes) -> MessageOptions:
    not_before_ns = priority = expires_ns = at = 0
    dedup_id = order_key = ""
    while at + TLV.size <= len(headers):
        number, size = TLV.unpack_from(headers, at)
        value = headers[at + TLV.size : at + TLV.size + size]
        at += TLV.size + size
        if number == TLV_USER_HEADER:
            break
        if len(value) != size:
            break
        if number == TLV_NOT_BEFORE and size == TLV_TIME.size:
            (not_before_ns,) = TLV_TIME.unpack(value)
        elif number == TLV_PRIORITY and size == 1 and value[0] <= PRIORITY_MAX:
            priority = value[0]
        elif number == TLV_EXPIRES and size == TLV_TIME.size:
            (expires_ns,) = TLV_TIME.unpack(value)
        elif number == TLV_DEDUP_ID:
            dedup_id = _text(value)
        elif number == TLV_ORDER_KEY:
            order_key = _text(value)
    return MessageOptions(not_before_ns, priority, expires_ns, dedup_id, order_key)


_decoded = lru_cache(_CACHED_COUNT)(_decode)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return ""


def not_too_large(stored: bytes) -> bytes:
    """Return the headers to be stored of a message; raises RecordTooLargeError."""
    if len(stored) > HEADERS_BYTES_MAX:
        raise RecordTooLargeError(
            f"headers take {len(stored)} bytes with what the message asks for; at most {HEADERS_BYTES_MAX}",
            size_bytes=len(stored),
            max_bytes=HEADERS_BYTES_MAX,
        )
    return stored

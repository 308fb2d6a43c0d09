"""The options of a put, and ``Put``, which carries them inside a batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypedDict

from holdfast.clock import Clock
from holdfast.errors import UsageError
from holdfast.persistence.format.constants import PRIORITY_MAX
from holdfast.persistence.format.message_headers import encode_headers
from holdfast.persistence.format.message_options import ENCODED_PRIORITIES, encode_options, not_too_large
from holdfast.queue.options.arguments import SECONDS_MAX, as_bytes

Seconds = float | timedelta
"""A duration."""

_TEXT_BYTES_MAX = 255
_NS_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PutOptions(TypedDict, total=False):
    """The options that :meth:`PersistentQueue.put` takes beside the payload."""

    timeout: float | None
    headers: Mapping[str, str] | None
    delay: Seconds | None
    not_before: datetime | float | None
    priority: int
    ttl: Seconds | None
    dedup_id: str | None
    order_key: str | None


@dataclass(frozen=True, slots=True)
class Put:
    """A message of a batch with all that can be asked for it: ``q.put_many([b"plain", Put(b"later", delay=60)])``.

    Attributes
    ----------
    payload : bytes-like
        Opaque.
    headers : mapping of str to str or None
        Names and values beside the payload.
    delay, not_before, priority, ttl, order_key
        As in :meth:`PersistentQueue.put`. A deduplication id belongs to a message put on its own.
    """

    payload: bytes
    headers: Mapping[str, str] | None = None
    delay: Seconds | None = None
    not_before: datetime | float | None = None
    priority: int = 0
    ttl: Seconds | None = None
    order_key: str | None = None

    def encode(self, clock: Clock) -> bytes:
        """Return the headers to be stored."""
        asked = (self.headers, self.delay, self.not_before, self.priority, self.ttl)
        return encode_put(clock, *asked, order_key=self.order_key)


def encode_put(
    clock: Clock,
    headers: Mapping[str, str] | None,
    delay: Seconds | None = None,
    not_before: datetime | float | None = None,
    priority: int = 0,
    ttl: Seconds | None = None,
    dedup_id: str | None = None,
    order_key: str | None = None,
) -> bytes:
    """Return the headers to be stored of a message that is put now; ``clock`` is read if times are asked for.

    Raises
    ------
    UsageError
        A value that cannot work.
    TypeError
        A value of another type.
    """
    if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
        raise UsageError(f"priority is 0 to {PRIORITY_MAX}, larger first; not {priority!r}")
    is_timed = delay is not None or not_before is not None or ttl is not None
    if not is_timed and headers is None and dedup_id is None and order_key is None:
        return ENCODED_PRIORITIES[priority]
    if priority and order_key is not None:
        raise UsageError(
            "a message has a priority or an order_key: messages of one key come in the order they were put"
        )
    not_before_ns, expires_ns = _times(clock.time_ns(), delay, not_before, ttl) if is_timed else (0, 0)
    id_bytes = b"" if dedup_id is None else _encoded(dedup_id, "dedup_id")
    key_bytes = b"" if order_key is None else _encoded(order_key, "order_key")
    options = encode_options(not_before_ns, priority, expires_ns, id_bytes, key_bytes)
    return not_too_large(options if headers is None else options + encode_headers(headers))


def _times(
    now_ns: int, delay: Seconds | None, not_before: datetime | float | None, ttl: Seconds | None
) -> tuple[int, int]:
    """Return when a message may be delivered, and when it expires, in nanoseconds since the epoch; 0: not asked for."""
    if delay is not None and not_before is not None:
        raise UsageError("delay says how long from now, not_before says when: give one of them")
    not_before_ns = 0
    if delay is not None:
        not_before_ns = now_ns + as_ns(delay, "delay") if as_ns(delay, "delay") else 0
    elif not_before is not None:
        not_before_ns = instant_ns(not_before, "not_before")
    expires_ns = 0
    if ttl is not None:
        expires_ns = now_ns + as_ns(ttl, "ttl")
        if expires_ns <= now_ns:
            raise UsageError(f"ttl is how long a message may wait, in seconds; not {ttl!r}")
    return min(not_before_ns, _NS_MAX), min(expires_ns, _NS_MAX)


def as_batch(payloads: Iterable[bytes | Put], clock: Clock) -> tuple[list[bytes], dict[int, bytes] | None]:
    """Return the payloads of a batch, and the headers to be stored of those that have any, by number."""
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise TypeError("put_many takes several payloads, in a list for example; put takes one")
    batch: list[bytes] = []
    headers: dict[int, bytes] = {}
    for payload in payloads:
        if type(payload) is bytes:
            batch.append(payload)
        elif isinstance(payload, Put):
            stored = payload.encode(clock)
            if stored:
                headers[len(batch)] = stored
            batch.append(as_bytes(payload.payload))
        else:
            batch.append(as_bytes(payload))
    return batch, headers or None


def as_seconds(value: Seconds, what: str) -> float:
    """Return a duration in seconds; raises UsageError if it is negative or no number, TypeError as usual."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    _check_seconds(seconds, value, what)
    return float(min(seconds, SECONDS_MAX))


def lease_of(value: Seconds) -> float:
    """Return how long a lease is, in seconds; raises as :func:`as_seconds`, and for none at all."""
    seconds = as_seconds(value, "lease_seconds")
    if not seconds:
        raise UsageError("a lease of 0 s would expire before the message is received")
    return seconds


def as_ns(value: Seconds, what: str) -> int:
    """Return a duration in nanoseconds; raises as :func:`as_seconds`."""
    return round(as_seconds(value, what) * 1e9)


def instant_ns(instant: datetime | float, what: str) -> int:
    """Return a point in time in nanoseconds since the epoch; raises UsageError for a datetime without a time zone."""
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise UsageError(f"{what} takes a datetime with a time zone: datetime.now(timezone.utc) has one")
        ns = (instant - _EPOCH) // timedelta(microseconds=1) * 1000  # a float would be off by some 100 ns
        if ns < 0:
            raise UsageError(f"{what} takes a time from 1970 on, not {instant}")
        return ns
    if not isinstance(instant, int | float):
        raise TypeError(f"{what} takes a datetime, or seconds since the epoch, not {type(instant).__name__}")
    _check_seconds(instant, instant, what)
    return round(instant * 1e9) if instant < _NS_MAX / 1e9 else _NS_MAX


def _check_seconds(seconds: float, value: object, what: str) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{what} takes seconds or a timedelta, not {type(value).__name__}")
    if not seconds >= 0 or seconds == math.inf:
        raise UsageError(f"{what} takes seconds from 0 on, not {value!r}")


def _encoded(text: str, what: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"{what} takes a str, not {type(text).__name__}")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} takes a text that can be encoded as UTF-8, not {text!a}") from None
    if not 1 <= len(encoded) <= _TEXT_BYTES_MAX:
        raise UsageError(f"{what} has 1 to {_TEXT_BYTES_MAX} bytes of UTF-8, not {len(encoded)}")
    return encoded

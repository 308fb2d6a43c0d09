"""Checks of arguments that callers pass to a queue."""

from __future__ import annotations

import os
from operator import index
from pathlib import Path

from holdfast.errors import ConfigError, RecordTooLargeError
from holdfast.persistence.format.constants import DATA_FILE_BYTES_LIMIT, HEADERS_BYTES_MAX

DATA_FILE_BYTES_MIN = 16 * 2**10
"""Below this a data file would be mostly header."""

RECORD_BYTES_LIMIT = DATA_FILE_BYTES_LIMIT - 2**24
"""A record has to fit into a data file with its headers and the file's seal."""

SECONDS_MAX = 2**32
"""The longest duration, 136 years: whatever is longer is taken for that, so that no point in time leaves 64 bits."""

_COUNT_MAX = 2**62
"""No queue holds so many messages, and an offset that much further on is still a number of 64 bits."""


def absolute_path(path: str | os.PathLike[str], what: str) -> Path:
    """Return the absolute path of the directory of ``what``; raises TypeError, and ConfigError for an empty one."""
    if not isinstance(path, str | os.PathLike) or not isinstance(name := os.fspath(path), str):
        raise TypeError(f"the path of a {what} is a str or a pathlib.Path, not {type(path).__name__}")
    if not name:
        raise ConfigError(f"the path of the {what} is empty: name its directory")
    return Path(os.path.abspath(name))


def as_bytes(payload: object) -> bytes:
    """Return a bytes-like payload as bytes; raises TypeError for anything else."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise TypeError(f"a payload is bytes, not {type(payload).__name__}; QueueService takes objects and serializes them")


def wait_for(block: bool, timeout: float | None) -> float | None:
    """Return how long to wait, in seconds: 0 for not at all, None for ever."""
    if not block:
        return 0.0
    if timeout is None:
        return None
    try:
        if timeout >= 0:
            return float(min(timeout, SECONDS_MAX))
    except TypeError:
        raise TypeError(f"a timeout is None or a number of seconds, not {type(timeout).__name__}") from None
    raise ValueError(f"a timeout is None or at least 0 seconds, not {timeout!r}")


def check_count(count: int) -> int:
    """Return a number of messages as an int, not larger than makes a difference.

    Raises ValueError below 1, and TypeError for what is no whole number.
    """
    try:
        whole = index(count)
    except TypeError:
        raise TypeError(f"max_messages is a number from 1 on, not {type(count).__name__}") from None
    if whole < 1:
        raise ValueError(f"at least 1 message, not {count!r}")
    return min(whole, _COUNT_MAX)


def too_large(payload: bytes, max_bytes: int) -> RecordTooLargeError:
    """Return the error for a payload over ``record_bytes_max``."""
    return RecordTooLargeError(
        f"a payload of {len(payload)} bytes is larger than record_bytes_max={max_bytes}; nothing was written. "
        "Split it, or open the queue with a larger bound",
        size_bytes=len(payload),
        max_bytes=max_bytes,
    )


def check_sizes(*, data_file_bytes: int, record_bytes_max: int, maxsize: int, max_bytes: int | None) -> None:
    """Refuse sizes that cannot work; raises ConfigError."""
    for name, value in (("data_file_bytes", data_file_bytes), ("record_bytes_max", record_bytes_max)):
        if not isinstance(value, int):
            raise ConfigError(f"{name} is a number of bytes, not {value!r}")
    if not isinstance(max_bytes, int | None):
        raise ConfigError(f"max_bytes is a number of bytes, or None for no bound, not {max_bytes!r}")
    if not DATA_FILE_BYTES_MIN <= data_file_bytes <= DATA_FILE_BYTES_LIMIT:
        raise ConfigError(
            f"data_file_bytes is from {DATA_FILE_BYTES_MIN} to {DATA_FILE_BYTES_LIMIT}, not {data_file_bytes}"
        )
    if not 0 <= record_bytes_max <= RECORD_BYTES_LIMIT - HEADERS_BYTES_MAX:
        raise ConfigError(
            f"record_bytes_max is from 0 to {RECORD_BYTES_LIMIT - HEADERS_BYTES_MAX}, not {record_bytes_max}"
        )
    if not isinstance(maxsize, int) or maxsize < 0:
        raise ConfigError(f"maxsize is 0 for no bound, or a number of messages, not {maxsize!r}")
    if max_bytes is not None and max_bytes < 2 * data_file_bytes:
        raise ConfigError(
            f"max_bytes={max_bytes} leaves no room for two data files of {data_file_bytes} bytes: one is written "
            "while the other is drained; make it larger, or data_file_bytes smaller",
            key="max_bytes",
        )


def check_lock_timeout(lock_timeout: float) -> None:
    """Refuse a time that cannot work; raises ConfigError."""
    if not isinstance(lock_timeout, int | float) or not lock_timeout >= 0:
        raise ConfigError(f"lock_timeout is at least 0 seconds, not {lock_timeout!r}")

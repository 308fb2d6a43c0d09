"""The options that an operator may set for a queue, and the parsing of their values. Pure.

The bounds are those of :class:`PersistentQueue`: its own functions check them. Only options that TOML writes
differently from Python are parsed here, because TOML has no null and no objects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, UsageError
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.queue.options import arguments
from holdfast.queue.options.put_options import as_seconds
from holdfast.queue.options.queue_options import Options, check_options
from holdfast.queue.options.retry_policy import Backoff, retry_policy

PROGRAM_OPTIONS = frozenset({"mode", "group", "type", "serializer", "version", "allow_pickle"})
"""What only the program can know: which side it owns, and what its messages are."""

QUEUE_ONLY_OPTIONS = frozenset({"also_read"})
"""What makes no sense for all queues at once."""

_NO_BOUND = "none"
"""TOML has no null."""


class UnfitError(ValueError):
    """A value that its option cannot have.

    Attributes
    ----------
    reason : str
        Goes right behind the name of the key.
    key : tuple of str
        The key below the option; empty for the option itself.
    """

    def __init__(self, reason: str, key: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.key = key


def read_option(name: str, value: Any) -> Any:
    """Return what ``PersistentQueue`` or ``QueueService.queue`` take for the value of an option.

    Raises UnfitError; the name is one of ``OPTIONS``.
    """
    try:
        return OPTIONS[name](value)
    except (ConfigError, UsageError) as error:
        text = str(error).replace("None", f'"{_NO_BOUND}"')
        raise UnfitError(text.removeprefix(name) if text.startswith(name) else f": {text}") from None


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a hint at the known name that was probably meant, or at all of them."""
    known = sorted(known)
    close = get_close_matches(name, known, 1)
    return f"did you mean {prefix}{close[0]}?" if close else f"there are {', '.join(known)}"


def unfit(takes: str, value: Any, key: tuple[str, ...] = ()) -> UnfitError:
    """Return the error for a value of the wrong kind."""
    if isinstance(value, float) and not math.isfinite(value):
        shown = str(value)
    else:
        shown = json.dumps(value, ensure_ascii=False, default=str)
    return UnfitError(f" is {takes}, not {shown}", key)


# -- Kinds of values -------------------------------------------------------------------------------------------------


def _whole(takes: str, value: Any) -> int:
    if type(value) is not int:
        raise unfit(takes, value)
    return value


def _seconds(takes: str, value: Any, key: tuple[str, ...] = ()) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise unfit(takes, value, key)
    return float(value)


def _whole_or_none(takes: str, value: Any) -> int | None:
    return None if value == _NO_BOUND else _whole(f'{takes}, or "{_NO_BOUND}"', value)


def _known_keys(value: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in value:
        if key not in known:
            raise UnfitError(f" is no key of this table; {nearest(key, known)}", (key,))


# -- Options ---------------------------------------------------------------------------------------------------------


def _flush(value: Any) -> FlushPolicy:
    if value == "every_commit":
        return FlushPolicy.every_commit()
    if value == "never":
        return FlushPolicy.never()
    if not isinstance(value, dict):
        raise unfit('"every_commit", "never", or a table such as {commits = 1000, seconds = 0.05}', value)
    _known_keys(value, ("commits", "seconds"))
    if "commits" in value and type(value["commits"]) is not int:
        raise unfit("a number of commits from 1 on", value["commits"], ("commits",))
    if "seconds" in value:
        _seconds("a number of seconds above 0", value["seconds"], ("seconds",))
    return FlushPolicy.every(**value)


def _backoff(value: Any) -> Backoff | tuple[float, ...]:
    takes = "a number of seconds from 0 on"
    if isinstance(value, list):
        waits = tuple(_seconds("a list of seconds from 0 on", wait) for wait in value)
        _retry("backoff", waits)
        return waits
    if not isinstance(value, dict):
        raise unfit("a list of seconds, or a table such as {base = 1, cap = 3600, jitter = true}", value)
    _known_keys(value, ("base", "cap", "jitter"))
    for key in ("base", "cap"):
        if key in value:
            _seconds(takes, value[key], (key,))
    if "jitter" in value and type(value["jitter"]) is not bool:
        raise unfit("true or false", value["jitter"], ("jitter",))
    return Backoff(**value)


def _size(name: str, value: Any) -> Any:
    """Check one size by itself; whether two of them go together depends on what else is set."""
    alone: dict[str, Any] = {"data_file_bytes": arguments.DATA_FILE_BYTES_MIN, "record_bytes_max": 0, "maxsize": 0}
    arguments.check_sizes(**{**alone, "max_bytes": None, "lock_timeout": 0, name: value})
    return value


def _retry(name: str, value: Any) -> Any:
    alone: dict[str, Any] = {"max_deliveries": None, "backoff": (), "lease_seconds": 1, "dead_letter_seconds": 1}
    retry_policy(**{**alone, "expired": "drop", name: value})
    return value


def _dedup_max(value: Any) -> int:
    count = _whole("a number of ids", value)
    check_options(Options("both", "default", FlushPolicy.every_commit(), 0, 0, dedup_max=count))
    return count


def _compress_bytes(value: Any) -> int | None:
    takes = "a number of bytes from 1 on"
    size = _whole_or_none(takes, value)
    if size is not None and size < 1:
        raise unfit(takes, value)
    return size


def _true_or_false(value: Any) -> bool:
    if not isinstance(value, bool):
        raise unfit("true or false", value)
    return value


def _also_read(value: Any) -> tuple[Path, ...]:
    takes = "a list of paths of queue directories"
    if not isinstance(value, list):
        raise unfit(takes, value)
    for path in value:
        if not isinstance(path, str) or not path or "\0" in path:
            raise unfit(takes, value)
    return tuple(map(Path, value))


def _checked(check: Callable[[str, Any], Any], kind: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    return lambda value: check(name, kind(value))


_bytes = partial(_whole, "a number of bytes")
_above_zero = partial(_seconds, "a number of seconds above 0")

OPTIONS: dict[str, Callable[[Any], Any]] = {
    "flush": _flush,
    "data_file_bytes": _checked(_size, _bytes, "data_file_bytes"),
    "record_bytes_max": _checked(_size, _bytes, "record_bytes_max"),
    "maxsize": _checked(_size, partial(_whole, "0 for no bound, or a number of messages"), "maxsize"),
    "max_bytes": _checked(_size, partial(_whole_or_none, "a number of bytes"), "max_bytes"),
    "dedup_window": lambda value: as_seconds(_seconds("a number of seconds from 0 on", value), "dedup_window"),
    "dedup_max": _dedup_max,
    "max_deliveries": _checked(_retry, partial(_whole_or_none, "a number from 1 on"), "max_deliveries"),
    "backoff": _backoff,
    "lease_seconds": _checked(_retry, _above_zero, "lease_seconds"),
    "dead_letter_seconds": _checked(_retry, _above_zero, "dead_letter_seconds"),
    "expired": partial(_retry, "expired"),
    "lock_timeout": _checked(_size, partial(_seconds, "a number of seconds from 0 on"), "lock_timeout"),
    "any_file_system": _true_or_false,
    "compress_bytes": _compress_bytes,
    "also_read": _also_read,
}
"""What reads the value of each option."""

"""The values of settings as JSON and TOML have them: read from documents, the configuration and the command. Pure.

Neither has Python's objects, and TOML has no null: ``"none"`` is instead of it.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

from holdfast.errors import ConfigError, UsageError
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.queue.options.retry_policy import Backoff

_NO_BOUND = "none"

_BARE_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

_SHOWN_MAX = 100
"""Characters of a value in an error, which is one line."""

_WHOLE_MAX = 2**63 - 1
"""What each reader of a document can have as a number; far more messages and bytes than there are."""


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


def read_setting(name: str, value: Any) -> Any:
    """Return what :class:`PersistentQueue` takes for the value of a setting; its bounds are checked there.

    Raises UnfitError; KeyError if there is no such setting.
    """
    try:
        return _SETTINGS[name](value)
    except (ConfigError, UsageError) as error:
        raise unfit_bound(name, error) from None


def value_in_text(text: str) -> Any:
    """Return the value that a person has typed, as a variable or an argument: one of TOML, or a word without quotes.

    Raises UnfitError.
    """
    try:
        document = tomllib.loads(f"value = {text}")
    except (RecursionError, ValueError):  # no TOML, brackets without end, a number of thousands of digits
        document = {}
    if document.keys() == {"value"}:
        return document["value"]
    if _BARE_WORD.fullmatch(text):
        return text
    raise UnfitError(f" holds {text[:_SHOWN_MAX]!r}, which is not a value of TOML; quote texts")


def unfit_bound(name: str, error: Exception) -> UnfitError:
    """Return the error for a value that is of the right kind, and out of its bounds."""
    text = str(error).replace("None", f'"{_NO_BOUND}"')
    return UnfitError(text.removeprefix(name) if text.startswith(name) else f": {text}")


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a hint at the known name that was probably meant, or at all of them."""
    known = sorted(known)
    close = get_close_matches(name, known, 1)
    return f"did you mean {prefix}{close[0]}?" if close else f"there are {', '.join(known)}"


def unfit(takes: str, value: Any, key: tuple[str, ...] = ()) -> UnfitError:
    """Return the error for a value of the wrong kind."""
    if isinstance(value, float) and not math.isfinite(value):
        shown = str(value)
    elif isinstance(value, int) and abs(value) > _WHOLE_MAX:  # Python refuses to write thousands of digits
        shown = f"{value:#x}"
    else:
        shown = json.dumps(value, ensure_ascii=False, default=str)
    return UnfitError(f" is {takes}, not {shown if len(shown) <= _SHOWN_MAX else shown[:_SHOWN_MAX] + '...'}", key)


# -- Kinds of values -------------------------------------------------------------------------------------------------


def _whole(takes: str, value: Any, key: tuple[str, ...] = ()) -> int:
    if type(value) is not int:
        raise unfit(takes, value, key)
    if abs(value) > _WHOLE_MAX:
        raise unfit(f"{takes}, below 2^63", value, key)
    return value


def read_seconds(takes: str, value: Any, key: tuple[str, ...] = ()) -> float:
    """Return a number of seconds; raises UnfitError."""
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:  # so that each int becomes a float
        raise unfit(takes, value, key)
    return float(value)


def read_whole_or_none(takes: str, value: Any) -> int | None:
    """Return a whole number, or None for the word for no bound; raises UnfitError."""
    return None if value in (None, _NO_BOUND) else _whole(f'{takes}, or "{_NO_BOUND}"', value)


def _seconds_or_none(takes: str, value: Any) -> float | None:
    return None if value in (None, _NO_BOUND) else read_seconds(f'{takes}, or "{_NO_BOUND}"', value)


def _known_keys(value: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in value:
        if key not in known:
            raise UnfitError(f" is no key of this table; {nearest(key, known)}", (key,))


# -- Settings --------------------------------------------------------------------------------------------------------


def _flush(value: Any) -> FlushPolicy:
    if value == "every_commit":
        return FlushPolicy.every_commit()
    if value == "never":
        return FlushPolicy.never()
    if not isinstance(value, dict):
        raise unfit('"every_commit", "never", or a table such as {commits = 1000, seconds = 0.05}', value)
    _known_keys(value, ("commits", "seconds"))
    if "commits" in value:
        _whole("a number of commits from 1 on", value["commits"], ("commits",))
    if "seconds" in value:
        read_seconds("a number of seconds above 0", value["seconds"], ("seconds",))
    return FlushPolicy.every(**value)


def _backoff(value: Any) -> Backoff | tuple[float, ...]:
    takes = "a number of seconds from 0 on"
    if isinstance(value, list):
        return tuple(read_seconds("a list of seconds from 0 on", wait) for wait in value)
    if not isinstance(value, dict):
        raise unfit("a list of seconds, or a table such as {base = 1, cap = 3600, jitter = true}", value)
    _known_keys(value, ("base", "cap", "jitter"))
    for key in ("base", "cap"):
        if key in value:
            read_seconds(takes, value[key], (key,))
    if "jitter" in value and type(value["jitter"]) is not bool:
        raise unfit("true or false", value["jitter"], ("jitter",))
    return Backoff(**value)


def _expired(value: Any) -> str:
    if not isinstance(value, str):
        raise unfit('"drop" or "dead"', value)
    return value


_bytes = partial(_whole, "a number of bytes")
_seconds_or_no_bound = partial(_seconds_or_none, "a number of seconds above 0")
_above_zero = partial(read_seconds, "a number of seconds above 0")

_SETTINGS: dict[str, Callable[[Any], Any]] = {
    "flush": _flush,
    "data_file_bytes": _bytes,
    "record_bytes_max": _bytes,
    "maxsize": partial(_whole, "0 for no bound, or a number of messages"),
    "max_bytes": partial(read_whole_or_none, "a number of bytes"),
    "dedup_window": partial(read_seconds, "a number of seconds from 0 on"),
    "dedup_max": partial(_whole, "a number of ids"),
    "retain_age": _seconds_or_no_bound,
    "retain_bytes": partial(read_whole_or_none, "a number of bytes"),
    "retain_messages": partial(read_whole_or_none, "a number of messages"),
    "data_file_max_age": _seconds_or_no_bound,
    "min_free_bytes": partial(read_whole_or_none, "a number of bytes"),
    "compact_ratio": partial(_seconds_or_none, "a number above 0"),
    "max_deliveries": partial(read_whole_or_none, "a number from 1 on"),
    "backoff": _backoff,
    "lease_seconds": _above_zero,
    "dead_letter_seconds": _above_zero,
    "expired": _expired,
    "max_lag_age": _seconds_or_no_bound,
    "max_lag_bytes": partial(read_whole_or_none, "a number of bytes"),
}
"""What reads the value of each setting."""

"""The settings of a queue and of its groups: what they are, what they may be, and how the disk has them. Pure.

A setting belongs to the queue, or to one of its groups, and not to the process that has it open. It is stored if it was
ever set: so a later default reaches the queues that never chose. docs/settings.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, cast

from holdfast.errors import ConfigError, UnsupportedVersionError, UsageError
from holdfast.persistence.format.constants import DEDUP_SLOTS_MAX
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.queue.options.arguments import DATA_FILE_BYTES_MIN, check_sizes
from holdfast.queue.options.message_filter import MessageFilter
from holdfast.queue.options.put_options import Seconds, as_seconds
from holdfast.queue.options.retention import LAG_SETTINGS, checked_retention
from holdfast.queue.options.retry_policy import Backoff, RetryPolicy, retry_policy
from holdfast.queue.options.setting_values import UnfitError, nearest, read_setting


class QueueSettings(TypedDict, total=False):
    """What belongs to a queue."""

    flush: FlushPolicy
    data_file_bytes: int
    record_bytes_max: int
    maxsize: int
    max_bytes: int | None
    dedup_window: Seconds
    dedup_max: int
    retain_age: Seconds | None
    retain_bytes: int | None
    retain_messages: int | None
    data_file_max_age: Seconds | None
    min_free_bytes: int | None
    compact_ratio: float | None


class GroupSettings(TypedDict, total=False):
    """What belongs to a consumer group."""

    max_deliveries: int | None
    backoff: Backoff | Sequence[float]
    lease_seconds: Seconds
    dead_letter_seconds: Seconds
    expired: Literal["drop", "dead"]
    max_lag_age: Seconds | None
    max_lag_bytes: int | None


class Settings(QueueSettings, GroupSettings, total=False):
    """Both: the keyword arguments of :class:`PersistentQueue` and of :meth:`PersistentQueue.configure`."""


QUEUE_SETTINGS = frozenset(QueueSettings.__annotations__)
GROUP_SETTINGS = frozenset(GroupSettings.__annotations__)
_RETRY_SETTINGS = GROUP_SETTINGS - LAG_SETTINGS

FILTER = "filter"
"""Stored among the settings of a group, and given when the group is made: it never changes, so it is none of them."""

DEFAULTS: Settings = {
    "flush": FlushPolicy.every_commit(),
    "data_file_bytes": 64 * 2**20,
    "record_bytes_max": 16 * 2**20,
    "maxsize": 0,
    "max_bytes": None,
    "dedup_window": 300.0,
    "dedup_max": 100_000,
    "retain_age": None,
    "retain_bytes": None,
    "retain_messages": None,
    "data_file_max_age": None,
    "min_free_bytes": None,
    "compact_ratio": None,
    "max_deliveries": 5,
    "backoff": Backoff(),
    "lease_seconds": 30.0,
    "dead_letter_seconds": 14 * 86400.0,
    "expired": "drop",
    "max_lag_age": None,
    "max_lag_bytes": None,
}


def check_names(names: Iterable[str], verb: str, *others: str, known: Iterable[str] = DEFAULTS) -> None:
    """Refuse names of settings that a verb does not know; raises TypeError, as Python does for keyword arguments.

    ``others`` are what the verb takes beside them.
    """
    for name in names:
        if name not in known:
            raise TypeError(f"{verb}() has no option {name!r}; {nearest(name, (*known, *others))}")


def checked(settings: Mapping[str, Any]) -> Settings:
    """Return settings as they are compared and stored: times in seconds, lists as tuples.

    Raises
    ------
    ConfigError
        One cannot work, or not together with the others; with those that are missing it is not compared.
    """
    if not settings:
        return {}
    every = {**DEFAULTS, "data_file_bytes": DATA_FILE_BYTES_MIN, **settings}
    if not isinstance(every["flush"], FlushPolicy):
        raise ConfigError("flush takes FlushPolicy.every_commit(), .every(...) or .never()")
    check_sizes(**{name: every[name] for name in ("data_file_bytes", "record_bytes_max", "maxsize", "max_bytes")})
    if type(every["dedup_max"]) is not int or not 1 <= every["dedup_max"] <= DEDUP_SLOTS_MAX:
        raise ConfigError(f"dedup_max is from 1 to {DEDUP_SLOTS_MAX}, not {every['dedup_max']!r}")
    try:
        every["dedup_window"] = as_seconds(every["dedup_window"], "dedup_window")
    except (TypeError, UsageError) as error:
        raise ConfigError(str(error)) from None
    retry = retry_of(every)
    every |= {name: getattr(retry, name) for name in _RETRY_SETTINGS}
    every |= checked_retention(every)
    for name in settings:
        _check_reads_back(name, every[name])
    return cast(Settings, {name: every[name] for name in settings})


def _check_reads_back(name: str, value: Any) -> None:
    """Refuse what could be stored and not read again, such as True for a number, or an infinite time."""
    _read(name, as_json(value))


def _read(name: str, value: Any) -> Any:
    try:
        return read_setting(name, value)
    except UnfitError as error:
        raise ConfigError(f"{'.'.join((name, *error.key))}{error.reason}", key=name) from None


def retry_of(settings: Mapping[str, Any]) -> RetryPolicy:
    """Return the rules of a group with these settings; those that are missing have their defaults."""
    return retry_policy(**{name: settings.get(name, DEFAULTS[name]) for name in sorted(_RETRY_SETTINGS)})  # type: ignore[literal-required]


def stored(settings: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Return those of some names as JSON has them, in ``queue.json`` or ``group.json``."""
    return {name: as_json(value) for name, value in settings.items() if name in names}


def filter_of(document: Mapping[str, Any] | None) -> MessageFilter | None:
    """Return the filter of a group with these stored settings; raises ConfigError if this process cannot have it."""
    expression = (document or {}).get(FILTER)
    return None if expression is None else MessageFilter(expression)


def read_stored(document: Mapping[str, Any], path: object) -> Settings:
    """Return what :func:`stored` has made; without the filter, which :func:`filter_of` returns.

    Raises
    ------
    UnsupportedVersionError
        A name or a value of a later version.
    """
    try:
        return checked({name: _read(name, value) for name, value in document.items() if name != FILTER})
    except (KeyError, ConfigError) as error:
        raise UnsupportedVersionError(
            f"{path} has a setting that this Holdfast does not know ({error}): a later one has written it, so open the "
            "queue with that one"
        ) from None


def as_json(value: Any) -> Any:
    """Return the value of a setting as JSON has it; a time or a list is one that :func:`checked` has returned."""
    if isinstance(value, Backoff):
        return {"base": value.base, "cap": value.cap, "jitter": value.jitter}
    if isinstance(value, FlushPolicy):
        if value in (FlushPolicy.every_commit(), FlushPolicy.never()):
            return "every_commit" if value.syncs_every_commit else "never"
        return {"commits": value.commits, "seconds": value.seconds}
    return list(value) if isinstance(value, tuple) else value


def shown(value: Any) -> str:
    """Return a setting's value as errors, logs and the command show it: as TOML has it, words without quotes."""
    value = as_json(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}={shown(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "none" if value is None else str(value)

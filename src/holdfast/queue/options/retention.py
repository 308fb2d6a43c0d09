"""What a queue keeps beside what its groups need, and how far a group may fall behind. Pure. docs/retention.md."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from holdfast.errors import ConfigError, UsageError
from holdfast.persistence.groups.retention import NOTHING, Bounds, Retention
from holdfast.queue.options.put_options import as_ns, as_seconds

LAG_SETTINGS = frozenset({"max_lag_age", "max_lag_bytes"})
"""Of a group."""

_AGES = ("retain_age", "data_file_max_age", "max_lag_age")
_SIZES = {"retain_bytes": "bytes", "retain_messages": "messages", "min_free_bytes": "bytes", "max_lag_bytes": "bytes"}

_FILES_FREE = 2
"""Of ``max_bytes``: the next file, and one more, because a full file is only seen a moment later."""


def checked_retention(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return these settings as they are stored: times in seconds; raises ConfigError."""
    found: dict[str, Any] = {}
    for name in _AGES:
        value = settings[name]
        try:
            found[name] = None if value is None else as_seconds(value, name)
        except (TypeError, UsageError) as error:
            raise ConfigError(str(error)) from None
        if found[name] == 0:
            raise ConfigError(f"{name} is a time above 0, or None for no bound, not {value!r}")
    for name, unit in _SIZES.items():
        value = found[name] = settings[name]
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"{name} is a number of {unit} from 1 on, or None for no bound, not {value!r}")
    ratio = settings["compact_ratio"]
    if ratio is not None and (type(ratio) not in {int, float} or not 0 < ratio < inf):
        raise ConfigError(f"compact_ratio is a number above 0, or None for no merges, not {ratio!r}")
    found["compact_ratio"] = None if ratio is None else float(ratio)
    return found


def retention_of(settings: Mapping[str, Any], wanted_bytes: int = 0) -> Retention:
    """Return what a queue with these settings keeps. Those of its default group count while there is no group.

    ``wanted_bytes``: of the largest put that waits for space. No put waits for what is only kept.
    """
    kept = Bounds(_ns(settings, "retain_age"), settings["retain_bytes"], settings["retain_messages"])
    if not kept.is_any:
        kept = NOTHING
    max_bytes, file_bytes = settings["max_bytes"], settings["data_file_bytes"]
    if max_bytes is not None:
        max_bytes = max(0, max_bytes - (_FILES_FREE - 1) * file_bytes - max(file_bytes, wanted_bytes))
    return Retention(kept, lag_of(settings), settings["min_free_bytes"] or 0, max_bytes, file_bytes)


def lag_of(settings: Mapping[str, Any]) -> Bounds:
    """Return how far behind a group with these settings may be."""
    return Bounds(_ns(settings, "max_lag_age"), settings["max_lag_bytes"])


def _ns(settings: Mapping[str, Any], name: str) -> int | None:
    return None if settings[name] is None else as_ns(settings[name], name)

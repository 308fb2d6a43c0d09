"""The catalogue's source besides files: the open service's facts about its queues. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast.persistence.format.report import Damage
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.queue.options.retry_policy import Backoff

Row = dict[str, Any]
"""One row of a table, by column."""

Rows = dict[str, list[Row]]
"""The rows of one queue, by table."""


@dataclass(frozen=True)
class QueueFacts:
    """The facts about a queue that the service has and no file contains.

    Attributes
    ----------
    name : str
        Its name in the service.
    path : Path
        Its directory.
    settings : mapping
        The options it is open with, as the program and the configuration have them.
    content_types : tuple of str
        What its codec writes.
    damage : tuple of Damage
        What opening and reading have met: ``recovery.damage`` and ``recovery.progress_damage``.
    """

    name: str
    path: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    content_types: Sequence[str] = ()
    damage: Sequence[Damage] = ()


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings as JSON for people: objects as in ``holdfast.toml``, or by name."""
    return json.dumps(dict(settings), default=_plain, ensure_ascii=False, sort_keys=True)


def _plain(value: Any) -> Any:
    for kind, plain in _PLAIN.items():
        if isinstance(value, kind):
            return plain(value)
    return str(getattr(value, "name", value))


def _plain_flush(policy: FlushPolicy) -> Any:
    if policy.syncs_every_commit:
        return "every_commit"
    return "never" if policy.commits is None else asdict(policy)


_PLAIN: dict[type, Callable[[Any], Any]] = {
    FlushPolicy: _plain_flush,
    Backoff: asdict,
    timedelta: timedelta.total_seconds,
    Path: str,
    type: lambda value: value.__qualname__,
    Sequence: list,
}


def storable_text(text: str) -> str:
    """Return text as UTF-8 can have it: an exception's text may be anything, and SQLite takes no lone surrogates."""
    return text.encode(errors="backslashreplace").decode()


def time_text(ns: int | None) -> str | None:
    """Return a point in time as text that sorts, and that SQLite's date functions read; None for none."""
    if not ns:
        return None
    seconds, rest = divmod(ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06d}Z"

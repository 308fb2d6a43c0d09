"""The options that an operator may set for a queue: its settings, and what a process asks for. Pure.

The bounds are those of :class:`PersistentQueue`: its own functions check them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, UsageError
from holdfast.queue.options.arguments import DATA_FILE_BYTES_MIN, check_lock_timeout
from holdfast.queue.options.setting_values import read_seconds, read_setting, read_whole_or_none, unfit, unfit_bound
from holdfast.queue.options.settings import DEFAULTS, checked

PROGRAM_OPTIONS = frozenset({"mode", "can_own", "group", "type", "serializer", "version", "allow_pickle"})
"""What only the program can know: how it opens the queue, and what its messages are."""

QUEUE_ONLY_OPTIONS = frozenset({"also_read"})
"""What makes no sense for all queues at once."""


def read_option(name: str, value: Any) -> Any:
    """Return what ``PersistentQueue`` or ``QueueService.queue`` take for the value of an option.

    Raises UnfitError; the name is one of ``OPTIONS``.
    """
    if name in _OTHERS:
        try:
            return _OTHERS[name](value)
        except ConfigError as error:
            raise unfit_bound(name, error) from None
    read = read_setting(name, value)
    alone = {"data_file_bytes": DATA_FILE_BYTES_MIN} if name == "max_bytes" else {}  # together: when the queue opens
    try:
        checked({**alone, name: read})
    except (ConfigError, UsageError) as error:
        raise unfit_bound(name, error) from None
    return read


def _lock_timeout(value: Any) -> float:
    seconds = read_seconds("a number of seconds from 0 on", value)
    check_lock_timeout(seconds)
    return seconds


def _compress_bytes(value: Any) -> int | None:
    takes = "a number of bytes from 1 on"
    size = read_whole_or_none(takes, value)
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


_OTHERS: dict[str, Callable[[Any], Any]] = {
    "lock_timeout": _lock_timeout,
    "any_file_system": _true_or_false,
    "compress_bytes": _compress_bytes,
    "also_read": _also_read,
}

OPTIONS = frozenset({*DEFAULTS, *_OTHERS})
"""What an operator may set."""

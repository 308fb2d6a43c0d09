"""Logs what operators do to a queue: the client, the verb, and the result. The owner, which performs it, logs it.

The verbs are those that people and their tools use; frequent verbs of applications are not logged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

logger = logging.getLogger("holdfast")

Result = TypeVar("Result")

_SHOWN_MAX = 200
_LISTED_MAX = 10


class Asker(NamedTuple):
    """Who asks."""

    uid: int
    pid: int | None


def own_process() -> Asker:
    """Return this process."""
    return Asker(os.geteuid(), os.getpid())


def logged(path: Path, verb: str, details: Mapping[str, object], asker: Asker, do: Callable[[], Result]) -> Result:
    """Perform a verb, log it, and return its result; raises its error."""
    try:
        result = do()
    except Exception as error:
        _log(logging.WARNING, path, verb, details, asker, f"{type(error).__name__}: {error}")
        raise
    _log(logging.INFO, path, verb, details, asker, "done" if result is None else repr(result))
    return result


def _shown(value: object) -> str:
    if isinstance(value, list) and len(value) > _LISTED_MAX:
        return f"[{value[0]!r}, ... {len(value)} of them]"
    return repr(value)


def _log(level: int, path: Path, verb: str, details: Mapping[str, object], asker: Asker, result: str) -> None:
    said = ", ".join(f"{name}={_shown(value)}" for name, value in details.items() if value is not None)
    shown = result if len(result) <= _SHOWN_MAX else result[:_SHOWN_MAX] + "…"
    logger.log(
        level,
        "%s: %s(%s) by user %d, process %s: %s",
        path.name,
        verb,
        said if len(said) <= _SHOWN_MAX else said[:_SHOWN_MAX] + "…",
        asker.uid,
        asker.pid,
        shown,
        extra={"queue": path.name, "verb": verb, "uid": asker.uid, "pid": asker.pid, "result": shown},
    )

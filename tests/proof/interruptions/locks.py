"""Finds locks that a queue has left locked, without waiting for one."""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Iterator
from functools import cache
from typing import Any

from holdfast.queue.threads.notifier import Notifier
from support.processes.interruptions import SOURCE

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_TRIES = 40
_PAUSE_SECONDS = 0.005


def locked(root: object) -> list[str]:
    """Return where locks are locked that can be reached from an object, or that a module of ours has.

    A thread in the background may have one just now: it is looked at again before it counts.
    """
    found = {**_of_modules(), **dict(_find(root))}
    for _ in range(_TRIES):
        found = {name: lock for name, lock in found.items() if _is_locked(lock)}
        if not found:
            break
        time.sleep(_PAUSE_SECONDS)
    return sorted(found)


@cache
def _of_modules() -> dict[str, Any]:
    """Return the locks of our modules."""
    modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "holdfast"]
    return {
        f"{module.__name__}.{name}": each
        for module in modules
        for name, each in vars(module).items()
        if isinstance(each, _LOCKS)
    }


def _is_locked(lock: Any) -> bool:
    return not repr(lock).startswith("<unlocked")


def _find(root: object) -> Iterator[tuple[str, Any]]:
    """Yield all locks by the way to them, but those that somebody sleeps at."""
    waiting: list[tuple[str, object]] = [("queue", root)]
    seen: set[int] = set()
    while waiting:
        name, each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, _LOCKS):
            yield name, each
        else:
            waiting += [(f"{name}.{part}", value) for part, value in _parts(each)]


def _parts(each: object) -> list[tuple[str, object]]:  # noqa: PLR0911  # one for each kind
    """Return what an object of ours, a container or a closure holds."""
    if isinstance(each, dict):
        return [("values", value) for value in list(each.values())]
    if isinstance(each, list | tuple | set):
        return [("items", value) for value in list(each)]
    if isinstance(each, Notifier):
        return []  # those in its list are locked while one sleeps
    if isinstance(each, threading.Condition):
        return [("lock", each._lock)]  # type: ignore[attr-defined]  # those in its list are locked while one sleeps
    if isinstance(each, threading.Event):
        return [("condition", each._cond)]  # type: ignore[attr-defined]
    if isinstance(each, types.MethodType):
        return [("self", each.__self__)]
    if isinstance(each, types.FunctionType):
        return [("cell", cell.cell_contents) for cell in each.__closure__ or () if _is_ours(each) and _is_full(cell)]
    if not isinstance(each, type) and type(each).__module__.split(".")[0] == "holdfast":
        return [*getattr(each, "__dict__", {}).items(), *_slots(each)]
    return []


def _slots(each: object) -> list[tuple[str, object]]:
    names = [name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())]
    return [(name, getattr(each, name)) for name in names if name != "__weakref__" and hasattr(each, name)]


def _is_ours(function: types.FunctionType) -> bool:
    return function.__code__.co_filename.startswith(SOURCE)


def _is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False

"""Whether the C extension serves: the one place where that is decided.

``holdfast._core`` (``_core.c``) has compiled forms of the few functions that every message runs through. Each has a
twin in Python of the same name, which defines it, and serves if there is no extension. Both take the same arguments by
position and return the same bytes; ``tests/property/test_twins.py`` holds them equal. docs/adr/0071.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar, cast

PURE = "HOLDFAST_PURE"
"""With anything but 0 in this variable Python alone serves."""

_INTERFACE = 4
"""Of ``_core.c``: an extension that was built from other sources is not used."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def load_core(name: str = "holdfast._core") -> ModuleType | None:
    """Return the extension; None without one, or if ``HOLDFAST_PURE`` is set to anything but 0."""
    if os.environ.get(PURE, "") not in {"", "0"}:
        return None
    try:
        core = import_module(name)
    except ImportError:
        return None
    return core if getattr(core, "INTERFACE", None) == _INTERFACE else None


_core = load_core()

implementation = "python" if _core is None else "c"
"""Which of the two serves in this process: "c" or "python"."""

twins: dict[str, Callable[..., Any]] = {}
"""The twins in Python that have been defined so far, by name."""


def compiled(twin: _Function) -> _Function:
    """Return the compiled form of a function, if the extension serves; else the function itself."""
    twins[twin.__name__] = twin
    return cast(_Function, compiled_form(twin.__name__, twin))


def compiled_form(name: str, otherwise: Any = None) -> Any:
    """Return a function of the extension, if that serves."""
    return otherwise if _core is None else getattr(_core, name)


def call_count() -> int:
    """Return how often this process has called the extension."""
    return 0 if _core is None else int(_core.calls())

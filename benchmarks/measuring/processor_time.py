"""Seconds of the processor that this process and all below it have used, by what each of them is. Linux."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

OWN, JVM, PYTHON = "driver", "JVM", "tasks in Python"
"""This process; programs of Java below it, with the small ones that they start; and all others below it."""

_PROCESSES = Path("/proc")
_PARENT, _TIMES = 1, slice(11, 15)
"""Places behind the name in ``stat``; times are of the process itself and of its children that have ended."""


def is_known() -> bool:
    """Whether this system tells."""
    return (_PROCESSES / "self" / "stat").exists()


def used_seconds() -> dict[str, float]:
    """Return what was used up to now, by kind."""
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    children: dict[int, list[int]] = {}
    found: dict[int, tuple[str, float]] = {}
    for number in (int(each.name) for each in _PROCESSES.iterdir() if each.name.isdecimal()):
        try:
            text = (_PROCESSES / str(number) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended
            continue
        end = text.rindex(")")
        fields = text[end + 1 :].split()
        children.setdefault(int(fields[_PARENT]), []).append(number)
        found[number] = text[text.index("(") + 1 : end], sum(map(int, fields[_TIMES])) / ticks_per_second
    used = {OWN: 0.0, JVM: 0.0, PYTHON: 0.0}
    waiting = [os.getpid()]
    while waiting:
        number = waiting.pop()
        waiting += children.get(number, [])
        if number in found:
            name, seconds = found[number]
            used[OWN if number == os.getpid() else JVM if name == "java" else PYTHON] += seconds
    return used


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return what was used between two calls, by kind."""
    return {kind: after[kind] - before[kind] for kind in after}

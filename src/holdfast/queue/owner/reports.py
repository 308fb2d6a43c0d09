"""Reports of recoveries on their way to a client: as plain values, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from holdfast.persistence.format.report import Damage, RecoveryReport

DAMAGE_MAX = 400
"""Of the log, and of position files: the first ones. They fit into a frame, with the longest paths."""

_TEXT_MAX = 500

Fields = dict[str, Any]


def report_fields(report: RecoveryReport) -> Fields:
    """Return a report as the result of a verb; it has at most ``DAMAGE_MAX`` places of damage of each kind."""
    damage = {"damage": _plain(report.damage), "progress_damage": _plain(report.progress_damage)}
    return {**asdict(report), **damage}


def _plain(damage: Sequence[Damage]) -> list[Any]:
    found = []
    for each in damage[:DAMAGE_MAX]:
        path, position, size_bytes, offsets, *text = astuple(each)
        cut = [part[:_TEXT_MAX] for part in text]
        found.append((str(path), position, size_bytes, offsets.start, offsets.stop, *cut))
    return found


def report_of(fields: Fields) -> RecoveryReport:
    """Return the report that :func:`report_fields` wrote."""
    damage = {name: _damage(fields[name]) for name in ("damage", "progress_damage")}
    return RecoveryReport(**{**fields, **damage})


def _damage(found: Sequence[Any]) -> tuple[Damage, ...]:
    return tuple(
        Damage(Path(path), position, size_bytes, range(start, stop), *text)
        for path, position, size_bytes, start, stop, *text in found
    )

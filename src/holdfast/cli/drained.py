"""What became of a drain that the command has run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import DrainError

if TYPE_CHECKING:
    from holdfast.arrow.draining.reports import DrainReport


@dataclass(frozen=True, slots=True)
class Drained:
    """What became of a drain.

    Attributes
    ----------
    report : DrainReport
        What was drained.
    error : DrainError or None
        The queues that failed.
    unfit_count : int
        How many payloads did not fit the schema.
    """

    report: DrainReport
    error: DrainError | None = None
    unfit_count: int = 0


def drained_by(drain: Callable[[], DrainReport]) -> Drained:
    """Drain; if only some queues fail, that is part of the result."""
    try:
        return Drained(drain())
    except DrainError as error:
        return Drained(error.report, error)

"""Something to be timed, and what has to stand around it while the clock does not run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

Body = Callable[[], object]
"""What is timed."""

Stage = Callable[[Path], AbstractContextManager[Body]]
"""Sets up in a folder and yields the body; checks and tidies up when it is left. Neither is timed."""


@dataclass(frozen=True)
class Contestant:
    """One way to do the work.

    Attributes
    ----------
    label : str
        For the table.
    stage : callable
        What is timed, and what surrounds it.
    """

    label: str
    stage: Stage


@dataclass(frozen=True)
class Against:
    """What a case is measured against.

    Attributes
    ----------
    contestant : Contestant
        A floor, a rival, or the queue used in another way.
    at_least : float or None
        Ratio of the speeds to reach; None: for information.
    """

    contestant: Contestant
    at_least: float | None = None

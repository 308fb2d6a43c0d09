"""Rows of the table, made of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.measuring.load import Load

DASH = "\N{EN DASH}"
NOTHING = DASH


@dataclass(frozen=True)
class Row:
    """One line of the table, as text.

    Attributes
    ----------
    met : bool or None
        Whether the target was reached; None: there is none.
    """

    case: str
    holdfast: str
    floor: str = NOTHING
    ratio: str = NOTHING
    target: str = NOTHING
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """Return the columns."""
        met = {None: NOTHING, True: "yes", False: "**no**"}[self.met]
        return self.case, self.holdfast, self.floor, self.ratio, self.target, met


@dataclass(frozen=True)
class Comparison:
    """A case and what it was measured against, round by round.

    Attributes
    ----------
    title : str
        The case.
    load : Load
        What each side moved in each round.
    seconds : sequence of float
        Of the case.
    floor : str
        What it was measured against.
    floor_seconds : sequence of float
        Of that, in the same rounds.
    at_least : float or None
        Ratio to reach.
    per_second_min : int or None
        Records a second to reach, whatever the floor does.
    """

    title: str
    load: Load
    seconds: Sequence[float]
    floor: str
    floor_seconds: Sequence[float]
    at_least: float | None
    per_second_min: int | None = None

    @property
    def ratios(self) -> list[float]:
        """How many times as fast as the floor the case was, in each round."""
        return [floor / case for floor, case in zip(self.floor_seconds, self.seconds, strict=True)]

    @property
    def met(self) -> bool | None:
        """Whether the medians reach all targets; None: there are none."""
        if self.at_least is None and self.per_second_min is None:
            return None
        has_ratio = self.at_least is None or median(self.ratios) >= self.at_least
        return has_ratio and (self.per_second_min is None or self.per_second >= self.per_second_min)

    @property
    def per_second(self) -> float:
        """How many records a second the case moved."""
        return self.load.count / median(self.seconds)

    def row(self) -> Row:
        """Return the line of the table."""
        ratio = [] if self.at_least is None else [f"≥ {self.at_least:g}"]
        speed = [] if self.per_second_min is None else [f"≥ {self.per_second_min:,}/s"]
        target = ", ".join(ratio + speed) or NOTHING
        case, floor = self._speed(self.seconds), f"{self.floor}: {self._speed(self.floor_seconds)}"
        return Row(self.title, case, floor, spread(self.ratios), target, self.met)

    def figures(self) -> dict[str, object]:
        """Return the same for ``--benchmark-json``."""
        ratios = self.ratios
        return {
            "records": self.load.count,
            "record_bytes": self.load.size,
            "records_per_second": self.per_second,
            "floor_records_per_second": self.load.count / median(self.floor_seconds),
            "ratio": {"median": median(ratios), "min": min(ratios), "max": max(ratios)},
            "target": self.at_least,
            "target_records_per_second": self.per_second_min,
            "met": self.met,
        }

    def _speed(self, seconds: Sequence[float]) -> str:
        per_second = self.load.count / median(seconds)
        return f"{significant(per_second)}/s, {significant(per_second * self.load.size / 1e6)} MB/s"


def spread(values: Sequence[float], decimals: int = 3, unit: str = "") -> str:
    """Return the median with the smallest and the largest of several."""
    middle, least, most = (f"{value:.{decimals}f}" for value in (median(values), min(values), max(values)))
    return f"{middle}{unit} ({least}{DASH}{most})"


def significant(value: float, digits: int = 3) -> str:
    """Return a figure with as many digits as a noisy machine can tell."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if rounded >= 10 ** (digits - 1) else f"{rounded:g}"

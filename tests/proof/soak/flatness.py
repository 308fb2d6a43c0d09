"""Whether figures that were looked at again and again stay level. Pure.

Two judges, and both have to agree: the median of the last fifth beside that of the second (the first one warms up), and
the slope of a straight line through all but the first fifth, over the time between these two. One alone is fooled: the
medians by a leak that saws, the line by a single step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, median

_FIFTHS = 5
_BETWEEN = 3 / 5
"""From the middle of the second fifth to the middle of the last one, of the whole time."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a figure may do.

    Attributes
    ----------
    growth_max : float
        How much it may grow from the second fifth to the last.
    growth_share_max : float or None
        The same as a share of what it was; the smaller one counts.
    ceiling : float or None
        What it may never pass.
    """

    growth_max: float
    growth_share_max: float | None = None
    ceiling: float | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """What a figure did.

    Attributes
    ----------
    early, late : float
        Medians of the second and of the last fifth.
    drift : float
        By how much the line through all but the first fifth rises from the one to the other.
    per_minute : float
        Its slope.
    highest : float
        The largest value.
    """

    early: float
    late: float
    drift: float
    per_minute: float
    highest: float

    @property
    def growth(self) -> float:
        """What is said of it: by the judge who sees more."""
        return max(self.late - self.early, self.drift)


def course_of(seconds: Sequence[float], values: Sequence[float]) -> Course:
    """Return what a figure did; takes ten looks or more."""
    count = len(values)
    assert count == len(seconds) >= 2 * _FIFTHS, "too few samples to judge by"
    second, last = values[count // _FIFTHS : 2 * count // _FIFTHS], values[-(count // _FIFTHS) :]
    warm = count // _FIFTHS
    slope = linear_regression(seconds[warm:], values[warm:]).slope
    return Course(median(second), median(last), slope * (seconds[-1] - seconds[0]) * _BETWEEN, slope * 60, max(values))


def allowed(bound: Bound, course: Course) -> float:
    """Return how much growth is none."""
    share = bound.growth_share_max
    return bound.growth_max if share is None else min(bound.growth_max, share * course.early)


def broken(bound: Bound, course: Course) -> str:
    """Return in which way a figure is not level; empty: it is."""
    if course.growth > allowed(bound, course):
        return f"grows by {course.growth:.3g}, more than {allowed(bound, course):.3g}"
    if bound.ceiling is not None and course.highest > bound.ceiling:
        return f"reaches {course.highest:.3g}, more than {bound.ceiling:.3g}"
    return ""

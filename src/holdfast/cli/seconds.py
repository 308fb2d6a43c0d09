"""The type of the options that take seconds: click's range of floats lets "nan" and "inf" through."""

from __future__ import annotations

import math
from typing import Any

import click


class Seconds(click.FloatRange):
    """A finite number of seconds from 0 on; ``min_open``: above 0."""

    def __init__(self, *, min_open: bool = False, max: float | None = None) -> None:  # click's word
        super().__init__(min=0, max=max, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fails if it is none, is not finite, or is out of range."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds

"""How long to wait: any number of seconds, which another process understands."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from holdfast.queue.options.arguments import SECONDS_MAX, wait_for


class Seconds(float):
    """A number of another library."""


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        (0, 0.0),
        (2, 2.0),
        (Seconds(0.5), 0.5),
        (Fraction(1, 4), 0.25),
        (Decimal("1.5"), 1.5),
        (math.inf, float(SECONDS_MAX)),
        (1e300, float(SECONDS_MAX)),
        (None, None),
    ],
)
def test_a_timeout_is_a_float(timeout: Any, seconds: float | None) -> None:
    """Of 136 years at most."""
    waited = wait_for(True, timeout)
    assert waited == seconds
    assert type(waited) is type(seconds)


def test_without_waiting_the_timeout_does_not_matter() -> None:
    """As in the standard library."""
    assert wait_for(False, -1) == 0.0

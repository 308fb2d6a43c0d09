"""What an application that takes objects written by Spark declares."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal


@dataclass
class Place:
    """A struct inside a row."""

    city: str
    at: dt.datetime


@dataclass
class Order:
    """A row with a field of each kind."""

    id: int
    amount: Decimal
    at: dt.datetime
    day: dt.date
    tags: list[str]
    counts: dict[str, int]
    where: Place
    raw: bytes
    none: str | None = None

"""What Spark makes of the tables: earthquakes by region and magnitude, delays by route."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program gives it
from rich.box import SIMPLE_HEAD
from rich.table import Table

BANDS = ("below 1", "1 to 2", "2 to 3", "3 to 4", "4 to 5", "5 or more")
SAME_REGIONS = {"CA": "California", "MX": "Mexico", "NV": "Nevada"}
"""The source writes some regions in two ways."""

REGIONS_MAX = 10
ROUTES_MAX = 10
ROUTE_FLIGHTS_MIN = 25
"""A mean of fewer flights says little."""


@dataclass(frozen=True)
class Region:
    """Earthquakes of one region, by magnitude: one count for each of ``BANDS``."""

    name: str
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Route:
    """Delays of the flights from one airport to another, in minutes."""

    origin: str
    destination: str
    flight_count: int
    mean: float
    median: float
    p90: float

    @property
    def name(self) -> str:
        """As people write it."""
        return f"{self.origin} → {self.destination}"


def region(place: Column) -> Column:
    """Return the region of a place: what stands behind the last comma, under one name."""
    last = F.trim(F.substring_index(place, ",", -1))
    known = F.create_map(*(F.lit(text) for same in SAME_REGIONS.items() for text in same))
    return F.coalesce(known[last], last)


def band(magnitude: Column) -> Column:
    """Return which of ``BANDS`` a magnitude belongs to; the lower end is in, the upper one is not."""
    return F.least(F.greatest(F.floor(magnitude), F.lit(0)), F.lit(len(BANDS) - 1)).cast("int")


def earthquakes_by_region(events: DataFrame) -> list[Region]:
    """Count by region and magnitude, the region with most first; what is no earthquake does not count."""
    numbers = list(range(len(BANDS)))
    rows = (
        events.where("kind = 'earthquake'")
        .withColumns({"region": region(F.col("place")), "band": band(F.col("magnitude"))})
        .groupBy("region")
        .pivot("band", numbers)
        .count()
        .fillna(0)
    )
    found = [Region(row["region"], tuple(row[str(number)] for number in numbers)) for row in rows.collect()]
    return sorted(found, key=lambda each: (-sum(each.counts), each.name))


def routes_by_delay(flights: DataFrame) -> list[Route]:
    """Return the routes with the largest mean delay, of those with flights enough."""
    delay = F.col("delay_minutes")
    rows = (
        flights.groupBy("origin", "destination")
        .agg(
            F.count(delay).alias("flight_count"),
            F.mean(delay).alias("mean"),
            F.median(delay).alias("median"),
            F.percentile(delay, 0.9).alias("p90"),
        )
        .where(F.col("flight_count") >= ROUTE_FLIGHTS_MIN)
        .orderBy(F.desc("mean"), "origin", "destination")
        .limit(ROUTES_MAX)
    )
    return [Route(**row.asDict()) for row in rows.collect()]


def new_table(title: str, first: str, *figures: str) -> Table:
    """Return an empty table: names in the first column, figures in the others."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def earthquakes_table(regions: Sequence[Region]) -> Table:
    """Return the regions with most earthquakes, and all others together."""
    shown, others = regions[:REGIONS_MAX], regions[REGIONS_MAX:]
    total = sum(sum(each.counts) for each in regions)
    table = new_table(f"{total:,} earthquakes of a week, by region and magnitude", "region", *BANDS, "all")
    for each in shown:
        _add_counts(table, each.name, [each])
    table.add_section()
    _add_counts(table, f"{len(others)} others", others)
    _add_counts(table, "all", regions)
    return table


def _add_counts(table: Table, name: str, regions: Sequence[Region]) -> None:
    counts = [sum(each.counts[number] for each in regions) for number in range(len(BANDS))]
    table.add_row(name, *(f"{count:,}" if count else "·" for count in (*counts, sum(counts))))


def routes_table(routes: Sequence[Route]) -> Table:
    """Return the routes with the largest mean delay."""
    title = f"Delays by route in minutes, {ROUTE_FLIGHTS_MIN} flights or more"
    table = new_table(title, "route", "flights", "mean", "median", "90 % below")
    for each in routes:
        figures = (each.mean, each.median, each.p90)
        table.add_row(each.name, str(each.flight_count), *(f"{figure:.1f}" for figure in figures))
    return table

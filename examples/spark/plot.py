"""Draws what the pipeline found, as one SVG. matplotlib: the one library for it that everybody knows, with types."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from examples.spark.tables import BANDS, REGIONS_MAX, ROUTE_FLIGHTS_MIN, Region, Route

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

INK, GREY, ACCENT = "#22303c", "#8a97a3", "#c8553d"

STYLE: dict[RcKeyType, object] = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "holdfast",  # the same data make the same file
}

SOURCES = (
    "Earthquakes: U.S. Geological Survey, the week up to 7 February 2018.   Flights: U.S. Bureau of Transportation "
    "Statistics, sample of January to March 2001."
)


def draw(regions: Sequence[Region], routes: Sequence[Route], path: Path) -> None:
    """Draw earthquakes by region and magnitude, and delays by route."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_earthquakes(left, regions[:REGIONS_MAX])
        _draw_routes(right, routes)
        figure.text(0.01, -0.04, SOURCES, color=GREY, fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        title = "Earthquakes by region and magnitude, delays by route"
        figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Title": title, "Date": None})


def _draw_earthquakes(axes: Axes, regions: Sequence[Region]) -> None:
    """One cell for each region and magnitude: its number, and a colour by its logarithm."""
    counts = [each.counts for each in regions]
    largest = max((max(each) for each in counts), default=0)
    shades = [[count or float("nan") for count in each] for each in counts]  # nothing is drawn where nothing was
    axes.imshow(shades, cmap="YlOrRd", norm=LogNorm(1, max(2, largest)), aspect="auto")
    for row, each in enumerate(counts):
        for column, count in enumerate(each):
            if count:
                color = "white" if count > largest**0.7 else INK
                axes.text(column, row, f"{count:,}", ha="center", va="center", color=color)
    axes.set_title("Earthquakes by region and magnitude")
    axes.set_xlabel("magnitude; figures are earthquakes")
    axes.set_xticks(range(len(BANDS)), BANDS)
    axes.set_yticks(range(len(regions)), [each.name for each in regions])
    axes.set_xticks([number - 0.5 for number in range(1, len(BANDS))], minor=True)
    axes.set_yticks([number - 0.5 for number in range(1, len(regions))], minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def _draw_routes(axes: Axes, routes: Sequence[Route]) -> None:
    """One line for each route, from the median to what nine of ten flights stay below, with the mean between."""
    rows = range(len(routes))
    medians, means, tops = ([getattr(each, name) for each in routes] for name in ("median", "mean", "p90"))
    axes.hlines(rows, medians, tops, color=GREY, linewidth=2, zorder=1)
    axes.scatter(medians, rows, color="white", edgecolor=INK, s=45, linewidth=1.5, zorder=2, label="median")
    axes.scatter(means, rows, color=ACCENT, s=60, zorder=3, label="mean")
    axes.scatter(tops, rows, color=GREY, marker="|", s=120, linewidth=2, zorder=2, label="90 % of flights below")
    axes.axvline(0, color=GREY, linewidth=1, linestyle=":", zorder=0)
    axes.set_title(f"Largest mean delays, of routes with {ROUTE_FLIGHTS_MIN} flights or more")
    axes.set_xlabel("arrival delay, minutes (below 0: early)")
    axes.set_yticks(rows, [f"{each.name}  ({each.flight_count})" for each in routes])
    axes.set_ylabel("route (flights)")
    axes.invert_yaxis()
    axes.grid(axis="x", color="#e3e8ec")
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)

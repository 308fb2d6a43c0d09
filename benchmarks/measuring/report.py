"""The one table at the end of a run, in Markdown: docs/benchmarks.md holds it as it was printed."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.measuring.rows import DASH, Row

HEADINGS = ("case", "holdfast", "floor", f"ratio: median (min{DASH}max)", "target", "met?")


class Report:
    """Collects rows; those with a target come first."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        """Take one row."""
        self.rows.append(row)

    def lines(self) -> list[str]:
        """Return the table."""
        ordered = sorted(self.rows, key=lambda row: row.met is None)
        return markdown([HEADINGS, *(row.cells() for row in ordered)])


def markdown(table: Sequence[Sequence[str]]) -> list[str]:
    """Return a table whose columns stand below each other; the first line holds the headings."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
        for cells in table
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return lines

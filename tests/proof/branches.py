"""``python -m proof.branches REPORT``: says which branches the tests have reached, from the report of coverage.py."""

from __future__ import annotations

import json
from pathlib import Path

import click

from proof.scoreboard import Run


@click.command()
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--part", is_flag=True, help="Only some of the tests were run.")
def main(report: Path, *, part: bool) -> None:
    """Record what a run of the tests with coverage has reached; that it is all is checked by pytest."""
    run = Run("coverage", partial=part)
    totals = json.loads(report.read_text(encoding="utf-8"))["totals"]
    branches = f"{totals['covered_branches']:,} of {totals['num_branches']:,}"
    lines = f"{totals['covered_lines']:,} of {totals['num_statements']:,}"
    missed = totals["missing_branches"] + totals["missing_lines"]
    run.record({"branches": branches, "lines": lines}, violations=missed)


if __name__ == "__main__":
    main()

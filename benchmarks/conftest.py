"""Options and fixtures of the benchmarks, and the table at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.measuring import machine
from benchmarks.measuring.load import Load
from benchmarks.measuring.race import Benchmark, Race
from benchmarks.measuring.report import Report
from benchmarks.processes.contestant_process import SideBySide
from holdfast.compiled import load_core

ROOT = Path(__file__).resolve().parents[1]
REPORT = pytest.StashKey[Report]()
PLACE = pytest.StashKey[Path]()

Sized = Callable[[int, int], Load]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what can be chosen."""
    group = parser.getgroup("holdfast benchmarks")
    group.addoption(
        "--bench-dir", type=Path, default=ROOT / "build", help="folder on the disk to measure; left as it was"
    )
    group.addoption(
        "--baseline",
        type=Path,
        help="another checkout, of a release for instance: beside what has a goal",
    )
    group.addoption("--quick", action="store_true", help="a tenth of the records: to see that it runs, not how fast")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make the folder, and let our table stand in the place of pytest-benchmark's, unless that is asked for."""
    config.stash[REPORT] = Report()
    base: Path = config.getoption("bench_dir")
    base.mkdir(parents=True, exist_ok=True)
    config.stash[PLACE] = Path(tempfile.mkdtemp(prefix="benchmarks-", dir=base))
    config.option.benchmark_quiet = True  # --benchmark-verbose overrules it


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder."""
    shutil.rmtree(config.stash[PLACE], ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say where this runs."""
    return machine.facts(config.stash[PLACE])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, ready to be pasted into docs/benchmarks.md."""
    report = config.stash[REPORT]
    if not report.rows:
        return
    terminalreporter.section("holdfast beside the disk")
    note = ["a tenth of the records (--quick): not a measurement"] if config.getoption("quick") else []
    lines = [*(f"- {fact}" for fact in [*machine.facts(config.stash[PLACE]), *note]), "", *report.lines()]
    for line in lines:
        terminalreporter.write_line(line)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return an empty folder on the disk to measure."""
    folder = Path(tempfile.mkdtemp(dir=request.config.stash[PLACE]))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Return what collects the rows of the table."""
    return request.config.stash[REPORT]


@pytest.fixture
def sized(request: pytest.FixtureRequest) -> Sized:
    """Return what makes a load of so many records of so many bytes; with ``--quick``, of a tenth as many."""
    quick = request.config.getoption("quick")
    return lambda count, size: Load(count // 10 if quick else count, size)


@pytest.fixture
def race(benchmark: Benchmark, place: Path, report: Report) -> Race:
    """Return what runs a case against its floors."""
    return Race(benchmark, place, report)


@pytest.fixture(params=[False, True], ids=["c", "python"])
def side_by_side(request: pytest.FixtureRequest, race: Race) -> SideBySide:
    """Return what runs a case with the C extension, and with Python alone."""
    if not request.param and load_core() is None:
        pytest.skip("there is no C extension")
    return SideBySide(race, is_pure=request.param, baseline=request.config.getoption("baseline"))

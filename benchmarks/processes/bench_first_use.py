"""The first use in a new process, beside other queues for Python: import, and one durable put."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest

from benchmarks.measuring.race import Benchmark
from benchmarks.measuring.report import Report
from benchmarks.measuring.rows import Row, spread
from benchmarks.processes.first_use import USES

ROOT = Path(__file__).resolve().parents[2]

ROUNDS = 15

IMPORT_MS_MAX, IMPORT_MB_MAX = 60.0, 22.0
PUT_MS_MAX = 100.0

MODULES = {"persist-queue": "persistqueue"}

Readings = Mapping[str, list[tuple[float, float, float]]]


def _installed() -> list[str]:
    return [each for each in USES if find_spec(MODULES.get(each, each)) is not None]


def _measure(library: str, what: str, place: Path, bytecode: str) -> tuple[float, float, float]:
    """Run one process; its bytecode is kept, as it is of an installed package."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory(dir=place) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.processes.first_use", library, what, folder],
            cwd=ROOT,
            env=environment | {"PYTHONPYCACHEPREFIX": bytecode},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    milliseconds, megabytes, modules = map(float, done.stdout.split())
    return milliseconds, megabytes, modules


@pytest.mark.parametrize("what", ["import", "put"])
def test_first_use_in_a_new_process(
    benchmark: Benchmark, place: Path, tmp_path: Path, report: Report, what: str
) -> None:
    """CPU time and memory of the whole process, the interpreter's start with them; each library once a round."""
    libraries = _installed()
    readings: dict[str, list[tuple[float, float, float]]] = {each: [] for each in libraries}
    bytecode = str(tmp_path / "bytecode")
    for each in libraries:
        _measure(each, what, place, bytecode)  # compiles

    def measure_all() -> None:
        for each in libraries:
            readings[each].append(_measure(each, what, place, bytecode))

    benchmark.pedantic(measure_all, rounds=ROUNDS)
    if benchmark.stats is None:
        return
    for row in _rows(what, readings):
        report.add(row)
    benchmark.extra_info.update({each: readings[each][0] for each in libraries})


def _rows(what: str, readings: Readings) -> list[Row]:
    milliseconds = {each: [reading[0] for reading in readings[each]] for each in readings}
    megabytes = {each: median(reading[1] for reading in readings[each]) for each in readings}
    own = milliseconds["holdfast"]
    others = ", ".join(f"{each} {median(milliseconds[each]):.0f} ms" for each in readings if each != "holdfast")
    missing = ", ".join(sorted(set(USES) - set(readings)))
    floor = f"{others}; not installed: {missing}" if missing else others
    title = "`import holdfast` in a new process" if what == "import" else "a new process, one durable put"
    limit = IMPORT_MS_MAX if what == "import" else PUT_MS_MAX
    rows = [
        Row(f"{title}: CPU", spread(own, 0, " ms"), floor, target=f"< {limit:g} ms", met=median(own) < limit),
    ]
    if what == "import" and megabytes["holdfast"]:
        memory = ", ".join(f"{each} {megabytes[each]:.0f} MB" for each in readings if each != "holdfast")
        rows.append(
            Row(
                f"{title}: memory",
                f"{megabytes['holdfast']:.1f} MB, {readings['holdfast'][0][2]:.0f} modules",
                memory,
                target=f"< {IMPORT_MB_MAX:g} MB",
                met=megabytes["holdfast"] < IMPORT_MB_MAX,
            )
        )
    return rows

"""The suites that have to catch what is planted, in order of cheapness, and how each says what it found."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SUITE_SECONDS_MAX = 900.0
"""A suite that takes longer than this hangs; the slowest takes a few minutes where two run at once on two cores."""

MEMORY_BYTES_MAX = 4 * 2**30
"""Code that believes any size takes all there is; with a bound it ends in a MemoryError, which a test reports."""

_PYTEST_FAILED = 1
_COUNTS = re.compile(r"(\d+) (passed|failed|error)")
_FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_VIOLATION = re.compile(r"violation after ([\d,]+) states: (?:\w+: )?(.{0,120})")


class SuiteError(Exception):
    """A suite could not be run as it should; the message ends with what it printed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a suite said of a copy of the tree.

    Attributes
    ----------
    caught : bool
        Whether something failed.
    count : int
        Cases, or states, up to and with the one that failed.
    where : str
        The first case that failed.
    """

    caught: bool
    count: int
    where: str = ""


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests that are run together until one fails.

    Attributes
    ----------
    name, unit : str
        As they are printed: what it is, and what it counts.
    arguments : tuple of str
        Behind ``python -m``.
    """

    name: str
    unit: str
    arguments: tuple[str, ...]

    def run(self, root: Path) -> Verdict:
        """Run it in the copy at ``root``. Raises SuiteError."""
        arguments = [sys.executable, "-m", *self.arguments]
        with subprocess.Popen(
            arguments,
            cwd=root,
            env=environment(root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            if hasattr(resource, "prlimit"):
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
            try:
                output, errors = process.communicate(timeout=SUITE_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                return Verdict(caught=True, count=0, where=f"nothing came back for {SUITE_SECONDS_MAX:.0f} s")
        if process.returncode not in (0, _PYTEST_FAILED):
            raise SuiteError(f"{self.name} ended with {process.returncode}:\n{(output + errors)[-4000:]}")
        return self.read(output, caught=process.returncode != 0)

    def read(self, output: str, *, caught: bool) -> Verdict:
        """Return what the output says, which is that of pytest or that of the explorer. Raises SuiteError."""
        violation = _VIOLATION.search(output)
        if violation is not None:
            return Verdict(caught, int(violation[1].replace(",", "")), violation[2])
        summary = output.rstrip().rsplit("\n", 1)[-1]
        count = sum(int(number) for number, _ in _COUNTS.findall(summary))
        first = _FIRST_FAILURE.search(output)
        if caught and first is None:
            raise SuiteError(f"{self.name} failed, and does not say where:\n{output[-4000:]}")
        return Verdict(caught, count, first[1] if first is not None else "")


def environment(root: Path) -> dict[str, str]:
    """Return the environment in which the package and the tests are those of the copy."""
    paths = os.pathsep.join([str(root / "src"), str(root / "tests")])
    return {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}


def _tests(name: str, *paths: str) -> Suite:
    return Suite(name, "tests", ("pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", *paths))


EXPLORER = ("proof.crash_states", "--depth", "1", "--states", "2000", "--seed", "1", "--processes", "1")
"""A few minutes of it at the most: what is planted here it finds in seconds, or needs other workloads for."""

SUITES = (
    _tests(
        "in doubt",
        "tests/crash/test_ids_used_again.py",
        "tests/crash/test_transactions_that_once_broke.py",
        "tests/unit/coordination/test_queues_in_doubt.py",
    ),
    _tests("corruption", "tests/corruption"),
    Suite("crash states", "states", EXPLORER),
    _tests("every prefix", "tests/crash/test_every_prefix_recovers.py"),
    _tests("options", "tests/crash/test_options_every_prefix.py", "tests/crash/test_deduplication_survives.py"),
    _tests(
        "storage faults",
        "tests/crash/test_fault_loop.py",
        "tests/crash/test_every_storage_call_may_fail.py",
        "tests/crash/test_transactions_every_storage_call_may_fail.py",
    ),
    _tests("against the model", "tests/property"),
    _tests("transactions", "tests/crash/test_transactions_every_storage_call.py"),
)
"""In order of cheapness, which is that in which they are run."""

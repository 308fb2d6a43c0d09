"""A contestant in a process of its own: ``python -m benchmarks.processes.contestant_process CASE COUNT SIZE FOLDER``.

What serves is chosen when the package is imported: the C extension or Python alone, of this checkout or of another one.
So each is a process. It sets up, prints ``ready``, runs once a line comes in, and prints ``done``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases import queue_cases, work_queue_cases
from benchmarks.measuring.contestant import Against, Body, Contestant
from benchmarks.measuring.load import Load
from benchmarks.measuring.race import Race
from benchmarks.processes.fresh_process import ROOT
from benchmarks.processes.sharing_process import answer_of, tell

FILLED = frozenset({"get", "get_many", "receive", "receive_many", "verify_all"})
"""Cases with a queue that was filled before."""

Goals = tuple[float | None, float | None]
"""With C, and with Python alone; None: for information."""

NO_GOALS: Goals = (None, None)


def in_process(label: str, case: str, load: Load, *, is_pure: bool, checkout: Path = ROOT) -> Contestant:
    """Return a case of ``queue_cases`` under ``never()``, in a process of its own.

    Parameters
    ----------
    label : str
        For the table.
    case : str
        Its name; ``receive-8`` is done by 8 threads.
    load : Load
        What it moves.
    is_pure : bool
        Whether Python alone serves.
    checkout : Path
        Whose package runs.
    """
    environment = {**os.environ, "HOLDFAST_PURE": str(int(is_pure)), "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, "-m", "benchmarks.processes.contestant_process", case, str(load.count), str(load.size)]

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        root, pipe = folder / label, subprocess.PIPE
        root.mkdir()
        run = [*command, str(root)]
        with subprocess.Popen(run, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:

            def body() -> None:
                tell(process)
                assert answer_of(process) == "done"

            assert answer_of(process) == "ready"
            yield body
            process.communicate()
        assert process.returncode == 0

    return Contestant(label, stage)


class SideBySide:
    """Runs a case with one of the two implementations beside a floor, and beside another checkout if there is one.

    Parameters
    ----------
    race : Race
        Runs and reports.
    is_pure : bool
        Whether Python alone serves.
    baseline : Path or None
        The other checkout, without a C extension that serves: that of a release, for instance.
    """

    def __init__(self, race: Race, *, is_pure: bool, baseline: Path | None) -> None:
        self._race = race
        self._is_pure = is_pure
        self._baseline = baseline

    def contestant(self, label: str, case: str, load: Load) -> Contestant:
        """Return a case with this implementation."""
        return in_process(label, case, load, is_pure=self._is_pure)

    def __call__(
        self,
        title: str,
        case: str,
        load: Load,
        others: Sequence[Contestant] = (),
        *,
        at_least: Goals = NO_GOALS,
        times_baseline: Goals = NO_GOALS,
        fills: bool = False,
    ) -> None:
        """Run one case; goals are for C and for Python.

        Parameters
        ----------
        title, case, load
            As the table says it; its name; what it moves.
        others : sequence of Contestant
            What it is beside.
        at_least, times_baseline : pair of float or None
            Ratios to reach: to each of them, and to the baseline.
        fills : bool
            Whether what it is beside needs a full queue.
        """
        against = [Against(other, at_least[self._is_pure]) for other in others]
        if self._baseline is not None:
            baseline = in_process("baseline", case, load, is_pure=True, checkout=self._baseline)
            against.append(Against(baseline, times_baseline[self._is_pure]))
        serves = "Python alone" if self._is_pure else "C"
        prepare = (lambda folder: queue_cases.fill(folder, load)) if fills else None
        title = f"{title}, never(), {load.size:,} bytes, {serves}"
        self._race(title, load, self.contestant("holdfast", case, load), against, rounds=7, prepare=prepare)


def main(case: str, count: str, size: str, folder: str) -> None:
    """Run one contestant."""
    load = Load(int(count), int(size))
    name, _, threads = case.partition("-")
    if name in FILLED:
        queue_cases.fill(Path(folder), load)
    if threads:
        contestant = work_queue_cases.receives_in_threads(load, queue_cases.NEVER, int(threads))
    else:
        contestant = getattr(queue_cases, name)(load, queue_cases.NEVER)
    with contestant.stage(Path(folder)) as body:
        print("ready", flush=True)
        sys.stdin.readline()
        body()
        print("done", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])

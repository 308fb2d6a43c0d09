"""``python -m proof.fuzz TARGET``: fuzzes one target, or all of them, as many at a time as there are cores."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

from holdfast.compiled import PURE, implementation
from proof.fuzz.targets import DECODERS, TARGETS, Target
from proof.scoreboard import Run

ALL = "all"
TWINS = "twins"
RUNS_ALL = 10_000_000
RUNS_TWINS = 10_000_000
RUNS_DIRECTORY = 100_000
RUNS_ONE = 100_000
COUNTED = {"directory": "executions of whole directories", TWINS: "inputs given to both"}
"""What an execution of a target is, if it is none of a decoder."""

TAIL_LINES = 25
TAIL_CHARACTERS = 1000


@dataclass(frozen=True)
class Result:
    """What one target's process said of itself."""

    target: Target
    run_count: int
    seconds: float
    peak_mib: int
    found: str

    def __str__(self) -> str:
        rate = self.run_count / self.seconds
        verdict = "FAILED" if self.found else "ok"
        columns = f"{self.run_count:>12,}{self.seconds:>8.0f} s{rate:>9,.0f}/s{self.peak_mib:>8} MiB"
        return f"{self.target.name:14}{columns}  {verdict}"


def fuzz(target: Target, runs: int, findings: Path) -> Result:
    """Run a target so many times in a process of its own."""
    findings.mkdir(parents=True, exist_ok=True)
    target.corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "proof.fuzz.engine", target.name, str(runs), work, str(findings)]
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        seconds = time.perf_counter() - started
    said = done.stdout + done.stderr
    stats = {name: int(value) for name, value in re.findall(r"stat::(\w+):\s+(\d+)", said)}
    trace = done.stdout.splitlines()[-TAIL_LINES:] + re.findall(
        r"^.*(?:File \".*|Test unit written.*)$", done.stderr, re.M
    )
    found = "\n".join(trace) or done.stderr[-TAIL_CHARACTERS:] if done.returncode else ""
    count, peak_mib = stats.get("number_of_executed_units", 0), stats.get("peak_rss_mb", 0)
    return Result(target, count, seconds, peak_mib, found)


@click.command()
@click.argument("name", metavar="TARGET", type=click.Choice([ALL, *TARGETS]))
@click.option(
    "--runs",
    type=int,
    help=f"Executions; of {ALL} those of the decoders together.  "
    f"[default: {RUNS_ALL:,} of {ALL}, {RUNS_TWINS:,} of {TWINS}, {RUNS_ONE:,} of another one]",
)
@click.option("--directory-runs", type=int, default=RUNS_DIRECTORY, show_default=True, help=f"Those of {ALL}.")
@click.option(
    "--input", "path", type=click.Path(exists=True, path_type=Path), help="Run this one input, and no fuzzer."
)
@click.option("--findings", type=click.Path(path_type=Path), default=Path("build/fuzz"), show_default=True)
@click.option("--processes", default=os.cpu_count() or 1, show_default="one for each core", type=click.IntRange(1))
def main(name: str, runs: int | None, directory_runs: int, path: Path | None, findings: Path, processes: int) -> None:
    """Fuzz, print what was covered, and exit with 1 where something was found."""
    if path is not None:
        TARGETS[name].run(path.read_bytes())
        return
    if importlib.util.find_spec("atheris") is None:
        raise click.ClickException("atheris is missing: pip install 'holdfast[fuzz]' (Linux, Python 3.11 to 3.13)")
    if name == TWINS and implementation != "c":
        raise click.ClickException(f"there is no C extension here, or {PURE} is set: there is nothing to compare")
    whole = {ALL: RUNS_ALL, TWINS: RUNS_TWINS}
    total = whole.get(name, RUNS_ONE) if runs is None else runs
    is_whole = total >= whole.get(name, sys.maxsize) and directory_runs >= RUNS_DIRECTORY
    run = Run("fuzz-twins" if name == TWINS else "fuzz", partial=not is_whole)
    if name == ALL:
        shares = sum(target.share for target in DECODERS)
        plan = [(TARGETS["directory"], directory_runs)]  # first: its inputs take the longest
        plan += [(target, -(-total * target.share // shares)) for target in DECODERS]
    elif name == TWINS:
        plan = [(TARGETS[name], -(-total // processes))] * processes
    else:
        plan = [(TARGETS[name], total)]
    print(f"{'target':14}{'executions':>12}{'time':>10}{'rate':>11}{'memory':>12}  verdict", flush=True)
    results = []
    with ThreadPoolExecutor(processes) as pool:
        for result in pool.map(lambda each: fuzz(each[0], each[1], findings), plan):
            results.append(result)
            print(result, flush=True)
    failed = [result for result in results if result.found]
    for result in failed:
        print(f"\n{result.target.name}: what broke it is in {findings}; run it again with --input\n{result.found}")
    counts: Counter[str] = Counter()
    for result in results:
        counts[COUNTED.get(result.target.name, "executions of decoders")] += result.run_count
    said = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    print(f"{'FAILED' if failed else 'ok'}: {said}, {len(failed)} targets failed")
    peak = f"{max(result.peak_mib for result in results):,} MiB"
    run.record({**counts, "memory up to": peak}, violations=len(failed))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()

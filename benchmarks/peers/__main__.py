"""Prints one table of Holdfast and other queues: ``python -m benchmarks.peers``, or ``make bench-peers``.

Rounds run every queue in turn, each figure in a new process and a new folder; the table shows medians.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

from benchmarks.measuring import machine
from benchmarks.measuring.report import markdown
from benchmarks.measuring.rows import NOTHING, significant
from benchmarks.peers import kills
from benchmarks.peers.columns import COLUMNS, command
from benchmarks.peers.install import MISSING
from benchmarks.peers.peer import Peer, UnavailableError
from benchmarks.peers.queues import PEERS

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 60


def measure(peer: Peer, column: str, base: Path, seconds: float) -> float | None:
    """Measure one figure in a process of its own; None: the queue cannot do that."""
    with tempfile.TemporaryDirectory(dir=base) as folder:
        os.sync()
        done = subprocess.run(
            command(peer, column, Path(folder), seconds),
            env=os.environ | peer.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    said = done.stdout.strip()
    if said.startswith("unavailable: "):
        raise UnavailableError(said.removeprefix("unavailable: "))
    if done.returncode or not said:
        raise UnavailableError((done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1])
    return None if said == "None" else float(said)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="folder on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each rate")
    parser.add_argument("--only", action="append", help="a part of a queue's name; may be given several times")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    peers = [each for each in PEERS if not options.only or any(part in each.name for part in options.only)]
    out = json.loads(MISSING.read_text(encoding="utf-8")) if MISSING.exists() else {}
    there = [each for each in peers if each.distribution not in out]
    notes = [f"{each.name}: could not be installed: {out[each.distribution]}" for each in peers if each not in there]
    cells: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory(prefix="peers-", dir=options.dir) as base:
        facts, place = machine.facts(Path(base)), Path(base)
        figures = race(there, place, options.rounds, options.seconds, notes)
        for peer in there:
            try:
                cells[peer.name, "kill-safe"] = kills.verdict(peer, place)
            except (UnavailableError, subprocess.TimeoutExpired) as error:
                notes.append(f"{peer.name}, kill-safe: {error}")
    table = [["queue", "version", *COLUMNS, "kill-safe", "power-safe"]]
    table += [
        [
            peer.name,
            version(peer.distribution) if peer.distribution else sqlite3.sqlite_version,
            *(_cell(column, figures[peer.name, column]) for column in COLUMNS),
            cells.get((peer.name, "kill-safe"), NOTHING),
            peer.power_safe,
        ]
        for peer in there
    ]
    print(*(f"- {fact}" for fact in facts), "", *markdown(table), sep="\n")
    for note in notes:
        print(f"\nNot measured: {note}")


def race(
    peers: Sequence[Peer], place: Path, rounds: int, seconds: float, notes: list[str]
) -> dict[tuple[str, str], list[float]]:
    """Measure all figures of all queues in turn; say in ``notes`` what could not be, and do not try that again."""
    figures: dict[tuple[str, str], list[float]] = defaultdict(list)
    failed: set[tuple[str, str]] = set()
    for _ in range(rounds):
        for column in COLUMNS:
            for peer in peers:
                if (peer.name, column) in failed:
                    continue
                try:
                    figure = measure(peer, column, place, seconds)
                except (UnavailableError, subprocess.TimeoutExpired) as error:
                    failed.add((peer.name, column))
                    notes.append(f"{peer.name}, {column}: {error}")
                    continue
                if figure is not None:
                    figures[peer.name, column].append(figure)
    return figures


def _cell(column: str, readings: list[float]) -> str:
    if not readings:
        return NOTHING
    middle = median(readings)
    return f"{significant(middle)} µs" if column == "latency" else f"{significant(middle)}/s"


if __name__ == "__main__":
    main()

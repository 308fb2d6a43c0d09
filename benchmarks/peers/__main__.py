"""Prints one table of Holdfast and other queues: ``python -m benchmarks.peers``, or ``make bench-peers``.

Rounds run every queue in turn, each figure in a new process and a new folder; the table shows medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from benchmarks.measuring import machine
from benchmarks.measuring.report import markdown
from benchmarks.measuring.rows import NOTHING, significant
from benchmarks.peers import kills
from benchmarks.peers.columns import COLUMNS, command
from benchmarks.peers.install import MISSING
from benchmarks.peers.native.programs import PROGRAMS
from benchmarks.peers.peer import Peer, UnavailableError
from benchmarks.peers.queues import PEERS

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 60
KILL_SAFE = "kill-safe"
FAILED = "failed"
MISSING_HERE = "missing"


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
    parser.add_argument("--kills", type=int, default=5, help="of a process that puts, and as many of one that takes")
    parser.add_argument("--only", action="append", help="a part of a queue's name; may be given several times")
    parser.add_argument("--native", action="store_true", help="with queues of other languages; needs cargo and go")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    known, notes = [*PEERS], dict[tuple[str, str], str]()
    for program in PROGRAMS if options.native else ():
        if _is_asked_for(program.name, options.only):
            try:
                known.append(program.built(options.dir / "native"))
            except (UnavailableError, subprocess.TimeoutExpired) as error:
                notes[program.name, "all columns"] = str(error)
    peers = [each for each in known if _is_asked_for(each.name, options.only)]
    if not peers:
        names = ", ".join(each.name for each in known)
        parser.error("; ".join([f"no queue has {options.only} in its name, there are: {names}", *notes.values()]))
    versions = {each.name: _version(each) for each in peers}
    there = [each for each in peers if versions[each.name] is not None]
    notes |= _missing([each for each in peers if each not in there])
    cells: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory(prefix="peers-", dir=options.dir) as base:
        facts, place = machine.facts(Path(base)), Path(base)
        figures = race(there, place, options.rounds, options.seconds, notes)
        for peer in there:
            try:
                cells[peer.name, KILL_SAFE] = kills.verdict(peer, place, options.kills)
            except (UnavailableError, subprocess.TimeoutExpired) as error:
                notes[peer.name, KILL_SAFE] = str(error)
    cells |= {(name, column): _cell(column, readings) for (name, column), readings in figures.items() if readings}
    cells |= dict.fromkeys(notes, FAILED)
    table = [["queue", "version", *COLUMNS, KILL_SAFE, "power-safe"]]
    table += [
        [
            peer.name,
            versions[peer.name] or MISSING_HERE,
            *(cells.get((peer.name, column), NOTHING) for column in (*COLUMNS, KILL_SAFE)),
            peer.power_safe,
        ]
        for peer in peers
    ]
    print(*(f"- {fact}" for fact in facts), "", *markdown(table), sep="\n")
    for (name, column), note in notes.items():
        print(f"\nNot measured: {name}, {column}: {note}")


def _is_asked_for(name: str, parts: Sequence[str] | None) -> bool:
    """Whether the name has one of the parts in it, or none is given."""
    return not parts or any(part in name for part in parts)


def _version(peer: Peer) -> str | None:
    """Return which version is installed here; None: none is."""
    try:
        return peer.version or version(peer.distribution)
    except PackageNotFoundError:
        return None


def _missing(peers: Sequence[Peer]) -> dict[tuple[str, str], str]:
    """Say why queues are not there."""
    failures = json.loads(MISSING.read_text(encoding="utf-8")) if MISSING.exists() else {}
    unknown = "it is not installed here; make bench-peers installs it"
    return {(each.name, "version"): failures.get(each.distribution, unknown) for each in peers}


def race(
    peers: Sequence[Peer], place: Path, rounds: int, seconds: float, notes: dict[tuple[str, str], str]
) -> dict[tuple[str, str], list[float]]:
    """Measure all figures of all queues in turn; say in ``notes`` what could not be, and do not try that again."""
    figures: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for column in COLUMNS:
            for peer in peers:
                if (peer.name, column) in notes:
                    continue
                try:
                    figure = measure(peer, column, place, seconds)
                except (UnavailableError, subprocess.TimeoutExpired) as error:
                    notes[peer.name, column] = str(error)
                    continue
                if figure is not None:
                    figures[peer.name, column].append(figure)
    return figures


def _cell(column: str, readings: list[float]) -> str:
    middle = median(readings)
    return f"{significant(middle)} µs" if column == "latency" else f"{significant(middle)}/s"


if __name__ == "__main__":
    main()

"""The table of ``make bench-peers``, at tiny sizes: which figures come out is the business of the benchmarks."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each run begins some twenty processes

ROOT = Path(__file__).resolve().parents[3]
TINY = "--rounds", "1", "--seconds", "0.01", "--kills", "1"
HEADINGS = (
    "queue", "version", "put", "put by 100", "get", "get by 100", "durable put, 1 thread", "durable put, 8 threads",
    "two threads", "two processes", "latency", "kill-safe", "power-safe",
)  # fmt: skip
NOTHING = "\N{EN DASH}"
PROGRAM = Path(__file__).with_name("program_of_a_queue.sh")
"""Stands in for the program of a native queue: one speed, and a process to kill that loses nothing."""


def peers(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program with some variables set."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def rows(output: str) -> list[dict[str, str]]:
    """Return the table by its headings."""
    lines = [line for line in output.splitlines() if line.startswith("| ")]
    headings, *table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(headings, cells, strict=True)) for cells in table]


def with_tool(folder: Path, name: str, script: str) -> str:
    """Put a stand-in for a tool in front of what is on PATH; return the new PATH."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / name).chmod(0o700)
    return f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"


def is_missing(distribution: str) -> bool:
    """Whether it is not installed."""
    try:
        version(distribution)
    except PackageNotFoundError:
        return True
    return False


def test_the_table_has_a_figure_for_each_column(tmp_path: Path) -> None:
    """SQLite can do all of it, so no cell is empty; kills are counted, and what syncs is named."""
    done = peers("--dir", str(tmp_path), "--only", "SQLite by hand", *TINY)
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = rows(done.stdout)
    assert tuple(row) == HEADINGS
    assert [row[column][-2:] for column in HEADINGS[2:10]] == ["/s"] * 8
    assert row["latency"].endswith(" µs")
    assert (row["kill-safe"], row["power-safe"]) == ("yes", "synchronous=FULL")
    assert "Not measured" not in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_queue_that_fails_and_one_that_is_missing_have_rows_that_say_so(tmp_path: Path) -> None:
    """What was not measured is told from what a queue cannot do, and the reason stands under the table."""
    absent = next((each for each in ("honker", "localqueue", "queuelib") if is_missing(each)), None)
    if absent is None:
        pytest.skip("all of them are installed here")
    (tmp_path / "litequeue.py").write_text("raise ImportError('broken for this test')")
    (tmp_path / "litequeue-7.dist-info").mkdir()
    (tmp_path / "litequeue-7.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: litequeue\nVersion: 7\n")
    only = "--only", "litequeue", "--only", absent
    done = peers("--dir", str(tmp_path / "disk"), *only, *TINY, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    failed, missing = sorted(rows(done.stdout), key=lambda row: row["version"])
    assert (failed["version"], missing["version"]) == ("7", "missing")
    assert {failed[column] for column in ("put", "get", "two processes", "latency", "kill-safe")} == {"failed"}
    assert failed["durable put, 1 thread"] == NOTHING, "it has no such promise, so nothing failed"
    assert {missing[column] for column in HEADINGS[2:-1]} == {NOTHING}
    assert "Not measured: litequeue, put: ImportError: broken for this test" in done.stdout
    assert ", version: it is not installed here; make bench-peers installs it" in done.stdout


def test_a_name_of_no_queue_is_refused(tmp_path: Path) -> None:
    """An empty table would look like a run."""
    done = peers("--dir", str(tmp_path), "--only", "nobody's", *TINY)
    assert done.returncode == 2
    assert "no queue has" in done.stderr
    assert "SQLite by hand" in done.stderr


@pytest.mark.parametrize(
    ("queue", "reason"),
    [
        ("queue-file", "there is no cargo: install Rust, or leave --native out"),
        ("raft-wal", "there is no go: install Go, or leave --native out"),
    ],
)
def test_without_the_tool_of_a_program_one_line_says_what_to_do(tmp_path: Path, queue: str, reason: str) -> None:
    """Who asks for a queue of another language reads why it is not there."""
    done = peers("--dir", str(tmp_path), "--only", queue, "--native", *TINY, PATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.endswith(f"; {reason}\n")


def test_a_program_that_cannot_be_built_is_named_under_the_table(tmp_path: Path) -> None:
    """The other queues are measured all the same."""
    path = with_tool(tmp_path, "cargo", "echo no network >&2; exit 101")
    only = "--only", "SQLite by hand", "--only", "queue-file"
    done = peers("--dir", str(tmp_path / "disk"), *only, "--native", *TINY, PATH=path)
    assert done.returncode == 0
    assert [row["queue"] for row in rows(done.stdout)] == ["SQLite by hand"]
    assert "Not measured: queue-file, in Rust, all columns: cargo could not build queue_file: no network" in done.stdout


def test_a_program_that_cannot_be_built_takes_no_other_away(tmp_path: Path) -> None:
    """Each needs its own tool; what go says of its downloads is not the reason."""
    with_tool(tmp_path, "cargo", f"mkdir -p $5/release; cp {PROGRAM} $5/release/queue-file-peer")
    path = with_tool(tmp_path, "go", "echo go: downloading all of it >&2; echo no network >&2; exit 1")
    only = "--only", "queue-file", "--only", "raft-wal"
    done = peers("--dir", str(tmp_path / "disk"), *only, "--native", *TINY, PATH=path)
    assert done.returncode == 0
    assert [row["queue"] for row in rows(done.stdout)] == ["queue-file, in Rust"]
    assert "Not measured: raft-wal, in Go, all columns: go could not build raft_wal: no network" in done.stdout


@pytest.mark.parametrize(
    ("tool", "script", "queue", "power_safe"),
    [
        ("cargo", "mkdir -p $5/release; cp {} $5/release/queue-file-peer", "queue-file", "set_sync_writes(true)"),
        ("go", "mkdir -p ${{4%/*}}; cp {} $4", "raft-wal", "always"),
    ],
)
def test_a_program_fills_the_columns_that_it_can(
    tmp_path: Path, tool: str, script: str, queue: str, power_safe: str
) -> None:
    """It is asked and killed as the process of any other queue is; a stand-in for the tool "builds" it here."""
    path = with_tool(tmp_path, tool, script.format(PROGRAM))
    folder = os.path.relpath(tmp_path / "disk", ROOT)  # the tool begins in another folder than we do
    done = peers("--dir", folder, "--only", queue, "--native", *TINY, PATH=path)
    (row,) = rows(done.stdout)
    assert re.fullmatch(r"\d+\.\d+\.\d+", row["version"])
    assert [row[column] for column in HEADINGS[2:11]] == [*["123/s"] * 5, *[NOTHING] * 4]
    assert (row["kill-safe"], row["power-safe"]) == ("yes", power_safe)
    assert "Not measured" not in done.stdout

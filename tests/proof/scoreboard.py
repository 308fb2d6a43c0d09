"""What each programme covered in its last whole run: it writes that itself, and docs/scoreboard.md shows it.

One JSON file for each programme and implementation, ``docs/scoreboard/c/kills.json`` for one; the page is rendered from
them, in the same step. Nothing in either is written by hand: ``python -m proof.scoreboard`` renders the page again, and
a test compares.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
import portalocker
from click.core import ParameterSource

from holdfast.compiled import PURE, implementation
from proof import calls

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

OFF = "HOLDFAST_TEST_SCOREBOARD"
"""With ``off`` in this variable nothing is recorded, as in CI, which must not change the tree that it checks."""

AMOUNTS = frozenset(
    {"calls", "cuts", "depth", "disks", "histories", "minutes", "rate", "rounds", "signal_seconds", "states"}
)
"""Options of which more than the default covers more; with any other value than the default a run is a part."""

ANY_VALUE = frozenset(
    {
        "control",
        "directory",
        "findings",
        "first",
        "jobs",
        "keep",
        "on_disk",
        "path",
        "process_count",
        "processes",
        "quiet",
        "seed",
        "views",
    }
)
"""Options that do not say how much is covered."""

NOT_RECORDED, NOTHING = "not recorded yet", "-"


@dataclass(frozen=True, slots=True)
class Programme:
    """One line of the page.

    Attributes
    ----------
    name : str
        Also that of its file.
    tries : str
        What it tries.
    others : str
        Where others stand; empty: no published figure is known.
    command : str
        What runs the whole of it.
    implementations : tuple of str
        Those that it can try.
    """

    name: str
    tries: str
    others: str
    command: str
    implementations: tuple[str, ...] = ("c", "python")


PROGRAMMES = (
    Programme(
        "crash-states",
        "crash states: all workloads of up to three actions, then drawn ones; lost directory entries are part of each",
        "ACE found most bugs of file systems within three actions; RocksDB's harness left directory entries out in "
        "2022; a toy in pure Python checks 13,000 to 17,000 states a second on one core",
        "make crash",
    ),
    Programme(
        "crash-long", "the same with four actions, for hours; it continues where it stopped", "", "make crash-long"
    ),
    Programme("kills", "SIGKILL of producers and consumers", "sled 700 rounds, RocksDB about 50", "make crash"),
    Programme(
        "successions",
        "SIGKILL and SIGSTOP of owners and clients of shared queues; eight processes put, take and commit",
        "",
        "make successions",
    ),
    Programme(
        "owner-deaths",
        "the owner of a shared queue dies behind each storage operation, and its clients ask the next one again",
        "",
        "make owner-deaths",
    ),
    Programme(
        "owner-deaths-of-two",
        "transactions and joint commits over two shared queues: either owner, or the client, dies at each change",
        "",
        "make owner-deaths",
    ),
    Programme("lock-race", "16 processes race for one lock", "", "make crash"),
    Programme(
        "faults",
        "every storage call fails, once and for ever, with six faults, in operation and in recovery",
        "SQLite does both",
        "make faults",
    ),
    Programme(
        "interruptions",
        "Ctrl-C at every bytecode at which CPython delivers one",
        "a naive `put` leaves memory and disk apart at 417 of 428 points",
        "make interruptions",
    ),
    Programme(
        "bit-flips",
        "every bit of small queues, flipped",
        "a naive log loses data in silence in 3,904 of 3,904",
        "make bit-flips",
    ),
    Programme(
        "power-cuts",
        "power cuts of a real file system",
        "acknowledged and lost of 500: SQLite FULL 0, diskcache 7, litequeue 182, queuelib 500",
        "make power-cuts",
    ),
    Programme(
        "failing-sync",
        "a failing `fsync` of a real disk",
        "five of five applications mishandled it in a study of 2020",
        "make power-cuts",
    ),
    Programme(
        "fuzz", "fuzzing of decoders and of whole directories", "dbsqlfuzz 500,000,000 a day on 16 cores", "make fuzz"
    ),
    Programme(
        "fuzz-twins",
        "fuzzing of the C extension: its twin in Python says the same of each input",
        "",
        "make fuzz",
        ("c",),
    ),
    Programme("second-model", "a second model, written from these pages", "", "make second-model"),
    Programme("mutants", "planted bugs", "", "make crash-mutants", ("python",)),
    Programme("soak", "mixed load for minutes: memory, descriptors, threads and disk stay level", "", "make soak"),
    Programme("coverage", "branches of `persistence` and `queue` reached by tests", "SQLite MC/DC", "make coverage"),
)
"""In the order of the page."""

SHOWN = {"c": "C", "python": "Python"}
"""How the page names an implementation."""

UNTOLD = frozenset({"coverage", "failing-sync", "kills", "lock-race", "mutants", "power-cuts", "successions"})
"""Programmes whose work is done by processes that are killed, or are none of Python's: they cannot tell their calls."""

_HEADER = (
    "<!-- Rendered by tests/proof/scoreboard.py from docs/scoreboard/*.json, which the programmes write. -->\n"
    "| what is tried | where others stand | code | covered by Holdfast | violations | last whole run | command |\n"
    "|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True, slots=True)
class Result:
    """A run of a programme.

    Attributes
    ----------
    covered : dict of str to (int or str)
        How much of what; a figure without a single number is a text.
    violations : int
        How often a promise was broken.
    seconds : float
        How long it took.
    command : str
        The command line.
    date : str
        When it began, UTC.
    commit : str
        What was tried; empty: the tree is none of git's.
    dirty : bool
        Whether source or tests differed from the commit.
    python : str
        Its implementation and version.
    cores : int
        How many there were; the run may have shared them.
    """

    covered: dict[str, int | str]
    violations: int
    seconds: float
    command: str
    date: str
    commit: str
    dirty: bool
    python: str
    cores: int


class Run:
    """A run of a programme that has begun: what it runs is noted before the tree can change.

    Parameters
    ----------
    name : str
        Of the programme, in :data:`PROGRAMMES`.
    partial : bool
        Whether less than the whole is run. Options of the click command that is running are looked at too: see
        :data:`AMOUNTS` and :data:`ANY_VALUE`.
    docs : Path
        Where results and the page are.
    """

    def __init__(self, name: str, *, partial: bool = False, docs: Path = DOCS) -> None:
        programme = next((each for each in PROGRAMMES if each.name == name), None)
        if programme is None:
            raise ValueError(f"{name!r} is no programme of the scoreboard")
        self._name = name
        self._tried = implementation if implementation in programme.implementations else programme.implementations[0]
        self._docs = docs
        self._calls = calls.begin()
        self._less_than_all = ["a part"] * partial + _smaller_options()
        self._began = time.monotonic()
        self._date = datetime.now(UTC).date().isoformat()
        self._commit = _git("rev-parse", "--short=10", "HEAD")
        self._dirty = bool(_git("status", "--porcelain", "--", "src", "tests", "pyproject.toml"))

    def record(self, covered: Mapping[str, int | str], *, violations: int) -> None:
        """Write the result, and the page anew; a part of a run only says that the row of the last whole run stays.

        It says also which implementation was tried, and exits with 1 if that is the extension and it was never called,
        or if it was called and is not the one that was to be tried.
        """
        count = self._count_calls()
        if self._less_than_all or os.environ.get(OFF) == "off":
            why = ", ".join(self._less_than_all) or f"{OFF}=off"
            click.echo(f"scoreboard: not recorded ({why}); the last whole run of {self._name} stays")
            return
        result = Result(
            {**covered, **({"calls into C": count} if count else {})},
            violations,
            round(time.monotonic() - self._began, 1),
            _command_line(),
            self._date,
            self._commit,
            self._dirty,
            f"{platform.python_implementation()} {platform.python_version()}",
            os.cpu_count() or 1,
        )
        path = _path(self._docs, self._tried, self._name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with portalocker.Lock(self._docs / "scoreboard.md", "a", timeout=60, encoding="utf-8") as page:
            path.write_text(json.dumps(asdict(result), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            page.truncate(0)
            page.write(rendered(self._docs))
        click.echo(f"scoreboard: recorded in {path.relative_to(self._docs.parent)}")

    def _count_calls(self) -> int:
        count = calls.total(self._calls)
        click.echo(
            f"implementation: {self._tried}, {count:,} calls into C, without those of processes that were killed"
        )
        if self._tried == "c" and not count and self._name not in UNTOLD and self._docs == DOCS:
            click.echo("FAILED: the C extension was to serve, and was never called")
            raise SystemExit(1)
        if self._tried == "python" and count:
            click.echo("FAILED: Python alone was to serve, and the C extension was called")
            raise SystemExit(1)
        return count


def results(docs: Path = DOCS) -> dict[tuple[str, str], Result]:
    """Return the results there are, by the implementations and names of their programmes."""
    paths = {(of, each.name): _path(docs, of, each.name) for each in PROGRAMMES for of in each.implementations}
    return {key: Result(**json.loads(path.read_text(encoding="utf-8"))) for key, path in paths.items() if path.exists()}


def rendered(docs: Path = DOCS) -> str:
    """Return the page."""
    found = results(docs)
    return _HEADER + "".join(
        _row(each, tried, found.get((tried, each.name))) for each in PROGRAMMES for tried in each.implementations
    )


def _row(programme: Programme, tried: str, result: Result | None) -> str:
    covered, violations, run = NOT_RECORDED, NOTHING, NOTHING
    if result is not None:
        covered = ", ".join(map(_figure, result.covered.items())) or NOTHING
        violations = f"{result.violations:,}"
        changed = " with changes" if result.dirty else ""
        run = (
            f"{result.date}, commit {result.commit or 'unknown'}{changed}, {result.seconds:,.0f} s, {result.python}, "
            f"{result.cores} cores: `{result.command}`"
        )
    said, prefix = ("", ""), f"{PURE}=1 "
    if tried == programme.implementations[0]:
        said, prefix = (programme.tries, programme.others or NOTHING), ""
    cells = (*said, SHOWN[tried], covered, violations, run, f"`{prefix}{programme.command}`")
    return f"| {' | '.join(cells)} |\n"


def _figure(item: tuple[str, int | str]) -> str:
    name, value = item[0].replace("_", " "), item[1]
    return f"{value:,} {name}" if isinstance(value, int) else f"{name} {value}"


def _path(docs: Path, tried: str, name: str) -> Path:
    return docs / "scoreboard" / tried / f"{name}.json"


def _smaller_options() -> list[str]:
    """Return the options of the running command that make it cover less than its defaults."""
    context = click.get_current_context(silent=True)
    if context is None:
        return []
    smaller = []
    for parameter in context.command.params:
        name = parameter.name or ""
        value, default = context.params.get(name), parameter.get_default(context)
        is_given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if not isinstance(parameter, click.Option) or not is_given or name in ANY_VALUE or value == default:
            continue
        if name in AMOUNTS and isinstance(value, int | float) and isinstance(default, int | float) and value > default:
            continue
        smaller.append(max(parameter.opts, key=len))
    return smaller


def _command_line() -> str:
    specification = getattr(sys.modules["__main__"], "__spec__", None)
    name = specification.name.removesuffix(".__main__") if specification is not None else "proof"
    return shlex.join(["python", "-m", name, *sys.argv[1:]])


def _git(*arguments: str) -> str:
    """Return what git says of the tree; without git, nothing."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    (DOCS / "scoreboard.md").write_text(rendered(), encoding="utf-8")

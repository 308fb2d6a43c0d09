"""Plants each bug in a copy of the tree and runs the suites until one catches it: ``python -m proof.mutants``.

Caught means that a test failed or that the explorer reported a violation. A suite that hangs, that cannot be collected
or that a signal ends has caught nothing, and fails the programme.

The code without a bug runs through all of them too, and has to pass: else a catch says nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from proof.mutants.catalogue import MUTATIONS
from proof.mutants.mutation import PACKAGE, Mutation
from proof.mutants.suites import SUITES, Ending, Suite, environment
from proof.scoreboard import Run

ROOT = Path(__file__).resolve().parents[3]
_COPIED = ("src", "tests")


@dataclass(frozen=True, slots=True)
class Task:
    """One copy of the tree, and what is run there until something fails.

    Attributes
    ----------
    mutation : Mutation or None
        The bug in it; None: the control.
    suites : tuple of Suite
        In this order.
    """

    mutation: Mutation | None
    suites: tuple[Suite, ...]

    @property
    def name(self) -> str:
        """How it is printed."""
        return self.mutation.name if self.mutation is not None else f"no bug: {self.suites[0].name}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one copy.

    Attributes
    ----------
    task : Task
        What was run.
    ending : Ending
        How the last suite ended.
    said : str
        That suite, and where in it; empty: it passed all.
    seconds : float
        How long it took.
    """

    task: Task
    ending: Ending
    said: str
    seconds: float

    @property
    def violation(self) -> str:
        """What is wrong: a mutant that was not caught, or a control that did not pass; empty: nothing."""
        if self.ending is (Ending.PASSED if self.task.mutation is None else Ending.CAUGHT):
            return ""
        if self.task.mutation is None:
            return f"the code without a bug does not pass: {self.ending.value}: {self.said}"
        if self.ending is Ending.PASSED:
            return f"{self.task.name} survives all suites"
        return f"{self.task.name} is not caught: {self.ending.value}: {self.said}"

    def __str__(self) -> str:
        return f"{self.task.name:28} {self.seconds:5.0f} s  {self.ending.value:9}  {self.said}".rstrip()


def tasks_for(mutations: Sequence[Mutation], suites: Sequence[Suite], *, with_control: bool) -> list[Task]:
    """Return what is to be done: the control, one suite at a time, and each mutant, its likely suite first."""
    control = [Task(None, (suite,)) for suite in suites] if with_control else []
    mutants = [
        Task(mutation, tuple(sorted(suites, key=lambda suite, mutation=mutation: suite.name != mutation.suite)))  # type: ignore[misc]
        for mutation in mutations
    ]
    return control + mutants


@contextmanager
def copy_of_the_tree(mutation: Mutation | None) -> Iterator[Path]:
    """Make a copy of source and tests, with the bug in it, for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as made:
        root = Path(made)
        for name in _COPIED:
            shutil.copytree(
                ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis", "*.so")
            )
        shutil.copy(ROOT / "pyproject.toml", root)
        if mutation is not None:
            mutation.apply(root)
        check_is_imported(root)
        yield root


def check_is_imported(root: Path) -> None:
    """Make sure that tests in the copy import the package of the copy, and not the installed one."""
    found = subprocess.run(
        [sys.executable, "-c", "import holdfast; print(holdfast.__file__)"],
        env=environment(root),
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if Path(found).resolve() != (root / PACKAGE / "__init__.py").resolve():
        raise click.ClickException(f"the copy at {root} imports {found}; nothing could be caught there")


def judge(task: Task) -> Outcome:
    """Run the suites on one copy until one of them fails."""
    started = time.monotonic()
    ending, said = Ending.PASSED, ""
    with copy_of_the_tree(task.mutation) as root:
        for suite in task.suites:
            verdict = suite.run(root)
            if verdict.ending is not Ending.PASSED:
                ending = verdict.ending
                said = f"{suite.name}, after {verdict.count:,} {suite.unit}  {verdict.where}".rstrip()
                break
    return Outcome(task, ending, said, time.monotonic() - started)


@click.command()
@click.option("--jobs", default=2, show_default=True, help="Copies that are run at once.")
@click.option("--only", multiple=True, help="Plant this one; may be given several times.  [default: all]")
@click.option("--suite", "names", multiple=True, help="Run this suite alone; may be given several times.")
@click.option("--control/--no-control", default=True, show_default=True, help="Run the code without a bug too.")
@click.option("--list", "lists", is_flag=True, help="Say which there are, and plant nothing.")
def main(jobs: int, only: tuple[str, ...], names: tuple[str, ...], control: bool, lists: bool) -> None:
    """Plant bugs in copies of the tree; fail where one is not caught."""
    chosen = [each for each in MUTATIONS if not only or each.name in only]
    suites = [each for each in SUITES if not names or each.name in names]
    unknown = set(only) - {each.name for each in chosen} | set(names) - {each.name for each in suites}
    if unknown:
        raise click.UsageError(f"there is no {', '.join(sorted(unknown))}; --list says which there are")
    if lists:
        for each in chosen:
            click.echo(f"{each.name:26} {each.breaks}")
        return
    run, started = Run("mutants"), time.monotonic()
    for each in chosen:
        each.mutated(ROOT)  # all of them apply, before the first one is run
    violations: list[str] = []
    caught_count = 0
    with ThreadPoolExecutor(jobs) as pool:
        for outcome in pool.map(judge, tasks_for(chosen, suites, with_control=control)):
            click.echo(outcome)
            caught_count += outcome.task.mutation is not None and not outcome.violation
            violations += [outcome.violation] if outcome.violation else []
    click.echo(f"{caught_count} of {len(chosen)} planted bugs caught, in {time.monotonic() - started:.0f} s")
    for violation in violations:
        click.echo(f"VIOLATION: {violation}")
    run.record({"planted bugs caught": f"{caught_count} of {len(chosen)}"}, violations=len(violations))
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()

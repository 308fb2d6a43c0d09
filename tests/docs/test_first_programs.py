"""The programs of the README and of docs/first-steps.md do what these pages show, with a real ``kill -9`` between."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from support.processes.cli import run_alone
from support.processes.threads import wait_until

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_STEPS = (ROOT / "docs" / "first-steps.md").read_text(encoding="utf-8")
SECONDS = 100
"""Far more than it takes, on a machine that has other work."""


def block(page: str, language: str) -> str:
    """Return the first block of a language."""
    found = re.search(rf"^```{language}[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def depth(path: Path) -> int:
    """Return how many messages are unfinished."""
    with PersistentQueue(path, mode="read_only") as queue:
        return queue.stats().depth


class Program:
    """A program of a page, in an empty directory."""

    def __init__(self, directory: Path, name: str, source: str) -> None:
        self.directory = directory
        self._name = name
        self._run_count = 0
        (directory / name).write_text(source, encoding="utf-8")

    @contextmanager
    def runs(self, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
        """Run it; yields the process, and what returns its standard output so far."""
        self._run_count += 1
        out = self.directory / f"run-{self._run_count}.txt"
        with out.open("wb") as stdout, (self.directory / "errors.txt").open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, self._name, *arguments], cwd=self.directory, stdout=stdout, stderr=stderr
            )
        try:
            yield process, lambda: out.read_text(encoding="utf-8")
        finally:
            process.kill()
            process.wait()


def test_the_program_of_the_readme_prints_what_the_readme_shows_over_a_kill(tmp_path: Path) -> None:
    """Word for word: what was finished is not done again, and what was not finished is."""
    shown = block(README, "text")
    first, second = [each for each in shown.split("$ python shop.py\n") if each]
    shop = Program(tmp_path, "shop.py", block(README, "python"))
    before_kill = first.removesuffix("Killed\n")
    with shop.runs() as (process, output):
        wait_until(lambda: output().endswith(before_kill.splitlines()[-1]), SECONDS)
        time.sleep(0.2)  # in the middle of that order, and the one before is acknowledged
        process.kill()
        process.wait()
        assert output() == before_kill
    with shop.runs() as (process, output):
        wait_until(lambda: output().count("sent") == second.count("sent"), SECONDS)
        time.sleep(0.2)  # a message that came again would be shown
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
        assert output() == second
    assert depth(tmp_path / "data" / "mails") == 0


def test_the_mails_of_the_first_steps_are_sent_over_a_kill_and_the_dead_letter_is_found(tmp_path: Path) -> None:
    """With the commands of the page, in their order."""
    mails = Program(tmp_path, "mails.py", block(FIRST_STEPS, "python"))
    queue = tmp_path / "data" / "mails"
    with mails.runs("put") as (process, _):
        assert process.wait(SECONDS) == 0
    (row,) = run_alone("ls", tmp_path / "data", "--json").document
    assert (row["name"], row["depth"], row["dead"]) == ("mails", 4, 0)
    with mails.runs() as (process, output):
        wait_until(lambda: "sent to " in output(), SECONDS)
        process.kill()
        process.wait()
        sent = output()
    with mails.runs() as (process, output):
        wait_until(lambda: depth(queue) == 0, SECONDS)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
        sent += output()
    letters = run_alone("dead", "list", queue, "--json").documents
    dead = {letter["payload"]["to"] for letter in letters}
    assert "grace@nowhere.invalid" in dead
    assert "no mail server for grace@nowhere.invalid" in {letter["detail"] for letter in letters}
    assert dead | set(re.findall(r"^sent to (\S+): Your order$", sent, re.MULTILINE)) == {
        "ada@example.com",
        "alan@example.com",
        "grace@nowhere.invalid",
        "ken@example.com",
    }
    assert run_alone("dead", "retry", queue, "--all").text.startswith("retried ")
    assert run_alone("dead", "discard", queue, "--all", "--yes").code == 0


def test_a_queue_takes_what_the_readme_says(tmp_path: Path) -> None:
    """While it is open, with a message that was received; and what a first deduplication id adds."""
    with PersistentQueue(tmp_path / "queue") as queue:
        queue.put(b"a message")
        queue.receive().ack()
        assert disk_mib(tmp_path) < number(r"less than ([\d.]+) MiB at first")
        before = disk_mib(tmp_path)
        queue.put(b"another one", dedup_id="once")
        assert round(disk_mib(tmp_path) - before, 1) == number(r"`dedup_id` takes ([\d.]+) MiB\s+more")


def disk_mib(path: Path) -> float:
    """Return what `du` would say."""
    return sum(each.stat().st_blocks for each in path.rglob("*")) * 512 / 2**20


def number(pattern: str) -> float:
    """Return a figure of the README."""
    found = re.search(pattern, README)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("page", [README, FIRST_STEPS], ids=["README", "first-steps"])
def test_the_commands_that_a_page_names_exist(page: str) -> None:
    """Of `holdfast ...`, in blocks and in the text."""
    named = set(re.findall(r"holdfast (ls|demo|dead \w+|stats|get|put|peek|verify|work)\b", page))
    assert named
    for each in named:
        assert run_alone(*each.split(), "--help").code == 0


def test_every_relative_link_of_the_readme_leads_to_a_file() -> None:
    """A page that is renamed takes the README with it."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README)
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_command_of_the_readme_is_in_the_makefile() -> None:
    """Those for people who came for the source."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake ([a-z-]+)\b", README))
    assert {"demo", "test"} <= named
    assert [each for each in named if f"\n{each}:" not in makefile] == []


def test_the_readme_is_short() -> None:
    """The deep matter is in docs/."""
    assert len(README.splitlines()) <= 150

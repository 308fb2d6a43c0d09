"""How commands end: exit codes, and one line of why."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import CorruptionError, DiskFullError, HoldfastError, LockTimeoutError, PersistentQueue, QueueLockedError
from holdfast.cli.ending import exit_code_of, worst
from holdfast.cli.main import COMMANDS, holdfast
from support.processes.cli import done, run


def test_importing_the_library_imports_nothing_of_the_command_line() -> None:
    """Neither click nor rich, nor what only other parts need; and the command's own start leaves rich out."""
    source = """
import sys
import holdfast
heavy = {"click", "rich", "sqlite_utils", "sqlite3", "pydantic", "google.protobuf", "asyncio", "multiprocessing"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
import holdfast.cli.main
assert "click" in sys.modules
assert not (heavy - {"click"}) & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)


@pytest.mark.parametrize("command", [each.name for each in COMMANDS])
def test_every_command_has_help_and_knows_json(command: str) -> None:
    """Groups of commands too: those below have it."""
    below = getattr(holdfast.commands[command], "commands", {"": None})
    for name in below:
        shown = done(command, *([name] if name else []), "--help").text
        assert "Usage: holdfast" in shown
        assert "--json" in shown


def test_the_version_is_shown() -> None:
    """That of the distribution."""
    assert done("--version").text.startswith("holdfast ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("stats",),
        ("get", "orders", "--count", "0"),
        ("put", "orders"),
        ("put", "orders", "one", "--lines"),
        ("put", "orders", "--lines", "--dedup-id", "a"),
        ("put", "orders", "one", "--header", "novalue"),
        ("put", "orders", "one", "--header", "a=1", "--header", "a=2"),
        ("put", "orders", "one", "--header", "content-type=a", "--content-type", "b"),
        ("put", "orders", "--file", "missing"),
        ("put", "orders", "one", "--priority", "10"),
        ("dead", "list", "orders", "--reason", "bad luck"),
        ("verify",),
    ],
)
def test_wrong_usage_ends_with_64(arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that 2 means damage and nothing else; with --json it is a document as every other error."""
    monkeypatch.chdir(tmp_path)
    ran = run(*arguments)
    assert (ran.code, ran.out) == (64, b"")
    assert "Error: " in ran.err
    told = run(*arguments, "--json")
    assert (told.code, told.out) == (64, b"")
    assert json.loads(told.err)["error"] == "usage"
    assert not list(tmp_path.iterdir())


def test_a_payload_that_reads_like_the_option_does_not_turn_json_on(tmp_path: Path) -> None:
    """What stands behind ``--`` is no option."""
    ran = run("put", tmp_path / "missing", "--", "--json")
    assert ran.code == 1
    assert ran.err.startswith("error: no queue at ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("stats",),
        ("put", "one"),
        ("get",),
        ("peek",),
        ("prepared",),
        ("commit", "t"),
        ("abort", "t"),
        ("verify",),
        ("dead list",),
        ("dead retry", "--all"),
        ("dead discard", "--all"),
    ],
)
def test_a_queue_that_is_not_there_is_an_error_in_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """And no command makes one."""
    words, rest = arguments[0].split(), arguments[1:]
    ran = run(*words, tmp_path / "orders", *rest)
    assert (ran.code, ran.out) == (1, b"")
    assert ran.err == f"error: no queue at {tmp_path / 'orders'}; `holdfast put --create` makes one\n"
    told = run(*words, tmp_path / "orders", *rest, "--json")
    assert (told.code, told.out) == (1, b"")
    assert json.loads(told.err) == {"error": "queue_not_found", "message": ran.err[len("error: ") : -1]}
    assert not list(tmp_path.iterdir())


def test_errors_have_exit_codes_by_what_the_caller_should_do() -> None:
    """Damage 2, to be tried again 75, everything else 1."""
    assert exit_code_of(HoldfastError("x")) == 1
    assert exit_code_of(DiskFullError("x")) == 1
    assert exit_code_of(CorruptionError("x")) == 2
    assert exit_code_of(QueueLockedError("x")) == exit_code_of(LockTimeoutError("x")) == 75


def test_of_several_exit_codes_damage_counts_most() -> None:
    """Then the first that is not 0."""
    assert worst([]) == worst([0, 0]) == 0
    assert worst([0, 75, 1]) == 75
    assert worst([1, 2, 75]) == 2


def test_ctrl_c_ends_quietly(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 130, as shells have it, and no trace of where it was."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PersistentQueue, "receive_many", interrupted)
    ran = run("get", path)
    assert (ran.code, ran.out, ran.err.strip()) == (130, b"", "")


def test_a_file_that_cannot_be_read_is_an_error_in_one_line(path: Path, tmp_path: Path) -> None:
    """A directory can be opened on some systems, and never read."""
    ran = run("put", path, "--file", tmp_path)
    assert ran.code in (1, 64)
    assert "Traceback" not in ran.err

"""Tables and progress: in plain columns, and with rich on a terminal if the extra ``cli`` is installed."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from holdfast.cli.display import write_table

SECONDS = 60

WITH_AND_WITHOUT = [pytest.param(True, id="rich", marks=pytest.mark.extra("cli")), pytest.param(False, id="plain")]

COMMAND = """
import sys
if sys.argv.pop(1) == "plain":
    sys.modules["rich"] = None
from holdfast.cli.main import main
main()
"""


def command(with_rich: bool, *arguments: object) -> list[str]:
    """Return what runs a command, with rich or as if that were not installed."""
    return [sys.executable, "-c", COMMAND, "rich" if with_rich else "plain", *map(str, arguments)]


def on_terminal(words: list[str], stream: str, stdin: bytes = b"") -> tuple[str, bytes]:
    """Run a command with one stream on a terminal; return what it shows there, and the other stream."""
    ours, theirs = os.openpty()
    other = "stderr" if stream == "stdout" else "stdout"
    streams = {stream: theirs, other: subprocess.PIPE}
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "60"}
    process = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment, **streams)  # type: ignore[call-overload]
    try:
        os.close(theirs)
        process.stdin.write(stdin)
        process.stdin.close()
        shown, deadline = b"", time.monotonic() + SECONDS
        while select.select([ours], [], [], deadline - time.monotonic())[0]:
            try:
                some = os.read(ours, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not some:
                break
            shown += some
        rest = getattr(process, other).read()
        assert process.wait(SECONDS) == 0, (shown, rest)
        return shown.decode(), rest
    finally:
        os.close(ours)
        getattr(process, other).close()
        process.kill()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A service's directory with two queues."""
    with PersistentQueue(tmp_path / "mail", mode="exclusive") as mail:
        mail.put_many([b"one"] * 12)
    PersistentQueue(tmp_path / "orders", mode="exclusive").close()
    return tmp_path


def test_columns_have_the_width_of_their_longest_cell(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers stand to the right; letters that take two columns of a terminal, or none, count as that."""
    write_table(("NAME", "COUNT", "NOTE"), [("mail", 7, "-"), ("漢字漢字", 12345678, "e\u0301é"), ("x", "?", "last")])
    assert capsys.readouterr().out.splitlines() == [
        "NAME         COUNT  NOTE",
        "mail             7  -",
        "漢字漢字  12345678  e\u0301é",
        "x                ?  last",
    ]


def test_a_table_without_rows_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is as wide as the names of the columns."""
    write_table(("NAME", "DEPTH"), [])
    assert capsys.readouterr().out == "NAME  DEPTH\n"


def test_no_cell_controls_the_terminal_or_breaks_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of directories come from anywhere."""
    write_table(("NAME",), [("a\x1b[2J\nb [bold]",)])
    assert capsys.readouterr().out == "NAME\na\\x1b[2J\\nb [bold]\n"


@pytest.mark.parametrize("with_rich", WITH_AND_WITHOUT)
def test_a_pipe_gets_plain_columns(with_rich: bool, directory: Path) -> None:
    """The same bytes with and without the extra."""
    ran = subprocess.run(command(with_rich, "ls", directory), capture_output=True, timeout=SECONDS, check=True)
    lines = ran.stdout.decode().splitlines()
    assert re.fullmatch(r"NAME    DEPTH  DEAD  IN DOUBT +SIZE +FILES  OLDEST  PAUSED", lines[0])
    assert re.match(r"mail       12     0         0  \d", lines[1])
    assert re.match(r"orders      0     0         0  \d", lines[2])
    assert b"\x1b" not in ran.stdout


@pytest.mark.parametrize("with_rich", WITH_AND_WITHOUT)
def test_a_table_is_shown_on_a_terminal(with_rich: bool, directory: Path) -> None:
    """In bold and cut to its width only by rich."""
    shown, errors = on_terminal(command(with_rich, "ls", directory), "stdout")
    assert errors == b""
    assert ("\x1b[1m" in shown) is with_rich
    words = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).split()
    assert {"NAME", "DEPTH", "mail", "orders", "12"} <= set(words)
    if with_rich:
        assert max(len(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)) for line in shown.splitlines()) <= 60


@pytest.mark.parametrize("with_rich", WITH_AND_WITHOUT)
def test_progress_is_shown_on_a_terminal(with_rich: bool, directory: Path) -> None:
    """On standard error, while lines are put; how many there will be is not known of a pipe."""
    words = command(with_rich, "put", directory / "orders", "--lines")
    shown, out = on_terminal(words, "stderr", stdin=b"1\n" * 1500)
    assert "1500 messages" in shown
    assert out == b"put 1500 messages, offsets 0 to 1499\n"


def test_the_progress_of_a_file_is_its_part_of_the_whole(directory: Path) -> None:
    """Without rich too."""
    lines = directory / "lines"
    lines.write_bytes(b"1\n" * 1500)
    words = ["sh", "-c", 'exec "$@" < ' + str(lines), "sh", *command(False, "put", directory / "orders", "--lines")]
    shown, _ = on_terminal(words, "stderr")
    assert "100%" in shown

"""What docs/cli.md says of the command line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from holdfast.cli import ending
from holdfast.cli.main import COMMANDS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.extra("arrow")
def test_the_shell_blocks_run_from_top_to_bottom(tmp_path: Path) -> None:
    """In one directory that is empty at first, and each command ends well."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    script = "\n".join(["set -e -o pipefail", 'holdfast() { "$PYTHON" -m holdfast.cli "$@"; }', *blocks])
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert '{"id": 1}' in ran.stdout


def test_every_command_is_in_the_table_and_nothing_else() -> None:
    """Commands of a group under its name."""
    names: set[str] = set()
    for command in COMMANDS:
        below = command.commands if isinstance(command, click.Group) else {"": command}
        names |= {f"{command.name} {name}".strip() for name in below}
    rows = re.findall(r"^\| `([a-z ]+?)(?: [A-Z\[].*?)?` \|", PAGE, re.MULTILINE)
    assert set(rows) - {"payload"} == names


def test_every_exit_code_is_in_the_table_and_nothing_else() -> None:
    """And 0."""
    codes = {value for name, value in vars(ending).items() if name.isupper() and isinstance(value, int)}
    assert set(map(int, re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE))) == codes | {0}

"""The command ``holdfast`` for tests: in this process, or in one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner

from holdfast.cli.main import holdfast

_SECONDS = 60


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it wrote."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.out.decode()

    @property
    def document(self) -> Any:
        """Standard output, which is one JSON document."""
        return json.loads(self.out)

    @property
    def documents(self) -> list[Any]:
        """Standard output, which is lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(*arguments: object, stdin: bytes = b"") -> Ran:
    """Run a command in this process."""
    result = CliRunner().invoke(holdfast, [str(each) for each in arguments], input=stdin, catch_exceptions=False)
    return Ran(result.exit_code, result.stdout_bytes, result.stderr)


def done(*arguments: object, stdin: bytes = b"") -> Ran:
    """Run a command that has to end well, and say nothing on standard error."""
    ran = run(*arguments, stdin=stdin)
    assert (ran.code, ran.err) == (0, ""), ran
    return ran


def command(*arguments: object) -> list[str]:
    """Return what runs a command in a process of its own."""
    return [sys.executable, "-m", "holdfast.cli", *map(str, arguments)]


def run_alone(*arguments: object, stdin: bytes = b"") -> Ran:
    """Run a command in a process of its own."""
    ran = subprocess.run(command(*arguments), input=stdin, capture_output=True, timeout=_SECONDS, check=False)
    return Ran(ran.returncode, ran.stdout, ran.stderr.decode())


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command whose three streams are pipes; it is dead at the latest when the block ends."""
    process = subprocess.Popen(
        command(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    with process:
        try:
            yield process
        finally:
            process.kill()

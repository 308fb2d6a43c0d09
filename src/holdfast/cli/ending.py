"""How a command ends: exit codes, and one line of why.

Damage has an exit code of its own, so that a script can tell it from everything else. It is 2, which click gives to
wrong usage: that is 64 here (``EX_USAGE`` of sysexits.h, as 75 is ``EX_TEMPFAIL``).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from holdfast.cli.log_lines import set_up_logging
from holdfast.cli.text import for_a_shell
from holdfast.errors import CorruptionError, Full, HoldfastError, RetryableError
from holdfast.log import printable

FAILED = 1
DAMAGED = 2
NOTHING_CAME = 3
USAGE = 64
TRY_AGAIN = 75
INTERRUPTED = 130
"""128 and the number of SIGINT, as shells have it."""
BROKEN_PIPE = 141
"""The same for SIGPIPE."""


def exit_code_of(error: HoldfastError) -> int:
    """Return the exit code of an error."""
    if isinstance(error, CorruptionError):
        return DAMAGED
    return TRY_AGAIN if isinstance(error, RetryableError) else FAILED


def worst(codes: Iterable[int]) -> int:
    """Return one exit code for several: damage before everything else, then the first one."""
    found = [code for code in codes if code]
    return DAMAGED if DAMAGED in found else next(iter(found), 0)


def exit_with(code: int) -> None:
    """End the command; 0 does nothing."""
    if code:
        raise click.exceptions.Exit(code)


class Commands(click.Group):
    """A group of commands whose errors end as one line on standard error, with their exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
            raise click.exceptions.Exit(BROKEN_PIPE) from None
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        if not standalone_mode:
            return super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
        as_json = "--json" in arguments[: arguments.index("--") if "--" in arguments else None]
        set_up_logging(as_json=as_json, is_brief=True)
        try:
            _check_streams()
            code = super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
        except click.Abort:
            code = INTERRUPTED
        except click.ClickException as error:
            if as_json:
                say_line("usage", error.format_message(), as_json=True)
            else:
                error.show()
            code = USAGE
        except HoldfastError as error:
            say(error, as_json=as_json)
            code = exit_code_of(error)
        except Full:
            say_line("full", "the queue is full, and got no space within --timeout", as_json=as_json)
            code = TRY_AGAIN
        except OSError as error:
            say_line("os", str(error), as_json=as_json)
            code = FAILED
        sys.exit(code if isinstance(code, int) else 0)


def say(error: HoldfastError, *, as_json: bool) -> None:
    """Write an error to standard error, as one line."""
    say_line(error.code, str(error), as_json=as_json)


def say_line(code: str, message: str, *, as_json: bool) -> None:
    """Write one line to standard error: the error, under the stable name of its kind."""
    text = for_a_shell(message)
    line = json.dumps({"error": code, "message": text}) if as_json else f"error: {printable(text)}"
    click.echo(line, err=True)


def _check_streams() -> None:
    """Raise OSError if there is nowhere to write: taken messages would be lost. No standard input is an empty one."""
    if sys.stdout is None:
        raise OSError("standard output is closed: send it to a file, or to /dev/null")
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # until the process ends


def _drop_output() -> None:
    """Discard the buffered output: the interpreter would complain about it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

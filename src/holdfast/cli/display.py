"""What people see: tables, and the progress of a command. The one module that decides who draws.

Rich does on a terminal, if the extra ``cli`` is installed. Without it, and in a pipe or a file, tables are plain
columns; so what other programs read does not depend on an extra.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unicodedata import combining, east_asian_width

import click

from holdfast.cli.ending import FAILED, exit_with
from holdfast.cli.text import counted
from holdfast.log import printable
from holdfast.serializers.extras import is_installed

Advance = Callable[[int, int], None]
"""Takes note of messages, and of the bytes that they were read from."""

_GAP = "  "
"""Between two columns."""


def write_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table to standard output; columns of numbers are aligned to the right."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    is_number = [any(isinstance(row[at], int) for row in rows) for at in range(len(columns))]
    is_rich = sys.stdout.isatty() and is_installed("rich")
    click.echo((_drawn if is_rich else _plain)(columns, cells, is_number))


def be_sure(question: str, done: str, *, as_json: bool) -> None:
    """Ask on standard error before something is done for good; end the command if the answer is not yes.

    ``done``: what nothing was, then. With ``--json`` a program would have to answer: that is wrong usage.
    """
    if as_json:
        raise click.UsageError("--json asks no question: give --yes too")
    click.echo(f"{question} [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        click.echo(f"nothing was {done}; --yes does not ask", err=True)
        exit_with(FAILED)


def _plain(columns: Sequence[str], rows: Sequence[Sequence[str]], is_number: Sequence[bool]) -> str:
    lines = [columns, *rows]
    widths = [max(_width(line[at]) for line in lines) for at in range(len(columns))]
    return "\n".join(_GAP.join(map(_padded, line, widths, is_number)).rstrip() for line in lines)


def _padded(cell: str, width: int, is_number: bool) -> str:
    room = " " * (width - _width(cell))
    return room + cell if is_number else cell + room


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]], is_number: Sequence[bool]) -> str:
    """Return the table in bold and within the width of the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, is_right in zip(columns, is_number, strict=True):
        table.add_column(name, justify="right" if is_right else "left")
    for row in rows:
        table.add_row(*map(Text, row))  # not str: that would be read as markup
    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as shown:
        console.print(table)
    return "\n".join(line.rstrip() for line in shown.get().splitlines())


@contextmanager
def progress(size: int | None, *, is_shown: bool = True) -> Iterator[Advance]:
    """Show on standard error how many messages a command has done; nothing if that is no terminal.

    Parameters
    ----------
    size : int or None, bytes
        How much there is to do; None: not known.
    is_shown : bool
        False: nothing anyway.
    """
    if not is_shown or not sys.stderr.isatty():
        yield lambda _count, _bytes: None
        return
    count = 0
    with (_rich_bar if is_installed("rich") else _plain_bar)(size) as show:

        def advance(messages: int, done: int) -> None:
            nonlocal count
            count += messages
            show(counted(count, "message"), done)

        yield advance


@contextmanager
def _plain_bar(size: int | None) -> Iterator[Callable[[str, int], None]]:
    nothing: Iterator[str] = iter(())  # only its length is of use, and that may be unknown
    with click.progressbar(nothing, length=size, item_show_func=lambda text: text, file=sys.stderr) as bar:
        yield lambda text, done: bar.update(done, text)


@contextmanager
def _rich_bar(size: int | None) -> Iterator[Callable[[str, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(counted(0, "message"), total=size)
        yield lambda text, done: bar.update(task, advance=done, description=text)

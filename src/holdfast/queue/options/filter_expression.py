"""Expressions that may be filters: read, limited to what is bounded in cost, and tried. docs/filters.md; docs/adr/0063.

No name but those of :data:`NAMES`, no loop, no clock, no arithmetic, patterns that are literals and cheap.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from importlib import import_module
from typing import Any

from holdfast.errors import ConfigError

NAMES = ("headers", "key", "priority", "size", "time")
"""What an expression may name: a message's headers, order key, priority, bytes of payload, and time of its put."""

FUNCTIONS = ("contains", "endsWith", "matches", "size", "startsWith", "timestamp")
"""What it may call."""

EXPRESSION_CHARACTERS_MAX = 1000

DEPTH_MAX = 20
"""Brackets inside brackets: the parser recurses, and in a small stack a hundred of them are a segmentation fault."""

PATTERN_SECONDS_MAX = 0.002
"""What a pattern may cost for one message: it is compiled each time, and ``\\w{100}`` takes ten times as long."""

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

_OPERATORS = frozenset(["!_", "-_", "_&&_", "_||_", "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "_?_:_", "_[_]"]) | {
    "@in"
}
"""Without ``_+_`` and ``@not_strictly_false``, which each loop over a list or a map has."""

_SHOWN_MAX = 100
"""Characters of an expression in an error, which is one line."""

_TEXT = r"""[bB]?[rR]'[^'\n]*'|[bB]?[rR]"[^"\n]*"|[bB]?'(?:\\.|[^'\\\n])*'|[bB]?"(?:\\.|[^"\\\n])*\""""
_TEXTS = re.compile(_TEXT)
_HOLE = "\x00"
_PATTERN = re.compile(rf"\.\s*matches\s*\(\s*({_TEXT})\s*\)")
_NAME = r"[A-Za-z_]\w*"
_FIELD = re.compile(rf"\bheaders\s*\.\s*({_NAME})")
_PLAIN = r"'([^'\\\n]*)'|\"([^\"\\\n]*)\""
_LOOK_UP = re.compile(
    rf"(?:{_PLAIN})\s*in\s+headers\b(?!\s*[.\[])|\bheaders\s*\[\s*(?:{_PLAIN})\s*\]|\bheaders\s*\.\s*({_NAME})(?!\s*\(|\w)"
)
_OPENING, _CLOSING = "([{", ")]}"


def compiled(expression: str) -> Any:
    """Return an expression that uses only what it may, as the library has it.

    Raises
    ------
    ConfigError
        It may not be a filter, or the extra ``filter`` is not installed.
    """
    cel = library()
    _check_text(expression)
    try:
        program = cel.compile(expression)
    except ValueError as error:
        raise _refused(expression, " ".join(str(error).partition("ERROR: ")[2].split()) or str(error)) from error
    for name in program.variables():
        if name not in NAMES:
            raise _refused(expression, f"there is no {name!r}: it may name {', '.join(NAMES)}")
    for name in program.functions():
        if name not in _OPERATORS and name not in FUNCTIONS:
            raise _refused(expression, f"it may not use {name.strip('_@')!r}, but comparisons, {', '.join(FUNCTIONS)}")
    return program


def header_names(expression: str) -> list[str] | None:
    """Return the headers on which the answer of an expression depends; None: perhaps on all."""
    found = list(_LOOK_UP.finditer(expression))
    if len(found) != len(
        re.findall(r"\bheaders\b", expression)
    ):  # in a text too: then nothing is known, and all is well
        return None
    return sorted({next(name for name in each.groups() if name is not None) for each in found})


def check_filter(expression: object) -> str:
    """Return an expression that can be a filter; raises ConfigError as :func:`compiled`, and for costly patterns.

    It is tried with messages that have no headers, and with one that has every header it names.
    """
    if not isinstance(expression, str):
        raise ConfigError(f"a filter is a text, not {expression!r}")
    program = compiled(expression)
    for pattern in _PATTERN.findall(expression):
        _check_pattern(library(), pattern)
    texts = (text.lstrip("bBrR")[1:-1] for text in _TEXTS.findall(expression))
    headers = dict.fromkeys([*texts, *_FIELD.findall(expression)], "")
    for each in ({}, headers):
        try:
            answer = program.execute({"headers": each, "key": "", "priority": 0, "size": 0, "time": EPOCH})
        except KeyError:  # a header that this message has not
            continue
        except Exception as error:
            raise _refused(expression, str(error).splitlines()[0]) from error
        if not isinstance(answer, bool):
            raise _refused(expression, f"it is true or false for no message: it is {answer!r}")
    return expression


def _check_text(expression: str) -> None:
    """Refuse what the library could not take, before it sees it."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise _refused(expression, f"it has {len(expression)} characters; at most {EXPRESSION_CHARACTERS_MAX}")
    code = _TEXTS.sub(_HOLE, expression)
    depth = 0
    for character in code:
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth > DEPTH_MAX:
            raise _refused(expression, f"brackets are at most {DEPTH_MAX} deep")
    if len(re.findall(r"\bmatches\b", code)) != len(re.findall(rf"\.\s*matches\s*\(\s*{_HOLE}\s*\)", code)):
        raise _refused(expression, "matches takes a pattern that is a text, as in key.matches('^eu-')")
    if "//" in code or "'''" in expression or '"""' in expression:
        raise _refused(expression, "it may have no comment, and no text in three quotes")


def _check_pattern(cel: Any, pattern: str) -> None:
    """Refuse a pattern that is none, or that costs too much."""
    program = cel.compile(f"''.matches({pattern})")
    costs = []
    for _ in range(3):
        started = time.thread_time()
        try:
            program.execute({})
        except Exception as error:
            raise ConfigError(f"{pattern} is no pattern: {' '.join(str(error).split())}") from error
        costs.append(time.thread_time() - started)
    if min(costs) > PATTERN_SECONDS_MAX:
        raise ConfigError(
            f"the pattern {pattern} takes {min(costs) * 1e3:.0f} ms for one message, at most "
            f"{PATTERN_SECONDS_MAX * 1e3:.0f}: say [0-9A-Za-z_] for \\w, or repeat less"
        )


def _refused(expression: str, why: str) -> ConfigError:
    shown = expression if len(expression) <= _SHOWN_MAX else f"{expression[:_SHOWN_MAX]}..."
    return ConfigError(f"{shown!r} cannot be a filter: {why}")


def library() -> Any:
    """Return the library; raises ConfigError if it is not installed."""
    try:
        return import_module("cel")
    except ImportError as error:
        raise ConfigError(
            "filters need a package that is not installed: pip install 'holdfast[filter]'", extra="filter"
        ) from error

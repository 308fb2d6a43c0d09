"""Finds the line of a key in a TOML document. Pure.

The parser of the standard library gives lines for syntax errors only. So it is asked again, with the first line of the
document, with the first two, and so on: the key is on the line of its first occurrence. A value that goes over several
lines does not parse before it is whole; then the line is that on which it begins. So every way to write a key is
understood (quoted, dotted, in an inline table), because nothing but the parser understands it.

Only errors pay for this, and their documents are short.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)$")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def line_of_key(text: str, path: Sequence[str]) -> int | None:
    """Return the line, from 1, of the first occurrence of a key in a valid document; None if it does not."""
    lines = text.split("\n")  # as TOML has it: splitlines() knows more ends of lines
    parsed_to = 0  # whole statements end here
    for count in range(1, len(lines) + 1):
        try:
            document = tomllib.loads("\n".join(lines[:count]) + "\n")
        except tomllib.TOMLDecodeError:
            continue
        if _has(document, path):
            return parsed_to + 1
        parsed_to = count
    return None


def line_of_error(text: str, error: tomllib.TOMLDecodeError) -> int:
    """Return the line, from 1, of a syntax error; the last one if the document ends too early."""
    found = _AT_LINE.search(str(error))
    return int(found[1]) if found else len(text.rstrip().split("\n"))


def shown_key(path: Sequence[str]) -> str:
    """Return a key as it is written in a document, parts quoted that need it."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else f'"{part}"' for part in path)


def _has(document: Any, path: Sequence[str]) -> bool:
    for part in path:
        if not isinstance(document, dict) or part not in document:
            return False
        document = document[part]
    return True

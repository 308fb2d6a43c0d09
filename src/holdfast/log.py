"""Keeps each log record on one line: texts of messages and exceptions come from anywhere, and must not forge records.

Each record of the logger ``holdfast`` passes here before any handler sees it. Its arguments are escaped, so that the
message is one line; a traceback in text form is indented, so that none of its lines begins like a record.
"""

from __future__ import annotations

import logging
import traceback

_INDENT = "    "
_NO_TEXT = "(its text cannot be had)"
_SAFE = (int, float, type(None))


def printable(text: str) -> str:
    """Return a text in one line, control characters as Python writes them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def text_of(value: object) -> str:
    """Return the text of an object; a faulty ``__str__`` must not hide the event."""
    try:
        return str(value)
    except Exception:
        return _NO_TEXT


def indented(lines: str) -> str:
    """Return several lines, each of them indented; other control characters are escaped."""
    return "\n".join(_INDENT + printable(line) for line in lines.splitlines())


class OneLine(logging.Filter):
    """Lets every record pass, with its message on one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape a record's arguments, and put the text of its traceback where formatters look for it."""
        if isinstance(record.args, tuple):
            record.args = tuple(map(_escaped, record.args))
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = indented("".join(traceback.format_exception(*record.exc_info)))
        return True


def _escaped(value: object) -> object:
    """Return an argument that formats to one line; the same one, unless that takes another."""
    if isinstance(value, _SAFE):
        return value
    text = text_of(value)
    shown = printable(text)
    return value if shown is text and text is not _NO_TEXT else shown


def escape_records() -> None:
    """Keep each record of this library on one line."""
    logging.getLogger("holdfast").addFilter(OneLine())

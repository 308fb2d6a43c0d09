"""Keeps each log record on one line: texts of messages and exceptions come from anywhere, and must not forge records.

Each record of the logger ``holdfast`` passes here before any handler sees it. Its arguments are escaped, so that the
message is one line; a traceback in text form is indented, so that none of its lines begins like a record.

A handler of records is any code: it may call a queue. So a record that is made under a lock is noted here, and said by
a thread that holds none: :func:`holdfast.threads.log_later`.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque

from holdfast import forks

logger = logging.getLogger("holdfast")

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
    logger.addFilter(OneLine())


# -- Records that are made under a lock --------------------------------------------------------------------------------


class _Noted:
    """The records that have yet to be said, in their order, and the lock of the thread that says them."""

    def __init__(self) -> None:
        self.records: deque[logging.LogRecord] = deque()
        self.saying = threading.RLock()

    def forget(self) -> None:
        """In a forked child: the parent says its own."""
        self.records.clear()
        self.saying = threading.RLock()


_noted = _Noted()


def note(level: int, text: str, *arguments: object, error: BaseException | None = None, depth: int = 1) -> bool:
    """Note a record of the caller, or of ``depth - 1`` callers above it; False if its level is off."""
    if not logger.isEnabledFor(level):
        return False
    path, line, function, _ = logger.findCaller(stacklevel=depth + 1)
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    _noted.records.append(logger.makeRecord(logger.name, level, path, line, text, arguments, exc_info, function))
    return True


def say_noted() -> None:
    """Say what is noted, unless another thread does: that one says it then. Not to be called under a lock."""
    while _noted.records:
        saying = _noted.saying
        if saying._is_owned():  # type: ignore[attr-defined]  # as threading.Condition asks; by a handler, called here
            return
        try:
            if not saying.acquire(blocking=False):
                return
            if _noted.records:  # else another thread has said it in between
                logger.handle(_noted.records.popleft())
        except Exception:  # of a handler: as the module logging has it, that ends nothing
            if logging.raiseExceptions:
                traceback.print_exc()
        finally:
            try:  # noqa: SIM105  # no call may be between an interruption and this
                saying.release()  # in a child that a handler has forked, the others use another one
            except RuntimeError:  # another thread has it
                pass


class _Last(logging.Handler):
    """Says what is noted as the module ``logging`` ends, which it tells all handlers.

    That is behind functions of ``atexit`` that were registered before this library was imported: they run when its own
    end is over, and no thread is started any more.
    """

    def close(self) -> None:
        """Say it."""
        say_noted()
        super().close()


_last = _Last()
forks.in_child(_noted.forget)

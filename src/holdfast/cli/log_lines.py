"""Log records of commands: lines on standard error, as text or as JSON."""

from __future__ import annotations

import json
import logging
from typing import Any

from holdfast.cli.text import for_a_shell
from holdfast.log import indented, printable

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_HANDLER = "holdfast"
"""The name of the handler that this adds: a command that runs for long replaces the brief one."""


class _TextLines(logging.Formatter):
    """Log records as text: one line each, with tracebacks indented, for any text of messages and exceptions."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the standard library's name
        record.message = printable(for_a_shell(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # as above
        return indented(super().formatException(ei))


class _JsonLines(logging.Formatter):
    """Log records as lines of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": for_a_shell(record.getMessage()),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def set_up_logging(*, as_json: bool, is_brief: bool = False) -> None:
    """Log to standard error, unless the application has set up logging.

    ``is_brief``: only warnings and errors, without their time, as a command shows them that ends by itself. What a verb
    has done or why it failed is left out: the command says that.
    """
    root = logging.getLogger()
    if any(each.get_name() != _HANDLER for each in root.handlers):
        return
    handler = logging.StreamHandler()
    handler.set_name(_HANDLER)
    handler.setFormatter(_JsonLines() if as_json else _TextLines("%(message)s" if is_brief else _LOG_FORMAT))
    if is_brief:
        handler.addFilter(lambda record: not hasattr(record, "verb"))
    logging.basicConfig(level=logging.WARNING if is_brief else logging.INFO, handlers=[handler], force=True)

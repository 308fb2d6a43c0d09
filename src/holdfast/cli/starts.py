"""The type of options that say where to begin in a log: a word, a number, a time, or how long ago."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from holdfast.queue.options.log_start import Start

if TYPE_CHECKING:
    _StartParam = click.ParamType[Start]
else:  # click before 8.4 knows no type arguments
    _StartParam = click.ParamType

_AGO = re.compile(r"(\d{1,6})(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class StartType(_StartParam):
    """As ``groups.create`` takes it; a time without a zone is one of this machine's."""

    name = "start"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Start:
        """Return the start; fails if it is none."""
        text = str(value).strip()
        if text in {"earliest", "latest"}:
            return text
        if re.fullmatch(r"-?\d{1,18}", text):
            return int(text)
        ago = _AGO.fullmatch(text)
        if ago is not None:
            return timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        try:
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError, OSError):
            self.fail(
                f"{text!r} is no start: earliest, latest, an offset, -10 for the last ten messages, a time as "
                "2026-05-04T12:30, or 90s, 30m, 2h or 7d ago.",
                param,
                ctx,
            )

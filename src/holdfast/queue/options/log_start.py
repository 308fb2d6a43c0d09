"""Where to begin in a log, as callers say it, checked: a word, an offset, a number from the end, a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from holdfast.errors import ConfigError, UsageError
from holdfast.persistence.format.constants import NUMBER_MAX
from holdfast.queue.options.put_options import as_ns, instant_ns

Start = str | int | datetime | timedelta
""""earliest", "latest", an offset, -n for the last n messages, a time with a zone, or how long ago."""

EARLIEST, LATEST, OFFSET, LAST, TIME = "earliest", "latest", "offset", "last", "time"
_WORDS = (EARLIEST, LATEST)
_NUMBERED = (OFFSET, LAST, TIME)

_FORMS = "'earliest', 'latest', an offset, -n for the last n messages, a datetime, or a timedelta for how long ago"


@dataclass(frozen=True, slots=True)
class LogStart:
    """One of the forms, and its number: an offset, how many messages from the end, or nanoseconds since the epoch."""

    form: str
    number: int = 0

    @classmethod
    def of(cls, start: Start, now_ns: int) -> LogStart:
        """Return a start as callers say it; raises ConfigError."""
        if isinstance(start, str) and start in _WORDS:
            return cls(start)
        try:
            if isinstance(start, datetime):
                return cls(TIME, instant_ns(start, "a start"))
            if isinstance(start, timedelta):
                return cls(TIME, max(0, now_ns - as_ns(start, "a start as a time ago")))
        except UsageError as error:
            raise ConfigError(str(error)) from None
        if isinstance(start, bool) or not isinstance(start, int) or abs(start) > NUMBER_MAX:
            raise ConfigError(f"a start is {_FORMS}, not {start!r}")
        return cls(OFFSET, start) if start >= 0 else cls(LAST, -start)

    def to_fields(self) -> list[str | int]:
        """Return it as JSON has it."""
        return [self.form, self.number]

    @classmethod
    def from_fields(cls, fields: Any) -> LogStart:
        """Return what :meth:`to_fields` returned; raises UsageError."""
        if isinstance(fields, list) and len(fields) == 2:  # noqa: PLR2004  # the two fields
            form, number = fields
            if form in _WORDS + _NUMBERED and type(number) is int and 0 <= number <= NUMBER_MAX:
                return cls(form, number)
        raise UsageError(f"this version knows no start {fields!r}")

    def __str__(self) -> str:
        return self.form if self.form in _WORDS else f"{self.form} {self.number}"

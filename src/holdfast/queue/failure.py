"""Why a delivery did not end in an acknowledgement. Pure."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any

from holdfast.log import text_of

TRACEBACK_CHARACTERS_MAX = 4000
"""Of a long traceback the end is kept: it says where it happened."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What is kept of a failed delivery if it was the last one.

    Attributes
    ----------
    reason : str
        Why the message becomes a dead letter, if it does: one of ``DEAD_REASONS``.
    detail : str
        What whoever rejected it said, or what the exception said.
    exception : str
        Its type, with its module; empty where there was none.
    trace : str
        Its traceback, cut.
    cause : BaseException or None
        The exception itself, for the log; never leaves its process.
    """

    reason: str
    detail: str = ""
    exception: str = ""
    trace: str = ""
    cause: BaseException | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Failure, (self.reason, self.detail, self.exception, self.trace)


GIVEN_BACK = Failure("max_deliveries")
"""By hand, with nack()."""

RAN_OUT = Failure("lease_expired")


def failure_of(error: BaseException | Failure, reason: str = "exception") -> Failure:
    """Return what is kept of an exception; what was made of one already, in another process, stays as it is."""
    if isinstance(error, Failure):
        return error
    kind = type(error)
    lines = "".join(traceback.format_exception(error))
    if len(lines) > TRACEBACK_CHARACTERS_MAX:
        end = lines[-TRACEBACK_CHARACTERS_MAX:]
        lines = "... " + end[end.find("\n", 0, -1) + 1 :]  # whole lines: half a secret would not be known for one
    detail = text_of(error)[:TRACEBACK_CHARACTERS_MAX]
    return Failure(reason, detail, f"{kind.__module__}.{kind.__qualname__}", lines, error)

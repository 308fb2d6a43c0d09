"""Why a delivery did not end in an acknowledgement, with secrets taken out of its texts by the hook ``redact=``. Pure.

A hook that fails costs its text, and nothing else: the message goes its way.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from holdfast.log import text_of
from holdfast.persistence.format.constants import NOTE_CHARACTERS_MAX

TRACEBACK_CHARACTERS_MAX = 4000
"""Of a long traceback the end is kept: it says where it happened."""

SEEN_CHARACTERS_MAX = 2**14
"""What ``redact=`` sees of a text before it is cut to what is kept; half a secret would not be known for one."""

Redact = Callable[[str], str]

WITHHELD = "(withheld: redact= has failed)"

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None]


@dataclass(frozen=True, slots=True)
class Failure:
    """The details that are kept of a failed last delivery.

    Attributes
    ----------
    reason : str
        Why the message becomes a dead letter, if it does: one of ``DEAD_REASONS``.
    detail : str
        The reason of the rejection, or the text of the exception.
    exception : str
        Its type, with its module; empty if there was none.
    trace : str
        Its traceback.
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
    """Return the details to keep of an exception; details from another process are kept as they are."""
    if isinstance(error, Failure):
        return error
    kind = type(error)
    cause: BaseException | None = error
    try:
        trace = _end_of("".join(traceback.format_exception(error)), SEEN_CHARACTERS_MAX)
    except Exception:  # an exception is code of the program's; the log could not show it either
        trace, cause = "", None
    detail = text_of(error)[:SEEN_CHARACTERS_MAX]
    return Failure(reason, detail, f"{kind.__module__}.{kind.__qualname__}", trace, cause)


def shortened(failure: Failure) -> Failure:
    """Return a failure with as much of its texts as is kept. Not before secrets are taken out."""
    trace = _end_of(failure.trace, TRACEBACK_CHARACTERS_MAX)
    return replace(failure, detail=failure.detail[:NOTE_CHARACTERS_MAX], trace=trace)


def _end_of(trace: str, characters_max: int) -> str:
    """Return the last lines of a traceback."""
    if len(trace) <= characters_max:
        return trace
    end = trace[-characters_max:]
    return "... " + end[end.find("\n", 0, -1) + 1 :]  # whole lines: half a secret would not be known for one


class HandlerError(Exception):
    """Replaces in the log an exception that is not there, or whose text may not be shown: its kind and its text."""


def redacted(failure: Failure, redact: Redact | None) -> Failure:
    """Return a failure with texts that may be stored and logged, as much of them as is kept."""
    if not (failure.detail or failure.trace):
        return failure
    if redact is None:
        return shortened(failure)
    cleaned = replace(failure, detail=_cleaned(failure.detail, redact), trace=_cleaned(failure.trace, redact))
    kept = shortened(cleaned)  # not before: half a secret would not be known for one
    if kept.cause is None:
        return kept
    stand_in = HandlerError(f"{kept.exception}: {kept.detail}").with_traceback(kept.cause.__traceback__)
    return replace(kept, cause=stand_in)


def _cleaned(text: str, redact: Redact) -> str:
    if not text:
        return text
    try:
        cleaned = redact(text)
    except Exception:
        return WITHHELD
    return cleaned if isinstance(cleaned, str) else WITHHELD


def exception_info(failure: Failure) -> ExceptionInfo | None:
    """Return the exception to show in a log record; of one in another process, its text. None if there was none.

    The stand-in has no cause: that of the exception would be shown with its text.
    """
    if failure.cause is not None:
        return type(failure.cause), failure.cause, failure.cause.__traceback__
    if failure.exception:
        error = HandlerError(f"{failure.exception}: {failure.detail}\n{failure.trace}")
        return HandlerError, error, None
    return None

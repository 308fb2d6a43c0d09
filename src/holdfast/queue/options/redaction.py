"""Takes secrets out of texts before anything of them is stored or logged: the hook ``redact=``.

A hook that fails costs its text, and nothing else: the message goes its way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from holdfast.queue.options.failure import Failure, shortened

Redact = Callable[[str], str]

WITHHELD = "(withheld: redact= has failed)"

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class HandlerError(Exception):
    """Stands in the log for an exception that is not there, or whose text may not be shown: its kind and its text."""


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
    """Return what a log record says of the exception; of one in another process, its text. None where there was none.

    The stand-in has no cause: that of the exception would be shown with its text.
    """
    if failure.cause is not None:
        return type(failure.cause), failure.cause, failure.cause.__traceback__
    if failure.exception:
        error = HandlerError(f"{failure.exception}: {failure.detail}\n{failure.trace}")
        return HandlerError, error, None
    return None

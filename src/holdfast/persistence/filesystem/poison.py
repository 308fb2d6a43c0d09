"""The poison of a side: after a failure that may have left memory and disk different, it refuses to write.

A failed sync is never tried again: the second one can succeed over lost data. Only reopening the queue ends it, because
opening reads what is on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import CommitUnknownError, FencedError, PoisonedError
from holdfast.threads import log_later


class Poison:
    """The first failure of one side with an unknown outcome.

    Parameters
    ----------
    side : str
        Which side, for error messages.
    path : Path
        Its path.

    Attributes
    ----------
    cause : BaseException or None
        That failure; None if there was none.
    """

    def __init__(self, side: str, path: Path) -> None:
        self._side = side
        self._path = path
        self.cause: BaseException | None = None

    def set(self, cause: BaseException) -> None:
        """Refuse every later write because of ``cause``."""
        if self.cause is None:
            self.cause = cause
            log_later(logging.ERROR, "%s of %s is poisoned: %s", self._side, self._path, repr(cause))

    def check(self) -> None:
        """Raise PoisonedError after an earlier failure, or FencedError if that failure was another owner."""
        if self.cause is None:
            return
        if isinstance(self.cause, FencedError):
            raise FencedError(f"nothing was written: {self.cause}", **self.cause.context) from self.cause
        raise PoisonedError(
            f"{self._side} of {self._path} is closed since an earlier failure "
            f"({self.cause!r}); nothing was written. Reopen the queue",
            path=str(self._path),
        ) from self.cause


@contextmanager
def undoing(poison: Poison | None) -> Iterator[None]:
    """Undo a failed write in the block; if the disk refuses that too, the contents are unknown, so poison the side."""
    try:
        yield
    except OSError as error:
        if poison is not None:
            poison.set(error)


def commit_unknown(what: str, path: Path, error: BaseException) -> CommitUnknownError:
    """Return the error for a failure that leaves a commit in doubt."""
    if isinstance(error, FencedError):
        return CommitUnknownError(
            f"whether this commit counts is unknown: {error}; then check with mode='read_only'", path=str(path)
        )
    return CommitUnknownError(
        f"{what} failed on {path} ({error}); what is on the disk is unknown: reopen the queue and check",
        path=str(path),
    )

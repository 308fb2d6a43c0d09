"""Why a side of a queue refuses to write: an earlier failure left memory and disk possibly apart.

A failed sync is never tried again: the second one can succeed over lost data. Only opening the queue anew, which looks
at what is on the disk, ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import CommitUnknownError, FencedError, PoisonedError

logger = logging.getLogger("holdfast")


class Poison:
    """The first failure of one side that nobody can know the outcome of.

    Parameters
    ----------
    side : str
        Which side, for people.
    path : Path
        Where it is.

    Attributes
    ----------
    cause : BaseException or None
        That failure; None while all is well.
    """

    def __init__(self, side: str, path: Path) -> None:
        self._side = side
        self._path = path
        self.cause: BaseException | None = None

    def set(self, cause: BaseException) -> None:
        """Refuse every later write because of ``cause``."""
        if self.cause is None:
            self.cause = cause
            logger.error("%s of %s is poisoned: %s", self._side, self._path, repr(cause))

    def check(self) -> None:
        """Raise PoisonedError where an earlier failure stands; FencedError where another owner has."""
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
    """Take back what has failed; where the disk refuses that too, nobody knows what stands there."""
    try:
        yield
    except OSError as error:
        if poison is not None:
            poison.set(error)


def commit_unknown(what: str, path: Path, error: BaseException) -> CommitUnknownError:
    """Return the error for a failure that leaves a commit in doubt."""
    if isinstance(error, FencedError):
        return CommitUnknownError(
            f"nobody knows whether this commit counts: {error}; then look for it with mode='look'", path=str(path)
        )
    return CommitUnknownError(
        f"{what} failed on {path} ({error}); nobody knows what is on the disk: reopen the queue and look",
        path=str(path),
    )

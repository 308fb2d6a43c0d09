"""When written bytes are synced to the disk; docs/durability.md lists the guarantees."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.errors import ConfigError

_SECONDS_MAX = 2**32
"""136 years; a thread cannot wait much longer."""


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """How many commits, and how much time, may pass before a sync. Make one with the three class methods.

    Every policy survives the death of the process: no user-space buffer holds an acknowledged record. Only synced bytes
    survive a power cut.

    Attributes
    ----------
    commits : int or None
        Sync when this many commits wait for one; None: never because of their number.
    seconds : float or None
        Sync when the oldest commit has waited this long; None: never because of time.
    """

    commits: int | None
    seconds: float | None

    def __post_init__(self) -> None:
        """Shorten a wait that no thread can take."""
        if self.seconds is not None:
            object.__setattr__(self, "seconds", min(self.seconds, _SECONDS_MAX))

    @classmethod
    def every_commit(cls) -> FlushPolicy:
        """Sync before each put, commit and acknowledgement returns: survives power loss. The default."""
        return cls(1, None)

    @classmethod
    def every(cls, *, commits: int = 1000, seconds: float = 0.05) -> FlushPolicy:
        """Sync after ``commits`` commits or ``seconds``, whichever comes first: power loss costs at most those."""
        if commits < 1 or not seconds > 0:
            raise ConfigError(f"every() takes at least 1 commit and more than 0 seconds, not {commits} and {seconds}")
        return cls(commits, seconds)

    @classmethod
    def never(cls) -> FlushPolicy:
        """Leave it to the operating system: survives ``kill -9``; power loss costs at most the last file."""
        return cls(None, None)

    @property
    def syncs_every_commit(self) -> bool:
        """Whether an acknowledgement waits for the disk."""
        return self.commits == 1

    def covers(self, other: FlushPolicy) -> bool:
        """Whether power loss costs at most what it costs under the other policy."""
        return _bound(self.commits) <= _bound(other.commits) and (
            self.syncs_every_commit or _bound(self.seconds) <= _bound(other.seconds)
        )

    def __str__(self) -> str:
        if self.syncs_every_commit:
            return "every_commit()"
        return "never()" if self.commits is None else f"every(commits={self.commits}, seconds={self.seconds})"


def _bound(value: float | None) -> float:
    return math.inf if value is None else value

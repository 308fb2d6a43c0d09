"""Whether a consumer group is paused: remembered, and in its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.errors import CommitUnknownError
from holdfast.persistence.filesystem.poison import Poison, commit_unknown
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.groups.pause_file import Pause, read_pause, remove_pause, write_pause


class Pausing:
    """The pause of one group, for its owner.

    Parameters
    ----------
    storage, directory
        The group's directory.
    time_ns : callable
        The wall clock.
    poison : Poison
        Set when a failure cannot be undone: then nothing is changed any more.

    Attributes
    ----------
    stored : Pause or None
        The pause in the file: None nearly always, which is checked before every take.

    Raises
    ------
    OSError
        The disk refuses.
    """

    def __init__(self, storage: Storage, directory: Path, time_ns: Callable[[], int], poison: Poison) -> None:
        self._storage = storage
        self._directory = directory
        self._time_ns = time_ns
        self._poison = poison
        self.stored = read_pause(storage, directory)

    @property
    def is_paused(self) -> bool:
        """Whether the group is paused now."""
        return self.current is not None

    @property
    def until_ns(self) -> int | None:
        """When the pause ends by itself, in nanoseconds since the epoch; None if it does not, or there is none."""
        pause = self.current
        return pause.until_ns if pause is not None else None

    @property
    def current(self) -> Pause | None:
        """The pause, if there is one."""
        pause = self.stored
        return None if pause is None or pause.is_over(self._time_ns()) else pause

    def pause(self, pause: Pause) -> None:
        """Pause, durably."""
        self._poison.check()
        with storage_errors("pausing", self._directory):
            try:
                write_pause(self._storage, self._directory, pause)
            except CommitUnknownError as error:
                self._poison.set(error)
                raise
        self.stored = pause

    def resume(self) -> None:
        """End the pause, durably."""
        self._poison.check()
        with storage_errors("resuming", self._directory):
            try:
                remove_pause(self._storage, self._directory)
            except OSError as error:
                self._put_back(error)
                raise
        self.stored = None

    def _put_back(self, cause: OSError) -> None:
        """Pause anew: a second sync could succeed over a removal that was lost, so the next attempt makes a new one."""
        if self.stored is None:
            return
        try:
            write_pause(self._storage, self._directory, self.stored)
        except (OSError, CommitUnknownError) as error:
            self._poison.set(error)
            raise commit_unknown("resuming", self._directory, cause) from error

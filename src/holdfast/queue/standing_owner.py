"""A process that owns a queue for others: ``holdfast serve``. It has no handle, and puts and takes nothing."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import RetryableError
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.groups.group_files import DEFAULT_GROUP
from holdfast.persistence.ownership.sessions import NO_NUMBER, Sessions
from holdfast.queue.client.membership import Membership
from holdfast.queue.client.owner_finder import OwnerFinder
from holdfast.queue.options.queue_options import Options
from holdfast.queue.options.settings import GROUP_SETTINGS, QUEUE_SETTINGS, Settings, stored
from holdfast.queue.protocol.messages import Attach
from holdfast.queue.threads.notifier import Flag
from holdfast.threads import join_thread, no_thread_error, start_thread

logger = logging.getLogger("holdfast")

LOOK_SECONDS = 0.5
"""How often it looks whether it still owns: another process owns meanwhile, and serves."""


class StandingOwner:
    """Owns a queue from here on: takes it over from the process that owns it, and again whenever it was lost.

    To another standing owner it is handed over, and left for as long as that one lives. Each change is logged.

    Parameters
    ----------
    storage, clock, path
        The queue, which exists.
    configured : Settings
        Settings that the queue is changed to.

    Raises
    ------
    QueueLockedError
        A handle of another mode owns the queue.
    HoldfastError
        As :class:`PersistentQueue`; nothing stays open.
    """

    def __init__(self, storage: Storage, clock: Clock, path: Path, configured: Settings | None = None) -> None:
        self._storage = storage
        self._path = path
        self._trouble = ""
        self._was_owner = False
        self._is_over = Flag()
        options = Options("shared", DEFAULT_GROUP, configured=configured or Settings())
        self._finder = OwnerFinder(storage, clock, path, options)
        self._membership = Membership(self._finder)
        try:
            self._membership.ask(
                Attach(DEFAULT_GROUP, {}, stored(options.configured, QUEUE_SETTINGS | GROUP_SETTINGS), False)
            )
            self._look()
            self._thread = start_thread(self._run, "holdfast-standing-owner", self._is_over.set)
            if self._thread is None:
                raise no_thread_error(f"owning {path}")
        except BaseException:
            self._membership.leave()
            raise

    @property
    def is_owner(self) -> bool:
        """Whether it owns the queue now."""
        return self._membership.is_owner

    def close(self) -> None:
        """Let the next owner in."""
        self._is_over.set()
        self._membership.leave()
        join_thread(self._thread)
        if self._was_owner:
            logger.info("%s is given back", self._path)

    def _run(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            try:
                self._look()
                self._trouble = ""
            except Exception as error:  # without memory, say: it looks again
                with suppress(Exception):
                    self._tell(error)

    def _look(self) -> None:
        """Own the queue, unless it was handed over to a session that lives."""
        if not self._membership.is_owner:
            if self._was_owner:
                self._was_owner = False
                logger.info("%s is owned by this process no more", self._path)
            if self._has_heir():
                return
            self._membership.take_over()
        if not self._was_owner:
            self._was_owner = True
            logger.info("%s is owned by this process", self._path)

    def _has_heir(self) -> bool:
        heir = self._finder.heir
        with storage_errors("testing a session", self._path):
            return heir != NO_NUMBER and Sessions(self._storage, self._path).is_alive(heir)

    def _tell(self, error: Exception) -> None:
        """Log what keeps it from owning, once."""
        if not self._is_over.is_set() and repr(error) != self._trouble:
            self._trouble = repr(error)
            level = logging.INFO if isinstance(error, RetryableError) else logging.ERROR
            logger.log(level, "%s is not owned by this process: %s", self._path, error)

"""Finds the owner of a queue: takes its lock and becomes the owner, or connects to the process that has it."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from holdfast.clock import Clock
from holdfast.errors import PoisonedError, QueueLockedError, RetryableError, UsageError
from holdfast.persistence.filesystem.layout import open_directory, queue_directory
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.ownership.owner_lock import OwnerLock, read_owner_note
from holdfast.persistence.ownership.sessions import NO_NUMBER, SessionFile, Sessions
from holdfast.persistence.recovery.admission import check_file_system
from holdfast.queue.client.link import Link, LinkLostError, OwnerLink, SocketLink
from holdfast.queue.engine.handle_settings import HandleSettings
from holdfast.queue.engine.reading import with_reserve
from holdfast.queue.options.queue_options import Options
from holdfast.queue.owner.owner import Owner
from holdfast.queue.protocol.messages import Resume, SessionLostError

logger = logging.getLogger("holdfast")

_HAS_FAILED = "a write of this process has failed; close the queue and open it again"

_HEIR_SECONDS = 1.0
"""How long a process has to take what was handed over to it."""

_FREE_SECONDS = 1.0
"""How long other processes may take to find that the owner has ended: they look each 50 ms."""


class InHand(Protocol):
    """The consumer of a handle, as an owner that begins has to know it."""

    group: str

    def numbers_in_hand(self) -> list[int]:
        """Return the delivery numbers of what is in hand, or is being taken."""

    def look_after_leases(self) -> None:
        """Extend what is in use from here on: the owner in this process did so, and has ended."""

    def lose_session(self) -> None:
        """Note that all deliveries in hand are stale: the session was found dead."""


class OwnerFinder:
    """The session of one handle, and the ways to the owner that it finds. For one thread at a time.

    Parameters
    ----------
    storage, clock, path, options
        The queue, which is made if it does not exist, and how the handle is opened.

    Attributes
    ----------
    is_new : bool
        Whether this has made the queue.
    living : callable
        Whether the session of a number is alive, as its file tells.
    owner : Owner or None
        The owner, if it is this process.
    consumer : InHand or None
        What the handle has in hand.
    on_poisoned : callable
        Hears that a write of the owner in this process has failed, in a thread of its own.
    on_displaced : callable
        Hears that other processes do not find the owner in this process any more, in a thread of its own.
    owns_briefly : bool
        Whether this process owns only for the length of a call, and only while no other process owns.

    Raises
    ------
    HoldfastError
        As :class:`PersistentQueue`; nothing stays open.
    """

    def __init__(self, storage: Storage, clock: Clock, path: Path, options: Options) -> None:
        self._storage = storage
        self._clock = clock
        self._path = path
        self._options = options
        self._why_client = _why_client(options)
        self._has_failed = False
        self._had_owner = False
        self._free_since = math.inf
        self._inherits_since: tuple[bytes, float] = (b"", math.inf)
        self._heir = NO_NUMBER
        self.living: Callable[[int], bool] = Sessions(storage, path).is_alive
        self.owns_briefly = not options.can_own and not self._why_client
        self.owner: Owner | None = None
        self.consumer: InHand | None = None
        self.on_poisoned: Callable[[], object] = lambda: None
        self.on_displaced: Callable[[], object] = lambda: None
        with storage_errors("joining", path):
            check_file_system(storage, path, is_any_allowed=options.any_file_system)
            make = HandleSettings(path, options).of_new_queue
            *_, self.is_new = open_directory(storage, path, create=True, settings=make)
            self._session = SessionFile.begin(storage, path)

    @property
    def heir(self) -> int:
        """The session to which this process has handed the queue over since it last owned it; 0: none."""
        owner = self.owner
        return self._heir if owner is None else owner.heir  # it is handed over as soon as that was asked

    def find(self) -> Link | None:
        """Return a way to the owner; None if none answers now.

        Raises
        ------
        HoldfastError
            This process has taken the lock, and the queue cannot be opened.
        """
        if self.owner is not None and self.owner.is_closing:  # interrupted: the next owner waits for the rest
            self._close_owner()
        if self.owner is not None:  # an interruption came between taking the lock and the use of that
            if self._session.number == NO_NUMBER:  # or the session before had no more numbers
                with storage_errors("joining", self._path):
                    self._admit_to(self.owner.sessions)
            return OwnerLink(self.owner, self._session.number)
        if not self._why_client and not self.owns_briefly:
            return self._own() or self._connect()
        link = self._connect()
        if link is None and self._has_failed and self._is_left_alone():
            raise PoisonedError(f"{_HAS_FAILED}, and no other process owns {self._path}")
        if link is None and self.owns_briefly and (not self._had_owner or self._is_left_alone()):
            return self._own()
        return link

    def _is_left_alone(self) -> bool:
        """Whether no process has owned the queue for a while, so that none is about to take over."""
        if not self._is_free():
            self._free_since = math.inf
            return False
        self._free_since = min(self._free_since, time.monotonic())
        return time.monotonic() >= self._free_since + _FREE_SECONDS

    def _own(self) -> Link | None:
        """Take the owner lock if it is free and not left to an heir, and open the queue."""
        if self._is_for_heir():
            return None
        with storage_errors("taking the lock of the owner", self._path):
            directory = queue_directory(self._path)
            lock = with_reserve(self._storage, directory, lambda: OwnerLock.try_take(self._storage, self._path))
        if lock is None:
            return None
        self._had_owner, self._heir = False, NO_NUMBER
        try:
            self.owner = owner = Owner(self._storage, self._clock, self._path, self._options, lock)
            owner.on_poisoned, owner.on_displaced = self.on_poisoned, self.on_displaced
            owner.begin(is_brief=self.owns_briefly)
            with storage_errors("joining", self._path):
                if not owner.sessions.is_alive(self._session.number):
                    if self._session.number != NO_NUMBER:
                        self.begin_session()
                    self._admit_to(owner.sessions)
            if self.consumer is not None:
                owner.queue.keep_only(self._session.number, self.consumer.group, self.consumer.numbers_in_hand())
            owner.start()
        except BaseException:
            self._close_owner()
            lock.release()  # interrupted before the owner was known
            raise
        return OwnerLink(owner, self._session.number)

    def _is_for_heir(self) -> bool:
        """Whether the last owner has handed the queue over to another session, which lives and has time left."""
        note = read_owner_note(self._storage, self._path)
        if note is None or note.heir in (NO_NUMBER, self._session.number):
            return False
        if self._inherits_since[0] != note.epoch:
            self._inherits_since = note.epoch, time.monotonic()
        if time.monotonic() >= self._inherits_since[1] + _HEIR_SECONDS:
            return False
        with storage_errors("testing a session", self._path):
            return self.living(note.heir)

    def _admit_to(self, sessions: Sessions) -> None:
        """Have the session named; an owner that died may have done that, and not have said which number it has."""
        try:
            self._session.named(sessions.admit(self._session.making))
        except UsageError:
            self.begin_session()
            self._session.named(sessions.admit(self._session.making))

    def _connect(self) -> Link | None:
        """Connect to the owner, if there is one that greets."""
        note = read_owner_note(self._storage, self._path)
        if note is None or note.socket is None:
            return None
        link = SocketLink(note.socket, note.epoch)
        try:
            try:
                self._session.named(link.greet(self._session.number, self._session.making).session)
            except SessionLostError:  # found dead; or an owner died that had named it, and not said so
                self.begin_session()
                self._session.named(link.greet(NO_NUMBER, self._session.making).session)
            if self.consumer is not None:
                link.ask(Resume(self.consumer.group, self.consumer.numbers_in_hand()), (), 0.0)
        except (LinkLostError, RetryableError, SessionLostError) as error:  # or it looks where the queue was before
            logger.debug("the owner of %s does not greet: %s", self._path, error)
            link.close()
            return None
        except BaseException:
            link.close()
            raise
        self._had_owner, self._free_since = not note.is_brief, math.inf
        return link

    def begin_session(self) -> None:
        """Begin another session with the next owner that is found: this one is dead, or has no more numbers."""
        if self.consumer is not None:
            self.consumer.lose_session()
        self._session.end()
        with storage_errors("joining", self._path):
            self._session = SessionFile.begin(self._storage, self._path)

    def not_found(self) -> RetryableError:
        """Return the error for an owner that does not answer, or that is missing while this process may not own."""
        note = read_owner_note(self._storage, self._path)
        if self._why_client and self._is_free():
            return RetryableError(f"no process owns {self._path}, and this one may not: {self._why_client}")
        who = "another process" if note is None else f"process {note.pid} on {note.host}"
        return QueueLockedError(
            f"{self._path} is owned by {who}, which does not answer: it may be stopped, or still recovering; try again",
            path=str(self._path),
            pid=None if note is None else note.pid,
            host=None if note is None else note.host,
        )

    def _is_free(self) -> bool:
        """Whether no process owns the queue now."""
        with storage_errors("testing the lock of the owner", self._path):
            lock = OwnerLock.try_take(self._storage, self._path)
        if lock is not None:
            lock.release()
        return lock is not None

    def abdicate(self, *, has_failed: bool) -> None:
        """Own the queue no more; if a write of this process ``has_failed``, never again."""
        if has_failed:
            self._why_client, self._has_failed, self.owns_briefly = _HAS_FAILED, True, False
        self._close_owner()

    def leave(self) -> None:
        """End the session; if this process owns the queue, let the next one in."""
        try:
            self._close_owner()
        finally:
            self._session.end()

    def _close_owner(self) -> None:
        owner = self.owner
        if owner is None:
            return
        try:
            owner.close()
            self._heir = owner.heir
        except Exception:  # each part is closed, even if another one raises
            self.owner = None
            raise
        self.owner = None  # behind that: an interrupted close continues

    def forget_after_fork(self) -> None:
        """In a forked child: the owner and the session are the parent's."""
        if self.owner is not None:
            self.owner.forget_after_fork()
            self.owner = None


def _why_client(options: Options) -> str:
    """Return why this process must not own a queue; empty if it may."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("socket"):
        logger.info("this process is patched by gevent, so it owns no queue: its threads would not serve the others")
        return "it is patched by gevent; open the queue in another process too"
    return ""

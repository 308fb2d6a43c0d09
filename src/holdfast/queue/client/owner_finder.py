"""Finds the owner of a queue: takes its lock and becomes the owner, or connects to the process that has it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from holdfast.clock import Clock
from holdfast.errors import QueueLockedError, RetryableError
from holdfast.persistence.filesystem.layout import open_directory, queue_directory
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.ownership.owner_lock import OwnerLock, read_owner_note
from holdfast.persistence.ownership.sessions import SessionFile
from holdfast.queue.client.link import Link, LinkLostError, OwnerLink, SocketLink
from holdfast.queue.engine.handle_settings import HandleSettings
from holdfast.queue.engine.reading import with_reserve
from holdfast.queue.options.queue_options import Options
from holdfast.queue.owner.owner import Owner
from holdfast.queue.protocol.messages import Resume, SessionLostError

logger = logging.getLogger("holdfast")


class InHand(Protocol):
    """The consumer of a handle, as an owner that begins has to know it."""

    group: str

    def numbers_in_hand(self) -> list[int]:
        """Return the delivery numbers of what is in hand, or is being taken."""

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
    session : int
        The number of the session; 0 until an owner was found.
    is_new : bool
        Whether this has made the queue.
    owner : Owner or None
        The owner, if it is this process.
    consumer : InHand or None
        What the handle has in hand.

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
        self._may_own = options.can_own
        self.owner: Owner | None = None
        self.consumer: InHand | None = None
        with storage_errors("joining", path):
            make = HandleSettings(path, options).of_new_queue
            *_, self.is_new = open_directory(storage, path, create=True, settings=make)
            self._session = SessionFile.begin(storage, path)

    @property
    def session(self) -> int:
        return self._session.number

    def find(self) -> Link | None:
        """Return a way to the owner; None if none answers now.

        Raises
        ------
        HoldfastError
            This process has taken the lock, and the queue cannot be opened.
        """
        return self._own() or self._connect()

    def _own(self) -> Link | None:
        """Take the owner lock if it is free, and open the queue."""
        if not self._may_own:
            return None
        with storage_errors("taking the lock of the owner", self._path):
            directory = queue_directory(self._path)
            lock = with_reserve(self._storage, directory, lambda: OwnerLock.try_take(self._storage, self._path))
        if lock is None:
            return None
        owner = Owner(self._storage, self._clock, self._path, self._options, lock)
        try:
            if not self.session:
                self._session.named(owner.sessions.admit(self._session.making))
            if self.consumer is not None:
                owner.queue.keep_only(self.session, self.consumer.group, self.consumer.numbers_in_hand())
            owner.start()
        except BaseException:
            owner.close()
            raise
        self.owner = owner
        return OwnerLink(owner)

    def _connect(self) -> Link | None:
        """Connect to the owner, if there is one that greets."""
        note = read_owner_note(self._storage, self._path)
        if note is None or note.socket is None:
            return None
        link = SocketLink(note.socket, note.epoch)
        try:
            try:
                self._session.named(link.greet(self.session, self._session.making).session)
            except SessionLostError:
                self._begin_anew()
                self._session.named(link.greet(0, self._session.making).session)
            if self.consumer is not None:
                link.ask(Resume(self.consumer.group, self.consumer.numbers_in_hand()), (), 0.0)
        except (LinkLostError, RetryableError) as error:
            logger.debug("the owner of %s does not greet: %s", self._path, error)
            link.close()
            return None
        except BaseException:
            link.close()
            raise
        return link

    def _begin_anew(self) -> None:
        """Begin another session: this one was found dead while the process was stopped."""
        self._session.end()
        with storage_errors("joining", self._path):
            self._session = SessionFile.begin(self._storage, self._path)
        if self.consumer is not None:
            self.consumer.lose_session()

    def not_found(self) -> RetryableError:
        """Return the error for an owner that does not answer."""
        note = read_owner_note(self._storage, self._path)
        who = "another process" if note is None else f"process {note.pid} on {note.host}"
        return QueueLockedError(
            f"{self._path} is owned by {who}, which does not answer: it may be stopped, or still recovering; try again",
            path=str(self._path),
            pid=None if note is None else note.pid,
            host=None if note is None else note.host,
        )

    def abdicate(self) -> None:
        """Let another process own the queue: this one never does again."""
        self._may_own = False
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.close()

    def leave(self) -> None:
        """End the session; if this process owns the queue, let the next one in."""
        try:
            self.abdicate()
        finally:
            self._session.end()

    def forget_after_fork(self) -> None:
        """In a forked child: the owner and the session are the parent's."""
        self.owner = None

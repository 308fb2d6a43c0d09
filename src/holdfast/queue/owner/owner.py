"""The owner of a queue: holds its lock, has it open, and serves all handles through the machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import Empty, HoldfastError, LeaseExpiredError, UsageError
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.ownership.owner_lock import OwnerLock
from holdfast.persistence.ownership.places import owner_directory
from holdfast.persistence.ownership.sessions import NO_NUMBER, Sessions
from holdfast.queue.options.queue_options import Options
from holdfast.queue.owner.direct import wait_and
from holdfast.queue.owner.machine import Machine
from holdfast.queue.owner.owned_queue import OwnedQueue
from holdfast.queue.owner.prepared_verbs import prepare
from holdfast.queue.owner.verbs import perform_verb
from holdfast.queue.protocol.messages import (
    AnyReply,
    AnyRequest,
    Arrived,
    Attach,
    Commit,
    Done,
    Offsets,
    Prepare,
    Put,
    Settle,
    Take,
    Verb,
)
from holdfast.queue.transport.endpoint import Endpoint
from holdfast.queue.transport.peer import check_peer
from holdfast.queue.transport.server_loop import ServerLoop
from holdfast.threads import no_thread_error, start_thread

logger = logging.getLogger("holdfast")


class Owner:
    """One queue, open in this process and served to others: after :meth:`begin` and :meth:`start`, until :meth:`close`.

    Parameters
    ----------
    storage, clock, path, options
        The queue, and how the handle that needed an owner was opened.
    lock : OwnerLock
        Held until :meth:`close`.

    Attributes
    ----------
    epoch : bytes, length 16
        That of the lock.
    sessions : Sessions
        Who lives.
    queue : OwnedQueue
        What is served.
    is_closing : bool
        Whether :meth:`close` has begun.
    on_poisoned : callable or None
        Called once, in a thread of its own, if a client has found that the queue can be used no more until another
        owner opens it: so it may close this one.
    on_displaced : callable or None
        The same, if other processes do not find this owner any more, because somebody has removed or moved the lock
        away, or its thread has failed; or if it hands the queue over.
    heir : int
        The number of the session that is to be the next owner; 0: whichever comes first.
    """

    def __init__(self, storage: Storage, clock: Clock, path: Path, options: Options, lock: OwnerLock) -> None:
        self._storage = storage
        self._clock = clock
        self._path = path
        self._options = options
        self._lock = lock
        self.on_poisoned: Callable[[], object] | None = None
        self.on_displaced: Callable[[], object] | None = None
        self.epoch = lock.epoch
        self.is_closing = False
        self.heir = NO_NUMBER
        self._forgetting: list[Callable[[], object]] = []  # of what has begun: a fork may come in between
        self._closing = ExitStack()
        self._closing.callback(lock.release)
        self._closing.callback(self._name_heir)
        self.sessions = Sessions(storage, lock.root)

    def begin(self, *, is_brief: bool = False) -> None:
        """Open the queue; if this fails, :meth:`close` closes what is open by then.

        It is no part of the constructor: an interruption behind that would lose an owner which only it knows.

        Parameters
        ----------
        is_brief : bool
            Whether it ends with the call that needs it: other processes are told.

        Raises
        ------
        HoldfastError
            As :class:`PersistentQueue`.
        """
        lock, closing = self._lock, self._closing
        with storage_errors("making the owner's socket", self._path):
            self._endpoint = Endpoint.bind(owner_directory(lock.root))
            closing.callback(self._close_endpoint)
            lock.set_socket(self._endpoint.path, is_brief=is_brief)
        self.queue = OwnedQueue(self._storage, self._clock, self._path, self._options, self.sessions.is_alive)
        closing.callback(self.queue.close)
        self._forgetting.append(self.queue.forget_after_fork)
        machine = Machine(self.queue, self.sessions, lock.epoch)
        with storage_errors("serving the owner's socket", self._path):
            self._loop = ServerLoop(self._endpoint.listener, machine, check_peer, self._clock)
        self._forgetting.append(self._loop.forget)
        machine.waker = self._loop.waker
        machine.on_poisoned = self._poisoned
        machine.on_sweep = self._look_for_itself
        self._loop.on_failed = self._displaced
        self.queue.hand_over = self._hand_over
        self.queue.pid_of = lambda session: self.sessions.note(session).pid
        closing.callback(self._loop.stop)

    def start(self) -> None:
        """Serve other processes. Raises RetryableError if there can be no thread."""
        self._loop.start()

    # -- Handles of this process -------------------------------------------------------------------------------------

    def perform(
        self, session: int, request: AnyRequest, payloads: Sequence[bytes], is_over: Callable[[], bool]
    ) -> tuple[AnyReply, Sequence[bytes]]:
        """Perform a request of a session of this process, in its own thread; return the reply and its payloads.

        Most verbs of its handles need none: ``direct.py``. A request may have been sent to an earlier owner, which may
        have done it. A wait for messages ends with queue.Empty at a :meth:`wake` behind which ``is_over()`` is true.

        Raises
        ------
        ClosedError
            The owner is being closed; nothing was done.
        queue.Empty, queue.Full, HoldfastError
            As the verb itself.
        """
        try:
            if isinstance(request, Put):
                return self._put(session, request, payloads), []
            if isinstance(request, Take):
                return self._take(request, is_over)
            return self._perform(request, payloads), []
        except LeaseExpiredError as error:  # the caller hears of it for sure
            self.queue.forget_taken_away(request, error)
            raise

    def _perform(self, request: AnyRequest, payloads: Sequence[bytes]) -> AnyReply:
        if isinstance(request, Commit):
            offsets = self.queue.commit(0, request, payloads, request.timeout)
            return Offsets(offsets.start, len(offsets))
        if isinstance(request, Verb):
            return Done(perform_verb(self.queue, 0, request.group, request.fields))
        if isinstance(request, Settle):
            self.queue.settle(request)
            if request.verb == "ack":
                self.queue.group(request.group).make_durable()
        elif isinstance(request, Prepare):
            prepare(self.queue, request, payloads)
        elif isinstance(request, Arrived):
            self.queue.write_side.acknowledge_answers(request.thread, request.count)
        elif isinstance(request, Attach):
            self.queue.attach(request.group, request.settings, request.configured, is_new=request.is_new)
        return _DONE

    def _put(self, session: int, put: Put, payloads: Sequence[bytes]) -> Offsets:
        deadline = None if put.timeout is None else time.monotonic() + put.timeout
        while (done := self.queue.append(session, put, payloads)) is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            self.queue.wait_for_space(put, payloads, left)
        offsets, is_new = done
        if is_new:
            self.queue.write_side.settle(offsets.stop, 1, synced=put.synced)
        else:
            self.queue.write_side.confirm(offsets.stop, synced=put.synced)
        return Offsets(offsets.start, len(offsets))

    def _take(self, take: Take, is_over: Callable[[], bool]) -> tuple[AnyReply, Sequence[bytes]]:
        side = self.queue.group(take.group)
        if take.finished:
            self.queue.finish(take)
            side.make_durable()
        try:
            found = self.queue.take(take, 0)
        except Empty:
            found = wait_and(lambda: self.queue.take(take, 0), side, take.timeout, is_over)
        return self.queue.sent(take.group, found)

    def wake(self) -> None:
        """Have threads of this process that wait for messages check whether that is over."""
        for side in self.queue.groups:
            side.wake()

    def _poisoned(self) -> bool:
        """Have it heard of, outside of the loop's thread: that one answers what it has, and cannot wait for itself.

        Returns whether there was a thread for it; if not, it is tried again.
        """
        if self.on_poisoned is not None and start_thread(self.on_poisoned, "holdfast-poisoned") is None:
            return False
        self.on_poisoned = None
        return True

    def _displaced(self) -> bool:
        """Have the same heard of an owner that has not failed; returns as :meth:`_poisoned`."""
        if self.on_displaced is not None and start_thread(self.on_displaced, "holdfast-displaced") is None:
            return False
        self.on_displaced = None
        return True

    def _hand_over(self, heir: int) -> None:
        """Let a session be the next owner; raises UsageError if it does not live, and RetryableError."""
        if not self.sessions.is_alive(heir):
            raise UsageError(f"session {heir:08x} does not live, so {self._path} is not handed over to it")
        if self.heir != heir:
            logger.info("the owner of %s hands it over to session %08x", self._path, heir)
        self.heir = heir
        if not self._displaced():
            self.heir = NO_NUMBER
            raise no_thread_error(f"handing {self._path} over")

    def _name_heir(self) -> None:
        """Say in the lock's note who is to be next, as the last step before it is released."""
        if self.heir != NO_NUMBER:
            with suppress(OSError):  # then whichever comes first is next
                self._lock.set_socket(None, heir=self.heir)

    def _close_endpoint(self) -> None:
        self._endpoint.close()

    def _look_for_itself(self) -> None:
        """Find out whether other processes find this owner, and bind its socket anew if that was removed."""
        try:
            if not self._lock.is_in_place():
                self._displaced()
            elif not self._endpoint.is_in_place():
                self._endpoint = Endpoint.bind(owner_directory(self._lock.root))
                self._loop.replace_listener(self._endpoint.listener)
                logger.warning("%s was removed; it is there again", self._endpoint.path)
        except (OSError, HoldfastError) as error:
            logger.warning("the owner's files in %s are not found: %s", self._lock.root, error)

    # -- Ending ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish the round, close the queue, and let the next owner in; what living sessions have stays theirs.

        Again continues after an interruption.
        """
        self.is_closing = True
        self._closing.close()

    def forget_after_fork(self) -> None:
        """In a forked child: close the copies of the files and sockets; the parent owns the queue."""
        self._closing.pop_all()
        for forget in reversed(self._forgetting):
            forget()


_DONE = Done({})

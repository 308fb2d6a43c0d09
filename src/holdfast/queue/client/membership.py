"""The membership of a handle in a shared queue: asks the owner, and the next one if that dies.

If the owner dies, the members race for its lock. The winner recovers the queue and serves it; the others connect to it
and send again what had no answer: **succession**.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

from holdfast.errors import (
    ClosedError,
    CommitUnknownError,
    HoldfastError,
    PoisonedError,
    QueueLockedError,
    RetryableError,
)
from holdfast.queue.client.link import Answer, Link, LinkLostError, OwnerLink
from holdfast.queue.client.owner_finder import InHand
from holdfast.queue.owner.owned_queue import OwnedQueue
from holdfast.queue.owner.verbs import HAND_OVER
from holdfast.queue.protocol.messages import AnyRequest, Commit, Done, Prepare, Put, SessionLostError, Verb
from holdfast.queue.threads.lifecycle import forked_error

logger = logging.getLogger("holdfast")

OWNER_SECONDS = 60.0
"""How long to look for an owner: one that recovers a large queue holds the lock, and does not greet yet."""

ENDING_SECONDS = 5.0
"""How long a handle that ends looks for an owner, in all: to tell it what was finished, and what is given back. What it
cannot tell comes again, once its session has ended."""

OWNERS_MAX = 3
"""To how many owners a request is sent at most: the first one, and two successors."""

_TIMES_MAX = 3
"""How often at most a request is sent to one owner, which has cut the connection off each time."""

_PAUSE_SECONDS_MIN = 0.001
_PAUSE_SECONDS_MAX = 0.05

_COUNT_BITS = 32

Found = TypeVar("Found")


class Finder(Protocol):
    """Finds the owner: ``owner_finder.py``."""

    consumer: InHand | None
    on_poisoned: Callable[[], object]
    on_displaced: Callable[[], object]
    owns_briefly: bool

    @property
    def owner(self) -> object:
        """The owner, if it is this process; else None."""

    def find(self) -> Link | None:
        """Return a way to the owner; None if none answers now."""

    def not_found(self) -> RetryableError:
        """Return the error for an owner that does not answer."""

    def abdicate(self, *, has_failed: bool) -> None:
        """Own the queue no more; if a write of this process ``has_failed``, never again."""

    def begin_session(self) -> None:
        """Begin another session with the next owner that is found; what is in hand is stale."""

    def leave(self) -> None:
        """End the session."""

    def forget_after_fork(self) -> None:
        """In a forked child: leave all to the parent."""


class Membership:
    """Asks for one handle. Threads may share it.

    Parameters
    ----------
    finder : Finder
        Finds the owner; one thread at a time uses it.
    """

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._gate = threading.Lock()
        self._link: Link | None = None
        self._was_found = False
        self._refusal: Callable[[], Exception] | None = None
        self._looks_until = math.inf
        self._grace: float | None = None
        self._look_count = 0
        self._counts = count(1)
        finder.on_poisoned = partial(self._step_down, has_failed=True)
        finder.on_displaced = partial(self._step_down, has_failed=False)

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the queue now."""
        return isinstance(self._link, OwnerLink)

    @property
    def own_queue(self) -> OwnedQueue | None:
        """The queue, if this process owns it now."""
        link = self._link
        return link.queue if isinstance(link, OwnerLink) else None

    @property
    def known_end(self) -> int:
        """Offset behind the last message that the owner of now has told of; 0 if there is none."""
        link = self._link
        return 0 if link is None else link.known_end

    @property
    def session(self) -> int:
        """The number of the session now; another one has begun if this process was taken for dead."""
        link = self._link or self._find()
        return link.session

    def take_over(self) -> None:
        """Own the queue; if another process does, have it hand the queue over between two rounds.

        Raises
        ------
        QueueLockedError, RetryableError, HoldfastError
            The owner does not answer, or does not hand it over in time; or this process cannot open the queue.
        """
        deadline = time.monotonic() + OWNER_SECONDS
        while not isinstance(link := self._link or self._find(), OwnerLink):
            if time.monotonic() >= deadline:
                raise self._finder.not_found()
            try:
                self.ask(Verb("", {"verb": HAND_OVER, "heir": link.session}))
            except RetryableError as error:  # several owners in a row have ended
                logger.debug("the queue was not handed over: %s", error)
            self._drop(link)
            time.sleep(_PAUSE_SECONDS_MIN)

    def next_number(self) -> int:
        """Return a delivery number that was never used."""
        link = self._link or self._find()
        number = next(self._counts)
        if number >> _COUNT_BITS:
            with self._gate:
                if self._link is link:
                    self._link = None
                    self._counts = count(1)
                    self._finder.begin_session()
            return self.next_number()
        return link.session << _COUNT_BITS | number

    def wake(self) -> None:
        """Have threads that wait for messages check whether that is over."""
        link = self._link
        if link is not None:
            link.wake()

    # -- Asking ------------------------------------------------------------------------------------------------------

    def ask(
        self,
        request: AnyRequest,
        payloads: Sequence[bytes] = (),
        seconds: float | None = 0.0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """Have a request done by the owner, and by its successor if it dies meanwhile.

        Parameters
        ----------
        request, payloads
            What is asked.
        seconds : float or None
            How long the request itself may wait; None: for ever.
        is_over : callable
            Whether a wait for messages has become pointless; checked at :meth:`wake`.

        Raises
        ------
        RetryableError
            No owner is found, and nothing was done; or the request may be made again.
        CommitUnknownError
            The put or commit may have been done, and no owner tells.
        queue.Empty, queue.Full, HoldfastError
            The owner's.
        """
        sent_to: dict[bytes, list[int]] = {}
        try:
            while True:
                link = (not sent_to and self._link) or self._link_for(request, sent_to)
                try:
                    return link.ask(request, payloads, seconds, is_over, again=bool(sent_to), grace=self._grace)
                except (LinkLostError, CommitUnknownError, PoisonedError) as error:
                    self._end(link, request, error, sent_to)
        finally:
            if self._finder.owns_briefly:
                self._step_down(has_failed=False)

    def ask_present(self, verb: Verb, seconds: float | None = 0.0) -> dict[str, Any] | None:
        """Ask the owner that was found before; None if there is none, or it has ended: this looks for no other one.

        Returns the verb's result. Raises as :meth:`ask`.
        """
        link = self._link
        try:
            return None if link is None else _result_of(link.ask(verb, (), seconds, grace=self._grace))
        except LinkLostError as error:
            if error.is_silent:
                raise _unanswered(verb, error) from error
            return None

    def here(self, do: Callable[[OwnedQueue], Found]) -> Found | None:
        """Do something with the queue itself; None, and nothing was done, if another process owns it.

        It is done again if the queue was closed meanwhile, because this process owns it no more. Raises as ``do``, and
        RetryableError if no owner is found.
        """
        try:
            while isinstance(link := self._link or self._find(), OwnerLink):
                try:
                    return do(link.queue)
                except ClosedError:
                    self._drop(link)
                except (CommitUnknownError, PoisonedError):
                    self._abdicate(link)
                    raise
            return None
        finally:
            if self._finder.owns_briefly:
                self._step_down(has_failed=False)

    def _link_for(self, request: AnyRequest, sent_to: dict[bytes, list[int]]) -> Link:
        """Return the way to the owner; raise if a request that was sent can have no answer any more."""
        try:
            link = self._link or self._find()
        except HoldfastError as error:
            if sent_to:
                raise _unanswered(request, error) from error
            raise
        if sent_to and not any(link.session in sessions for sessions in sent_to.values()):
            raise _unanswered(request, SessionLostError("its session was found dead, and another one has begun"))
        return link

    def _end(self, link: Link, request: AnyRequest, error: Exception, sent_to: dict[bytes, list[int]]) -> None:
        """Part with an owner that has ended or failed; raise unless the request may be sent to the next one.

        ``sent_to``: the sessions for which it was sent, by the owner.
        """
        if isinstance(error, LinkLostError):
            is_first = self._drop(link)
            sent = sent_to.setdefault(link.epoch, []) if error.was_sent else []
            if error.was_sent and (is_first or not sent):  # else another thread's request was cut off, and this by that
                sent.append(link.session)
            if error.is_silent or len(sent_to) >= OWNERS_MAX or len(sent) >= _TIMES_MAX:
                raise _unanswered(request, error) from error
            if len(sent) > 1:
                time.sleep(_PAUSE_SECONDS_MAX)
            return
        is_own = self._abdicate(link)
        if isinstance(error, CommitUnknownError) and isinstance(request, Put | Commit):
            error.context["nonce"] = request.nonce
        if isinstance(error, CommitUnknownError) or is_own:
            raise error
        if sent_to:
            raise _unanswered(request, error) from error
        raise RetryableError(f"the owner of the queue has failed, the next one comes: try again ({error})") from error

    def look_until(self, at: float) -> None:
        """Look for an owner until this monotonic time, and behind it once for each request: the handle ends."""
        self._looks_until = at

    def end_soon(self) -> None:
        """Look for an owner, or wait for one that does not answer, for a moment only from here on."""
        self._grace = ENDING_SECONDS
        self.look_until(time.monotonic() + ENDING_SECONDS)

    def _find(self) -> Link:
        """Find the owner. One thread at a time looks, and threads that wait meanwhile take that for their own look."""
        deadline, pause = time.monotonic() + OWNER_SECONDS, _PAUSE_SECONDS_MIN
        while True:
            known_count = self._look_count
            with self._gate:
                if self._link is None:
                    if self._refusal is not None:
                        raise self._refusal()
                    is_last = time.monotonic() >= min(deadline, self._looks_until)
                    if known_count == self._look_count:
                        self._link = self._look(is_last=is_last)
                    elif is_last:
                        raise self._finder.not_found()
                if self._link is not None:
                    self._was_found = True
                    return self._link
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _look(self, *, is_last: bool) -> Link | None:
        """Look for the owner once; None: look again. Raises if this ``is_last``."""
        try:
            link = self._finder.find()
            self._look_count += 1
        except QueueLockedError:
            if is_last or not self._was_found:
                raise
            return None  # an owner that has lost its lock is just closing the queue
        if link is None and is_last:
            raise self._finder.not_found()
        return link

    def _drop(self, link: Link) -> bool:
        """Forget a link that is lost; return whether this is the first to find that."""
        with self._gate:
            is_first = self._link is link
            if is_first:
                self._link = None
        link.close()
        return is_first

    def _abdicate(self, link: Link | None, *, has_failed: bool = True) -> bool:
        """Let the next owner in, because a write has failed; return whether this process owned by the link.

        None: it owns, and an interruption came before there was a link.
        """
        if link is not None and not isinstance(link, OwnerLink):
            return False
        try:
            with self._gate:
                if self._link is link:
                    self._link = None
                    self._finder.abdicate(has_failed=has_failed)
        finally:
            if self._finder.consumer is not None:
                self._finder.consumer.look_after_leases()
        return True

    def _step_down(self, *, has_failed: bool) -> None:
        """Let the next owner in, if this process owns the queue: found by the owner, or its call is over."""
        link = self._link
        if link is not None or self._finder.owner is not None:
            try:
                self._abdicate(link, has_failed=has_failed)
            except HoldfastError as error:
                logger.error("the owner of a queue has ended, and not cleanly: %s", error)

    # -- Ending ------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """End the session; if this process owns the queue, let the next one in."""
        self._refusal = lambda: ClosedError("the queue is closed; open it again")  # first: a search for an owner ends
        with self._gate:
            link, self._link = self._link, None
            try:
                if link is not None:
                    link.close()
            finally:
                self._finder.leave()

    def forget_after_fork(self) -> None:
        """In a forked child: refuse everything; the session is the parent's."""
        self._gate = threading.Lock()
        self._refusal = forked_error
        if self._link is not None:
            self._link.forget()
            self._link = None
        self._finder.forget_after_fork()


def ask_verb(membership: Membership, verb: Verb, seconds: float | None = None) -> dict[str, Any]:
    """Have a verb done that may take so long, None: for ever; return its result. Raises as :meth:`Membership.ask`."""
    return _result_of(membership.ask(verb, (), seconds))


def _result_of(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer.reply, Done), "an owner answers a verb by its result or an error"
    return answer.reply.result


def _unanswered(request: AnyRequest, error: Exception) -> HoldfastError:
    if isinstance(request, Put | Commit):
        return CommitUnknownError(
            f"no owner of the queue tells whether this was committed ({error}): look for it before it is put again",
            nonce=request.nonce,
        )
    if isinstance(request, Prepare):
        return CommitUnknownError(
            f"no owner of the queue tells whether this was prepared ({error}): look whether it is in prepared()"
        )
    return RetryableError(f"no owner of the queue answers ({error}): try again")

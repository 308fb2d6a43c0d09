"""The server of an owner as a machine without sockets: requests of connections in, answers to connections out.

One thread drives it: :meth:`Machine.step` for each request at hand, then :meth:`Machine.end_round`, which makes what
the round has done durable, with one sync for all of it, and returns the answers. Nothing in here waits for a client.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from holdfast.errors import (
    NO_ROOM,
    NOTHING_CAME,
    Empty,
    Full,
    HoldfastError,
    RetryableError,
    ShutDown,
    UsageError,
)
from holdfast.queue.owner.owned_queue import OwnedQueue
from holdfast.queue.owner.parked import SPACE, ParkedRequest, ParkedRequests
from holdfast.queue.owner.verbs import perform_verb
from holdfast.queue.protocol.frames import REPLY, REQUEST, Frame, encode_frame
from holdfast.queue.protocol.messages import (
    VERSION,
    AnyReply,
    AnyRequest,
    Arrived,
    Attach,
    Commit,
    Done,
    Hello,
    Offsets,
    Put,
    Refused,
    Resume,
    SessionLostError,
    Settle,
    Take,
    Taken,
    UnreadableError,
    Verb,
    Welcome,
    decode_request,
    encode,
)
from holdfast.queue.remote.error_text import as_text
from holdfast.queue.threads.notifier import Notifier

logger = logging.getLogger("holdfast")

REFUSALS = (HoldfastError, Full, ShutDown, Empty)
"""What may be answered instead of a result."""

SWEEP_SECONDS = 1.0
"""How often sessions without a connection are tested: their locks tell whether they live."""

_DONE = Done({})


class SessionTable(Protocol):
    """The sessions of the directory, as the machine sees them: ``persistence/ownership/sessions.py``."""

    def admit(self, making: str) -> int:
        """Give the maker of a session file its number."""

    def is_alive(self, number: int) -> bool:
        """Whether a session lives; one that was found dead never does again."""

    def sweep(self) -> Sequence[int]:
        """Return the numbers found dead since the last call."""


class Wake(Protocol):
    """Wakes the thread that drives the machine; also one of the waiters of a :class:`Notifier`."""

    def release(self) -> None:
        """Have a round begin."""


class _Appended(NamedTuple):
    """A put whose answer waits for the end of the round."""

    connection: int
    request_id: int
    offsets: range
    is_new: bool
    is_synced: bool


class Machine:
    """Serves the clients of one queue.

    Parameters
    ----------
    queue : OwnedQueue
        What is served.
    sessions : SessionTable
        Who lives.
    epoch : bytes, length 16
        That of the owner's lock: a client shows it.

    Attributes
    ----------
    wake : Wake or None
        Set by the owner once the thread is there.
    """

    def __init__(self, queue: OwnedQueue, sessions: SessionTable, epoch: bytes) -> None:
        self._queue = queue
        self._sessions = sessions
        self._epoch = epoch
        self.wake: Wake | None = None
        self._session_of: dict[int, int | None] = {}
        self._answers: list[tuple[int, list[bytes]]] = []
        self._appended: list[_Appended] = []
        self._settled: dict[str, list[tuple[int, int]]] = {}
        self._parked = ParkedRequests()
        self._sweep_due = 0.0
        self._verbs: dict[type, Callable[..., AnyReply | None]] = {
            Put: self._put,
            Take: self._take,
            Settle: self._settle,
            Commit: self._commit,
            Arrived: self._arrived,
            Attach: self._attach,
            Resume: self._resume,
            Verb: self._verb,
        }

    # -- Connections -------------------------------------------------------------------------------------------------

    def connected(self, connection: int) -> None:
        """Expect a hello from a new connection."""
        self._session_of[connection] = None

    def disconnected(self, connection: int, now: float) -> None:
        """Forget what a connection waits for; its session lives on, as its file says."""
        self._parked.forget(connection)
        if self._session_of.pop(connection, None) is not None:
            self._sweep_due = min(self._sweep_due, now)  # a killed client is found at once

    @property
    def sessions_connected(self) -> set[int]:
        """The sessions that have a connection."""
        return {number for number in self._session_of.values() if number}

    # -- Rounds ------------------------------------------------------------------------------------------------------

    def step(self, connection: int, frame: Frame, now: float) -> None:
        """Take a request; its answer comes at the end of this round, or of a later one.

        Raises
        ------
        HoldfastError
            The frame is no request, or not one that may come now: the connection has to be closed.
        """
        if frame.kind != REQUEST:
            raise UsageError("a client sends requests only")
        request = decode_request(frame.body)
        session = self._session_of[connection]
        try:
            if session is None:
                reply: AnyReply | None = self._greet(connection, request)
            else:
                reply = self._verbs[type(request)](connection, session, frame, request, now)
        except REFUSALS as error:
            reply = Refused(as_text(error))
        if reply is not None:
            self._answer(connection, frame.request_id, reply)

    def end_round(self, now: float) -> Sequence[tuple[int, list[bytes]]]:
        """Make what was done durable, try parked requests, and return the answers by connection."""
        self._settle_puts()
        self._settle_acks()
        if len(self._parked):
            self._listen()  # before the check: what comes in between wakes the thread
            self._parked.attempt(now)
            self._settle_puts()
        if now >= self._sweep_due:
            self._sweep(now)
        answers, self._answers = self._answers, []
        return answers

    def seconds_left(self, now: float) -> float:
        """Return how long until a round is wanted even if no request comes."""
        due = self._sweep_due
        if len(self._parked):
            due = min(due, self._parked.next_deadline())
            for side in self._queue.groups:
                due = min(due, now + side.seconds_until_more())
        return max(0.0, due - now)

    def _answer(self, connection: int, request_id: int, reply: AnyReply, payloads: Sequence[bytes] = ()) -> None:
        self._answers.append((connection, encode_frame(REPLY, request_id, encode(reply), payloads)))

    def _listen(self) -> None:
        """Have the thread woken by what parked requests wait for."""
        if self.wake is None:
            return
        resources = self._parked.resources
        if SPACE in resources:
            _register(self._queue.handle.capacity.space_available, self.wake)
        if resources - {SPACE}:
            _register(self._queue.write_side.data_available, self.wake)

    def _sweep(self, now: float) -> None:
        """Give back what dead sessions have in hand."""
        self._sweep_due = now + SWEEP_SECONDS
        for number in self._sessions.sweep():
            try:
                self._queue.end_session(number)
            except HoldfastError as error:
                logger.error("what session %08x had in hand is not given back yet: %s", number, error)

    # -- Sessions ----------------------------------------------------------------------------------------------------

    def _greet(self, connection: int, request: AnyRequest) -> AnyReply:
        if not isinstance(request, Hello):
            raise UnreadableError("the first request of a connection is a hello")
        if request.version != VERSION:
            raise UsageError(
                f"the owner of {self._queue.handle.path} speaks version {VERSION} of the protocol, and this program "
                f"version {request.version}: use one version of Holdfast for all programs that share a queue"
            )
        if request.epoch != self._epoch:
            raise RetryableError("another owner has taken the lock since; connect to that one")
        number = request.session
        if not number:
            number = self._admit(request.making)
        elif not self._sessions.is_alive(number):
            raise SessionLostError(f"session {number:08x} was found dead: begin another one")
        self._session_of[connection] = number
        return Welcome(number, self._queue.handle.queue_id)

    def _admit(self, making: str) -> int:
        """Give a session its number; an owner that died may have done that, and not have said which."""
        try:
            return self._sessions.admit(making)
        except UsageError as error:
            raise SessionLostError(str(error)) from error

    def _resume(self, connection: int, session: int, frame: Frame, resume: Resume, now: float) -> AnyReply:
        self._queue.keep_only(session, resume.group, resume.numbers)
        return _DONE

    def _attach(self, connection: int, session: int, frame: Frame, attach: Attach, now: float) -> AnyReply:
        self._queue.attach(attach.group, attach.settings, attach.configured, is_new=attach.is_new)
        return _DONE

    # -- Putting -----------------------------------------------------------------------------------------------------

    def _put(self, connection: int, session: int, frame: Frame, put: Put, now: float) -> AnyReply | None:
        attempt = partial(self._attempt_put, connection, session, frame, put)
        if not attempt(put.timeout is not None and put.timeout <= 0):
            deadline = math.inf if put.timeout is None else now + put.timeout
            self._parked.park(ParkedRequest(connection, frame.request_id, SPACE, deadline, attempt))
        return None

    def _attempt_put(self, connection: int, session: int, frame: Frame, put: Put, is_over: bool) -> bool:
        try:
            appended = self._queue.append(session, put, frame.payloads)
            if appended is None:
                if is_over:
                    raise Full(NO_ROOM)
                return False
        except REFUSALS as error:
            self._answer(connection, frame.request_id, Refused(as_text(error)))
            return True
        self._appended.append(_Appended(connection, frame.request_id, *appended, put.synced))
        return True

    def _settle_puts(self) -> None:
        """Make the puts of the round durable, and answer them."""
        appended, self._appended = self._appended, []
        if not appended:
            return
        new = [each for each in appended if each.is_new]
        side, failure = self._queue.write_side, None
        try:
            if new:
                ticket = max(each.offsets.stop for each in new)
                side.settle(ticket, len(new), synced=any(each.is_synced for each in new))
            for each in appended:
                if not each.is_new:
                    side.confirm(each.offsets.stop, synced=each.is_synced)
        except HoldfastError as error:
            failure = Refused(as_text(error))
        for each in appended:
            reply = failure or Offsets(each.offsets.start, len(each.offsets))
            self._answer(each.connection, each.request_id, reply)

    def _commit(self, connection: int, session: int, frame: Frame, commit: Commit, now: float) -> AnyReply:
        offsets = self._queue.commit(session, commit, frame.payloads)
        return Offsets(offsets.start, len(offsets))

    def _arrived(self, connection: int, session: int, frame: Frame, arrived: Arrived, now: float) -> AnyReply:
        self._queue.write_side.acknowledge_answers(arrived.thread, arrived.count)
        return _DONE

    # -- Taking ------------------------------------------------------------------------------------------------------

    def _take(self, connection: int, session: int, frame: Frame, take: Take, now: float) -> AnyReply | None:
        if take.number >> 32 != session:
            raise SessionLostError(f"delivery number {take.number:016x} is not of session {session:08x}")
        attempt = partial(self._attempt_take, connection, frame.request_id, take)
        if not attempt(take.timeout is not None and take.timeout <= 0):
            deadline = math.inf if take.timeout is None else now + take.timeout
            self._parked.park(ParkedRequest(connection, frame.request_id, take.group, deadline, attempt))
        return None

    def _attempt_take(self, connection: int, request_id: int, take: Take, is_over: bool) -> bool:
        try:
            deliveries = self._queue.take(take, 0)
        except Empty:
            if not is_over:
                return False
            self._answer(connection, request_id, Refused(as_text(Empty(NOTHING_CAME))))
            return True
        except REFUSALS as error:
            self._answer(connection, request_id, Refused(as_text(error)))
            return True
        messages = [(each.offset, each.timestamp_ns, each.stored_headers, each.delivery_count) for each in deliveries]
        reply = Taken(messages, deliveries[0].lease_seconds, self._queue.group(take.group).deliveries_max)
        self._answer(connection, request_id, reply, [each.payload for each in deliveries])
        return True

    def _settle(self, connection: int, session: int, frame: Frame, settle: Settle, now: float) -> AnyReply | None:
        if any(number >> 32 != session for number, _ in settle.receipts):
            raise SessionLostError(f"a delivery is not of session {session:08x}")
        self._queue.settle(settle)
        if settle.verb != "ack":
            return _DONE
        self._settled.setdefault(settle.group, []).append((connection, frame.request_id))
        return None

    def _settle_acks(self) -> None:
        """Make the acknowledgements of the round durable, and answer them."""
        settled, self._settled = self._settled, {}
        for group, answers in settled.items():
            try:
                self._queue.group(group).make_durable()
                reply: AnyReply = _DONE
            except HoldfastError as error:
                reply = Refused(as_text(error))
            for connection, request_id in answers:
                self._answer(connection, request_id, reply)

    # -- Verbs -------------------------------------------------------------------------------------------------------

    def _verb(self, connection: int, session: int, frame: Frame, verb: Verb, now: float) -> AnyReply:
        return Done(perform_verb(self._queue, session, verb.group, verb.fields))


def _register(notifier: Notifier, wake: Any) -> None:
    if wake not in notifier.waiting:
        notifier.waiting.append(wake)

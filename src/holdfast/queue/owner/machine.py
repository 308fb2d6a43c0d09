"""The server of an owner as a machine without sockets: requests of connections in, answers to connections out.

One thread drives it: :meth:`Machine.step` for each request at hand, then :meth:`Machine.end_round`, which makes what
the round has done durable, with one sync for all of it, and returns the answers. Nothing in here waits for a client.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from holdfast.errors import (
    NO_ROOM,
    NOTHING_CAME,
    CommitUnknownError,
    Empty,
    Full,
    HoldfastError,
    PoisonedError,
    ShutDown,
    StaleReceiptError,
    UsageError,
)
from holdfast.queue.owner.connected_sessions import ConnectedSessions, SessionTable, check_number, check_receipts
from holdfast.queue.owner.given_up import GivenUpTakes
from holdfast.queue.owner.long_verbs import LONG_VERBS, LongVerb
from holdfast.queue.owner.owned_queue import OwnedQueue
from holdfast.queue.owner.parked import PUTS, ParkedRequest, ParkedRequests, is_space, of_commit, of_verb
from holdfast.queue.owner.prepared_verbs import prepare
from holdfast.queue.owner.told import Told
from holdfast.queue.owner.verbs import GIVE_UP, perform_verb
from holdfast.queue.protocol.error_text import as_text
from holdfast.queue.protocol.frames import REPLY, REQUEST, Frame, encode_frame
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
    Refused,
    Resume,
    Settle,
    Take,
    Verb,
    Welcome,
    decode_request,
    encode,
)
from holdfast.queue.threads.notifier import Notifier

logger = logging.getLogger("holdfast")

REFUSALS = (HoldfastError, Full, ShutDown, Empty)
"""What may be answered instead of a result."""

SWEEP_SECONDS = 1.0
"""How often sessions without a connection are tested: their locks tell whether they live."""

_DONE = Done({})


class Wake(Protocol):
    """Wakes the thread that drives the machine: a waiter of a :class:`Notifier`, which removes it when it wakes."""

    def release(self) -> None:
        """Have a round begin."""


class _Appended(NamedTuple):
    """A put whose answer waits for the end of the round."""

    connection: int
    request_id: int
    put: Put
    offsets: range
    is_new: bool


class _Settled(NamedTuple):
    """A request that has acknowledged messages: they are made durable at the end of the round."""

    connection: int
    frame: Frame
    request: Settle | Take


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
    waker : callable or None
        Returns a new object that wakes the thread; set by the owner once the thread is there.
    on_poisoned : callable or None
        Called in the thread of the machine if the queue can be used no more until another owner opens it: in the round
        whose answers say so, and in the next ones until it returns True. It has to return at once.
    on_sweep : callable
        Called in the same thread about once a second.
    """

    def __init__(self, queue: OwnedQueue, sessions: SessionTable, epoch: bytes) -> None:
        self._queue = queue
        self._sessions = ConnectedSessions(sessions, epoch, queue.handle.path)
        self.waker: Callable[[], Wake] | None = None
        self.on_poisoned: Callable[[], bool] | None = None
        self.on_sweep: Callable[[], object] = lambda: None
        self._is_poisoned = False
        self._wakes: dict[Notifier, Wake] = {}
        self._given_up = GivenUpTakes()
        self._ended: list[int] = []
        self._answers: list[tuple[int, list[bytes]]] = []
        self._appended: list[_Appended] = []
        self._settled: dict[str, list[_Settled]] = {}
        self._running: list[LongVerb] = []
        self._parked = ParkedRequests()
        self._told = Told(queue.forget_taken_away)
        self._sweep_due = 0.0
        self._verbs: dict[type, Callable[..., AnyReply | None]] = {
            Put: self._put,
            Take: self._take,
            Settle: self._settle,
            Commit: self._commit,
            Prepare: self._prepare,
            Arrived: self._arrived,
            Attach: self._attach,
            Resume: self._resume,
            Verb: self._verb,
        }

    # -- Connections -------------------------------------------------------------------------------------------------

    def connected(self, connection: int) -> None:
        """Expect a hello from a new connection."""
        self._sessions.of[connection] = None

    def disconnected(self, connection: int, now: float) -> None:
        """Forget what a connection waits for; its session lives on, as its file says."""
        self._parked.forget(connection)
        self._told.last.pop(connection, None)
        if self._sessions.of.pop(connection, None) is not None:
            self._sweep_due = min(self._sweep_due, now)  # a killed client is found at once

    # -- Rounds ------------------------------------------------------------------------------------------------------

    def step(self, connection: int, frame: Frame, now: float) -> None:
        """Take a request; its answer comes at the end of this round, or of a later one.

        Raises
        ------
        HoldfastError
            The frame is no request: the connection has to be closed.
        """
        if frame.kind != REQUEST:
            raise UsageError("a client sends requests only")
        request = decode_request(frame.body)
        if self._told.last:
            self._told.has_arrived(connection)
        try:
            session = self._sessions.of[connection]
            perform = self._verbs.get(type(request)) if session is not None else self._greet
            if perform is None:
                raise UsageError("a connection says hello once")
            reply = perform(connection, session, frame, request, now)
        except Exception as error:
            self._told.note(connection, request, error)
            reply = self._refused(request, error)
        if reply is not None:
            self._answer(connection, frame.request_id, reply)

    def _refused(self, request: AnyRequest, error: Exception) -> Refused:
        """Return the answer for an error. A client without any would ask again and again, so a bug has one, too."""
        if not isinstance(error, REFUSALS):
            logger.error("a request failed: %s", type(request).__name__, exc_info=error)
            kind = CommitUnknownError if isinstance(request, Put | Commit | Prepare) else HoldfastError
            error = kind(f"the owner of {self._queue.handle.path} failed: {type(error).__name__}: {error}")
        elif isinstance(error, PoisonedError | CommitUnknownError):
            self._is_poisoned = True
        return Refused(as_text(error))

    def end_round(self, now: float) -> Sequence[tuple[int, list[bytes]]]:
        """Make what was done durable, try parked requests, and return the answers by connection."""
        self._settle_puts()
        self._settle_acks(now)
        if len(self._parked):
            self._listen()  # before the check: what comes in between wakes the thread
            self._parked.attempt(now)
            self._settle_puts()
        if now >= self._sweep_due:
            self._sweep(now)
        if self._is_poisoned and self.on_poisoned is not None and self.on_poisoned():
            self.on_poisoned = None
        answers, self._answers = self._answers, []
        return answers

    def unanswered(self) -> Mapping[int, int]:
        """Return the parked requests by connection, and forget them: the next owner does them.

        A take has done what it finishes, which may be done twice.
        """
        first: dict[int, int] = {}
        for each in self._parked.drain():
            first[each.connection] = min(each.request_id, first.get(each.connection, each.request_id))
        return first

    def seconds_left(self, now: float) -> float:
        """Return how long until a round is wanted even if no request comes."""
        due = self._sweep_due
        if len(self._parked):
            groups = [each for each in self._parked.resources if not is_space(each)]
            due = min(due, self._parked.next_deadline(), now + self._queue.seconds_until_more(groups))
        return max(0.0, due - now)

    def _answer(self, connection: int, request_id: int, reply: AnyReply, payloads: Sequence[bytes] = ()) -> None:
        self._answers.append((connection, encode_frame(REPLY, request_id, encode(reply), payloads)))

    def _listen(self) -> None:
        """Have the thread woken by what parked requests wait for."""
        if self.waker is None:
            return
        resources = self._parked.resources
        if any(map(is_space, resources)):
            self._register(self._queue.handle.capacity.space_available, self.waker())
        if not all(map(is_space, resources)):
            self._register(self._queue.write_side.data_available, self.waker())

    def _register(self, notifier: Notifier, wake: Wake) -> None:
        """Register a new object: one that has just woken this thread may be about to be removed."""
        before, self._wakes[notifier] = self._wakes.get(notifier), wake
        notifier.waiting.append(wake)  # type: ignore[arg-type]  # of a waiter it only uses release()
        with suppress(ValueError):  # it was never there, or has woken this thread
            notifier.waiting.remove(before)  # type: ignore[arg-type]

    def _sweep(self, now: float) -> None:
        """Give back what dead sessions have in hand; what fails is tried again by the next sweep."""
        self._sweep_due = now + SWEEP_SECONDS
        self.on_sweep()
        try:
            self._sessions.find_ended(self._ended)
        except OSError as error:
            logger.error("the sessions of %s cannot be tested now: %s", self._queue.handle.path, error)
        for number in list(self._ended):
            try:
                self._queue.end_session(number)
            except HoldfastError as error:
                logger.error("what session %08x had in hand is not given back yet: %s", number, error)
                continue
            self._ended.remove(number)
            self._given_up.end_session(number)

    # -- Sessions ----------------------------------------------------------------------------------------------------

    def _greet(self, connection: int, session: int | None, frame: Frame, request: AnyRequest, now: float) -> AnyReply:
        return Welcome(self._sessions.greet(connection, request), self._queue.handle.queue_id)

    def _resume(self, connection: int, session: int, frame: Frame, resume: Resume, now: float) -> AnyReply:
        self._queue.keep_only(session, resume.group, resume.numbers)
        return _DONE

    def _attach(self, connection: int, session: int, frame: Frame, attach: Attach, now: float) -> AnyReply:
        self._queue.attach(attach.group, attach.settings, attach.configured, is_new=attach.is_new)
        return _DONE

    # -- Putting -----------------------------------------------------------------------------------------------------

    def _attempt(
        self, connection: int, frame: Frame, request: AnyRequest, attempt: Callable[[bool], bool], is_over: bool
    ) -> bool:
        """Try a parked request; return whether it was answered, by an error perhaps."""
        try:
            return attempt(is_over)
        except Exception as error:
            self._answer(connection, frame.request_id, self._refused(request, error))
            return True

    def _park(
        self,
        connection: int,
        frame: Frame,
        request: Put | Commit | Take,
        resource: str,
        attempt: Callable[[bool], bool],
        now: float,
    ) -> None:
        """Try a request from the end of this round on, until its time is over."""
        deadline = math.inf if request.timeout is None else now + request.timeout
        again = partial(self._attempt, connection, frame, request, attempt)
        self._parked.park(ParkedRequest(connection, frame.request_id, resource, deadline, again))

    def _put(self, connection: int, session: int, frame: Frame, put: Put, now: float) -> AnyReply | None:
        if not self._attempt_put(connection, session, frame, put, False, may_append=PUTS not in self._parked):
            self._park(connection, frame, put, PUTS, partial(self._attempt_put, connection, session, frame, put), now)
        return None

    def _attempt_put(
        self, connection: int, session: int, frame: Frame, put: Put, is_over: bool, *, may_append: bool = True
    ) -> bool:
        appended = self._queue.append(session, put, frame.payloads, may_append=may_append)
        if appended is None:
            if is_over:
                raise Full(NO_ROOM)
            return False
        self._appended.append(_Appended(connection, frame.request_id, put, *appended))
        return True

    def _settle_puts(self) -> None:
        """Make the puts of the round durable, and answer them."""
        appended, side = self._appended, self._queue.write_side
        new = [each for each in appended if each.is_new]
        failure: Exception | None = None
        if new:
            ticket = max(each.offsets.stop for each in new)
            try:
                side.settle(ticket, len(new), synced=any(each.put.synced for each in new))
            except Exception as error:
                failure = error
        while appended:
            each = appended[0]
            try:
                if not each.is_new:
                    side.confirm(each.offsets.stop, synced=each.put.synced)
                elif failure is not None:
                    raise failure
                reply: AnyReply = Offsets(each.offsets.start, len(each.offsets))
            except Exception as error:
                reply = self._refused(each.put, error)
            self._answer(each.connection, each.request_id, reply)
            del appended[0]  # last: if there was no memory for the answer, the next round gives it

    def _commit(self, connection: int, session: int, frame: Frame, commit: Commit, now: float) -> AnyReply | None:
        if not self._attempt_commit(connection, session, frame, commit, False):
            attempt = partial(self._attempt_commit, connection, session, frame, commit)
            self._park(connection, frame, commit, of_commit(commit.nonce), attempt, now)
        return None

    def _attempt_commit(self, connection: int, session: int, frame: Frame, commit: Commit, is_over: bool) -> bool:
        check_receipts(session, commit.receipts)
        try:
            offsets = self._queue.commit(session, commit, frame.payloads, 0)
        except Full:
            if is_over:
                raise
            return False
        self._answer(connection, frame.request_id, Offsets(offsets.start, len(offsets)))
        return True

    def _prepare(self, connection: int, session: int, frame: Frame, asked: Prepare, now: float) -> AnyReply:
        check_receipts(session, asked.receipts)
        prepare(self._queue, asked, frame.payloads)
        return _DONE

    def _arrived(self, connection: int, session: int, frame: Frame, arrived: Arrived, now: float) -> AnyReply:
        self._queue.write_side.acknowledge_answers(arrived.thread, arrived.count)
        return _DONE

    # -- Taking ------------------------------------------------------------------------------------------------------

    def _take(self, connection: int, session: int, frame: Frame, take: Take, now: float) -> AnyReply | None:
        check_number(session, take.number)
        if not take.finished:
            self._begin_take(connection, session, frame, take, now)
            return None
        check_receipts(session, take.finished)
        self._queue.finish(take)
        self._settled.setdefault(take.group, []).append(_Settled(connection, frame, take))
        return None

    def _begin_take(self, connection: int, session: int, frame: Frame, take: Take, now: float) -> None:
        if not self._attempt_take(connection, session, frame, take, False, may_take=take.group not in self._parked):
            attempt = partial(self._attempt_take, connection, session, frame, take)
            self._park(connection, frame, take, take.group, attempt, now)

    def _attempt_take(
        self, connection: int, session: int, frame: Frame, take: Take, is_over: bool, *, may_take: bool = True
    ) -> bool:
        if self._given_up.has(session, take.number):
            raise StaleReceiptError(f"delivery number {take.number:016x} was given up: this is an old copy of its take")
        if self._running and not is_over and self._is_busy(take.group):
            return False
        try:
            deliveries = self._queue.take(take, 0, may_take=may_take)
        except Empty:
            if is_over:
                raise Empty(NOTHING_CAME) from None
            return False
        self._answer(connection, frame.request_id, *self._queue.sent(take.group, deliveries))
        return True

    def _settle(self, connection: int, session: int, frame: Frame, settle: Settle, now: float) -> AnyReply | None:
        check_receipts(session, settle.receipts)
        self._queue.settle(settle)
        if settle.verb != "ack":
            return _DONE
        self._settled.setdefault(settle.group, []).append(_Settled(connection, frame, settle))
        return None

    def _settle_acks(self, now: float) -> None:
        """Make the acknowledgements of the round durable; answer them, or begin the takes that came with them."""
        settled, self._settled = self._settled, {}
        for group, answered in settled.items():
            failure: Exception | None = None
            try:
                self._queue.group(group).make_durable()
            except Exception as error:
                failure = error
            for each in answered:
                self._answer_settled(each, failure, now)

    def _answer_settled(self, settled: _Settled, failure: Exception | None, now: float) -> None:
        connection, frame, request = settled
        session = self._sessions.of.get(connection)
        if session is None:  # it has ended in this round
            return
        reply: AnyReply = _DONE
        try:
            if failure is not None:
                raise failure
            if isinstance(request, Take):
                self._begin_take(connection, session, frame, request, now)
                return
        except Exception as error:
            reply = self._refused(request, error)
        self._answer(connection, frame.request_id, reply)

    # -- Verbs -------------------------------------------------------------------------------------------------------

    def _verb(self, connection: int, session: int, frame: Frame, verb: Verb, now: float) -> AnyReply | None:
        number = verb.fields.get("number")
        if verb.fields.get("verb") == GIVE_UP and isinstance(number, int):
            check_number(session, number)
            self._given_up.add(session, number)  # first: its take may still be parked, or in the buffer of a connection
        do = partial(perform_verb, self._queue, session, verb.group, verb.fields)
        if self.waker is None or verb.fields.get("verb") not in LONG_VERBS:
            return Done(do())
        self._start(connection, frame, verb, LongVerb(verb.group, do, self.waker().release))
        return None

    def _start(self, connection: int, frame: Frame, verb: Verb, running: LongVerb) -> None:
        """Run a verb in a thread, and answer it in the round in which it is over."""

        def attempt(is_over: bool) -> bool:
            if running.is_over:
                self._answer(connection, frame.request_id, Done(running.result()))
            return running.is_over

        self._running.append(running)
        again = partial(self._attempt, connection, frame, verb, attempt)
        resource = of_verb(connection, frame.request_id)
        self._parked.park(ParkedRequest(connection, frame.request_id, resource, math.inf, again))
        running.start()

    def _is_busy(self, group: str) -> bool:
        """Whether a verb runs that takes of this group would wait for, and so would the thread of the machine."""
        self._running = [each for each in self._running if not each.is_over]
        return any(each.group == group for each in self._running)

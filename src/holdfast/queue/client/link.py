"""The ways to the owner: a socket, or direct calls if this process owns the queue itself."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.errors import NOTHING_CAME, ClosedError, Empty, RetryableError, UsageError
from holdfast.queue.owner.owner import Owner
from holdfast.queue.protocol.error_text import from_text
from holdfast.queue.protocol.frames import FRAME_BYTES_MAX, REQUEST, Frame, ProtocolError, encode_frame
from holdfast.queue.protocol.messages import (
    VERSION,
    AnyReply,
    AnyRequest,
    Commit,
    Hello,
    Offsets,
    Put,
    Refused,
    SessionLostError,
    Take,
    Taken,
    Welcome,
    decode_reply,
    encode,
)
from holdfast.queue.transport.connection import Connection, ConnectionLostError
from holdfast.queue.transport.endpoint import connect

HELLO_SECONDS = 1.0
"""How long an owner may take to greet: a socket that accepts may have no thread behind it."""

GRACE_SECONDS = 30.0
"""How long an owner may take to answer beyond the time that the request itself may wait."""

_BOUND_SECONDS_MAX = 86_400.0
"""A request that may wait for longer has no bound here: a timeout of a socket ends at 24 days. The owner keeps it."""

RECEIPTS_BYTES_MAX = FRAME_BYTES_MAX // 2
"""Of what one commit acknowledges: puts that do not fit into a frame beside that are staged."""


class LinkLostError(Exception):
    """The owner is gone; another one has to be found.

    Attributes
    ----------
    was_sent : bool
        Whether the request may have been done.
    is_silent : bool
        Whether the owner still has the lock and does not answer: no successor comes.
    """

    def __init__(self, message: str, *, was_sent: bool, is_silent: bool = False) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        self.is_silent = is_silent


class Answer(NamedTuple):
    """A reply and the payloads behind it; and whether the owner keeps the answer until it is told of its arrival."""

    reply: AnyReply
    payloads: Sequence[bytes]
    is_kept: bool


class _Patience(NamedTuple):
    """How long a request itself may wait, None: for ever; and how long its owner may take beyond that. In seconds."""

    seconds: float | None
    grace: float

    @property
    def total(self) -> float:
        """How long to wait before anything else is done."""
        return self.grace if self.seconds is None else self.seconds + self.grace


def never() -> bool:
    """No wait is over before its time."""
    return False


class Link(Protocol):
    """A way to the owner. Threads may share it.

    Attributes
    ----------
    epoch : bytes
        That of the owner's lock.
    """

    epoch: bytes

    @property
    def session(self) -> int:
        """The number of the session for which it asks."""

    @property
    def known_end(self) -> int:
        """Offset behind the last message that it knows of: of an answer, or in the log."""

    def ask(
        self,
        request: AnyRequest,
        payloads: Sequence[bytes],
        seconds: float | None,
        is_over: Callable[[], bool] = never,
        *,
        again: bool = False,
        grace: float | None = None,
    ) -> Answer:
        """Have a request done.

        Parameters
        ----------
        request, payloads
            What is asked.
        seconds : float or None
            How long the request itself may wait; None: for ever.
        is_over : callable
            Whether a wait for messages has become pointless; checked at :meth:`wake`.
        again : bool
            Whether an owner may have done it before.
        grace : float or None, seconds
            How long an owner in another process may take beyond that time; None: :data:`GRACE_SECONDS`.

        Raises
        ------
        LinkLostError
            The owner is gone.
        queue.Empty, queue.Full, HoldfastError
            The owner refuses.
        """

    def wake(self) -> None:
        """Have threads that wait for messages check their ``is_over``."""

    def close(self) -> None:
        """Close connections; threads that wait get LinkLostError."""

    def forget(self) -> None:
        """In a forked child: close the copies."""


class OwnerLink:
    """Direct calls to the owner in this process.

    Parameters
    ----------
    owner : Owner
        The owner; its membership closes it.
    session : int
        The number of the session.

    Attributes
    ----------
    queue : OwnedQueue
        What is owned.
    """

    def __init__(self, owner: Owner, session: int) -> None:
        self._owner = owner
        self.queue = owner.queue
        self.epoch = owner.epoch
        self.session = session

    @property
    def known_end(self) -> int:
        return self._owner.queue.write_side.next_offset

    def ask(
        self,
        request: AnyRequest,
        payloads: Sequence[bytes],
        seconds: float | None,
        is_over: Callable[[], bool] = never,
        *,
        again: bool = False,
        grace: float | None = None,
    ) -> Answer:
        try:
            reply, found = self._owner.perform(self.session, request, payloads, is_over)
            return Answer(reply, found, again or isinstance(request, Put))
        except ClosedError as error:
            raise LinkLostError(str(error), was_sent=False) from error

    def wake(self) -> None:
        self._owner.wake()

    def close(self) -> None:
        """Do nothing: the membership closes the owner."""

    def forget(self) -> None:
        """Do nothing: the membership has the owner forget."""


class _Connections:
    """The connections of a link: each is idle, or in the hands of one thread that asks.

    Dropped without being closed, as by an interruption, a connection is closed by its destructor.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._idle: list[Connection] = []
        self.is_closed = False

    def take(self) -> Connection | None:
        """Return one that is idle, if there is one."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def add(self, connection: Connection) -> None:
        """Note a new one, which the caller has in hand. Raises LinkLostError behind :meth:`close`."""
        with self._lock:
            self._all.add(connection)
        if self.is_closed:
            connection.close()
            raise LinkLostError("the link to the owner was closed", was_sent=False)

    def give_back(self, connection: Connection) -> None:
        """Let other threads use it, if it can be used."""
        if not connection.is_usable:
            connection.close()
            return
        self._idle.append(connection)
        if self.is_closed:
            self._close_idle()

    def close(self) -> None:
        """Close those that are idle; a thread that waits for an answer gets ConnectionLostError, and closes its own."""
        with self._lock:
            self.is_closed = True
            connections = list(self._all)
        for connection in connections:
            connection.break_off()
        self._close_idle()

    def forget(self) -> None:
        """In a forked child, which has closed its copies: have no more."""
        self._lock = threading.Lock()
        self.is_closed = True

    def _close_idle(self) -> None:
        while (connection := self.take()) is not None:
            connection.close()


class SocketLink:
    """Connections to an owner in another process: one for each thread that waits for an answer.

    One that has ended while it was idle is replaced: the owner may have cut it off, and serve the others.

    Parameters
    ----------
    path : Path
        The owner's socket.
    epoch : bytes
        That of its lock.
    """

    def __init__(self, path: Path, epoch: bytes) -> None:
        self._path = path
        self.epoch = epoch
        self._hello = Hello(VERSION, epoch, 0, "")
        self._connections = _Connections()
        self._taking: dict[Connection, Callable[[], bool]] = {}
        self._lock = threading.Lock()
        self._known_end = 0

    @property
    def session(self) -> int:
        return self._hello.session

    @property
    def known_end(self) -> int:
        return self._known_end

    def greet(self, session: int, making: str) -> Welcome:
        """Say hello for a session; return what the owner answers.

        Raises
        ------
        LinkLostError
            Nothing answers there.
        SessionLostError, HoldfastError
            The owner refuses.
        """
        self._hello = Hello(VERSION, self.epoch, session, making)
        connection, welcome = self._connect()
        self._hello = Hello(VERSION, self.epoch, welcome.session, "")
        self._connections.give_back(connection)
        return welcome

    def _connect(self, patience: float | None = None) -> tuple[Connection, Welcome]:
        seconds = HELLO_SECONDS if patience is None else patience
        try:
            sock = connect(self._path, seconds)
        except OSError as error:
            raise LinkLostError(f"no owner listens at {self._path}: {error}", was_sent=False) from error
        connection = Connection(sock)
        self._connections.add(connection)
        try:
            reply = self._exchange(connection, self._hello, (), _Patience(0.0, seconds)).reply
        except (LinkLostError, RetryableError) as error:  # a successor may listen there, which refuses the epoch
            connection.close()
            raise LinkLostError(str(error), was_sent=False) from error
        except BaseException:
            connection.close()
            raise
        assert isinstance(reply, Welcome), "an owner answers a hello by a welcome or an error"
        return connection, reply

    def ask(
        self,
        request: AnyRequest,
        payloads: Sequence[bytes],
        seconds: float | None,
        is_over: Callable[[], bool] = never,
        *,
        again: bool = False,
        grace: float | None = None,
    ) -> Answer:
        bound = None if seconds is None or seconds > _BOUND_SECONDS_MAX else seconds
        patience = _Patience(bound, GRACE_SECONDS if grace is None else grace)
        while (connection := self._connections.take()) is not None:
            try:
                return self._ask_on(connection, request, payloads, patience, is_over)
            except LinkLostError as error:
                if error.was_sent:
                    raise
        try:
            connection, _ = self._connect()
        except SessionLostError as error:
            raise LinkLostError(str(error), was_sent=False) from error
        return self._ask_on(connection, request, payloads, patience, is_over)

    def _ask_on(
        self,
        connection: Connection,
        request: AnyRequest,
        payloads: Sequence[bytes],
        patience: _Patience,
        is_over: Callable[[], bool],
    ) -> Answer:
        try:
            if isinstance(request, Take):
                self._taking[connection] = is_over
            if is_over():  # behind the line above: a wake in between has found the connection
                raise Empty(NOTHING_CAME)
            return self._exchange(connection, request, payloads, patience)
        except LinkLostError:
            if is_over():  # a wake has broken it off
                raise Empty(NOTHING_CAME) from None
            raise
        finally:
            self._taking.pop(connection, None)
            self._connections.give_back(connection)

    def _exchange(
        self, connection: Connection, request: AnyRequest, payloads: Sequence[bytes], patience: _Patience
    ) -> Answer:
        request_id = connection.next_id()
        try:
            buffers = encode_frame(REQUEST, request_id, encode(request), payloads)
        except ProtocolError as error:
            if not isinstance(request, Put | Commit):
                raise UsageError(
                    f"the owner of the queue takes no such request ({error}): ask for less at a time"
                ) from error
            if isinstance(request, Commit) and len(encode(request.receipts)) > RECEIPTS_BYTES_MAX:
                raise UsageError(
                    f"the owner of the queue takes no commit that acknowledges {len(request.receipts):,} messages: "
                    "commit after fewer"
                ) from error
            # an owner in this process would have taken it, a moment ago; and the next attempt stages it
            raise RetryableError(f"this process does not own the queue any more ({error}): try again") from error
        try:
            frame: Frame | None = connection.ask(request_id, buffers, patience.total)
        except ConnectionLostError as error:
            raise LinkLostError(str(error), was_sent=error.was_sent) from error
        except TimeoutError as error:
            if patience.seconds is not None:
                connection.close()
                raise _silent(patience.total) from error
            frame = None
        while frame is None:
            frame = self._wait_on(connection, request_id, patience.grace)
        reply = decode_reply(frame.body)
        if isinstance(reply, Refused):
            raise from_text(reply.text)
        end = _end_of(reply)
        if end > self._known_end:
            with self._lock:
                self._known_end = max(end, self._known_end)
        return Answer(reply, frame.payloads, is_kept=True)

    def _wait_on(self, connection: Connection, request_id: int, grace: float) -> Frame | None:
        """Wait on for an answer without a bound, if the owner lives; None: look again whether it does."""
        try:
            other, _ = self._connect(grace)
            self._connections.give_back(other)
        except LinkLostError as error:
            connection.close()
            raise _silent(2 * grace) from error
        except SessionLostError:  # it lives; this connection has its session from before
            pass
        except BaseException:
            connection.close()
            raise
        try:
            return connection.wait(request_id, grace)
        except ConnectionLostError as error:
            raise LinkLostError(str(error), was_sent=error.was_sent) from error
        except TimeoutError:
            return None

    def wake(self) -> None:
        """Break connections off on which threads wait for messages that are not wanted any more."""
        for connection, is_over in list(self._taking.items()):
            if is_over():
                connection.break_off()

    def close(self) -> None:
        self._connections.close()

    def forget(self) -> None:
        self._connections.forget()


def _end_of(reply: AnyReply) -> int:
    """Return the offset behind the last message that a reply names; 0 if it names none."""
    if type(reply) is Offsets:
        return reply.first + reply.count
    if type(reply) is Taken:
        return max(reply.messages)[0] + 1
    return 0


def _silent(seconds: float) -> LinkLostError:
    return LinkLostError(f"the owner has not answered within {seconds:g} s", was_sent=True, is_silent=True)

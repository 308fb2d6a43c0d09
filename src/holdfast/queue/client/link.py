"""The ways to the owner: a socket, or direct calls if this process owns the queue itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.errors import NOTHING_CAME, ClosedError, Empty
from holdfast.queue.owner.owner import Owner
from holdfast.queue.protocol.frames import REQUEST, Frame, encode_frame
from holdfast.queue.protocol.messages import (
    VERSION,
    AnyReply,
    AnyRequest,
    Hello,
    Refused,
    Take,
    Welcome,
    decode_reply,
    encode,
)
from holdfast.queue.remote.error_text import from_text
from holdfast.queue.transport.connection import Connection, ConnectionLostError
from holdfast.queue.transport.endpoint import connect
from holdfast.queue.transport.peer import check_peer

HELLO_SECONDS = 1.0
"""How long an owner may take to greet: a socket that accepts may have no thread behind it."""

GRACE_SECONDS = 30.0
"""How long an owner may take to answer beyond the time that the request itself may wait."""


class LinkLostError(Exception):
    """The owner is gone; another one has to be found.

    Attributes
    ----------
    was_sent : bool
        Whether the request may have been done.
    """

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class Answer(NamedTuple):
    """A reply and the payloads behind it; and whether the owner keeps the answer until it is told of its arrival."""

    reply: AnyReply
    payloads: Sequence[bytes]
    is_kept: bool


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

    def ask(
        self,
        request: AnyRequest,
        payloads: Sequence[bytes],
        seconds: float | None,
        is_over: Callable[[], bool] = never,
        *,
        again: bool = False,
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

        Raises
        ------
        LinkLostError
            The owner is gone.
        queue.Empty, queue.Full, HoldfastError
            The owner refuses.
        """

    def wake(self) -> None:
        """Have threads that wait for messages check ``is_over``, which is true by now."""

    def close(self) -> None:
        """Close connections; threads that wait get LinkLostError."""

    def forget(self) -> None:
        """In a forked child: close the copies."""


class OwnerLink:
    """Direct calls to the owner in this process."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.epoch = owner.epoch

    def ask(
        self,
        request: AnyRequest,
        payloads: Sequence[bytes],
        seconds: float | None,
        is_over: Callable[[], bool] = never,
        *,
        again: bool = False,
    ) -> Answer:
        try:
            return Answer(*self.owner.perform(request, payloads, is_over, again=again), again)
        except ClosedError as error:
            raise LinkLostError(str(error), was_sent=False) from error

    def wake(self) -> None:
        self.owner.wake()

    def close(self) -> None:
        """Do nothing: the membership closes the owner."""

    def forget(self) -> None:
        self.owner.forget_after_fork()


class SocketLink:
    """Connections to an owner in another process: one for each thread that asks.

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
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self._busy: set[Connection] = set()
        self._taking: set[Connection] = set()
        self._is_closed = False
        self._local = threading.local()

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
        welcome = self._connect()[1]
        self._hello = Hello(VERSION, self.epoch, welcome.session, "")
        return welcome

    def _connect(self) -> tuple[Connection, Welcome]:
        try:
            sock = connect(self._path, HELLO_SECONDS)
        except OSError as error:
            raise LinkLostError(f"no owner listens at {self._path}: {error}", was_sent=False) from error
        connection = Connection(sock, lambda notice: None)
        try:
            check_peer(sock)
            with self._lock:
                if self._is_closed:
                    raise LinkLostError("the link to the owner was closed", was_sent=False)
                self._open.add(connection)
            self._local.connection, self._local.count = connection, 0
            reply = self._exchange(connection, self._hello, (), HELLO_SECONDS).reply
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, LinkLostError):
                raise LinkLostError(str(error), was_sent=False) from error
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
    ) -> Answer:
        connection = getattr(self._local, "connection", None)
        if connection is None or not connection.is_usable:
            connection, _ = self._connect()
        patience = None if seconds is None else seconds + GRACE_SECONDS
        if not isinstance(request, Take):
            return self._exchange(connection, request, payloads, patience)
        self._taking.add(connection)
        try:
            if is_over():  # behind the line above: a wake in between has found the connection
                raise Empty(NOTHING_CAME)
            return self._exchange(connection, request, payloads, patience)
        except LinkLostError:
            if is_over():  # a wake has broken it off
                raise Empty(NOTHING_CAME) from None
            raise
        finally:
            self._taking.discard(connection)

    def _exchange(
        self, connection: Connection, request: AnyRequest, payloads: Sequence[bytes], seconds: float | None
    ) -> Answer:
        self._local.count = request_id = self._local.count + 1
        buffers = encode_frame(REQUEST, request_id, encode(request), payloads)
        self._busy.add(connection)
        try:
            frame: Frame = connection.ask(request_id, buffers, seconds)
        except ConnectionLostError as error:
            self._drop(connection)
            raise LinkLostError(str(error), was_sent=error.was_sent) from error
        except TimeoutError as error:
            self._drop(connection)
            raise LinkLostError(f"the owner has not answered within {seconds:g} s", was_sent=True) from error
        finally:
            self._busy.discard(connection)
            if self._is_closed:
                connection.close()
        reply = decode_reply(frame.body)
        if isinstance(reply, Refused):
            raise from_text(reply.text)
        return Answer(reply, frame.payloads, is_kept=True)

    def _drop(self, connection: Connection) -> None:
        connection.close()
        with self._lock:
            self._open.discard(connection)

    def wake(self) -> None:
        """Break connections off on which threads wait for messages."""
        for connection in list(self._taking):
            connection.break_off()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            connections = list(self._open)
        for connection in connections:
            connection.break_off()
            if connection not in self._busy:  # else its thread closes it
                connection.close()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = True
        for connection in list(self._open):
            with suppress(OSError):
                connection.close()

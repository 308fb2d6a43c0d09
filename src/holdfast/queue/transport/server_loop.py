"""The server's loop: one thread reads the frames of all clients, lets a handler answer them, and sends the answers.

It works in rounds. A round takes the frames that are there, of all connections, and then asks the handler once for all
answers: so that one sync makes durable whatever the round has written. What a client may cost others is bounded: in a
round by ``FRAMES_PER_ROUND`` frames and a few reads, in memory by one frame and its unread answers. A loop without work
sleeps: idle clients cost nothing.

What is *not* promised: the handler runs in the loop's thread, so a slow one delays all clients.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from holdfast.clock import Clock
from holdfast.queue.protocol.frames import NOTICE, Frame, ProtocolError, encode_frame
from holdfast.queue.transport.open_sockets import made
from holdfast.queue.transport.served_connection import ServedConnection
from holdfast.threads import join_thread, no_thread_error, start_thread

logger = logging.getLogger("holdfast")

HELLO_SECONDS = 1.0
"""From connecting to the first frame; a client that waits that long for an answer tests the owner lock too."""

UNREAD_SECONDS = 5.0
"""How long a client may have more than ``UNREAD_BYTES_MAX`` of unread answers."""

FRAMES_PER_ROUND = 64
"""Of one connection, before the others have their turn. Clients of ours send one and wait."""

MORE_LOOKS = 3
"""How often a round looks at the sockets once more before it ends, as long as there is more: what has come meanwhile
shares its sync."""

ACCEPTS_PER_ROUND = 64
"""So that a crowd that connects does not delay the answers to those that are connected."""

ACCEPT_PAUSE_SECONDS = 0.1
"""After a failure to accept, as without descriptors: the listener stays readable, and the loop would spin."""

_WAKES = 4096
"""Bytes of a wake-up, each of one call; what is left wakes again."""

_TROUBLE_SECONDS = 0.25
"""The pause if the handler fails to say when it wants its next round."""


class Handler(Protocol):
    """Answers frames; knows no sockets. All calls come from the loop's thread.

    An error of ``connected`` and ``step`` closes the connection, and one of ``end_round`` all connections that sent a
    frame in this round. It is logged, and the others are served.
    """

    def connected(self, connection: int) -> None:
        """Hear of a new connection, whose peer was checked. Its number is never used again."""

    def step(self, connection: int, frame: Frame, now: float) -> None:
        """Take a frame; the answer may be given at the end of this round or of a later one."""

    def end_round(self, now: float) -> Sequence[tuple[int, list[bytes]]]:
        """Return encoded frames and the connections to send them to; called after the frames of a round, if any.

        Those for connections that are closed are dropped.
        """

    def disconnected(self, connection: int, now: float) -> None:
        """Hear that a connection has ended: once for each that was connected, at :meth:`ServerLoop.stop` too."""

    def unanswered(self) -> Mapping[int, int]:
        """Return the requests that wait, by connection, and forget them: nothing of them was done, nor ever is.

        Called at an orderly end, behind the last round. Of several requests of a connection it is the first one.
        """

    def seconds_left(self, now: float) -> float | None:
        """Return how long ``end_round`` is not wanted unless a frame comes; None: for ever."""


class Waker:
    """Causes a round when it is released, as a lock wakes a thread: one may wait in ``Notifier.waiting``.

    A notifier removes an object that it has woken, maybe when it is in there again. So put a new one in each time.
    """

    __slots__ = ("release",)

    def __init__(self, wake: Callable[[], None]) -> None:
        self.release = wake


class ServerLoop:
    """Serves all clients that connect to a listening socket, in one thread.

    Parameters
    ----------
    listener : socket
        Listens. It is the loop's from here on, and closed with it.
    handler : Handler
        Answers frames.
    check_peer : callable
        Raises for a client that may not connect.
    clock : Clock
        Times of hellos, of unread answers, and of the handler.

    Attributes
    ----------
    on_failed : callable
        Hears in the loop's thread that an error of the loop itself has ended it.
    """

    def __init__(
        self, listener: socket.socket, handler: Handler, check_peer: Callable[[socket.socket], None], clock: Clock
    ) -> None:
        self._handler = handler
        self._check_peer = check_peer
        self._clock = clock
        self._listener = listener
        self._listeners: deque[socket.socket] = deque()
        self._connections: dict[int, ServedConnection] = {}
        self._timed: dict[int, ServedConnection] = {}
        self._with_frames: dict[int, ServedConnection] = {}
        self._connected_count = 0
        self._accepts_at: float | None = None
        self._is_over = False
        self.on_failed: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._listen()

    @property
    def is_running(self) -> bool:
        """Whether its thread serves; False after an error of the loop itself, which is logged."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin to serve. Raises RetryableError if no thread can be started."""
        self._thread = start_thread(self._run, "holdfast-owner", self._end_soon)
        if self._thread is None:
            raise no_thread_error("serving other processes")

    def stop(self) -> None:
        """Close all connections and the listener, and wait until the thread has ended. May be called again."""
        self._end_soon()
        join_thread(self._thread)
        if self._thread is not threading.current_thread():
            self._close()

    def wake(self) -> None:
        """Cause a round, from any thread or signal handler."""
        with suppress(OSError):  # it is full, so that the loop wakes anyway; or it is closed
            self._wakes.send(b"\0")

    def waker(self) -> Waker:
        """Return a new object whose ``release`` does the same."""
        return Waker(self.wake)

    def replace_listener(self, listener: socket.socket) -> None:
        """Listen at this socket instead, and close the old one, from any thread; connections stay."""
        self._listeners.append(listener)
        self._wake_others()
        if self._is_over:
            listener.close()

    def forget(self) -> None:
        """In a forked child: close its copies, so that no client waits for it; the parent's loop is untouched."""
        self._is_over = True
        self._close()

    def _end_soon(self) -> None:
        self._is_over = True
        self.wake()

    def _wake_others(self) -> None:
        if self._thread is not threading.current_thread():
            self.wake()

    def _run(self) -> None:
        self._thread = threading.current_thread()  # an interruption may have kept it from the one who started it
        try:
            while not self._is_over:
                self._round()
            self._take_leave()
        except Exception:
            try:
                logger.exception("the owner can serve no other processes any more")
            finally:
                self.on_failed()
        finally:
            self._is_over = True
            for connection in list(self._connections.values()):
                self._drop(connection)
            self._close()

    def _take_leave(self) -> None:
        """Tell each client which of its requests were not done: it asks the next owner as if it had not asked."""
        waiting = self._handler.unanswered()
        for number, connection in self._connections.items():
            last_done = waiting.get(number, connection.taken_id + 1) - 1
            connection.send(encode_frame(NOTICE, last_done, b""))

    def _close(self) -> None:
        """Close what is open, and tell no handler. A forked child must not unregister: its selector is its parent's."""
        sockets = [each.sock for each in self._connections.values()]
        for sock in (self._listener, *self._listeners, self._woken, self._wakes, *sockets):
            sock.close()
        with suppress(OSError):  # a kqueue is not there in a forked child
            self._selector.close()

    def _round(self) -> None:
        """Wait until there is something to do, and do it."""
        events = self._selector.select(self._seconds(self._clock.monotonic()))
        now = self._clock.monotonic()
        stepped = self._take(events, now, ())
        for _ in range(MORE_LOOKS if stepped else 0):
            if len(stepped) == len(self._connections):
                break
            more = self._take(self._selector.select(0), now, stepped)
            if not more:
                break
            stepped += more
        self._answer(stepped, now)
        self._do_due(now)

    def _take(
        self, events: list[tuple[selectors.SelectorKey, int]], now: float, before: Sequence[ServedConnection]
    ) -> list[ServedConnection]:
        """Do what the selector says, and hand frames to the handler; return the connections that they came from.

        ``before``: those that have had their share of this round.
        """
        for key, mask in events:
            if key.data is not None:
                self._exchange(key.data, mask, now)
            elif key.fileobj is self._woken:
                self._hear()
            else:
                self._accept(now)
        stepped = [each for each in self._with_frames.values() if each not in before]
        for connection in stepped:
            self._step(connection, now)
        return stepped

    def _seconds(self, now: float) -> float | None:
        """Return how long to sleep unless something comes; None: for ever."""
        if self._with_frames:
            return 0.0
        times = [each.deadline for each in self._timed.values() if each.deadline is not None]
        if self._accepts_at is not None:
            times.append(self._accepts_at)
        try:
            left = self._handler.seconds_left(now)
        except Exception:  # a fault there must not end the service of all
            logger.exception("the owner does not know when its next round is due")
            left = _TROUBLE_SECONDS
        if left is not None:
            times.append(now + left)
        return max(0.0, min(times) - now) if times else None

    def _exchange(self, connection: ServedConnection, mask: int, now: float) -> None:
        """Send what a client had not read, and read what it has sent."""
        if mask & selectors.EVENT_WRITE:
            self._send(connection, (), now)
        if mask & selectors.EVENT_READ and not connection.has_frames:
            if connection.receive():
                self._with_frames[connection.number] = connection
            else:
                self._drop(connection)

    def _step(self, connection: ServedConnection, now: float) -> None:
        """Hand a client's frames to the handler; those beyond the bound wait for the next round."""
        number = connection.number
        try:
            for _ in range(FRAMES_PER_ROUND):
                frame = connection.next()
                if frame is None:
                    self._with_frames.pop(number)
                    return
                if not connection.has_said_hello:
                    connection.has_said_hello = True
                    self._let_live(connection)
                connection.taken_id = frame.request_id
                self._handler.step(number, frame, now)
        except ProtocolError as error:
            logger.warning("a client is disconnected, it does not keep to the protocol: %s", error)
            self._drop(connection)
        except Exception:  # a fault in one client's request must not end the service of all
            logger.exception("a client is disconnected, its request failed")
            self._drop(connection)

    def _answer(self, stepped: Sequence[ServedConnection], now: float) -> None:
        """Ask for the answers of a round, and send them."""
        try:
            answers = self._handler.end_round(now)
        except Exception:  # what was asked in this round has no answer; a client that is told so may ask again
            logger.exception("%d clients are disconnected, their requests failed", len(stepped))
            for connection in stepped:
                self._drop(connection)
            return
        for number, buffers in answers:
            answered = self._connections.get(number)
            if answered is not None:
                self._send(answered, buffers, now)

    def _send(self, connection: ServedConnection, buffers: Sequence[bytes], now: float) -> None:
        """Send as far as a client reads, and wait for the rest as long as it may take."""
        if not connection.send(buffers):
            self._drop(connection)
            return
        events = connection.wanted_events
        if events != connection.events:
            self._selector.modify(connection.sock, events, connection)
            connection.events = events
        if connection.is_choked:
            self._with_frames.pop(connection.number, None)
            if connection.deadline is None:
                connection.deadline = now + UNREAD_SECONDS
                self._timed[connection.number] = connection
            return
        if connection.deadline is not None and connection.has_said_hello:
            self._let_live(connection)
        if connection.has_frames:  # they may have waited for this client to read, and nothing else may wake the loop
            self._with_frames[connection.number] = connection

    def _let_live(self, connection: ServedConnection) -> None:
        """End a connection's deadline."""
        connection.deadline = None
        self._timed.pop(connection.number, None)

    def _do_due(self, now: float) -> None:
        """Do what other threads have asked for, and what is due by the clock."""
        while self._listeners:
            old, self._listener = self._listener, self._listeners.popleft()
            if self._accepts_at is None:
                self._selector.unregister(old)
            old.close()
            self._accepts_at = now
        if self._accepts_at is not None and self._accepts_at <= now:
            self._accepts_at = None
            self._listen()
        for connection in list(self._timed.values()):
            if connection.deadline is not None and connection.deadline <= now:
                what = "does not read its answers" if connection.has_said_hello else "has not said hello"
                logger.warning("a client is disconnected, it %s", what)
                self._drop(connection)

    def _hear(self) -> None:
        """Take the bytes with which other threads woke this one."""
        with suppress(OSError):
            self._woken.recv(_WAKES)

    def _listen(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self, now: float) -> None:
        """Accept the clients that wait."""
        for _ in range(ACCEPTS_PER_ROUND):
            try:
                sock = made(self._accept_one)
            except BlockingIOError:
                return
            except ConnectionAbortedError:  # the client has given up
                continue
            except OSError as error:
                logger.warning("no client can connect for a moment: %s", error)
                self._selector.unregister(self._listener)
                self._accepts_at = now + ACCEPT_PAUSE_SECONDS
                return
            self._admit(sock, now + HELLO_SECONDS)

    def _accept_one(self) -> socket.socket:
        sock, _ = self._listener.accept()
        return sock

    def _admit(self, sock: socket.socket, deadline: float) -> None:
        """Begin to serve a client, unless its peer is refused."""
        self._connected_count += 1
        connection = ServedConnection(sock, self._connected_count, deadline)
        try:
            self._check_peer(sock)
            sock.setblocking(False)
            self._selector.register(sock, connection.events, connection)
            self._connections[connection.number] = self._timed[connection.number] = connection
            self._handler.connected(connection.number)
        except Exception as error:
            logger.warning("a client is refused: %s", error)
            self._discard(connection)

    def _drop(self, connection: ServedConnection) -> None:
        """End a connection and tell the handler, unless that was done."""
        if self._connections.get(connection.number) is not connection:
            return
        self._discard(connection)
        try:
            self._handler.disconnected(connection.number, self._clock.monotonic())
        except Exception:  # the connection is gone all the same
            logger.exception("the end of a connection was not taken note of")

    def _discard(self, connection: ServedConnection) -> None:
        for kept in (self._connections, self._timed, self._with_frames):
            kept.pop(connection.number, None)
        with suppress(KeyError):  # it was refused before
            self._selector.unregister(connection.sock)
        connection.sock.close()

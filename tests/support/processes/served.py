"""A server's loop for tests, and a handler whose answers the clients choose by what they ask."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.clock import Clock, SystemClock
from holdfast.queue.protocol.frames import REPLY, REQUEST, Frame, encode_frame
from holdfast.queue.transport.connection import Connection
from holdfast.queue.transport.server_loop import ServerLoop


class Answering:
    """Answers each request as its body says.

    ``echo`` returns the payloads, ``hold`` answers in the round that is due, ``close`` is answered and closes the
    connection, ``size N`` returns N bytes. ``fail`` and ``fail round``
    raise, in ``step`` and in ``end_round``; ``break`` does so in ``seconds_left``.

    Attributes
    ----------
    loop : ServerLoop
        Set by who makes it.
    told : list of tuple
        What the loop has told: the call, and the connection.
    rounds : list of int
        How many frames each round had that had any.
    round_count : int
        All rounds, those without frames too.
    refuses_connections : bool
        Whether ``connected`` and ``disconnected`` raise.
    is_due : bool
        Whether held answers are given in the next round.
    """

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.rounds: list[int] = []
        self.round_count = 0
        self.is_due = False
        self.refuses_connections = False
        self._answers: list[tuple[int, list[bytes]]] = []
        self._held: list[tuple[int, list[bytes]]] = []
        self._held_ids: dict[int, int] = {}
        self._frames = 0
        self._fails = False
        self._breaks = False

    def connected(self, connection: int) -> None:
        self.told.append(("connected", connection))
        if self.refuses_connections:
            raise ValueError("no room for one more")

    def step(self, connection: int, frame: Frame, now: float) -> None:
        self.told.append((frame.body.decode(), connection))
        self._frames += 1
        verb, _, count = frame.body.decode().partition(" ")
        payloads = frame.payloads
        if frame.body == b"fail":
            raise ValueError("a fault of the handler")
        if verb == "size":
            payloads = [bytes(1000)] * (int(count) // 1000)
        self._fails = frame.body == b"fail round"
        self._breaks = verb == "break"
        answer = connection, encode_frame(REPLY, frame.request_id, frame.body, payloads)
        (self._held if verb == "hold" else self._answers).append(answer)
        if verb == "hold":
            self._held_ids[connection] = frame.request_id

    def end_round(self, now: float) -> list[tuple[int, list[bytes]]]:
        self.round_count += 1
        if self._frames:
            self.rounds.append(self._frames)
        self._frames = 0
        if self.is_due:
            self._answers += self._held
            self._held = []
        answers, self._answers = self._answers, []
        if self._fails:
            self._fails = False
            raise ValueError("a fault of the round")
        return answers

    def disconnected(self, connection: int, now: float) -> None:
        self.told.append(("disconnected", connection))
        if self.refuses_connections:
            raise ValueError("it was never here")

    def unanswered(self) -> dict[int, int]:
        held, self._held_ids = self._held_ids, {}
        return held

    def seconds_left(self, now: float) -> float | None:
        if self._breaks:
            self._breaks = False
            raise ValueError("a fault in telling the time")
        return None


class Served:
    """A loop that serves at a path, and its clients.

    Attributes
    ----------
    loop : ServerLoop
        It runs.
    handler : Answering
        What it asks.
    clients : list of socket
        Those of :meth:`connect`.
    refused : str
        Why each peer is refused; empty: none is.
    """

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self.handler = Answering()
        self.clients: list[socket.socket] = []
        self.refused = ""
        self.loop = ServerLoop(listening(path), self.handler, self._check, clock or SystemClock())

    def _check(self, sock: socket.socket) -> None:
        assert sock.family == socket.AF_UNIX
        if self.refused:
            raise PermissionError(self.refused)

    def connect(self) -> socket.socket:
        """Return a socket of a client; it blocks for 30 seconds at the most."""
        client = connected(self.path)
        self.clients.append(client)
        return client

    def connection(self) -> Connection:
        """Return a client's connection."""
        return Connection(self.connect())


def listening(path: Path) -> socket.socket:
    """Return a socket that listens at a path; what was there before is removed."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(512)
    return listener


def connected(path: Path) -> socket.socket:
    """Return a socket that is connected to a path."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(30)
    try:
        client.connect(str(path))
    except OSError:
        client.close()
        raise
    return client


@contextmanager
def served(path: Path, clock: Clock | None = None) -> Iterator[Served]:
    """Serve in here, in this process."""
    server = Served(path, clock)
    try:
        server.loop.start()
        yield server
    finally:
        server.loop.stop()
        for client in server.clients:
            client.close()


def request(request_id: int, body: bytes, *payloads: bytes) -> list[bytes]:
    """Return the buffers of a request."""
    return encode_frame(REQUEST, request_id, body, payloads)


def cut_off(loop: ServerLoop, number: int) -> None:
    """Have a loop find that a client has hung up."""
    connection = loop._connections.get(number)
    if connection is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RD)


def is_closed(client: socket.socket) -> bool:
    """Wait until a client's peer has closed the connection; return False if something comes instead."""
    with suppress(ConnectionResetError):
        return client.recv(1) == b""
    return True

"""The server's end of one connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from selectors import EVENT_READ, EVENT_WRITE

import pytest

from holdfast.queue.transport.served_connection import RECEIVES_PER_ROUND, UNREAD_BYTES_MAX, ServedConnection
from support.processes.served import request

Pair = tuple[ServedConnection, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The server's end, and the client's socket."""
    ours, client = socket.socketpair()
    ours.setblocking(False)
    yield ServedConnection(ours, 1, 1.0), client
    ours.close()
    client.close()


def test_a_wake_up_without_bytes_is_no_end(pair: Pair) -> None:
    """A selector may be wrong."""
    connection, _ = pair
    assert connection.receive()
    assert connection.next() is None


def test_a_client_that_has_closed_is_gone_with_its_answers_unread(pair: Pair) -> None:
    """Which is an error to the one who reads, and one to the one who sends."""
    connection, client = pair
    assert connection.send([b"answer"])
    client.close()
    assert not connection.receive()
    assert not connection.send([b"next"])


def test_it_waits_for_what_can_come(pair: Pair) -> None:
    """It reads as long as little is unread, and writes as long as something is."""
    connection, client = pair
    assert connection.wanted_events == EVENT_READ
    assert connection.send([bytes(2 * UNREAD_BYTES_MAX)] * 2)
    assert (connection.is_choked, connection.wanted_events) == (True, EVENT_WRITE)
    rest = 4 * UNREAD_BYTES_MAX
    seen = set()
    while rest:
        rest -= len(client.recv(2**16))
        assert connection.send()
        seen.add(connection.wanted_events)
    assert seen == {EVENT_WRITE, EVENT_READ | EVENT_WRITE, EVENT_READ}


class _Endless(socket.socket):
    """A socket into which a client writes as fast as it is read."""

    count = 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        self.count += 1
        return bytes(size)


def test_a_client_that_sends_without_end_is_left_after_some_reads() -> None:
    """Others have their turn."""
    with _Endless(socket.AF_UNIX) as endless:
        assert ServedConnection(endless, 1, 1.0).receive()
        assert endless.count == RECEIVES_PER_ROUND


def test_frames_are_taken_one_by_one(pair: Pair) -> None:
    """It knows whether there may be another."""
    connection, client = pair
    client.sendall(b"".join(request(1, b"one") + request(2, b"two")))
    assert connection.receive()
    for body in (b"one", b"two"):
        frame = connection.next()
        assert frame is not None
        assert frame.body == body
        assert connection.has_frames
    assert connection.next() is None
    assert not connection.has_frames

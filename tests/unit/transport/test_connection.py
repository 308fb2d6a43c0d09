"""The client's end: one answer for each request, its own; and a connection that is out of step is never used again."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from holdfast.queue.protocol.frames import NOTICE, REPLY, REQUEST, Frame, encode_frame
from holdfast.queue.transport.connection import Connection, ConnectionLostError
from support.processes.interruptions import interrupt
from support.processes.served import Served, request, served
from support.processes.threads import Threads

Pair = tuple[Connection, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A connection, and the socket of its peer."""
    ours, peer = socket.socketpair()
    peer.settimeout(30)
    connection = Connection(ours)
    yield connection, peer
    connection.close()
    peer.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """A loop that serves."""
    with served(tmp_path / "socket") as server:
        yield server


def send(peer: socket.socket, kind: int, request_id: int, body: bytes = b"") -> None:
    """Send a frame to the client."""
    peer.sendall(b"".join(encode_frame(kind, request_id, body)))


def test_what_is_asked_is_sent_as_it_is(pair: Pair) -> None:
    """The buffers of one frame, one behind the other."""
    connection, peer = pair
    send(peer, REPLY, 1)
    buffers = request(1, b"echo", b"one", b"two")
    connection.ask(1, buffers)
    assert peer.recv(1000) == b"".join(buffers)


@pytest.mark.parametrize("count", [3, 2000])
def test_a_request_above_what_a_socket_holds_is_sent_as_a_whole(server: Served, count: int) -> None:
    """Also in more buffers than one call takes."""
    payloads = [bytes([at % 256]) * (2_000_000 // count) for at in range(count)]
    client = server.connection()
    assert client.ask(1, request(1, b"echo", *payloads), timeout=60).payloads == payloads
    client.close()


def test_an_answer_that_comes_byte_by_byte_is_one_answer(pair: Pair) -> None:
    """A stream keeps no bounds."""
    connection, peer = pair
    threads = Threads()

    def answer() -> None:
        peer.recv(1000)
        for byte in b"".join(encode_frame(REPLY, 1, b"body", [b"payload"])):
            peer.sendall(bytes((byte,)))

    threads.start(answer)
    assert connection.ask(1, request(1, b"echo"), timeout=30) == Frame(REPLY, 1, b"body", [b"payload"])
    threads.join()


def test_a_late_answer_is_dropped_and_never_taken_for_another(pair: Pair) -> None:
    """The request before has timed out."""
    connection, peer = pair
    with pytest.raises(TimeoutError):
        connection.ask(1, request(1, b"slow"), timeout=0.01)
    assert connection.is_usable
    send(peer, REPLY, 1, b"late")
    send(peer, REPLY, 2, b"own")
    assert connection.ask(2, request(2, b"next")).body == b"own"


def test_an_answer_that_comes_after_the_timeout_can_be_waited_for(pair: Pair) -> None:
    """Half of it may have come before."""
    connection, peer = pair
    answer = b"".join(encode_frame(REPLY, 1, b"own"))
    peer.sendall(answer[:10])
    for wait in (lambda: connection.ask(1, request(1, b"slow"), timeout=0.01), lambda: connection.wait(1, timeout=0)):
        with pytest.raises(TimeoutError):
            wait()
    peer.sendall(answer[10:])
    assert connection.wait(1).body == b"own"


def test_a_request_that_was_sent_in_part_when_time_is_up_closes_the_connection(pair: Pair) -> None:
    """What is missing of it cannot be told from the next one."""
    connection, _ = pair
    with pytest.raises(TimeoutError):
        connection.ask(1, request(1, b"echo", bytes(3_000_000)), timeout=0.05)
    assert not connection.is_usable
    for again, was_sent in ((lambda: connection.wait(1), True), (lambda: connection.ask(2, request(2, b"")), False)):
        with pytest.raises(ConnectionLostError) as lost:
            again()
        assert lost.value.was_sent is was_sent


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(encode_frame(REPLY, 2, b""), id="the answer of a request that was not sent"),
        pytest.param(encode_frame(REQUEST, 1, b""), id="a request of the owner"),
        pytest.param([bytes(100)], id="no frame"),
    ],
)
def test_an_owner_that_does_not_keep_to_the_protocol_is_left(pair: Pair, sent: list[bytes]) -> None:
    """The request may have been done."""
    connection, peer = pair
    peer.sendall(b"".join(sent))
    with pytest.raises(ConnectionLostError) as lost:
        connection.ask(1, request(1, b"echo"))
    assert lost.value.was_sent
    assert not connection.is_usable


@pytest.mark.parametrize(("last_done", "was_sent"), [(0, False), (1, True)])
def test_an_owner_that_ends_tells_what_it_has_not_done(pair: Pair, *, last_done: int, was_sent: bool) -> None:
    """So that such a request may be sent to the next owner as if it had not been sent."""
    connection, peer = pair
    send(peer, NOTICE, last_done)
    with pytest.raises(ConnectionLostError, match="has ended") as lost:
        connection.ask(1, request(1, b"echo"))
    assert lost.value.was_sent == was_sent
    assert not connection.is_usable


def test_an_answer_before_the_end_of_an_owner_counts(pair: Pair) -> None:
    """The next request was not done."""
    connection, peer = pair
    send(peer, REPLY, 1)
    send(peer, NOTICE, 1)
    assert connection.ask(1, request(1, b"echo")).request_id == 1
    with pytest.raises(ConnectionLostError) as lost:
        connection.ask(2, request(2, b"echo"))
    assert not lost.value.was_sent


def test_a_peer_that_was_gone_before_has_seen_nothing(pair: Pair) -> None:
    """So the request may be sent to a successor, whatever it asks."""
    connection, peer = pair
    peer.close()
    with pytest.raises(ConnectionLostError) as lost:
        connection.ask(1, request(1, b"echo"))
    assert not lost.value.was_sent


def test_a_peer_that_goes_before_it_answers_may_have_done_it(pair: Pair) -> None:
    """Only the log of its successor tells."""
    connection, peer = pair
    threads = Threads()

    def go() -> None:
        peer.recv(1000)
        peer.close()

    threads.start(go)
    with pytest.raises(ConnectionLostError) as lost:
        connection.ask(1, request(1, b"echo"))
    threads.join()
    assert lost.value.was_sent


def test_a_peer_that_goes_in_the_middle_of_a_request_may_have_seen_some_of_it(pair: Pair) -> None:
    """A byte is enough to be careful."""
    connection, peer = pair
    threads = Threads()

    def go() -> None:
        peer.recv(1000)
        peer.close()

    threads.start(go)
    with pytest.raises(ConnectionLostError) as lost:
        connection.ask(1, request(1, b"echo", bytes(3_000_000)))
    threads.join()
    assert lost.value.was_sent


def test_another_thread_ends_the_wait(pair: Pair) -> None:
    """A queue is closed while one of its threads waits for a message."""
    connection, peer = pair
    threads = Threads()

    def end() -> None:
        peer.recv(1000)
        connection.break_off()

    threads.start(end)
    with pytest.raises(ConnectionLostError):
        connection.ask(1, request(1, b"take"))
    threads.join()
    connection.break_off()


def test_an_interruption_while_it_waits_closes_the_connection(server: Served) -> None:
    """Its answer comes later, and would be found by the next request."""

    def strike(_: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    client = server.connection()
    old = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            client.ask(1, request(1, b"hold"))
    finally:
        signal.signal(signal.SIGALRM, old)
    assert not client.is_usable
    with pytest.raises(ConnectionLostError) as lost:
        client.ask(2, request(2, b"echo"))
    assert not lost.value.was_sent


def test_an_interruption_anywhere_leaves_a_connection_in_step_or_closed(server: Served) -> None:
    """At each call and each return of a call: the next request has its own answer, or none."""
    at, outcomes = 1, set()
    while True:
        client = server.connection()
        client.ask(1, request(1, b"echo", b"first"))
        if not interrupt(lambda: client.ask(2, request(2, b"echo", b"second")), at):  # noqa: B023  # called at once
            break
        try:
            assert client.ask(3, request(3, b"echo", b"third"), timeout=30).payloads == [b"third"]
            outcomes.add("in step")
        except ConnectionLostError as lost:
            outcomes.add("may have been sent" if lost.was_sent else "closed")
        client.close()
        at += 1
    assert at > 10
    assert outcomes == {"in step", "closed"}


def test_a_broken_pipe_is_an_error_where_sigpipe_would_end_the_program(pair: Pair) -> None:
    """Programs of the shell give that signal back its default."""
    assert threading.current_thread() is threading.main_thread()
    connection, peer = pair
    old = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        peer.close()
        with pytest.raises(ConnectionLostError):
            connection.ask(1, request(1, b"echo"))
    finally:
        signal.signal(signal.SIGPIPE, old)


@pytest.mark.parametrize(
    ("timeouts", "last"), [([30, 29.9], 30), ([30, 40], 40), ([30, 10], 10), ([30, None], None), ([None, None], None)]
)
def test_a_timeout_is_set_anew_only_if_it_differs(pair: Pair, timeouts: list[float | None], last: float | None) -> None:
    """Each time is a system call, and a call may end a little late."""
    connection, peer = pair
    for number, timeout in enumerate(timeouts, 1):
        send(peer, REPLY, number, b"")
        connection.ask(number, request(number, b""), timeout=timeout)
    assert connection._sock.gettimeout() == (None if last is None else pytest.approx(last * 1.02, rel=1e-3))

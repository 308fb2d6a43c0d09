"""The loop that serves other processes: frames in, answers out, and no client that delays another."""

from __future__ import annotations

import errno
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast.errors import RetryableError
from holdfast.queue.protocol.frames import HEADER, REPLY, Frame
from holdfast.queue.threads.notifier import Notifier
from holdfast.queue.transport import server_loop
from holdfast.queue.transport.connection import Connection, ConnectionLostError
from holdfast.queue.transport.served_connection import UNREAD_BYTES_MAX
from support.builders.clocks import FakeClock
from support.processes.children import child
from support.processes.served import Answering, Served, connected, is_closed, listening, request, served
from support.processes.thread_starts import no_threads
from support.processes.threads import Threads, wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """A loop that serves, by the system's clock."""
    with served(tmp_path / "socket") as server:
        yield server


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


@pytest.fixture
def timed(tmp_path: Path, clock: FakeClock) -> Iterator[Served]:
    """A loop that serves by that clock; a test wakes it when it has moved the clock."""
    with served(tmp_path / "socket", clock) as server:
        yield server


def test_a_request_is_answered(server: Served) -> None:
    """With its payloads, byte by byte."""
    client = server.connection()
    assert client.ask(7, request(7, b"echo", b"\0one", b"")) == Frame(REPLY, 7, b"echo", [b"\0one", b""])
    client.close()
    wait_until(lambda: len(server.handler.told) == 3)
    assert server.handler.told == [("connected", 1), ("echo", 1), ("disconnected", 1)]


def test_requests_that_are_there_together_are_one_round(server: Served) -> None:
    """So that one sync makes all of them durable."""
    clients = [server.connect() for _ in range(5)]
    clients[0].sendall(b"".join(request(1, b"echo") * 10))
    wait_until(lambda: sum(server.handler.rounds) == 10)
    assert server.handler.rounds == [10]


def test_no_connection_has_more_than_its_share_of_a_round(server: Served) -> None:
    """One that sends thousands of requests delays others by a few of them only."""
    many, one = server.connect(), server.connect()
    many.sendall(b"".join(request(1, b"echo") * 1000))
    one.sendall(b"".join(request(1, b"echo")))
    wait_until(lambda: sum(server.handler.rounds) == 1001)
    assert max(server.handler.rounds) <= server_loop.FRAMES_PER_ROUND + 1


@pytest.mark.parametrize("count", [2, 9])
def test_what_comes_while_a_round_is_taken_shares_its_end(
    server: Served, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """And so its sync; but a round ends, even if more and more is sent."""
    clients = [server.connect() for _ in range(count)]
    step, left = server.handler.step, iter(clients[1:])

    def step_and_send(connection: int, frame: Frame, now: float) -> None:
        step(connection, frame, now)
        other = next(left, None)
        if other is not None:
            other.sendall(b"".join(request(1, b"echo")))

    monkeypatch.setattr(server.handler, "step", step_and_send)
    clients[0].sendall(b"".join(request(1, b"echo")))
    wait_until(lambda: sum(server.handler.rounds) == count)
    most = 1 + server_loop.MORE_LOOKS
    assert server.handler.rounds == ([2] if count == 2 else [most, most, 1])


def test_a_client_has_its_share_of_a_round_once(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sends meanwhile waits for the next one."""
    client = server.connect()
    step, more = server.handler.step, [b"echo"] * 3

    def step_and_send(connection: int, frame: Frame, now: float) -> None:
        step(connection, frame, now)
        if more:
            client.sendall(b"".join(request(1, more.pop())))

    monkeypatch.setattr(server.handler, "step", step_and_send)
    client.sendall(b"".join(request(1, b"echo")))
    wait_until(lambda: sum(server.handler.rounds) == 4)
    assert server.handler.rounds == [1] * 4


def test_an_answer_may_be_held_back_and_is_given_when_another_thread_wakes_the_loop(server: Served) -> None:
    """A take waits for a message; the loop serves others meanwhile."""
    waiting, other = server.connection(), server.connection()
    with pytest.raises(TimeoutError):
        waiting.ask(1, request(1, b"hold"), timeout=0.01)
    other.ask(1, request(1, b"echo"))
    server.handler.is_due = True
    server.loop.wake()
    assert waiting.wait(1, timeout=30).body == b"hold"
    waiting.close()
    other.close()


def test_a_notifier_wakes_the_loop_as_it_wakes_a_thread(server: Served) -> None:
    """Threads of the owner and clients wait in one line."""
    notifier = Notifier()
    waker = server.loop.waker()
    notifier.waiting.append(waker)  # type: ignore[arg-type]  # it has what a notifier needs of a lock
    before = server.handler.round_count
    notifier.notify()
    wait_until(lambda: server.handler.round_count > before)
    assert not notifier.waiting
    assert waker != server.loop.waker()


def test_a_signal_handler_wakes_the_loop(server: Served) -> None:
    """Also one that interrupts a thread in the middle of waking it."""
    before = server.handler.round_count
    old = signal.signal(signal.SIGUSR1, lambda *_: server.loop.wake())
    try:
        for _ in range(100):
            os.kill(os.getpid(), signal.SIGUSR1)
            server.loop.wake()
    finally:
        signal.signal(signal.SIGUSR1, old)
    wait_until(lambda: server.handler.round_count > before)


def test_waking_a_loop_that_does_not_run_never_waits(tmp_path: Path) -> None:
    """However often: what wakes it is full some time."""
    server = Served(tmp_path / "socket")
    for _ in range(100_000):
        server.loop.wake()
    server.loop.stop()
    server.loop.wake()
    assert not server.loop.is_running


def test_an_idle_loop_with_clients_does_nothing(server: Served) -> None:
    """No polling: its rounds are those that something has caused."""
    clients = [server.connection() for _ in range(20)]
    for client in clients:
        client.ask(1, request(1, b"echo"))
    rounds = server.handler.round_count
    time.sleep(0.3)
    assert server.handler.round_count <= rounds + 1
    for client in clients:
        client.close()


def test_a_client_that_does_not_say_hello_is_cut_off(timed: Served, clock: FakeClock) -> None:
    """It keeps a descriptor; one that has said it may be silent for ever."""
    silent, polite, half = timed.connect(), timed.connect(), timed.connect()
    polite.sendall(b"".join(request(1, b"echo")))
    half.sendall(b"".join(request(1, b"echo"))[:-1])
    wait_until(lambda: ("echo", 2) in timed.handler.told)
    clock.advance(server_loop.HELLO_SECONDS + 0.1)
    timed.loop.wake()
    assert is_closed(silent)
    assert is_closed(half)
    polite.sendall(b"".join(request(2, b"echo")))
    wait_until(lambda: timed.handler.told.count(("echo", 2)) == 2)


def test_a_client_that_never_reads_is_cut_off(timed: Served, clock: FakeClock) -> None:
    """Nothing is read from it before, so it cannot make the server hold more and more."""
    greedy = timed.connect()
    greedy.sendall(b"".join(request(1, b"size 2000000") + request(2, b"size 2000000") * 100))
    wait_until(lambda: ("size 2000000", 1) in timed.handler.told)
    patient = timed.connection()
    patient.ask(1, request(1, b"echo"))
    clock.advance(server_loop.UNREAD_SECONDS - 1)
    patient.ask(2, request(2, b"echo"))
    assert ("disconnected", 1) not in timed.handler.told
    clock.advance(1.1)
    patient.ask(3, request(3, b"echo"))
    wait_until(lambda: ("disconnected", 1) in timed.handler.told)
    assert timed.handler.told.count(("size 2000000", 1)) <= server_loop.FRAMES_PER_ROUND
    patient.close()


def test_a_client_that_reads_late_gets_everything(timed: Served, clock: FakeClock) -> None:
    """Time does not run for one that has little to read, and its further frames are taken when it has read."""
    late = timed.connect()
    late.sendall(b"".join(request(1, b"size 3000000") + request(1, b"echo") * 100))
    wait_until(lambda: timed.handler.told.count(("echo", 1)) == server_loop.FRAMES_PER_ROUND - 1)
    rest = 3_000_000 + 3000 * 4 + HEADER.size + len("size 3000000") + 100 * (HEADER.size + 4)
    while rest:
        rest -= len(late.recv(rest))
    assert timed.handler.told.count(("echo", 1)) == 100
    clock.advance(10)
    late.sendall(b"".join(request(3, b"echo")))
    assert late.recv(100)


def test_a_client_that_reads_while_it_is_answered_has_its_other_frames_taken(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They waited for it to read, and nothing else comes that would wake the loop."""
    client = server.connect()
    client.setblocking(False)
    answer = server.handler.end_round

    def read_between(now: float) -> Iterator[tuple[int, list[bytes]]]:
        for each in answer(now):
            yield each
            with suppress(BlockingIOError):
                while client.recv(2**20):
                    pass

    monkeypatch.setattr(server.handler, "end_round", read_between)
    client.sendall(b"".join(request(1, b"size 2000000") + request(2, b"echo") * 100))
    wait_until(lambda: server.handler.told.count(("echo", 1)) == 100)


def test_a_client_that_goes_while_it_is_answered_is_gone(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it."""
    client = server.connect()
    answer = server.handler.end_round

    def close_before(now: float) -> list[tuple[int, list[bytes]]]:
        answers = answer(now)
        if answers:
            client.close()
        return answers * 2

    monkeypatch.setattr(server.handler, "end_round", close_before)
    client.sendall(b"".join(request(1, b"echo")))
    wait_until(lambda: ("disconnected", 1) in server.handler.told)


def test_an_answer_below_the_bound_waits_for_ever(timed: Served, clock: FakeClock) -> None:
    """A client may be stopped for a while."""
    stopped = timed.connect()
    stopped.sendall(b"".join(request(1, b"size 900000")))
    wait_until(lambda: ("size 900000", 1) in timed.handler.told)
    clock.advance(100)
    timed.loop.wake()
    rest = 900_000 + 900 * 4 + HEADER.size + len("size 900000")
    assert rest < UNREAD_BYTES_MAX
    while rest:
        rest -= len(stopped.recv(rest))


@pytest.mark.parametrize("stop_at", [1, HEADER.size - 1, HEADER.size, HEADER.size + 5])
def test_a_client_that_goes_in_the_middle_of_a_frame_is_gone(server: Served, stop_at: int) -> None:
    """Nothing of its request reaches the handler."""
    client = server.connect()
    client.sendall(b"".join(request(1, b"echo", b"payload"))[:stop_at])
    client.close()
    wait_until(lambda: ("disconnected", 1) in server.handler.told)
    assert server.handler.told == [("connected", 1), ("disconnected", 1)]


def test_a_client_that_goes_before_its_answer_is_gone(server: Served) -> None:
    """Its request was done; a round drops the answer."""
    client = server.connect()
    client.sendall(b"".join(request(1, b"hold")))
    wait_until(lambda: ("hold", 1) in server.handler.told)
    client.close()
    wait_until(lambda: ("disconnected", 1) in server.handler.told)
    server.handler.is_due = True
    rounds = server.handler.round_count
    server.loop.wake()
    wait_until(lambda: server.handler.round_count > rounds)
    assert server.loop.is_running


def test_a_client_that_sends_byte_by_byte_is_answered(server: Served) -> None:
    """Frames come in any pieces."""
    client = server.connect()
    for byte in b"".join(request(1, b"echo", b"payload")):
        client.sendall(bytes((byte,)))
    assert client.recv(1000).endswith(b"payload")


def test_bytes_that_are_no_frame_end_that_connection_only(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    """One warning says what was wrong."""
    other, stranger = server.connection(), server.connect()
    stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert is_closed(stranger)
    assert "does not keep to the protocol: a frame of 542,393,671 bytes" in caplog.text
    assert other.ask(1, request(1, b"echo")).body == b"echo"
    other.close()


@pytest.mark.parametrize("verb", [b"fail", b"fail round"])
def test_an_error_of_the_handler_ends_that_connection_only(
    server: Served, caplog: pytest.LogCaptureFixture, verb: bytes
) -> None:
    """It is logged with its traceback; the client hears that its request has no answer."""
    other, unlucky = server.connection(), server.connection()
    other.ask(1, request(1, b"echo"))
    with pytest.raises(ConnectionLostError) as lost:
        unlucky.ask(1, request(1, verb))
    assert lost.value.was_sent
    assert "a fault of the" in caplog.text
    assert "Traceback" in caplog.text
    assert other.ask(2, request(2, b"echo")).body == b"echo"
    other.close()


def test_a_connection_that_has_ended_in_a_round_that_fails_has_ended_once(server: Served) -> None:
    """The handler must not hear of it twice."""
    client = server.connect()
    client.sendall(b"".join(request(1, b"fail round")) + bytes(HEADER.size))
    assert is_closed(client)
    other = server.connection()
    other.ask(1, request(1, b"echo"))  # behind the round that failed
    assert server.handler.told.count(("disconnected", 1)) == 1
    other.close()


def test_a_handler_that_cannot_tell_the_time_serves_on(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    """It is asked again a moment later."""
    client = server.connection()
    client.ask(1, request(1, b"break"))
    rounds = server.handler.round_count
    wait_until(lambda: server.handler.round_count > rounds)
    assert "a fault in telling the time" in caplog.text
    assert client.ask(2, request(2, b"echo")).body == b"echo"
    client.close()


def test_a_peer_that_is_refused_is_closed_and_unknown_to_the_handler(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one may be another."""
    server.refused = "another user"
    assert is_closed(server.connect())
    assert server.handler.told == []
    assert "a client is refused: another user" in caplog.text
    server.refused = ""
    client = server.connection()
    assert client.ask(1, request(1, b"echo")).body == b"echo"
    client.close()


def test_a_handler_may_refuse_a_connection(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    """It hears no more of it."""
    server.handler.refuses_connections = True
    assert is_closed(server.connect())
    assert server.handler.told == [("connected", 1)]
    assert "no room for one more" in caplog.text


def test_an_error_of_the_handler_at_the_end_of_a_connection_is_logged(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection has ended all the same."""
    client = server.connection()
    client.ask(1, request(1, b"echo"))
    server.handler.refuses_connections = True
    client.close()
    wait_until(lambda: "was not taken note of" in caplog.text)
    assert server.loop.is_running


def test_200_clients_at_once_are_served(server: Served) -> None:
    """Each gets its own answers."""

    def work(number: int) -> None:
        client = Connection(connected(server.path))
        for at in range(1, 6):
            payload = f"{number} {at}".encode()
            assert client.ask(at, request(at, b"echo", payload), timeout=60).payloads == [payload]
        client.close()

    threads = Threads()
    for number in range(200):
        threads.start(lambda number=number: work(number))  # type: ignore[misc]
    threads.join()
    wait_until(lambda: sum(told == "disconnected" for told, _ in server.handler.told) == 200)
    assert sum(server.handler.rounds) == 1000


def test_stopping_closes_every_connection_and_tells_the_handler(server: Served) -> None:
    """Also one with an outstanding request, whose client hears at once."""
    waiting = server.connection()
    with pytest.raises(TimeoutError):
        waiting.ask(1, request(1, b"hold"), timeout=0.01)
    server.loop.stop()
    with pytest.raises(ConnectionLostError):
        waiting.wait(1, timeout=30)
    assert server.handler.told[-1] == ("disconnected", 1)
    with pytest.raises(ConnectionRefusedError):
        connected(server.path)
    server.loop.stop()
    assert not server.loop.is_running


def test_the_handler_may_stop_the_loop(server: Served) -> None:
    """The thread does not wait for itself."""
    client = server.connection()
    client.ask(1, request(1, b"echo"))
    server.handler.seconds_left = lambda now: server.loop.stop()  # type: ignore[method-assign]
    server.loop.wake()
    wait_until(lambda: not server.loop.is_running)
    client.close()


def test_a_loop_that_never_started_is_stopped(tmp_path: Path) -> None:
    """Its listener is closed."""
    server = Served(tmp_path / "socket")
    server.loop.stop()
    with pytest.raises(ConnectionRefusedError):
        connected(server.path)


def test_a_thread_that_cannot_be_started_is_the_callers_error(tmp_path: Path) -> None:
    """It may start it again later."""
    server = Served(tmp_path / "socket")
    with no_threads(), pytest.raises(RetryableError, match="serving other processes"):
        server.loop.start()
    assert not server.loop.is_running
    server.loop.start()
    client = server.connection()
    assert client.ask(1, request(1, b"echo")).body == b"echo"
    client.close()
    server.loop.stop()
    for each in server.clients:
        each.close()


def test_a_listener_is_replaced_and_connections_stay(server: Served, tmp_path: Path) -> None:
    """The name of the socket was removed, and bound anew."""
    old = server.connection()
    old.ask(1, request(1, b"echo"))
    server.loop.replace_listener(listening(tmp_path / "second"))
    server.loop.replace_listener(listening(tmp_path / "third"))
    new = Connection(connected(tmp_path / "third"))
    assert new.ask(1, request(1, b"echo")).body == b"echo"
    assert old.ask(2, request(2, b"echo")).body == b"echo"
    for path in (server.path, tmp_path / "second"):
        with pytest.raises(ConnectionRefusedError):
            connected(path)
    new.close()
    old.close()


def test_a_listener_that_comes_too_late_is_closed(server: Served, tmp_path: Path) -> None:
    """Its name must not lead to a socket that is never accepted from."""
    server.loop.stop()
    server.loop.replace_listener(listening(tmp_path / "second"))
    with pytest.raises(ConnectionRefusedError):
        connected(tmp_path / "second")


class _Exhausted(socket.socket):
    """A listener without descriptors for what it accepts."""

    error = errno.EMFILE
    tries = 0

    def accept(self) -> tuple[socket.socket, object]:
        type(self).tries += 1
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return super().accept()


@pytest.fixture
def exhausted(tmp_path: Path) -> Iterator[_Exhausted]:
    """A listener at ``socket`` that accepts nothing until its error is 0."""
    listener = _Exhausted(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.listen(5)
    _Exhausted.tries = 0
    yield listener
    listener.close()


def test_without_descriptors_the_loop_does_not_spin(
    tmp_path: Path, exhausted: _Exhausted, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It tries again a moment later, and serves meanwhile those that are connected."""
    handler = Answering()
    loop = server_loop.ServerLoop(exhausted, handler, lambda sock: None, clock)
    loop.start()
    client = Connection(connected(tmp_path / "socket"))
    with pytest.raises(TimeoutError):
        client.ask(1, request(1, b"echo"), timeout=0.2)
    assert exhausted.tries == 1
    assert "no client can connect for a moment" in caplog.text
    exhausted.error = 0
    clock.advance(server_loop.ACCEPT_PAUSE_SECONDS)
    loop.wake()
    assert client.wait(1, timeout=30).body == b"echo"
    client.close()
    loop.stop()


def test_a_new_listener_ends_the_pause(tmp_path: Path, exhausted: _Exhausted, clock: FakeClock) -> None:
    """What the old one had is not waited for."""
    loop = server_loop.ServerLoop(exhausted, Answering(), lambda sock: None, clock)
    loop.start()
    connected(tmp_path / "socket").close()
    wait_until(lambda: exhausted.tries == 1)
    loop.replace_listener(listening(tmp_path / "second"))
    client = Connection(connected(tmp_path / "second"))
    assert client.ask(1, request(1, b"echo"), timeout=30).body == b"echo"
    client.close()
    loop.stop()


def test_a_client_that_gives_up_while_it_connects_is_no_trouble(
    tmp_path: Path, exhausted: _Exhausted, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one is accepted at once."""
    exhausted.error = errno.ECONNABORTED
    loop = server_loop.ServerLoop(exhausted, Answering(), lambda sock: None, clock)
    loop.start()
    client = Connection(connected(tmp_path / "socket"))
    wait_until(lambda: exhausted.tries > server_loop.ACCEPTS_PER_ROUND)
    exhausted.error = 0
    assert client.ask(1, request(1, b"echo"), timeout=30).body == b"echo"
    assert not caplog.text
    client.close()
    loop.stop()


def test_an_error_of_the_loop_itself_is_logged_and_ends_all_connections(
    server: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients must hear of it: they would wait for ever."""
    client = server.connection()
    client.ask(1, request(1, b"echo"))

    def broken(*_: object) -> list[object]:
        raise OSError(errno.EBADF, "a descriptor that somebody has closed")

    monkeypatch.setattr(selectors.DefaultSelector, "select", broken)
    server.loop.wake()
    wait_until(lambda: not server.loop.is_running)
    with pytest.raises(ConnectionLostError):
        client.ask(2, request(2, b"echo"))
    assert "the owner can serve no other processes any more" in caplog.text
    assert server.handler.told[-1] == ("disconnected", 1)


def test_a_forked_child_closes_its_copies_and_disturbs_nothing(server: Served) -> None:
    """A client hears of the owner's end though a child of it lives, and the child takes no client away."""
    client = server.connection()
    client.ask(1, request(1, b"echo"))
    reader, writer = os.pipe()

    def work() -> None:
        os.close(writer)
        server.loop.forget()
        server.loop.stop()
        server.loop.wake()
        os.read(reader, 1)

    with child(work) as process:
        os.close(reader)
        assert client.ask(2, request(2, b"echo")).body == b"echo"
        late = server.connection()
        assert late.ask(1, request(1, b"echo")).body == b"echo"
        late.close()
        server.loop.stop()
        with pytest.raises(ConnectionLostError):
            client.ask(3, request(3, b"echo"))
        assert process.is_alive()
        os.close(writer)
        assert process.wait() == 0


def test_what_was_forgotten_is_closed_and_may_be_stopped(tmp_path: Path) -> None:
    """The child's copies: no end of a connection stays open in it."""
    server = Served(tmp_path / "socket")
    server.loop.forget()
    with pytest.raises(ConnectionRefusedError):
        server.connect()
    server.loop.wake()
    server.loop.stop()


def test_a_client_that_is_killed_in_the_middle_of_a_frame_is_gone(server: Served) -> None:
    """A real process, stopped at any byte; the next one is served."""

    def work() -> None:
        client = connected(server.path)
        client.sendall(b"".join(request(1, b"echo", bytes(100_000)))[:-1])
        time.sleep(60)

    with child(work) as process:
        wait_until(lambda: ("connected", 1) in server.handler.told)
        process.kill()
        wait_until(lambda: ("disconnected", 1) in server.handler.told)
    client = server.connection()
    assert client.ask(1, request(1, b"echo")).body == b"echo"
    client.close()


def test_a_large_answer_reaches_a_client_in_another_process(server: Served) -> None:
    """Several times what a socket holds, in both directions."""
    payloads = [bytes([at]) * 100_000 for at in range(30)]

    def work() -> None:
        client = Connection(connected(server.path))
        assert client.ask(1, request(1, b"echo", *payloads), timeout=60).payloads == payloads

    with child(work) as process:
        assert process.wait() == 0


def test_an_orderly_end_tells_each_client_what_was_not_done(tmp_path: Path) -> None:
    """A request that waits, and one that was never taken; what was answered before stays answered."""
    with served(tmp_path / "socket") as server:
        waiting, idle = server.connection(), server.connection()
        idle.ask(1, request(1, b"echo"), 30)
        caught: list[ConnectionLostError] = []

        def ask(client: Connection, request_id: int, body: bytes) -> None:
            with pytest.raises(ConnectionLostError) as lost:
                client.ask(request_id, request(request_id, body), 30)
            caught.append(lost.value)

        threads = Threads()
        threads.start(lambda: ask(waiting, 1, b"hold"))
        wait_until(lambda: any(verb == "hold" for verb, _ in server.handler.told))
        server.loop.stop()
        threads.join()
        ask(idle, 2, b"echo")
        assert [each.was_sent for each in caught] == [False, False]


@pytest.mark.parametrize("can_log", [True, False])
def test_a_failure_of_the_loop_itself_is_told_and_no_orderly_end_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, can_log: bool
) -> None:
    """The owner can let the next one in; what was sent may have been done."""
    with served(tmp_path / "socket") as server:
        client, failed = server.connection(), threading.Event()
        client.ask(1, request(1, b"echo"), 30)
        server.loop.on_failed = failed.set
        if not can_log:
            monkeypatch.setattr(server_loop.logger, "exception", Mock(side_effect=MemoryError))
            monkeypatch.setattr(threading, "excepthook", Mock())
        monkeypatch.setattr(server.loop, "_answer", lambda *_: (_ for _ in ()).throw(ValueError("a bug")))
        with pytest.raises(ConnectionLostError) as lost:
            client.ask(2, request(2, b"echo"), 30)
        assert lost.value.was_sent
        assert failed.wait(30)
        wait_until(lambda: not server.loop.is_running)

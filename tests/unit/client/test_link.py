"""The ways to the owner, with real sockets: connections are shared, replaced and broken off, and an error says why."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import ClosedError, RetryableError, UsageError
from holdfast.clock import SystemClock
from holdfast.errors import Empty, Full, HoldfastError
from holdfast.queue.client import link as module
from holdfast.queue.client.link import LinkLostError, OwnerLink, SocketLink, never
from holdfast.queue.protocol.error_text import as_text
from holdfast.queue.protocol.frames import FRAME_BYTES_MAX, REPLY, Frame, encode_frame
from holdfast.queue.protocol.messages import (
    AnyRequest,
    Commit,
    Done,
    Hello,
    Put,
    Refused,
    SessionLostError,
    Take,
    Taken,
    Verb,
    Welcome,
    decode_request,
    encode,
)
from holdfast.queue.transport.server_loop import ServerLoop
from support.processes.served import cut_off, listening
from support.processes.threads import Threads, wait_until

EPOCH = bytes(16)
VERB = Verb("", {"verb": "flush"})
TAKE = Take("g", 7 << 32 | 1, 1, None, None)
SESSION = 7


class Handling:
    """Answers as a test says; greets as session 7.

    Attributes
    ----------
    reply : callable
        Returns the reply to a request and its payloads; None: there is none yet.
    asked : list
        All requests, with their connections.
    ended : list of int
        The connections that have ended.
    """

    def __init__(self) -> None:
        self.reply: Callable[[Any], tuple[Any, list[bytes]] | None] = lambda request: (Done({}), [])
        self.asked: list[tuple[int, Any]] = []
        self.ended: list[int] = []
        self._answers: list[tuple[int, list[bytes]]] = []

    def connected(self, connection: int) -> None: ...

    def step(self, connection: int, frame: Frame, now: float) -> None:
        request = decode_request(frame.body)
        self.asked.append((connection, request))
        is_hello = isinstance(request, Hello) and self.reply(request) is not None
        answer = (Welcome(SESSION, b"id"), []) if is_hello else self.reply(request)
        if answer is not None:
            buffers = encode_frame(REPLY, frame.request_id, encode(answer[0]), answer[1])
            self._answers.append((connection, buffers))

    def end_round(self, now: float) -> list[tuple[int, list[bytes]]]:
        answers, self._answers = self._answers, []
        return answers

    def disconnected(self, connection: int, now: float) -> None:
        self.ended.append(connection)

    def unanswered(self) -> dict[int, int]:
        return {}

    def answer(self, connection: int, request_id: int, reply: Any) -> None:
        """Answer a request that has waited, in the next round."""
        self._answers.append((connection, encode_frame(REPLY, request_id, encode(reply))))

    def seconds_left(self, now: float) -> float | None:
        return None

    @property
    def requests(self) -> list[Any]:
        """What was asked, without where."""
        return [request for _, request in self.asked]


class Serving:
    """A loop that serves a :class:`Handling` at a path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handler = Handling()
        self.loop = ServerLoop(listening(path), self.handler, lambda sock: None, SystemClock())
        self.loop.start()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    """An owner."""
    server = Serving(tmp_path / "socket")
    yield server
    server.loop.stop()


@pytest.fixture
def link(server: Serving) -> Iterator[SocketLink]:
    """Return a link that has greeted."""
    link = SocketLink(server.path, EPOCH)
    assert link.greet(0, "0123456789abcdef.making").session == SESSION
    yield link
    link.close()


def test_a_link_says_hello_for_its_session_on_each_connection(server: Serving, link: SocketLink) -> None:
    """The first one names the file, the next ones the number that it was given."""
    assert link.session == SESSION
    threads = Threads()
    server.handler.reply = lambda request: None if isinstance(request, Take) else (Done({}), [])
    threads.start(lambda: _lost(link, TAKE))
    wait_until(lambda: TAKE in server.handler.requests)
    assert link.ask(VERB, (), 0.0).reply == Done({})
    hellos = [request for request in server.handler.requests if isinstance(request, Hello)]
    assert [(each.session, each.making) for each in hellos] == [(0, "0123456789abcdef.making"), (SESSION, "")]
    link.close()
    threads.join()


def _lost(link: SocketLink, request: Any) -> None:
    with pytest.raises(LinkLostError):
        link.ask(request, (), None)


def test_requests_one_after_another_share_a_connection_also_those_of_other_threads(
    server: Serving, link: SocketLink
) -> None:
    """A thread that ends leaves none behind."""
    for _ in range(3):
        threads = Threads()
        threads.start(lambda: link.ask(VERB, (), None))
        threads.join()
    assert {connection for connection, _ in server.handler.asked} == {1}


def test_payloads_come_with_the_answer(server: Serving, link: SocketLink) -> None:
    """And the owner keeps an answer until it is told that it has arrived."""
    taken = Taken([(0, 1, b"", 1)], 30.0, 5)
    server.handler.reply = lambda request: (taken, [b"payload"])
    reply, payloads, is_kept = link.ask(TAKE, (), 1.0)
    assert (reply, list(payloads), is_kept) == (taken, [b"payload"], True)


def test_a_refusal_is_the_error_of_the_owner_and_the_connection_stays(server: Serving, link: SocketLink) -> None:
    """Its class and text are the same."""
    server.handler.reply = lambda request: (Refused(as_text(Full("no room"))), [])
    for _ in range(2):
        with pytest.raises(Full, match="no room"):
            link.ask(VERB, (), 0.0)
    assert {connection for connection, _ in server.handler.asked} == {1}


def test_a_refused_hello_is_the_error_of_the_owner(server: Serving) -> None:
    """As if the session was found dead."""
    refused = Refused(as_text(SessionLostError("dead")))
    server.handler.reply = lambda request: None
    server.handler.step = lambda connection, frame, now: server.handler._answers.append(  # type: ignore[method-assign]
        (connection, encode_frame(REPLY, frame.request_id, encode(refused)))
    )
    link = SocketLink(server.path, EPOCH)
    with pytest.raises(SessionLostError):
        link.greet(5, "")
    link.close()


def test_no_owner_is_there_if_nothing_listens(tmp_path: Path) -> None:
    """Nothing was sent."""
    with pytest.raises(LinkLostError, match="no owner listens") as caught:
        SocketLink(tmp_path / "socket", EPOCH).greet(0, "")
    assert (caught.value.was_sent, caught.value.is_silent) == (False, False)


def test_a_listener_without_a_thread_is_no_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hello does not count as sent: it changes nothing."""
    monkeypatch.setattr(module, "HELLO_SECONDS", 0.05)
    with listening(tmp_path / "socket"), pytest.raises(LinkLostError) as caught:
        SocketLink(tmp_path / "socket", EPOCH).greet(0, "")
    assert (caught.value.was_sent, caught.value.is_silent) == (False, False)


def test_an_owner_that_does_not_answer_in_time_is_silent(
    server: Serving, link: SocketLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text names the time; the connection is not used again, because the answer may come later."""
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.05)
    server.handler.reply = lambda request: None
    with pytest.raises(LinkLostError, match=r"not answered within 0\.15 s") as caught:
        link.ask(VERB, (), 0.1)
    assert (caught.value.was_sent, caught.value.is_silent) == (True, True)
    server.handler.reply = lambda request: (Done({}), [])
    link.ask(VERB, (), 0.0)
    assert server.handler.asked[-1] == (2, VERB)


@pytest.mark.parametrize(("seconds", "waited"), [(0.0, r"0\.05 s"), (None, r"0\.1 s")])
def test_a_handle_that_ends_gives_an_owner_less_time(
    server: Serving, link: SocketLink, seconds: float | None, waited: str
) -> None:
    """So that its end does not wait for one that is stopped; not when it is asked whether it lives, either."""
    server.handler.reply = lambda request: None
    with pytest.raises(LinkLostError, match=f"not answered within {waited}") as caught:
        link.ask(VERB, (), seconds, grace=0.05)
    assert caught.value.is_silent


def _is_hello(request: Any) -> tuple[Done, list[bytes]] | None:
    """Have hellos answered, and nothing else."""
    return (Done({}), []) if isinstance(request, Hello) else None


def test_a_request_without_a_bound_waits_as_long_as_the_owner_lives(
    server: Serving, link: SocketLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a put into a full queue: the owner greets other connections all the time."""
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.05)
    server.handler.reply = _is_hello
    threads, answers = Threads(), list[object]()
    threads.start(lambda: answers.append(link.ask(VERB, (), None).reply))
    wait_until(lambda: sum(isinstance(each, Hello) for each in server.handler.requests) >= 4)
    assert answers == []
    server.handler.answer(1, 2, Done({"count": 7}))
    server.loop.wake()
    threads.join()
    assert answers == [Done({"count": 7})]


@pytest.mark.parametrize("seconds", [None, module._BOUND_SECONDS_MAX + 1, math.inf])
def test_a_request_without_a_bound_does_not_wait_for_a_stopped_owner(
    server: Serving, link: SocketLink, monkeypatch: pytest.MonkeyPatch, seconds: float | None
) -> None:
    """One that greets no other connection; the request may have been done. More than a day is no bound."""
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.05)
    server.handler.reply = lambda request: None
    with pytest.raises(LinkLostError, match=r"not answered within 0\.1 s") as caught:
        link.ask(VERB, (), seconds)
    assert (caught.value.was_sent, caught.value.is_silent) == (True, True)


def test_a_request_without_a_bound_ends_with_its_connection(
    server: Serving, link: SocketLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or with an error of the look for the owner; a session that is refused there may be served here."""
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.05)
    server.handler.reply = _is_hello
    raised = iter([SessionLostError("found dead"), HoldfastError("a bug")])

    def refused(seconds: float | None = None) -> None:
        raise next(raised)

    with monkeypatch.context() as patch:
        patch.setattr(link, "_connect", refused)
        with pytest.raises(HoldfastError, match="a bug"):
            link.ask(VERB, (), None)

    def cut(request: Any) -> tuple[Done, list[bytes]] | None:
        if isinstance(request, Hello):
            cut_off(server.loop, 2)
        return _is_hello(request)

    link.greet(0, "0123456789abcdef.making")
    server.handler.reply = cut
    with pytest.raises(LinkLostError) as caught:
        link.ask(VERB, (), None)
    assert (caught.value.was_sent, caught.value.is_silent) == (True, False)


def test_a_connection_that_was_cut_off_while_idle_is_replaced(server: Serving, link: SocketLink) -> None:
    """The request was not sent, so it is no matter which connection has it."""
    cut_off(server.loop, 1)
    wait_until(lambda: server.handler.ended == [1])
    assert link.ask(VERB, (), 0.0).reply == Done({})
    assert server.handler.asked[-1] == (2, VERB)


def test_a_connection_that_ends_before_the_answer_may_have_done_the_request(server: Serving, link: SocketLink) -> None:
    """The caller decides whether to send it again."""

    def cut(request: Any) -> None:
        cut_off(server.loop, 1)

    server.handler.reply = cut
    with pytest.raises(LinkLostError) as caught:
        link.ask(VERB, (), 0.0)
    assert (caught.value.was_sent, caught.value.is_silent) == (True, False)


def test_waking_ends_takes_that_wait_for_nothing(server: Serving, link: SocketLink) -> None:
    """A take that has become pointless finds nothing; one that has not waits on, on its connection."""
    server.handler.reply = lambda request: None if isinstance(request, Take) else (Done({}), [])
    over, ended, threads = set[str](), list[str](), Threads()

    def take(name: str) -> None:
        with pytest.raises(Empty):
            link.ask(TAKE, (), None, lambda: name in over)
        ended.append(name)

    first, second = (threads.start(partial(take, name)) for name in ("first", "second"))
    wait_until(lambda: len(link._taking) == 2)
    wait_until(lambda: server.handler.requests.count(TAKE) == 2)
    over.add("first")
    link.wake()
    first.join(30)
    link.ask(VERB, (), 0.0)  # behind that the server has heard of each end
    assert (ended, len(server.handler.ended)) == (["first"], 1)
    over.add("second")
    link.wake()
    second.join(30)
    threads.join()
    assert ended == ["first", "second"]


def test_a_take_that_is_over_before_it_is_sent_finds_nothing(server: Serving, link: SocketLink) -> None:
    """Its connection stays."""
    with pytest.raises(Empty):
        link.ask(TAKE, (), None, lambda: True)
    link.ask(VERB, (), None)
    assert server.handler.requests[1:] == [VERB]


def test_a_closed_link_asks_nothing_and_leaves_no_connection(server: Serving, link: SocketLink) -> None:
    """Idle ones are closed at once; a thread that waits closes its own."""
    server.handler.reply = lambda request: (Done({}), []) if isinstance(request, Hello) else None
    threads = Threads()
    threads.start(lambda: _lost(link, VERB))
    wait_until(lambda: VERB in server.handler.requests)
    server.handler.reply = lambda request: (Done({}), [])
    link.ask(VERB, (), None)
    link.close()
    threads.join()
    wait_until(lambda: sorted(server.handler.ended) == [1, 2])
    with pytest.raises(LinkLostError, match="closed") as caught:
        link.ask(VERB, (), None)
    assert not caught.value.was_sent


def test_an_answer_that_comes_while_the_link_is_closed_is_taken(server: Serving, link: SocketLink) -> None:
    """Its connection is closed by the thread that has it."""
    connections = link._connections

    def close(request: Any) -> tuple[Done, list[bytes]]:
        connections.is_closed = True
        return Done({}), []

    server.handler.reply = close
    assert link.ask(VERB, (), None).reply == Done({})
    wait_until(lambda: server.handler.ended == [1])


def test_a_connection_that_an_interruption_has_dropped_is_closed(server: Serving, link: SocketLink) -> None:
    """No code has it any more."""
    connection = link._connections.take()
    assert connection is not None
    del connection
    gc.collect()
    wait_until(lambda: server.handler.ended == [1])


def test_a_forked_child_has_no_connection(server: Serving, link: SocketLink) -> None:
    """The parent's stays."""
    link.forget()
    with pytest.raises(LinkLostError, match="closed"):
        link._connect()


class FakeOwner:
    """An owner in this process."""

    epoch = EPOCH
    queue: Any = None

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.was: list[object] = []

    def perform(self, session: int, request: Any, payloads: Any, is_over: Any) -> tuple[Done, list[bytes]]:
        if self.error is not None:
            raise self.error
        self.was.append(request)
        return Done({}), []

    def wake(self) -> None:
        self.was.append("woken")


@pytest.mark.parametrize(
    ("request_", "again", "is_kept"),
    [(VERB, False, False), (VERB, True, True), (Put(bytes(16), False, "", {}, None), False, True)],
)
def test_an_owner_in_this_process_is_called(request_: AnyRequest, again: bool, is_kept: bool) -> None:
    """It keeps an answer to a put, and for what an earlier owner may have done."""
    owner = FakeOwner()
    link = OwnerLink(owner, SESSION)  # type: ignore[arg-type]
    assert (link.epoch, link.session) == (EPOCH, SESSION)
    assert link.ask(request_, (), None, again=again) == (Done({}), [], is_kept)
    link.wake()
    link.close()
    link.forget()
    assert owner.was == [request_, "woken"]


@pytest.mark.parametrize(
    ("error", "raised"), [(ClosedError("closed"), LinkLostError), (HoldfastError("x"), HoldfastError)]
)
def test_an_owner_that_is_closed_is_lost(error: Exception, raised: type[Exception]) -> None:
    """Other errors are its own."""
    with pytest.raises(raised):
        OwnerLink(FakeOwner(error), SESSION).ask(VERB, (), None)  # type: ignore[arg-type]


def test_no_wait_is_over_by_default() -> None:
    """Only a consumer says so."""
    assert not never()


def test_a_commit_that_acknowledges_too_much_is_refused_for_good(link: SocketLink) -> None:
    """Beside fewer acknowledgements, puts that do not fit into the frame are staged by the next attempt."""
    receipts = [(2**63 + each, each) for each in range(300_000)]
    commit = Commit(bytes(16), "t", {}, None, "g", receipts, False, [])
    with pytest.raises(UsageError, match="acknowledges 300,000 messages: commit after fewer"):
        link.ask(commit, (), 0.0)
    commit = Commit(bytes(16), "t", {}, None, "g", receipts[:10], False, [])
    with pytest.raises(RetryableError, match="does not own the queue any more"):
        link.ask(commit, [bytes(FRAME_BYTES_MAX)], 0.0)

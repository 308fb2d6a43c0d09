"""Verbs that run in threads of their own: the machine serves others meanwhile, and answers once they are over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Empty, PoisonedError, RetryableError
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.owner.long_verbs import LongVerb
from holdfast.queue.owner.reserving import reserve_fields
from holdfast.queue.prepared.own_reservations import OwnReservations
from holdfast.queue.prepared.reservations import NO_LIMIT
from holdfast.queue.protocol.messages import Done, Offsets, Take, Taken, Verb
from support.owners.served import GROUP, Client, Served
from support.owners.served import put as putting
from support.processes.thread_starts import no_threads
from support.processes.threads import wait_until

NONCE = b"a reservation of"


class Wake:
    """What the machine is woken by; counts."""

    count = 0

    def release(self) -> None:
        Wake.count += 1


class Held:
    """Reservations that do not go on before they may."""

    def __init__(self) -> None:
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self._reserve = OwnReservations._reserve

    def __call__(self, *arguments: Any) -> Any:
        self.has_begun.set()
        assert self.may_go_on.wait(30)
        if self.error is not None:
            raise self.error
        return self._reserve(*arguments)


@pytest.fixture
def served() -> Served:
    """Return an owner that can be woken; so it has threads."""
    served = Served()
    served.machine.waker = Wake
    Wake.count = 0
    return served


@pytest.fixture
def client(served: Served) -> Client:
    """Return a client that has put a to d."""
    client = served.connect()
    client.put(1, b"a", b"b", b"c", b"d")
    return client


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Return what holds up reservations; they go on at the end at the latest."""
    held = Held()

    def reserve(*arguments: Any) -> Any:
        return held(*arguments)

    monkeypatch.setattr(OwnReservations, "_reserve", reserve)
    yield held
    held.may_go_on.set()


def reserving(count_max: int = 2) -> Verb:
    """Return the request for a reservation."""
    return Verb(GROUP, reserve_fields(NONCE, "drain", count_max, NO_LIMIT, NO_LIMIT))


def answer(served: Served, client: Client, request_id: int) -> Any:
    """Return the answer to a request once it is there."""
    found: list[Any] = []

    def look() -> bool:
        served.end_round()
        reply = client.reply(request_id)
        found.extend([] if reply is None else [reply])
        return bool(found)

    wait_until(look)
    return found[0]


def test_others_are_served_while_a_reservation_is_made(served: Served, client: Client, held: Held) -> None:
    """A take of its group waits for it, and does not keep the machine waiting; a put does not."""
    request = client.send(reserving())
    assert held.has_begun.wait(30)
    other = served.connect()
    take = other.send(Take(GROUP, other.number(1), 9, None, 20))
    assert other.ask(putting(2), [b"e"]) == Offsets(4, 1)
    assert (client.reply(request), other.reply(take), Wake.count) == (None, None, 0)
    held.may_go_on.set()
    made = answer(served, client, request)
    assert isinstance(made, Done)
    assert made.result["runs"][0][:2] == [0, 2]
    assert Wake.count > 0
    taken = answer(served, other, take)
    assert isinstance(taken, Taken)
    assert [each[0] for each in taken.messages] == [2, 3, 4]


def test_a_copy_of_a_request_that_still_runs_has_the_same_answer(served: Served, client: Client, held: Held) -> None:
    """The connection broke meanwhile; no second one is made."""
    client.send(reserving())
    assert held.has_begun.wait(30)
    client.disconnect()
    again = served.connect(client.session)
    request = again.send(reserving(count_max=4))
    held.may_go_on.set()
    assert answer(served, again, request).result["runs"][0][:2] == [0, 2]
    assert again.take(1, 9) == [b"c", b"d"]


def test_others_are_served_during_a_purge(served: Served, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It notes each message, and there may be millions."""
    may_go_on, purge = threading.Event(), ReadSide.purge

    def held_purge(side: ReadSide, note: Any) -> int:
        assert may_go_on.wait(30)
        return purge(side, note)

    monkeypatch.setattr(ReadSide, "purge", held_purge)
    request = client.send(Verb(GROUP, {"verb": "purge"}))
    assert served.connect().ask(putting(2), [b"e"]) == Offsets(4, 1)
    assert client.reply(request) is None
    may_go_on.set()
    assert answer(served, client, request).result == {"count": 5}


def test_an_error_of_the_thread_is_answered(served: Served, client: Client, held: Held) -> None:
    """One that poisons is heard of."""
    calls: list[bool] = []
    served.machine.on_poisoned = lambda: calls.append(True)
    held.error = PoisonedError("a sync has failed")
    held.may_go_on.set()
    request = client.send(reserving())
    with pytest.raises(PoisonedError, match="a sync has failed"):
        answer(served, client, request)
    assert calls == [True]


def test_without_a_thread_it_is_done_at_once(served: Served, client: Client) -> None:
    """In the round of the request."""
    with no_threads():
        request = client.send(reserving())
        served.end_round()
    reply = client.reply(request)
    assert isinstance(reply, Done)
    assert reply.result["size_bytes"] == 2


def test_a_take_whose_time_is_over_does_not_wait_for_a_round_more(served: Served, client: Client, held: Held) -> None:
    """It is answered though the reservation still runs: nothing holds the lock of takes here."""
    client.send(reserving())
    assert held.has_begun.wait(30)
    other = served.connect()
    assert other.take(1, 9, timeout=0) == [b"a", b"b", b"c", b"d"]
    with pytest.raises(Empty):
        other.take(2, 9, timeout=0)


def test_a_verb_that_is_over_has_its_result() -> None:
    """Or an error, also if its thread has ended in the middle."""
    done = LongVerb(GROUP, lambda: {"a": 1}, lambda: None)
    done.start()
    wait_until(lambda: done.is_over)
    assert done.result() == {"a": 1}

    def end() -> dict[str, Any]:
        raise SystemExit

    ended = LongVerb(GROUP, end, lambda: None)
    with pytest.raises(SystemExit):
        ended._run()
    assert ended.is_over
    with pytest.raises(RetryableError, match="ask again"):
        ended.result()


@pytest.mark.parametrize(
    "verb",
    [
        {"verb": "flush"},
        {"verb": "resolve"},
        {"verb": "collect", "older_than_seconds": 0.0, "id_prefix": ""},
        {"verb": "commit_jointly", "application": "a", "version": 1, "ids": [], "is_remembered": True},
        {"verb": "abort_jointly", "application": "a", "version": 2},
    ],
    ids=lambda verb: str(verb["verb"]),
)
def test_a_verb_that_syncs_keeps_no_client_waiting(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch, verb: dict[str, Any]
) -> None:
    """A put is done while its disk is slow."""
    may_go_on, run = threading.Event(), LongVerb._run

    def held(self: LongVerb) -> None:
        assert may_go_on.wait(30)
        run(self)

    monkeypatch.setattr(LongVerb, "_run", held)
    request = client.send(Verb("", verb))
    assert served.connect().ask(putting(2), [b"e"]) == Offsets(4, 1)
    assert client.reply(request) is None
    may_go_on.set()
    assert answer(served, client, request) == Done({})

"""Reservations of clients: each request may come twice, and what is held outlives sessions and owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Empty, TransactionNotFoundError, TransactionStateError, UsageError
from holdfast.queue.owner import reserving
from holdfast.queue.owner.reserving import reserve_fields, settle_fields
from holdfast.queue.prepared.reservations import NO_LIMIT
from holdfast.queue.protocol.messages import Verb
from support.owners.served import GROUP, Client, Served

NONCE = b"a reservation of"
OTHER = b"another one of it"[:16]

Succession = Callable[[Served], Served]


def the_same(served: Served) -> Served:
    """No succession: the connection broke, and the owner lives."""
    return served


over = pytest.mark.parametrize(
    "succeed", [the_same, Served.killed, Served.handed_over], ids=["same owner", "killed", "handed over"]
)


@pytest.fixture
def served() -> Served:
    """Return an owner."""
    return Served()


@pytest.fixture
def client(served: Served) -> Client:
    """Return a client that has put a to d."""
    client = served.connect()
    client.put(1, b"a", b"b", b"c", b"d")
    return client


def reserve(client: Client, nonce: bytes = NONCE, *, count_max: int = 2) -> dict[str, Any]:
    """Ask for a reservation; return what the owner says."""
    fields = reserve_fields(nonce, "drain", count_max, NO_LIMIT, NO_LIMIT)
    return client.ask(Verb(GROUP, fields)).result  # type: ignore[union-attr]  # an error is raised


def settle(client: Client, made: dict[str, Any], *, is_committed: bool, nonce: bytes = NONCE) -> None:
    """Have a reservation committed or given back."""
    fields = settle_fields(made["id"], nonce, is_committed=is_committed)
    client.ask(Verb(GROUP, fields))


def offsets(made: dict[str, Any]) -> list[int]:
    """Return what a reservation holds."""
    return [offset for first, count, _, _ in made["runs"] for offset in range(first, first + count)]


def successor(served: Served, client: Client, succeed: Succession) -> Client:
    """Return the connection of the same session to the next owner."""
    client.disconnect()
    return succeed(served).connect(client.session)


def left(client: Client) -> list[bytes]:
    """Return what can be taken now."""
    try:
        return client.take(99, 100)
    except Empty:
        return []


def test_a_late_copy_of_a_request_that_found_nothing_finds_nothing(served: Served) -> None:
    """Its caller is done: what it held would stay held for ever."""
    client = served.connect()
    assert reserve(client) == {}
    client.put(1, b"a")
    assert reserve(client) == {}
    assert offsets(reserve(client, OTHER)) == [0]


@over
def test_a_reservation_asked_for_again_is_the_same_one(served: Served, client: Client, succeed: Succession) -> None:
    """By its nonce; another one takes what comes next."""
    made = reserve(client)
    assert (offsets(made), made["size_bytes"]) == ([0, 1], 2)
    again = successor(served, client, succeed)
    found = reserve(again)
    assert (found["id"], offsets(found)) == (made["id"], [0, 1])
    assert offsets(reserve(again, OTHER)) == [2, 3]
    assert left(again) == []


@over
@pytest.mark.parametrize(("is_committed", "rest"), [(True, [b"c", b"d"]), (False, [b"a", b"b", b"c", b"d"])])
def test_an_outcome_may_be_asked_for_again_and_stays(
    served: Served, client: Client, succeed: Succession, rest: list[bytes], *, is_committed: bool
) -> None:
    """The other outcome is refused, and so is an old copy of the request that made the reservation."""
    made = reserve(client)
    settle(client, made, is_committed=is_committed)
    again = successor(served, client, succeed)
    settle(again, made, is_committed=is_committed)
    with pytest.raises(TransactionStateError, match="committed" if is_committed else "aborted"):
        settle(again, made, is_committed=not is_committed)
    with pytest.raises(TransactionStateError, match="old copy"):
        reserve(again)
    assert left(again) == rest


def test_an_outcome_that_was_answered_outlives_a_loss_of_power(served: Served, client: Client) -> None:
    """So does the reservation."""
    first, second = reserve(client), reserve(client, OTHER, count_max=1)
    settle(client, first, is_committed=True)
    after = served.without_power().connect()
    settle(after, first, is_committed=True)
    assert reserve(after, OTHER)["id"] == second["id"]
    assert left(after) == [b"d"]


def test_a_reservation_outlives_its_session(served: Served, client: Client) -> None:
    """What it has in hand comes again, and what it holds does not; any session decides."""
    made = reserve(client)
    assert client.take(1) == [b"c"]
    served.sessions.living.discard(client.session)
    client.disconnect()
    served.sweep()
    other = served.connect()
    assert other.take(1, 9) == [b"c"]
    settle(other, made, is_committed=False)
    assert other.take(2, 9) == [b"a", b"b", b"d"]


def test_nothing_is_held_if_there_is_nothing(served: Served) -> None:
    """What was never held cannot be decided."""
    client = served.connect()
    assert reserve(client) == {}
    with pytest.raises(TransactionNotFoundError):
        settle(client, {"id": "drain-of-nothing"}, is_committed=True)


def test_one_request_holds_no_more_than_the_owner_reads_at_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it asks for, in messages and in bytes."""
    monkeypatch.setattr(reserving, "RESERVED_COUNT_MAX", 3)
    assert offsets(reserve(client, count_max=NO_LIMIT)) == [0, 1, 2]
    client.put(2, b"e", b"f")
    monkeypatch.setattr(reserving, "RESERVED_BYTES_MAX", 2)
    assert offsets(reserve(client, OTHER, count_max=NO_LIMIT)) == [3, 4]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"nonce": "0"}, "names no transaction"),
        ({"nonce": None}, "names no transaction"),
        ({"prefix": 7}, "takes a prefix"),
        ({"count_max": "all"}, "whole numbers"),
        ({"bytes_max": -1}, "whole numbers"),
        ({"end_offset": None}, "whole numbers"),
        ({"x": 1}, "reserve knows no x"),
        ({"prefix": "a b"}, "cannot name a reservation"),
        ({"prefix": "x" * 31}, "cannot name a reservation"),
    ],
)
def test_fields_that_cannot_be_are_refused(client: Client, change: dict[str, Any], text: str) -> None:
    """And nothing is held."""
    fields = {**reserve_fields(NONCE, "drain", 2, NO_LIMIT, NO_LIMIT), **change}
    with pytest.raises(UsageError, match=text):
        client.ask(Verb(GROUP, fields))
    assert left(client) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"id": 1}, "takes an id, and says whether it is committed"),
        ({"is_committed": 1}, "takes an id, and says whether it is committed"),
        ({"nonce": "z" * 32}, "names no transaction"),
        ({"nonce": "ab"}, "names no transaction"),
        ({"nonce": None}, "names no transaction"),
        ({"more": 1}, "knows no more"),
    ],
)
def test_what_says_of_no_reservation_how_it_ends_is_refused(client: Client, fields: dict[str, Any], text: str) -> None:
    """Nothing is done: it still holds its messages."""
    made = reserve(client)
    asked = {**settle_fields(made["id"], NONCE, is_committed=True), **fields}
    with pytest.raises(UsageError, match=text):
        client.ask(Verb(GROUP, asked))
    assert left(client) == [b"c", b"d"]

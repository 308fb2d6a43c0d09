"""Commits over several queues at the owner that decides: begun there, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import TransactionStateError
from holdfast.persistence.format.constants import NONCE
from holdfast.queue.prepared.prepared_transactions import find_prepared
from holdfast.queue.protocol.messages import Arrived, Commit, Offsets, Prepare
from support.builders.handles import end_commit_records
from support.owners.served import GROUP, THREAD, Client, Served, left
from support.storages.refusals import refusing

Succession = Callable[[Served], Served]

SUCCESSIONS: list[Succession] = [Served.killed, Served.handed_over]
over_its_end = pytest.mark.parametrize("succeed", SUCCESSIONS, ids=["killed", "handed over"])
NONCE_2 = NONCE.pack(THREAD, 2)
OTHER = ("../other", b"o" * 16, "")


@pytest.fixture
def client() -> Client:
    """Return a client that has put a and b, and has a in hand as its first take."""
    client = Served(backoff=[]).connect()
    client.put(1, b"a", b"b")
    client.take(1)
    return client


def decide(client: Client, *acks: tuple[int, int]) -> Any:
    """Commit c here and what another queue has prepared."""
    receipts = [(client.number(take), offset) for take, offset in acks]
    return client.ask(Commit(NONCE_2, "t", {}, 0, GROUP, receipts, participants=[OTHER]), [b"c"])


def outcome(client: Client) -> str:
    """Return what the other queue hears."""
    return str(client.do("outcome", nonce=NONCE_2)["outcome"])


# -- Deciding --------------------------------------------------------------------------------------------------------


def test_what_was_begun_is_in_doubt_until_it_ends(client: Client) -> None:
    """Then it was aborted, unless it was decided."""
    client.do("begin", nonce=NONCE_2)
    client.do("begin", nonce=NONCE_2)
    assert outcome(client) == "in doubt"
    client.do("end", nonce=NONCE_2, is_followed=False)
    assert outcome(client) == "aborted"
    with pytest.raises(TransactionStateError, match="aborted in all its queues"):
        decide(client)
    assert left(client) == [b"b"]


def test_what_was_begun_is_decided(client: Client) -> None:
    """Sent again it has the same offsets, also behind its end."""
    client.do("begin", nonce=NONCE_2)
    assert decide(client, (1, 0)) == decide(client, (1, 0)) == Offsets(2, 1)
    assert outcome(client) == "in doubt"
    client.do("end", nonce=NONCE_2, is_followed=False)
    assert outcome(client) == "committed"
    assert decide(client, (1, 0)) == Offsets(2, 1)
    assert left(client) == [b"b", b"c"]


def test_what_was_not_begun_is_not_decided(client: Client) -> None:
    """Nor what another session has begun. Its messages stay in hand."""
    client.served.connect().do("begin", nonce=NONCE_2)
    with pytest.raises(TransactionStateError, match="was begun with another owner"):
        decide(client, (1, 0))
    client.settle("release", 1, 0)
    assert left(client) == [b"a", b"b"]


@over_its_end
def test_a_successor_does_not_decide_what_was_begun_before(client: Client, succeed: Succession) -> None:
    """It has told the others that it was aborted."""
    client.do("begin", nonce=NONCE_2)
    again = succeed(client.served).connect(client.session)
    assert outcome(again) == "aborted"
    with pytest.raises(TransactionStateError, match="was begun with another owner"):
        decide(again, (1, 0))
    again.do("end", nonce=NONCE_2, is_followed=False)
    again.settle("release", 1, 0)
    assert left(again) == [b"a", b"b"]


@over_its_end
def test_a_successor_knows_what_was_decided(client: Client, succeed: Succession) -> None:
    """The answer was lost: it is asked for again."""
    client.do("begin", nonce=NONCE_2)
    decide(client, (1, 0))
    again = succeed(client.served).connect(client.session)
    assert outcome(again) == "committed"
    assert decide(again, (1, 0)) == Offsets(2, 1)
    again.do("end", nonce=NONCE_2, is_followed=True)
    assert left(again) == [b"b", b"c"]


def test_a_dead_session_ends_what_it_had_begun(client: Client) -> None:
    """A late copy of its request to decide is refused."""
    client.do("begin", nonce=NONCE_2)
    other = client.served.connect()
    client.served.sessions.living.discard(client.session)
    client.served.sweep()
    assert outcome(other) == "aborted"
    with pytest.raises(TransactionStateError, match="was begun with another owner"):
        decide(client)
    assert outcome(other) == "aborted"
    assert left(other) == [b"a", b"b"]


def test_an_old_copy_of_a_beginning_begins_nothing(client: Client) -> None:
    """The others would be in doubt for as long as the session lives."""
    client.do("begin", nonce=NONCE_2)
    client.do("end", nonce=NONCE_2, is_followed=False)
    with pytest.raises(TransactionStateError, match="old copy"):
        client.do("begin", nonce=NONCE_2)
    assert outcome(client) == "aborted"
    client.do("begin", nonce=NONCE.pack(THREAD, 3))


# -- How long a commit is remembered -----------------------------------------------------------------------------------


def pending(client: Client) -> bool:
    """Whether the commit record is carried."""
    side = client.served.queue.write_side
    end_commit_records(side)
    return side.pending_commit_records.find(NONCE_2) is not None


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_commit_is_remembered_until_all_parts_follow(client: Client, is_followed: bool) -> None:
    """The session says so; and it has the answer."""
    client.do("begin", nonce=NONCE_2)
    decide(client, (1, 0))
    assert pending(client)
    client.do("end", nonce=NONCE_2, is_followed=is_followed)
    assert pending(client)
    client.ask(Arrived(THREAD, 2))
    assert pending(client) is not is_followed


def test_a_commit_whose_messages_could_not_be_noted_is_remembered(client: Client) -> None:
    """The next opening notes them."""
    client.do("begin", nonce=NONCE_2)
    with refusing(client.served.disk, "write_at", ".position"):
        assert decide(client, (1, 0)) == Offsets(2, 1)
    client.do("end", nonce=NONCE_2, is_followed=True)
    client.ask(Arrived(THREAD, 2))
    assert pending(client)
    again = client.served.killed().connect(client.session)
    assert left(again) == [b"b", b"c"]


# -- Following -------------------------------------------------------------------------------------------------------


def prepare_part(client: Client, *, is_staged: bool) -> Prepare:
    """Prepare c and d, and an acknowledgement of a, that another queue decides; return the request."""
    if is_staged:
        client.staging(2, "t", b"c", b"d", participants=(client.voter(),), coordinator=client.other(OTHER)).close()
    request = client.preparing(2, "t", (1, 0), is_staged=is_staged, coordinator=OTHER)
    client.ask(request)
    return request


def the_same(served: Served) -> Served:
    """No succession."""
    return served


@pytest.mark.parametrize("is_staged", [True, False])
@pytest.mark.parametrize("succeed", [the_same, *SUCCESSIONS], ids=["same owner", "killed", "handed over"])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_part_follows_what_another_queue_has_decided(
    client: Client, succeed: Succession, is_staged: bool, is_committed: bool
) -> None:
    """Again changes nothing."""
    prepare_part(client, is_staged=is_staged)
    fields = {"id": "t", "nonce": NONCE_2, "is_committed": is_committed}
    puts = {"first": 2, "count": 2} if is_staged and is_committed else {"first": 0, "count": 0}
    with pytest.raises(TransactionStateError, match="is decided by the log of"):
        client.do("commit_prepared", id="t")
    assert client.do("follow", **fields) == puts
    again = succeed(client.served).connect(client.session)
    again.do("follow", **fields)
    assert find_prepared(again.served.queue.handle) == []
    assert left(again) == ([] if is_committed else [b"a"]) + [b"b"] + ([b"c", b"d"] if puts["count"] else [])


def test_a_part_that_follows_again_has_the_same_offsets(client: Client) -> None:
    """As long as its commit record is carried."""
    prepare_part(client, is_staged=True)
    fields = {"id": "t", "nonce": NONCE_2, "is_committed": True}
    assert client.do("follow", **fields) == client.do("follow", **fields) == {"first": 2, "count": 2}

"""Prepared transactions of clients: prepared once, decided once, whatever is sent again, by any owner."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import (
    CommitUnknownError,
    CorruptionError,
    DiskFullError,
    Empty,
    StaleReceiptError,
    StorageError,
    TransactionNotFoundError,
    TransactionStateError,
    verify,
)
from holdfast.persistence.format.commit_record import Participant, PartOf
from holdfast.persistence.format.constants import NONCE
from holdfast.persistence.segment.staged_file import staged_path
from holdfast.queue.prepared.prepared_transactions import find_prepared
from holdfast.queue.protocol.messages import Done, Verb
from holdfast.queue.protocol.prepared_verbs import Follow, Prepare, as_request
from holdfast.queue.transactions.branch import Branch
from support.builders.jobs import ROOT
from support.owners.served import GROUP, THREAD, Client, Served, left
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

Succession = Callable[[Served], Served]


def the_same(served: Served) -> Served:
    """No succession: the connection broke, and the owner lives."""
    return served


SUCCESSIONS: list[Succession] = [the_same, Served.killed, Served.handed_over]
over = pytest.mark.parametrize("succeed", SUCCESSIONS, ids=["same owner", "killed", "handed over"])
NONCE_2 = NONCE.pack(THREAD, 2)
PART = PartOf("app", 1)


@pytest.fixture
def served() -> Served:
    """Return an owner."""
    return Served(max_deliveries=2, backoff=[])


@pytest.fixture
def client(served: Served) -> Client:
    """Return a client that has put a and b, and has a in hand as its first take."""
    client = served.connect()
    client.put(1, b"a", b"b")
    client.take(1)
    return client


def successor(client: Client, succeed: Succession) -> Client:
    """Return the connection of the same session to the next owner."""
    client.disconnect()
    return succeed(client.served).connect(client.session)


def prepared(client: Client) -> list[tuple[str, int]]:
    """Return what is in doubt: its id, and how many messages are held."""
    found = find_prepared(client.served.queue.handle)
    return [(each.id, sum(vote.count for _, vote in each.votes)) for each in found]


def prepare_both(client: Client, transaction_id: str = "t") -> Verb:
    """Stage c and d with an acknowledgement of a; return the request to prepare them."""
    client.staging(2, transaction_id, b"c", b"d", participants=(client.voter(),)).close()
    return client.preparing(2, transaction_id, (1, 0))


# -- Preparing -------------------------------------------------------------------------------------------------------


@over
def test_a_prepare_that_is_sent_again_was_done_before(client: Client, succeed: Succession) -> None:
    """It is in doubt once, and is committed once."""
    request = prepare_both(client)
    assert client.ask(request) == Done({})
    again = successor(client, succeed)
    assert again.ask(request) == Done({})
    assert prepared(again) == [("t", 1)]
    assert again.do("commit_prepared", id="t", nonce=NONCE_2) == {"first": 2, "count": 2}
    assert again.ask(request) == Done({})
    assert prepared(again) == []
    assert left(again) == [b"b", b"c", b"d"]
    assert verify(ROOT, storage=again.served.storage).ok


@over
@pytest.mark.parametrize("decision", ["commit_prepared", "abort_prepared"])
def test_a_prepare_of_acknowledgements_was_done_before(client: Client, succeed: Succession, decision: str) -> None:
    """In doubt, and also once it is decided."""
    request = client.preparing(2, "t", (1, 0), is_staged=False)
    client.ask(request)
    again = successor(client, succeed)
    again.ask(request)
    assert prepared(again) == [("t", 1)]
    again.do(decision, id="t")
    again.ask(request)
    assert prepared(again) == []
    assert left(again) == ([b"b"] if decision == "commit_prepared" else [b"a", b"b"])


@pytest.mark.parametrize("succeed", [the_same, Served.handed_over], ids=["same owner", "handed over"])
def test_a_prepare_that_was_not_done_is_done(client: Client, succeed: Succession) -> None:
    """The staged file is there, because its maker has it locked, and the message is in hand."""
    with client.staging(2, "t", b"c", participants=(client.voter(),)).file:
        again = successor(client, succeed)
        again.ask(client.preparing(2, "t", (1, 0)))
    assert prepared(again) == [("t", 1)]


def test_a_prepare_that_is_interrupted_behind_its_rename_is_prepared(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a whole: without its vote the puts could be committed alone."""
    prepare_for = Branch.prepare_for

    def interrupted(*arguments: Any) -> None:
        prepare_for(*arguments)
        raise KeyboardInterrupt

    request = prepare_both(client)
    monkeypatch.setattr(Branch, "prepare_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.ask(request)
    assert prepared(client) == [("t", 1)]


@over
def test_what_is_prepared_stays_so_when_its_session_dies(client: Client, succeed: Succession) -> None:
    """Another session decides it."""
    client.ask(prepare_both(client))
    client.disconnect()
    client.served.sessions.living.discard(client.session)
    client.served.sweep()
    other = succeed(client.served).connect()
    assert prepared(other) == [("t", 1)]
    other.do("abort_prepared", id="t")
    assert left(other) == [b"a", b"b"]


def test_a_prepare_that_is_refused_leaves_its_messages_in_hand(client: Client) -> None:
    """Another transaction has the id; with another one it is prepared."""
    client.ask(prepare_both(client))
    client.take(2)
    client.staging(3, "t", b"e", participants=(client.voter(),)).close()
    with pytest.raises(TransactionStateError, match="is prepared"):
        client.ask(client.preparing(3, "t", (2, 1)))
    with pytest.raises(CorruptionError, match="no puts to prepare"):
        client.ask(client.preparing(3, "t"))
    with pytest.raises(StorageError):
        client.ask(client.preparing(4, "u", (2, 1)))
    client.settle("release", 2, 1)
    assert left(client) == [b"b"]


def test_a_prepare_is_refused_whose_messages_are_not_in_hand(client: Client) -> None:
    """Nothing is prepared."""
    client.settle("release", 1, 0)
    with pytest.raises(StaleReceiptError):
        client.ask(prepare_both(client))
    assert prepared(client) == []
    assert left(client) == [b"a", b"b"]


def test_a_session_prepares_only_what_it_has_in_hand(client: Client) -> None:
    """The delivery of another one is not its own."""
    other = client.served.connect()
    request = client.preparing(2, "t", (1, 0), is_staged=False)
    with pytest.raises(Exception, match="not of session"):
        other.ask(request)
    assert prepared(client) == []


def test_a_prepare_that_fails_behind_its_vote_holds_nothing(client: Client) -> None:
    """The disk refuses the puts: the messages are available again."""
    request = prepare_both(client)
    with (
        refusing(client.served.disk, "rename", f"{NONCE_2.hex()}.staging"),
        pytest.raises((StorageError, DiskFullError)),
    ):
        client.ask(request)
    assert prepared(client) == []
    assert left(client) == [b"a", b"b"]


def test_a_prepare_whose_sync_fails_is_unknown(client: Client) -> None:
    """The successor finds nothing in doubt: the name is gone again."""
    request = prepare_both(client)
    client.served.queue.handle.require_batches().prepared.outcome_log.reserve()
    with refusing(client.served.disk, "sync_directory", "prepared"), pytest.raises(CommitUnknownError):
        client.ask(request)
    again = client.served.killed().connect(client.session)
    assert prepared(again) == []
    assert left(again) == [b"a", b"b"]


def killed_behind_its_vote(client: Client, request: Verb) -> Client:
    """Have the owner killed between the vote and the puts of a request; return the connection to its successor.

    The client lives: it has the staged file locked.
    """
    served = client.served
    with refusing(served.disk, "rename", f"{NONCE_2.hex()}.staging"):
        disks: list[SimulatedStorage] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "holdfast.queue.transactions.branch.Branch.abort_prepared",
                lambda branch: disks.append(served.disk.crash_keeping_all()),
            )
            with pytest.raises(StorageError):
                client.ask(request)
    staged = disks[0].open(staged_path(served.queue.handle.directory, NONCE_2))
    assert staged.try_lock()
    return Served(disks[0], served.clock, served.sessions).connect(client.session)


def test_a_vote_without_its_puts_is_aborted(client: Client) -> None:
    """The owner is killed between the two; sent again it finds nothing in hand."""
    request = prepare_both(client)
    again = killed_behind_its_vote(client, request)
    with pytest.raises(StaleReceiptError):
        again.ask(request)
    assert prepared(again) == []
    assert left(again) == [b"a", b"b"]


def test_a_part_whose_owner_is_killed_behind_its_vote_is_prepared_by_the_next_one(client: Client) -> None:
    """Another queue decides, and may commit: then what the part puts is there, and what it acknowledges is not."""
    decider = Participant("../hub", b"h" * 16)
    client.staging(2, "t", b"c", participants=(client.voter(),), coordinator=decider).close()
    request = as_request(GROUP, Prepare("t", NONCE_2, [(client.number(1), 0)], True, ("../hub", b"h" * 16, "")))
    again = killed_behind_its_vote(client, request)
    assert again.ask(request) == again.ask(request) == Done({})
    assert prepared(again) == [("t", 1)]
    assert again.do("follow", id="t", nonce=NONCE_2, is_committed=True) == {"first": 2, "count": 1}
    assert left(again) == [b"b", b"c"]


def test_a_part_that_was_aborted_meanwhile_is_not_prepared_again(client: Client) -> None:
    """Its owner was killed behind it, and so was the one of the queue that was to decide: which has not committed."""
    decider = Participant("../hub", b"h" * 16)
    client.staging(2, "t", b"c", coordinator=decider).close()
    request = as_request(GROUP, Prepare("t", NONCE_2, [], True, (decider.path, decider.queue_id, "")))
    assert client.ask(request) == Done({})
    again = successor(client, Served.killed)
    again.ask(as_request("", Follow("t", NONCE_2, False)))
    with pytest.raises(TransactionStateError, match="was aborted"):
        again.ask(request)
    assert prepared(again) == []
    assert left(again) == [b"b"]


# -- Deciding --------------------------------------------------------------------------------------------------------


@over
@pytest.mark.parametrize("by_nonce", [True, False])
def test_a_decision_that_is_sent_again_has_the_same_answer(client: Client, succeed: Succession, by_nonce: bool) -> None:
    """And the opposite one is refused."""
    client.ask(prepare_both(client))
    fields = {"id": "t", "nonce": NONCE_2} if by_nonce else {"id": "t"}
    assert client.do("commit_prepared", **fields) == {"first": 2, "count": 2}
    again = successor(client, succeed)
    assert again.do("commit_prepared", **fields) == {"first": 2, "count": 2}
    with pytest.raises(TransactionStateError, match="was committed"):
        again.do("abort_prepared", **fields)
    assert left(again) == [b"b", b"c", b"d"]


def test_groups_decide_together(client: Client) -> None:
    """One that no handle has open too: its messages are settled."""
    client.served.queue._administered.create("audit", start="earliest")
    client.take(1, 2, group="audit")
    request = client.preparing(2, "t", (1, 0), (1, 1), is_staged=False, group="audit")
    client.ask(request)
    other = client.served.killed().connect()
    assert "audit" not in other.served.queue._groups
    other.do("commit_prepared", id="t")
    with pytest.raises(Empty):
        other.take(1, group="audit")
    other.do("commit_prepared", id="t")


def test_what_operators_decide_is_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Not what a transaction itself does."""
    with caplog.at_level(logging.INFO, logger="holdfast"):
        client.ask(prepare_both(client))
        client.do("commit_prepared", id="t", nonce=NONCE_2)
        client.do("abort_jointly", application="app", version=1)
        client.do("collect", older_than_seconds=0.0, id_prefix="")
        assert "commit_prepared" not in caplog.text
        client.do("commit_prepared", id="t")
    for text in ("abort_jointly(application='app', version=1)", "collect(", "commit_prepared(id='t', force=False)"):
        assert text in caplog.text


@over
def test_a_joint_commit_that_is_sent_again_was_done_before(client: Client, succeed: Succession) -> None:
    """Its parts come once."""
    client.staging(2, "t", b"c", part_of=PART).close()
    client.ask(client.preparing(2, "t"))
    fields = {"application": "app", "version": 1, "ids": ["t"], "is_remembered": True}
    client.do("commit_jointly", **fields)
    again = successor(client, succeed)
    again.do("commit_jointly", **fields)
    again.do("resolve")
    assert left(again) == [b"b", b"c"]
    with pytest.raises(TransactionNotFoundError):
        again.do("commit_jointly", **{**fields, "version": 2})


def test_space_is_asked_for(client: Client) -> None:
    """Before a transaction is prepared: it needs none later."""
    client.attach(maxsize=3)
    assert client.do("has_space", count=1, size_bytes=100) == {"has_space": True}
    assert client.do("has_space", count=2, size_bytes=100) == {"has_space": False}

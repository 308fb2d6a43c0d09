"""Prepared transactions of clients: prepared once, decided once, whatever is sent again, by any owner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

from holdfast import (
    CommitUnknownError,
    CorruptionError,
    DiskFullError,
    Empty,
    PoisonedError,
    StaleReceiptError,
    StorageError,
    TransactionNotFoundError,
    TransactionStateError,
    UsageError,
    verify,
)
from holdfast.persistence.format.commit_record import Participant, PartOf
from holdfast.persistence.format.constants import NONCE
from holdfast.persistence.segment.staged_file import staged_path
from holdfast.queue.prepared.prepared_transactions import find_prepared
from holdfast.queue.protocol.messages import Done, Prepare
from holdfast.queue.protocol.prepared_verbs import Follow, as_request
from holdfast.queue.transactions.branch import Branch
from support.builders.jobs import ROOT
from support.owners.served import GROUP, THREAD, Client, Served, left
from support.storages.disk_operations import Sync, SyncDirectory
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
Asked = tuple[Prepare, list[bytes]]


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


@pytest.fixture(params=["staged", "sent"])
def is_staged(request: pytest.FixtureRequest) -> bool:
    """Return whether puts are in a file of the client; else they come with the request."""
    return bool(request.param == "staged")


def prepare_both(client: Client, *, is_staged: bool, transaction_id: str = "t") -> Asked:
    """Return the request to prepare c and d with an acknowledgement of a, and its payloads."""
    if is_staged:
        client.staging(2, transaction_id, b"c", b"d", participants=(client.voter(),)).close()
    return client.preparing(2, transaction_id, (1, 0), is_staged=is_staged), [] if is_staged else [b"c", b"d"]


# -- Preparing -------------------------------------------------------------------------------------------------------


@over
def test_a_prepare_that_is_sent_again_was_done_before(client: Client, succeed: Succession, is_staged: bool) -> None:
    """It is in doubt once, and is committed once."""
    asked = prepare_both(client, is_staged=is_staged)
    assert client.ask(*asked) == Done({})
    again = successor(client, succeed)
    assert again.ask(*asked) == Done({})
    assert prepared(again) == [("t", 1)]
    assert again.do("commit_prepared", id="t", nonce=NONCE_2) == {"first": 2, "count": 2}
    assert again.ask(*asked) == Done({})
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


def test_a_prepare_that_is_interrupted_behind_its_puts_is_prepared(
    client: Client, is_staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a whole: without its vote the puts could be committed alone."""
    name = "prepare_staged" if is_staged else "prepare"
    prepare = getattr(Branch, name)

    def interrupted(*arguments: Any) -> None:
        prepare(*arguments)
        raise KeyboardInterrupt

    asked = prepare_both(client, is_staged=is_staged)
    monkeypatch.setattr(Branch, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.ask(*asked)
    assert prepared(client) == [("t", 1)]


@over
def test_what_is_prepared_stays_so_when_its_session_dies(client: Client, succeed: Succession, is_staged: bool) -> None:
    """Another session decides it."""
    client.ask(*prepare_both(client, is_staged=is_staged))
    client.disconnect()
    client.served.sessions.living.discard(client.session)
    client.served.sweep()
    other = succeed(client.served).connect()
    assert prepared(other) == [("t", 1)]
    other.do("abort_prepared", id="t")
    assert left(other) == [b"a", b"b"]


def test_a_prepare_that_is_refused_leaves_its_messages_in_hand(client: Client) -> None:
    """Another transaction has the id; with another one it is prepared."""
    client.ask(*prepare_both(client, is_staged=True))
    client.take(2)
    client.staging(3, "t", b"e", participants=(client.voter(),)).close()
    with pytest.raises(TransactionStateError, match="is prepared"):
        client.ask(client.preparing(3, "t", (2, 1)))
    with pytest.raises(CorruptionError, match="no puts to prepare"):
        client.ask(client.preparing(3, "t"))
    with pytest.raises(StorageError):
        client.ask(client.preparing(4, "u", (2, 1)))
    with pytest.raises(TransactionStateError, match="is prepared"):
        client.ask(client.preparing(5, "t", (2, 1), is_staged=False), [b"f"])
    client.settle("release", 2, 1)
    assert left(client) == [b"b"]


def test_a_prepare_is_refused_whose_messages_are_not_in_hand(client: Client, is_staged: bool) -> None:
    """Nothing is prepared."""
    client.settle("release", 1, 0)
    with pytest.raises(StaleReceiptError):
        client.ask(*prepare_both(client, is_staged=is_staged))
    assert prepared(client) == []
    assert left(client) == [b"a", b"b"]


def test_a_session_prepares_only_what_it_has_in_hand(client: Client) -> None:
    """The delivery of another one is not its own."""
    other = client.served.connect()
    request = client.preparing(2, "t", (1, 0), is_staged=False)
    with pytest.raises(Exception, match="not of session"):
        other.ask(request)
    assert prepared(client) == []


def test_a_prepare_that_fails_behind_its_vote_holds_nothing(client: Client, is_staged: bool) -> None:
    """The disk refuses the puts: the messages are available again."""
    asked = prepare_both(client, is_staged=is_staged)
    with refusing_puts(client, is_staged=is_staged), pytest.raises((StorageError, DiskFullError)):
        client.ask(*asked)
    assert prepared(client) == []
    assert left(client) == [b"a", b"b"]


def test_a_prepare_whose_sync_fails_is_unknown(client: Client) -> None:
    """The successor finds nothing in doubt: the name is gone again."""
    (request, _) = prepare_both(client, is_staged=True)
    client.served.queue.handle.require_batches().prepared.outcome_log.reserve()
    with refusing(client.served.disk, "sync_directory", "prepared"), pytest.raises(CommitUnknownError):
        client.ask(request)
    again = client.served.killed().connect(client.session)
    assert prepared(again) == []
    assert left(again) == [b"a", b"b"]


def refusing_puts(client: Client, *, is_staged: bool) -> AbstractContextManager[object]:
    """Have the disk refuse the puts of a transaction, behind its vote."""
    disk = client.served.disk
    if is_staged:
        return refusing(disk, "rename", f"{NONCE_2.hex()}.staging")
    return refusing(disk, "write_at", ".log", count=1)


def killed_behind_its_vote(client: Client, request: Prepare, payloads: Sequence[bytes] = ()) -> Client:
    """Have the owner killed between the vote and the puts of a request; return the connection to its successor.

    The client lives: it has the staged file locked.
    """
    served = client.served
    with refusing_puts(client, is_staged=request.is_staged):
        disks: list[SimulatedStorage] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "holdfast.queue.transactions.branch.Branch.abort_prepared",
                lambda branch: disks.append(served.disk.crash_keeping_all()),
            )
            with pytest.raises(StorageError):
                client.ask(request, payloads)
    if request.is_staged:
        staged = disks[0].open(staged_path(served.queue.handle.directory, NONCE_2))
        assert staged.try_lock()
    return Served(disks[0], served.clock, served.sessions).connect(client.session)


def test_a_vote_without_its_puts_is_aborted(client: Client, is_staged: bool) -> None:
    """The owner is killed between the two; sent again it finds nothing in hand."""
    asked = prepare_both(client, is_staged=is_staged)
    again = killed_behind_its_vote(client, *asked)
    with pytest.raises(StaleReceiptError):
        again.ask(*asked)
    assert prepared(again) == []
    assert left(again) == [b"a", b"b"]


def test_a_part_whose_owner_is_killed_behind_its_vote_is_prepared_by_the_next_one(client: Client) -> None:
    """Another queue decides, and may commit: then what the part puts is there, and what it acknowledges is not."""
    decider = Participant("../hub", b"h" * 16)
    client.staging(2, "t", b"c", participants=(client.voter(),), coordinator=decider).close()
    request = client.preparing(2, "t", (1, 0), coordinator=("../hub", b"h" * 16, ""))
    again = killed_behind_its_vote(client, request)
    assert again.ask(request) == again.ask(request) == Done({})
    assert prepared(again) == [("t", 1)]
    assert again.do("follow", id="t", nonce=NONCE_2, is_committed=True) == {"first": 2, "count": 1}
    assert left(again) == [b"b", b"c"]


def test_a_part_that_was_aborted_meanwhile_is_not_prepared_again(client: Client) -> None:
    """Its owner was killed behind it, and so was the one of the queue that was to decide: which has not committed."""
    decider = Participant("../hub", b"h" * 16)
    client.staging(2, "t", b"c", coordinator=decider).close()
    request = client.preparing(2, "t", coordinator=(decider.path, decider.queue_id, ""))
    assert client.ask(request) == Done({})
    again = successor(client, Served.killed)
    again.ask(as_request(Follow("t", NONCE_2, False)))
    with pytest.raises(TransactionStateError, match="was aborted"):
        again.ask(request)
    assert prepared(again) == []
    assert left(again) == [b"b"]


# -- Puts that come with the request ---------------------------------------------------------------------------------


def prepared_names(client: Client) -> list[str]:
    """Return the names of the files of what is prepared."""
    return sorted(client.served.storage.list(client.served.queue.handle.directory.prepared))


@over
@pytest.mark.parametrize("transaction_id", ["t", NONCE_2.hex()], ids=["named", "unnamed"])
@pytest.mark.parametrize("decision", ["commit_prepared", "abort_prepared", None])
def test_puts_that_are_prepared_once_come_once(
    client: Client, succeed: Succession, transaction_id: str, decision: str | None
) -> None:
    """Nothing is in hand or staged that would be missing the second time: the nonce says it."""
    asked = client.preparing(2, transaction_id, is_staged=False), [b"c", b"d"]
    assert client.ask(*asked) == Done({})
    if decision is not None:
        client.do(decision, id=transaction_id)
    again = successor(client, succeed)
    assert again.ask(*asked) == again.ask(*asked) == Done({})
    assert prepared(again) == ([] if decision else [(transaction_id, 0)])
    again.do(decision or "commit_prepared", id=transaction_id)
    again.settle("release", 1, 0)
    assert left(again) == [b"a", b"b"] + ([] if decision == "abort_prepared" else [b"c", b"d"])
    assert verify(ROOT, storage=again.served.storage).ok


@over
def test_a_transaction_of_nothing_is_prepared(client: Client, succeed: Succession) -> None:
    """It is in doubt as any other one."""
    asked = client.preparing(2, "t", is_staged=False)
    client.ask(asked)
    again = successor(client, succeed)
    again.ask(asked)
    assert prepared(again) == [("t", 0)]
    assert again.do("commit_prepared", id="t") == {"first": 2, "count": 0}


def test_puts_that_come_along_wait_in_the_prepared_log(client: Client) -> None:
    """As those of the mode "exclusive"; what is too large to be copied at its commit has a file."""
    client.ask(client.preparing(2, "small", is_staged=False), [b"c"])
    assert prepared_names(client) == ["0000000001.log", "decided"]
    client.ask(client.preparing(3, "large", is_staged=False), [b"x" * 2**13])
    assert prepared_names(client) == ["0000000001.log", "decided", "large.batch"]
    again = client.served.without_power().connect()
    assert sorted(prepared(again)) == [("large", 0), ("small", 0)]
    for name in ("small", "large"):
        again.do("commit_prepared", id=name)
    assert left(again) == [b"a", b"b", b"c", b"x" * 2**13]


@pytest.mark.parametrize("acks", [0, 1])
def test_preparing_takes_the_syncs_that_are_documented(client: Client, acks: int) -> None:
    """One for the puts and one for a vote, as in the mode "exclusive"."""
    client.ask(client.preparing(3, "before", is_staged=False), [b"d"])
    client.ask(client.preparing(2, "t", *[(1, 0)] * acks, is_staged=False), [b"c"])  # the first vote of its group
    client.do("abort_prepared", id="t")
    client.take(2)
    disk = client.served.disk
    before = len(disk.log)
    client.ask(client.preparing(4, "u", *[(2, 0)] * acks, is_staged=False), [b"c"])
    synced = [each for each in disk.log[before:] if isinstance(each, Sync | SyncDirectory)]
    assert len(synced) == 1 + acks


def test_headers_of_a_message_that_is_not_there_are_refused(client: Client) -> None:
    """As those of a put."""
    asked = Prepare(NONCE_2, "t", {1: b"x"}, GROUP, [])
    with pytest.raises(UsageError, match="has none with the number 1"):
        client.ask(asked, [b"c"])
    assert prepared(client) == []


def test_puts_that_another_queue_decides_are_in_a_file(client: Client) -> None:
    """Sent again behind their abort, which leaves nothing, they would be prepared once more."""
    for asked in (
        client.preparing(2, "t", is_staged=False, coordinator=("../hub", b"h" * 16, "")),
        client.preparing(2, "t", is_staged=True),
    ):
        with pytest.raises(UsageError, match="brings none along"):
            client.ask(asked, [b"c"])
    assert prepared(client) == []


def test_puts_are_not_refused_for_damage_of_those_that_have_their_id(client: Client) -> None:
    """The id is in doubt: with another one they are prepared."""
    client.ask(*prepare_both(client, is_staged=True))
    path = client.served.queue.handle.directory.batch_file("t")
    with client.served.disk.open(path) as file:
        file.write_at([b"damage"], file.size() // 2)
    with pytest.raises(TransactionStateError, match="is prepared"):
        client.ask(client.preparing(3, "t", is_staged=False), [b"e"])
    client.ask(client.preparing(3, "u", is_staged=False), [b"e"])
    assert ("u", 0) in prepared(client)


def test_an_entry_whose_sync_failed_is_not_said_to_be_prepared(client: Client) -> None:
    """Sent again to the same owner, whose answer was lost: the bytes are there, and may not outlive a loss of power."""
    asked = client.preparing(2, "t", is_staged=False), [b"c"]
    client.ask(client.preparing(3, "before", is_staged=False), [b"d"])
    with refusing(client.served.disk, "sync", ".log"), pytest.raises(CommitUnknownError):
        client.ask(*asked)
    with pytest.raises(PoisonedError):
        client.ask(*asked)
    again = client.served.without_power().connect()
    assert prepared(again) == [("before", 0)]


def test_an_entry_whose_sync_was_cut_short_is_synced_when_it_is_sent_again(client: Client) -> None:
    """Then it is prepared, and outlives a loss of power."""
    asked = client.preparing(2, "t", is_staged=False), [b"c"]
    client.ask(client.preparing(3, "before", is_staged=False), [b"d"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.queue.threads.group_commit.GroupCommit.wait", interrupting)
        with pytest.raises(KeyboardInterrupt):
            client.ask(*asked)
    client.ask(*asked)
    again = client.served.without_power().connect()
    assert sorted(prepared(again)) == [("before", 0), ("t", 0)]


def interrupting(*arguments: object) -> None:
    """Be interrupted."""
    raise KeyboardInterrupt


# -- Deciding --------------------------------------------------------------------------------------------------------


@over
@pytest.mark.parametrize("by_nonce", [True, False])
def test_a_decision_that_is_sent_again_has_the_same_answer(
    client: Client, succeed: Succession, is_staged: bool, by_nonce: bool
) -> None:
    """And the opposite one is refused."""
    client.ask(*prepare_both(client, is_staged=is_staged))
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
        client.ask(*prepare_both(client, is_staged=True))
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

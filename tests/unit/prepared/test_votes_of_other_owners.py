"""A prepared transaction is decided by any handle: those who own what it holds are asked, in whichever process."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ClosedError,
    CommitUnknownError,
    DiskFullError,
    PersistentQueue,
    QueueLockedError,
    RetryableError,
    TransactionNotFoundError,
    TransactionStateError,
    UsageError,
    verify,
)
from holdfast.persistence.log.pending_commit_records import PendingCommitRecords
from holdfast.queue.engine.coordinators import Coordinator
from holdfast.queue.prepared import asking_resolvers, vote_settling
from holdfast.queue.prepared import other_queues as verdicts
from holdfast.queue.prepared.own_votes import OwnVotes
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.remote import requester
from holdfast.queue.server import group_desk
from holdfast.queue.verbs.vote_verbs import perform_on_votes
from support.builders.handles import handle_of
from support.builders.transactions import KINDS, ORDERS, after, cut_power, open_queue, prepare, prepared_ids, waiting
from support.processes.children import Child, Signal, child
from support.processes.threads import Threads, wait_until
from support.storages.simulated_storage import SimulatedStorage

VERDICTS = {"commit": True, "abort": False}
SIDES = ("produce", "consume")
NONCE = bytes(range(16))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the queue is."""
    return tmp_path / "orders"


def left_in_doubt(path: Path, kind: str) -> None:
    """Make a queue of three messages with one transaction in doubt, which nobody owns."""
    with PersistentQueue(path) as queue:
        queue.put_many([b"one", b"two", b"three"])
        prepare(queue, kind, "t")


def decide(queue: PersistentQueue, verdict: str) -> object:
    """Decide the transaction; return what the verb returns."""
    return queue.commit_prepared("t") if verdict == "commit" else queue.abort_prepared("t")


def other(verdict: str) -> str:
    """Return the opposite."""
    return "abort" if verdict == "commit" else "commit"


@contextmanager
def owning(path: Path, mode: str, begin: Callable[[], object] = lambda: None) -> Iterator[Child]:
    """Own one side of the queue in another process, which does ``begin`` before it opens."""
    opened = Signal()

    def own() -> None:
        begin()
        with PersistentQueue(path, mode=mode, lock_timeout=5):
            opened.send()
            time.sleep(60)

    with child(own) as process:
        opened.wait()
        opened.close()
        yield process


def stop(process: Child) -> None:
    """Have a process stand still, until SIGCONT."""
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have those who do not answer waited for shortly."""
    monkeypatch.setattr(requester, "ANSWER_SECONDS_MIN", 0.2)
    monkeypatch.setattr(vote_settling, "OWNER_SECONDS", 0.2)
    monkeypatch.setattr(asking_resolvers, "DECIDE_SECONDS", 0.2)


def forget_the_verbs() -> None:
    """Make this process one of a version that knows nothing of votes of others."""
    group_desk.VOTE_VERBS = ()  # type: ignore[misc]


# -- Who decides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("mode", SIDES)
def test_either_of_two_handles_decides_over_both_sides(path: Path, mode: str, verdict: str, kind: str) -> None:
    """Again with the same verdict: the same answer from either; with the other one: TransactionStateError."""
    left_in_doubt(path, kind)
    commits = VERDICTS[verdict]
    with PersistentQueue(path, mode="produce") as producer, PersistentQueue(path, mode="consume") as consumer:
        handles = {"produce": producer, "consume": consumer}
        first = decide(handles[mode], verdict)
        assert first == ((range(3, 3) if kind == "acks" else range(3, 4)) if commits else None)
        for handle in handles.values():
            assert handle.prepared() == []
            again = decide(handle, verdict)
            assert again == first or (commits and again == range(0))
            with pytest.raises(TransactionStateError, match="committed" if commits else "aborted"):
                decide(handle, other(verdict))
        wait_until(lambda: waiting(consumer) == after(kind, committed=commits))
    with PersistentQueue(path) as queue:
        assert waiting(queue) == after(kind, committed=commits)
    assert verify(path).ok


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("mode", SIDES)
def test_the_other_side_may_be_in_another_process(path: Path, mode: str, verdict: str, kind: str) -> None:
    """Or nobody may have it."""
    left_in_doubt(path, kind)
    there = SIDES[1 - SIDES.index(mode)]
    with owning(path, there), PersistentQueue(path, mode=mode) as queue:
        decide(queue, verdict)
        assert queue.prepared() == []
    with PersistentQueue(path, mode=mode) as alone:
        decide(alone, verdict)
    with PersistentQueue(path) as queue:
        assert waiting(queue) == after(kind, committed=VERDICTS[verdict])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("mode", SIDES)
def test_a_handle_that_is_alone_decides_what_nobody_owns(path: Path, mode: str, verdict: str, kind: str) -> None:
    """A consumer takes the write side for that moment, as a handle does that submits."""
    left_in_doubt(path, kind)
    with PersistentQueue(path, mode=mode) as queue:
        decide(queue, verdict)
        assert queue.prepared() == []
    with PersistentQueue(path) as queue:
        assert waiting(queue) == after(kind, committed=VERDICTS[verdict])


@pytest.mark.parametrize("kind", ["acks", "both"])
@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_handle_that_submits_has_both_owners_do_it(path: Path, verdict: str, kind: str) -> None:
    """Three processes: the owner of the write side is asked, and asks the owner of the group."""
    left_in_doubt(path, kind)
    with (
        owning(path, "produce"),
        owning(path, "consume"),
        PersistentQueue(path, mode="submit") as queue,
    ):
        decide(queue, verdict)
        assert queue.prepared() == []
    with PersistentQueue(path) as queue:
        assert waiting(queue) == after(kind, committed=VERDICTS[verdict])


@pytest.mark.parametrize("kind", ["acks", "both"])
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("mode", SIDES)
def test_what_was_answered_survives_a_power_loss(storage: SimulatedStorage, mode: str, verdict: str, kind: str) -> None:
    """Of both sides, whichever handle was asked."""
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two", b"three"])
        prepare(queue, kind, "t")
    producer, consumer = open_queue(storage, mode="produce"), open_queue(storage, mode="consume")
    decide({"produce": producer, "consume": consumer}[mode], verdict)
    storage = cut_power(storage, producer, consumer)
    with open_queue(storage) as queue:
        assert queue.prepared() == []
        assert waiting(queue) == after(kind, committed=VERDICTS[verdict])


@pytest.mark.parametrize("kind", ["acks", "both"])
def test_of_many_who_decide_at_once_one_verdict_counts(path: Path, kind: str) -> None:
    """Handles of both sides, each in several threads, and nobody waits for ever."""
    left_in_doubt(path, kind)
    threads, counted = Threads(), []
    with PersistentQueue(path, mode="produce") as producer, PersistentQueue(path, mode="consume") as consumer:

        def race(queue: PersistentQueue, verdict: str) -> None:
            try:
                decide(queue, verdict)
                counted.append(verdict)
            except TransactionStateError:
                pass

        for queue in (producer, consumer) * 2:
            for verdict in VERDICTS:
                threads.start(lambda queue=queue, verdict=verdict: race(queue, verdict))  # type: ignore[misc]
        threads.join()
        assert len(set(counted)) == 1
        wait_until(lambda: waiting(consumer) == after(kind, committed=VERDICTS[counted[0]]))


def test_two_owners_who_ask_each_other_at_once_both_get_their_answers(path: Path) -> None:
    """Of the write side and of the group, each for a transaction that the other one has to settle."""
    with PersistentQueue(path) as queue:
        queue.put_many([b"one", b"two", b"three"])
        for number in range(8):
            prepare(queue, "both" if number < 3 else "puts", f"t{number}")
    threads = Threads()
    with PersistentQueue(path, mode="produce") as producer, PersistentQueue(path, mode="consume") as consumer:
        for number in range(8):
            queue = (producer, consumer)[number % 2]
            threads.start(lambda queue=queue, number=number: queue.commit_prepared(f"t{number}"))  # type: ignore[misc]
        threads.join(30)
        assert producer.prepared() == consumer.prepared() == []
        wait_until(lambda: waiting(consumer) == [b"new"] * 8)


# -- Who cannot be asked -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["acks", "both"])
def test_an_owner_of_an_older_version_is_named_and_nothing_is_done(path: Path, kind: str) -> None:
    """Once it is closed, the same handle decides."""
    left_in_doubt(path, kind)
    with PersistentQueue(path, mode="produce") as producer:
        with owning(path, "consume", forget_the_verbs) as owner:
            for verdict in VERDICTS:
                with pytest.raises(QueueLockedError, match="too old") as refused:
                    decide(producer, verdict)
                assert refused.value.pid == owner.pid
            assert prepared_ids(producer) == ["t"]
        assert producer.commit_prepared("t") == (range(3, 3) if kind == "acks" else range(3, 4))
    with PersistentQueue(path) as queue:
        assert waiting(queue) == after(kind, committed=True)


@pytest.mark.parametrize("kind", ["acks", "both"])
def test_an_owner_that_is_stopped_is_named_and_nothing_is_done(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Neither then nor when it continues; asked again then, it does it."""
    impatient(monkeypatch)
    left_in_doubt(path, kind)
    with owning(path, "consume") as owner, PersistentQueue(path, mode="produce") as producer:
        stop(owner)
        for verdict in VERDICTS:
            with pytest.raises(QueueLockedError, match="does not answer") as refused:
                decide(producer, verdict)
            assert refused.value.pid == owner.pid
        assert prepared_ids(producer) == ["t"]
        os.kill(owner.pid, signal.SIGCONT)
        monkeypatch.undo()
        producer.abort_prepared("t")
        assert producer.prepared() == []
    with PersistentQueue(path) as queue:
        assert waiting(queue) == after(kind, committed=False)


def test_a_stopped_owner_of_the_write_side_costs_a_consumer_the_timeout(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was done; once it continues, the consumer decides."""
    impatient(monkeypatch)
    left_in_doubt(path, "both")
    with owning(path, "produce") as owner, PersistentQueue(path, mode="consume") as consumer:
        stop(owner)
        for verdict in VERDICTS:
            with pytest.raises(RetryableError, match="does not answer"):
                decide(consumer, verdict)
        os.kill(owner.pid, signal.SIGCONT)
        monkeypatch.undo()
        assert prepared_ids(consumer) == ["t"]
        assert consumer.commit_prepared("t") == range(3, 4)
        wait_until(lambda: waiting(consumer) == after("both", committed=True))


@pytest.mark.parametrize("mode", SIDES)
def test_closing_ends_who_waits_for_an_owner(path: Path, mode: str) -> None:
    """With ClosedError, and nothing was done."""
    left_in_doubt(path, "both")
    with owning(path, SIDES[1 - SIDES.index(mode)]) as owner:
        stop(owner)
        queue, threads = PersistentQueue(path, mode=mode), Threads()

        def wait() -> None:
            with pytest.raises(ClosedError):
                queue.commit_prepared("t")

        threads.start(wait)
        wait_until(lambda: any(name.endswith((".verb", ".ask.default")) for name in requests_of(path)))
        queue.close()
        threads.join()
        os.kill(owner.pid, signal.SIGCONT)
    with PersistentQueue(path) as queue:
        assert prepared_ids(queue) == ["t"]


def requests_of(path: Path) -> list[str]:
    """Return what stands in ``requests/``."""
    return os.listdir(path / "requests") if (path / "requests").exists() else []


# -- Who dies, or fails, behind the decision ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["acks", "both"])
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("does_it", [True, False], ids=["behind it", "before it"])
def test_an_owner_killed_while_it_settles_leaves_it_to_who_asked(
    path: Path, does_it: bool, verdict: str, kind: str
) -> None:
    """Who asked finds the group free, and does it, perhaps again."""
    settle = OwnVotes.settle_vote

    def die(self: OwnVotes, *arguments: Any, **options: Any) -> None:
        if does_it:
            settle(self, *arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    def begin() -> None:
        OwnVotes.settle_vote = die  # type: ignore[method-assign]

    left_in_doubt(path, kind)
    with owning(path, "consume", begin) as owner, PersistentQueue(path, mode="produce") as producer:
        decide(producer, verdict)
        assert owner.wait() == -signal.SIGKILL
        assert producer.prepared() == []
    with PersistentQueue(path) as queue:
        assert waiting(queue) == after(kind, committed=VERDICTS[verdict])


def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process refuse to settle votes for others."""

    def refuse(*_: Any, **__: Any) -> None:
        raise CommitUnknownError("nobody knows", path="/orders")

    monkeypatch.setattr(OwnVotes, "settle_vote", refuse)


@pytest.mark.parametrize("asked", [*SIDES, "prepared"])
@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_decision_stands_though_the_group_does_not_follow(
    path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, asked: str
) -> None:
    """Its messages stay held; whoever decides again with the same verdict, or looks, has the rest done."""
    left_in_doubt(path, "both")
    commits = VERDICTS[verdict]
    with PersistentQueue(path, mode="produce") as producer, PersistentQueue(path, mode="consume") as consumer:
        refusing(monkeypatch)
        assert decide(producer, verdict) == (range(3, 4) if commits else None)
        wait_until(lambda: waiting(consumer) == [b"two", b"three"] + [b"new"] * commits)
        with pytest.raises(TransactionStateError):
            decide(producer, other(verdict))
        monkeypatch.undo()
        if asked == "prepared":
            assert consumer.prepared() == []
        else:
            assert decide({"produce": producer, "consume": consumer}[asked], verdict) == (
                range(3, 4) if commits else None
            )
        wait_until(lambda: waiting(consumer) == after("both", committed=commits))
    with PersistentQueue(path) as queue:
        assert waiting(queue) == after("both", committed=commits)


@pytest.mark.parametrize("reopened", SIDES)
@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_side_that_is_opened_anew_has_the_rest_done(
    path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, reopened: str
) -> None:
    """A consumer asks the owner of the log, which is another process; a producer asks the owner of the group."""
    left_in_doubt(path, "both")
    with ExitStack() as stack:
        consumer = stack.enter_context(PersistentQueue(path, mode="consume"))
        with owning(path, "produce"):
            refusing(monkeypatch)
            decide(consumer, verdict)
            monkeypatch.undo()
            assert b"one" not in waiting(consumer)
            if reopened == "consume":
                consumer.close()
                consumer = stack.enter_context(PersistentQueue(path, mode="consume"))
                wait_until(lambda: waiting(consumer) == after("both", committed=VERDICTS[verdict]))
        if reopened == "produce":
            stack.enter_context(PersistentQueue(path, mode="produce"))
            wait_until(lambda: waiting(consumer) == after("both", committed=VERDICTS[verdict]))


def test_an_owner_without_room_leaves_what_only_acknowledges_in_doubt(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error comes back as it is: it decides, and has not."""

    def refuse(*_: Any, **__: Any) -> None:
        raise DiskFullError("no room", path="/orders")

    left_in_doubt(path, "acks")
    with PersistentQueue(path, mode="produce") as producer, PersistentQueue(path, mode="consume") as consumer:
        monkeypatch.setattr(OwnVotes, "settle_vote", refuse)
        for verdict in VERDICTS:
            with pytest.raises(DiskFullError):
                decide(producer, verdict)
        assert prepared_ids(producer) == prepared_ids(consumer) == ["t"]
        monkeypatch.undo()
        producer.abort_prepared("t")
        assert waiting(consumer) == after("acks", committed=False)


def test_an_owner_that_holds_nothing_of_it_keeps_the_puts_out_of_the_log(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has settled the vote behind our back: half of it would be there."""
    left_in_doubt(path, "both")
    with PersistentQueue(path, mode="produce") as producer, PersistentQueue(path, mode="consume"):
        monkeypatch.setattr(OwnVotes, "has_vote", lambda *_: False)
        for verdict in VERDICTS:
            with pytest.raises(QueueLockedError, match="just now"):
                decide(producer, verdict)
        assert prepared_ids(producer) == ["t"]


def test_a_vote_that_is_gone_and_not_remembered_is_not_decided_again(path: Path) -> None:
    """As a reservation that its own handle has committed; a log that has decided it is followed all the same."""
    left_in_doubt(path, "acks")
    with PersistentQueue(path, mode="consume") as consumer:
        votes = consumer._engine.resolver.own_votes
        with pytest.raises(TransactionNotFoundError, match="holds nothing"):
            votes.settle_vote("t", NONCE, is_committed=True, is_decided=False)
        with consumer._engine.resolver.deciding_alone("t"):  # by one who waits for this
            votes.settle_vote("t", NONCE, is_committed=True, is_decided=True)
        assert prepared_ids(consumer) == ["t"]


def test_a_closed_handle_asks_nobody(path: Path) -> None:
    """Neither the owner of the log nor that of another group."""
    left_in_doubt(path, "both")
    with PersistentQueue(path, mode="consume") as consumer:
        pass
    with pytest.raises(ClosedError):
        consumer._engine.group_askers.do("default", {"verb": "has_vote", "nonce": NONCE.hex()}, 1)
    with pytest.raises(ClosedError):
        consumer._engine.resolver._asking()  # type: ignore[attr-defined]


def between_vote_and_puts() -> SimulatedStorage:
    """Return what a kill leaves in the middle of ``prepare``: a vote whose puts are nowhere."""
    storage = SimulatedStorage()
    left: list[SimulatedStorage] = []
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two", b"three"])

        def watch(verb: str, path: Path) -> None:
            if not left and verb == "sync" and path.parent == ORDERS / "prepared" and path.suffix == ".staging":
                left.append(storage.crash_keeping_all())

        storage.before_verb = watch
        prepare(queue, "both", "t")
        storage.before_verb = None
    with open_queue(left[0], mode="read_only") as look:
        assert prepared_ids(look) == ["t"]
    return left[0]


def test_while_the_log_has_yet_to_say_nobody_settles_the_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of the log is asked, by a consumer that is in another process: it is at it just now."""
    for module in (verdicts, asking_resolvers):
        monkeypatch.setattr(module, "find_coordinator", lambda _: None)
    storage = between_vote_and_puts()
    coordinator_of = Coordinator.__init__

    def begin(self: Coordinator, queue_id: bytes, decisions: PendingCommitRecords) -> None:
        coordinator_of(self, queue_id, decisions)
        monkeypatch.setattr(self, "_deciding", Everything())

    with monkeypatch.context() as patched:
        patched.setattr(Coordinator, "__init__", begin)
        producer = open_queue(storage, mode="produce")
    with producer, open_queue(storage, mode="consume") as consumer:
        assert prepared_ids(consumer) == prepared_ids(producer) == ["t"]
        for verdict in VERDICTS:
            for queue in (producer, consumer):
                with pytest.raises(TransactionStateError, match="just now"):
                    decide(queue, verdict)
        assert waiting(consumer) == [b"two", b"three"]
        monkeypatch.setattr(handle_of(producer).coordinator, "_deciding", set())
        assert consumer.prepared() == []
        assert waiting(consumer) == [b"one", b"two", b"three"]


class Everything(set[bytes]):
    """Each transaction is being decided."""

    def __contains__(self, _: object) -> bool:
        return True


@pytest.mark.parametrize("mode", SIDES)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("is_seen", [True, False], ids=["at opening", "when it is decided"])
def test_a_vote_whose_puts_were_never_prepared_is_let_go(
    monkeypatch: pytest.MonkeyPatch, is_seen: bool, mode: str, verdict: str
) -> None:
    """Its process died in ``prepare``: nobody was told of it, and committing half of it would lose a message."""
    crashed = between_vote_and_puts()
    if not is_seen:  # the other side could not be asked just then
        monkeypatch.setattr(PreparedResolver, "resolve", lambda _: True)
    with open_queue(crashed, mode="produce") as producer, open_queue(crashed, mode="consume") as consumer:
        handle = {"produce": producer, "consume": consumer}[mode]
        assert prepared_ids(handle) == ([] if is_seen else ["t"])
        monkeypatch.undo()
        with pytest.raises(TransactionNotFoundError):
            decide(handle, verdict)
        assert handle.prepared() == []
        assert waiting(consumer) == [b"one", b"two", b"three"]


# -- The verbs ---------------------------------------------------------------------------------------------------------


class Votes:
    """The votes of a group, which says what was asked of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def has_vote(self, nonce: bytes) -> bool:
        self.calls.append((nonce,))
        return True

    def settle_vote(self, transaction_id: str, nonce: bytes, *, is_committed: bool, is_decided: bool) -> None:
        self.calls.append((transaction_id, nonce, is_committed, is_decided))


def test_each_verb_on_votes_is_done_with_its_fields() -> None:
    """One returns whether messages are held, the other nothing."""
    votes, settle = Votes(), {"verb": "settle_vote", "id": "t", "nonce": NONCE.hex(), "is_committed": True}
    assert perform_on_votes(votes, {"verb": "has_vote", "nonce": NONCE.hex()}) == {"is_held": True}
    assert perform_on_votes(votes, {**settle, "is_decided": False}) == {}
    assert votes.calls == [(NONCE,), ("t", NONCE, True, False)]


@pytest.mark.parametrize(
    "fields",
    [
        {"verb": "has_vote"},
        {"verb": "has_vote", "nonce": 1},
        {"verb": "has_vote", "nonce": "ab"},
        {"verb": "has_vote", "nonce": "x" * 32},
        {"verb": "has_vote", "nonce": NONCE.hex(), "id": "t"},
        {"verb": "settle_vote", "id": "t", "nonce": NONCE.hex(), "is_committed": True},
        {"verb": "settle_vote", "id": "t", "nonce": NONCE.hex(), "is_committed": 1, "is_decided": True},
        {"verb": "settle_vote", "id": 1, "nonce": NONCE.hex(), "is_committed": True, "is_decided": True},
        {"verb": "settle_vote", "id": "t", "nonce": "", "is_committed": True, "is_decided": True},
    ],
    ids=str,
)
def test_other_fields_are_refused_and_nothing_is_settled(fields: dict[str, Any]) -> None:
    """It may come from another version, or from anybody who can write a file."""
    votes = Votes()
    with pytest.raises(UsageError):
        perform_on_votes(votes, fields)
    assert votes.calls == []

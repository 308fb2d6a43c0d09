"""Deciding prepared transactions: what a client asks for, what is refused, and what a failure leaves to be done."""

import pytest

from holdfast import CommitUnknownError, PersistentQueue, PoisonedError, TransactionNotFoundError, TransactionStateError
from holdfast.queue.engine.coordinators import Outcome
from holdfast.queue.prepared.outcome_memory import OutcomeMemory
from holdfast.queue.prepared.own_votes import OwnVotes
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from support.builders.clocks import FakeClock
from support.builders.transactions import cut_power, kill, open_queue, prepare, prepared_ids, waiting
from support.owners.machine_link import machine_links
from support.processes.log_handlers import text_said
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.half_commits import ASIDE, NEITHER, voted


def test_a_part_of_a_joint_commit_is_refused_and_can_be_committed_by_force(storage: SimulatedStorage) -> None:
    """Its joint commit decides; by force it is decided alone, by a client of another group too."""
    with machine_links(), open_queue(storage, mode="shared") as queue:
        queue.groups.create("other")
        part = queue.begin()
        part.put(b"part")
        part.prepare("a", part_of=("app", 1))
        with open_queue(storage, mode="shared", group="other") as other:
            for decide in (other.commit_prepared, other.abort_prepared):
                with pytest.raises(TransactionStateError):
                    decide("a")
            assert prepared_ids(other) == ["a"]
            assert other.commit_prepared("a", force=True) == range(1)
            assert other.get(timeout=5) == b"part"
        assert queue.get(timeout=5) == b"part"


def votes_of(queue: PersistentQueue) -> OwnVotes:
    """Return what others may ask of a handle's group."""
    return queue._engine.resolver.own_votes


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_a_vote_that_was_decided_is_not_decided_the_other_way(storage: SimulatedStorage, commits: bool) -> None:
    """By a client either; one that asks for the same again is told nothing."""
    with open_queue(storage, clock=FakeClock()) as queue:
        queue.put_many([b"one", b"two"])
        tx = prepare(queue, "acks", "t")
        decide = queue.commit_prepared if commits else queue.abort_prepared
        decide("t")
        votes_of(queue).settle("t", tx._nonce, is_committed=commits)
        with pytest.raises(TransactionStateError, match="committed" if commits else "aborted"):
            votes_of(queue).settle("t", tx._nonce, is_committed=not commits)
        assert waiting(queue) == ([b"two"] if commits else [b"one", b"two"])


def test_a_vote_that_is_gone_and_not_remembered_is_not_decided(storage: SimulatedStorage) -> None:
    """As a reservation that its own holder has committed."""
    with open_queue(storage, mode="exclusive") as queue:
        queue.put(b"one")
        held = queue.reservations.take()
        assert held is not None
        queue.reservations.commit(held)
        for commits in (True, False):
            with pytest.raises(TransactionNotFoundError, match="holds nothing"):
                votes_of(queue).settle(held.id, held.nonce, is_committed=commits)
        assert waiting(queue) == []


def test_a_log_that_has_decided_says_so_to_whoever_holds_the_votes(storage: SimulatedStorage) -> None:
    """And of what it has not, that it was aborted."""
    with open_queue(storage, clock=FakeClock()) as queue:
        queue.put(b"one")
        tx = prepare(queue, "both", "t")
        assert queue._engine.resolver.outcome("t", tx._nonce) is Outcome.IN_DOUBT
        queue.commit_prepared("t")
        assert queue._engine.resolver.outcome("t", tx._nonce) is Outcome.COMMITTED
        assert queue._engine.resolver.outcome("other", bytes(16)) is Outcome.ABORTED


def test_a_commit_whose_memory_cannot_be_written_stands_and_the_next_opening_does_the_rest(
    storage: SimulatedStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """The decision is in the log; it is remembered once the queue is opened again."""
    queue = open_queue(storage, clock=FakeClock())
    queue.put_many([b"one", b"two"])
    prepare(queue, "both", "t")
    with refusing(storage, "write_at", "prepared/decided"):
        assert queue.commit_prepared("t") == range(2, 3)
    assert "the next opening" in text_said(caplog)
    assert waiting(queue) == [b"two", b"new"]
    for end in (kill, cut_power):
        storage = end(storage, queue)
        queue = open_queue(storage, clock=FakeClock())
        assert (queue.prepared(), waiting(queue)) == ([], [b"two", b"new"])
        assert queue.commit_prepared("t") == range(2, 3)
    queue.close()


def test_what_cannot_be_let_go_of_stays_in_doubt_until_it_can(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue that should decide never did; the disk of this one refuses just then."""
    storage = voted()
    with monkeypatch.context() as patched:
        patched.setattr(PreparedResolver, "resolve", lambda _: True)
        aside = open_queue(storage, ASIDE)
    with aside:
        with refusing(storage, "remove", ".batch"):
            assert len(aside.prepared()) == 1
        assert "stays in doubt" in text_said(caplog)
        assert aside.prepared() == []
        assert waiting(aside) == NEITHER[1]


def test_a_joint_abort_refuses_once_the_removal_of_a_part_may_be_lost(storage: SimulatedStorage) -> None:
    """The part is gone, and nobody knows whether it is there again after a loss of power."""
    with open_queue(storage, clock=FakeClock()) as queue:
        part = queue.begin()
        part.put(b"part")
        part.prepare("a", part_of=("app", 1))
        with (
            refusing(storage, "sync_directory", "prepared", count=1),
            pytest.raises(CommitUnknownError, match="aborting jointly"),
        ):
            queue.joint_commits.abort("app", 1)
        with pytest.raises(PoisonedError):
            queue.joint_commits.abort("app", 1)


@pytest.mark.parametrize(("kind", "sizes"), [("entry", [3]), ("file", [20_000]), ("copied file", [3])])
def test_a_commit_that_was_interrupted_is_told_to_who_asks_again(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, kind: str, sizes: list[int]
) -> None:
    """What waited is gone and the outcome is not noted yet. An earlier transaction of the same id does not answer."""

    def prepare_one() -> None:
        tx = queue.begin()
        if kind == "copied file":
            tx.put_stream([bytes(sizes[0])])
        else:
            tx.put_many([bytes(size) for size in sizes])
        tx.prepare("daily")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with open_queue(storage) as queue:
        prepare_one()
        assert queue.commit_prepared("daily") == range(1)
        prepare_one()
        with monkeypatch.context() as interrupted:
            interrupted.setattr(OutcomeMemory, "note_batch", interrupt)
            with pytest.raises(KeyboardInterrupt):
                queue.commit_prepared("daily")
        assert prepared_ids(queue) == []
        assert queue.commit_prepared("daily") == range(1, 2)
        with pytest.raises(TransactionStateError, match="was committed"):
            queue.abort_prepared("daily")
        left = kill(storage, queue)
    with open_queue(left) as again:
        assert again.commit_prepared("daily") == range(1, 2)
        assert len(waiting(again)) == 2

"""The ids of prepared transactions: chosen or made, used again, and remembered for a while."""

from collections.abc import Iterator

import pytest

from holdfast import (
    ConfigError,
    PersistentQueue,
    QueueLockedError,
    TransactionNotFoundError,
    TransactionStateError,
)
from holdfast.persistence.format.constants import OUTCOMES_MAX
from holdfast.queue.options.queue_options import Mode
from holdfast.queue.prepared import prepared_transactions
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.prepared.prepared_transactions import Found
from holdfast.queue.prepared.vote_settling import VoteSettling
from holdfast.queue.transactions import transaction
from holdfast.queue.transactions.transaction_state import State
from support.builders.transactions import KINDS, open_queue, prepare, prepared_ids
from support.owners.machine_link import machine_links
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture
def queue(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """Open a queue of three messages."""
    with open_queue(storage) as opened:
        opened.put_many([b"one", b"two", b"three"])
        yield opened


@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_an_id_in_doubt_is_refused_and_may_be_used_again_once_decided(
    queue: PersistentQueue, first: str, second: str
) -> None:
    """The refused transaction stays open, and takes another id; the latest of an id answers."""
    prepare(queue, first, "t")
    tx = queue.begin()
    if second != "puts":
        tx.ack(tx.receive(timeout=0))
    if second != "acks":
        tx.put(b"second")
    with pytest.raises(TransactionStateError, match="before its id is used again"):
        tx.prepare("t")
    assert tx.state is State.OPEN
    queue.commit_prepared("t")
    tx.prepare("t")
    assert prepared_ids(queue) == ["t"]
    queue.abort_prepared("t")
    queue.abort_prepared("t")
    with pytest.raises(TransactionStateError, match="was aborted"):
        queue.commit_prepared("t")
    assert prepare(queue, "puts").commit() == queue.commit_prepared("puts")


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_an_id_in_doubt_in_another_group_is_refused(storage: SimulatedStorage, mode: Mode) -> None:
    """It is decided by its id alone, so one id names one transaction of the queue."""
    with open_queue(storage) as queue:
        queue.put(b"one")
        queue.groups.create("other")
        prepare(queue, "acks", "t")
    with machine_links(), open_queue(storage, mode=mode, group="other") as queue:
        with queue.begin() as tx:
            tx.put(b"two")
            with pytest.raises(TransactionStateError, match="before its id is used again"):
                tx.prepare("t")
        prepare(queue, "puts", "u")
        assert prepared_ids(queue) == ["t", "u"]
    with open_queue(storage) as queue:
        queue.commit_prepared("t")
        assert prepared_ids(queue) == ["u"]
        prepare(queue, "acks", "t")


def test_an_id_that_the_log_has_decided_is_free_although_another_group_has_yet_to_note_it(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vote follows its own transaction, whatever is prepared under its id meanwhile."""
    with open_queue(storage) as queue:
        queue.put(b"one")
        queue.groups.create("other")
        prepare(queue, "both", "t")
    with monkeypatch.context() as patch, open_queue(storage, mode="exclusive", group="other") as queue:
        patch.setattr(VoteSettling, "follow", _group_is_locked)
        queue.commit_prepared("t")
        prepare(queue, "puts", "t")
        assert prepared_ids(queue) == ["t", "t"], "one waits for its outcome, the other for its group"
    with open_queue(storage) as queue:
        assert prepared_ids(queue) == ["t"]
        assert queue.get_many(9) == [b"new"], "the first one was committed"
        queue.abort_prepared("t")
        assert queue.qsize() == 0


def _group_is_locked(*_: object, **__: object) -> None:
    raise QueueLockedError("another process owns the group, and does not answer")


def test_ids_are_made_where_none_is_chosen(queue: PersistentQueue) -> None:
    """32 hexadecimal digits, of which no two are alike."""
    ids = []
    for _ in range(3):
        tx = queue.begin()
        tx.put(b"x")
        ids.append(tx.prepare())
        assert tx.id == ids[-1]
    assert prepared_ids(queue) == ids
    assert all(len(name) == 32 and int(name, 16) for name in ids)
    assert len(set(ids)) == 3


@pytest.mark.parametrize("kind", ["puts", "acks"])
def test_the_memory_of_decided_ids_is_bounded(storage: SimulatedStorage, kind: str) -> None:
    """The oldest is forgotten first; a restart forgets nothing more."""
    assert OUTCOMES_MAX == 1024
    with open_queue(storage, max_deliveries=None) as queue:
        queue.put(b"one")
        for number in range(OUTCOMES_MAX + 2):
            tx = prepare(queue, kind, f"t{number}")
            tx.abort()
    with open_queue(storage) as queue:
        for number in (0, 1):
            with pytest.raises(TransactionNotFoundError):
                queue.abort_prepared(f"t{number}")
        for number in (2, 3, 500, OUTCOMES_MAX + 1):
            queue.abort_prepared(f"t{number}")
            with pytest.raises(TransactionStateError):
                queue.commit_prepared(f"t{number}")


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_no_transaction_gets_the_id_of_a_reservation(storage: SimulatedStorage, mode: Mode) -> None:
    """Decided by its id, the reservation of another group would be: its messages would be finished, and never read."""
    with machine_links():
        with open_queue(storage, mode=mode) as queue:
            queue.put_many([b"one", b"two", b"three"])
            queue.receive(timeout=0).ack()  # the group has begun
            queue.groups.create("other")
            taken = f"{queue.reservations.id_prefix('reserved')}1"
        with open_queue(storage, mode=mode, group="other") as other:
            tx = other.begin()
            tx.ack(tx.receive(timeout=0))
            with pytest.raises(ConfigError, match="is the id of a reservation: choose another one"):
                tx.prepare(taken)
            assert tx.state is State.OPEN
            assert tx.prepare(f"{taken}-a") == f"{taken}-a"
        with open_queue(storage, mode=mode) as queue:
            reservation = queue.reservations.take()
            assert reservation is not None
            assert reservation.id == taken
            queue.commit_prepared(f"{taken}-a")
            queue.reservations.abort(reservation)
            assert [message.payload for message in queue.peek(9)] == [b"two", b"three"]


def test_an_owner_refuses_the_id_of_a_reservation_too(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a client that does not."""
    monkeypatch.setattr(transaction, "check_transaction_id", lambda chosen, _: chosen)
    with machine_links(), open_queue(storage, mode="shared") as queue:
        queue.put_many([b"one", b"two"])
        queue.receive(timeout=0).ack()  # the group has begun
        taken = f"{queue.reservations.id_prefix('reserved')}1"
        with pytest.raises(ConfigError, match="is the id of a reservation"):
            prepare(queue, "acks", taken)
        assert queue.prepared() == []


def test_a_reservation_reads_the_progress_of_no_other_group(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id names its group; so it takes as long beside any number of groups with any past."""
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two"])
        queue.groups.create("other")
        queue.receive(timeout=0).ack()  # the group has begun
        monkeypatch.setattr(prepared_transactions, "progress_reader", lambda *group: pytest.fail("it was read"))
        assert queue.reservations.take() is not None


@pytest.mark.parametrize("later", [1, 20])
@pytest.mark.parametrize("earlier", [1, 20])
def test_a_transaction_that_has_the_id_of_one_decided_just_now_stays(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch, earlier: int, later: int
) -> None:
    """Who has listed the earlier one, and then finds it committed, does not remove the later one, in log or file."""
    prepare(queue, "puts", count=earlier)
    find = PreparedResolver._find_all

    def overtaken(resolver: PreparedResolver) -> list[Found]:
        monkeypatch.setattr(PreparedResolver, "_find_all", find)
        found = find(resolver)
        queue.commit_prepared("puts")
        prepare(queue, "puts", count=later)
        return found

    monkeypatch.setattr(PreparedResolver, "_find_all", overtaken)
    assert prepared_ids(queue) == ["puts"]
    queue.commit_prepared("puts")
    assert queue.depth() == 3 + earlier + later

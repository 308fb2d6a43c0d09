"""Up to which offset a consumer has to look ahead for prioritized messages: whoever put them, and however."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import PersistentQueue, StorageError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.options.put_options import Put
from support.builders.handles import handle_of
from support.builders.transactions import FILE_BYTES, ORDERS, cut_power, kill, open_queue
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

Putting = Callable[[PersistentQueue], int]
"""Puts messages, some of them with a priority; returns the offset behind the last one."""

FILE = ORDERS / "priorities"
URGENT = Put(b"urgent", priority=9)
LARGE = [*[bytes(1000)] * 40, Put(bytes(1000), priority=1)]  # more than a quarter of a data file: adopted


def prioritized_end(queue: PersistentQueue) -> int:
    """Return it as a consumer of this handle reads it: behind the end."""
    source = handle_of(queue).require_write_side()
    end = source.end()[2]
    assert source.prioritized_end() <= end
    return source.prioritized_end()


def has_file(storage: SimulatedStorage) -> bool:
    """Tell whether it would be there after a loss of power."""
    return FILE in storage.crash_dropping_unsynced().tree()


# -- Ways to put -------------------------------------------------------------------------------------------------------


def by_put(queue: PersistentQueue) -> int:
    """One message."""
    return queue.put(b"urgent", priority=1) + 1


def by_put_with_headers(queue: PersistentQueue) -> int:
    """One message that asks for more."""
    dedup_id = str(queue.stats().next_offset)  # no two are alike
    return queue.put(b"urgent", headers={"a": "b"}, delay=1, priority=9, ttl=60, dedup_id=dedup_id) + 1


def by_batch(queue: PersistentQueue) -> int:
    """A batch in which one message has a priority."""
    return queue.put_many([b"plain", URGENT, Put(b"later", delay=5)]).stop


def by_transaction(queue: PersistentQueue) -> int:
    """A transaction that only puts."""
    with queue.transaction() as tx:
        tx.put(b"plain", headers={"a": "b"})
        tx.put(URGENT)
    return tx.commit().stop


def by_transaction_that_acknowledges(queue: PersistentQueue) -> int:
    """One that ends with a decision."""
    with queue.transaction() as tx:
        tx.ack(tx.receive(timeout=0))
        tx.put_many([b"plain", URGENT])
    return tx.commit().stop


def by_large_transaction(queue: PersistentQueue) -> int:
    """One that outgrows memory, and whose file is adopted."""
    with queue.transaction() as tx:
        tx.put_many(LARGE)
    return tx.commit().stop


def by_prepared(queue: PersistentQueue) -> int:
    """One that is prepared, and copied."""
    tx = queue.begin()
    tx.put_many([b"plain", URGENT])
    tx.prepare("small")
    return tx.commit().stop


def by_large_prepared(queue: PersistentQueue) -> int:
    """One that is prepared, and adopted."""
    tx = queue.begin()
    tx.put_many(LARGE)
    tx.prepare("large")
    return tx.commit().stop


WAYS = (
    by_put,
    by_put_with_headers,
    by_batch,
    by_transaction,
    by_transaction_that_acknowledges,
    by_large_transaction,
    by_prepared,
    by_large_prepared,
)
ONLY_PUTTING = tuple(way for way in WAYS if way is not by_transaction_that_acknowledges)


def named(ways: tuple[Putting, ...]) -> pytest.MarkDecorator:
    """Run a test once for each of these ways."""
    return pytest.mark.parametrize("way", ways, ids=lambda way: way.__name__)


# -- Without priorities ------------------------------------------------------------------------------------------------


def test_a_queue_that_never_had_priorities_says_so_and_pays_one_look_at_opening(storage: SimulatedStorage) -> None:
    """Whatever else its messages ask for; a file that is adopted is one look more."""
    looks = []
    storage.before_verb = lambda verb, path: looks.append(verb) if path.name.startswith("priorities") else None
    for _ in range(2):
        with open_queue(storage) as queue:
            queue.put(b"plain")
            queue.put(b"later", delay=1, ttl=5, dedup_id="a", headers={"a": "b"})
            queue.put_many([b"plain", Put(b"in order", order_key="k")])
            with queue.transaction() as tx:
                tx.put(Put(b"later", delay=1))
            assert prioritized_end(queue) == 0
    assert looks == ["open"] * 2
    assert not has_file(storage)
    with open_queue(storage) as queue, queue.transaction() as tx:
        tx.put_many([bytes(1000)] * 40)
    assert looks == ["open"] * 4
    with open_queue(storage) as queue:
        assert prioritized_end(queue) == 0


# -- With priorities ---------------------------------------------------------------------------------------------------


@named(WAYS)
def test_every_way_to_put_leads_to_the_end_of_its_batch(storage: SimulatedStorage, way: Putting) -> None:
    """Plain messages behind it do not move it."""
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two"])
        end = way(queue)
        assert prioritized_end(queue) == end == queue.stats().next_offset
        assert has_file(storage)
        queue.put(b"plain", headers={"a": "b"})
        assert prioritized_end(queue) == end
        assert way(queue) == prioritized_end(queue) > end


@named(WAYS)
def test_it_is_known_before_the_message_can_be_seen(storage: SimulatedStorage, way: Putting) -> None:
    """A consumer that reads the end first, and this behind it, misses none."""
    looks = []

    def look(verb: str, path: Path) -> None:
        if verb not in ("write_at", "rename", "sync"):
            return
        side = handle_of(queue).require_write_side()
        if side.next_offset > 2 or (verb, path.parent) == ("write_at", ORDERS / "data"):
            looks.append(verb)
            assert side.prioritized_end() >= max(3, side.next_offset)

    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two"])
        storage.before_verb = look
        way(queue)
        storage.before_verb = None
    assert "write_at" in looks


@named(WAYS)
@pytest.mark.parametrize("leave", [None, kill, cut_power], ids=["closed", "killed", "power cut"])
def test_the_next_opening_looks_ahead_up_to_the_end_of_the_log(
    storage: SimulatedStorage,
    way: Putting,
    leave: Callable[[SimulatedStorage, PersistentQueue], SimulatedStorage] | None,
) -> None:
    """It recovers the log."""
    queue = open_queue(storage)
    queue.put_many([b"one", b"two"])
    way(queue)
    end = queue.put(b"plain") + 1
    if leave is None:
        queue.close()
    else:
        storage = leave(storage, queue)
    with open_queue(storage) as reopened:
        assert prioritized_end(reopened) == reopened.stats().next_offset == end
        reopened.put(b"plain")
        assert prioritized_end(reopened) == end
        assert by_put(reopened) == prioritized_end(reopened) == end + 2


@pytest.mark.parametrize("puts", [[b"plain", URGENT], LARGE], ids=["small", "large"])
def test_what_was_prepared_before_a_restart_counts_once_it_is_committed(
    storage: SimulatedStorage, puts: list[bytes | Put]
) -> None:
    """It is in the log then, and not before."""
    queue = open_queue(storage)
    tx = queue.begin()
    tx.put_many(puts)
    tx.prepare("late")
    assert prioritized_end(queue) == 0
    assert has_file(storage)
    storage = cut_power(storage, queue)
    with open_queue(storage) as queue:
        assert prioritized_end(queue) == 0
        queue.put_many([b"one", b"two"])
        assert prioritized_end(queue) == 0
        assert queue.commit_prepared("late").stop == prioritized_end(queue) == 2 + len(puts)


def test_what_cannot_be_noted_is_not_put(storage: SimulatedStorage) -> None:
    """The queue continues, and so does the next one that has a priority."""
    with open_queue(storage) as queue:
        for put in (by_put, by_batch, by_prepared):
            storage.faults = FaultPlan(1, verbs=frozenset({"sync_directory"}))
            if put is by_prepared:  # whose staging directory is synced first
                storage.make_directory(ORDERS / "prepared")
                storage.faults = FaultPlan(2, verbs=frozenset({"sync_directory"}))
            with pytest.raises(StorageError):
                put(queue)
            assert storage.faults.fired_count == 1
            assert (queue.stats().next_offset, prioritized_end(queue)) == (0, 0)
        storage.faults = None
        assert queue.prepared() == []
        assert queue.put(b"plain") == 0
        assert by_put(queue) == prioritized_end(queue) == 2
        assert has_file(storage)


def test_a_put_that_fails_may_leave_it_too_high_and_never_too_low(storage: SimulatedStorage) -> None:
    """It says where prioritized messages may stand, not that there are any."""
    with open_queue(storage) as queue:
        by_put(queue)
        storage.faults = FaultPlan(1, verbs=frozenset({"write_at"}))
        with pytest.raises(StorageError):
            queue.put_many([b"plain", URGENT])
        assert handle_of(queue).write_side is not None
        assert handle_of(queue).write_side.prioritized_end() == 3
        assert by_put(queue) == 2
        assert handle_of(queue).write_side.prioritized_end() == 3


# -- From other processes ----------------------------------------------------------------------------------------------


@named(ONLY_PUTTING)
def test_messages_of_a_client_count_like_the_owners(tmp_path: Path, way: Putting) -> None:
    """In a request; and staged in a batch file, which the owner adopts and does not read."""
    path = tmp_path / "orders"
    with (
        PersistentQueue(path, mode="shared", data_file_bytes=FILE_BYTES) as owner,
        PersistentQueue(path, mode="shared", can_own=False) as client,
    ):
        assert (owner.is_owner, client.is_owner) == (True, False)
        client.put_many([b"one", b"two"])
        assert not (path / "priorities").exists()
        end = way(client)
        assert (path / "priorities").exists()
        owner.put(b"plain")
        owner.put(b"plain too")
    with PersistentQueue(path, mode="exclusive") as reopened:
        assert prioritized_end(reopened) == end + 2


@named(ONLY_PUTTING)
def test_what_a_client_puts_while_nobody_owns_the_queue_is_found_by_the_next_owner(
    tmp_path: Path, way: Putting
) -> None:
    """The client owns it for the length of each call."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="shared", can_own=False, data_file_bytes=FILE_BYTES) as client:
        client.put(b"one")
        end = way(client)
    with PersistentQueue(path, mode="exclusive") as reopened:
        assert prioritized_end(reopened) == end


def test_before_anybody_has_written_there_is_nothing_to_look_for(storage: SimulatedStorage) -> None:
    """Not even where the file is there: its process died before it put."""
    queue = open_queue(storage)
    handle_of(queue).priorities.note()
    storage = kill(storage, queue)
    with open_queue(storage) as reopened:
        assert prioritized_end(reopened) == 0


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    """Opening says what is wrong, and nothing is made where the link points."""
    PersistentQueue(tmp_path / "orders", mode="exclusive").close()
    (tmp_path / "orders" / "priorities").symlink_to(tmp_path / "target")
    with pytest.raises(StorageError):
        PersistentQueue(tmp_path / "orders", mode="exclusive", storage=OsStorage())
    assert not (tmp_path / "target").exists()

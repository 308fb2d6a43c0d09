"""A queue is deleted as a whole: a kill at any instant leaves all of it, or nothing behind the next start."""

from __future__ import annotations

import logging
import os
import random
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

import pytest

from holdfast import (
    AsyncQueueService,
    ClosedError,
    CommitUnknownError,
    PersistentQueue,
    QueueLockedError,
    QueueNotFoundError,
    QueueService,
    StorageError,
    UsageError,
)
from holdfast.persistence.filesystem.removal import remove_remains
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.service import queue_service
from support.builders.settings import set_anew
from support.processes.loops import in_a_loop
from support.storages.disk_operations import Rename
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/data")
REMAINS = ROOT / ".orders.removed"
NEW = ROOT / "new"


def opened(storage: SimulatedStorage) -> QueueService:
    """Return a service on a simulated disk."""
    return QueueService(ROOT, mode="exclusive", storage=storage, catalog=False)


def used() -> SimulatedStorage:
    """Return a disk with two queues, each with a message."""
    storage = SimulatedStorage()
    with opened(storage) as service:
        service.queue("orders").put("order")
        service.queue("mail").put("mail")
        service.queue("orders").raw.groups.create("audit")
    return storage


def test_a_deleted_queue_is_gone_and_its_name_free(tmp_path: Path) -> None:
    """It is closed first if it is open here; a new queue of that name is empty."""
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders")
        orders.put("order")
        service.delete_queue("orders")
        assert [each.name for each in tmp_path.iterdir()] == []
        assert "orders" not in service.queues
        with pytest.raises(ClosedError):
            orders.put("another")
        assert service.queue("orders", max_deliveries=1).qsize() == 0
        with pytest.raises(QueueNotFoundError):
            service.delete_queue("mail")


@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "queue.json damaged"])
def test_a_kill_at_any_instant_leaves_the_queue_or_nothing_behind_the_next_start(is_damaged: bool) -> None:
    """So does a loss of power, whatever it takes; the other queue is not touched."""
    storage, rng = used(), random.Random(1)
    if is_damaged:
        with storage.open(ROOT / "orders" / "queue.json") as file:
            file.truncate(10)
            file.sync()
    storage.replay_from_here()
    with opened(storage) as service:
        service.delete_queue("orders")
    states = [
        (state.crash_keeping_all(), state.crash_dropping_unsynced(), *(state.random_crash(rng) for _ in range(3)))
        for state in storage.replay()
    ]
    found = set()
    for disk in chain.from_iterable(states):
        with opened(disk) as service:
            assert service.queue("mail").raw.peek()[0].payload == b'"mail"'
            assert REMAINS not in disk.tree()
            is_there = ROOT / "orders" in disk.tree()
            found.add(is_there)
            if is_there:
                if is_damaged:
                    set_anew(ROOT / "orders", disk)
                assert service.queue("orders").get(timeout=0) == "order"
            else:
                with pytest.raises(QueueNotFoundError):
                    service.queue("orders", mode="read_only")
    assert found == {True, False}


def test_what_a_deletion_promised_by_returning_survives_a_loss_of_power() -> None:
    """The queue does not come back."""
    storage = used()
    with opened(storage) as service:
        service.delete_queue("orders")
    for disk in (storage.crash_keeping_all(), storage.crash_dropping_unsynced()):
        assert ROOT / "orders" not in disk.tree()


def test_every_fault_leaves_the_queue_or_says_that_it_is_unknown() -> None:
    """A disk that refuses once; the queue can be deleted afterwards, if it is there."""
    call, outcomes = 0, set()
    while True:
        call += 1
        storage = used()
        service = opened(storage)
        plan = storage.faults = FaultPlan(call)
        error: Exception | None = None
        try:
            service.delete_queue("orders")
        except (StorageError, QueueLockedError) as refused:
            error = refused
        storage.faults = None
        if not plan.fired_count:
            assert error is None
            break
        is_there = ROOT / "orders" in storage.tree()
        outcomes.add((is_there, type(error)))
        assert is_there == (error is not None and not isinstance(error, CommitUnknownError)), (call, error)
        if is_there:
            assert service.queue("orders").raw.peek()[0].payload == b'"order"'
        service.close()
        with opened(storage) as again:
            again.queue("mail")
            assert REMAINS not in storage.tree()
    assert {(True, StorageError), (False, CommitUnknownError), (False, type(None))} <= outcomes


def test_the_next_start_logs_what_it_removes(caplog: pytest.LogCaptureFixture) -> None:
    """An operator learns why a directory is gone."""
    storage = used()
    storage.rename(ROOT / "orders", REMAINS)
    with caplog.at_level(logging.WARNING, "holdfast"), opened(storage) as service:
        service.queue("mail")
        service.queue("orders")
    assert f"removing {REMAINS}: the deletion of queue 'orders' was cut off" in caplog.text
    assert REMAINS not in storage.tree()


def test_remains_of_an_earlier_deletion_do_not_hinder_the_next() -> None:
    """They have the same name."""
    storage = used()
    with opened(storage) as service:
        service.queue("mail")
        storage.rename(ROOT / "orders", REMAINS)
        service.queue("orders").put("another")
        service.delete_queue("orders")
    assert not {ROOT / "orders", REMAINS} & storage.tree().keys()


def test_remains_are_found_though_the_queue_was_killed_while_it_was_made() -> None:
    """Its queue.json was there, and nothing had made that name durable."""
    storage = used()
    with opened(storage) as service:
        service.queue("new")
    made = next(at for at, step in enumerate(storage.log) if step == Rename(NEW / "queue.json.new", NEW / "queue.json"))
    disk = next(islice(storage.replay(), made + 1, None)).crash_keeping_all()
    with opened(disk) as service:
        service.delete_queue("new")
    for state in disk.replay():
        lost = state.crash_dropping_unsynced()
        with opened(lost) as service:
            service.queue("mail")
        assert ROOT / ".new.removed" not in lost.tree()


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a directory": lambda path: (path.mkdir(), (path / "mine").write_text("mine")),
    "a directory with another queue.json": lambda path: (path.mkdir(), (path / "queue.json").write_text("{}")),
    "a directory of directories": lambda path: (path / "data").mkdir(parents=True),
    "a file": lambda path: path.write_text("mine"),
    "a link to a directory": lambda path: path.symlink_to(path.parent.parent / "precious"),
    "a link to an empty directory": lambda path: path.symlink_to(path.parent.parent / "empty"),
    "a link to a queue": lambda path: path.symlink_to(path.parent / "mail"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_deleted_queue_stays_whatever_its_name(tmp_path: Path, kind: str) -> None:
    """No start deletes it, and no deletion of a queue does."""
    data, remains = tmp_path / "data", tmp_path / "data" / ".orders.removed"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    with QueueService(data, mode="exclusive", catalog=False) as service:
        service.queue("mail").put("mail")
        service.queue("orders").put("order")
    FOREIGN[kind](remains)
    before = sorted(tmp_path.rglob("*"))
    with QueueService(data, mode="exclusive", catalog=False) as service:
        assert service.queue("mail").qsize() == 1
        with pytest.raises(UsageError, match=re.escape(f"{remains} is in the way")):
            service.delete_queue("orders")
        with suppress(OSError):
            remove_remains(OsStorage(), remains)
        assert service.queue("orders").qsize() == 1
    assert [path for path in before if not path.exists()] == []


def test_a_link_in_a_queue_is_removed_and_what_it_points_to_stays(tmp_path: Path) -> None:
    """Nothing outside of the queue is deleted."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    with QueueService(tmp_path / "data", mode="exclusive", catalog=False) as service:
        service.queue("orders").close()
        (tmp_path / "data/orders/link").symlink_to(tmp_path / "precious")
        service.delete_queue("orders")
    assert (tmp_path / "precious" / "file").read_text() == "mine"
    assert not (tmp_path / "data" / "orders").exists()


@pytest.mark.parametrize("group", ["default", "audit"])
def test_a_queue_that_another_handle_owns_stays(group: str) -> None:
    """With whichever group."""
    storage = used()
    with (
        opened(storage) as service,
        PersistentQueue(ROOT / "orders", mode="exclusive", group=group, storage=storage) as other,
    ):
        with pytest.raises(QueueLockedError, match="close it, then delete it"):
            service.delete_queue("orders")
        assert other.get(timeout=0) == b'"order"'


def _shared(path: Path, *, can_own: bool = True) -> QueueService:
    """Return a service that shares its directory."""
    return QueueService(path, mode="shared", can_own=can_own, catalog=False)


def test_a_queue_is_deleted_once_no_other_process_shares_it(tmp_path: Path) -> None:
    """Neither owner nor client is served a queue that is gone; the error names the process."""
    with _shared(tmp_path) as first, _shared(tmp_path) as second:
        orders, others = first.queue("orders"), second.queue("orders")
        others.put("order")
        for service in (first, second):
            with pytest.raises(QueueLockedError, match=f"is shared by process {os.getpid()}.*holdfast ps"):
                service.delete_queue("orders")
            others = service.queue("orders")
            assert others.qsize() == 1
        orders.close()
        first.queue("orders").close()
        second.delete_queue("orders")
        assert [each.name for each in tmp_path.iterdir()] == []
        with pytest.raises(QueueNotFoundError):
            first.delete_queue("orders")


def test_a_queue_is_not_deleted_while_a_client_waits_for_the_next_owner(tmp_path: Path) -> None:
    """It would make the queue again."""
    with _shared(tmp_path) as first, _shared(tmp_path, can_own=False) as second:
        orders = first.queue("orders")
        second.queue("orders")
        orders.close()
        with pytest.raises(QueueLockedError, match="is shared by process"):
            first.delete_queue("orders")


def test_a_queue_with_a_handler_stays(tmp_path: Path) -> None:
    """Its consumer would make it again."""
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        service.queue("orders")
        service.consumer("orders")(lambda order: None)
        with pytest.raises(UsageError, match="has the handler"):
            service.delete_queue("orders")


def test_a_queue_with_an_undecided_transaction_stays(tmp_path: Path) -> None:
    """Its messages were promised to somebody."""
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders")
        tx = orders.raw.begin()
        tx.put(b"1")
        prepared = tx.prepare()
        with pytest.raises(UsageError, match="1 undecided transactions"):
            service.delete_queue("orders")
        service.queue("orders").raw.abort_prepared(prepared)
        service.delete_queue("orders")


def test_a_worker_process_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It only submits."""
    monkeypatch.setattr(queue_service, "is_worker_process", lambda: True)
    with (
        QueueService(tmp_path, mode="exclusive", catalog=False) as service,
        pytest.raises(UsageError, match="worker process"),
    ):
        service.delete_queue("orders")


@in_a_loop
async def test_tasks_delete_queues_too(tmp_path: Path) -> None:
    """But not one with an asynchronous handler."""

    async def handle(order: object) -> None:
        """Do nothing."""

    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        orders = await service.queue("orders")
        await orders.put(1)
        await service.delete_queue("orders")
        with pytest.raises(ClosedError):
            await orders.put(2)
        assert not (tmp_path / "orders").exists()
        again = await service.queue("orders")
        assert await again.qsize() == 0
        service.consumer("orders")(handle)
        with pytest.raises(UsageError, match="has the handler"):
            await service.delete_queue("orders")
        with pytest.raises(QueueNotFoundError):
            await service.delete_queue("mail")

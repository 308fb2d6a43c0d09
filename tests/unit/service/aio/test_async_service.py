"""What a service for asyncio opens, closes, and has in common with the other one."""

import asyncio
import inspect
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import ClosedError, ConfigError, PersistentQueue, QueueLockedError
from holdfast.queue.dispatch.delivery import Delivery, DeliveryBatch
from holdfast.queue.inspect.dead_letters import DeadLetters
from holdfast.service.aio.async_dead_letters import AsyncDeadLetters
from holdfast.service.aio.async_delivery import AsyncBatch, AsyncDelivery
from holdfast.service.aio.async_queue import AsyncQueue
from holdfast.service.aio.async_service import AsyncQueueService
from holdfast.service.aio.async_transaction import AsyncTransaction
from holdfast.service.queue_service import QueueService
from holdfast.service.service_transaction import ServiceTransaction
from holdfast.service.typed_queue import TypedQueue
from support.processes.loops import in_a_loop, until

OF_THREADS_ONLY = {
    QueueService: {"forget_after_fork", "open_for", "open_queue", "workers"},
    Delivery: {"comes_from", "redacted"},
    TypedQueue: {"adopt", "close", "decode_delivery", "encode_many", "groups"},
    ServiceTransaction: {"call_off"},
}
"""What other parts call, and what a service for asyncio has under ``sync``."""


@pytest.mark.parametrize(
    ("sync", "awaited"),
    [
        (QueueService, AsyncQueueService),
        (TypedQueue, AsyncQueue),
        (Delivery, AsyncDelivery),
        (DeliveryBatch, AsyncBatch),
        (ServiceTransaction, AsyncTransaction),
        (DeadLetters, AsyncDeadLetters),
    ],
)
def test_names_and_parameters_are_those_of_the_service_for_threads(sync: type, awaited: type) -> None:
    """Whoever knows one knows the other."""
    names = {name for name in vars(sync) if not name.startswith("_")} - OF_THREADS_ONLY.get(sync, set())
    names -= set(getattr(sync, "__slots__", ()))  # attributes of an object, which has them
    assert names <= set(vars(awaited)), names - set(vars(awaited))
    for name in names:
        before, after = vars(sync)[name], vars(awaited)[name]
        if inspect.isfunction(before):
            assert list(inspect.signature(after).parameters) == list(inspect.signature(before).parameters), name


@in_a_loop
async def test_queues_of_another_program_are_opened_when_their_owner_is_gone(tmp_path: Path) -> None:
    """Opening may wait for a lock, and no task of the loop waits with it."""
    raw = PersistentQueue(tmp_path / "numbers", mode="exclusive")
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        with pytest.raises(QueueLockedError):
            await service.queue("numbers")
        opening = asyncio.create_task(service.queue("numbers", type=int, lock_timeout=30))
        raw.put(b"1")
        raw.close()
        assert (await (await opening).receive()).body == 1
        with pytest.raises(ConfigError, match=r"type=int \(the program\), not with type=str"):
            await service.queue("numbers", type=str)
        with pytest.raises(ConfigError):
            await service.queue("../numbers")


@in_a_loop
async def test_tasks_that_open_a_queue_at_the_same_time_get_the_same(tmp_path: Path) -> None:
    """Each queue is one object."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        opened = await asyncio.gather(*(service.queue("numbers", type=int) for _ in range(20)))
        assert len(set(opened)) == 1
        assert opened[0].sync is service.sync.queue("numbers")
        assert (opened[0].name, opened[0].path, service.path) == ("numbers", tmp_path / "numbers", tmp_path)
        assert repr(opened[0]) == f"<AsyncQueue numbers at {tmp_path / 'numbers'}>"
        assert repr(service) == f"<AsyncQueueService {tmp_path}, 1 queues open>"


@in_a_loop
async def test_the_queue_of_a_node_that_died_is_adopted(tmp_path: Path) -> None:
    """Its messages come first."""
    (tmp_path / "dead").mkdir()
    with PersistentQueue(tmp_path / "dead" / "numbers", mode="exclusive") as raw:
        raw.put(b"1")
    async with AsyncQueueService(tmp_path / "live", mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        waiting = asyncio.create_task(numbers.receive_many(5))
        assert await service.adopt(tmp_path / "dead" / "numbers") is numbers
        await numbers.put(2)
        assert (await waiting).bodies in ([1], [2])
        assert (await numbers.receive(timeout=10)).body in {1, 2}


@pytest.mark.extra("catalog")
@in_a_loop
async def test_the_catalogue_is_kept_and_rebuilt(tmp_path: Path) -> None:
    """By the same code as that of the service for threads."""
    async with AsyncQueueService(tmp_path, mode="exclusive") as service:
        await service.queue("numbers", type=int)
        await service.rebuild_catalog()
        with closing(sqlite3.connect(tmp_path / "catalog.db")) as catalog:
            assert [name for (name,) in catalog.execute("select name from queues")] == ["numbers"]


@in_a_loop
async def test_closing_again_does_nothing_and_a_closed_service_says_so(tmp_path: Path) -> None:
    """Every call of it, and those of its queues; its locks are free and its threads gone."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)
    numbers = await service.queue("numbers", type=int)
    await numbers.put_many([1, 2])
    in_hand = await numbers.receive()
    async with await numbers.receive() as in_block:
        await asyncio.gather(service.close(), service.close())
    assert in_block.is_settled
    for call in (in_hand.ack(), numbers.put(3), numbers.receive(), service.queue("numbers"), numbers.stats()):
        with pytest.raises(ClosedError):
            await call
    with pytest.raises(ClosedError):
        service.transaction()
    await service.close()
    await until(lambda: not [each for each in threading.enumerate() if each.name.startswith("holdfast-asyncio")])
    with PersistentQueue(tmp_path / "numbers", mode="exclusive") as raw:
        assert [each.delivery_count for each in raw.browse()] == [0, 0]


@in_a_loop
async def test_a_close_that_is_cancelled_goes_on(tmp_path: Path) -> None:
    """Whoever closes again waits for the same."""
    service = AsyncQueueService(tmp_path, mode="exclusive", catalog=False)
    await service.queue("numbers")
    closing = asyncio.create_task(service.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await service.close()
    PersistentQueue(tmp_path / "numbers", mode="exclusive").close()


def test_importing_holdfast_does_not_import_asyncio() -> None:
    """Applications on threads do not pay for it."""
    program = "import sys, holdfast, holdfast.service.queue_service; print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

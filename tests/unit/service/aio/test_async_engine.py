"""Tasks that are cancelled, messages that died with a process, and leases that ran out before the handler."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast import Delivery
from holdfast.service.aio.async_service import AsyncQueueService
from holdfast.service.workers.settler import Settler
from support.processes.loops import in_a_loop


@in_a_loop
async def test_a_message_is_acknowledged_though_its_task_is_cancelled_while_it_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler has returned: its work is done."""
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        handled = asyncio.Event()
        monkeypatch.setattr(Settler, "wait_for_space", lambda *_: False)

        @service.consumer(numbers)
        async def handle(number: int) -> None:
            handled.set()

        await numbers.put(1)
        run = asyncio.create_task(service.run(grace_seconds=0))
        await handled.wait()
        service.stop()
        await run
        assert (await numbers.stats()).depth == 0


@in_a_loop
async def test_a_redelivered_message_is_acknowledged_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be the one that kills this process each time: its neighbours would become dead letters with it."""
    acknowledge = Settler.acknowledge

    def acknowledge_slowly(settler: Settler, deliveries: Sequence[Delivery]) -> None:
        time.sleep(0.05)
        acknowledge(settler, deliveries)

    monkeypatch.setattr(Settler, "acknowledge", acknowledge_slowly)
    async with AsyncQueueService(tmp_path, mode="exclusive", catalog=False) as service:
        numbers = await service.queue("numbers", type=int)
        left: list[int] = []

        @service.consumer(numbers)
        async def handle(number: int) -> None:
            left.append(numbers.sync.stats().depth)

        await numbers.put_many(range(3))
        await (await numbers.receive_many(3)).nack(delay=0)
        numbers.sync.raw.shutdown()
        await service.run()
        assert left == [3, 2, 1]

"""Tasks that are cancelled, messages that died with a process, and leases that ran out before the handler."""

import asyncio
from pathlib import Path

import pytest

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

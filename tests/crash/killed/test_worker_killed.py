"""A worker that a message kills each time, as ``holdfast work`` runs it, started again each time."""

import signal
import subprocess
from pathlib import Path

import pytest

from holdfast import FlushPolicy
from holdfast.service.queue_service import QueueService
from support.processes.cli import started

SECONDS = 60

MODULE = """
import os, signal
from holdfast import FlushPolicy
from holdfast.service.queue_service import QueueService

service = QueueService("data", catalog=False)

@service.consumer("orders", type=int, max_deliveries=3, flush=FlushPolicy.never())
def handle(order: int) -> None:
    if order == 33:
        os.kill(os.getpid(), signal.SIGKILL)
    service.queue("handled", type=int).put(order)

service.queue("orders", type=int, max_deliveries=3, flush=FlushPolicy.never()).raw.shutdown()
"""


def work_once() -> int:
    """Run the worker until it has nothing more to do, or is dead; return its exit code."""
    with started("work", "shop_poison:service") as process:
        try:
            process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError("the worker hangs") from None
    return process.returncode


def test_a_message_that_kills_its_worker_is_a_dead_letter_and_its_neighbours_are_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were taken together with it come one by one, and each is acknowledged before the next is begun."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_poison.py").write_text(MODULE)
    with QueueService("data", catalog=False) as service:
        service.queue("orders", type=int, flush=FlushPolicy.never()).put_many(range(100))
    assert [work_once() for _ in range(4)] == [-signal.SIGKILL] * 3 + [0]
    with QueueService("data", catalog=False) as service:
        orders, handled = service.queue("orders", type=int), service.queue("handled", type=int)
        assert [letter.offset for letter in orders.dead.list()] == [33]
        assert orders.stats().depth == 0
        batches = handled.consume_many(100, max_wait=0, stop_when_empty=True)
        seen = [message.body for batch in batches for message in batch]
        assert set(seen) == set(range(100)) - {33}
        assert len(seen) - len(set(seen)) < 40  # what was handled and not acknowledged at the first death, no more

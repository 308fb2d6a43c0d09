"""Consumers in tests: a service whose handlers run in a thread while a block lasts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.service.queue_service import QueueService
from support.processes.threads import Threads, wait_until

SECONDS = 30
"""Longer than anything takes on a machine that has other things to do."""


@contextmanager
def running(service: QueueService, *, grace_seconds: float = SECONDS) -> Iterator[None]:
    """Run the consumers of a service; what makes them stop is raised at the end of the block."""
    threads = Threads()
    threads.start(lambda: service.run(grace_seconds=grace_seconds))
    try:
        yield
    finally:
        service.stop()
        threads.join()


def run_until_finished(service: QueueService, name: str) -> None:
    """Run the consumers until nothing of a queue is left to be handled; what is dead is not."""
    with running(service):
        queue = service.queue(name)
        wait_until(lambda: queue.stats().depth == 0, SECONDS)


def lives(pid: int) -> bool:
    """Whether a process does anything any more; one whose end nobody has taken note of yet does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it ended in between; or this is no Linux
        return not Path("/proc/self").exists()
    return state != "Z"

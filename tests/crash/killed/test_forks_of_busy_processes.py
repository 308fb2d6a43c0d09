"""Forks of a process whose threads are inside calls of a shared queue.

Not among the tests that measure coverage: its tracer has a lock, which a child may find locked for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import Empty, PersistentQueue
from support.processes.children import Child
from support.processes.threads import Threads


@pytest.mark.parametrize("is_owner", [True, False])
def test_children_that_are_forked_while_threads_are_inside_calls_work(tmp_path: Path, *, is_owner: bool) -> None:
    """As a pool of processes is forked from a busy parent. No lock of those threads is waited for."""
    path = tmp_path / "q"

    def work(queue: PersistentQueue, number: int) -> None:
        threads = Threads()
        for _ in range(3):
            threads.start(lambda: queue.put_many([b"%d" % number] * 2))
        threads.join()

    with ExitStack() as opened:
        for _ in range(1 if is_owner else 2):
            queue = opened.enter_context(PersistentQueue(path, mode="shared"))
        busy, is_over = Threads(), list[bool]()

        def be_busy(call: Callable[[], object]) -> None:
            while not is_over:
                try:
                    call()
                except Empty:
                    continue

        for call in (lambda: queue.put(b"parent"), lambda: queue.get(timeout=0.01), queue.stats):
            busy.start(lambda call=call: be_busy(call))  # type: ignore[misc]
        try:
            children = [Child(lambda number=number: work(queue, number)) for number in range(4)]  # type: ignore[misc]
            assert [each.wait(60) for each in children] == [0] * 4
        finally:
            is_over.append(True)
            busy.join()
        payloads = [payload for payload in queue.get_many(10**6, timeout=5) if payload != b"parent"]
        while True:
            try:
                payloads += [payload for payload in queue.get_many(10**6, timeout=0.0) if payload != b"parent"]
            except Empty:
                break
        assert sum(map(len, payloads)) <= 24

"""Several processes that put into one queue, which another process owns. For information: no target."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cases import queue_cases
from benchmarks.cases.queue_cases import EVERY_COMMIT, open_queue
from benchmarks.measuring import floors
from benchmarks.measuring.contestant import Against, Body, Contestant
from benchmarks.measuring.load import BATCH, Load
from benchmarks.measuring.race import Race
from benchmarks.processes import fresh_process

PROCESSES = 4
SECONDS_LIMIT = 60.0
"""For a process to end by itself, once its work is done."""


def _submitting(load: Load, batch: int) -> Contestant:
    """Share the messages between processes, which begin together."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        root = folder / "submitted"
        root.mkdir()
        share = load.count // PROCESSES // batch * batch
        with open_queue(root, EVERY_COMMIT) as queue, ExitStack() as stack:
            processes = [stack.enter_context(_submitter(root, share, load.size, batch)) for _ in range(PROCESSES)]

            def body() -> None:
                for process in processes:
                    _tell(process, "go")
                for process in processes:
                    _expect(process, "done")

            yield body
            assert queue.qsize() == share * PROCESSES

    return Contestant(f"holdfast, {PROCESSES} processes", stage)


@contextmanager
def _submitter(root: Path, count: int, size: int, batch: int) -> Iterator[subprocess.Popen[str]]:
    command = fresh_process.command("submit", root, count, size, batch)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=fresh_process.ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            _expect(process, "ready")
            yield process
            process.wait(SECONDS_LIMIT)
        finally:
            process.kill()


def _tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


def _expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == word + "\n"


@pytest.mark.parametrize(("batch", "records"), [(1, 400), (BATCH, 20_000)], ids=["one-by-one", "by-100"])
def test_submitting_beside_the_owner_itself(
    race: Race, sized: Callable[[int, int], Load], batch: int, records: int
) -> None:
    """What an owner between costs: its own threads put the same, and the disk alone writes and syncs."""
    load = sized(records, 2000)
    if batch == 1:
        title, owner = (
            "put",
            replace(queue_cases.put(load, EVERY_COMMIT, PROCESSES), label=f"owner, {PROCESSES} threads"),
        )
        against = [Against(owner), Against(floors.write_and_sync(load))]
    else:
        title, owner = (
            f"put_many of {batch}",
            replace(queue_cases.put_many(load, EVERY_COMMIT), label="owner, 1 thread"),
        )
        against = [Against(owner)]
    race(
        f'{title}, {PROCESSES} processes, mode="submit", every_commit()',
        load,
        _submitting(load, batch),
        against,
        rounds=7,
    )

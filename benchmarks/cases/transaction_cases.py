"""What users do with transactions, as contestants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import holdfast
from benchmarks.cases.queue_cases import EVERY_COMMIT, open_queue
from benchmarks.measuring.contestant import Body, Contestant
from benchmarks.measuring.floors import in_threads
from benchmarks.measuring.load import BATCH, Load
from holdfast import FlushPolicy, PersistentQueue
from holdfast.queue.options.queue_options import Mode

Case = Callable[[Load, int], Contestant]
"""Takes the load and how many threads share it."""


def puts(load: Load, flush: FlushPolicy) -> Contestant:
    """Put in transactions of a hundred, message by message."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with open_queue(_folder(folder, "transactions"), flush) as queue:

            def body() -> None:
                for _ in range(load.batches):
                    with queue.transaction() as tx:
                        put, payload = tx.put, load.payload
                        for _ in range(BATCH):
                            put(payload)

            yield body
            assert queue.qsize() == load.count

    return Contestant("holdfast", stage)


# -- Under every_commit(), from one thread or from several -------------------------------------------------------------


def commit(load: Load, threads: int) -> Contestant:
    """Commit transactions of one put."""

    def use(queue: PersistentQueue, count: int) -> None:
        for _ in range(count):
            with queue.transaction() as tx:
                tx.put(load.payload)

    return _putting(load, threads, use)


def prepare_and_commit(load: Load, threads: int, mode: Mode = "exclusive") -> Contestant:
    """Prepare transactions of one put, and commit each."""

    def use(queue: PersistentQueue, count: int) -> None:
        for _ in range(count):
            tx = queue.begin()
            tx.put(load.payload)
            tx.prepare()
            tx.commit()

    return _putting(load, threads, use, mode)


def prepare_and_commit_shared(load: Load, threads: int) -> Contestant:
    """As :func:`prepare_and_commit`, in the default mode: through the owner, which is this process."""
    return prepare_and_commit(load, threads, "shared")


def move(load: Load, threads: int) -> Contestant:
    """Move messages from one queue to another, each in a transaction over both."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        from_folder, to_folder = (_folder(folder, f"{name} {threads}") for name in ("from", "to"))
        with (
            ThreadPoolExecutor(threads) as pool,
            open_queue(from_folder, EVERY_COMMIT) as source,
            open_queue(to_folder, EVERY_COMMIT) as target,
        ):
            source.put_many([load.payload] * load.count)

            def move_share(count: int) -> None:
                for _ in range(count):
                    with holdfast.transaction(source, target) as tx:
                        message = tx.receive(source)
                        tx.put(target, message.payload)
                        tx.ack(source, message)

            yield in_threads(pool, threads, load.count, move_share)
            assert target.qsize() == load.count // threads * threads

    return Contestant(_label(threads), stage)


def _putting(
    load: Load, threads: int, use: Callable[[PersistentQueue, int], None], mode: Mode = "exclusive"
) -> Contestant:
    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        root = _folder(folder, str(threads))
        with ThreadPoolExecutor(threads) as pool, open_queue(root, EVERY_COMMIT, mode) as queue:
            yield in_threads(pool, threads, load.count, lambda count: use(queue, count))
            assert queue.qsize() == load.count // threads * threads

    return Contestant(_label(threads), stage)


def _folder(folder: Path, name: str) -> Path:
    """Make a folder for one contestant of a round: several have queues."""
    root = folder / name
    root.mkdir()
    return root


def _label(threads: int) -> str:
    return "holdfast, 1 thread" if threads == 1 else f"holdfast, {threads} threads"

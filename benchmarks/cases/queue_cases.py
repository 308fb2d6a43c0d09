"""What users do with the queue, as contestants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measuring.contestant import Body, Contestant
from benchmarks.measuring.floors import in_threads
from benchmarks.measuring.load import BATCH, DATA_FILE_BYTES, Load
from holdfast import FlushPolicy, PersistentQueue, VerifyReport, verify
from holdfast.queue.options.queue_options import Mode

NEVER = FlushPolicy.never()
EVERY_COMMIT = FlushPolicy.every_commit()

Use = Callable[[PersistentQueue], None]
"""Puts or takes a whole load."""


def open_queue(folder: Path, flush: FlushPolicy, mode: Mode = "exclusive") -> PersistentQueue:
    """Open the queue of a round."""
    return PersistentQueue(folder / "queue", mode=mode, flush=flush, data_file_bytes=DATA_FILE_BYTES)


def fill(folder: Path, load: Load, flush: FlushPolicy = NEVER) -> None:
    """Put a whole load into the queue of a round and close it, so that it can be taken."""
    with open_queue(folder, flush) as queue:
        for _ in range(load.batches):
            queue.put_many([load.payload] * BATCH)


# -- Putting ---------------------------------------------------------------------------------------------------------


def put(load: Load, flush: FlushPolicy, threads: int = 1, mode: Mode = "exclusive") -> Contestant:
    """Put one by one into a new queue, from one thread or from several."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        root = folder / f"{threads} threads"
        root.mkdir()
        with ThreadPoolExecutor(threads) as pool, open_queue(root, flush, mode) as queue:

            def put_share(count: int) -> None:
                put_one, payload = queue.put, load.payload
                for _ in range(count):
                    put_one(payload)

            yield in_threads(pool, threads, load.count, put_share)
            queue.flush()  # under never() a shared handle sees a put some milliseconds later
            assert queue.qsize() == load.count // threads * threads

    return Contestant("holdfast, 1 thread" if threads == 1 else f"holdfast, {threads} threads", stage)


def put_many(load: Load, flush: FlushPolicy, mode: Mode = "exclusive") -> Contestant:
    """Put in batches of a hundred into a new queue."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with open_queue(folder, flush, mode) as queue:

            def body() -> None:
                put_batch, batch = queue.put_many, [load.payload] * BATCH
                for _ in range(load.batches):
                    put_batch(batch)

            yield body
            queue.flush()  # as above
            assert queue.qsize() == load.count

    return Contestant("holdfast", stage)


def put_and_get(load: Load, flush: FlushPolicy, mode: Mode = "exclusive") -> Contestant:
    """Put one by one from one thread, while another one takes and acknowledges one by one."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with ThreadPoolExecutor(2) as pool, open_queue(folder, flush, mode) as queue:

            def put_all() -> None:
                put_one, payload = queue.put, load.payload
                for _ in range(load.count):
                    put_one(payload)

            def get_all() -> None:
                get_one = queue.get
                for _ in range(load.count):
                    get_one()

            def body() -> None:
                for each in [pool.submit(put_all), pool.submit(get_all)]:
                    each.result()

            yield body
            assert queue.stats().depth == 0

    return Contestant("holdfast", stage)


def verify_all(load: Load, _: FlushPolicy) -> Contestant:
    """Verify the round's filled queue."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        yield lambda: reports.append(verify(folder / "queue"))
        assert [(each.ok, each.message_count) for each in reports] == [(True, load.count)]

    reports: list[VerifyReport] = []
    return Contestant("holdfast", stage)


# -- Taking ----------------------------------------------------------------------------------------------------------


def _taking(flush: FlushPolicy, mode: Mode, use: Use) -> Contestant:
    """Take everything out of the round's filled queue."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with open_queue(folder, flush, mode) as queue:
            yield lambda: use(queue)
            assert queue.stats().depth == 0

    return Contestant("holdfast", stage)


def get(load: Load, flush: FlushPolicy, mode: Mode = "exclusive") -> Contestant:
    """Take and acknowledge one by one."""

    def use(queue: PersistentQueue) -> None:
        get_one = queue.get
        for _ in range(load.count):
            get_one()

    return _taking(flush, mode, use)


def get_many(load: Load, flush: FlushPolicy, mode: Mode = "exclusive") -> Contestant:
    """Take and acknowledge a hundred at a time."""

    def use(queue: PersistentQueue) -> None:
        left = load.count
        while left:
            left -= len(queue.get_many(BATCH))

    return _taking(flush, mode, use)


def receive(load: Load, flush: FlushPolicy, mode: Mode = "exclusive") -> Contestant:
    """Lease one by one, and acknowledge each."""

    def use(queue: PersistentQueue) -> None:
        for _ in range(load.count):
            queue.receive().ack()

    return _taking(flush, mode, use)


def receive_many(load: Load, flush: FlushPolicy, mode: Mode = "exclusive") -> Contestant:
    """Lease a hundred at a time, and acknowledge them together."""

    def use(queue: PersistentQueue) -> None:
        left = load.count
        while left:
            batch = queue.receive_many(BATCH)
            batch.ack()
            left -= len(batch)

    return _taking(flush, mode, use)

"""What can be asked of a work queue beyond put and take, as contestants. Each has a queue of its own in a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases.queue_cases import NEVER, Use
from benchmarks.measuring.contestant import Body, Contestant
from benchmarks.measuring.floors import in_threads
from benchmarks.measuring.load import BATCH, DATA_FILE_BYTES, Load
from holdfast import FlushPolicy, PersistentQueue, Put

PRIORITY = 5
KEYS = 100
OTHERS = 1_000
"""Messages of each kind that others have in the queue beside those that ask for nothing."""

FAR_SECONDS = 86_400.0

Fill = Callable[[PersistentQueue, Load], None]
"""Puts what is there when the clock starts."""


def _open(root: Path, flush: FlushPolicy) -> PersistentQueue:
    """Open a queue in which failed messages come again at once, as often as somebody likes."""
    root.mkdir(exist_ok=True)
    return PersistentQueue(
        root / "queue", mode="exclusive", flush=flush, data_file_bytes=DATA_FILE_BYTES, backoff=[], max_deliveries=None
    )


def _using(label: str, use: Use, fill: Fill, load: Load, flush: FlushPolicy = NEVER) -> Contestant:
    """Use a queue that was filled, closed and opened again."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        root = folder / label
        with _open(root, NEVER) as queue:
            fill(queue, load)
        with _open(root, flush) as queue:
            yield lambda: use(queue)

    return Contestant(label, stage)


def put_all(queue: PersistentQueue, puts: Sequence[Put]) -> None:
    """Put messages in batches."""
    for start in range(0, len(puts), BATCH):
        queue.put_many(puts[start : start + BATCH])


def _nothing(queue: PersistentQueue, load: Load) -> None:
    """Begin with an empty queue."""


def _plain(queue: PersistentQueue, load: Load) -> None:
    for _ in range(load.batches):
        queue.put_many([load.payload] * BATCH)


# -- Failing, priorities, keys, ids ----------------------------------------------------------------------------------


def plain_puts(load: Load) -> Contestant:
    """Put one by one and ask for nothing."""

    def use(queue: PersistentQueue) -> None:
        for _ in range(load.count):
            queue.put(load.payload)

    return _using("plain put", use, _nothing, load)


def plain_gets(load: Load) -> Contestant:
    """Take one by one what asked for nothing."""

    def use(queue: PersistentQueue) -> None:
        for _ in range(load.count):
            queue.get()

    return _using("plain get", use, _plain, load)


def plain_receives(load: Load) -> Contestant:
    """Lease one by one what asked for nothing, and acknowledge each."""
    return _using("plain receive + ack", lambda queue: _receive_and_ack(queue, load.count), _plain, load)


def _receive_and_ack(queue: PersistentQueue, count: int) -> None:
    for _ in range(count):
        queue.receive().ack()


def nacks(load: Load) -> Contestant:
    """Give each delivery back, and be given it again; acknowledge none."""

    def use(queue: PersistentQueue) -> None:
        for _ in range(load.count):
            queue.receive().nack()

    return _using("nack + receive again", use, _plain, load)


def prioritized_puts(load: Load) -> Contestant:
    """Put one by one with a priority."""

    def use(queue: PersistentQueue) -> None:
        for _ in range(load.count):
            queue.put(load.payload, priority=PRIORITY)

    return _using("put with a priority", use, _nothing, load)


def prioritized_gets(load: Load) -> Contestant:
    """Take one by one what has a priority, from behind as many messages that have none."""

    def fill(queue: PersistentQueue, load: Load) -> None:
        _plain(queue, load)
        put_all(queue, [Put(load.payload, priority=PRIORITY)] * load.count)

    def use(queue: PersistentQueue) -> None:
        for _ in range(load.count):
            queue.get()

    return _using("get of a priority", use, fill, load)


def keyed_receives(load: Load) -> Contestant:
    """Lease and acknowledge one by one what has order keys, in turn."""

    def fill(queue: PersistentQueue, load: Load) -> None:
        put_all(queue, [Put(load.payload, order_key=f"key {number % KEYS}") for number in range(load.count)])

    return _using("receive + ack of keys", lambda queue: _receive_and_ack(queue, load.count), fill, load)


def identified_puts(load: Load) -> Contestant:
    """Put one by one, each with a deduplication id of its own."""

    def use(queue: PersistentQueue) -> None:
        for number in range(load.count):
            queue.put(load.payload, dedup_id=f"order {number}")

    return _using("put with an id", use, _nothing, load)


def transactions_of_one(load: Load) -> Contestant:
    """Put one by one, each in a transaction of its own."""

    def use(queue: PersistentQueue) -> None:
        for _ in range(load.count):
            with queue.transaction() as tx:
                tx.put(load.payload)

    return _using("transaction of 1 put", use, _nothing, load)


def receives_in_threads(load: Load, flush: FlushPolicy, threads: int) -> Contestant:
    """Lease and acknowledge one by one, from one thread or from several."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        root = folder / f"{threads} threads"
        with _open(root, NEVER) as queue:
            _plain(queue, load)
        with ThreadPoolExecutor(threads) as pool, _open(root, flush) as queue:
            yield in_threads(pool, threads, load.count, lambda count: _receive_and_ack(queue, count))
            assert queue.stats().depth == load.count % threads

    return Contestant("holdfast, 1 thread" if threads == 1 else f"holdfast, {threads} threads", stage)


# -- Those who ask for nothing, beside others who do -----------------------------------------------------------------


@contextmanager
def _others_at_work(queue: PersistentQueue, load: Load) -> Iterator[None]:
    """Have others use the queue: messages wait for their time and for their key, and some had a priority."""
    put_all(queue, [Put(load.payload, priority=PRIORITY)] * OTHERS)
    for _ in range(OTHERS // BATCH):
        queue.get_many(BATCH)
    put_all(queue, [Put(load.payload, order_key=f"key {number % KEYS}") for number in range(OTHERS)])
    held = [queue.receive(lease_seconds=FAR_SECONDS) for _ in range(KEYS)]
    put_all(queue, [Put(load.payload, delay=FAR_SECONDS)] * OTHERS)
    yield
    assert not any(each.is_settled for each in held)


def beside_others(load: Load, put: Use | None, use: Use, *, are_there: bool) -> Contestant:
    """Use a queue as one who asks for nothing of it; others do, or there are none.

    Parameters
    ----------
    put : callable or None
        Puts what ``use`` takes, before the clock runs; None: ``use`` puts.
    """
    label = "beside others" if are_there else "without others"

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with _open(folder / label, NEVER) as queue:
            if not are_there:
                if put is not None:
                    put(queue)
                yield lambda: use(queue)
                return
            with _others_at_work(queue, load):
                if put is not None:
                    put(queue)
                    queue.peek()  # reads past those that wait
                    assert queue.stats().delayed >= 2 * OTHERS - KEYS
                yield lambda: use(queue)

    return Contestant(label, stage)

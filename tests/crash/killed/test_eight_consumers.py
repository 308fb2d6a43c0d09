"""Eight consumers on one queue, threads or child processes that the owner feeds: one live receipt for each message."""

import os
import random
import select
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Delivery, Empty, FlushPolicy, PersistentQueue, StaleReceiptError
from support.processes.threads import Threads

SEED = int(os.environ.get("HOLDFAST_TEST_SEED", "20240521"))
CONSUMER_COUNT = 8


@pytest.fixture
def threads() -> Iterator[Threads]:
    """Threads that have to end well."""
    group = Threads()
    yield group
    group.join()


class Receipts:
    """All deliveries of a run. At no time are two of one message live."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_offset: dict[int, list[Delivery]] = defaultdict(list)
        self.acked: Counter[int] = Counter()

    def add(self, delivery: Delivery) -> None:
        """Remember one that was just received; whoever comes late adds one that is stale already."""
        with self._lock:
            known = self.by_offset[delivery.offset]
            known.append(delivery)
            live = [each for each in known if not each.is_settled]
            assert len(live) <= 1, f"two live receipts: {live}"
            known[:] = live

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge one."""
        delivery.ack()
        with self._lock:
            self.acked[delivery.offset] += 1


def settle(receipts: Receipts, delivery: Delivery, choice: random.Random) -> None:
    """Do anything with a delivery."""
    match choice.randrange(10):
        case 0:
            delivery.nack()
        case 1:
            delivery.nack(choice.uniform(0, 0.01))
        case 2:
            delivery.release()
        case 3:
            delivery.extend(0.03)
            receipts.ack(delivery)
        case 4:
            with suppress(ZeroDivisionError), delivery:
                raise ZeroDivisionError
        case 5:
            time.sleep(choice.uniform(0, 0.06))  # perhaps too long
            receipts.ack(delivery)
        case 6:
            if choice.random() < 0.2:
                delivery.reject("no")
        case 7:
            pass  # forgotten
        case _:
            receipts.ack(delivery)


def test_eight_threads_share_a_queue_and_never_a_message(tmp_path: Path, threads: Threads) -> None:
    """Whatever they do with what they get; in the end each message is acknowledged once, or a dead letter."""
    count = 1500
    receipts = Receipts()
    with PersistentQueue(
        tmp_path / "q",
        mode="exclusive",
        flush=FlushPolicy.never(),
        backoff=[0.001, 0.005],
        lease_seconds=0.04,
        max_deliveries=6,
    ) as queue:

        def work(seed: int) -> None:
            choice = random.Random(seed)
            while queue.stats().depth:
                with suppress(Empty, StaleReceiptError):
                    if choice.random() < 0.5:
                        delivery = queue.receive(timeout=0.05)
                        receipts.add(delivery)
                        settle(receipts, delivery, choice)
                        continue
                    batch = queue.receive_many(choice.randrange(1, 20), timeout=0.05)
                    for each in batch:
                        receipts.add(each)
                    for each in batch:
                        with suppress(StaleReceiptError):
                            settle(receipts, each, choice)

        queue.put_many([b"%d" % number for number in range(count)])
        for number in range(CONSUMER_COUNT):
            threads.start(lambda seed=SEED + number: work(seed))  # type: ignore[misc]
        threads.join(100)
        dead = {letter.offset for letter in queue.dead.list()}
        assert set(receipts.acked.values()) == {1}
        assert dead.isdisjoint(receipts.acked)
        assert dead | receipts.acked.keys() == set(range(count))
        assert {letter.reason for letter in queue.dead.list()} >= {"rejected"}
        stats = queue.stats()
        assert (stats.depth, stats.in_flight, stats.delayed) == (0, 0, 0)


WORKER = """
import sys, time
for line in sys.stdin:
    time.sleep(0.001)
    print(line.strip(), flush=True)
"""


class Worker:
    """A child process that is handed payloads over a pipe, and answers each with the same words."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def work(self, payload: bytes) -> None:
        """Have it work on a message; raises ChildProcessError where it dies of that."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(payload.decode() + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ChildProcessError("it is dead") from None
        assert select.select([self.process.stdout], [], [], 30)[0], "a child says nothing"
        if self.process.stdout.readline() != payload.decode() + "\n":
            raise ChildProcessError("it died of its work")

    def end(self) -> None:
        """Kill it, and close the pipes."""
        self.process.kill()
        with suppress(BrokenPipeError):
            self.process.communicate()


def test_children_that_the_owner_feeds_may_die_at_any_time(tmp_path: Path, threads: Threads) -> None:
    """Their threads hear of it and give back; every message is done in the end, by a child that lived to say so."""
    count = 1500
    receipts = Receipts()
    workers: list[Worker] = [Worker() for _ in range(CONSUMER_COUNT)]
    killed_count = 0
    is_over = threading.Event()
    with PersistentQueue(
        tmp_path / "q",
        mode="exclusive",
        flush=FlushPolicy.never(),
        backoff=[0.001],
        lease_seconds=0.05,
        max_deliveries=None,
    ) as queue:

        def feed(number: int) -> None:
            while queue.stats().depth:
                with suppress(Empty, ChildProcessError), queue.receive(timeout=0.05) as delivery:
                    receipts.add(delivery)
                    try:
                        workers[number].work(delivery.payload)
                    except ChildProcessError:
                        workers[number].end()
                        workers[number] = Worker()
                        raise
                    receipts.ack(delivery)

        def kill() -> None:
            nonlocal killed_count
            choice = random.Random(SEED)
            while not is_over.wait(choice.uniform(0, 0.02)):
                choice.choice(workers).process.kill()
                killed_count += 1

        queue.put_many([b"%d" % number for number in range(count)])
        consumers = [threads.start(lambda number=number: feed(number)) for number in range(CONSUMER_COUNT)]  # type: ignore[misc]
        threads.start(kill)
        for each in consumers:
            each.join(100)
        is_over.set()
        threads.join(20)
        for worker in workers:
            worker.end()
        assert receipts.acked == Counter(range(count))
        assert queue.stats().depth == len(queue.dead) == 0
    assert killed_count > 5

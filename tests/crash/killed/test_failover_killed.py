"""SIGKILL of a node, and of those that take its queue over: nothing is lost, nothing comes again behind its ack.

``HOLDFAST_TEST_KILL_ROUNDS`` makes the run longer, ``HOLDFAST_TEST_SEED`` makes it another one.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from holdfast import Empty, FlushPolicy, PersistentQueue
from holdfast.service import failover
from holdfast.service.queue_service import QueueService
from holdfast.service.typed_queue import TypedQueue
from support.processes.children import Child
from support.workloads.kill_work import Journal

ROUNDS = int(os.environ.get("HOLDFAST_TEST_KILL_ROUNDS", "6"))
SEED = int(os.environ.get("HOLDFAST_TEST_SEED", "20261121"))
WORK_SECONDS_MAX = 0.3
LEFT_COUNT = 60
TAKERS = ("node-2", "node-3")

Work = Callable[[Path, str, Journal], None]


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(failover, "UNFINISHED_SECONDS", 0.01)


def open_node(path: Path, node: str) -> tuple[QueueService, TypedQueue[int], TypedQueue[int]]:
    """Open a node's service, its orders with those of the first node, and what it has done."""
    service = QueueService(path / node, catalog=False)
    also_read = [path / "node-1" / "orders"] if node in TAKERS else []
    settings = {"flush": FlushPolicy.never(), "data_file_bytes": 16 * 2**10, "max_deliveries": None}
    orders = service.queue("orders", type=int, also_read=also_read, **settings)
    return service, orders, service.queue("done", type=int, **settings)


def leave(path: Path, first: int, journal: Journal) -> None:
    """Be the first node: put messages, finish one and take some more, and die."""
    service, orders, done = open_node(path, "node-1")
    orders.put_many(range(first, first + LEFT_COUNT))
    with service.transaction() as tx:
        message = tx.receive(orders, timeout=0)
        journal.note("h", message.body)
        tx.put(done, message.body)
        tx.ack(message)
    journal.note("a", message.body)
    orders.receive_many(7, timeout=0)
    os.kill(os.getpid(), signal.SIGKILL)


def handle(path: Path, node: str, journal: Journal) -> None:
    """Handle what the first node has left: ``h`` before the acknowledgement, ``a`` when it has returned."""
    _, orders, _ = open_node(path, node)
    while True:
        batch = orders.receive_many(5, timeout=10)
        for body in batch.bodies:
            journal.note("h", body)
        batch.ack()
        for body in batch.bodies:
            journal.note("a", body)


def move(path: Path, node: str, journal: Journal) -> None:
    """Move what the first node has left to what this one has done, in transactions."""
    service, orders, done = open_node(path, node)
    while True:
        message = orders.receive(timeout=10)
        with service.transaction() as tx:
            tx.put(done, message.body)
            tx.ack(message)
        journal.note("m", message.body)


def kill_in_the_middle(work: Work, path: Path, node: str, journal: Journal, choice: random.Random) -> None:
    """Have a node work until there are some more lines, and kill it."""
    process = Child(partial(work, path, node, journal))
    enough = journal.size() + choice.randrange(400)
    deadline = time.monotonic() + WORK_SECONDS_MAX
    while journal.size() < enough and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.0002)
    time.sleep(choice.uniform(0, 0.005))
    process.kill()
    assert process.wait() == -signal.SIGKILL, f"HOLDFAST_TEST_SEED={SEED}"


def fail_over(work: Work, path: Path, journal: Journal, choice: random.Random, number: int) -> None:
    """Have the first node die, and then some that take over what it left."""
    assert Child(partial(leave, path, number * LEFT_COUNT, journal)).wait() == -signal.SIGKILL
    for _ in range(choice.randint(1, 3)):
        kill_in_the_middle(work, path, choice.choice(TAKERS), journal, choice)


def left(path: Path) -> int:
    """Return how many messages the first node has that are not finished."""
    with PersistentQueue(path / "node-1" / "orders", mode="read_only") as queue:
        return queue.stats().depth


def bodies(queue: TypedQueue[int]) -> list[int]:
    """Take everything."""
    return [body for batch in queue.consume_many(100, max_wait=0, stop_when_empty=True) for body in batch.bodies]


def test_what_is_acknowledged_never_comes_again_and_the_rest_always_does(tmp_path: Path) -> None:
    """However many die that take over: the last one finishes what was left."""
    choice = random.Random(SEED)
    journal = Journal(tmp_path / "journal")
    for number in range(ROUNDS):
        fail_over(handle, tmp_path, journal, choice, number)
    service, orders, _ = open_node(tmp_path, "node-3")
    with service:
        while left(tmp_path):
            message = orders.receive(timeout=10)
            journal.note("h", message.body)
            message.ack()
            journal.note("a", message.body)
        with pytest.raises(Empty):
            orders.receive(timeout=0.1)
    finished: set[str] = set()
    handled: set[str] = set()
    for kind, body in journal.lines():
        if kind == "a":
            finished.add(body)
        else:
            assert body not in finished, f"HOLDFAST_TEST_SEED={SEED}: {body} came again"
            handled.add(body)
    assert handled == set(map(str, range(ROUNDS * LEFT_COUNT))), f"HOLDFAST_TEST_SEED={SEED}"
    journal.close()


def test_transactions_move_what_a_dead_node_left_exactly_once(tmp_path: Path) -> None:
    """What one of those that died has decided holds for the next one, which asks its files."""
    choice = random.Random(SEED)
    journal = Journal(tmp_path / "journal")
    for number in range(ROUNDS):
        fail_over(move, tmp_path, journal, choice, number)
    service, orders, done = open_node(tmp_path, "node-3")
    with service:
        while left(tmp_path):
            message = orders.receive(timeout=10)
            with service.transaction() as tx:
                tx.put(done, message.body)
                tx.ack(message)
    moved = []
    for node in ("node-1", *TAKERS):
        service, _, done = open_node(tmp_path, node)
        with service:
            moved += bodies(done)
    expected = list(range(ROUNDS * LEFT_COUNT))
    assert sorted(moved) == expected, f"HOLDFAST_TEST_SEED={SEED}"
    journal.close()

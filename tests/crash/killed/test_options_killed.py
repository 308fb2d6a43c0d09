"""SIGKILL at random moments: delayed messages are neither early nor lost, keys stay in order, priorities are found.

``HOLDFAST_TEST_SEED`` makes the runs others; ``HOLDFAST_TEST_KILL_ROUNDS`` makes them longer.
"""

import os
import random
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from holdfast import Empty, FlushPolicy, PersistentQueue, Put
from holdfast.queue.options.queue_options import Mode
from holdfast.queue.options.settings import Settings
from support.processes.children import Child, Signal, child
from support.workloads.kill_work import Journal

ROUNDS = int(os.environ.get("HOLDFAST_TEST_KILL_ROUNDS", "8"))
SEED = int(os.environ.get("HOLDFAST_TEST_SEED", "20261121"))
POLICIES = [FlushPolicy.every_commit(), FlushPolicy.every(commits=10), FlushPolicy.never()]
FILE_BYTES = 16 * 2**10
KEYS, EACH = 5, 60


def open_queue(path: Path, policy: FlushPolicy, mode: Mode = "exclusive", *, can_own: bool = True) -> PersistentQueue:
    """Open a queue whose data files roll all the time; nothing becomes a dead letter."""
    settings: Settings = {"data_file_bytes": FILE_BYTES, "max_deliveries": None, "backoff": [0.01]}
    return PersistentQueue(path, mode=mode, can_own=can_own, flush=policy, **settings)


def kill_after(process: Child, journal: Journal, choice: random.Random) -> None:
    """Let a process do a random amount of work, then kill it."""
    enough = journal.size() + choice.randrange(2000)
    deadline = time.monotonic() + 2
    while journal.size() < enough and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.0005)
    process.kill()
    process.wait()


# -- Delay -----------------------------------------------------------------------------------------------------------


def put_and_take_delayed(path: Path, policy: FlushPolicy, journal: Journal, seed: int) -> None:
    """Put messages whose payload says when they are due; take what is due, and say when."""
    choice = random.Random(seed)
    with open_queue(path, policy) as queue:
        while True:
            seconds = choice.choice([0.001, 0.02, 0.1, 0.4])
            name = f"{time.time_ns() + round(seconds * 1e9)}-{choice.randrange(2**40)}"
            queue.put(name.encode() + b" " * choice.randrange(600), delay=seconds)
            journal.note("P", name)
            if choice.random() < 0.5:
                take_delayed(queue, journal, choice)


def take_delayed(queue: PersistentQueue, journal: Journal, choice: random.Random) -> None:
    """Take a message, say so, and finish it, or let it fail."""
    try:
        delivery = queue.receive(timeout=choice.choice([0, 0.01]))
    except Empty:
        return
    journal.note("T", delivery.payload.decode().strip(), time.time_ns())
    if choice.random() < 0.8:
        delivery.ack()
    else:
        delivery.nack()


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_delayed_message_is_never_early_and_never_lost(tmp_path: Path, policy: FlushPolicy) -> None:
    """Put, killed, opened again, taken, nacked: each comes, none before its time."""
    choice, journal = random.Random(f"{SEED} {policy}"), Journal(tmp_path / "journal")
    for _ in range(ROUNDS):
        work = partial(put_and_take_delayed, tmp_path / "queue", policy, journal, choice.randrange(2**32))
        kill_after(Child(work), journal, choice)
    with open_queue(tmp_path / "queue", policy) as queue:
        deadline = time.monotonic() + 30
        while queue.stats().depth and time.monotonic() < deadline:
            take_delayed(queue, journal, random.Random(1))
        assert queue.stats().depth == 0
        assert not queue.recovery.damage
    lines = journal.lines()
    put = {line[1] for line in lines if line[0] == "P"}
    taken = [(line[1], int(line[2])) for line in lines if line[0] == "T"]
    assert len(put) >= ROUNDS
    early = [(name, at) for name, at in taken if at < int(name.split("-")[0])]
    assert not early, f"SEED {SEED}: early {early[:3]}"
    assert put <= {name for name, _ in taken}, f"SEED {SEED}: lost {sorted(put - {name for name, _ in taken})[:3]}"


# -- Order keys ------------------------------------------------------------------------------------------------------


def consume_keys(path: Path, policy: FlushPolicy, journal: Journal, seed: int) -> None:
    """Three threads that receive, and acknowledge, nack, release or reject nothing in order."""
    with open_queue(path, policy) as queue:
        threads = [threading.Thread(target=consume_in_thread, args=(queue, journal, seed + n)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def consume_in_thread(queue: PersistentQueue, journal: Journal, seed: int) -> None:
    """Note ``D key number`` once a message is in hand, ``a`` or ``n`` before it is settled either way."""
    choice = random.Random(seed)
    while queue.stats().depth:
        try:
            batch = queue.receive_many(choice.choice([1, 2, 10]), timeout=0.02)
        except Empty:
            continue
        for delivery in batch:
            journal.note("D", *delivery.payload.decode().split())
        for delivery in choice.sample(list(batch), len(batch)):
            what = choice.random()
            journal.note("a" if what < 0.6 else "n", *delivery.payload.decode().split())
            if what < 0.6:
                delivery.ack()
            elif what < 0.8:
                delivery.nack(delay=choice.choice([None, 0, 0.005]))
            else:
                delivery.release()


def judge_keys(lines: list[list[str]]) -> dict[str, int]:
    """Hold a journal to the promise; return the last number of each key that was seen."""
    current: dict[str, int] = {}
    state: dict[str, str] = {}
    for number, line in enumerate(lines):
        if line[0] == "R":  # the process died: nothing is in flight any more
            state = {key: was if was != "D" else "n" for key, was in state.items()}
            continue
        kind, key, name = line
        if kind == "D":
            allowed = {current.get(key, 0)} if state.get(key) != "a" else {current[key], current[key] + 1}
            assert state.get(key) != "D", f"line {number}: {name} of key {key} beside {current[key]}"
            assert int(name) in allowed, f"line {number}: {name} of key {key}, not one of {allowed}"
            current[key] = int(name)
        state[key] = kind
    return current


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_keys_are_always_in_order_and_one_at_a_time(tmp_path: Path, policy: FlushPolicy) -> None:
    """Several consumers, nacks, releases, and SIGKILL again and again."""
    choice, journal = random.Random(f"{SEED} keys {policy}"), Journal(tmp_path / "journal")
    with open_queue(tmp_path / "queue", policy) as queue:
        for number in range(EACH):
            queue.put_many(
                [
                    Put(b"%d %d" % (key, number) + b" " * choice.randrange(300), order_key=f"{key}")
                    for key in range(KEYS)
                ]
            )
    for _ in range(ROUNDS):
        work = partial(consume_keys, tmp_path / "queue", policy, journal, choice.randrange(2**32))
        kill_after(Child(work), journal, choice)
        journal.note("R")
    last = Child(partial(consume_keys, tmp_path / "queue", policy, journal, 5))
    assert last.wait(60) == 0
    try:
        seen = judge_keys(journal.lines())
    except AssertionError as broken:
        pytest.fail(f"HOLDFAST_TEST_SEED={SEED}, {policy}: {broken}", pytrace=False)
    assert seen == {str(key): EACH - 1 for key in range(KEYS)}
    with open_queue(tmp_path / "queue", policy) as queue:
        assert queue.stats().depth == 0


# -- Priorities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_priorities_are_found_behind_a_long_backlog_after_a_kill(tmp_path: Path, policy: FlushPolicy) -> None:
    """Of the writer, of the reader, of both; whoever comes next takes them first."""
    path = tmp_path / "queue"
    plain = [b"plain %d" % number for number in range(20_000)]

    def write() -> None:
        queue = open_queue(path, policy)
        queue.put_many(plain)
        queue.put_many([b"more", Put(b"one", priority=1), Put(b"nine", priority=9), b"more"])
        os.kill(os.getpid(), signal.SIGKILL)

    def read() -> None:
        queue = open_queue(path, policy)
        assert queue.get(timeout=0) == b"nine"
        held = [queue.receive(timeout=0) for _ in range(5)]
        assert [delivery.payload for delivery in held] == [b"one", *plain[:4]]
        held[2].ack()
        queue.put(b"five", priority=5)
        os.kill(os.getpid(), signal.SIGKILL)

    assert Child(write).wait() == -signal.SIGKILL
    assert Child(read).wait() == -signal.SIGKILL
    with open_queue(path, policy) as queue:
        found = [queue.get(timeout=0) for _ in range(6)]
        assert found == [b"five", b"one", plain[0], *plain[2:5]]
        assert queue.stats().depth == 20_000 - 5 + 2


@pytest.mark.parametrize("owns", ["the consumer", "the producer"])
def test_a_consumer_finds_the_priorities_of_a_producer_that_was_killed(tmp_path: Path, owns: str) -> None:
    """A process that shares the queue, and outlives several that put; it owns the queue, or takes it over each time."""
    path, said = tmp_path / "queue", Signal()
    policy = FlushPolicy.every_commit()
    open_queue(path, policy, "exclusive").close()

    def produce(number: int) -> None:
        queue = open_queue(path, policy, "shared", can_own=owns == "the producer")
        queue.put_many([b"plain"] * 3000)
        queue.put(b"urgent %d" % number, priority=1 + number)
        said.send()
        time.sleep(60)

    with open_queue(path, policy, "shared", can_own=owns == "the consumer") as consumer:
        for number in range(3):
            with child(partial(produce, number)) as producer:
                said.wait()
                producer.kill()
                producer.wait()
            taken = [consumer.get(timeout=5) for _ in range(66)]
            assert b"urgent %d" % number in taken
    said.close()

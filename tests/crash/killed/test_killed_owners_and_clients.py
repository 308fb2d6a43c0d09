"""Processes that share a queue put batches of all sizes while owners and clients are killed at random moments."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from holdfast import CommitUnknownError, FlushPolicy, HoldfastError, PersistentQueue, RetryableError
from holdfast.queue.client import staging
from support.processes.children import Child
from support.workloads.kill_work import Journal

POLICIES = {"every_commit": FlushPolicy.every_commit(), "never": FlushPolicy.never()}
FILE_BYTES = 16 * 2**10
STAGED_BYTES = 4000
"""A client stages larger batches in files of their own: far below the real bound, so that many are."""

SECONDS = 2.5
CLIENTS = 4


def put_until_killed(path: Path, journal: Journal, key: int) -> None:
    """Put numbered messages, alone and in batches; note each before it is put and once it is.

    It ends where owners died so often that an outcome is unknown: only its last batch may be there or not.
    """
    staging.STAGED_BYTES = STAGED_BYTES  # type: ignore[misc]
    choice, number = random.Random(key), 0
    queue = PersistentQueue(path, mode="shared", can_own=False)
    while True:
        count = choice.choice([1, 1, 1, 5, 40])
        payloads = [
            f"{key}:{each}:".encode().ljust(choice.randrange(20, 300), b".") for each in range(number, number + count)
        ]
        journal.note("p", key, number, count)
        try:
            first = queue.put(payloads[0]) if count == 1 else queue.put_many(payloads).start
        except (CommitUnknownError, RetryableError) as error:
            journal.note("U", key, type(error).__name__)
            return
        except HoldfastError as error:
            journal.note("X", key, repr(error).replace(" ", "_"))
            raise
        journal.note("P", key, number, count, first)
        number += count


def own(path: Path) -> None:
    """Own the queue until killed."""
    with PersistentQueue(path, mode="shared"):
        time.sleep(60)


@pytest.mark.parametrize("policy", POLICIES)
def test_killed_owners_and_killed_clients_lose_double_and_reorder_nothing(tmp_path: Path, policy: str) -> None:
    """Owners come and go, by SIGKILL; now and then there is none, and clients own the queue for a moment."""
    path, choice = tmp_path / "orders", random.Random(7)
    PersistentQueue(path, mode="exclusive", flush=POLICIES[policy], data_file_bytes=FILE_BYTES).close()
    journal = Journal(tmp_path / "journal")
    keys = iter(range(1000))
    clients: dict[int, Child] = {}
    owner: Child | None = None
    deadline, deaths = time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline or deaths < 3 or acknowledged_count(journal) <= 50:  # a busy machine needs longer
        clients = {key: each for key, each in clients.items() if each.is_alive()}
        while len(clients) < CLIENTS:
            key = next(keys)
            clients[key] = Child(lambda key=key: put_until_killed(path, journal, key))
        if owner is None:
            owner = Child(lambda: own(path))
        time.sleep(choice.uniform(0.02, 0.25))
        if choice.random() < 0.6:
            assert owner.is_alive(), "the owner could not open the queue"
            owner.kill()
            owner.wait()
            owner, deaths = None, deaths + 1
            time.sleep(choice.choice([0, 0, 0.15]))
        elif choice.random() < 0.5:
            clients[choice.choice(list(clients))].kill()
    for each in (*clients.values(), *([owner] if owner else [])):
        each.kill()
        each.wait()
    assert deaths >= 3
    judge(path, journal)


def acknowledged_count(journal: Journal) -> int:
    """Return how many batches were acknowledged."""
    return sum(line[0] == "P" for line in journal.lines())


def judge(path: Path, journal: Journal) -> None:
    """Hold the log to the journal: promises 1 to 3, for each client."""
    lines = journal.lines()
    assert not [line for line in lines if line[0] == "X"]
    with PersistentQueue(path, mode="exclusive", lock_timeout=5) as queue:
        assert not queue.recovery.damage
        messages = queue.peek(10**6)
    found: dict[int, list[tuple[int, int]]] = {}
    for message in messages:
        key, number, _ = message.payload.split(b":")
        found.setdefault(int(key), []).append((int(number), message.offset))
    for key, places in found.items():
        numbers = [number for number, _ in places]
        assert numbers == list(range(len(numbers))), f"client {key}: lost, doubled or out of order"
        asked = [(int(at), int(count)) for kind, by, at, count, *_ in lines if kind == "p" and int(by) == key]
        assert len(numbers) in {at + count for at, count in asked} | {at for at, _ in asked}, "half a batch"
    acknowledged = 0
    for kind, key_text, *rest in lines:
        if kind == "P":
            at, count, first = map(int, rest)
            of_client = dict(found[int(key_text)])
            assert [of_client[at + each] for each in range(count)] == [first + each for each in range(count)]
            acknowledged += 1
    assert acknowledged > 50, "hardly anything happened"

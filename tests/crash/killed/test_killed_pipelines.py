"""SIGKILL at random moments of pipelines that work in transactions: nothing is lost, and nothing is doubled.

``HOLDFAST_TEST_KILL_ROUNDS`` makes the run longer, ``HOLDFAST_TEST_SEED`` makes it another one.
"""

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from holdfast import Empty, PersistentQueue
from support.processes.children import Child
from support.workloads.kill_work import Journal
from support.workloads.pipeline_work import (
    KEY_COUNT,
    POLICIES,
    Work,
    decide_prepared,
    feed,
    hop_of,
    move,
    move_between_shared_queues,
    number_of,
    open_queue,
    relay,
    relay_prepared,
    relayed,
    reporting,
)

ROUNDS = int(os.environ.get("HOLDFAST_TEST_KILL_ROUNDS", "30"))
SEED = int(os.environ.get("HOLDFAST_TEST_SEED", "20250711"))
WORK_SECONDS_MAX = 1.0


def kill_in_the_middle(work: Work, path: Path, journal: Journal, choice: random.Random) -> None:
    """Start a process, let it do a random amount of work, sometimes none at all, and kill it."""
    process = Child(partial(reporting, work, path, choice.choice(POLICIES), journal, choice.randrange(2**32)))
    enough = journal.size() + (0 if choice.random() < 0.2 else int(2 ** choice.uniform(2, 10)))
    deadline = time.monotonic() + WORK_SECONDS_MAX
    while journal.size() < enough and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.0002)
    time.sleep(choice.uniform(0, 0.008))
    process.kill()
    status = process.wait()
    wrong = [" ".join(line) for line in journal.lines() if line[0] == "X"]
    assert not wrong, f"HOLDFAST_TEST_SEED={SEED}: {wrong}"
    assert status in (-signal.SIGKILL, 0)


def drained(queue: PersistentQueue) -> list[bytes]:
    """Take everything."""
    payloads: list[bytes] = []
    try:
        while True:
            payloads += queue.get_many(1000, timeout=0)
    except Empty:
        return payloads


def count(journal: Journal, kind: str) -> int:
    """Return how many lines of a kind there are."""
    return sum(line[0] == kind for line in journal.lines())


@pytest.mark.parametrize("work", [move, move_between_shared_queues], ids=lambda work: work.__name__)
def test_messages_move_from_one_queue_to_the_other_once(tmp_path: Path, work: Work) -> None:
    """Every number is in one of the queues and in no other, in order, after every kill."""
    choice = random.Random(f"{SEED} {work.__name__}")
    journal = Journal(tmp_path / "journal")
    for number in range(ROUNDS):
        with open_queue(tmp_path / "in", POLICIES[0]) as source:
            feed(source)
        kill_in_the_middle(work, tmp_path, journal, choice)
        if number % 5 == 0:
            check_moved(tmp_path, choice, take=False)
    moved = check_moved(tmp_path, choice, take=True)
    assert moved >= count(journal, "C") >= ROUNDS // 2, "the processes were killed before they did anything"


def check_moved(path: Path, choice: random.Random, *, take: bool) -> int:
    """Open both queues, in any order, and look at, or take, all there is; return how many numbers have moved."""
    queues = {name: open_queue(path / name, choice.choice(POLICIES)) for name in choice.sample(("in", "out"), 2)}
    shown: dict[str, list[bytes]] = {}
    for name, queue in queues.items():
        assert not queue.prepared(), "nobody is left who could be asked"
        assert not queue.recovery.damage
        shown[name] = drained(queue) if take else [message.payload for message in queue.peek(10**6)]
        assert take or queue.stats().depth == len(shown[name])
    end = queues["in"].stats().next_offset
    for queue in queues.values():
        queue.close()
    numbers = [number_of(payload) for payload in shown["out"]]
    assert numbers == list(range(len(numbers))), f"HOLDFAST_TEST_SEED={SEED}: moved {numbers}"
    left = [number_of(payload) for payload in shown["in"]]
    assert left == list(range(len(numbers), end)), f"HOLDFAST_TEST_SEED={SEED}: moved {len(numbers)}, left {left}"
    return len(numbers)


@pytest.mark.parametrize("work", [relay, relay_prepared], ids=lambda work: work.__name__)
def test_one_message_is_passed_on_for_each_key(tmp_path: Path, work: Work) -> None:
    """Taking and putting happen together: after every kill there is one message of each key, with its last hop."""
    choice = random.Random(f"{SEED} {work.__name__}")
    journal = Journal(tmp_path / "journal")
    with open_queue(tmp_path / "relay", POLICIES[0]) as queue:
        queue.put_many([relayed(key, 0) for key in range(KEY_COUNT)])
    for number in range(ROUNDS):
        kill_in_the_middle(work, tmp_path, journal, choice)
        if number % 5 == 0:
            check_relayed(tmp_path, journal, choice)
    hops = check_relayed(tmp_path, journal, choice)
    commits = [line for line in journal.lines() if line[0] == "C"]
    returned = {line[1] if work is relay_prepared else str(at): int(line[-1]) for at, line in enumerate(commits)}
    assert hops >= sum(returned.values()), (
        f"HOLDFAST_TEST_SEED={SEED}: {sum(returned.values())} were told, {hops} are there"
    )
    assert len(returned) >= ROUNDS // 2, "the processes were killed before they did anything"


def check_relayed(path: Path, journal: Journal, choice: random.Random) -> int:
    """Decide what is in doubt, and look at all there is; return the hops of all keys."""
    with open_queue(path / "relay", choice.choice(POLICIES)) as queue:
        decide_prepared(queue, journal)
        assert not queue.recovery.damage
        found = dict(hop_of(message.payload) for message in queue.peek(10**6))
        assert queue.stats().depth == len(found) == KEY_COUNT, f"HOLDFAST_TEST_SEED={SEED}: {found}, {queue.stats()}"
        return sum(found.values())

"""SIGKILL of real processes that have messages in hand: deliveries are counted, the poison is found, nothing is lost.

``HOLDFAST_TEST_KILL_ROUNDS`` makes the random run longer, ``HOLDFAST_TEST_SEED`` makes it another one.
"""

import json
import os
import random
import signal
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from holdfast import DeadLetter, Empty, FlushPolicy, LeaseExpiredError, PersistentQueue
from support.builders.jobs import drained, fail, ready
from support.builders.settings import set_first
from support.processes.children import Child

ROUNDS = int(os.environ.get("HOLDFAST_TEST_KILL_ROUNDS", "20"))
SEED = int(os.environ.get("HOLDFAST_TEST_SEED", "20240521"))
POLICIES = [FlushPolicy.every_commit(), FlushPolicy.every(commits=10), FlushPolicy.never()]


class Journal:
    """A file into which processes write what they have done, a line at a time; a kill does not lose it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(self, *words: object) -> None:
        """Add a line."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def lines(self) -> list[list[str]]:
        """Return all lines, as words."""
        return [line.split() for line in self._path.read_text().splitlines()]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """An empty one."""
    return Journal(tmp_path / "journal")


def die() -> None:
    """End as by ``kill -9``."""
    os.kill(os.getpid(), signal.SIGKILL)


def make(path: Path, count: int) -> Path:
    """Make a queue with so many messages."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put_many([b"%d" % number for number in range(count)])
    return path


def open_again(path: Path, policy: FlushPolicy = POLICIES[0], **options: Any) -> PersistentQueue:
    """Open it without back-off, under this policy from now on."""
    set_first(path, flush=policy)
    return PersistentQueue(path, flush=policy, backoff=[], **{"mode": "exclusive", **options})


# -- Poison ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_message_that_kills_its_consumer_dies_after_five_and_takes_no_other_along(
    tmp_path: Path, journal: Journal, policy: FlushPolicy
) -> None:
    """Those of its batch come one by one from then on, and are all done; the next batches come in company."""
    path = make(tmp_path / "orders", 30)

    def work() -> None:
        queue = open_again(path, policy)
        with suppress(Empty):
            while True:
                with queue.receive_many(10, timeout=0) as batch:
                    journal.note("batch", *(f"{each.offset}:{each.delivery_count}" for each in batch))
                    if any(each.payload == b"4" for each in batch):
                        die()
                for each in batch:
                    journal.note("done", each.offset)
        queue.close()

    statuses = []
    while not statuses or statuses[-1]:
        statuses.append(Child(work).wait())
        assert len(statuses) < 10, "it kills for ever"
    assert statuses == [-signal.SIGKILL] * 5 + [0]
    lines = journal.lines()
    batches = [words[1:] for words in lines if words[0] == "batch"]
    first = [f"{number}:1" for number in range(10)]
    singles = [[f"{number}:2"] for number in range(4)] + [[f"4:{count}"] for count in range(2, 6)]
    others = [[f"{number}:2"] for number in range(5, 10)]
    assert batches[0] == first
    assert batches[1:9] == singles
    assert sorted(batches[9:]) == sorted([*others, *([f"{start + at}:1" for at in range(10)] for start in (10, 20))])
    done = [int(words[1]) for words in lines if words[0] == "done"]
    assert sorted(done) == [number for number in range(30) if number != 4]
    with PersistentQueue(path, mode="read_only") as look:
        (letter,) = look.dead.list()
        assert (letter.payload, letter.reason, letter.delivery_count) == (b"4", "max_deliveries", 5)
        assert look.stats().depth == 0


@pytest.mark.parametrize("max_deliveries", [1, 2])
def test_the_message_of_a_process_that_dies_at_the_last_delivery_is_found_when_it_would_be_taken(
    tmp_path: Path, max_deliveries: int
) -> None:
    """Nobody was there to fail it; until then it is there, and counted as such."""
    path = make(tmp_path / "orders", 3)

    def work() -> None:
        open_again(path, max_deliveries=max_deliveries).receive()
        die()

    for _ in range(max_deliveries):
        assert Child(work).wait() == -signal.SIGKILL
    with open_again(path, max_deliveries=max_deliveries) as queue:
        assert drained(queue) == [b"1", b"2"]
        (letter,) = queue.dead.list()
        assert (letter.offset, letter.reason, letter.delivery_count) == (0, "max_deliveries", max_deliveries)
        assert letter.first_failure_ns <= letter.last_failure_ns <= time.time_ns()
        assert queue.dead.retry(letter) == 1
        assert queue.receive(timeout=0).delivery_count == 1


# -- What survives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_leases_of_a_killed_process_are_over(tmp_path: Path, policy: FlushPolicy) -> None:
    """However long they were; what it gave back by hand waits on, what it extended does not."""
    path = make(tmp_path / "orders", 5)

    def work() -> None:
        queue = open_again(path, policy, lease_seconds=100_000)
        batch = queue.receive_many(4)
        batch[0].ack()
        batch[1].nack(100_000)
        batch[2].extend(200_000)
        die()

    assert Child(work).wait() == -signal.SIGKILL
    set_first(path, lease_seconds=30)
    with open_again(path, policy) as queue:
        assert [each.offset for each in queue.browse("delayed")] == [1]
        found = [queue.receive(timeout=0) for _ in range(3)]
        assert [(each.offset, each.delivery_count) for each in found] == [(2, 2), (3, 2), (4, 1)]
        assert found[0].lease_seconds == 30


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_dead_letters_and_waits_survive_a_kill_as_they_were(tmp_path: Path, policy: FlushPolicy) -> None:
    """With reason, counts, times and what the exception said."""
    path = make(tmp_path / "orders", 6)
    shown = tmp_path / "shown.json"

    def as_text(letters: list[DeadLetter]) -> str:
        return json.dumps([{**asdict(each), "payload": each.payload.decode()} for each in letters])

    def work() -> None:
        queue = open_again(path, policy, max_deliveries=2)
        queue.receive().reject("not wanted")
        for _ in range(2):
            fail(queue.receive(), ValueError("größe"))
            time.sleep(0.01)
        queue.receive().nack(1000)
        queue.receive().nack(2000)
        shown.write_text(as_text(queue.dead.list()) + "\n" + repr(queue.browse("delayed")))
        die()

    assert Child(work).wait() == -signal.SIGKILL
    for _ in range(2):
        with open_again(path, policy) as queue:
            letters = queue.dead.list()
            assert [each.offset for each in letters] == [0, 1]
            assert as_text(letters) + "\n" + repr(queue.browse("delayed")) == shown.read_text()
            assert ready(queue) == [b"4", b"5"]


def test_what_was_decided_of_dead_letters_survives_a_kill(tmp_path: Path) -> None:
    """By the owner or from a process that asks: retried are ready, discarded are done."""
    path = make(tmp_path / "orders", 6)

    def work() -> None:
        queue = open_again(path)
        queue.receive_many(6).reject("no")
        queue.dead.retry([0, 1])
        queue.dead.discard(2)
        die()

    def ask() -> None:
        queue = PersistentQueue(path, mode="shared")
        queue.dead.retry(3)
        queue.dead.discard(4)
        die()

    assert Child(work).wait() == -signal.SIGKILL
    assert Child(ask).wait() == -signal.SIGKILL
    with open_again(path) as queue:
        assert [letter.offset for letter in queue.dead.list()] == [5]
        assert ready(queue) == [b"0", b"1", b"3"]
        assert queue.stats().depth == 3


# -- At random -------------------------------------------------------------------------------------------------------


def consume(queue: PersistentQueue, journal: Journal, choice: random.Random) -> None:
    """Take messages for leases that may be over too soon, and settle most of them, in a thread."""
    while True:
        try:
            delivery = queue.receive(timeout=0.05, lease_seconds=choice.choice([0.002, 0.01, 10]))
        except Empty:
            continue
        journal.note("given", delivery.offset, delivery.delivery_count)
        time.sleep(choice.choice([0, 0, 0.001, 0.03]))
        with suppress(LeaseExpiredError):
            if choice.random() < 0.7:
                delivery.ack()
                journal.note("acked", delivery.offset, delivery.delivery_count)
            elif choice.random() < 0.5:
                delivery.nack(choice.choice([0, 0.005, None]))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_what_was_acknowledged_before_a_kill_is_never_handed_out_again(
    tmp_path: Path, journal: Journal, policy: FlushPolicy
) -> None:
    """While leases run out all the time: counts grow with each delivery, and none grows beyond that of its ack."""
    path = make(tmp_path / "orders", 0)
    choice = random.Random(SEED + POLICIES.index(policy))
    put_count = 0

    def work(seed: int) -> None:
        set_first(path, flush=policy)
        queue = PersistentQueue(
            path, mode="exclusive", flush=policy, backoff=[0.003], max_deliveries=None, data_file_bytes=16 * 2**10
        )
        for number in range(4):
            own = random.Random(seed + number)
            threading.Thread(target=consume, args=(queue, journal, own), daemon=True).start()
        own = random.Random(seed - 1)
        while True:
            batch = [b"x" * own.randrange(500) for _ in range(own.randrange(1, 5))]
            journal.note("put", len(queue.put_many(batch)))
            time.sleep(0.002)

    for _ in range(ROUNDS):
        process = Child(lambda: work(choice.randrange(2**32)))
        time.sleep(choice.uniform(0.02, 0.4))
        process.kill()
        assert process.wait() == -signal.SIGKILL
    set_first(path, flush=policy, backoff=[])
    with PersistentQueue(path, mode="exclusive", flush=policy, max_deliveries=None, backoff=[]) as queue:
        assert not queue.recovery.damage, queue.recovery
        end = queue.stats().next_offset
        time.sleep(0.01)  # until nothing is delayed any more
        while queue.stats().depth:
            delivery = queue.receive(timeout=5)
            journal.note("given", delivery.offset, delivery.delivery_count)
            delivery.ack()
            journal.note("acked", delivery.offset, delivery.delivery_count)
        assert not queue.dead
    acked: dict[int, int] = {}
    given: dict[int, list[int]] = defaultdict(list)
    for verb, *numbers in journal.lines():
        if verb == "put":
            put_count += int(numbers[0])
            continue
        offset, count = map(int, numbers)
        if verb == "acked":
            assert offset not in acked, f"HOLDFAST_TEST_SEED={SEED}: {offset} was acknowledged twice"
            acked[offset] = count
        else:
            given[offset].append(count)
    assert end >= put_count > ROUNDS
    for offset, counts in given.items():
        assert len(set(counts)) == len(counts), (
            f"HOLDFAST_TEST_SEED={SEED}: {offset} was given with one count twice: {counts}"
        )
        assert max(counts) <= acked.get(offset, 2**63), f"HOLDFAST_TEST_SEED={SEED}: {offset} came again after its ack"
    assert max(max(counts) for counts in given.values()) > 2, "no lease has run out"

"""An acknowledged put is remembered by its id through every crash: simulated at every storage call, and by SIGKILL.

``HOLDFAST_TEST_CRASH_FULL=1`` has every kind of crash at each call, and not one in turn.
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from holdfast import FlushPolicy, PersistentQueue
from holdfast.queue.client import staging
from support.builders.clocks import FakeClock
from support.owners.machine_link import machine_links
from support.processes.children import Child
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.kill_work import Journal

ROOT = Path("/q")
FILE_BYTES = 16 * 2**10
LARGE = 5000  # three of them fill more than a data file
IDS_MAX = 12
FULL = bool(os.environ.get("HOLDFAST_TEST_CRASH_FULL"))
POLICIES = {"every_commit": FlushPolicy.every_commit(), "never": FlushPolicy.never()}


class Run:
    """A queue on a simulated disk, and after which of its operations which put had been acknowledged."""

    def __init__(self, storage: SimulatedStorage, policy: FlushPolicy) -> None:
        self.storage = storage
        self.policy = policy
        self.queue = opened(storage, policy)
        self.begun: dict[str, int] = {}
        self.acknowledged: dict[str, int] = {}
        self.offsets: dict[str, int] = {}

    def put(self, dedup_id: str, size: int = 10) -> None:
        """Put a message whose content says its id."""
        self.begun.setdefault(dedup_id, len(self.storage.log))
        offset = self.queue.put(dedup_id.encode().ljust(size, b"."), dedup_id=dedup_id)
        assert self.offsets.setdefault(dedup_id, offset) == offset, "a duplicate has another offset"
        self.acknowledged.setdefault(dedup_id, len(self.storage.log))

    def plain(self, size: int = LARGE) -> None:
        """Put a message that has no id."""
        self.queue.put(b"plain".ljust(size, b"."))

    def take_all(self) -> None:
        """Consume everything, one by one; files that are finished are retired."""
        while not self.queue.empty():
            self.queue.get()

    def reopen(self) -> None:
        """Close in order, and open."""
        self.queue.close()
        self.queue = opened(self.storage, self.policy)


def opened(storage: SimulatedStorage, policy: FlushPolicy) -> PersistentQueue:
    """Open the queue; time stands still, so no id expires."""
    return PersistentQueue(
        ROOT,
        mode="exclusive",
        flush=policy,
        data_file_bytes=FILE_BYTES,
        dedup_max=IDS_MAX,
        storage=storage,
        clock=FakeClock(),
    )


def rolls_and_retires(run: Run) -> None:
    """Ids in files that are sealed, consumed, retired and reused."""
    run.put("a")
    run.put("a")
    run.plain()
    run.put("b", LARGE)
    run.put("c", LARGE)
    run.put("a")
    run.put("b")
    run.take_all()
    run.put("d", LARGE)
    run.put("e", LARGE)
    run.put("a")


def closes_in_order(run: Run) -> None:
    """What is read at opening comes from the ring, and from the log."""
    run.put("a")
    run.reopen()
    run.put("b")
    run.put("a")
    run.reopen()
    run.plain()
    run.put("c", LARGE)
    run.take_all()
    run.put("d", LARGE)
    run.reopen()
    run.put("a")
    run.put("e")


def goes_round(run: Run) -> None:
    """More ids than are remembered: the ring is written over. Only the latest count."""
    for number in range(IDS_MAX + 5):
        run.put(f"n{number}", 1800)
        if number == IDS_MAX:
            run.reopen()
    run.take_all()


WORKLOADS: list[Callable[[Run], None]] = [rolls_and_retires, closes_in_order, goes_round]


def judge(run: Run, crashed: SimulatedStorage, operation_count: int, *, may_lose_all: bool) -> None:
    """Put every id again, in several lives: what was acknowledged is found, the rest is found or put, once."""
    choice = random.Random(operation_count)
    queue = opened(crashed, run.policy)
    end = queue.stats().next_offset
    known = [each for each, at in run.begun.items() if at < operation_count][-(IDS_MAX - 1) :]
    offsets: dict[str, int] = {}
    for dedup_id in known:
        before = queue.stats().next_offset
        offset = queue.put(dedup_id.encode(), dedup_id=dedup_id)
        first = run.offsets[dedup_id]
        is_acknowledged = run.acknowledged.get(dedup_id, operation_count + 1) <= operation_count
        assert offset in ({first} if first < end else set()) | {before}, f"{dedup_id} does not stand at {offset}"
        assert offset == first or may_lose_all or not is_acknowledged, f"{dedup_id} was acknowledged, and is lost"
        offsets[dedup_id] = offset
        if choice.random() < 0.3:
            queue.put(bytes(choice.choice([10, LARGE])))
    for life in range(2):
        killed = crashed.crash_keeping_all() if choice.random() < 0.5 else None
        queue.close()
        crashed = killed or crashed
        queue = opened(crashed, run.policy)
        end = queue.stats().next_offset
        assert {each: queue.put(b"", dedup_id=each) for each in known} == offsets, f"life {life}"
        assert queue.stats().next_offset == end
        queue.put(bytes(LARGE))
    queue.close()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_an_acknowledged_id_is_remembered_whatever_a_crash_leaves(workload: Callable[[Run], None], policy: str) -> None:
    """After a kill under every policy, after a power loss under every_commit; no id ever names another message."""
    storage = SimulatedStorage()
    run = Run(storage, POLICIES[policy])
    workload(run)
    run.queue.close()
    choice = random.Random(20240611)
    loses = not POLICIES[policy].syncs_every_commit
    for count, moment in enumerate(storage.replay()):
        if FULL or count % 3 == 0:
            judge(run, moment.crash_keeping_all(), count, may_lose_all=False)
        if FULL or count % 3 == 1:
            judge(run, moment.crash_dropping_unsynced(), count, may_lose_all=loses)
        if FULL or count % 3 == 2:
            judge(run, moment.random_crash(choice), count, may_lose_all=loses)


# -- Clients -----------------------------------------------------------------------------------------------------------

ASKED = [("first", b"first"), ("new", b"new"), ("new", b"new"), ("large", bytes(LARGE)), ("large", bytes(LARGE))]
"""Ids and payloads that two clients put in turn; the large ones in files that they stage."""


@pytest.mark.parametrize("policy", POLICIES)
def test_clients_that_ask_the_next_owner_again_have_each_id_put_once(policy: str) -> None:
    """Wherever the first owner was killed: what it answered keeps its offset, and the rest is put now."""
    storage, answered = SimulatedStorage(), [0]
    with machine_links(), mock.patch.object(staging, "STAGED_BYTES", LARGE - 1):
        one, two = (client(storage, POLICIES[policy]) for _ in range(2))
        begun = len(storage.log)
        for number, (dedup_id, payload) in enumerate(ASKED):
            assert (one, two)[number % 2].put(payload, dedup_id=dedup_id) == ["first", "new", "large"].index(dedup_id)
            answered.append(len(storage.log))
        two.close()
        one.close()
        for operation_count, is_kept, crashed in storage.prefix_crashes():
            if operation_count < begun or not is_kept:
                continue
            with client(crashed, POLICIES[policy]) as queue:
                shown = [each.payload for each in queue.peek(10)]
                offsets = [queue.put(payload, dedup_id=dedup_id) for dedup_id, payload in ASKED]
                assert offsets == [0, 1, 1, 2, 2]
            done = {payload for at, (_, payload) in zip(answered[1:], ASKED, strict=True) if at <= operation_count}
            assert done <= set(shown)
            with PersistentQueue(ROOT, mode="exclusive", storage=crashed) as queue:
                assert [each.payload for each in queue.peek(10)] == [b"first", b"new", bytes(LARGE)]


def client(storage: SimulatedStorage, policy: FlushPolicy) -> PersistentQueue:
    """Open a handle that shares the queue."""
    return PersistentQueue(ROOT, mode="shared", storage=storage, flush=policy, data_file_bytes=FILE_BYTES)


# -- Real processes are killed -----------------------------------------------------------------------------------------

SECONDS = 2.0


def put_until_killed(path: Path, journal: Journal, seed: int, policy: FlushPolicy) -> None:
    """Put ids, new ones and old ones again, and consume; note each before it is put and once it is."""
    choice = random.Random(seed)
    with PersistentQueue(path, mode="exclusive", flush=policy, data_file_bytes=FILE_BYTES) as queue:
        known = [line[1] for line in journal.lines() if line[0] == "p"]
        for number in range(10**6):
            dedup_id = choice.choice(known) if known and choice.random() < 0.5 else f"{seed}:{number}"
            known.append(dedup_id)
            journal.note("p", dedup_id)
            offset = queue.put(dedup_id.encode().ljust(choice.randrange(20, 900), b"."), dedup_id=dedup_id)
            journal.note("P", dedup_id, offset)
            if choice.random() < 0.5 and not queue.empty():
                payload = queue.get()
                journal.note("G", payload.rstrip(b".").decode())


def put_ids(journal: Journal) -> set[str]:
    """Return the ids that were put for certain."""
    return {line[1] for line in journal.lines() if line[0] == "P"}


@pytest.mark.parametrize("policy", POLICIES)
def test_killed_processes_forget_no_id(tmp_path: Path, policy: str) -> None:
    """One offset for each id, through a dozen kills; and no id is ever given out twice."""
    path = tmp_path / "orders"
    journal = Journal(tmp_path / "journal")
    choice, deadline, kills = random.Random(5), time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline or kills < 4 or len(put_ids(journal)) <= 50:  # a busy machine needs longer
        seed = kills
        worker = Child(lambda seed=seed: put_until_killed(path, journal, seed, POLICIES[policy]))
        time.sleep(choice.uniform(0.05, 0.3))
        assert worker.is_alive()
        worker.kill()
        worker.wait()
        kills += 1
    offsets: dict[str, int] = {}
    taken = [line[1] for line in journal.lines() if line[0] == "G"]
    for line in journal.lines():
        if line[0] == "P":
            assert offsets.setdefault(line[1], int(line[2])) == int(line[2]), f"{line[1]} has two offsets"
    assert len(set(offsets.values())) == len(offsets) > 50
    with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        assert {each: queue.put(b"", dedup_id=each) for each in offsets} == offsets
        left = [message.payload.rstrip(b".").decode() for message in queue.peek(10**6)]
    assert len(set(taken)) == len(taken), "an id was given out twice"
    assert len(set(left)) == len(left), "an id stands in the log twice"
    journal.close()

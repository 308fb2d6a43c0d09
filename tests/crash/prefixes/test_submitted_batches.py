"""Submitted batches survive whatever dies, once and in order: at every storage call of an owner, and with SIGKILL."""

import os
import random
import time
from pathlib import Path

import pytest

from holdfast import FlushPolicy, HoldfastError, PersistentQueue
from holdfast.persistence.format.constants import ANSWER_DONE
from support.builders.handles import handle_of
from support.builders.requested import DIRECTORY, Asked, Asker, answer_in, payloads_in, queue_in, serve_all
from support.processes.children import Child
from support.processes.threads import wait_until
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.kill_work import Journal

POLICIES = {"every_commit": FlushPolicy.every_commit(), "never": FlushPolicy.never()}


# -- An owner dies at each of its storage calls ------------------------------------------------------------------------


def asked_on(storage: SimulatedStorage, policy: FlushPolicy) -> tuple[str, list[Asked]]:
    """Make a queue with two messages, and leave four requests in it: small ones, and one that is adopted."""
    with queue_in(storage, policy) as queue:
        queue.put_many([b"before 0", b"before 1"])
        asker = Asker(storage, handle_of(queue).queue_id)
    asked = [
        asker.ask(64, b"a"),
        asker.ask(65, b"b 0", b"b 1"),
        asker.ask(66, b"large " * 2000, b"end of large"),
        asker.ask(67, b"c"),
    ]
    for directory in (DIRECTORY.root, DIRECTORY.requests):
        storage.sync_directory(directory)
    return asker.mailbox.name, asked


def hold_to(storage: SimulatedStorage, asked: list[Asked], *, all_there: bool) -> list[bytes]:
    """Assert that each request is in the log once, or not at all, whole and in order; return the log."""
    log = payloads_in(storage)
    assert log[:2] == [b"before 0", b"before 1"]
    expected = [payload for each in asked if all_there or each.payloads[0] in log for payload in each.payloads]
    assert log[2:] == expected
    return log


@pytest.mark.parametrize("policy", POLICIES)
def test_an_owner_killed_at_any_call_leaves_each_request_to_the_next_one_exactly_once(policy: str) -> None:
    """Who asked is alive, and is answered with the offsets under which its messages stand in the log."""
    storage = SimulatedStorage()
    mailbox, asked = asked_on(storage, POLICIES[policy])
    begun = len(storage.log)
    serve_all(storage, POLICIES[policy])
    assert len(storage.log) > begun + 20, "the owner did something"
    for operation_count, is_kept, crashed in storage.prefix_crashes():
        if operation_count < begun or not is_kept:
            continue
        answer_in(crashed, mailbox, 64)  # holds the lock: it is alive
        serve_all(crashed, POLICIES[policy])
        log = hold_to(crashed, asked, all_there=True)
        for each in asked:
            answer = answer_in(crashed, mailbox, each.number)
            assert answer is not None, f"request {each.number} was not answered after {operation_count} operations"
            assert answer.verdict == ANSWER_DONE, answer
            assert tuple(log[offset] for offset in answer.offsets) == each.payloads
        assert [name for name in crashed.list(DIRECTORY.requests) if not name.endswith(".answers")] == []


@pytest.mark.parametrize("is_alive", [True, False], ids=["with who asked", "without"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_power_loss_at_any_call_never_doubles_a_request_or_takes_half_of_one(policy: str, is_alive: bool) -> None:
    """What was answered under every_commit is there. Nothing depends on who asked being dead, though it will be."""
    storage = SimulatedStorage()
    mailbox, asked = asked_on(storage, POLICIES[policy])
    begun = len(storage.log)
    serve_all(storage, POLICIES[policy])
    choice = random.Random(20240521)
    for operation_count, moment in enumerate(storage.replay()):
        if operation_count < begun:
            continue
        answered = []
        if POLICIES[policy].syncs_every_commit:
            kept = moment.crash_keeping_all()
            answered = [each for each in asked if answer_in(kept, mailbox, each.number) is not None]
        for crashed in (moment.crash_dropping_unsynced(), moment.random_crash(choice), moment.random_crash(choice)):
            if is_alive:
                answer_in(crashed, mailbox, 64)
            serve_all(crashed, POLICIES[policy])
            log = hold_to(crashed, asked, all_there=False)
            for each in answered:
                assert each.payloads[0] in log, f"request {each.number} was answered, and is lost"


# -- Real processes are killed -----------------------------------------------------------------------------------------

SECONDS = 2.5
SUBMITTERS = 4


def submit(path: Path, journal: Journal, key: int) -> None:
    """Put numbered messages, alone and in batches, until killed; note each before it is put and once it is."""
    choice, number = random.Random(key), 0
    queue = PersistentQueue(path, mode="submit", data_file_bytes=16 * 2**10)
    while True:
        count = choice.choice([1, 1, 1, 5, 40])
        payloads = [
            f"{key}:{each}:".encode().ljust(choice.randrange(20, 300), b".") for each in range(number, number + count)
        ]
        journal.note("p", key, number, count)
        try:
            first = queue.put(payloads[0]) if count == 1 else queue.put_many(payloads).start
        except HoldfastError as error:
            journal.note("X", key, repr(error).replace(" ", "_"))
            raise
        journal.note("P", key, number, count, first)
        number += count


def own(path: Path, policy: FlushPolicy) -> None:
    """Own the queue until killed."""
    with PersistentQueue(path, mode="produce", flush=policy, data_file_bytes=16 * 2**10, lock_timeout=5):
        time.sleep(60)


@pytest.mark.parametrize("policy", POLICIES)
def test_killed_owners_and_killed_submitters_lose_double_and_reorder_nothing(tmp_path: Path, policy: str) -> None:
    """Owners come and go, by SIGKILL; now and then there is none. No submitter that lives ever gets an error."""
    path, choice = tmp_path / "orders", random.Random(7)
    PersistentQueue(path, mode="exclusive", flush=POLICIES[policy]).close()
    journal = Journal(tmp_path / "journal")
    keys = iter(range(1000))
    submitters = {
        key: Child(lambda key=key: submit(path, journal, key)) for key in [next(keys) for _ in range(SUBMITTERS)]
    }
    owner: Child | None = None
    deadline, deaths = time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline or deaths < 3 or acknowledged_count(journal) <= 50:  # a busy machine needs longer
        if owner is None:
            owner = Child(lambda: own(path, POLICIES[policy]))
        time.sleep(choice.uniform(0.02, 0.25))
        if choice.random() < 0.6:
            assert owner.is_alive(), "the owner could not open the queue"
            owner.kill()
            owner.wait()
            owner, deaths = None, deaths + 1
            time.sleep(choice.choice([0, 0, 0.15]))
        elif choice.random() < 0.5:
            key = choice.choice(list(submitters))
            submitters[key].kill()
            submitters.pop(key).wait()
            key = next(keys)
            submitters[key] = Child(lambda key=key: submit(path, journal, key))
    for each in (*submitters.values(), *([owner] if owner else [])):
        each.kill()
        each.wait()
    assert deaths >= 3
    judge(path, journal)


def acknowledged_count(journal: Journal) -> int:
    """Return how many batches were acknowledged."""
    return sum(line[0] == "P" for line in journal.lines())


def judge(path: Path, journal: Journal) -> None:
    """Hold the log to the journal: promises 1 to 3, for each submitter."""
    lines = journal.lines()
    assert not [line for line in lines if line[0] == "X"]
    with PersistentQueue(path, mode="exclusive", data_file_bytes=16 * 2**10) as queue:
        assert not queue.recovery.damage
        messages = queue.peek(10**6)
        wait_until(lambda: os.listdir(path / "requests") == [])  # what dead processes left is gone soon
    found: dict[int, list[tuple[int, int]]] = {}
    for message in messages:
        key, number, _ = message.payload.split(b":")
        found.setdefault(int(key), []).append((int(number), message.offset))
    acknowledged = 0
    for key, places in found.items():
        numbers = [number for number, _ in places]
        assert numbers == list(range(len(numbers))), f"submitter {key}: lost, doubled or out of order"
        asked = [(int(at), int(count)) for kind, by, at, count, *_ in lines if kind == "p" and int(by) == key]
        assert len(numbers) in {at + count for at, count in asked} | {at for at, _ in asked}, "half a batch"
    for kind, key, at, count, *first in lines:
        if kind == "P":
            places = dict(found[int(key)])
            assert [places[int(at) + each] for each in range(int(count))] == [
                int(first[0]) + each for each in range(int(count))
            ]
            acknowledged += 1
    assert acknowledged > 50, "hardly anything happened"

"""No crash leaves a prioritized message that a consumer would not look for, however it was put."""

import logging
import random
from collections.abc import Callable
from unittest import mock

import pytest

from holdfast import FlushPolicy, PersistentQueue
from holdfast.queue.client import staging
from holdfast.queue.options.put_options import Put
from holdfast.queue.options.queue_options import Mode
from support.builders.handles import handle_of
from support.builders.transactions import ORDERS, open_queue
from support.owners.machine_link import machine_links
from support.storages.simulated_storage import SimulatedStorage

POLICIES = (FlushPolicy.every_commit(), FlushPolicy.never())
RANDOM_CRASHES = 2  # for each prefix, one of them with a coin that keeps nearly all

MARKED = b"!"
"""Begins the payload of every message with a priority."""

URGENT = Put(b"!urgent", priority=9)
LARGE = [*[bytes(1000)] * 20, Put(b"!" + bytes(1000), priority=1)]  # more than a quarter of a data file: adopted


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of recoveries say what they did."""
    caplog.set_level(logging.CRITICAL, "holdfast")


def single_messages(queue: PersistentQueue) -> None:
    """One by one, and as a batch."""
    queue.put(b"!first", priority=1)
    queue.put(b"plain", headers={"a": "b"})
    queue.put_many([b"plain", URGENT])


def transactions(queue: PersistentQueue) -> None:
    """One with a decision, and one whose file is adopted."""
    with queue.transaction() as tx:
        tx.ack(tx.receive(timeout=0))
        tx.put(URGENT)
    with queue.transaction() as tx:
        tx.put_many(LARGE)


def a_large_one_first(queue: PersistentQueue) -> None:
    """An adopted file is the first to bring a priority."""
    with queue.transaction() as tx:
        tx.put_many(LARGE)
    queue.put(b"plain")


def prepared_ones(queue: PersistentQueue) -> None:
    """One that is copied, one that is adopted, one that stays in doubt."""
    for name, puts in (("small", [b"plain", URGENT]), ("large", LARGE), ("waits", LARGE)):
        tx = queue.begin()
        tx.put_many(puts)
        tx.prepare(name)
        if name != "waits":
            tx.commit()


def of_a_client(queue: PersistentQueue) -> None:
    """From another handle: a batch that is staged in a file and adopted, and a message in a request."""
    storage = handle_of(queue).storage
    with mock.patch.object(staging, "STAGED_BYTES", 1000), open_queue(storage, mode="shared") as client:
        client.put_many(LARGE)
        client.put(b"!urgent", priority=3)


WORKLOADS = (single_messages, transactions, a_large_one_first, prepared_ones, of_a_client)


def hold_to(queue: PersistentQueue, storage: SimulatedStorage) -> int:
    """Assert that all prioritized messages that are visible are looked for; return how many there are."""
    found = [message.offset for message in queue.peek(10_000) if message.payload.startswith(MARKED)]
    if found:
        source = handle_of(queue).require_write_side()
        assert source.end()[2] > max(found)
        assert source.prioritized_end() > max(found), (
            f"{found} are there, and looked for below {source.prioritized_end()}"
        )
        assert ORDERS / "priorities" in storage.crash_dropping_unsynced().tree()
    return len(found)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_every_prioritized_message_that_a_crash_leaves_is_looked_for(
    workload: Callable[[PersistentQueue], None], policy: FlushPolicy
) -> None:
    """By the next owner, at once and once what was prepared is committed."""
    storage = SimulatedStorage()
    mode: Mode = "shared" if workload is of_a_client else "exclusive"
    with machine_links(), open_queue(storage, mode=mode, flush=policy) as queue:
        queue.put_many([b"one", b"two"])
        begun = len(storage.log)
        workload(queue)
    rng = random.Random(f"{workload.__name__} {policy}")
    found = set()
    for count, prefix in enumerate(storage.replay()):
        if count < begun:
            continue
        crashes = [prefix.crash_keeping_all(), prefix.crash_dropping_unsynced()]
        crashes += [prefix.random_crash(rng, keep=0.95 if number % 2 else 0.5) for number in range(RANDOM_CRASHES)]
        for crashed in crashes:
            with open_queue(crashed, mode="exclusive", flush=policy) as owner:
                hold_to(owner, crashed)
                for each in owner.prepared():
                    owner.commit_prepared(each.id)
                found.add(hold_to(owner, crashed))
    assert 0 in found
    assert max(found) > 1 or workload is a_large_one_first

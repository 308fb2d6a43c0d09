"""Priority: larger first, in order inside of one, found behind any backlog, kept through failures and restarts."""

import os
from pathlib import Path

import pytest

from holdfast import FlushPolicy, PersistentQueue, Put
from holdfast.queue.client.staging import STAGED_BYTES
from holdfast.queue.dispatch.dispatcher import PREFETCH_COUNT
from support.builders.clocks import FakeClock
from support.builders.takes import TAKES, Take, shown, states, taken
from support.builders.transactions import FILE_BYTES, kill, open_queue
from support.owners.machine_link import machine_links
from support.processes.children import Child, Signal, child
from support.storages.simulated_storage import SimulatedStorage

PLAIN_COUNT = 30_000
STAGED_COUNT = STAGED_BYTES // 1000
"""Messages of 1,000 bytes that a client does not send in one request."""


def numbered(count: int) -> list[bytes]:
    """Return so many plain messages."""
    return [b"plain %d" % number for number in range(count)]


def open_small(path: Path) -> PersistentQueue:
    """Open a queue on the real disk whose data files are small."""
    return PersistentQueue(path, mode="exclusive", flush=FlushPolicy.never(), data_file_bytes=FILE_BYTES)


@pytest.mark.parametrize("take", TAKES)
def test_larger_ones_come_first_and_equal_ones_in_order(storage: SimulatedStorage, take: Take) -> None:
    """For every way of taking; 0 is what a message has that asks for nothing."""
    names = [b"0a", b"5a", b"9a", b"1a", b"5b", b"0b", b"9b", b"1b", b"5c"]
    with open_queue(storage) as queue:
        for name in names:
            queue.put(name, priority=int(name[:1]))
        expected = sorted(names, key=lambda name: (-int(name[:1]), name))
        assert shown(queue) == expected
        assert taken(queue, take) == expected


def test_ready_ones_that_were_read_already_are_overtaken(storage: SimulatedStorage) -> None:
    """Reading ahead of takes does not fix their order."""
    with open_queue(storage) as queue:
        queue.put_many(numbered(10))
        assert queue.get() == b"plain 0"
        queue.put(b"low", priority=1)
        queue.put(b"high", priority=9)
        assert queue.get() == b"high"
        queue.put(b"highest, too late for the last take", priority=9)
        assert queue.get_many(3) == [b"highest, too late for the last take", b"low"]
        assert queue.get() == b"plain 1"


@pytest.mark.parametrize("end", ["none", "close", "kill"])
def test_one_that_stands_behind_tens_of_thousands_of_plain_ones_comes_first(tmp_path: Path, end: str) -> None:
    """Also when it is put while consumers are in the middle of the backlog, and after a restart."""
    path = tmp_path / "orders"

    def fill() -> None:
        queue = open_small(path)
        queue.put_many(numbered(PLAIN_COUNT))
        queue.put(b"urgent", priority=3)
        if end == "kill":
            os.kill(os.getpid(), 9)
        queue.close()

    if end == "none":
        queue = open_small(path)
        queue.put_many(numbered(PLAIN_COUNT))
        queue.put(b"urgent", priority=3)
    else:
        assert Child(fill).wait() == (-9 if end == "kill" else 0)
        queue = open_small(path)
    assert queue.stats().file_count > 1
    assert [message.payload for message in queue.peek(2)] == [b"urgent", b"plain 0"]
    assert queue.get() == b"urgent"
    assert queue.get_many(100)[0] == b"plain 0"
    queue.put_many([Put(b"second", priority=1), b"plain", Put(b"first", priority=2)])
    assert queue.get_many(5) == [b"first", b"second"]
    assert queue.get() == b"plain 100"
    assert queue.qsize() == PLAIN_COUNT - 101 + 1
    queue.close()


def test_a_plain_message_starves_while_others_are_put_before_it(storage: SimulatedStorage) -> None:
    """That is what a priority says, and the documentation with it: there is no ageing."""
    with open_queue(storage) as queue:
        queue.put(b"plain")
        for number in range(100):
            queue.put(b"urgent %d" % number, priority=1)
            assert queue.get() == b"urgent %d" % number
        assert queue.get() == b"plain"


def test_a_nacked_one_keeps_its_priority(storage: SimulatedStorage) -> None:
    """At once, after a delay, after a release, and in the hands of the next owner."""
    clock = FakeClock()
    queue = open_queue(storage, clock=clock)
    queue.put_many([b"plain", Put(b"two", priority=2), Put(b"five", priority=5), b"plain too"])
    first = queue.receive(timeout=0)
    first.nack(delay=0)
    assert shown(queue) == [b"five", b"two", b"plain", b"plain too"]
    queue.receive(timeout=0).release()
    queue.receive(timeout=0).nack(delay=60)
    assert shown(queue) == [b"two", b"plain", b"plain too"]
    queue = open_queue(kill(storage, queue), clock=clock)
    assert shown(queue) == [b"two", b"plain", b"plain too"]
    clock.advance(60)
    assert shown(queue) == [b"five", b"two", b"plain", b"plain too"]
    assert queue.receive(timeout=0).delivery_count == 3
    assert taken(queue) == [b"two", b"plain", b"plain too"]
    queue.close()


def test_a_dead_letter_that_is_retried_keeps_its_priority(storage: SimulatedStorage) -> None:
    """Before and after the log was read up to it."""
    with open_queue(storage) as queue:
        queue.put_many([b"plain", Put(b"two", priority=2), Put(b"five", priority=5)])
        for _ in range(2):
            queue.receive(timeout=0).reject("not now")
        assert queue.dead.retry(reason="rejected") == 2
        assert taken(queue) == [b"five", b"two", b"plain"]


def test_priority_and_delay_together(storage: SimulatedStorage) -> None:
    """Nothing before its time; from then on by priority, also against what became due together with it."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"low", priority=1, delay=10)
        queue.put(b"high", priority=8, delay=10)
        queue.put(b"none", delay=5)
        queue.put(b"later", priority=9, delay=11)
        queue.put_many(numbered(3))
        assert queue.get() == b"plain 0"
        clock.advance(10)
        assert shown(queue) == [b"high", b"low", b"none", b"plain 1", b"plain 2"]
        assert queue.get() == b"high"
        clock.advance(1)
        assert taken(queue) == [b"later", b"low", b"none", b"plain 1", b"plain 2"]


def test_priorities_of_a_transaction_count_from_its_commit(storage: SimulatedStorage) -> None:
    """``tx.put(Put(...))``, ``tx.put_many``, and of prepared ones the same, also where the file is adopted."""
    with open_queue(storage) as queue:
        queue.put(b"plain")
        with queue.transaction() as tx:
            tx.put(Put(b"two", priority=2))
            tx.put_many([b"other", Put(b"nine", priority=9)])
            assert shown(queue) == [b"plain"]
        assert shown(queue) == [b"nine", b"two", b"plain", b"other"]
        large = queue.begin()
        large.put_many([bytes(1000)] * (FILE_BYTES // 2000))
        large.put(Put(b"eight", priority=8))
        large.prepare("large")
        assert queue.get() == b"nine"
        large.commit()
        assert queue.get_many(2) == [b"eight", b"two"]


def test_messages_of_a_client_keep_what_they_ask_for(storage: SimulatedStorage) -> None:
    """Priority, delay and key, one by one and in batches, one of them staged in a file of its own."""
    with machine_links(), open_queue(storage, mode="shared") as queue:
        queue.put(b"plain")
        with open_queue(storage, mode="shared") as client:
            client.put(b"urgent", priority=4)
            client.put(b"late", delay=1000)
            client.put_many([Put(b"k1", order_key="k"), Put(b"k2", order_key="k"), Put(b"six", priority=6)])
            client.put_many([*[bytes(1000)] * STAGED_COUNT, Put(b"seven", priority=7)])
        assert [queue.get(timeout=0) for _ in range(4)] == [b"seven", b"six", b"urgent", b"plain"]
        with queue.receive_many(STAGED_COUNT + 100, timeout=0) as batch:
            names = [delivery.payload for delivery in batch]
            assert b"k1" in names
            assert b"k2" not in names
        assert taken(queue)[0] == b"k2"
        assert states(queue) == {b"late": "delayed"}


def test_a_consumer_in_another_process_finds_what_is_put_behind_its_backlog(tmp_path: Path) -> None:
    """The next take of any client gets it, once the owner has handed out what it had read, 64 messages at most."""
    path, step, done = tmp_path / "orders", Signal(), Signal()

    def consume() -> None:
        with PersistentQueue(path, mode="shared") as queue:
            for name in (b"plain 0", b"one", b"two"):
                step.wait()
                count = 1
                while queue.get(timeout=10) != name:
                    count += 1
                done.send(str(count))

    with PersistentQueue(path, mode="shared", flush=FlushPolicy.every_commit()) as queue:
        queue.put_many(numbered(20_000))
        assert queue.is_owner
        with child(consume):
            step.send()
            assert done.wait() == "1"
            for number, name in enumerate((b"one", b"two")):
                queue.put(name, priority=1 + number)
                step.send()
                assert int(done.wait()) <= PREFETCH_COUNT + 1
    step.close()
    done.close()

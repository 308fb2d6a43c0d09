"""Delay: never early, whatever the length and whoever restarts; and nobody has to come by for it to become ready."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Empty, FlushPolicy, PersistentQueue, Put
from support.builders.clocks import START_NS, FakeClock
from support.builders.takes import TAKES, Take, shown, states, taken
from support.builders.transactions import cut_power, kill, open_queue
from support.owners.machine_link import machine_links
from support.processes.children import Child, Signal
from support.processes.threads import Threads, is_waiting, wait_until
from support.storages.simulated_storage import SimulatedStorage

NS = 10**9


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("seconds", [0.001, 1, 3600, 10 * 365 * 86400])
def test_a_delayed_message_is_not_there_before_its_time_and_is_there_then(
    storage: SimulatedStorage, take: Take, seconds: float
) -> None:
    """To the nanosecond, for every way of taking and looking."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"late", delay=seconds)
        queue.put(b"now")
        assert shown(queue) == [b"now"]
        assert taken(queue, take) == [b"now"]
        assert states(queue) == {b"late": "delayed"}
        clock.set_time_ns(START_NS + round(seconds * NS) - 1)
        assert (taken(queue, take), shown(queue)) == ([], [])
        clock.set_time_ns(START_NS + round(seconds * NS))
        assert shown(queue) == [b"late"]
        assert taken(queue, take) == [b"late"]


@pytest.mark.parametrize("end", ["close", "kill", "power"])
def test_a_delay_survives_every_kind_of_end(storage: SimulatedStorage, end: str) -> None:
    """The time it asks for stands in the log, so a restart neither shortens nor prolongs it."""
    clock = FakeClock()
    for _ in range(4):
        queue = open_queue(storage, clock=clock)
        if not queue.stats().next_offset:
            queue.put_many([Put(b"late", delay=timedelta(seconds=35)), b"now"])
            assert taken(queue) == [b"now"]
        assert (taken(queue), states(queue)) == ([], {b"late": "delayed"})
        if end == "close":
            queue.close()
        else:
            storage = (kill if end == "kill" else cut_power)(storage, queue)
        clock.advance(10)
    with open_queue(storage, clock=clock) as queue:
        assert taken(queue) == [b"late"]
    with open_queue(storage, clock=clock) as queue:
        assert taken(queue) == []


def test_not_before_takes_a_datetime_of_any_zone_or_seconds(storage: SimulatedStorage) -> None:
    """Ten seconds from now, said in five ways; each to the microsecond."""
    clock = FakeClock()
    at = datetime.fromtimestamp(START_NS // NS, UTC) + timedelta(seconds=10, microseconds=123457)
    due_ns = START_NS + 10 * NS + 123_457_000
    tokyo = datetime.strptime("+0900", "%z").tzinfo
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"utc", not_before=at)
        queue.put(b"zone", not_before=at.astimezone(tokyo))
        queue.put_many([Put(b"put", not_before=at)])
        clock.set_time_ns(due_ns - 1)
        assert taken(queue) == []
        clock.set_time_ns(due_ns)
        assert taken(queue) == [b"utc", b"zone", b"put"]
        queue.put(b"seconds", not_before=START_NS // NS + 20)
        queue.put(b"past", not_before=datetime(1970, 1, 2, tzinfo=UTC))
        assert taken(queue) == [b"past"]
        clock.advance(10)
        assert taken(queue) == [b"seconds"]


@pytest.mark.parametrize("seconds", [1e300, 10**400, timedelta.max, 2.0**33])
def test_a_delay_of_any_length_is_taken_and_lasts_longer_than_anybody_waits(
    storage: SimulatedStorage, seconds: float | timedelta
) -> None:
    """Centuries fit; what is beyond them does not overflow anything, in a put nor in a nack."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"put", delay=seconds)
        queue.put(b"nacked")
        queue.receive(timeout=0).nack(delay=seconds)
    clock.advance(100 * 365 * 86400)
    with open_queue(storage, clock=clock) as queue:
        assert taken(queue) == []
        assert states(queue) == {b"put": "delayed", b"nacked": "delayed"}
        with pytest.raises(Empty):
            queue.get(timeout=0.01)


def test_delayed_messages_come_by_time_and_those_of_one_time_in_order(storage: SimulatedStorage) -> None:
    """Not in the order in which they were put; one that is due comes before what nobody has had."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        for name, delay in ((b"c", 30), (b"a1", 10), (b"b", 20), (b"a2", 10)):
            queue.put(name, delay=delay)
        found = []
        for _ in range(4):
            clock.advance(10)
            found.append(taken(queue))
        assert found == [[b"a1", b"a2"], [b"b"], [b"c"], []]


def test_a_clock_that_is_turned_back_makes_nothing_early(storage: SimulatedStorage) -> None:
    """What is not due by the wall clock of now is not handed out."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"late", delay=10)
        assert taken(queue) == []
        clock.set_time_ns(START_NS - 100 * NS)
        assert taken(queue) == []
        clock.set_time_ns(START_NS + 9 * NS)
        assert taken(queue) == []
        clock.set_time_ns(START_NS + 10 * NS)
        assert taken(queue) == [b"late"]


# -- With a real clock -----------------------------------------------------------------------------------------------


def test_a_waiting_consumer_gets_a_delayed_message_by_itself(tmp_path: Path, threads: Threads) -> None:
    """Nobody puts anything else, nobody else takes: its time alone wakes who waits for it, and not before."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        got: list[tuple[bytes, int]] = []
        threads.start(lambda: got.append((queue.get(timeout=30), time.time_ns())))
        time.sleep(0.05)  # it waits by now, for no time at all
        due_ns = time.time_ns() + 300_000_000
        queue.put(b"late", delay=0.3)
        queue.put(b"much later", delay=100)
        wait_until(lambda: bool(got))
        assert got[0][0] == b"late"
        assert got[0][1] >= due_ns
        with pytest.raises(Empty):
            queue.get(timeout=0.05)


def test_a_shorter_delay_shortens_the_sleep_of_who_waits(tmp_path: Path, threads: Threads) -> None:
    """Also one that comes from a nack while everybody sleeps until a far time."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", backoff=[]) as queue:
        queue.put(b"first")
        queue.put(b"far", delay=1000)
        delivery = queue.receive()
        got: list[bytes] = []
        waiting = [threads.start(lambda: got.append(queue.get(timeout=30))) for _ in range(2)]
        wait_until(lambda: all(map(is_waiting, waiting)))
        delivery.nack(delay=0.1)
        wait_until(lambda: got == [b"first"])
        queue.put(b"near", delay=0.2)
        wait_until(lambda: got == [b"first", b"near"])


def test_a_delayed_message_wakes_a_consumer_in_another_process(tmp_path: Path) -> None:
    """The owner, which has put it, is gone by then: the consumer has taken the queue over."""
    path, waits = tmp_path / "orders", Signal()

    def consume() -> None:
        with PersistentQueue(path, mode="shared") as queue:
            waits.send()
            got = queue.get(timeout=20)
            (path / "got").write_text(f"{got.decode()} {time.time_ns()}")

    with PersistentQueue(path, mode="shared") as queue:
        consumer = Child(consume)
        waits.wait()
        due_ns = time.time_ns() + 400_000_000
        queue.put(b"late", delay=0.4)
        assert queue.is_owner
    assert consumer.wait() == 0
    waits.close()
    name, at = (path / "got").read_text().split()
    assert (name, int(at) >= due_ns) == ("late", True)


@pytest.mark.parametrize("policy", [FlushPolicy.every_commit(), FlushPolicy.never()], ids=str)
def test_a_kill_neither_loses_nor_hastens_what_is_delayed(tmp_path: Path, policy: FlushPolicy) -> None:
    """SIGKILL right behind the put, and the next owner keeps to the time."""
    path = tmp_path / "orders"

    def work() -> None:
        queue = PersistentQueue(path, mode="exclusive", flush=policy)
        queue.put(b"%d" % (time.time_ns() + 500_000_000), delay=0.5)
        os.kill(os.getpid(), 9)

    assert Child(work).wait() == -9
    with PersistentQueue(path, mode="exclusive", flush=policy) as queue:
        assert queue.stats().depth == 1
        assert int(queue.get(timeout=10)) <= time.time_ns()


# -- Figures ---------------------------------------------------------------------------------------------------------


def test_qsize_empty_and_depth_of_delayed_messages(storage: SimulatedStorage) -> None:
    """They are unfinished, cannot be taken, and count as ready from their time on, whoever looks first."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put_many([Put(b"late", delay=10), b"now", Put(b"later", delay=20)])
        assert not queue.empty()
        assert taken(queue) == [b"now"]
        stats = queue.stats()
        assert (queue.qsize(), queue.empty(), stats.depth, stats.delayed) == (0, True, 2, 2)
        clock.advance(10)
        assert (queue.qsize(), queue.stats().delayed) == (1, 1)
        assert not queue.empty()
        assert taken(queue) == [b"late"]
        assert (queue.qsize(), queue.stats().depth) == (0, 1)


def test_delayed_messages_take_room_in_a_bounded_queue_and_dead_letters_do_not(storage: SimulatedStorage) -> None:
    """The bound is on what still has to be worked on."""
    with open_queue(storage, clock=FakeClock(), maxsize=2) as queue:
        queue.put(b"late", delay=10)
        assert not queue.full()
        queue.put(b"bad")
        assert queue.full()
        queue.receive(timeout=0).reject("no good")
        assert not queue.full()
        queue.put(b"next", timeout=0)
        assert queue.full()
        assert queue.dead.retry(1) == 1
        assert (queue.full(), queue.stats().depth) == (True, 3)


def test_each_group_waits_for_itself(storage: SimulatedStorage) -> None:
    """What one group nacked, rejected or took is another group's business no more than its delays are."""
    clock = FakeClock()
    with machine_links(), open_queue(storage, clock=clock, mode="shared", group="one") as one:
        one.groups.create("two")
        one.put_many([b"nacked", b"dead", b"kept", Put(b"late", delay=50)])
        batch = one.receive_many(3, timeout=0, lease_seconds=1000)
        batch[0].nack(delay=20)
        batch[1].reject("no good")
        with open_queue(storage, clock=clock, mode="shared", group="two") as two:
            assert states(two) == {b"nacked": "ready", b"dead": "ready", b"kept": "ready", b"late": "delayed"}
            assert states(one) == {b"nacked": "delayed", b"dead": "dead", b"kept": "leased", b"late": "delayed"}
            assert (two.stats().dead, one.stats().dead) == (0, 1)
            assert taken(two) == [b"nacked", b"dead", b"kept"]
            clock.advance(50)
            assert (taken(one), taken(two)) == ([b"nacked", b"late"], [b"late"])
    with open_queue(storage, clock=clock, mode="exclusive", group="two") as two:
        assert (states(two), two.stats().depth) == ({}, 0)
    with open_queue(storage, clock=clock, mode="exclusive", group="one") as one:
        assert states(one) == {b"dead": "dead", b"kept": "ready"}

"""Pausing a group: nobody is given anything until it is resumed or its time comes, whoever restarts meanwhile."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Empty, PersistentQueue, UsageError
from holdfast.queue.options.queue_options import Mode
from support.builders.clocks import START_NS, FakeClock
from support.builders.takes import TAKES, Take, taken
from support.builders.transactions import cut_power, kill, open_queue, waiting
from support.owners.machine_link import machine_links
from support.processes.children import Child, Signal, child
from support.processes.threads import Threads, wait_until
from support.storages.simulated_storage import SimulatedStorage

NS = 10**9


@pytest.mark.parametrize("take", TAKES)
def test_nothing_is_handed_out_while_it_is_paused(storage: SimulatedStorage, take: Take) -> None:
    """No way of taking gets anything; puts go on; resuming gives all of it, in order."""
    with open_queue(storage, clock=FakeClock()) as queue:
        queue.put(b"before")
        queue.pause()
        queue.put_many([b"one", b"two"])
        with pytest.raises(Empty):
            take(queue)
        assert queue.stats().depth == 3
        queue.resume()
        assert taken(queue, take) == [b"before", b"one", b"two"]


def test_what_is_in_hand_can_be_settled_while_it_is_paused(storage: SimulatedStorage) -> None:
    """Acknowledged, given back, rejected, extended; a transaction can commit and prepare."""
    with open_queue(storage, clock=FakeClock()) as queue:
        queue.put_many([b"ack", b"nack", b"release", b"reject", b"commit", b"prepare"])
        ack, nack, release, reject = queue.receive_many(4, timeout=0)
        tx, prepared = queue.begin(), queue.begin()
        tx.ack(tx.receive(timeout=0))
        prepared.ack(prepared.receive(timeout=0))
        queue.pause()
        ack.extend(60)
        ack.ack()
        nack.nack(delay=0)
        release.release()
        reject.reject("no good")
        tx.put(b"put by a transaction")
        tx.commit()
        prepared.prepare("p")
        prepared.commit()
        with pytest.raises(Empty):
            queue.get(timeout=0)
        queue.resume()
        assert taken(queue) == [b"nack", b"release", b"put by a transaction"]
        assert len(queue.dead) == 1


def test_leases_run_out_while_it_is_paused(storage: SimulatedStorage) -> None:
    """A pause is no reason to keep what nobody works on."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"held")
        delivery = queue.receive(timeout=0, lease_seconds=5)
        queue.pause()
        clock.advance(6)
        assert queue.stats().in_flight == 0
        assert delivery.has_expired
        queue.resume()
        assert queue.receive(timeout=0).delivery_count == 2


def test_looking_goes_on_while_it_is_paused(storage: SimulatedStorage) -> None:
    """Peek and browse show what would come, so whoever paused it can see why."""
    with open_queue(storage, clock=FakeClock()) as queue:
        queue.put_many([b"one", b"two"])
        queue.pause(reason="looking into it")
        assert waiting(queue) == [b"one", b"two"]
        assert [message.payload for message in queue.browse()] == [b"one", b"two"]
        assert queue.stats().paused == "looking into it"
        with open_queue(storage, clock=FakeClock(), mode="read_only") as look:
            assert waiting(look) == [b"one", b"two"]
            assert look.stats().paused == "looking into it"


@pytest.mark.parametrize("end", ["close", "kill", "power"])
def test_a_pause_and_its_end_survive_every_kind_of_end(storage: SimulatedStorage, end: str) -> None:
    """Both are durable when the call returns."""
    clock = FakeClock()

    def again(queue: PersistentQueue) -> PersistentQueue:
        nonlocal storage
        if end == "close":
            queue.close()
        else:
            storage = (kill if end == "kill" else cut_power)(storage, queue)
        return open_queue(storage, clock=clock)

    queue = open_queue(storage, clock=clock)
    queue.put(b"one")
    assert queue.peek()
    queue.pause(until=START_NS // NS + 100, reason="why")
    queue = again(queue)
    assert queue.stats().paused == "why"
    clock.advance(99)
    assert taken(queue) == []
    queue = again(queue)
    clock.advance(1)
    assert queue.stats().paused is None
    assert taken(queue) == [b"one"]
    queue.put(b"two")
    queue.pause()
    assert queue.stats().paused == ""
    queue = again(queue)
    assert taken(queue) == []
    queue.resume()
    queue = again(queue)
    assert queue.stats().paused is None
    assert taken(queue) == [b"two"]
    queue.close()


def test_a_second_pause_replaces_the_first(storage: SimulatedStorage) -> None:
    """Shorter, longer, or without end; resuming what is not paused does nothing."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        queue.put(b"one")
        queue.resume()
        queue.pause(until=START_NS / NS + 10, reason="short")
        queue.pause(until=datetime.fromtimestamp(START_NS // NS, UTC) + timedelta(seconds=20), reason="longer")
        clock.advance(19)
        assert (taken(queue), queue.stats().paused) == ([], "longer")
        queue.pause(reason="for ever")
        clock.advance(10**9)
        assert (taken(queue), queue.stats().paused) == ([], "for ever")
        queue.pause(until=0, reason="over at once")
        assert queue.stats().paused is None
        assert taken(queue) == [b"one"]


def test_each_group_pauses_for_itself(storage: SimulatedStorage) -> None:
    """The other one continues."""
    with machine_links(), open_queue(storage, mode="shared", group="one") as one:
        one.groups.create("two")
        one.put(b"x")
        with open_queue(storage, mode="shared", group="two") as two:
            one.pause(reason="mine")
            assert (taken(one), taken(two)) == ([], [b"x"])
            assert (one.stats().paused, two.stats().paused) == ("mine", None)


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda queue: queue.pause(until=datetime(2030, 1, 1)), UsageError, "time zone"),
        (lambda queue: queue.pause(until=-1), UsageError, "until"),
        (lambda queue: queue.pause(until=float("nan")), UsageError, "until"),
        (lambda queue: queue.pause(until="tomorrow"), TypeError, "until"),
        (lambda queue: queue.pause(until=timedelta(seconds=5)), TypeError, "until"),
        (lambda queue: queue.pause(reason=5), TypeError, "reason"),
    ],
)
def test_a_pause_that_cannot_work_is_refused(
    storage: SimulatedStorage, call: Callable[[PersistentQueue], None], kind: type[Exception], says: str
) -> None:
    """With a line that names the argument; nothing is paused."""
    with open_queue(storage) as queue:
        queue.put(b"one")
        with pytest.raises(kind, match=says):
            call(queue)
        assert queue.stats().paused is None
        assert taken(queue) == [b"one"]


# -- Waiting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["paused first", "waits first"])
@pytest.mark.parametrize("how", ["resume", "until"])
def test_whoever_waits_is_woken_by_the_end_of_a_pause(tmp_path: Path, threads: Threads, moment: str, how: str) -> None:
    """By ``resume`` at once, and by the time it asked for without anybody's help."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        got: list[tuple[bytes, int]] = []

        def consume() -> None:
            got.append((queue.get(timeout=30), time.time_ns()))

        if moment == "waits first":
            threads.start(consume)
            time.sleep(0.05)
        ends_ns = time.time_ns() + 400_000_000
        queue.pause(until=ends_ns / NS if how == "until" else None)
        queue.put(b"one")
        if moment == "paused first":
            threads.start(consume)
        time.sleep(0.15)
        assert not got
        if how == "resume":
            ends_ns = time.time_ns()
            queue.resume()
        wait_until(lambda: bool(got))
        assert got[0][0] == b"one"
        assert got[0][1] >= ends_ns - 1000  # a float has no nanoseconds


# -- From other processes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["owner", "client", "client that never owns"])
def test_a_process_pauses_and_resumes_another_one_that_waits(tmp_path: Path, who: str) -> None:
    """Whichever of the two owns the queue; the other one waits for messages meanwhile."""
    path, begin, said = tmp_path / "orders", Signal(), Signal()
    PersistentQueue(path, mode="exclusive").close()

    def take() -> None:
        begin.wait()
        with PersistentQueue(path, mode="shared") as queue:
            said.send("open")
            said.send(queue.get(timeout=30).decode())

    with child(take):
        if who != "owner":
            begin.send()
            assert said.wait() == "open"
        with PersistentQueue(path, mode="shared", can_own=who != "client that never owns") as queue:
            assert queue.is_owner == (who == "owner")
            if who == "owner":
                begin.send()
                assert said.wait() == "open"
            queue.pause(reason="from outside")
            assert queue.stats().paused == "from outside"
            queue.put(b"one")
            with pytest.raises(TimeoutError):
                said.wait(0.3)
            queue.resume()
            assert said.wait() == "one"
    begin.close()
    said.close()


def test_a_handle_that_looks_neither_pauses_nor_resumes(storage: SimulatedStorage) -> None:
    """It says which mode does, and nothing changes."""
    with open_queue(storage, mode="exclusive") as queue:
        queue.put(b"one")
        queue.pause(reason="because")
        with open_queue(storage, mode="read_only") as look:
            for call in (look.pause, look.resume):
                with pytest.raises(UsageError, match="mode='shared'"):
                    call()
            assert look.stats().paused == queue.stats().paused == "because"
        assert taken(queue) == []


@pytest.mark.parametrize("later", ["exclusive", "shared"])
def test_a_group_stays_paused_behind_the_process_that_paused_it(tmp_path: Path, later: Mode) -> None:
    """Also another group than the one that its process took from; any handle may resume it."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive", group="one") as queue:
        queue.groups.create("two")
        queue.put(b"one")

    def pause() -> None:
        with (
            PersistentQueue(path, mode="shared", group="one") as queue,
            PersistentQueue(path, mode="shared", group="two") as other,
        ):
            other.pause(reason="nobody is there")
            assert taken(queue) == [b"one"]
            assert other.stats().paused == "nobody is there"

    assert Child(pause).wait() == 0
    with PersistentQueue(path, mode=later, group="two") as queue:
        assert queue.stats().paused == "nobody is there"
        assert taken(queue) == []
    with PersistentQueue(path, mode=later, group="two") as queue:
        queue.resume()
        assert taken(queue) == [b"one"]

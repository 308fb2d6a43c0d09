"""Looking at a queue that others own: what its files tell, also where they do not say where the log ends."""

import errno
from functools import partial
from pathlib import Path

import pytest

from holdfast import PersistentQueue, Put
from holdfast.persistence.format.report import UNSYNCED_OR_DAMAGED
from holdfast.persistence.ownership.sessions import Sessions
from support.builders.clocks import FakeClock
from support.builders.small_queues import SmallQueue
from support.builders.transactions import ORDERS, open_queue, prepare, waiting
from support.processes.children import run_script
from support.storages.simulated_storage import SimulatedStorage

MARK = ORDERS / "write.mark"


@pytest.fixture
def damaged() -> SimulatedStorage:
    """A queue with a message, whose write.mark does not verify."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.put(b"one")
    small = SmallQueue(ORDERS, storage, 1)
    small.write(MARK, b"\1" * len(small.read(MARK)))
    return storage


def test_a_look_that_cannot_know_the_end_shows_nothing_and_says_why(damaged: SimulatedStorage) -> None:
    """Once, however often it looks; whoever opens the queue to consume finds the end, and then it is shown."""
    with open_queue(damaged, mode="read_only") as look:
        assert waiting(look) == waiting(look) == []
        (damage,) = look.recovery.damage
        assert (damage.path, damage.verdict) == (MARK, UNSYNCED_OR_DAMAGED)
    open_queue(damaged).close()
    with open_queue(damaged, mode="read_only") as look:
        assert waiting(look) == [b"one"]
        assert look.recovery.damage == ()


def test_a_mark_that_is_whole_at_the_second_look_is_no_damage(damaged: SimulatedStorage) -> None:
    """Its owner overwrites it in place."""
    small = SmallQueue(ORDERS, damaged, 1)
    broken = small.read(MARK)
    open_queue(damaged).close()
    whole = small.read(MARK)
    small.write(MARK, broken)
    with open_queue(damaged, mode="read_only") as look:
        reads: list[Path] = []

        def mend(verb: str, path: Path) -> None:
            if verb == "read_at" and path == MARK:
                reads.append(path)
                if len(reads) == 3:
                    small.write(MARK, whole)

        damaged.before_verb = mend
        assert waiting(look) == []
        damaged.before_verb = None
        assert len(reads) == 3
        assert waiting(look) == [b"one"]
        assert look.recovery.damage == ()


def figures(queue: PersistentQueue) -> dict[str, int | bool]:
    """Return what a handle says of how many messages are where."""
    stats = queue.stats()
    return {
        "ready": queue.qsize(),
        "empty": queue.empty(),
        "depth": stats.depth,
        "in flight": stats.in_flight,
        "delayed": stats.delayed,
        "dead": stats.dead,
    }


@pytest.fixture
def clock() -> FakeClock:
    """Time that stands still."""
    return FakeClock()


def test_who_looks_counts_as_the_owner_does(storage: SimulatedStorage, clock: FakeClock) -> None:
    """In hand, held, waiting after a failure, delayed, waiting for an order key, expired, dead: at each step."""
    with (
        open_queue(storage, clock=clock, backoff=[60]) as queue,
        open_queue(storage, clock=clock, mode="read_only") as look,
    ):

        def check(**expected: int) -> None:
            queue.peek(1000)  # so it has read all of its log, and has noted what has expired
            assert figures(look) == figures(queue)
            assert {name: figures(look)[name] for name in expected} == expected

        check(ready=0, empty=True)
        queue.put_many([b"held", b"acknowledged", b"fails", b"rejected", b"in hand"])
        check(ready=5)
        prepare(queue, "acks", "t")
        queue.receive().ack()
        queue.receive().nack()
        queue.receive().reject("bad")
        held = queue.receive(lease_seconds=3600)
        check(ready=0, empty=True, delayed=1, dead=1, depth=3)
        queue.put_many([Put(b"later", delay=30), Put(b"short", ttl=10), b"plain", Put(b"urgent", priority=3)])
        queue.put_many([Put(b"keyed", order_key="k")] * 3 + [b"x" * 1000] * 200 + [Put(b"later", delay=90)])
        check(ready=204, delayed=5, depth=211)
        first = queue.receive()
        assert first.payload == b"urgent"
        first.release()
        clock.advance(10)
        check(depth=210)
        clock.advance(20)
        check(delayed=4)
        clock.advance(30)
        check(delayed=3)
        queue.commit_prepared("t")
        held.nack(delay=5)
        queue.dead.retry(queue.dead.list())
        check(dead=0, delayed=4)
        taken = queue.receive_many(1000)
        taken.ack()
        while queue.qsize():
            queue.get_many(1000)
        check(ready=0, empty=True, delayed=2, depth=2)
        clock.advance(60)
        check(ready=2, delayed=0)


def test_who_looks_counts_in_hand_what_a_dead_owner_had(storage: SimulatedStorage) -> None:
    """Files do not tell; the next owner takes it for given back."""
    queue = open_queue(storage)
    queue.put_many([b"a", b"b"])
    queue.receive()
    left = storage.crash_keeping_all()
    queue.close()
    with open_queue(left, mode="read_only") as look:
        assert (look.qsize(), look.stats().in_flight) == (1, 1)
        with open_queue(left) as owner:
            assert (owner.qsize(), owner.stats().in_flight) == (2, 0)
            assert (look.qsize(), look.stats().in_flight) == (1, 1)


def test_who_looks_reads_on_a_part_of_the_log_each_time(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And remembers no more messages that ask for something than that; what it has not read counts as ready."""
    monkeypatch.setattr("holdfast.queue.consumer.options_seen.MESSAGES_MAX", 100)
    with open_queue(storage) as queue, open_queue(storage, mode="read_only") as look:
        queue.put_many([b"plain"] * 150 + [Put(b"later", delay=3600)] * 250)
        delayed = [look.stats().delayed for _ in range(8)]
        assert delayed[0] == 0
        assert 0 < delayed[1] < delayed[2]
        assert 100 <= delayed[2] < 250
        assert delayed[2:] == [delayed[2]] * 6
        assert look.qsize() == 400 - delayed[2]


def test_who_looks_at_a_log_with_a_hole_counts_what_is_there(tmp_path: Path) -> None:
    """What cannot be read is missed once it is taken; until then nothing is known of it."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put_many([b"a", b"b"])
        (data_file,) = (path / "data").iterdir()
        with PersistentQueue(path, mode="read_only") as look:
            content = data_file.read_bytes()
            data_file.write_bytes(content[:4200])
            assert look.qsize() == 2
            data_file.write_bytes(content)
            assert look.qsize() == 2


def test_who_looks_counts_no_message_as_ready_whose_time_to_live_is_over(
    storage: SimulatedStorage, clock: FakeClock
) -> None:
    """Nor one in hand that asks for something, nor those behind it; what was finished meanwhile is not read."""
    with open_queue(storage, clock=clock) as queue, open_queue(storage, clock=clock, mode="read_only") as look:
        queue.put_many([Put(b"a", order_key="k"), Put(b"b", ttl=10), Put(b"c", order_key="k")])
        held = queue.receive()
        assert (look.qsize(), look.stats().in_flight, look.stats().delayed) == (1, 1, 1)
        clock.advance(10)
        assert (look.qsize(), look.empty(), look.stats().depth) == (0, True, 3)
        held.ack()
        assert queue.get() == b"c"
        queue.put_many([b"plain"] * 10)
        assert [queue.get() for _ in range(5)] == [b"plain"] * 5
        assert (look.qsize(), look.stats().depth) == (5, 5)


def test_who_looks_counts_as_ready_what_came_back_uncounted(storage: SimulatedStorage) -> None:
    """What an aborted transaction had prepared, and what is released that was handed out before; restarts included."""

    def counts(queue: PersistentQueue) -> tuple[int, int, int]:
        stats = queue.stats()
        return stats.depth, stats.in_flight, queue.qsize()

    with PersistentQueue("/orders", mode="exclusive", storage=storage) as queue:
        queue.put_many([b"a", b"b"])
        with PersistentQueue("/orders", storage=storage, mode="read_only") as look:
            transaction = queue.begin()
            transaction.ack(transaction.receive())
            prepared = transaction.prepare()
            assert counts(look) == counts(queue) == (2, 1, 1)
            queue.abort_prepared(prepared)
            assert counts(look) == counts(queue) == (2, 0, 2)
            again = queue.receive()
            assert (again.delivery_count, counts(look)) == (2, (2, 1, 1))
            again.release()
            assert counts(look) == counts(queue) == (2, 0, 2)
    with (
        PersistentQueue("/orders", mode="exclusive", storage=storage) as queue,
        PersistentQueue("/orders", storage=storage, mode="read_only") as look,
    ):
        assert counts(look) == counts(queue) == (2, 0, 2)
        assert queue.receive().delivery_count == 2


DIES_WITH_ONE_IN_HAND = """
import os, sys
from holdfast import PersistentQueue
queue = PersistentQueue(sys.argv[1], mode=sys.argv[2])
queue.put_many([b"a", b"b"])
kept = queue.receive()
os._exit(0)
"""


@pytest.mark.parametrize(("died_in", "seen_by_readers"), [("shared", 0), ("exclusive", 1)])
def test_what_a_process_that_has_died_had_in_hand_counts_as_ready(
    tmp_path: Path, died_in: str, seen_by_readers: int
) -> None:
    """At once, before any take, as its session has died; a handle that only looks cannot tell that of a lone owner."""
    path = tmp_path / "q"
    run_script(DIES_WITH_ONE_IN_HAND, path, died_in)
    with PersistentQueue(path, mode="read_only") as look:
        assert figures(look) == {**figures(look), "ready": 2 - seen_by_readers, "in flight": seen_by_readers}
    with PersistentQueue(path) as queue:
        assert figures(queue) == {**figures(queue), "ready": 2, "empty": False, "in flight": 0}
        assert [each.state for each in queue.browse("ready")] == ["ready", "ready"]
        assert queue.browse("leased") == []
        assert [queue.get(timeout=0), queue.get(timeout=0)] == [b"a", b"b"]


def test_what_has_died_with_its_last_receiver_is_not_ready(tmp_path: Path) -> None:
    """It is a dead letter at the next take, and no taker gets it."""
    with PersistentQueue(tmp_path / "q", max_deliveries=1):
        pass
    run_script(DIES_WITH_ONE_IN_HAND, tmp_path / "q", "shared")
    with PersistentQueue(tmp_path / "q") as queue:
        assert figures(queue) == {**figures(queue), "ready": 1, "depth": 2, "in flight": 0}
        assert queue.get(timeout=0) == b"b"
        assert figures(queue) == {**figures(queue), "ready": 0, "depth": 0, "dead": 1}


def test_what_a_living_process_has_in_hand_counts_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each handle that looks; also if this user may not test whether it lives."""
    with PersistentQueue(tmp_path / "q") as owner, PersistentQueue(tmp_path / "q") as client:
        client.put_many([b"a", b"b"])
        kept = client.receive(timeout=5), owner.receive(timeout=5)
        with PersistentQueue(tmp_path / "q", mode="read_only") as look:
            for handle in (owner, client, look):
                assert figures(handle) == {**figures(handle), "ready": 0, "empty": True, "in flight": 2}
        monkeypatch.setattr(Sessions, "_is_held", partial(raised, PermissionError(errno.EACCES, "not yours")))
        with PersistentQueue(tmp_path / "q", mode="read_only") as look:
            assert figures(look) == {**figures(look), "ready": 0, "empty": True, "in flight": 2}
        monkeypatch.undo()
        for delivery in kept:
            delivery.ack()


def raised(error: Exception, *_: object, **__: object) -> bool:
    """Fail."""
    raise error

"""A purge finishes what is ready now, unseen, and leaves everything else where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import ClosedError, Empty, PersistentQueue, Put, ShutDown, StorageError, UsageError
from holdfast.queue.options.queue_options import Mode
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/queue")
SMALL = 16 * 1024


def test_a_purge_finishes_what_is_ready_and_survives_reopening(tmp_path: Path) -> None:
    """It returns how many messages that were, and the next handle finds none of them."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        queue.put_many([b"a", b"b", b"c"])
        assert (queue.purge(), queue.qsize(), queue.purge()) == (3, 0, 0)
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue, pytest.raises(Empty):
        queue.get(timeout=0)


def test_what_is_in_hand_delayed_dead_or_put_later_stays(tmp_path: Path) -> None:
    """And a delivery in hand can be settled behind it."""
    clock = FakeClock()
    with PersistentQueue(tmp_path / "q", mode="exclusive", clock=clock, max_deliveries=1) as queue:
        queue.put(b"dead")
        queue.receive(timeout=0).nack()
        queue.put_many([b"in hand", Put(b"delayed", delay=60), Put(b"high", priority=9), b"ready"])
        queue.put(b"taken back")
        assert queue.receive(timeout=0).payload == b"high"
        held = queue.receive(timeout=0)
        assert queue.purge() == 2
        queue.put(b"later")
        held.ack()
        assert [letter.payload for letter in queue.dead.list()] == [b"dead"]
        assert queue.get(timeout=0) == b"later"
        clock.advance(61)
        assert queue.get_many(9, timeout=0) == [b"delayed"]


def test_what_waits_behind_a_message_in_hand_of_its_order_key_stays(tmp_path: Path) -> None:
    """Another key is purged to its end."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        queue.put_many([Put(b"a1", order_key="a"), Put(b"b1", order_key="b"), Put(b"b2", order_key="b")])
        queue.put(b"a2", order_key="a")
        held = queue.receive(timeout=0)
        assert queue.purge() == 2
        held.ack()
        assert queue.get(timeout=0) == b"a2"


def test_a_paused_group_is_purged_and_another_group_keeps_its_messages(tmp_path: Path) -> None:
    """Pausing, then purging, is what an operator does."""
    with PersistentQueue(tmp_path / "q", mode="shared") as queue:
        queue.groups.create("audit")
        queue.put_many([b"a", b"b"])
        queue.pause()
        assert queue.purge() == 2
        with PersistentQueue(tmp_path / "q", mode="shared", group="audit") as audit:
            assert audit.get_many(9, timeout=0) == [b"a", b"b"]


def test_the_files_of_purged_messages_are_retired() -> None:
    """The space comes back without another take."""
    with PersistentQueue(
        ROOT, mode="exclusive", storage=SimulatedStorage(), data_file_bytes=SMALL, record_bytes_max=SMALL
    ) as queue:
        for _ in range(20):
            queue.put(b"x" * 8000)
        before = queue.stats().file_count
        assert queue.purge() == 20
        assert queue.stats().file_count < before - 5


def test_a_purge_counts_for_join(tmp_path: Path) -> None:
    """No thread will report those messages as done."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        queue.put_many([b"a", b"b"])
        queue.purge()
        queue.join()
        assert queue.unfinished_tasks == 0


def test_a_purge_makes_room_in_a_bounded_queue(tmp_path: Path) -> None:
    """A producer that waits continues."""
    with PersistentQueue(tmp_path / "q", mode="exclusive", maxsize=2) as queue:
        queue.put_many([b"a", b"b"])
        queue.purge()
        queue.put(b"c", timeout=0)


def test_a_purge_is_refused_by_a_mode_that_takes_nothing_and_after_a_shutdown(tmp_path: Path) -> None:
    """As a take is."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        queue.put(b"a")
        with (
            PersistentQueue(tmp_path / "q", mode="read_only") as look,
            pytest.raises(UsageError, match="does not take"),
        ):
            look.purge()
        queue.shutdown(immediate=True)
        with pytest.raises(ShutDown):
            queue.purge()


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_purge_of_a_closed_handle_says_that_it_is_closed(tmp_path: Path, mode: Mode) -> None:
    """In the mode "shared" too, whose owner is closed by then."""
    with PersistentQueue(tmp_path / "q", mode=mode) as queue:
        pass
    with pytest.raises(ClosedError):
        queue.purge()


def test_a_purge_that_the_disk_refuses_finishes_nothing() -> None:
    """The messages are there for the next handle."""
    storage = SimulatedStorage()
    with PersistentQueue(ROOT, mode="exclusive", storage=storage) as queue:
        queue.put_many([b"a", b"b", b"c"])
        queue.get(timeout=0)
        storage.faults = FaultPlan(1, verbs=frozenset({"write_at"}))
        with pytest.raises(StorageError):
            queue.purge()
        assert storage.faults.fired_count == 1
        storage.faults = None
    with PersistentQueue(ROOT, mode="exclusive", storage=storage) as queue:
        assert queue.get_many(9, timeout=0) == [b"b", b"c"]


def test_what_waits_behind_an_expired_message_of_its_order_key_is_purged(tmp_path: Path) -> None:
    """It is ready as soon as the purge has dropped the one in front of it."""
    clock = FakeClock()
    with PersistentQueue(tmp_path / "q", mode="exclusive", clock=clock) as queue:
        queue.put_many([Put(b"a1", order_key="a", ttl=1), Put(b"a2", order_key="a")])
        clock.advance(2)
        assert (queue.purge(), queue.qsize(), queue.stats().dropped) == (1, 0, 1)


def test_messages_of_a_larger_priority_that_are_put_meanwhile_hide_nothing(tmp_path: Path) -> None:
    """However many come between two steps of a purge, those that were ready are finished, and the new ones stay."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        queue.put_many([Put(b"", priority=1, delay=60 * (number % 2)) for number in range(9000)])
        more = [Put(b"more", priority=9)] * 1100
        assert handle_of(queue).require_read_side().purge(lambda _: queue.put_many(more)) == 4500
        assert queue.stats().delayed == 4500
        assert set(queue.get_many(9000, timeout=0)) == {b"more"}


def test_a_purge_that_a_shutdown_ends_counts_for_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread will report as done what it had finished until then."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        queue.put_many([b"a", b"b"])
        read_side = handle_of(queue).require_read_side()
        monkeypatch.setattr(read_side, "_settle", lambda _: queue.shutdown(immediate=True))
        with pytest.raises(ShutDown):
            queue.purge()
        assert queue.unfinished_tasks == 0

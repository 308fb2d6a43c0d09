"""``put(dedup_id=...)``: a second put of an id writes nothing and returns the first one's offset."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast import (
    ClosedError,
    CommitUnknownError,
    ConfigError,
    DiskFullError,
    FlushPolicy,
    Full,
    PersistentQueue,
    PoisonedError,
    ShutDown,
    StorageError,
    UsageError,
)
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import DEDUP_SLOT
from holdfast.persistence.index.dedup_ring import Remembered
from holdfast.queue.client.staging import STAGED_BYTES
from holdfast.queue.producer.deduplication import WARNING_SECONDS
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of
from support.builders.settings import change_settings
from support.processes.interruptions import Kind, Point, interrupt, interrupted, points_of
from support.processes.log_handlers import messages_said, text_said
from support.processes.threads import Threads
from support.storages.faults import FaultPlan
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/q")
RING = ROOT / "dedup.ids"
FILE_BYTES = 16 * 2**10
LARGE = bytes(6000)  # three of them fill more than a data file
IDS_MAX = 50
POLICIES = {
    "every_commit": FlushPolicy.every_commit(),
    "every 3": FlushPolicy.every(commits=3),
    "never": FlushPolicy.never(),
}


@pytest.fixture
def clock() -> FakeClock:
    """A clock."""
    return FakeClock()


def opened(storage: SimulatedStorage, clock: FakeClock, **options: object) -> PersistentQueue:
    """Open a queue with small files and few ids."""
    given = {"data_file_bytes": FILE_BYTES, "dedup_max": IDS_MAX, **options}
    return PersistentQueue(ROOT, storage=storage, clock=clock, **{"mode": "exclusive", **given})  # type: ignore[arg-type]


def test_a_second_put_of_an_id_writes_nothing_and_returns_the_first_offset(
    storage: SimulatedStorage, clock: FakeClock
) -> None:
    """Other ids, and messages without one, are none of its business."""
    with opened(storage, clock) as queue:
        assert [queue.put(b"x"), queue.put(b"a", dedup_id="a"), queue.put(b"b", dedup_id="b")] == [0, 1, 2]
        before = storage.mutation_count
        assert queue.put(b"a again", dedup_id="a") == 1
        assert queue.put(b"b again", dedup_id="b", headers={"k": "v"}, timeout=0) == 2
        assert storage.mutation_count == before
        assert queue.put(b"y") == 3
        assert queue.get_many(10) == [b"x", b"a", b"b", b"y"]
        assert queue.put(b"a once more", dedup_id="a") == 1
        assert queue.empty()


def test_a_queue_without_ids_makes_no_file_for_them(storage: SimulatedStorage, clock: FakeClock) -> None:
    """Not when it rolls, and not when it is closed."""
    with opened(storage, clock) as queue:
        for _ in range(6):
            queue.put(LARGE)
    assert "dedup.ids" not in storage.list(ROOT)


@pytest.mark.parametrize("window", [300, 300.0, timedelta(minutes=5)])
def test_an_id_is_forgotten_once_the_window_is_over(
    storage: SimulatedStorage, clock: FakeClock, window: float | timedelta
) -> None:
    """The window begins with the put that wrote."""
    with opened(storage, clock, dedup_window=window) as queue:
        assert queue.put(b"1", dedup_id="a") == 0
        clock.advance(299.9)
        assert queue.put(b"2", dedup_id="a") == 0
        clock.advance(0.1)
        assert queue.put(b"3", dedup_id="a") == 1
        clock.advance(200)
        assert queue.put(b"4", dedup_id="a") == 1
        assert queue.stats().dedup_forgotten == 0


def test_a_window_of_nothing_remembers_nothing(storage: SimulatedStorage, clock: FakeClock) -> None:
    """Every put is a new one."""
    with opened(storage, clock, dedup_window=0) as queue:
        assert [queue.put(b"", dedup_id="a") for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_id_is_remembered_by_the_next_opening(storage: SimulatedStorage, clock: FakeClock, policy: str) -> None:
    """In order or killed, whether its data file is still there or was consumed and retired."""
    offsets = {}
    with opened(storage, clock, flush=POLICIES[policy]) as queue:
        for number in range(9):
            offsets[f"{number}"] = queue.put(LARGE, dedup_id=f"{number}")
            queue.put(b"between")
        for _ in range(18):
            queue.get()
        killed = storage.crash_keeping_all()
    assert len(storage.list(ROOT / "data")) < 3, "files were retired"
    for crashed in (killed, storage):
        later = FakeClock(clock.time_ns())
        for _ in range(3):
            with opened(crashed, later, flush=POLICIES[policy]) as queue:
                assert {each: queue.put(b"again", dedup_id=each) for each in offsets} == offsets
                later.advance(10)
        later.advance(300)
        with opened(crashed, later, flush=POLICIES[policy]) as queue:
            assert queue.put(b"again", dedup_id="8") == 18


def test_reopening_many_times_forgets_nothing_in_the_window(storage: SimulatedStorage, clock: FakeClock) -> None:
    """With puts in each life, ended in order or by a kill in turn, through several data files."""
    offsets: dict[str, int] = {}
    for life in range(12):
        queue = opened(storage, clock)
        for number in range(4):
            dedup_id = f"{life}:{number}"
            offsets[dedup_id] = queue.put(bytes(1500), dedup_id=dedup_id)
        for each, offset in offsets.items():
            assert queue.put(b"again", dedup_id=each) == offset
        storage, old = storage.crash_keeping_all() if life % 3 == 1 else storage, queue
        old.close()
    assert len(set(offsets.values())) == 48


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_clock_that_was_set_back_makes_nothing_last_for_ever(
    storage: SimulatedStorage, clock: FakeClock, is_clean: bool
) -> None:
    """What is remembered stays so for the rest of its window, across a restart for one window more at the most."""
    hour = 3600 * 10**9
    queue = opened(storage, clock)
    queue.put(b"", dedup_id="a")
    clock.set_time_ns(clock.time_ns() - hour)
    assert queue.put(b"", dedup_id="a") == 0
    assert queue.put(b"", dedup_id="b") == 1
    clock.advance(299)
    assert [queue.put(b"", dedup_id=each) for each in "ab"] == [0, 1]
    clock.advance(1)
    assert [queue.put(b"", dedup_id=each) for each in "ab"] == [2, 3]
    clock.set_time_ns(clock.time_ns() - hour)
    crashed = storage.crash_keeping_all()
    queue.close()
    with opened(storage if is_clean else crashed, clock) as queue:
        assert [queue.put(b"", dedup_id=each) for each in "ab"] == [2, 3]
        clock.advance(299)
        assert [queue.put(b"", dedup_id=each) for each in "ab"] == [2, 3]
        clock.advance(1)
        assert [queue.put(b"", dedup_id=each) for each in "ab"] == [4, 5]


def test_reaching_dedup_max_forgets_the_oldest_and_says_so(
    storage: SimulatedStorage, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted, and logged now and then; what has expired makes room without a word."""
    with opened(storage, clock) as queue, caplog.at_level(logging.WARNING, "holdfast"):
        for number in range(IDS_MAX):
            queue.put(b"", dedup_id=f"{number}")
        clock.advance(2)
        assert queue.put(b"", dedup_id="0") == 0
        assert (queue.stats().dedup_forgotten, messages_said(caplog)) == (0, [])
        assert queue.put(b"", dedup_id="new") == IDS_MAX
        assert queue.put(b"", dedup_id="1") == 1
        assert queue.put(b"", dedup_id="0") == IDS_MAX + 1
        assert queue.stats().dedup_forgotten == 2
        (message,) = messages_said(caplog)
        assert "dedup_max=50" in message
        assert "after 2.000 s" in message
        clock.advance(WARNING_SECONDS)
        queue.put(b"", dedup_id="newer")
        assert len(messages_said(caplog)) == 2
        clock.advance(300)
        for number in range(IDS_MAX):
            queue.put(b"", dedup_id=f"later {number}")
        assert (queue.stats().dedup_forgotten, len(messages_said(caplog))) == (3, 2)
    with opened(storage, clock, mode="read_only") as queue:
        assert queue.stats().dedup_forgotten == 0


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(("before", "after"), [(50, 10), (10, 50)])
def test_another_dedup_max_counts_from_the_next_put_on(
    storage: SimulatedStorage, clock: FakeClock, before: int, after: int, is_clean: bool
) -> None:
    """The file takes its new size when it is written next, with the ids that fit."""
    with opened(storage, clock, dedup_max=before) as queue:
        offsets = {f"{number}": queue.put(bytes(500), dedup_id=f"{number}") for number in range(40)}
        crashed = storage.crash_keeping_all()
    storage = storage if is_clean else crashed
    change_settings(ROOT, storage, dedup_max=after)
    left = [f"{number}" for number in range(40)][-min(before, 40) :]
    with opened(storage, clock, dedup_max=after) as queue:
        if is_clean:
            assert [queue.put(b"", dedup_id=each) for each in left] == [offsets[each] for each in left]
        assert queue.put(LARGE, dedup_id="new") == 40
        queue.put_many([LARGE, LARGE])
    content = storage.tree()[RING]
    assert content is not None
    assert len(content) == after * DEDUP_SLOT.size
    with opened(storage, clock, dedup_max=after) as queue:
        assert queue.put(b"", dedup_id="new") == 40
        kept = left[-(after - 1) :]
        assert [queue.put(b"", dedup_id=each) for each in kept] == [offsets[each] for each in kept]


def test_threads_that_put_one_id_at_once_get_one_offset(tmp_path: Path) -> None:
    """However many, and there is one message."""
    with PersistentQueue(tmp_path / "q", mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        for number in range(20):
            barrier, offsets = threading.Barrier(8), []

            def put(
                dedup_id: str = f"{number}", barrier: threading.Barrier = barrier, offsets: list[int] = offsets
            ) -> None:
                barrier.wait()
                offsets.append(queue.put(bytes(1000), dedup_id=dedup_id))

            group = Threads()
            for _ in range(8):
                group.start(put)
            group.join()
            assert offsets == [number] * 8
        assert queue.stats().next_offset == 20


@pytest.mark.parametrize(("policy", "waits"), [("every_commit", True), ("every 3", True), ("never", False)])
def test_a_duplicate_returns_once_the_first_one_is_as_durable_as_the_policy_says(
    storage: SimulatedStorage, clock: FakeClock, threads: Threads, policy: str, waits: bool
) -> None:
    """It acknowledges an offset, so it waits for a sync that is under way."""
    queue = opened(storage, clock, flush=POLICIES[policy])
    queue.put(b"0")
    queue.put(b"1")
    entered, release = threading.Event(), threading.Event()

    def hold(verb: str, path: Path) -> None:
        if verb == "sync" and path.suffix == ".data":
            entered.set()
            assert release.wait(20)

    queue.put(b"", dedup_id="other")  # the third: the ring is there, and nothing is owed any more
    queue.put_many([b"2"])
    queue.put_many([b"3"])
    storage.before_verb = hold
    first = threads.start(lambda: queue.put(b"x", dedup_id="x"))
    assert not waits or entered.wait(20)
    done: list[int] = []
    second = threads.start(lambda: done.append(queue.put(b"x", dedup_id="x")))
    second.join(0.1)
    assert second.is_alive() == waits
    release.set()
    first.join(20)
    second.join(20)
    assert done == [5]
    storage.before_verb = None
    queue.close()


def test_duplicates_of_what_is_long_durable_never_stand_in_for_the_sync_of_other_puts(
    storage: SimulatedStorage, clock: FakeClock
) -> None:
    """Under a policy that syncs every third commit."""
    queue = opened(storage, clock, flush=POLICIES["every 3"])
    queue.put(b"old", dedup_id="old")
    queue.flush()
    acknowledged = 1
    for number in range(12):
        acknowledged = queue.put(b"%d" % number) + 1
        for _ in range(number % 4):
            queue.put(b"old", dedup_id="old")
        with opened(storage.crash_dropping_unsynced(), clock) as crashed:
            assert crashed.stats().next_offset > acknowledged - 3
    queue.close()


@pytest.mark.parametrize("bound", [{"maxsize": 2}, {"max_bytes": 2 * FILE_BYTES}])
def test_a_duplicate_needs_no_room(storage: SimulatedStorage, clock: FakeClock, bound: dict[str, int]) -> None:
    """What is new waits for room, or gets queue.Full."""
    with opened(storage, clock, **bound) as queue:
        assert queue.put(b"a", dedup_id="a") == 0
        with suppress(Full):
            for _ in range(20):
                queue.put(LARGE, timeout=0)
        assert queue.put(LARGE, dedup_id="a", timeout=0) == 0
        with pytest.raises(Full):
            queue.put(LARGE, dedup_id="b", block=False)
        queue.get_many(20)
        queue.put(b"", dedup_id="b", timeout=0)


def test_of_two_that_wait_for_room_with_one_id_one_is_put(
    storage: SimulatedStorage, clock: FakeClock, threads: Threads
) -> None:
    """The other one finds it, though there is no room left."""
    with opened(storage, clock, maxsize=1) as queue:
        queue.put(b"full")
        offsets: list[int] = []
        waiting = [threads.start(lambda: offsets.append(queue.put(b"x", dedup_id="x"))) for _ in range(2)]
        assert queue.get() == b"full"
        for each in waiting:
            each.join(20)
        assert offsets == [1, 1]


@pytest.mark.parametrize("verb", ["open", "allocate", "write_at", "rename", "sync_directory"])
def test_a_put_that_failed_leaves_no_memory(storage: SimulatedStorage, clock: FakeClock, verb: str) -> None:
    """On a full disk, at the first id, in the middle of a file, and where a file has to be begun."""
    queue = opened(storage, clock)
    for number, payload in enumerate([LARGE, b"", LARGE, LARGE, LARGE]):
        storage.faults = FaultPlan(1, verbs=frozenset({verb}), error=28)
        try:
            failed_offset: int | None = queue.put(payload, dedup_id=f"{number}")
        except (DiskFullError, CommitUnknownError) as error:
            failed_offset = None
            if isinstance(error, CommitUnknownError):
                queue = opened(storage.crash_keeping_all(), clock)
        storage.faults = None
        before = queue.stats().next_offset
        if failed_offset is None:
            queue.put(b"takes the offset")
            assert queue.put(b"again", dedup_id=f"{number}") == before + 1
        assert queue.put(b"again", dedup_id=f"{number}") == queue.stats().next_offset - 1
    queue.close()


def test_a_short_write_leaves_no_memory(storage: SimulatedStorage, clock: FakeClock) -> None:
    """The next put has the offset; the id is new."""
    with opened(storage, clock) as queue:
        queue.put(b"", dedup_id="before")
        storage.faults = FaultPlan(1, short_write=True, forever=True, error=28)
        with pytest.raises(DiskFullError):
            queue.put(b"x" * 100, dedup_id="x")
        storage.faults = None
        assert queue.put(b"other") == 1
        assert queue.put(b"x", dedup_id="x") == 2


def test_after_a_failed_sync_nobody_knows_of_the_duplicate_either(storage: SimulatedStorage, clock: FakeClock) -> None:
    """What was durable before is still answered; the rest says to reopen."""
    queue = opened(storage, clock)
    queue.put(b"", dedup_id="durable")
    storage.faults = FaultPlan(1, verbs=frozenset({"sync"}))
    with pytest.raises(CommitUnknownError):
        queue.put(b"", dedup_id="x")
    storage.faults = None
    with pytest.raises(CommitUnknownError):
        queue.put(b"", dedup_id="x")
    with pytest.raises(PoisonedError):
        queue.put(b"", dedup_id="new")
    assert queue.put(b"", dedup_id="durable") == 0
    queue.close()
    with opened(storage, clock) as queue:
        assert queue.put(b"", dedup_id="x") == 1
        assert queue.put(b"", dedup_id="new") == 2


@pytest.mark.parametrize("verb", ["open", "write_at", "sync"])
def test_ids_that_cannot_be_kept_stop_a_roll_and_are_tried_again(
    storage: SimulatedStorage, clock: FakeClock, verb: str
) -> None:
    """The put that needed the next file has failed; nothing is lost of the queue, and nothing forgotten."""
    queue = opened(storage, clock)
    queue.put(LARGE, dedup_id="a")
    queue.put(LARGE, dedup_id="b")
    storage.faults = FaultPlan(1, verbs=frozenset({verb}), error=28)
    with pytest.raises(DiskFullError, match="keeping deduplication ids"):
        queue.put(LARGE, dedup_id="c")
    storage.faults = None
    assert queue.put(LARGE, dedup_id="c") == 2
    for crashed in (storage.crash_keeping_all(), storage.crash_dropping_unsynced()):
        with opened(crashed, clock) as again:
            assert [again.put(b"", dedup_id=each) for each in "abc"] == [0, 1, 2]
    queue.close()


@pytest.mark.parametrize("verb", ["write_at", "sync"])
def test_ids_that_cannot_be_kept_at_a_close_are_found_in_the_log(
    storage: SimulatedStorage, clock: FakeClock, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    """The close is not a clean one, and says so; nothing is lost."""
    queue = opened(storage, clock)
    queue.put(LARGE, dedup_id="a")
    storage.faults = FaultPlan(1, verbs=frozenset({verb}))
    queue.close()
    assert storage.faults.fired_count == 1
    storage.faults = None
    assert "was not closed in order" in text_said(caplog)
    with opened(storage, clock) as queue:
        assert queue.put(b"", dedup_id="a") == 0
        assert queue.get() == LARGE


def test_ids_in_front_of_damage_and_behind_it_are_remembered(tmp_path: Path) -> None:
    """After an unclean end they are read from the file, past what is damaged, which is forgotten."""
    path = tmp_path / "q"
    queue = PersistentQueue(path, mode="exclusive")
    for number in range(5):
        queue.put(b"message %d" % number, dedup_id=f"{number}")
    queue.flush()
    (data,) = (path / "data").iterdir()
    content = data.read_bytes()
    mark = (path / "write.mark").read_bytes()
    ring = (path / "dedup.ids").read_bytes()
    queue.close()
    data.write_bytes(content.replace(b"message 2", b"massage 2"))
    (path / "write.mark").write_bytes(mark)
    (path / "dedup.ids").write_bytes(ring)
    with PersistentQueue(path, mode="exclusive") as queue:
        assert [queue.put(b"", dedup_id=f"{number}") for number in (0, 1, 3, 4, 2)] == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("at", range(1, 60))
def test_an_interruption_leaves_the_log_and_the_memory_agreeing(
    storage: SimulatedStorage, clock: FakeClock, at: int
) -> None:
    """Wherever it hits a put: the next one of the same id finds the message, or puts the only one."""
    queue = opened(storage, clock)
    queue.put(b"", dedup_id="before")
    interrupt(lambda: queue.put(LARGE, dedup_id="x"), at)
    try:
        offset = queue.put(LARGE, dedup_id="x")
    except (PoisonedError, CommitUnknownError):
        queue.close()
        queue = opened(storage, clock)
        offset = queue.put(LARGE, dedup_id="x")
    assert queue.put(LARGE, dedup_id="x") == offset == 1
    assert queue.put(b"other") == 2
    assert queue.get_many(10) == [b"", LARGE, b"other"]
    queue.close()


def test_a_queue_that_is_closed_or_shut_down_answers_no_duplicate(storage: SimulatedStorage, clock: FakeClock) -> None:
    """As any other put."""
    queue = opened(storage, clock)
    queue.put(b"", dedup_id="a")
    queue.shutdown()
    with pytest.raises(ShutDown):
        queue.put(b"", dedup_id="a")
    queue.close()
    with pytest.raises(ClosedError):
        queue.put(b"", dedup_id="a")


def test_bad_ids_and_options_are_refused(storage: SimulatedStorage, clock: FakeClock) -> None:
    """Before anything is written."""
    with opened(storage, clock) as queue:
        for bad in ("", "x" * 256, "é" * 128):
            with pytest.raises(UsageError):
                queue.put(b"", dedup_id=bad)
        with pytest.raises(TypeError):
            queue.put(b"", dedup_id=7)  # type: ignore[arg-type]
        assert queue.put(b"", dedup_id="x" * 255) == 0
    for options in ({"dedup_window": -1}, {"dedup_window": float("inf")}):
        with pytest.raises(UsageError):
            opened(storage, clock, **options)
    for dedup_max in (0, -1, 10**9):
        with pytest.raises(ConfigError):
            opened(storage, clock, dedup_max=dedup_max)


# -- Of clients --------------------------------------------------------------------------------------------------------


def test_duplicates_of_clients_are_answered_with_the_first_offset(tmp_path: Path) -> None:
    """Whoever put it first: the owner, another handle, or the same one; large messages too."""
    path = tmp_path / "q"
    with (
        PersistentQueue(path, mode="shared", data_file_bytes=FILE_BYTES) as owner,
        PersistentQueue(path, mode="shared") as one,
        PersistentQueue(path, mode="shared", can_own=False) as two,
    ):
        assert owner.is_owner
        assert owner.put(b"a", dedup_id="a") == 0
        assert [each.put(b"a", dedup_id="a") for each in (one, two, owner)] == [0, 0, 0]
        large = bytes(STAGED_BYTES + 1)
        assert one.put(large, dedup_id="large") == 1
        assert [each.put(large, dedup_id="large") for each in (two, owner, one)] == [1, 1, 1]
        assert [owner.get(), owner.get()] == [b"a", large]
        assert one.put(b"b") == 2


def test_duplicates_are_found_by_each_of_many_owners(tmp_path: Path) -> None:
    """Each call opens the queue, and reads what the last one has left."""
    path = tmp_path / "q"
    for _ in range(3):
        with PersistentQueue(path, mode="shared", can_own=False, data_file_bytes=FILE_BYTES) as queue:
            assert [queue.put(LARGE, dedup_id=f"{number}") for number in range(5)] == [0, 1, 2, 3, 4]
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.put(b"", dedup_id="3") == 3


def test_a_duplicate_of_a_client_needs_no_room(tmp_path: Path) -> None:
    """The queue is full, and stays so."""
    path = tmp_path / "q"
    with (
        PersistentQueue(path, mode="shared", maxsize=1) as owner,
        PersistentQueue(path, mode="shared", can_own=False) as queue,
    ):
        assert owner.put(b"a", dedup_id="a") == 0
        assert queue.put(b"a", dedup_id="a", timeout=5) == 0
        with pytest.raises(Full):
            queue.put(b"b", dedup_id="b", timeout=0.2)


def test_who_owns_the_queue_for_a_moment_forgets_no_ids(tmp_path: Path) -> None:
    """It keeps as many as the queue is set to, and the owner knows all of them when it is back."""
    path = tmp_path / "q"
    first = {}
    with PersistentQueue(path, mode="exclusive", dedup_max=40, data_file_bytes=FILE_BYTES) as owner:
        for number in range(30):
            first[number] = owner.put(LARGE if number % 10 == 0 else b"x", dedup_id=str(number))
    with PersistentQueue(path, mode="shared", can_own=False) as guest:
        for number in range(4):  # over the end of a data file, so that the ring is written
            guest.put(LARGE, dedup_id=f"guest {number}")
        assert guest.put(b"x", dedup_id="7") == first[7]
    with PersistentQueue(path, mode="exclusive", dedup_max=40, data_file_bytes=FILE_BYTES) as owner:
        assert {number: owner.put(b"x", dedup_id=str(number)) for number in range(30)} == first


def test_an_id_whose_put_was_interrupted_before_it_was_remembered_is_remembered_by_the_next(
    storage: SimulatedStorage, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is in the log: what is kept when its data file is left says so."""
    with opened(storage, clock) as queue:
        queue.put(b"x", dedup_id="first")
        ids = handle_of(queue).require_write_side().deduplication
        with monkeypatch.context() as patched:
            patched.setattr(ids, "_remember", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                queue.put(b"y", dedup_id="second")
        queue.put_many([LARGE] * 3)
        left = storage.crash_keeping_all()
    with opened(left, clock) as queue:
        assert [queue.put(b"again", dedup_id=each) for each in ("first", "second")] == [0, 1]


def test_ids_that_cannot_be_read_refuse_the_opening_and_leave_nothing_locked(
    storage: SimulatedStorage, clock: FakeClock
) -> None:
    """What was put before would be put again."""
    with opened(storage, clock) as queue:
        queue.put(b"x", dedup_id="first")
    with refusing(storage, "size", RING.name), pytest.raises(StorageError, match="reading deduplication ids"):
        opened(storage, clock)
    with opened(storage, clock) as queue:
        assert queue.put(b"again", dedup_id="first") == 0


def put_in_transaction(queue: PersistentQueue, payload: bytes) -> None:
    """Put one message in a transaction."""
    with queue.transaction() as work:
        work.put(payload)


def put_prepared(queue: PersistentQueue, payload: bytes) -> None:
    """Put one message in a transaction, in two steps."""
    work = queue.transaction()
    work.put(payload)
    work.prepare()
    work.commit()


def put_of_a_client(queue: PersistentQueue, payload: bytes) -> None:
    """Put one message as the owner does it for another process."""
    record = CommitRecord("t", b"n" * 16, 1, 0)
    assert handle_of(queue).require_write_side().append_requested((payload,), None, record, "") is not None


TAKERS = {
    "put": PersistentQueue.put,
    "put_many": lambda queue, payload: queue.put_many([payload]),
    "put with an id": lambda queue, payload: queue.put(payload, dedup_id="other"),
    "a transaction": put_in_transaction,
    "a prepared one": put_prepared,
    "a client": put_of_a_client,
}


@pytest.mark.parametrize("maxsize", [0, 100], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("size", [1, 10_000], ids=["into the file", "behind the file"])
@pytest.mark.parametrize("taker", TAKERS)
def test_an_id_whose_message_was_not_appended_is_not_given_to_the_message_that_takes_its_offset(
    storage: SimulatedStorage, clock: FakeClock, taker: str, size: int, maxsize: int
) -> None:
    """Else the same put again would return that one's offset, and the message would never be put."""
    with opened(storage, clock, maxsize=maxsize) as queue:
        queue.put(LARGE)
        with refusing(storage, "write_at", ".data", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            queue.put(b"x", dedup_id="x")
        TAKERS[taker](queue, bytes(size))
        assert queue.put(b"x", dedup_id="x") == 2
        assert queue.get_many(10) == [LARGE, bytes(size), b"x"]
        assert queue.put(b"x", dedup_id="x") == 2


class FullMemory(dict[bytes, Remembered]):
    """A dict that finds no memory to grow."""

    def __setitem__(self, key: bytes, value: Remembered) -> None:
        raise MemoryError


@pytest.mark.parametrize("taker", TAKERS)
def test_no_put_without_an_id_waits_for_an_id_that_cannot_be_remembered(
    storage: SimulatedStorage, clock: FakeClock, taker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is in the log, and its id will be remembered: with the next one, or by the next opening."""
    with opened(storage, clock) as queue:
        ids = handle_of(queue).require_write_side().deduplication
        with monkeypatch.context() as patched:
            patched.setattr(ids, "_ids", FullMemory())
            assert queue.put(b"x", dedup_id="x") == 0
            if taker == "put with an id":
                with pytest.raises(MemoryError):
                    TAKERS[taker](queue, b"other")
            else:
                TAKERS[taker](queue, b"other")
        assert queue.put(b"x", dedup_id="x") == 0


def points_of_a_put() -> list[Point]:
    """Return the points inside of :meth:`Deduplication._remember`."""
    storage = SimulatedStorage()
    with opened(storage, FakeClock(), dedup_max=3) as queue:
        points = points_of(lambda: queue.put(b"", dedup_id="x"))
    kinds = (Kind.DELIVERED, Kind.REFUSED)
    return [point for point in points if "Deduplication._remember" in point.where and point.kind in kinds]


@pytest.mark.parametrize("point", points_of_a_put())
def test_a_put_that_is_interrupted_while_it_is_remembered_forgets_no_other_id(
    storage: SimulatedStorage, clock: FakeClock, point: Point
) -> None:
    """It makes space for itself once, when the most ids are remembered that are kept."""
    with opened(storage, clock, dedup_max=3) as queue:
        for number in range(3):
            queue.put(b"", dedup_id=f"{number}")
        assert interrupted(lambda: queue.put(b"", dedup_id="x"), point) is not None
        assert [queue.put(b"", dedup_id=each) for each in ("x", "1", "2")] == [3, 1, 2]
        killed = storage.crash_keeping_all()
    for left in (storage, killed):
        with opened(left, clock, dedup_max=3) as queue:
            assert [queue.put(b"", dedup_id=each) for each in ("x", "1", "2")] == [3, 1, 2]

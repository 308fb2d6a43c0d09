"""Two owners of one queue, where locks do not hold: the first one finds out before it says that anything is done."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import (
    CommitUnknownError,
    FencedError,
    FlushPolicy,
    HoldfastError,
    PersistentQueue,
    PoisonedError,
    StorageError,
)
from holdfast.persistence.format.constants import FENCE_POSITION
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of
from support.storages.faults import FaultPlan
from support.storages.no_locks import UnlockedOsStorage, UnlockedStorage
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/queue")
SMALL, LARGE = 16 * 1024, 2**20
LOWER = (FlushPolicy.every(commits=1000, seconds=0.05), FlushPolicy.never())
Open = Callable[..., PersistentQueue]


@pytest.fixture
def storage() -> UnlockedStorage:
    """A disk whose locks keep nobody out."""
    return UnlockedStorage()


@pytest.fixture
def open_queue(storage: UnlockedStorage) -> Iterator[Open]:
    """Open handles on one queue; whatever is still open at the end is closed."""
    with contextlib.ExitStack() as handles:

        def opened(**options: object) -> PersistentQueue:
            options = {"data_file_bytes": SMALL, "clock": FakeClock(), **options}
            queue = PersistentQueue(ROOT, mode="exclusive", storage=storage, backoff=[], **options)  # type: ignore[arg-type]
            handles.callback(_close, queue)
            return queue

        yield opened


def _close(queue: PersistentQueue) -> None:
    with contextlib.suppress(FencedError):
        queue.close()


def left(storage: SimulatedStorage) -> list[bytes]:
    """Return what the default group has not finished, as a new owner finds it behind a kill of all others."""
    with PersistentQueue(ROOT, mode="exclusive", storage=storage.crash_keeping_all()) as queue:
        assert queue.recovery.lost_count == 0
        return [message.payload for message in queue.peek(10**6)]


def refuse_all(queue: PersistentQueue) -> None:
    """Check that a handle knows it, and does nothing any more."""
    for _ in range(2):
        with pytest.raises(FencedError, match="locks do not work here") as caught:
            queue.put(b"refused")
        assert caught.value.pid is None  # the lock file names this process, which is not the other owner
        assert ": another owner has opened this queue too" in str(caught.value)
        assert isinstance(caught.value, PoisonedError)


def put_until_refused(queue: PersistentQueue) -> None:
    """Put for a minute at the most."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        queue.put(b"in between")


def test_the_other_owner_is_named_if_the_lock_file_names_it(storage: UnlockedStorage, open_queue: Open) -> None:
    """Its process and host are in the text, and attributes."""
    first = open_queue()
    open_queue()
    with storage.open(ROOT / "write.lock") as file:
        file.write_at((b'{"pid": 4321, "host": "elsewhere"}'.ljust(512),), 0)
    with pytest.raises(FencedError, match="process 4321 on elsewhere has opened this queue too") as caught:
        first.put(b"refused")
    assert (caught.value.pid, caught.value.host) == (4321, "elsewhere")


# -- Putting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("put_before", [0, 3])
def test_no_put_of_the_first_owner_returns_once_a_second_has_opened(
    storage: UnlockedStorage, open_queue: Open, put_before: int
) -> None:
    """What it had put before is there, what the second one puts is there, and nothing else is."""
    first = open_queue()
    before = [f"first {number}".encode() for number in range(put_before)]
    for payload in before:
        first.put(payload)
    second = open_queue()
    with pytest.raises((CommitUnknownError, FencedError), match="has opened this queue too"):
        first.put(b"of nobody")
    refuse_all(first)
    second.put_many([b"second 1", b"second 2"])
    refuse_all(first)
    second.put(b"second 3")
    assert left(storage) == [*before, b"second 1", b"second 2", b"second 3"]


def test_an_append_beside_a_sync_leaves_it_to_that_to_compare(open_queue: Open) -> None:
    """It would wait for the disk, and the sync compares before anything counts as durable."""
    writer = handle_of(open_queue()).require_write_side()._writer
    open_queue()
    with writer._sync_lock:
        writer._look_for_others()
    with pytest.raises(FencedError):
        writer._look_for_others()


def test_an_owner_that_comes_to_a_queue_closed_in_order_writes_nothing_over_the_second_one(
    storage: UnlockedStorage, open_queue: Open
) -> None:
    """Both would append to the same file at the same place: the first one looks before it writes."""
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=SMALL) as queue:
        queue.put(b"before")
    first, second = open_queue(), open_queue()
    second.put_many([b"one", b"two"])
    refuse_all(first)
    second.put(b"three")
    assert left(storage) == [b"before", b"one", b"two", b"three"]


def test_threads_that_share_a_sync_are_all_told(storage: UnlockedStorage, open_queue: Open) -> None:
    """Whatever was acknowledged stands in the queue that the second owner found, however the two overlap."""
    first = open_queue(data_file_bytes=LARGE)
    acknowledged: list[bytes] = []
    errors: list[Exception] = []

    def put(thread: int) -> None:
        try:
            for number in range(100_000):
                payload = f"{thread}-{number}".encode()
                first.put(payload)
                acknowledged.append(payload)
        except HoldfastError as error:
            errors.append(error)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(acknowledged) < 50:
        time.sleep(0.001)
    second = open_queue(data_file_bytes=LARGE)
    for number in range(20):
        second.put(f"second {number}".encode())
    for thread in threads:
        thread.join()
    assert len(errors) == 4
    assert all(isinstance(error, CommitUnknownError | FencedError) for error in errors)
    found = left(storage)
    assert set(acknowledged) <= set(found)
    assert found[-20:] == [f"second {number}".encode() for number in range(20)]


@pytest.mark.parametrize("flush", LOWER, ids=["every", "never"])
def test_under_the_lower_policies_an_owner_finds_out_within_a_tenth_of_a_second(
    storage: UnlockedStorage, flush: FlushPolicy
) -> None:
    """It may have put something in between, which is not kept; what it put before is."""
    clock = FakeClock()
    first = PersistentQueue(ROOT, mode="exclusive", flush=flush, storage=storage, data_file_bytes=SMALL, clock=clock)
    first.put(b"before")
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=SMALL) as second:
        clock.advance(0.1)
        refuse_all(first)
        second.put(b"second")
    with contextlib.suppress(FencedError):
        first.close()
    assert left(storage) == [b"before", b"second"]


@pytest.mark.parametrize("flush", LOWER, ids=["every", "never"])
def test_the_background_thread_looks_while_something_is_put(storage: UnlockedStorage, flush: FlushPolicy) -> None:
    """On the clock of the system, without a sync."""
    first = PersistentQueue(ROOT, mode="exclusive", flush=flush, storage=storage, data_file_bytes=SMALL)
    first.put(b"before")
    with (
        PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=SMALL),
        pytest.raises((FencedError, CommitUnknownError)),
    ):
        put_until_refused(first)
    refuse_all(first)
    first.close()


def test_an_owner_that_only_closes_finds_out_too(storage: UnlockedStorage, open_queue: Open) -> None:
    """It leaves no mark of a clean close in a file that is not its own any more."""
    first = PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=SMALL)
    first.put(b"before")
    second = open_queue()
    second.put(b"second")
    with pytest.raises(FencedError):
        first.close()
    second.put(b"third")
    assert left(storage) == [b"before", b"second", b"third"]


@pytest.mark.parametrize("verb", ["allocate", "sync", "rename"])
def test_no_data_file_is_put_over_that_of_the_second_owner(
    storage: UnlockedStorage, open_queue: Open, verb: str
) -> None:
    """The next one of both has the same name; the first owner looks again when its own is ready."""
    first = open_queue()
    first.put(b"first".ljust(9000))
    second: list[PersistentQueue] = []

    def come_in(called: str, path: Path) -> None:
        if called == verb and path.name == "next.data" and not second:
            second.append(open_queue())
            second[0].put(b"second".ljust(9000))

    storage.before_verb = come_in
    with pytest.raises((CommitUnknownError, StorageError)):
        first.put(b"of nobody".ljust(9000))
    storage.before_verb = None
    with pytest.raises(PoisonedError):
        first.put(b"refused")
    second[0].put(b"second again".ljust(9000))
    assert [payload.rstrip() for payload in left(storage)] == [b"first", b"second", b"second again"]


def take_until_refused(queue: PersistentQueue, taken: list[bytes]) -> None:
    """Take one message after the other, more than one position file has room for."""
    for _ in range(1000):
        taken.append(queue.get())


# -- Taking ----------------------------------------------------------------------------------------------------------


def test_no_acknowledgement_of_the_first_owner_returns_once_a_second_has_opened(
    storage: UnlockedStorage, open_queue: Open
) -> None:
    """What it had finished is not delivered again; what it holds is, to the second one, and to nobody twice."""
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=SMALL) as queue:
        queue.put_many([b"%d" % number for number in range(10)])
    first = open_queue()
    assert first.get_many(3) == [b"0", b"1", b"2"]
    held = first.receive()
    second = open_queue()
    with pytest.raises((CommitUnknownError, FencedError), match="has opened this queue too"):
        held.ack()
    for _ in range(2):
        with pytest.raises(FencedError):
            first.get()
    assert second.get_many(10) == [b"3"]
    assert second.get_many(10) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert left(storage) == []


@pytest.mark.parametrize("flush", LOWER, ids=["every", "never"])
def test_under_the_lower_policies_a_consumer_finds_out_within_a_tenth_of_a_second(
    storage: UnlockedStorage, flush: FlushPolicy
) -> None:
    """By the clock, forwards or back."""
    for seconds in (0.1, -1000.0):
        clock = FakeClock()
        with PersistentQueue(
            ROOT, mode="exclusive", flush=flush, storage=storage, data_file_bytes=SMALL, clock=clock
        ) as queue:
            queue.put_many([b"one", b"two"])
        first = PersistentQueue(ROOT, mode="exclusive", storage=storage, clock=clock)
        assert first.get() == b"one"
        with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=SMALL, clock=clock) as second:
            clock.set_time_ns(clock.time_ns() + int(seconds * 1e9))
            with pytest.raises(FencedError):
                first.get()
            assert second.get() == b"two"
        first.close()


@pytest.mark.parametrize("verb", ["allocate", "sync", "rename", "sync_directory"])
def test_a_second_owner_that_comes_while_the_next_position_file_is_made_is_noticed(
    storage: UnlockedStorage, open_queue: Open, verb: str
) -> None:
    """Before the new one has its name or after: no acknowledgement behind it returns."""
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=SMALL) as queue:
        queue.put_many([b"%d" % number for number in range(2000)])
    first = open_queue()
    second: list[PersistentQueue] = []
    taken: list[bytes] = []

    def come_in(called: str, path: Path) -> None:
        is_next = path.name == "next.position" or (called == "sync_directory" and path.name == "default")
        if called == verb and is_next and not second and taken:
            storage.before_verb = None
            second.append(open_queue())

    storage.before_verb = come_in
    with pytest.raises(StorageError):
        take_until_refused(first, taken)
    with pytest.raises(FencedError):
        first.get()
    assert int(second[0].get()) >= len(taken)


def test_a_second_owner_follows_the_first_into_the_position_file_that_it_begins_just_then(
    storage: UnlockedStorage, open_queue: Open
) -> None:
    """It claims the latest one again until that stays the latest; then it knows what the first one has finished."""
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=SMALL) as queue:
        queue.put_many([b"%d" % number for number in range(400)])
    first = open_queue()
    taken = [first.get()]

    def go_on(called: str, path: Path) -> None:
        if called == "write_at" and path.suffix == ".position" and path.stem.isdigit():
            storage.before_verb = None
            taken.extend(first.get() for _ in range(300))

    storage.before_verb = go_on
    second = open_queue()
    with pytest.raises((CommitUnknownError, FencedError)):
        first.get()
    assert len(taken) == 301
    assert second.get() == b"301"


def test_of_two_that_begin_a_group_at_once_none_goes_on_in_a_file_of_the_other(storage: UnlockedStorage) -> None:
    """Neither has a position file to claim: whose file was replaced, or taken by the other, is told behind its sync."""
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=SMALL) as queue:
        queue.put_many([b"%d" % number for number in range(10)])
        queue.groups.create("audit")
    handles: list[PersistentQueue] = []

    def come_in(called: str, path: Path) -> None:
        if called == "rename" and path.name == "next.position":
            storage.before_verb = None
            handles.append(
                PersistentQueue(ROOT, group="audit", mode="exclusive", storage=storage, data_file_bytes=SMALL)
            )

    storage.before_verb = come_in
    handles.append(PersistentQueue(ROOT, group="audit", mode="exclusive", storage=storage, data_file_bytes=SMALL))
    for handle, reason in zip(handles, ("was replaced or removed", "has opened this queue too"), strict=True):
        with pytest.raises((FencedError, CommitUnknownError), match=reason):
            handle.get()
        handle.close()
    with PersistentQueue(ROOT, group="audit", mode="exclusive", storage=storage, data_file_bytes=SMALL) as queue:
        assert queue.get() == b"0"


# -- More than one file ----------------------------------------------------------------------------------------------


def test_a_joint_commit_of_the_first_owner_does_not_return(storage: UnlockedStorage, open_queue: Open) -> None:
    """The second one has read the memory of joint commits before the first one has replaced it."""
    first = open_queue()
    transaction = first.begin()
    transaction.put(b"part")
    transaction.prepare("part", part_of=("app", 1))
    second: list[PersistentQueue] = []

    def come_in(called: str, path: Path) -> None:
        if called == "rename" and path.name == "joint.json.new" and not second:
            second.append(open_queue())
            assert second[0].joint_commits.latest("app") is None

    storage.before_verb = come_in
    with pytest.raises(CommitUnknownError, match="has opened this queue too"):
        first.joint_commits.commit("app", 1, ["part"])
    refuse_all(first)


def test_a_large_batch_of_the_first_owner_is_not_adopted(storage: UnlockedStorage, open_queue: Open) -> None:
    """Its file would take the place of the second one's next."""
    first = open_queue()
    first.put(b"before")
    transaction = first.begin()
    for _ in range(10):
        transaction.put(b"of nobody".ljust(1000))
    second = open_queue()
    second.put(b"second")
    with pytest.raises(StorageError):
        transaction.commit()
    with pytest.raises((FencedError, CommitUnknownError)):
        first.put(b"refused")
    assert left(storage) == [b"before", b"second"]


# -- Other ways to lose a file ---------------------------------------------------------------------------------------


def test_a_token_that_was_damaged_is_not_taken_for_another_owner(storage: UnlockedStorage, open_queue: Open) -> None:
    """The error says that something else has written there."""
    queue = open_queue()
    queue.put(b"before")
    storage.open(ROOT / "write.mark").write_at((b"?" * 16,), FENCE_POSITION)
    with pytest.raises(CommitUnknownError, match="has lost the token of its owner"):
        queue.put(b"in doubt")


def test_a_disk_that_cannot_say_who_owns_the_queue_fails_the_put(storage: UnlockedStorage, open_queue: Open) -> None:
    """Before the write nothing has happened; behind the sync nobody knows."""
    queue = PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=SMALL, clock=FakeClock())
    storage.faults = FaultPlan(1, verbs=frozenset({"read_at"}))
    with pytest.raises(StorageError, match="looking for other owners"):
        queue.put(b"refused")
    storage.faults = None
    assert queue.put(b"put") == 0
    storage.faults = FaultPlan(1, verbs=frozenset({"read_at"}))
    with pytest.raises(CommitUnknownError):
        queue.put(b"in doubt")
    storage.faults = None
    queue.close()


def test_a_consumer_whose_disk_cannot_say_who_owns_the_group_fails(storage: UnlockedStorage) -> None:
    """Nothing was noted; the next attempt may succeed."""
    clock = FakeClock()
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=SMALL, clock=clock) as queue:
        queue.put_many([b"one", b"two"])
        assert queue.get() == b"one"
        clock.advance(1)
        storage.faults = FaultPlan(1, verbs=frozenset({"link_count"}))
        with pytest.raises(StorageError, match="looking for other owners"):
            queue.get()
        storage.faults = None
        assert queue.get() == b"two"


@pytest.mark.parametrize("verb", ["put", "get"])
def test_lock_files_that_were_removed_let_a_second_owner_in_and_the_first_one_out(tmp_path: Path, verb: str) -> None:
    """On the real file system, whose locks hold: removing "stale" lock files is the usual way to get two owners."""
    root = tmp_path / "queue"
    first = PersistentQueue(root, mode="exclusive")
    first.put_many([b"one", b"two"])
    work = (lambda: first.put(b"three")) if verb == "put" else first.get
    work()
    for path in (root / "write.lock", root / "groups/default/read.lock"):
        path.unlink()
    second = PersistentQueue(root, mode="exclusive")
    with pytest.raises((FencedError, CommitUnknownError), match="has opened this queue too"):
        work()
    second.close()
    with contextlib.suppress(FencedError):
        first.close()


def test_a_second_process_cannot_be_told_from_a_second_handle(tmp_path: Path) -> None:
    """On the real file system with locks that do not hold, both sides at once."""
    storage = UnlockedOsStorage()
    first = PersistentQueue(tmp_path / "queue", mode="exclusive", storage=storage)
    first.put_many([b"one", b"two", b"three"])
    assert first.get() == b"one"
    with PersistentQueue(tmp_path / "queue", mode="exclusive", storage=storage) as second:
        with pytest.raises((FencedError, CommitUnknownError)):
            first.put(b"of nobody")
        with pytest.raises((FencedError, CommitUnknownError)):
            first.get()
        second.put(b"four")
        assert [second.get() for _ in range(3)] == [b"two", b"three", b"four"]
    with contextlib.suppress(FencedError):
        first.close()


@pytest.mark.parametrize("verb", ["put", "get"])
def test_an_owner_whose_files_were_removed_does_not_write_on(tmp_path: Path, verb: str) -> None:
    """What goes into a file without a name is lost with the handle."""
    root = tmp_path / "queue"
    queue = PersistentQueue(root, mode="exclusive")
    queue.put_many([b"one", b"two", b"three"])
    assert queue.get() == b"one"
    for path in [*root.glob("data/*"), *root.glob("groups/default/*.position")]:
        path.unlink()
    time.sleep(0.1)  # as long as it may be unnoticed
    with pytest.raises((CommitUnknownError, FencedError), match="was replaced or removed"):
        queue.put(b"lost") if verb == "put" else queue.get()
    with contextlib.suppress(FencedError):
        queue.close()

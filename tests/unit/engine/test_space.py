"""Space: a message that stays unfinished keeps its own data file, and neither the others nor the time to open."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import CommitUnknownError, Empty, Full, PersistentQueue, Put
from holdfast.persistence.verify import verify
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of
from support.builders.small_steps import FIRST_STEP_BYTES, small_steps
from support.builders.takes import states, taken
from support.builders.transactions import FILE_BYTES, kill, open_queue
from support.owners.second_groups import open_beside
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage
from support.storages.small_disk import small_disk, take_all_room

FILE_COUNT = 10
DAY = 86400


def nacked(queue: PersistentQueue) -> None:
    """It failed, and waits for a long time."""
    queue.receive(timeout=0).nack(delay=30 * DAY)


def dead(queue: PersistentQueue) -> None:
    """A dead letter."""
    queue.receive(timeout=0).reject("no good")


def prepared(queue: PersistentQueue) -> None:
    """A transaction holds it, and nobody decides."""
    tx = queue.begin()
    tx.ack(tx.receive(timeout=0))
    tx.prepare("p")


def delayed(queue: PersistentQueue) -> None:
    """Put with a long delay: nobody has had it."""


STAYS = (nacked, dead, prepared, delayed)


def fill(queue: PersistentQueue, stay: Callable[[PersistentQueue], None], count: int = FILE_COUNT) -> None:
    """Put a message in the middle of a file that stays, and others until there are so many files behind it."""
    queue.put_many([b"before"] * 5)
    assert queue.get_many(5) == [b"before"] * 5
    queue.put_many([Put(b"stays", delay=30 * DAY if stay is delayed else None)])
    stay(queue)
    begun = queue.stats().file_count
    while queue.stats().file_count < begun + count:
        queue.put_many([b"other".ljust(200)] * 20)


@pytest.mark.parametrize("stay", STAYS)
def test_a_message_that_stays_keeps_its_own_file_only(storage: SimulatedStorage, stay: Callable[..., None]) -> None:
    """The others go as soon as the last of their messages is finished, and again after a restart."""
    clock = FakeClock()
    queue = open_queue(storage, clock=clock)
    fill(queue, stay)
    assert queue.stats().file_count > FILE_COUNT
    assert set(taken(queue)) == {b"other".ljust(200)}
    assert queue.stats().file_count <= 2  # its own and the active one
    assert list(states(queue)) == [b"stays"]
    queue = open_queue(kill(storage, queue), clock=clock)
    assert queue.stats().file_count <= 3
    fill_again = queue.stats().file_count + FILE_COUNT
    while queue.stats().file_count < fill_again:
        queue.put_many([b"other".ljust(200)] * 20)
    taken(queue)
    assert queue.stats().file_count <= 3
    assert list(states(queue)) == [b"stays"]
    queue.close()


@pytest.mark.parametrize("stay", STAYS)
def test_the_file_of_a_message_that_stayed_goes_with_it(storage: SimulatedStorage, stay: Callable[..., None]) -> None:
    """Nothing is left behind once it is finished, discarded or decided."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        fill(queue, stay)
        taken(queue)
        if stay is dead:
            assert queue.dead.discard(reason="rejected") == 1
        elif stay is prepared:
            queue.commit_prepared("p")
        else:
            clock.advance(30 * DAY)
            assert taken(queue) == [b"stays"]
        assert queue.stats().file_count == 1
        assert states(queue) == {}


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("stay", STAYS)
def test_opening_with_an_old_message_does_not_read_the_log_behind_it(stay: Callable[..., None], end: str) -> None:
    """The storage reads as often whether two data files were finished behind it or twenty, and never all of one."""
    counts = [reads_to_open(SimulatedStorage(), stay, end, count) for count in (2, 20)]
    assert abs(counts[1] - counts[0]) <= 4, f"{counts} reads"


def reads_to_open(storage: SimulatedStorage, stay: Callable[..., None], end: str, count: int) -> int:
    """Return how many times opening, looking, and taking one new message read from data files."""
    clock, reads = FakeClock(), 0
    queue = open_queue(storage, clock=clock)
    fill(queue, stay, count)
    last = b"another group's"
    queue.groups.create("slow", "latest")  # pins what is behind
    taken(queue)
    left = kill(storage, queue) if end == "kill" else storage
    queue.close()

    def note(verb: str, path: Path) -> None:
        nonlocal reads
        reads += verb == "read_at" and path.suffix == ".data"

    left.before_verb = note
    with open_queue(left, clock=clock) as queue:
        queue.put(last)
        assert queue.get(timeout=0) == last
        assert queue.stats().oldest_age_seconds is not None or stay is dead
    return reads


def test_files_that_another_group_pins_are_jumped_over(storage: SimulatedStorage) -> None:
    """Opening does not read what this group has finished, though it is still there for a slower one."""
    clock, paths = FakeClock(), list[Path]()
    with open_queue(storage, clock=clock) as queue:
        queue.groups.create("slow")
        fill(queue, delayed)
        taken(queue)
        assert queue.stats().file_count > FILE_COUNT
    storage.before_verb = lambda verb, path: paths.append(path) if verb == "read_at" else None
    with open_queue(storage, clock=clock) as queue:
        data_reads = [path for path in paths if path.suffix == ".data"]
        with pytest.raises(Empty):
            queue.get(timeout=0)
        assert states(queue) == {b"stays": "delayed"}
        walked = [path for path in paths[len(data_reads) :] if path.suffix == ".data"]
        assert len(walked) < FILE_COUNT * FILE_BYTES // 2**16 + 2 * FILE_COUNT, f"{len(walked)} reads"
    storage.before_verb = None


@pytest.mark.parametrize("end", ["close", "kill"])
def test_files_of_every_step_are_verified_looked_at_recovered_and_drained(end: str) -> None:
    """What reads them derives nothing from their size; a small queue takes the first step only."""
    storage, clock = SimulatedStorage(), FakeClock()
    with small_steps():
        queue = open_queue(storage, clock=clock)
        queue.put(b"small")
        assert handle_of(queue).files.total_bytes == FIRST_STEP_BYTES
        payloads = [b"small", *(b"%05d" % number * 100 for number in range(400))]
        for payload in payloads[1:]:
            queue.put(payload)
        files = handle_of(queue).files
        assert len({storage.open(files.path(name)).size() // FIRST_STEP_BYTES for name in files.names()}) > 3
        left = kill(storage, queue) if end == "kill" else storage
        queue.close()
        assert verify(queue.path, storage=left).ok
        with open_queue(left, clock=clock, mode="read_only") as looked:
            assert [found.payload for found in looked.peek(1000)] == payloads
        with open_queue(left, clock=clock) as queue:
            assert queue.recovery.damage == ()
            queue.put(b"last")
            assert taken(queue) == [*payloads, b"last"]


def test_finishing_goes_on_when_the_disk_is_full(tmp_path: Path) -> None:
    """Everything that settles a message, and what frees space; only what an exception said may go unwritten."""
    clock = FakeClock()
    with (
        small_disk(tmp_path / "disk", 4 * 2**20) as disk,
        PersistentQueue(
            disk / "orders", mode="exclusive", clock=clock, data_file_bytes=FILE_BYTES, max_deliveries=2, backoff=[]
        ) as queue,
    ):
        fill(queue, delayed)
        queue.put_many([Put(b"k1", order_key="k"), Put(b"k2", order_key="k"), Put(b"urgent", priority=5)])
        held = [queue.receive(timeout=0) for _ in range(8)]
        room = take_all_room(disk)
        count = queue.stats().file_count
        for number in range(500):
            held[0].nack(delay=0) if number % 2 else held[0].release()
            held[0] = queue.receive(timeout=0) if not queue.stats().dead else held[0]
            if queue.stats().dead:
                assert queue.dead.retry(queue.dead.list()) == 1
                held[0] = queue.receive(timeout=0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), held[1]:
                raise ZeroDivisionError
            held[1] = queue.receive(timeout=0) if not queue.stats().dead else held[1]
        assert [letter.reason for letter in queue.dead.list()] == ["exception"]
        held[2].nack(delay=60)
        for each in held:
            if not each.is_settled:
                each.ack()
        assert taken(queue)[-1] == b"k2"
        clock.advance(60)
        assert taken(queue) == [b"other".ljust(200)]
        assert queue.stats().file_count < count
        assert queue.dead.discard(reason="exception") == 1
        assert states(queue) == {b"stays": "delayed"}
        room.unlink()
        queue.put(b"there is room again")


@pytest.mark.parametrize("ending", ["alive", "dead"])
def test_a_file_stays_until_what_a_group_has_finished_is_on_the_disk_though_its_sync_has_failed(
    storage: SimulatedStorage, ending: str
) -> None:
    """A second sync could succeed over lost data: nothing goes while its owner lives, and then it is written again."""
    queue = open_queue(storage)
    queue.groups.create("late")
    for _ in range(6):
        queue.put(bytes(FILE_BYTES // 4))
    late = open_beside(queue, "late")
    with refusing(storage, "sync", ".position", count=1), pytest.raises(CommitUnknownError):
        late.get_many(6)
    file_count = queue.stats().file_count
    assert file_count > 1
    if ending == "dead":
        left = storage.crash_keeping_all()
        late.close()
        queue.close()
        storage = left
        queue = open_queue(storage)
    assert len(queue.get_many(6)) == 6
    assert queue.stats().file_count == (file_count if ending == "alive" else 1)
    left = storage.crash_dropping_unsynced()
    with open_queue(left, group="late") as after:
        assert (after.stats().depth, after.stats().lost) == (6 if ending == "alive" else 0, 0)
        assert not after.recovery.damage
    if ending == "alive":
        late.close()
    queue.close()


def test_a_full_queue_sees_the_space_of_files_that_a_moved_group_has_let_go(storage: SimulatedStorage) -> None:
    """Another handle of this process has moved the group, and retired them."""
    with open_queue(storage) as queue:
        queue.groups.create("other")
        while queue.stats().file_count < FILE_COUNT:
            queue.put_many([b"other".ljust(200)] * 20)
        taken(queue)
        assert queue.stats().file_count == FILE_COUNT  # the other group misses all of them
        queue.groups.seek("other", "latest")
        queue.configure(max_bytes=2 * FILE_BYTES)
        assert not queue.full()
        queue.put(b"more", timeout=0)


def test_a_file_that_was_closed_half_full_grows_within_the_bound(storage: SimulatedStorage) -> None:
    """It is cut off when the queue is closed, and grows again behind the next opening."""
    bound = 2 * FILE_BYTES
    with open_queue(storage) as queue:
        queue.put(bytes(FILE_BYTES + FILE_BYTES // 4))  # a file of its own size
        queue.put(b"half")
    with open_queue(storage, max_bytes=bound) as queue:
        with suppress(Full):
            for _ in range(FILE_BYTES):
                queue.put(bytes(100), timeout=0)
        assert queue.stats().bytes_on_disk <= bound
        assert queue.stats().bytes_on_disk > bound - 200

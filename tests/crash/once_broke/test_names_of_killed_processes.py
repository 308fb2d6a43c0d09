"""A process is killed before it syncs a name, and the next one relies on that name; then the power fails.

The next process found the name and acted on it: it acknowledged, removed or answered. The loss of power took the name,
and what had followed from it stayed. The same holds for a name whose sync has failed: a second sync succeeds, and
proves nothing.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CommitUnknownError,
    Empty,
    GroupNotFoundError,
    HoldfastError,
    PersistentQueue,
    PoisonedError,
    QueueService,
    StorageError,
    transaction,
)
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem import locks
from holdfast.persistence.format.commit_record import Participant
from holdfast.persistence.outcomes.redo import OWN, has_settled
from holdfast.persistence.verify import verify
from holdfast.queue.queues_joint_commits import QueuesJointCommits
from proof.crash_states.crashes import AllBut
from support.builders.handles import handle_of
from support.builders.joint import file_part, stuck
from support.models.crash_choices import ALL_SECTORS, ByKind, ReadsZeros
from support.owners.second_groups import open_beside
from support.storages.disk_operations import (
    FailedSync,
    MakeDirectory,
    NameOperation,
    Remove,
    Rename,
    SyncDirectory,
    Truncate,
)
from support.storages.faults import FaultPlan
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/q")
SLOW = ROOT / "groups" / "slow"
LARGE = bytes(5000)
"""Three of them fill a data file."""


class OnlyNames(ByKind):
    """Keeps everything but some changes of names."""

    def __init__(self, is_kept: Callable[[NameOperation], bool]) -> None:
        super().__init__(sectors=True, sizes=True, names=True)
        self._is_kept = is_kept

    def keep_name(self, operation: NameOperation) -> bool:
        return self._is_kept(operation)


class OnlyFile(ReadsZeros):
    """Keeps all names, and what was written to a single file."""

    def __init__(self, inode: int) -> None:
        self._inode = inode

    def keep_sectors(self, inode: int, first_sector: int, count: int) -> int:
        return ALL_SECTORS if inode == self._inode else 0

    def keep_size(self, inode: int, size: int) -> bool:
        return inode == self._inode

    def keep_name(self, operation: NameOperation) -> bool:
        return True


def failing_sync() -> FaultPlan:
    """Return a plan by which the next sync of a directory fails."""
    return FaultPlan(1, errno.EIO, verbs=frozenset({"sync_directory"}))


def opened(storage: SimulatedStorage, root: Path = ROOT, group: str = "default") -> PersistentQueue:
    """Open a queue whose data files are small."""
    return PersistentQueue(root, mode="exclusive", group=group, storage=storage, data_file_bytes=16_384)


def served(storage: SimulatedStorage) -> QueueService:
    """Open a service."""
    return QueueService(Path("/data"), mode="exclusive", storage=storage, catalog=False)


def shown(queue: PersistentQueue) -> list[bytes]:
    """Return what the queue's group would be given."""
    return [entry.payload for entry in queue.peek(1000)]


def killed_behind(storage: SimulatedStorage, is_last: Callable[[object], bool]) -> SimulatedStorage:
    """Return the disk that a process leaves which is killed right behind the last such change."""
    left = [run.crash_keeping_all() for run in storage.replay() if run.log and is_last(run.log[-1])]
    assert left, "nothing changes so any more: find out where it becomes durable now"
    left[-1].replay_from_here()
    return left[-1]


def renames_to(target: Path) -> Callable[[object], bool]:
    """Return what tells the change that gives a file this name."""
    return lambda change: isinstance(change, Rename) and change.target == target


def losses(storage: SimulatedStorage) -> Iterator[SimulatedStorage]:
    """Yield what a loss of power leaves: at each change, all of the rest, one of it, or all but one."""
    for run in storage.replay():
        yield run.crash_dropping_unsynced()
        for odd in range(min(run.undecided_count(), 12)):
            yield run.crash(AllBut(True, odd))
            yield run.crash(AllBut(False, odd))


def name_document(storage: SimulatedStorage, path: Path, content: bytes | None) -> None:
    """Give a document its name, as a process does that is killed before it syncs the directory."""
    assert content is not None
    with storage.open(path.with_name(f"{path.name}.new"), create=True) as file:
        file.write_at((content,), 0)
        file.sync()
    storage.rename(path.with_name(f"{path.name}.new"), path)


@pytest.mark.parametrize("made", ["/srv", "/srv/data"])
def test_a_queue_below_a_directory_whose_maker_was_killed_stays(made: str) -> None:
    """The name of that directory was never synced by anyone, and the whole queue went with it."""
    root, new = Path("/srv/data/orders"), SimulatedStorage()
    opened(new, root).close()
    storage = killed_behind(new, lambda change: isinstance(change, MakeDirectory) and change.path == Path(made))
    with opened(storage, root) as queue:
        queue.put(b"acknowledged")
        with opened(storage.crash_dropping_unsynced(), root) as left:
            assert shown(left) == [b"acknowledged"]


def test_a_queue_that_another_process_has_just_made_is_durable_for_the_one_that_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited for the lock, found ``queue.json``, and acknowledged messages in a queue that was refused later."""
    storage, other = SimulatedStorage(), SimulatedStorage()
    opened(other).close()
    acquire = locks.acquire

    def after_a_killed_maker(disk: SimulatedStorage, path: Path, *arguments: Any, **options: Any) -> locks.SideLock:
        monkeypatch.setattr(locks, "acquire", acquire)
        name_document(storage, ROOT / "queue.json", other.tree()[ROOT / "queue.json"])
        return acquire(disk, path, *arguments, **options)

    monkeypatch.setattr(locks, "acquire", after_a_killed_maker)
    with opened(storage) as queue:
        queue.put(b"acknowledged")
        with opened(storage.crash_dropping_unsynced()) as left:
            assert shown(left) == [b"acknowledged"]


def client_made_slow(storage: SimulatedStorage) -> None:
    """Make the group as a client of a living owner, killed before the name of ``group.json`` is durable."""
    other = SimulatedStorage()
    with opened(other) as queue:
        queue.groups.create("slow")
    storage.make_directory(SLOW)
    storage.sync_directory(SLOW.parent)
    name_document(storage, SLOW / "group.json", other.tree()[SLOW / "group.json"])


def test_a_group_that_is_there_already_is_durable_once_create_returns() -> None:
    """Messages that it had not finished were removed, and it began behind them."""
    storage = SimulatedStorage()
    with opened(storage) as queue:
        client_made_slow(storage)
        assert queue.groups.create("slow") == 0
        with opened(storage.crash_dropping_unsynced()) as left:
            assert left.groups.list() == ["slow"]


def test_a_create_whose_sync_fails_makes_the_group_durable_when_it_is_called_again() -> None:
    """A second sync could succeed over the lost name; the document has a new one by then."""
    storage = SimulatedStorage()
    with opened(storage) as queue:
        client_made_slow(storage)
        storage.faults = failing_sync()
        with pytest.raises(StorageError):
            queue.groups.create("slow")
        storage.faults = None
        assert queue.groups.create("slow") == 0
        with opened(storage.crash_dropping_unsynced()) as left:
            assert left.groups.list() == ["slow"]


def test_a_group_that_a_client_has_just_made_is_whole_or_not_there_once_the_owner_opens_it() -> None:
    """Its position file stayed and its document did not: the group was refused for its lost settings."""
    storage = SimulatedStorage()
    with opened(storage) as queue:
        queue.put_many([b"one", b"two"])
        client_made_slow(storage)
        storage.replay_from_here()
        open_beside(queue, "slow").close()
        found = set()
        for run in storage.replay():
            kept = OnlyNames(lambda change: isinstance(change, Rename) and change.target.suffix == ".position")
            try:
                with opened(run.crash(kept), group="slow") as left:
                    found.update(shown(left))
            except GroupNotFoundError:
                found.add(b"none")
        assert found == {b"none", b"one", b"two"}


def test_an_acknowledgement_that_is_committed_stays_beside_a_seek_that_was_cut_off() -> None:
    """The next owner took the new life of the group for durable, and noted nothing in the life that came back."""
    storage = SimulatedStorage()
    with opened(storage) as queue:
        queue.groups.create("slow")
        queue.put_many([b"one", b"two"])
    queue = opened(storage, group="slow")
    storage.replay_from_here()
    waiting = queue.begin()
    waiting.ack(waiting.receive(timeout=0))
    waiting.put(b"new")
    waiting.commit()
    queue.groups.seek("slow", 2)
    killed = killed_behind(storage, renames_to(SLOW / "group.json"))
    queue.close()
    with opened(killed) as other:
        other.put(b"later")
        lost = killed.crash_dropping_unsynced()
    for disk in (lost, killed.crash_dropping_unsynced()):
        with opened(disk, group="slow") as left:
            assert b"one" not in shown(left)


def test_an_acknowledgement_that_is_committed_stays_in_a_group_whose_deletion_was_cut_off() -> None:
    """The next owner took the deletion for durable, and forgot what the group had to note; the group came back."""
    storage = SimulatedStorage()
    with opened(storage) as queue:
        queue.groups.create("slow")
        queue.put_many([b"one", b"two"])
    queue = opened(storage, group="slow")
    waiting = queue.begin()
    waiting.ack(waiting.receive(timeout=0))
    waiting.put(b"new")
    waiting.commit()
    killed = storage.crash_keeping_all()
    queue.close()
    killed.rename(SLOW / "group.json", SLOW / "group.json.removed")  # by a client, which is killed then
    with opened(killed) as other:
        other.put(b"later")
        lost = killed.crash_dropping_unsynced()
    for disk in (lost, killed.crash_dropping_unsynced()):
        with suppress(GroupNotFoundError), opened(disk, group="slow") as left:
            assert b"one" not in shown(left)


@pytest.mark.parametrize("is_closed", [False, True])
def test_progress_stays_if_the_name_of_its_latest_file_was_lost_by_a_sync_that_failed(is_closed: bool) -> None:
    """The next opening took the space of the file before it, whose name was the durable one."""
    storage, count = SimulatedStorage(), 400
    queue = opened(storage)
    queue.put_many([b"message"] * count)
    group = ROOT / "groups" / "default"

    def before_verb(verb: str, path: Path) -> None:
        if verb == "sync_directory" and path == group and len(storage.list(group)) > 3:
            storage.before_verb, storage.faults = None, failing_sync()

    storage.before_verb = before_verb
    finished = 0
    with suppress(StorageError):
        for finished in range(count):  # noqa: B007
            queue.get(timeout=0)
    assert finished < count - 1
    storage.faults = None
    if is_closed:
        queue.close()
    left = storage.crash_keeping_all()
    left.replay_from_here()
    opened(left).close()
    for disk in losses(left):
        with opened(disk) as again:
            assert again.qsize() <= count - finished
    if not is_closed:
        queue.close()


def test_a_deleted_queue_does_not_come_back_in_part() -> None:
    """The next start removed its files, and the loss of power gave the directory its name back."""
    storage, orders = SimulatedStorage(), Path("/data/orders")
    with served(storage) as service:
        service.queue("orders").put("order")
        service.queue("mail").put("mail")
    storage.replay_from_here()
    with served(storage) as service:
        service.delete_queue("orders")
    killed = killed_behind(storage, renames_to(Path("/data/.orders.removed")))
    with served(killed) as service:
        service.queue("mail").put("more")
    for run in killed.replay():
        kept = OnlyNames(lambda change: not isinstance(change, Rename) or change.source != orders)
        for disk in (run.crash_dropping_unsynced(), run.crash(kept)):
            if orders in disk.tree():
                with served(disk) as service:
                    assert service.queue("orders").qsize() == 1


def test_a_group_made_over_a_deletion_that_was_cut_off_is_not_the_old_one_without_its_progress() -> None:
    """Messages that it had finished were given again, and others reported as lost."""
    storage = SimulatedStorage()
    with opened(storage) as queue:
        queue.groups.create("slow")
        for number in range(6):
            queue.put(bytes([number]) + LARGE)
        queue.get_many(6, timeout=0)
    with opened(storage, group="slow") as queue:
        queue.get_many(5, timeout=0)
    with opened(storage) as queue:
        storage.rename(SLOW / "group.json", SLOW / "group.json.removed")  # by a client, which is killed then
        storage.replay_from_here()
        queue.groups.create("slow")
    found = set()
    for run in storage.replay():
        kept = OnlyNames(lambda change: not renames_to(SLOW / "group.json.removed")(change))
        for disk in (run.crash_dropping_unsynced(), run.crash(kept)):
            try:
                with opened(disk, group="slow") as left:
                    assert left.stats().lost == 0
                    found.add(bytes(payload[0] for payload in shown(left)))
            except GroupNotFoundError:
                found.add(b"none")
    assert found <= {b"none", b"\5", bytes([4, 5])}  # as it was, or made again: then from the oldest file on


def test_a_vote_is_settled_by_the_deletion_of_its_group_only_once_that_is_durable() -> None:
    """The group came back with its vote, and the other queue had forgotten that it had committed."""
    storage, a, b = SimulatedStorage(), Path("/a"), Path("/b")
    with opened(storage, a) as queue:
        queue.put_many([b"one", b"two"])
        queue.groups.create("slow")
    takes, puts = opened(storage, a, "slow"), opened(storage, b)
    both = transaction(takes, puts)
    both.ack(takes, both.receive(takes, timeout=0))
    both.put(puts, b"new")
    both.commit()
    killed = storage.crash_keeping_all()
    takes.close()
    puts.close()
    document = a / "groups" / "slow" / "group.json"
    killed.rename(document, document.with_name("group.json.removed"))  # by a third process, which is killed then
    with opened(killed, b) as queue:
        queue.put(b"later")
        lost = killed.crash_dropping_unsynced()
    for disk in (lost, killed.crash_dropping_unsynced()):
        with opened(disk, b) as queue:
            assert b"new" in shown(queue)
        with suppress(GroupNotFoundError), opened(disk, a, "slow") as queue:
            assert b"one" not in shown(queue)


@pytest.mark.parametrize("is_failed", [False, True])
def test_a_retired_file_is_used_again_only_once_its_old_name_is_gone_for_good(is_failed: bool) -> None:
    """A sync of ``spare/`` failed, or the client was killed that retired it: the old name had new content."""
    storage = SimulatedStorage()

    def fail_at_spare(verb: str, path: Path) -> None:
        if verb == "sync_directory" and path == ROOT / "spare" and storage.faults is None:
            storage.faults = failing_sync()

    with opened(storage) as queue:
        if is_failed:
            storage.before_verb = fail_at_spare
        else:
            queue.groups.create("pin")
        for _ in range(3):
            queue.put(LARGE)
        first = ROOT / "data" / storage.list(ROOT / "data")[0]
        for _ in range(3):
            queue.get(timeout=0)
        if not is_failed:
            storage.rename(first, ROOT / "spare" / "0000000001.data")  # by a client, which is killed then
            storage.remove(SLOW.with_name("pin") / "group.json")
        storage.before_verb = storage.faults = None
        storage.replay_from_here()
        for _ in range(3):
            queue.put(LARGE)
    for disk in losses(storage):
        with opened(disk) as left:
            left.groups.create("auditor")
        with PersistentQueue(ROOT, mode="read_only", group="auditor", storage=disk) as auditor:
            auditor.peek(50)
            assert auditor.recovery.damage == ()


def test_files_that_count_again_beside_a_merged_one_are_retired_only_once_that_is_withdrawn() -> None:
    """A merged file that does not verify was withdrawn, which was not durable; then the first of the others went."""
    storage = SimulatedStorage()
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=16_384, max_deliveries=None) as queue:
        for number in range(4):
            queue.put_many([b"k%d " % number + bytes(36)] + [bytes(2200)] * 12)
        queue.put(b"last")
        for _ in range(4):
            for at, delivery in enumerate(queue.receive_many(13, timeout=0)):
                delivery.reject("kept") if at == 0 else delivery.ack()
    storage.replay_from_here()
    with opened(storage) as queue:
        queue.compact()
    merged = next(name for run in storage.replay() for name in run.list(ROOT / "data") if name.count("-") == 3)
    named = killed_behind_name(storage, merged)
    with named.open(ROOT / "data" / merged) as file:
        file.write_at((b"\xff",), 4720)
        file.sync()
    rotten = named.crash_dropping_unsynced()
    rotten.replay_from_here()
    opened(rotten).close()
    killed = killed_behind(rotten, lambda change: isinstance(change, Rename) and change.target.suffix == ".damaged")
    with opened(killed) as queue:
        queue.dead.retry(0)
        assert [queue.get(timeout=0)[:2] for _ in range(2)] == [b"k0", b"la"]
    for run in killed.replay():
        with opened(run.crash(OnlyNames(lambda change: isinstance(change, Remove)))) as left:
            left.dead.retry(left.dead.list())
            assert {b"k1", b"k2", b"k3"} <= {payload[:2] for payload in shown(left)}
            assert left.stats().lost == 0


def killed_behind_name(storage: SimulatedStorage, merged: str) -> SimulatedStorage:
    """Return the disk right behind the sync that makes the name of the merged file durable."""
    for run in storage.replay():
        last = run.log[-1] if run.log else None
        if isinstance(last, SyncDirectory) and last.path == ROOT / "data" and merged in run.list(ROOT / "data"):
            return run.crash_dropping_unsynced()
    raise AssertionError("the merged file never gets its name")


@pytest.mark.parametrize("is_failed", [False, True])
def test_a_mark_of_a_clean_close_that_was_not_synced_is_not_missed_as_damage(is_failed: bool) -> None:
    """``write.mark`` named an end that lay behind it, and was on the disk before it."""
    storage = SimulatedStorage()
    queue = opened(storage)
    queue.put_many([b"one", b"two"])
    storage.replay_from_here()
    if is_failed:
        storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"sync"}))
    with suppress(CommitUnknownError):
        queue.close()
    killed = killed_behind(storage, lambda change: isinstance(change, FailedSync if is_failed else Truncate))
    opened(killed).close()
    for run in killed.replay():
        mark = run.crash(OnlyFile(inode_of(run, ROOT / "write.mark")))
        opened(mark).close()
        with opened(mark) as left:
            assert left.get_many(9, timeout=0) == [b"one", b"two"]
            assert left.recovery.damage == ()


def inode_of(storage: SimulatedStorage, path: Path) -> int:
    """Return the number of a file."""
    inode = storage._disk.find(path)
    assert inode is not None
    return inode


def test_a_directory_of_joint_commits_whose_sync_failed_is_made_anew() -> None:
    """The next attempt found it, and its sync proved nothing: a decided commit was forgotten in half of its queues."""
    storage, around = SimulatedStorage(), Path("/d")
    for name in "ab":
        with opened(storage, around / name) as queue:
            queue.put(b"first")
    commits = QueuesJointCommits(around, storage, mode="exclusive")
    storage.faults = failing_sync()
    with pytest.raises(StorageError):
        commits.create()
    storage.faults = None
    commits.create()
    part_of = commits.part_of("app", 1)
    parts = [file_part(storage, around / name, f"p{name}", part_of) for name in "ab"]
    with stuck(["b"]), pytest.raises(HoldfastError):
        commits.commit("app", 1, parts)
    lost = storage.crash_dropping_unsynced()
    for name in "ab":
        with opened(lost, around / name) as queue:
            assert shown(queue) == [b"first", f"p{name}".encode()]


def test_a_pause_that_failed_is_taken_back() -> None:
    """The call raised, and the group was paused after the next opening."""
    storage = SimulatedStorage()
    with opened(storage) as queue:
        queue.put_many([b"one", b"two"])
        queue.get(timeout=0)
        storage.faults = failing_sync()
        with pytest.raises(StorageError):
            queue.pause(reason="a disk that fails")
        storage.faults = None
    with opened(storage) as queue:
        assert queue.get(timeout=0) == b"two"


def test_the_default_group_has_a_durable_name_though_the_making_of_another_one_has_failed() -> None:
    """Its directory waited for its first use, and the sync that failed was of its name, too."""
    storage = SimulatedStorage()
    with opened(storage) as queue:
        queue.put_many([b"one", b"two"])
        assert [entry.payload for entry in queue.peek(1)] == [b"one"]
        storage.faults = failing_sync()
        with pytest.raises(StorageError):
            queue.groups.create("slow")
        storage.faults = None
        assert queue.get(timeout=0) == b"one"
        with opened(storage.crash_dropping_unsynced()) as left:
            assert shown(left) == [b"two"]


def test_a_file_whose_sync_has_failed_has_its_size_on_the_disk_once_it_is_used_again() -> None:
    """It could not be removed either. A second sync succeeded over the lost size: what was put there was gone."""
    storage, refused = SimulatedStorage(), list[str]()

    def before_verb(verb: str, path: Path) -> None:
        if path.name == "next.data" and verb == ["allocate", "sync", "remove", ""][len(refused)]:
            refused.append(verb)
            if verb != "allocate":
                raise OSError(errno.EIO, "Input/output error")

    with opened(storage) as queue:
        for number in range(3):
            queue.put(bytes([number]) + LARGE)
        storage.before_verb = before_verb
        acknowledged = []
        for number in range(3, 6):  # a file that is full gets another size
            with suppress(StorageError):
                queue.put(bytes([number]) + LARGE)
                acknowledged.append(number)
        assert refused == ["allocate", "sync", "remove"]
        assert acknowledged == [3, 5]
        with opened(storage.crash_dropping_unsynced()) as left:
            assert [payload[0] for payload in shown(left)] == [0, 1, 2, *acknowledged]


def test_progress_is_durable_in_the_life_that_counts_after_a_seek_all_of_whose_syncs_failed() -> None:
    """The document had its old name back in memory alone: the next owner acknowledged in a life that was lost."""
    storage, renamed = SimulatedStorage(), list[str]()

    def before_verb(verb: str, path: Path) -> None:
        if verb == "rename":
            renamed.append(path.name)
        elif verb == "sync_directory" and renamed[-1] == "group.json.new" and storage.faults is None:
            storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"sync_directory"}), forever=True)

    with opened(storage) as queue:
        queue.groups.create("slow")
        queue.put_many([b"one", b"two", b"three"])
    queue = opened(storage, group="slow")
    queue.get(timeout=0)
    storage.before_verb = before_verb
    with pytest.raises(CommitUnknownError):
        queue.groups.seek("slow", 3)
    storage.before_verb = storage.faults = None
    with suppress(PoisonedError):
        queue.close()
    with opened(storage, group="slow") as queue:
        assert queue.get(timeout=0) == b"two"
        assert_left(storage, [b"three"])


def assert_left(storage: SimulatedStorage, payloads: list[bytes]) -> None:
    """Assert what the group is given behind each loss of power that may happen now."""
    left = storage.crash_keeping_all()
    left.replay_from_here()
    for disk in losses(left):
        with opened(disk, group="slow") as queue:
            assert shown(queue) == payloads


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_group_whose_deletion_was_taken_back_in_memory_alone_is_there_for_the_next_owner(is_killed: bool) -> None:
    """All syncs of the deletion failed, or the process was killed before the second one; then the group was lost."""
    storage, left = SimulatedStorage(), list[SimulatedStorage]()

    def before_verb(verb: str, path: Path) -> None:
        if verb == "sync_directory" and path == SLOW:
            left.append(storage.crash_keeping_all())
            storage.faults = storage.faults or FaultPlan(1, errno.EIO, verbs=frozenset({verb}), forever=True)

    with opened(storage) as queue:
        queue.groups.create("slow")
        queue.put_many([b"one", b"two", b"three"])
    with opened(storage, group="slow") as queue:
        queue.get(timeout=0)
    with opened(storage) as queue:
        storage.before_verb = before_verb
        with pytest.raises(CommitUnknownError):
            queue.groups.delete("slow")
        storage.before_verb = storage.faults = None
    if is_killed:
        with opened(left[1]) as queue:
            assert queue.groups.list() == ["slow"]
            queue.put(b"four")
            assert_left(left[1], [b"two", b"three", b"four"])
    else:
        with opened(storage, group="slow") as queue:
            assert queue.get(timeout=0) == b"two"
            assert_left(storage, [b"three"])


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_visit_notes_nothing_in_a_life_that_its_group_has_left_meanwhile(
    monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    """An owner moved the group, acknowledged and closed between the visitor's look and its lock: that was lost."""
    storage = SimulatedStorage()
    with opened(storage) as queue:
        queue.groups.create("slow")
        queue.put_many([b"one", b"two", b"three", b"four"])
        queue_id = queue._handle.queue_id
    try_acquire = locks.try_acquire

    def after_an_owner(disk: SimulatedStorage, path: Path, **options: Any) -> locks.SideLock | None:
        if options:
            monkeypatch.setattr(locks, "try_acquire", try_acquire)
            with opened(storage, group="default" if is_deleted else "slow") as owner:
                if is_deleted:
                    owner.groups.delete("slow")
                else:
                    owner.groups.seek("slow", 1)
                    assert owner.get_many(2, timeout=0) == [b"two", b"three"]
        return try_acquire(disk, path, **options)

    monkeypatch.setattr(locks, "try_acquire", after_an_owner)
    assert has_settled(storage, ROOT, SystemClock(), Participant(OWN, queue_id, "slow"), bytes(16))
    assert locks.try_acquire is try_acquire
    if is_deleted:
        assert storage.list(SLOW) == ["read.lock"]
    else:
        with opened(storage, group="slow") as queue:
            assert shown(queue) == [b"four"]


def test_files_that_are_finished_stay_while_the_name_of_the_next_one_may_be_lost() -> None:
    """Its sync failed, and the others were retired; without the name the messages seemed to be lost."""
    storage = SimulatedStorage()
    with opened(storage) as queue:
        for _ in range(3):
            queue.put(LARGE)
        with refusing(storage, "sync_directory", "data", count=1), suppress(HoldfastError):
            for _ in range(5):
                queue.put(LARGE)
        with pytest.raises(PoisonedError):
            queue.put(LARGE)
        finished = 0
        with suppress(Empty):
            while True:
                queue.get(timeout=0)
                finished += 1
        assert finished >= 3
        handle_of(queue).reclaim()
        disks = [storage.crash_dropping_unsynced(), *(storage.crash(AllBut(False, odd)) for odd in range(14))]
    for disk in disks:
        assert verify(ROOT, storage=disk).ok
        with opened(disk) as left:
            assert left.stats().lost == 0
            assert left.put(b"next") >= finished


def test_the_group_of_a_stream_is_durable_before_the_stream_reads_for_it() -> None:
    """It was found, its maker was killed, and the messages that it needed were retired by another group."""
    group = pytest.importorskip("holdfast.spark.streaming.group")
    log = pytest.importorskip("holdfast.spark.streaming.log")
    storage = SimulatedStorage()
    with opened(storage) as queue:
        queue.put(b"one")
        client_made_slow(storage)
        found = group.begin_group(log.StreamLog.look(storage, ROOT), "slow", 0)
        with opened(storage.crash_dropping_unsynced()) as left:
            assert [found.name] == left.groups.list()

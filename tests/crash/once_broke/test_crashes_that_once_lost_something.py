"""Crashes that explorers found to lose, double or misreport something: each one by itself, in a few lines."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import FlushPolicy, GroupNotFoundError, PersistentQueue, StorageError, transaction
from support.models.crash_choices import ByKind
from support.storages.disk_operations import NameOperation, Rename
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.recorded_run import ROOT, message, open_queue

POLICY = FlushPolicy.every_commit()
LARGE = 4000  # two of them fill a data file


class KillError(Exception):
    """What stands in for SIGKILL."""


def kill_before(storage: SimulatedStorage, verb: str, path: Path, call: Callable[[], object]) -> SimulatedStorage:
    """Make a call that dies in front of a verb; return the disk that the dead process leaves."""
    left: list[SimulatedStorage] = []

    def before_verb(name: str, where: Path) -> None:
        if (name, where) == (verb, path) and not left:
            left.append(storage.crash_keeping_all())
            raise KillError

    storage.before_verb = before_verb
    with pytest.raises(KillError):
        call()
    storage.before_verb = None
    return left[0]


def payloads(queue: PersistentQueue) -> list[bytes]:
    """Return what the queue's group would be given."""
    return [entry.payload for entry in queue.peek(1000)]


def killed_after_renaming_to(storage: SimulatedStorage, target: Path) -> SimulatedStorage:
    """Return the disk that a process leaves which is killed when it has given a file this name, and synced nothing."""
    for replayed in storage.replay():
        last = replayed.log[-1] if replayed.log else None
        if isinstance(last, Rename) and last.target == target:
            return replayed.crash_keeping_all()
    raise AssertionError(f"nothing is renamed to {target} any more: find out where it becomes durable now")


def test_a_queue_whose_maker_was_killed_before_its_name_was_durable_is_made_durable_by_the_next() -> None:
    """``queue.json`` was there, so the next process did not sync the directory, and a power loss took the queue."""
    new = SimulatedStorage()
    open_queue(new, POLICY).close()
    storage = killed_after_renaming_to(new, ROOT / "queue.json")
    with open_queue(storage, POLICY) as queue:
        queue.put(b"acknowledged")
    with open_queue(storage.crash_dropping_unsynced(), POLICY) as queue:
        assert payloads(queue) == [b"acknowledged"]


def test_queue_json_never_outlives_the_directories_it_speaks_of() -> None:
    """A power loss that kept the name of ``queue.json`` and dropped the directory ``data`` left a dead queue."""

    class OnlyQueueJson(ByKind):
        def keep_name(self, operation: NameOperation) -> bool:
            return isinstance(operation, Rename)

    storage = SimulatedStorage()
    with open_queue(storage, POLICY):
        pass
    for replayed in storage.replay():
        crashed = replayed.crash(OnlyQueueJson(sectors=True, sizes=True, names=True))
        with open_queue(crashed, POLICY) as queue:
            assert queue.put(b"works") == 0


def test_a_retired_file_that_was_made_ready_for_reuse_does_not_come_back_under_its_old_name() -> None:
    """Its old name stood in the log again, with the header of the file it was to become."""
    storage = SimulatedStorage()
    with open_queue(storage, POLICY) as queue:
        for number in range(5):
            queue.put(message(number, LARGE))
            queue.get(block=False)
    for replayed in storage.replay():
        crashed = replayed.crash_dropping_unsynced()
        with open_queue(crashed, POLICY) as queue:
            if queue.stats().next_offset:
                queue.groups.create("auditor")
                with open_queue(crashed, POLICY, mode="read_only", group="auditor") as auditor:
                    auditor.peek(10)
                    assert auditor.recovery.damage == ()


def test_a_power_loss_while_progress_of_a_killed_process_is_recovered_redelivers_nothing() -> None:
    """The newest position file had a name that was not durable, and the one before it was overwritten."""
    first = SimulatedStorage()
    with open_queue(first, POLICY) as queue:
        queue.put_many([b"one", b"two"])
        assert queue.get(block=False) == b"one"
    opened = first.crash_dropping_unsynced()
    open_queue(opened, POLICY).close()
    killed = killed_after_renaming_to(opened, ROOT / "groups" / "default" / "0000000002.position")
    open_queue(killed, POLICY).close()
    for replayed in killed.replay():
        with open_queue(replayed.crash_dropping_unsynced(), POLICY) as queue:
            assert payloads(queue) == [b"two"]


@pytest.mark.parametrize("kills", [["group.json"], ["group.json", "0000000001.position"]])
def test_a_power_loss_while_a_group_is_opened_whose_maker_was_killed_leaves_it_whole_or_not_there(
    kills: list[str],
) -> None:
    """The power loss kept the name of a position file and dropped that of the document: the group was refused."""

    class OnlyPositionFiles(ByKind):
        def keep_name(self, operation: NameOperation) -> bool:
            return isinstance(operation, Rename) and operation.target.suffix == ".position"

    def open_slow(storage: SimulatedStorage) -> PersistentQueue:
        return PersistentQueue(ROOT, mode="exclusive", group="slow", storage=storage)

    storage = SimulatedStorage()
    with open_queue(storage, POLICY) as queue:
        queue.put(b"one")
        queue.groups.create("slow")
    for last in kills:
        storage = killed_after_renaming_to(storage, ROOT / "groups" / "slow" / last)
        open_slow(storage).close()
    opened = 0
    for replayed in storage.replay():
        crashed = replayed.crash(OnlyPositionFiles(sectors=True, sizes=True, names=True))
        try:
            queue = open_slow(crashed)
        except GroupNotFoundError:
            continue
        with queue:
            assert payloads(queue) == [b"one"]
            opened += 1
    assert opened


def test_a_group_whose_deletion_was_cut_off_does_not_come_back_to_files_that_are_gone() -> None:
    """The deletion was not durable, files that only this group had not finished were retired, then the power went."""
    storage = SimulatedStorage()
    queue = open_queue(storage, POLICY)
    queue.groups.create("slow")
    for number in range(5):
        queue.put(message(number, LARGE))
    queue.receive_many(1, timeout=0)[0].ack()
    killed = kill_before(storage, "sync_directory", ROOT / "groups" / "slow", lambda: queue.groups.delete("slow"))
    queue.close()
    with open_queue(killed, POLICY) as queue:
        while not queue.empty():
            queue.get(block=False)
        without_power = killed.crash_dropping_unsynced()
    with open_queue(without_power, POLICY) as queue:
        assert "slow" not in queue.groups.list()


@pytest.mark.parametrize("commits", [2, 1000])
def test_offsets_that_were_finished_and_lost_leave_nothing_to_wait_for(commits: int) -> None:
    """The depth counted them for ever, and a get that should have waited spun."""
    policy = FlushPolicy.every(commits=commits)
    storage = SimulatedStorage()
    queue = open_queue(storage, policy)
    queue.put_many([b"one", b"two", b"three"])
    queue.put(b"four")
    batch = queue.receive_many(3, timeout=0)
    batch.ack(batch[2:])
    data_lost = storage.crash(LoseData(storage))
    queue.close()
    with open_queue(data_lost, policy) as queue:
        assert queue.qsize() == len(payloads(queue))
        assert queue.stats().next_offset in (3, 4)
        offset = queue.put(b"five")
        assert offset >= 3
        assert payloads(queue)[-1:] == [b"five"]
        assert queue.qsize() == len(payloads(queue))


class LoseData(ByKind):
    """Drops what was written to data files and keeps all else, progress first of all."""

    def __init__(self, storage: SimulatedStorage) -> None:
        super().__init__(sectors=True, sizes=True, names=True)
        data = next(path for path in storage.tree() if path.suffix == ".data")
        self._inode = storage.open(data, writable=False).inode

    def keep_sectors(self, inode: int, first_sector: int, count: int) -> int:
        return 0 if inode == self._inode else super().keep_sectors(inode, first_sector, count)


def acknowledge_in_pairs(queue: PersistentQueue) -> None:
    """Make three entries at a time, two of them together, for as long as there are messages."""
    while not queue.empty():
        batch = queue.receive_many(3, timeout=0)
        batch.ack([*batch[:1], *batch[2:]])


@pytest.mark.parametrize("begin", [1, 2, 3])
def test_a_position_file_that_could_not_be_begun_does_not_hide_later_acknowledgements(begin: int) -> None:
    """Its name was there and its sync failed; one more entry went into the file before it, which nobody reads."""
    storage = SimulatedStorage()
    queue = open_queue(storage, POLICY)
    queue.put_many([b"%d" % number for number in range(400)])
    for _ in range(begin):
        queue.get(block=False)
    storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"sync_directory"}))
    with pytest.raises(StorageError):
        acknowledge_in_pairs(queue)
    assert storage.faults.fired_count == 1
    done = queue.get(block=False)
    queue.close()
    with open_queue(storage, POLICY) as queue:
        assert done not in payloads(queue)


def test_a_group_that_an_opening_shows_as_deleted_stays_so() -> None:
    """Who deleted it was killed before the removal was durable; a later loss of power brought the group back."""
    storage = SimulatedStorage()
    queue = open_queue(storage, POLICY)
    queue.groups.create("slow")
    killed = kill_before(storage, "sync_directory", ROOT / "groups" / "slow", lambda: queue.groups.delete("slow"))
    queue.close()
    with open_queue(killed, POLICY) as queue:
        assert "slow" not in queue.groups.list()
        without_power = killed.crash_dropping_unsynced()
    with open_queue(without_power, POLICY) as queue:
        assert "slow" not in queue.groups.list()


def test_what_was_put_before_a_joint_commit_is_not_lost_without_it() -> None:
    """Under a policy that does not sync puts: the commit was decided by a document, and survived a put before it."""
    storage = SimulatedStorage()
    queue = open_queue(storage, FlushPolicy.never())
    part = queue.begin()
    part.put(b"second")
    part.prepare("part", part_of=("app", 1))
    queue.put(b"first")
    queue.joint_commits.commit("app", 1, ["part"])
    begun = len(storage.log)
    queue.close()
    shown = []
    for replayed in storage.replay():
        if len(replayed.log) <= begun:
            with open_queue(replayed.crash_dropping_unsynced(), POLICY) as queue:
                shown.append(payloads(queue))
    assert [each for each in shown if each not in ([], [b"first"])][-1:] == [[b"first", b"second"]]
    assert [b"second"] not in shown


def test_what_was_put_before_a_transaction_that_another_log_decides_is_not_lost_without_it() -> None:
    """Under a policy that does not sync puts: the other queue's decision survived, and a put before it did not."""
    storage = SimulatedStorage()
    first, second = ROOT.parent / "first", ROOT.parent / "second"
    coordinator = PersistentQueue(
        first, mode="exclusive", storage=storage, flush=FlushPolicy.never(), data_file_bytes=2**16
    )
    other = PersistentQueue(second, mode="exclusive", storage=storage, flush=FlushPolicy.never(), data_file_bytes=2**16)
    storage.replay_from_here()
    other.put(b"before")
    with transaction(coordinator, other) as tx:
        tx.put(coordinator, b"decided")
        tx.put(other, b"behind")
    shown = []
    for replayed in storage.replay():
        left = replayed.crash_dropping_unsynced()
        with PersistentQueue(first, mode="exclusive", storage=left) as queue:
            decided = payloads(queue)
        with PersistentQueue(second, mode="exclusive", storage=left) as queue:
            shown.append((decided, payloads(queue)))
    assert ([b"decided"], [b"before", b"behind"]) in shown
    assert ([b"decided"], [b"behind"]) not in shown

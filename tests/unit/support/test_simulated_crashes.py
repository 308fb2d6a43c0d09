"""Crashes of whole runs: what they return, that nothing is invented on the way, and going back to any point."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from support.models.crash_choices import ByKind, SameForAll
from support.storages.disk_operations import (
    Create,
    MakeDirectory,
    NameOperation,
    Operation,
    Remove,
    RemoveDirectory,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    Write,
)
from support.storages.faults import FaultPlan
from support.storages.simulated_file_image import SECTOR_SIZE_BYTES
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.storage_runs import (
    FAULT_SHARE,
    FILE,
    OTHER,
    ROOT,
    change_file,
    change_names,
    durable_file,
    random_run,
)


class TestCrashes:
    """What a crash returns, and that nothing is invented on the way."""

    def test_a_crash_leaves_the_storage_as_it_was(self) -> None:
        """Crashing is a look at what could be; the run continues."""
        storage, file = durable_file(b"old")
        file.write_at((b"new",), 0)
        crashed = storage.crash_dropping_unsynced()
        crashed.open(FILE).write_at((b"XXX",), 0)
        assert file.read_at(10, 0) == b"new"
        file.write_at((b"fin",), 0)
        file.sync()
        assert crashed.tree() == {FILE: b"XXX"}
        assert storage.crash_dropping_unsynced().tree() == {FILE: b"fin"}

    def test_what_a_power_loss_left_is_durable(self) -> None:
        """The second power loss takes nothing that the first one left."""
        storage, file = durable_file(b"old")
        file.write_at((b"new",), 0)
        storage.rename(FILE, OTHER)
        crashed = storage.crash(SameForAll(keep=True))
        assert crashed.crash_dropping_unsynced().tree() == {OTHER: b"new"}

    def test_what_a_kill_left_is_still_unsynced(self) -> None:
        """The page cache outlives the process, not the power: recovery has to sync what it shows."""
        storage, file = durable_file(b"old")
        file.write_at((b"new",), 0)
        storage.rename(FILE, OTHER)
        killed = storage.crash_keeping_all()
        assert killed.tree() == {OTHER: b"new"}
        assert killed.crash_dropping_unsynced().tree() == {FILE: b"old"}
        killed.open(OTHER).sync()
        killed.sync_directory(ROOT)
        assert killed.crash_dropping_unsynced().tree() == {OTHER: b"new"}
        assert storage.crash_dropping_unsynced().tree() == {FILE: b"old"}

    def test_a_sync_covers_what_was_written_before_it_began(self) -> None:
        """Not what another thread writes while it is under way; that takes the next one. Replaying says the same."""
        storage, file = durable_file(b"old")
        file.write_at((b"before",), 0)

        def write_meanwhile(verb: str, path: Path) -> None:
            storage.before_verb = None
            file.write_at((b"MEAN",), 0)

        storage.before_verb = write_meanwhile
        file.sync()
        assert file.read_at(10, 0) == b"MEANre"
        *_, replayed = storage.replay()
        for each in (storage, replayed, storage.crash_keeping_all()):
            assert each.crash_dropping_unsynced().tree() == {FILE: b"before"}
        file.sync()
        assert storage.crash_dropping_unsynced().tree() == {FILE: b"MEANre"}

    @pytest.mark.parametrize("kill", [True, False])
    def test_handles_and_locks_do_not_outlive_a_crash(self, kill: bool) -> None:
        """The lock of a dead process is free in what it left, and still held where it lives."""
        storage, file = durable_file()
        assert file.try_lock()
        crashed = storage.crash_keeping_all() if kill else storage.crash_dropping_unsynced()
        assert crashed.open(FILE).try_lock()
        assert not storage.open(FILE).try_lock()

    def test_a_crash_by_kind_takes_one_kind_alone(self) -> None:
        """A test can ask for the loss of names, sizes or data alone."""
        storage, file = durable_file(b"old")
        file.write_at((b"newer",), 0)
        storage.rename(FILE, OTHER)
        assert storage.crash(ByKind(sectors=True, sizes=True, names=False)).tree() == {FILE: b"newer"}
        assert storage.crash(ByKind(sectors=True, sizes=False, names=True)).tree() == {OTHER: b"new"}
        assert storage.crash(ByKind(sectors=False, sizes=True, names=True)).tree() == {OTHER: b"old\0\0"}

    def test_a_random_crash_can_be_repeated(self) -> None:
        """The same seed loses the same pieces, another seed others."""
        storage = random_run(random.Random(1), 60)
        trees = [storage.random_crash(random.Random(seed)).tree() for seed in (5, 5, 6, 7, 8)]
        assert trees[0] == trees[1]
        assert any(tree != trees[0] for tree in trees[2:])

    @pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 1.0])
    def test_a_biased_coin_keeps_as_much_as_it_says(self, keep: float) -> None:
        """Of 4,000 sectors about that share is kept."""
        sectors = 4000
        storage, file = durable_file(bytes(sectors * SECTOR_SIZE_BYTES))
        file.write_at((b"n" * sectors * SECTOR_SIZE_BYTES,), 0)
        content = storage.random_crash(random.Random(3), keep=keep).tree()[FILE]
        assert content is not None
        assert content.count(b"n") / len(content) == pytest.approx(keep, abs=0.04)

    @pytest.mark.parametrize("seed", range(30))
    def test_keeping_every_piece_leaves_what_the_process_saw(self, seed: int) -> None:
        """The pieces of a random run, faults and all, add up to the whole."""
        storage = random_run(random.Random(seed), 150, faults=True)
        assert storage.crash(SameForAll(keep=True)).tree() == storage.tree()
        assert storage.crash_keeping_all().tree() == storage.tree()
        assert storage.crash_keeping_all().crash(SameForAll(keep=True)).tree() == storage.tree()

    @pytest.mark.parametrize("seed", range(30))
    def test_after_syncing_everything_no_power_loss_takes_anything(self, seed: int) -> None:
        """With every file and every directory synced, one state is left."""
        storage = random_run(random.Random(seed), 150)
        for path, content in storage.tree().items():
            if content is None:
                storage.sync_directory(path)
            else:
                storage.open(path).sync()
        storage.sync_directory(ROOT)
        assert storage.crash_dropping_unsynced().tree() == storage.tree()
        assert storage.random_crash(random.Random(seed)).tree() == storage.tree()

    @pytest.mark.parametrize("seed", range(30))
    def test_a_random_crash_is_one_of_all_crash_states(self, seed: int) -> None:
        """The exhaustive walk misses nothing that a coin finds, before and after a kill."""
        rng = random.Random(seed)
        storage = random_run(rng, 14, faults=True)
        states = [crashed.tree() for crashed in storage.crash_states()]
        killed = storage.crash_keeping_all()
        for keep in (0.2, 0.5, 0.8):
            assert storage.random_crash(rng, keep=keep).tree() in states
            assert killed.random_crash(rng, keep=keep).tree() in states
        assert storage.crash_dropping_unsynced().tree() in states
        assert storage.tree() in states


class Asked(SameForAll):
    """Keeps all, and counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__(keep=True)
        self.count = 0

    def keep_sectors(self, inode: int, first_sector: int, count: int) -> int:
        self.count += count
        return super().keep_sectors(inode, first_sector, count)

    def keep_size(self, inode: int, size: int) -> bool:
        self.count += 1
        return super().keep_size(inode, size)

    def keep_name(self, operation: NameOperation) -> bool:
        self.count += 1
        return super().keep_name(operation)


@pytest.mark.parametrize("seed", range(30))
def test_undecided_pieces_are_those_that_a_power_loss_asks_about(seed: int) -> None:
    """Of names and of files, also where a sync has failed or has settled what stands behind something undecided."""
    storage = random_run(random.Random(seed), 100, faults=True)
    storage.open(Path("/fresh"), create=True).write_at((bytes(2 * SECTOR_SIZE_BYTES),), 1)
    asked = Asked()
    storage.crash(asked)
    assert storage.undecided_count() == asked.count >= 5


class TestLogAndReplay:
    """The record of a run, and going back to any point of it."""

    def test_the_log_holds_every_change_in_order(self) -> None:
        """Each mutating verb leaves one small value."""
        storage = SimulatedStorage()
        storage.make_directory(Path("/d"))
        file = storage.open(FILE, create=True)
        file.write_at((b"ab", b"c"), 5)
        file.truncate(2)
        file.sync()
        storage.rename(FILE, OTHER)
        storage.sync_directory(ROOT)
        storage.remove(OTHER)
        storage.remove_directory(Path("/d"))
        expected: list[Operation] = [
            MakeDirectory(Path("/d"), 1),
            Create(FILE, 2),
            Write(2, 5, b"abc"),
            Truncate(2, 2),
            Sync(2),
            Rename(FILE, OTHER),
            SyncDirectory(ROOT),
            Remove(OTHER),
            RemoveDirectory(Path("/d")),
        ]
        assert storage.log == expected
        assert storage.mutation_count == len(expected)
        assert file.inode == 2

    def test_looking_changes_nothing(self) -> None:
        """Calls that read, and calls that find their work done, count as verbs and not as mutations."""
        storage, file = durable_file(b"abc")
        before, verbs = storage.mutation_count, storage.verb_count
        storage.make_directory(ROOT)
        storage.open(FILE, create=True).try_lock()
        storage.list(ROOT)
        storage.directory_status(ROOT)
        storage.rename(FILE, FILE)
        file.read_at(3, 0)
        file.allocate(2)
        file.truncate(3)
        file.write_at((), 0)
        assert (file.size(), file.link_count()) == (3, 1)
        file.close()
        file.close()
        assert storage.mutation_count == before
        assert storage.verb_count == verbs + 13

    def test_a_storage_without_a_log_changes_as_one_with_it(self) -> None:
        """Who replays nothing loses nothing by it but the log."""
        storage, _ = durable_file(b"old")
        without = storage.crash_keeping_all()
        without.keeps_log = False
        for each in (storage, without):
            each.open(FILE).write_at((b"new",), 0)
        assert without.tree() == storage.tree() == {FILE: b"new"}
        assert without.crash_dropping_unsynced().tree() == {FILE: b"old"}
        assert without.log == []

    def test_prefix_crashes_come_in_two_flavours_for_each_length_of_the_log(self) -> None:
        """N operations make N + 1 prefixes, each once killed and once without power."""
        storage, file = durable_file(b"old")
        file.write_at((b"new",), 0)
        crashes = list(storage.prefix_crashes())
        count = len(storage.log)
        assert [(crash.operation_count, crash.kept) for crash in crashes] == [
            (k, kept) for k in range(count + 1) for kept in (True, False)
        ]
        trees = [crash.storage.tree() for crash in crashes]
        assert trees[:2] == [{}, {}]
        assert trees[2:4] == [{FILE: b""}, {}]
        assert trees[-2:] == [{FILE: b"new"}, {FILE: b"old"}]

    @pytest.mark.parametrize("seed", range(20))
    def test_a_replay_passes_through_the_states_of_the_run(self, seed: int) -> None:
        """At every point the replay can lose exactly what the run could have lost there, failed syncs included."""
        rng = random.Random(seed)
        storage = random_run(rng, 80, faults=True).crash_keeping_all()
        seen = [(storage.tree(), storage.random_crash(random.Random(seed)).tree())]
        file = storage.open(Path("/fresh"), create=True)
        seen.append((storage.tree(), storage.random_crash(random.Random(seed)).tree()))
        for _ in range(60):
            done = storage.mutation_count
            storage.faults = FaultPlan(1) if rng.random() < FAULT_SHARE else None
            with suppress(OSError):
                if rng.random() < 0.8:
                    change_file(rng, file)
                else:
                    change_names(rng, storage, [])
            if storage.mutation_count > done:
                seen.append((storage.tree(), storage.random_crash(random.Random(seed)).tree()))
        assert [(at.tree(), at.random_crash(random.Random(seed)).tree()) for at in storage.replay()] == seen

    def test_a_replay_may_begin_on_the_way(self) -> None:
        """What is unsynced by then is so in the replay, too."""
        storage, file = durable_file(b"old")
        file.write_at((b"new",), 0)
        storage.replay_from_here()
        storage.remove(FILE)
        assert storage.replayed_from == storage.mutation_count - 1
        seen = [(at.tree(), at.crash_dropping_unsynced().tree()) for at in storage.replay()]
        assert seen == [({FILE: b"new"}, {FILE: b"old"}), ({}, {FILE: b"old"})]

    def test_a_replay_starts_from_what_the_crash_before_it_left(self) -> None:
        """The log of a recovered storage begins at the crash, its replay too, unsynced pages of a kill included."""
        storage, file = durable_file(b"old")
        file.write_at((b"new",), 0)
        killed = storage.crash_keeping_all()
        killed.remove(FILE)
        trees = [crash.storage.tree() for crash in killed.prefix_crashes()]
        assert trees == [{FILE: b"new"}, {FILE: b"old"}, {}, {FILE: b"old"}]

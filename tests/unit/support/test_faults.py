"""Hooks and faults: they strike the call that was chosen, and nothing else happens in it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from holdfast.persistence.filesystem.storage import DISK_FULL_ERRNOS, write_whole
from support.storages.faults import FAILING_VERBS, FaultPlan
from support.storages.simulated_storage import SimulatedFile, SimulatedStorage
from support.workloads.storage_runs import FILE, OTHER, ROOT, durable_file


class TestHooksAndFaults:
    """Faults strike the call that was chosen, and nothing else happens in it."""

    def test_the_hook_sees_every_verb_before_it_happens(self) -> None:
        """Verb and path arrive while the storage is still as it was."""
        storage = SimulatedStorage()
        seen: list[tuple[str, Path, list[Path]]] = []
        storage.before_verb = lambda verb, path: seen.append((verb, path, list(storage.tree())))
        file = storage.open(FILE, create=True)
        storage.rename(FILE, OTHER)
        file.close()
        assert seen == [("open", FILE, []), ("rename", FILE, [FILE]), ("close", FILE, [OTHER])]

    def test_a_hook_can_crash_the_storage_at_every_verb(self) -> None:
        """A test collects the states of a run while it happens."""
        storage = SimulatedStorage()
        states: list[SimulatedStorage] = []
        storage.before_verb = lambda _verb, _path: states.append(storage.crash_keeping_all())
        storage.open(FILE, create=True).write_at((b"abc",), 0)
        assert [state.tree() for state in states] == [{}, {FILE: b""}]

    def test_a_fault_strikes_once_and_changes_nothing(self) -> None:
        """The chosen call fails with its errno and path, those before and after work."""
        storage, file = durable_file(b"abc")
        storage.faults = FaultPlan(2, error=errno.ENOSPC)
        assert file.size() == 3
        with pytest.raises(OSError, match=str(FILE)) as caught:
            file.write_at((b"XYZ",), 0)
        assert caught.value.errno in DISK_FULL_ERRNOS
        assert file.read_at(3, 0) == b"abc"
        assert file.write_at((b"XYZ",), 0) == 3
        assert storage.faults.fired_count == 1

    def test_a_fault_for_ever_strikes_every_later_call(self) -> None:
        """A broken disk stays broken; only close still works, and lets go of the lock."""
        storage, file = durable_file(b"abc")
        assert file.try_lock()
        storage.faults = FaultPlan(1, forever=True)
        for _ in range(3):
            with pytest.raises(OSError, match=r".") as caught:
                file.size()
            assert caught.value.errno == errno.EIO
        with pytest.raises(OSError, match=r"."):
            storage.list(ROOT)
        file.close()
        assert storage.faults.fired_count == 4
        storage.faults = None
        assert storage.open(FILE).try_lock()

    def test_a_fault_counts_only_the_verbs_it_is_for(self) -> None:
        """The second sync fails, whatever lies between."""
        storage, file = durable_file(b"abc")
        storage.faults = FaultPlan(2, verbs=frozenset({"sync"}))
        file.sync()
        file.write_at((b"x",), 0)
        with pytest.raises(OSError, match=r"."):
            file.sync()
        file.sync()

    @pytest.mark.parametrize("error", [errno.EIO, OSError(errno.EIO), OSError(errno.EIO, "text")])
    def test_a_fault_always_carries_an_errno(self, error: int | OSError) -> None:
        """An OSError made from a number alone has none, so it is made again."""
        storage = SimulatedStorage()
        storage.faults = FaultPlan(1, error=error)
        with pytest.raises(OSError, match=r".") as caught:
            storage.list(ROOT)
        assert caught.value.errno == errno.EIO

    def test_a_fault_becomes_the_subclass_that_python_would_raise(self) -> None:
        """ENOENT is a FileNotFoundError here too."""
        storage = SimulatedStorage()
        storage.faults = FaultPlan(1, error=errno.ENOENT)
        with pytest.raises(FileNotFoundError):
            storage.list(ROOT)

    def test_a_short_write_takes_half_and_says_so(self) -> None:
        """The first half is in, the rest goes through when it is tried again; other verbs are not counted."""
        storage, file = durable_file()
        storage.faults = FaultPlan(2, short_write=True)
        file.write_at((b"ab",), 0)
        assert file.size() == 2
        assert file.write_at((b"cd", b"efg"), 2) == 2
        assert file.read_at(10, 0) == b"abcd"
        storage.faults = FaultPlan(1, short_write=True)
        write_whole(file, (b"cd", b"efg"), 2)
        assert file.read_at(10, 0) == b"abcdefg"
        assert storage.faults.fired_count == 1

    def test_a_disk_that_fills_up_writes_short_and_then_fails(self) -> None:
        """A short write for ever is one short write, then the error."""
        storage, file = durable_file()
        storage.faults = FaultPlan(1, error=errno.ENOSPC, short_write=True, forever=True)
        with pytest.raises(OSError, match=r".") as caught:
            write_whole(file, (b"abcdef",), 0)
        assert caught.value.errno == errno.ENOSPC
        assert file.read_at(10, 0) == b"abc"
        with pytest.raises(OSError, match=r"."):
            file.write_at((b"x",), 0)
        file.truncate(0)

    def test_a_failed_open_makes_no_file(self) -> None:
        """A fault in open leaves no name behind."""
        storage = SimulatedStorage()
        storage.faults = FaultPlan(1, error=errno.EMFILE)
        with pytest.raises(OSError, match=r"."):
            storage.open(FILE, create=True)
        assert storage.tree() == {}

    def test_every_verb_of_the_port_can_fail(self) -> None:
        """The list of verbs is the list of public methods, so no verb escapes the faults."""
        accessors = {"crash", "crash_keeping_all", "crash_dropping_unsynced", "random_crash", "crash_states"}
        accessors |= {"replay", "replay_from_here", "prefix_crashes", "undecided_count", "tree", "digest", "is_locked"}
        accessors |= {"mutation_count", "inode"}
        methods = {name for kind in (SimulatedStorage, SimulatedFile) for name in vars(kind) if name[0] != "_"}
        assert methods - accessors == FAILING_VERBS | {"close"}

"""The crash model: what a simulated power loss takes, what it never takes, and what it leaves to the choice."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from support.models.crash_choices import SameForAll
from support.storages.faults import FaultPlan
from support.storages.simulated_file_image import SECTOR_SIZE_BYTES
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.storage_runs import FILE, OTHER, ROOT, durable_file


def outcomes(storage: SimulatedStorage) -> set[bytes | None]:
    """Return every content that ``/file`` can have after a power loss; None where it is gone."""
    return {crashed.tree().get(FILE) for crashed in storage.crash_states()}


class TestContents:
    """Bytes and sizes between a write and the sync behind it."""

    @pytest.mark.parametrize("keep", [True, False])
    def test_synced_data_survives_every_power_loss(self, keep: bool) -> None:
        """What was written before a sync is there whatever is lost."""
        storage, _ = durable_file(b"synced" * 300)
        assert storage.crash(SameForAll(keep=keep)).tree() == {FILE: b"synced" * 300}

    def test_unsynced_data_may_be_lost_or_kept(self) -> None:
        """An overwrite inside one sector has two outcomes."""
        storage, file = durable_file(b"old")
        file.write_at((b"new",), 0)
        assert outcomes(storage) == {b"old", b"new"}

    def test_a_write_splits_at_sectors_of_the_file(self) -> None:
        """Each 512-byte sector it touches is lost or kept on its own, counted from the start of the file."""
        size = 3 * SECTOR_SIZE_BYTES
        storage, file = durable_file(b"o" * size)
        file.write_at((b"n" * (SECTOR_SIZE_BYTES + 2),), SECTOR_SIZE_BYTES - 1)
        parts = ((SECTOR_SIZE_BYTES - 1, 1), (SECTOR_SIZE_BYTES, SECTOR_SIZE_BYTES), (2 * SECTOR_SIZE_BYTES, 1))
        expected = set()
        for kept in itertools.product((False, True), repeat=3):
            content = bytearray(b"o" * size)
            for (start, count), keep in zip(parts, kept, strict=True):
                if keep:
                    content[start : start + count] = b"n" * count
            expected.add(bytes(content))
        assert outcomes(storage) == expected
        assert len(list(storage.crash_states())) == 2**3

    def test_a_write_that_ends_at_a_sector_does_not_touch_the_next(self) -> None:
        """Two whole sectors are two pieces."""
        storage, file = durable_file(bytes(4 * SECTOR_SIZE_BYTES))
        file.write_at((b"n" * 2 * SECTOR_SIZE_BYTES,), SECTOR_SIZE_BYTES)
        assert len(list(storage.crash_states())) == 2**2

    def test_an_append_may_grow_the_file_without_its_data(self) -> None:
        """The size comes back without the bytes: zeros."""
        storage, file = durable_file(b"old")
        file.write_at((b"new",), 3)
        assert outcomes(storage) == {b"old", b"old\0\0\0", b"oldnew"}

    def test_an_earlier_append_may_be_lost_under_a_later_one(self) -> None:
        """A hole of zeros is followed by intact data: why recovery must not trust the size."""
        storage, file = durable_file()
        file.write_at((b"a" * SECTOR_SIZE_BYTES,), 0)
        file.write_at((b"b" * SECTOR_SIZE_BYTES,), SECTOR_SIZE_BYTES)
        assert bytes(SECTOR_SIZE_BYTES) + b"b" * SECTOR_SIZE_BYTES in outcomes(storage)

    def test_a_truncation_may_be_lost(self) -> None:
        """What was cut off is back after the crash."""
        storage, file = durable_file(b"abcdef")
        file.truncate(2)
        assert outcomes(storage) == {b"abcdef", b"ab"}
        file.sync()
        assert outcomes(storage) == {b"ab"}

    def test_what_a_truncation_cut_stays_away_when_the_file_grows_again(self) -> None:
        """A kept truncation leaves zeros behind; a lost one may leave the stale bytes."""
        storage, file = durable_file(b"abcdef")
        file.truncate(2)
        file.allocate(6)
        assert outcomes(storage) == {b"abcdef", b"ab", b"ab\0\0\0\0"}

    def test_an_allocation_may_be_lost_and_never_costs_content(self) -> None:
        """Reserved space is a change of size and nothing else."""
        storage, file = durable_file(b"abc")
        file.allocate(5)
        assert outcomes(storage) == {b"abc", b"abc\0\0"}

    def test_a_sync_settles_one_file_only(self) -> None:
        """Another file's writes stay in doubt."""
        storage, file = durable_file(b"old")
        other = storage.open(OTHER, create=True)
        storage.sync_directory(ROOT)
        file.write_at((b"new",), 0)
        other.write_at((b"other",), 0)
        other.sync()
        assert outcomes(storage) == {b"old", b"new"}
        assert storage.crash_dropping_unsynced().tree() == {FILE: b"old", OTHER: b"other"}

    def test_a_failed_sync_leaves_its_data_in_doubt_for_good(self) -> None:
        """Trying again succeeds and settles nothing: the kernel thinks that the pages are clean."""
        storage, file = durable_file(b"old")
        file.write_at((b"new",), 0)
        storage.faults = FaultPlan(1, verbs=frozenset({"sync"}))
        with pytest.raises(OSError, match=r".") as caught:
            file.sync()
        assert caught.value.errno == errno.EIO
        file.sync()
        assert file.read_at(10, 0) == b"new"
        assert outcomes(storage) == {b"old", b"new"}

    def test_writing_again_after_a_failed_sync_settles_the_data(self) -> None:
        """Bytes written once more are dirty once more, so the next sync brings them to the disk."""
        storage, file = durable_file(b"old")
        file.write_at((b"new",), 0)
        storage.faults = FaultPlan(1, verbs=frozenset({"sync"}))
        with pytest.raises(OSError, match=r"."):
            file.sync()
        file.write_at((b"new",), 0)
        file.sync()
        assert outcomes(storage) == {b"new"}

    def test_a_hook_that_interrupts_a_sync_leaves_the_data_to_the_next(self) -> None:
        """A KeyboardInterrupt before the call is not a failed sync."""
        storage, file = durable_file(b"old")
        file.write_at((b"new",), 0)
        storage.faults = FaultPlan(1, error=KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            file.sync()
        file.sync()
        assert outcomes(storage) == {b"new"}


class TestNames:
    """Directory entries between a change and the sync of their directory."""

    def test_a_synced_file_may_vanish_when_its_name_was_not(self) -> None:
        """Syncing a file does not persist its name."""
        storage = SimulatedStorage()
        file = storage.open(FILE, create=True)
        file.write_at((b"content",), 0)
        file.sync()
        assert outcomes(storage) == {None, b"content"}
        storage.sync_directory(ROOT)
        assert outcomes(storage) == {b"content"}

    def test_a_durable_name_says_nothing_about_the_data(self) -> None:
        """A file whose directory alone was synced may be empty."""
        storage = SimulatedStorage()
        storage.open(FILE, create=True).write_at((b"content",), 0)
        storage.sync_directory(ROOT)
        assert storage.crash_dropping_unsynced().tree() == {FILE: b""}

    def test_a_rename_is_durable_only_after_the_directory_is_synced(self) -> None:
        """Before that, either the old state or the new one is there, never both or neither."""
        storage, _ = durable_file(b"content")
        storage.rename(FILE, OTHER)
        states = [crashed.tree() for crashed in storage.crash_states()]
        assert states == [{FILE: b"content"}, {OTHER: b"content"}]
        storage.sync_directory(ROOT)
        assert [crashed.tree() for crashed in storage.crash_states()] == [{OTHER: b"content"}]

    def test_a_lost_rename_brings_back_what_it_replaced(self) -> None:
        """The replaced file keeps its content until the rename lasts."""
        storage, _ = durable_file(b"old")
        fresh = storage.open(OTHER, create=True)
        fresh.write_at((b"new",), 0)
        fresh.sync()
        storage.sync_directory(ROOT)
        storage.rename(OTHER, FILE)
        states = [crashed.tree() for crashed in storage.crash_states()]
        assert states == [{FILE: b"old", OTHER: b"new"}, {FILE: b"new"}]

    def test_a_rename_without_a_sync_of_the_file_may_leave_it_empty(self) -> None:
        """The classic mistake: new name durable, data not."""
        storage, _ = durable_file(b"old")
        storage.open(OTHER, create=True).write_at((b"new",), 0)
        storage.rename(OTHER, FILE)
        storage.sync_directory(ROOT)
        assert outcomes(storage) == {b"", b"\0\0\0", b"new"}

    def test_a_rename_across_directories_lasts_with_the_target_directory(self) -> None:
        """Syncing the source directory settles nothing; when it lasts, the source name is gone."""
        storage, _ = durable_file(b"content")
        storage.make_directory(Path("/d"))
        storage.sync_directory(ROOT)
        storage.rename(FILE, Path("/d/file"))
        storage.sync_directory(ROOT)
        states = [crashed.tree() for crashed in storage.crash_states()]
        assert states == [{Path("/d"): None, FILE: b"content"}, {Path("/d"): None, Path("/d/file"): b"content"}]
        storage.sync_directory(Path("/d"))
        assert [crashed.tree() for crashed in storage.crash_states()] == states[1:]

    def test_a_rename_that_lasts_never_leaves_a_second_name(self) -> None:
        """A create that nobody synced does not come back behind a synced rename of its file."""
        storage = SimulatedStorage()
        storage.make_directory(Path("/d"))
        storage.sync_directory(ROOT)
        storage.open(FILE, create=True)
        storage.rename(FILE, Path("/d/file"))
        storage.sync_directory(Path("/d"))
        assert [crashed.tree() for crashed in storage.crash_states()] == [{Path("/d"): None, Path("/d/file"): b""}] * 2

    def test_a_removed_file_may_be_back(self) -> None:
        """With its content, until the directory is synced."""
        storage, _ = durable_file(b"content")
        storage.remove(FILE)
        assert outcomes(storage) == {b"content", None}
        storage.sync_directory(ROOT)
        assert outcomes(storage) == {None}

    def test_a_removal_and_a_new_file_of_that_name_are_two_changes(self) -> None:
        """Old file, no file or new file, but never the old content under the new file."""
        storage, _ = durable_file(b"old")
        storage.remove(FILE)
        storage.open(FILE, create=True)
        assert outcomes(storage) == {b"old", None, b""}

    def test_a_lost_directory_takes_along_what_was_in_it(self) -> None:
        """A directory's own name is settled by its parent; syncing inside it is not enough."""
        storage = SimulatedStorage()
        storage.make_directory(Path("/d"))
        file = storage.open(Path("/d/file"), create=True)
        file.write_at((b"content",), 0)
        file.sync()
        storage.sync_directory(Path("/d"))
        states = [crashed.tree() for crashed in storage.crash_states()]
        assert states == [{}, {Path("/d"): None, Path("/d/file"): b"content"}]

    def test_syncing_a_directory_settles_no_other(self) -> None:
        """Each directory has its own sync."""
        storage = SimulatedStorage()
        storage.make_directory(Path("/d"))
        storage.sync_directory(ROOT)
        storage.open(Path("/d/file"), create=True)
        storage.sync_directory(ROOT)
        assert storage.crash_dropping_unsynced().tree() == {Path("/d"): None}

    def test_a_failed_directory_sync_leaves_its_names_in_doubt_for_good(self) -> None:
        """A later sync settles only what came after."""
        storage = SimulatedStorage()
        storage.open(FILE, create=True)
        storage.faults = FaultPlan(1, verbs=frozenset({"sync_directory"}))
        with pytest.raises(OSError, match=r"."):
            storage.sync_directory(ROOT)
        storage.open(OTHER, create=True)
        storage.sync_directory(ROOT)
        assert [crashed.tree() for crashed in storage.crash_states()] == [{OTHER: b""}, {FILE: b"", OTHER: b""}]

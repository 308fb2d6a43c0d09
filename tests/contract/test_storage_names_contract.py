"""What every storage does with names and directories, and what only a real file system has."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

import pytest

from holdfast.persistence.filesystem.storage import File, OsStorage
from support.storages.place import Place


def _refuse(self: Path) -> str:
    """Stand in for reading a file that is not there."""
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))


class TestDirectories:
    """Directories are made one by one and removed only when empty."""

    def test_make_directory_makes_one(self, place: Place) -> None:
        """A new directory is listed and empty."""
        place.storage.make_directory(place.root / "new")
        assert place.storage.list(place.root) == ["new"]
        assert place.storage.list(place.root / "new") == []

    def test_make_directory_accepts_an_existing_one(self, place: Place) -> None:
        """Making a directory again does nothing to what is in it."""
        place.storage.make_directory(place.root / "new")
        place.make("new/file")
        place.storage.make_directory(place.root / "new")
        assert place.storage.list(place.root / "new") == ["file"]

    def test_make_directory_refuses_a_file(self, place: Place) -> None:
        """A file of that name is not a directory."""
        path = place.make("file")
        with pytest.raises(FileExistsError):
            place.storage.make_directory(path)

    def test_make_directory_refuses_a_missing_parent(self, place: Place) -> None:
        """Parents are not made on the way."""
        with pytest.raises(FileNotFoundError):
            place.storage.make_directory(place.root / "missing" / "new")

    def test_list_is_sorted(self, place: Place) -> None:
        """Names come in order, files and directories alike, without what is further down."""
        for name in ("b", "10", "9", "a"):
            place.make(name)
        place.storage.make_directory(place.root / "c")
        place.make("c/deeper")
        assert place.storage.list(place.root) == ["10", "9", "a", "b", "c"]

    def test_list_of_a_missing_directory_is_refused(self, place: Place) -> None:
        """Missing is not empty."""
        with pytest.raises(FileNotFoundError):
            place.storage.list(place.root / "missing")

    def test_list_of_a_file_is_refused(self, place: Place) -> None:
        """A file has no names in it."""
        with pytest.raises(NotADirectoryError):
            place.storage.list(place.make("file"))

    def test_a_new_directory_is_ours_and_nobody_elses_to_write(self, place: Place) -> None:
        """Whatever others may do with new files by default."""
        before = os.umask(0)
        try:
            place.storage.make_directory(place.root / "new")
        finally:
            os.umask(before)
        assert place.storage.directory_status(place.root / "new") == (os.geteuid(), 0o700)

    def test_directory_status_refuses_what_is_not_a_directory(self, place: Place) -> None:
        """A file and a missing name are each their own error."""
        with pytest.raises(NotADirectoryError):
            place.storage.directory_status(place.make("file"))
        with pytest.raises(FileNotFoundError):
            place.storage.directory_status(place.root / "missing")

    def test_file_system_says_the_same_of_a_directory_and_what_is_in_it(self, place: Place) -> None:
        """One word, as the system calls it; a missing name is an error."""
        kind = place.storage.file_system(place.root)
        assert kind == place.storage.file_system(place.make("file"))
        assert kind == kind.strip()
        assert kind or not sys.platform.startswith("linux")
        with pytest.raises(FileNotFoundError):
            place.storage.file_system(place.root / "missing")

    def test_remove_directory_removes_an_empty_one(self, place: Place) -> None:
        """An empty directory goes."""
        place.storage.make_directory(place.root / "new")
        place.storage.remove_directory(place.root / "new")
        assert place.storage.list(place.root) == []

    def test_remove_directory_refuses_what_is_not_an_empty_directory(self, place: Place) -> None:
        """A directory with something in it, a file, a missing name: each is its own error."""
        place.storage.make_directory(place.root / "full")
        file = place.make("full/file")
        with pytest.raises(OSError, match=r".") as caught:
            place.storage.remove_directory(place.root / "full")
        assert caught.value.errno in {errno.ENOTEMPTY, errno.EEXIST}
        with pytest.raises(NotADirectoryError):
            place.storage.remove_directory(file)
        with pytest.raises(FileNotFoundError):
            place.storage.remove_directory(place.root / "missing")

    def test_sync_directory_changes_nothing_a_process_sees(self, place: Place) -> None:
        """Durability of names is invisible too."""
        place.make("file")
        place.storage.sync_directory(place.root)
        assert place.storage.list(place.root) == ["file"]

    def test_sync_directory_refuses_what_is_not_a_directory(self, place: Place) -> None:
        """Only a directory that is there can be synced."""
        with pytest.raises(FileNotFoundError):
            place.storage.sync_directory(place.root / "missing")
        with pytest.raises(NotADirectoryError):
            place.storage.sync_directory(place.make("file"))


class TestRenamingAndRemoving:
    """Names move and go; files stay as long as somebody holds them."""

    def test_rename_moves_a_file(self, place: Place) -> None:
        """The old name is gone, the new one has the content."""
        source = place.make("old", b"content")
        place.storage.rename(source, place.root / "new")
        assert place.storage.list(place.root) == ["new"]
        assert place.content(place.root / "new") == b"content"

    def test_rename_moves_into_another_directory(self, place: Place) -> None:
        """Directories of one file system are no border."""
        source = place.make("file", b"content")
        place.storage.make_directory(place.root / "sub")
        place.storage.rename(source, place.root / "sub" / "file")
        assert place.storage.list(place.root) == ["sub"]
        assert place.content(place.root / "sub" / "file") == b"content"

    def test_rename_replaces_the_target(self, place: Place) -> None:
        """What stood there loses its name, not its open handles."""
        source, target = place.make("source", b"new"), place.make("target", b"old")
        replaced = place.storage.open(target)
        place.storage.rename(source, target)
        assert place.content(target) == b"new"
        assert place.storage.list(place.root) == ["target"]
        assert replaced.read_at(10, 0) == b"old"
        assert replaced.link_count() == 0
        replaced.close()

    def test_rename_onto_itself_does_nothing(self, place: Place) -> None:
        """A name can be given again."""
        path = place.make("file", b"content")
        place.storage.rename(path, path)
        assert place.content(path) == b"content"

    def test_an_open_handle_follows_its_file_through_a_rename(self, place: Place, file: File) -> None:
        """A handle belongs to the file, not to the name."""
        place.storage.rename(place.root / "file", place.root / "moved")
        file.write_at((b"late",), 0)
        assert place.content(place.root / "moved") == b"late"
        assert file.link_count() == 1

    def test_a_directory_can_be_renamed_with_what_is_in_it(self, place: Place) -> None:
        """The paths below follow."""
        place.storage.make_directory(place.root / "old")
        place.make("old/file", b"content")
        place.storage.rename(place.root / "old", place.root / "new")
        assert place.storage.list(place.root) == ["new"]
        assert place.content(place.root / "new" / "file") == b"content"

    def test_rename_of_a_missing_name_is_refused(self, place: Place) -> None:
        """Nothing cannot be renamed, nor can something go into a missing directory."""
        path = place.make("file")
        with pytest.raises(FileNotFoundError):
            place.storage.rename(place.root / "missing", place.root / "new")
        with pytest.raises(FileNotFoundError):
            place.storage.rename(place.root / "missing", place.root / "missing")
        with pytest.raises(FileNotFoundError):
            place.storage.rename(path, place.root / "missing" / "file")
        assert place.storage.list(place.root) == ["file"]

    def test_rename_between_kinds_is_refused(self, place: Place) -> None:
        """A file never replaces a directory, nor the other way round, nor a directory a full one."""
        path = place.make("file")
        for name in ("one", "full"):
            place.storage.make_directory(place.root / name)
        place.make("full/file")
        with pytest.raises(IsADirectoryError):
            place.storage.rename(path, place.root / "one")
        with pytest.raises(NotADirectoryError):
            place.storage.rename(place.root / "one", path)
        with pytest.raises(OSError, match=r"."):
            place.storage.rename(place.root / "one", place.root / "full")
        with pytest.raises(OSError, match=r"."):
            place.storage.rename(place.root / "one", place.root / "one" / "inside")

    def test_remove_takes_the_name_and_leaves_the_handle(self, place: Place, file: File) -> None:
        """A removed file is readable and writable by who has it open, and says that it has no name."""
        file.write_at((b"still",), 0)
        place.storage.remove(place.root / "file")
        assert place.storage.list(place.root) == []
        file.write_at((b" here",), 5)
        assert file.read_at(100, 0) == b"still here"
        assert file.link_count() == 0

    def test_a_new_file_of_a_removed_name_is_another_file(self, place: Place, file: File) -> None:
        """Names are used again, contents are not."""
        file.write_at((b"old",), 0)
        place.storage.remove(place.root / "file")
        assert place.content(place.make("file", b"new")) == b"new"
        assert file.read_at(10, 0) == b"old"

    def test_remove_of_a_missing_name_is_refused(self, place: Place) -> None:
        """What is not there cannot be removed."""
        with pytest.raises(FileNotFoundError):
            place.storage.remove(place.root / "missing")

    def test_remove_of_a_directory_is_refused(self, place: Place) -> None:
        """Directories have a verb of their own; Linux and macOS name the error differently."""
        place.storage.make_directory(place.root / "new")
        with pytest.raises((IsADirectoryError, PermissionError)):
            place.storage.remove(place.root / "new")


class TestOperatingSystem:
    """What only a real file system has: modes, links, FIFOs."""

    def test_files_and_directories_are_private(self, tmp_path: Path) -> None:
        """Files are 0600 and directories 0700."""
        storage = OsStorage()
        storage.make_directory(tmp_path / "directory")
        storage.open(tmp_path / "directory" / "file", create=True).close()
        assert stat.S_IMODE((tmp_path / "directory").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "directory" / "file").stat().st_mode) == 0o600

    def test_open_refuses_a_symbolic_link(self, tmp_path: Path) -> None:
        """A link is never followed, whether its target is there or would be created."""
        storage = OsStorage()
        (tmp_path / "file").write_bytes(b"content")
        (tmp_path / "link").symlink_to(tmp_path / "file")
        (tmp_path / "dangling").symlink_to(tmp_path / "made")
        for name in ("link", "dangling"):
            for create in (False, True):
                with pytest.raises(OSError, match=r".") as caught:
                    storage.open(tmp_path / name, create=create)
                assert caught.value.errno == errno.ELOOP
        assert not (tmp_path / "made").exists()

    def test_directories_behind_symbolic_links_are_refused(self, tmp_path: Path) -> None:
        """A link to a directory is no directory of ours to make or to sync."""
        storage = OsStorage()
        (tmp_path / "directory").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "directory")
        with pytest.raises(FileExistsError):
            storage.make_directory(tmp_path / "link")
        with pytest.raises(OSError, match=r"."):
            storage.sync_directory(tmp_path / "link")
        with pytest.raises(OSError, match=r".") as caught:
            storage.directory_status(tmp_path / "link")
        assert caught.value.errno == errno.ELOOP

    @pytest.mark.parametrize("writable", [True, False])
    def test_open_refuses_a_fifo_without_hanging(self, tmp_path: Path, writable: bool) -> None:
        """A FIFO in the place of a file is an error at once, and no descriptor stays behind."""
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(OSError, match="not a regular file"):
            OsStorage().open(tmp_path / "fifo", writable=writable)

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no /proc")
    def test_file_system_knows_a_mount_from_the_directory_around_it(self) -> None:
        """What is mounted below counts, not what is around."""
        storage = OsStorage()
        assert storage.file_system(Path("/proc/self")) == "proc"
        assert storage.file_system(Path("/")) != "proc"

    def test_file_system_says_nothing_where_the_system_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without /proc, and on other systems than Linux."""
        monkeypatch.setattr(Path, "read_text", _refuse)
        assert not OsStorage().file_system(Path("/"))
        monkeypatch.setattr("sys.platform", "darwin")
        assert not OsStorage().file_system(Path("/"))

    def test_link_count_sees_every_name(self, tmp_path: Path) -> None:
        """A file that somebody linked elsewhere (a backup) says so."""
        file = OsStorage().open(tmp_path / "file", create=True)
        os.link(tmp_path / "file", tmp_path / "backup")
        assert file.link_count() == 2
        file.close()

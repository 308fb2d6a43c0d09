"""What every storage does with files, whoever implements it: what makes crash tests in memory mean something."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from holdfast.persistence.filesystem.storage import File, write_whole
from support.storages.place import Place
from support.storages.simulated_storage import WRITE_BUFFERS_MAX

USES: dict[str, Callable[[File], object]] = {
    "write_at": lambda file: file.write_at((b"x",), 0),
    "read_at": lambda file: file.read_at(1, 0),
    "truncate": lambda file: file.truncate(0),
    "allocate": lambda file: file.allocate(10),
    "sync": lambda file: file.sync(),
    "size": lambda file: file.size(),
    "link_count": lambda file: file.link_count(),
    "identity": lambda file: file.identity(),
    "try_lock": lambda file: file.try_lock(),
}


class TestOpening:
    """Files come into being only when asked for, and nothing but a regular file is opened."""

    def test_open_of_a_missing_file_is_refused(self, place: Place) -> None:
        """Without ``create`` a missing file is an error, and stays missing."""
        with pytest.raises(FileNotFoundError):
            place.storage.open(place.root / "missing")
        assert place.storage.list(place.root) == []

    def test_create_makes_an_empty_file(self, place: Place, file: File) -> None:
        """A created file is there at once and has no bytes."""
        assert file.size() == 0
        assert file.read_at(10, 0) == b""
        assert file.link_count() == 1
        assert place.storage.list(place.root) == ["file"]

    def test_create_opens_an_existing_file_as_it_is(self, place: Place) -> None:
        """``create`` on an existing file neither fails nor empties it."""
        path = place.make("file", b"content")
        file = place.storage.open(path, create=True)
        assert file.read_at(100, 0) == b"content"
        file.close()

    def test_create_in_a_missing_directory_is_refused(self, place: Place) -> None:
        """Directories are never made on the way."""
        with pytest.raises(FileNotFoundError):
            place.storage.open(place.root / "missing" / "file", create=True)

    def test_a_file_is_no_directory_to_open_in(self, place: Place) -> None:
        """A path through a file is an error of its own."""
        path = place.make("file")
        with pytest.raises(NotADirectoryError):
            place.storage.open(path / "inside", create=True)

    def test_open_of_a_directory_for_writing_is_refused(self, place: Place) -> None:
        """A directory is not a file, with or without ``create``."""
        with pytest.raises(IsADirectoryError):
            place.storage.open(place.root)
        with pytest.raises(IsADirectoryError):
            place.storage.open(place.root, create=True)

    def test_open_of_a_directory_for_reading_is_refused(self, place: Place) -> None:
        """A directory cannot be read as a file either."""
        with pytest.raises(OSError, match=r"."):
            place.storage.open(place.root, writable=False)

    def test_two_handles_see_one_file(self, place: Place, file: File) -> None:
        """What one handle wrote, every other reads at once."""
        other = place.storage.open(place.root / "file", writable=False)
        file.write_at((b"shared",), 0)
        assert other.read_at(6, 0) == b"shared"
        other.close()


class TestReadingAndWriting:
    """Bytes go where they are told, and gaps are zeros."""

    def test_write_at_puts_the_buffers_one_after_the_other(self, file: File) -> None:
        """Several buffers are one write."""
        assert file.write_at((b"ab", b"", b"cde"), 0) == 5
        assert file.read_at(5, 0) == b"abcde"
        assert file.size() == 5

    def test_write_at_takes_any_bytes_like_buffer(self, file: File) -> None:
        """Memory views go in without a copy on the caller's side."""
        assert file.write_at((memoryview(b"xaby")[1:3], bytearray(b"c")), 0) == 3  # type: ignore[arg-type]
        assert file.read_at(10, 0) == b"abc"

    def test_write_at_replaces_in_place(self, file: File) -> None:
        """Overwriting keeps what is around it and the size."""
        file.write_at((b"abcdef",), 0)
        file.write_at((b"XY",), 2)
        assert file.read_at(10, 0) == b"abXYef"

    def test_write_at_across_the_end_grows_the_file(self, file: File) -> None:
        """A write may begin inside and end outside."""
        file.write_at((b"abc",), 0)
        file.write_at((b"XYZ",), 2)
        assert file.read_at(10, 0) == b"abXYZ"

    def test_write_beyond_the_end_leaves_zeros(self, file: File) -> None:
        """The gap before a far write reads as zeros."""
        file.write_at((b"a",), 0)
        file.write_at((b"z",), 600)
        assert file.read_at(1000, 0) == b"a" + bytes(599) + b"z"

    def test_write_of_nothing_changes_nothing(self, file: File) -> None:
        """No bytes, no size, wherever they go."""
        assert file.write_at((), 5) == 0
        assert file.write_at((b"",), 5) == 0
        assert file.size() == 0

    def test_write_at_refuses_more_buffers_than_the_kernel_takes(self, file: File) -> None:
        """1,024 buffers are one write, one more is an error."""
        assert file.write_at((b"x",) * WRITE_BUFFERS_MAX, 0) == WRITE_BUFFERS_MAX
        with pytest.raises(OSError, match=r".") as caught:
            file.write_at((b"x",) * (WRITE_BUFFERS_MAX + 1), 0)
        assert caught.value.errno == errno.EINVAL

    def test_write_at_a_negative_position_is_refused(self, file: File) -> None:
        """There is nothing before the beginning, and a wrong position must not hit the header of a file."""
        with pytest.raises(OSError, match=r".") as caught:
            file.write_at((b"x",), -2)
        assert caught.value.errno == errno.EINVAL
        assert file.size() == 0

    def test_read_at_is_short_only_at_the_end(self, file: File) -> None:
        """A read across the end returns what there is."""
        file.write_at((b"abcdef",), 0)
        assert file.read_at(3, 1) == b"bcd"
        assert file.read_at(10, 4) == b"ef"

    def test_read_at_or_beyond_the_end_is_empty(self, file: File) -> None:
        """Nothing there is no error."""
        file.write_at((b"abc",), 0)
        assert file.read_at(1, 3) == b""
        assert file.read_at(10, 5000) == b""

    def test_read_at_of_nothing_is_empty(self, file: File) -> None:
        """Zero bytes can be asked for."""
        file.write_at((b"abc",), 0)
        assert file.read_at(0, 1) == b""

    def test_what_was_read_does_not_change_later(self, file: File) -> None:
        """A read returns a copy, not a view."""
        file.write_at((b"before",), 0)
        data = file.read_at(6, 0)
        file.write_at((b"after!",), 0)
        assert data == b"before"

    def test_a_handle_for_reading_cannot_change_the_file(self, place: Place) -> None:
        """Every changing verb fails on a read-only handle and leaves the file alone; sync is allowed."""
        path = place.make("file", b"content")
        file = place.storage.open(path, writable=False)
        with pytest.raises(OSError, match=r"."):
            file.write_at((b"x",), 0)
        with pytest.raises(OSError, match=r"."):
            file.truncate(0)
        with pytest.raises(OSError, match=r"."):
            file.allocate(1000)
        file.sync()
        assert file.read_at(100, 0) == b"content"
        file.close()


class TestSizes:
    """Sizes change by truncate and allocate, and what is new is zeros."""

    def test_truncate_cuts(self, file: File) -> None:
        """What is behind the new size is gone for good."""
        file.write_at((b"abcdef",), 0)
        file.truncate(2)
        assert file.size() == 2
        file.truncate(4)
        assert file.read_at(10, 0) == b"ab\0\0"

    def test_truncate_extends_with_zeros(self, file: File) -> None:
        """A larger size needs no write."""
        file.truncate(700)
        assert file.read_at(1000, 0) == bytes(700)

    def test_truncate_to_the_same_size_does_nothing(self, file: File) -> None:
        """Nothing is lost when nothing is cut."""
        file.write_at((b"abc",), 0)
        file.truncate(3)
        assert file.read_at(10, 0) == b"abc"

    def test_truncate_to_a_negative_size_is_refused(self, file: File) -> None:
        """No file is smaller than empty."""
        with pytest.raises(OSError, match=r"."):
            file.truncate(-1)

    def test_allocate_keeps_the_content_and_grows_with_zeros(self, file: File) -> None:
        """Reserved space reads as zeros behind what was there."""
        file.write_at((b"abc",), 0)
        file.allocate(1000)
        assert file.size() == 1000
        assert file.read_at(1000, 0) == b"abc" + bytes(997)

    def test_allocate_never_shrinks(self, file: File) -> None:
        """Asking for less than there is does nothing."""
        file.write_at((b"abcdef",), 0)
        file.allocate(3)
        file.allocate(6)
        assert file.read_at(10, 0) == b"abcdef"

    def test_sync_changes_nothing_a_process_sees(self, file: File) -> None:
        """Durability is invisible until the power goes."""
        file.write_at((b"abc",), 0)
        file.sync()
        file.sync()
        assert file.read_at(10, 0) == b"abc"


class TestLocksAndHandles:
    """A lock belongs to one handle and goes with it; a closed handle does nothing."""

    def test_a_lock_is_exclusive_between_handles(self, place: Place, file: File) -> None:
        """The second handle is told no, and gets the lock when the first is closed."""
        other = place.storage.open(place.root / "file")
        assert file.try_lock()
        assert not other.try_lock()
        assert not other.try_lock()
        file.close()
        assert other.try_lock()
        other.close()

    def test_a_lock_can_be_taken_again_by_its_holder(self, file: File) -> None:
        """Asking twice is no error and changes nothing."""
        assert file.try_lock()
        assert file.try_lock()

    def test_closing_a_handle_without_the_lock_leaves_the_lock(self, place: Place, file: File) -> None:
        """Only the holder's close lets go: this is where POSIX record locks would fail."""
        assert file.try_lock()
        place.storage.open(place.root / "file").close()
        other = place.storage.open(place.root / "file")
        assert not other.try_lock()
        other.close()

    def test_locks_of_different_files_are_independent(self, place: Place, file: File) -> None:
        """One lock says nothing about another file, even of the same former name."""
        assert file.try_lock()
        place.storage.rename(place.root / "file", place.root / "moved")
        fresh = place.storage.open(place.root / "file", create=True)
        moved = place.storage.open(place.root / "moved")
        assert fresh.try_lock()
        assert not moved.try_lock()
        fresh.close()
        moved.close()

    def test_shared_locks_exclude_an_exclusive_one_only(self, place: Place, file: File) -> None:
        """Any number of handles that test a lock do not disturb one another, and hold up who takes it."""
        second, third = (place.storage.open(place.root / "file", writable=False) for _ in range(2))
        assert file.try_lock(shared=True)
        assert second.try_lock(shared=True)
        assert second.try_lock(shared=True)
        assert not third.try_lock()
        second.close()
        assert not third.try_lock()
        file.close()
        assert third.try_lock()
        third.close()

    def test_an_exclusive_lock_excludes_shared_ones(self, place: Place, file: File) -> None:
        """So a test finds out whether somebody holds the lock."""
        other = place.storage.open(place.root / "file", writable=False)
        assert file.try_lock()
        assert not other.try_lock(shared=True)
        file.close()
        assert other.try_lock(shared=True)
        other.close()

    def test_two_handles_of_one_file_have_one_identity(self, place: Place, file: File) -> None:
        """Under any name; another file has another one, also if it has taken the name of the first."""
        place.storage.rename(place.root / "file", place.root / "moved")
        moved = place.storage.open(place.root / "moved", writable=False)
        assert moved.identity() == file.identity()
        place.storage.remove(place.root / "moved")
        fresh = place.storage.open(place.root / "file", create=True)
        assert fresh.identity() != file.identity()
        assert moved.identity() == file.identity()
        moved.close()
        fresh.close()

    def test_close_twice_does_nothing(self, place: Place, file: File) -> None:
        """A second close must not hit somebody else's handle."""
        file.close()
        other = place.storage.open(place.root / "file")
        file.close()
        assert other.size() == 0
        other.close()

    @pytest.mark.parametrize("verb", sorted(USES))
    def test_a_closed_handle_is_refused_by_every_verb(self, place: Place, file: File, verb: str) -> None:
        """After close each verb raises EBADF and leaves the file to others."""
        file.write_at((b"abc",), 0)
        file.close()
        with pytest.raises(OSError, match=r".") as caught:
            USES[verb](file)
        assert caught.value.errno == errno.EBADF
        other = place.storage.open(place.root / "file")
        assert other.read_at(10, 0) == b"abc"
        assert other.try_lock()
        other.close()

    def test_write_whole_writes_all(self, place: Place, file: File) -> None:
        """The helper above the port works on every storage."""
        write_whole(file, (b"abc", b"def"), 2)
        assert place.content(place.root / "file") == b"\0\0abcdef"

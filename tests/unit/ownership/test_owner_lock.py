"""The owner lock: one owner, whose note says where its socket is, and which taking this is."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket as sockets
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import ConfigError, StorageError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.ownership.owner_lock import NOTE_BYTES, OwnerLock, OwnerNote, read_owner_note
from support.processes.children import Signal, child
from support.processes.interruptions import Kind, interrupted, points_of
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/service")
LOCK = ROOT / ".owner" / "lock"
OS = OsStorage()


@pytest.fixture
def storage() -> SimulatedStorage:
    """Return a disk with the directory of a service."""
    storage = SimulatedStorage()
    storage.make_directory(ROOT)
    return storage


def taken(storage: SimulatedStorage | OsStorage, root: Path) -> OwnerLock:
    """Take the lock, which is free."""
    lock = OwnerLock.try_take(storage, root)
    assert lock is not None
    return lock


def test_a_second_one_gets_the_lock_once_the_first_has_released_it(storage: SimulatedStorage) -> None:
    """Each taking has an epoch of its own."""
    first = taken(storage, ROOT)
    assert OwnerLock.try_take(storage, ROOT) is None
    first.release()
    second = taken(storage, ROOT)
    first.release()
    assert OwnerLock.try_take(storage, ROOT) is None
    assert len(first.epoch) == len(second.epoch) == 16
    assert first.epoch != second.epoch


def test_the_note_says_who_owns_and_where_its_socket_is(storage: SimulatedStorage) -> None:
    """It is there once the lock is taken, and gets the socket later."""
    lock = taken(storage, ROOT)
    note = read_owner_note(storage, ROOT)
    assert note is not None
    assert note == OwnerNote(os.getpid(), sockets.gethostname(), lock.epoch, None, note.started)
    lock.set_socket(Path("/run/user/7/holdfast-7/a"), is_brief=True)
    changed = read_owner_note(storage, ROOT)
    assert changed is not None
    assert changed == OwnerNote(
        note.pid, note.host, note.epoch, Path("/run/user/7/holdfast-7/a"), note.started, is_brief=True
    )
    lock.release()
    again = OwnerLock.try_take(storage, ROOT, ROOT / ".owner" / "socket")
    assert again is not None
    newest = read_owner_note(storage, ROOT)
    assert newest is not None
    assert (newest.epoch, newest.socket) == (again.epoch, ROOT / ".owner" / "socket")
    assert newest.started > note.started


def test_a_socket_beside_the_lock_is_found_after_the_directory_was_moved(storage: SimulatedStorage) -> None:
    """A container may have it elsewhere as well."""
    taken(storage, ROOT).set_socket(ROOT / ".owner" / "socket")
    storage.rename(ROOT, Path("/moved"))
    note = read_owner_note(storage, Path("/moved"))
    assert note is not None
    assert note.socket == Path("/moved/.owner/socket")


def test_the_longest_path_of_a_socket_has_room_in_the_note(storage: SimulatedStorage) -> None:
    """Also if JSON takes six bytes for each of it."""
    socket = Path(os.fsdecode(b"/" + b"\xff" * 106))
    taken(storage, ROOT).set_socket(socket)
    with storage.open(LOCK) as file:
        assert file.size() == NOTE_BYTES
    note = read_owner_note(storage, ROOT)
    assert note is not None
    assert note.socket == socket


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 2000,
        b'{"pid": 1, "host": "a"}',
        {"epoch": "00"},
        {"epoch": "x" * 32},
        {"epoch": 7},
        {"pid": "x"},
        {"pid": None},
        {"socket": 7},
        {"started": "later"},
        {"heir": "x"},
        {"heir": None},
        {"started": float("inf")},
    ],
)
def test_a_note_that_cannot_be_read_is_none(storage: SimulatedStorage, note: bytes | dict[str, object]) -> None:
    """The lock alone decides who owns; what the note says must not."""
    whole = {"pid": 1, "host": "a", "epoch": "00" * 16, "socket": None, "started": 1, "brief": False, "heir": 0}
    storage.make_directory(LOCK.parent)
    with storage.open(LOCK, create=True) as file:
        file.write_at((json.dumps(whole).encode(),), 0)
        assert read_owner_note(storage, ROOT) is not None
        file.truncate(0)
        file.write_at((note if isinstance(note, bytes) else json.dumps({**whole, **note}).encode(),), 0)
    assert read_owner_note(storage, ROOT) is None
    assert OwnerLock.try_take(storage, ROOT) is not None


def test_no_lock_file_has_no_note(storage: SimulatedStorage) -> None:
    """Looking makes nothing."""
    before = storage.tree()
    assert read_owner_note(storage, ROOT) is None
    assert storage.tree() == before


@pytest.mark.parametrize("verb", ["make_directory", "open", "try_lock", "link_count", "identity", "write_at"])
def test_a_disk_that_refuses_leaves_nothing_locked(storage: SimulatedStorage, verb: str) -> None:
    """The error says which; the next try succeeds."""
    with refusing(storage, verb, error=errno.EIO), pytest.raises(OSError, match="Input/output"):
        OwnerLock.try_take(storage, ROOT)
    assert OwnerLock.try_take(storage, ROOT) is not None


def test_a_directory_that_is_missing_is_an_error_and_is_not_made(storage: SimulatedStorage) -> None:
    """Who opens a queue makes its directory; a service that was removed does not come back."""
    with pytest.raises(FileNotFoundError):
        OwnerLock.try_take(storage, Path("/missing"))
    assert "missing" not in storage.list(Path("/"))


# -- The path still names the locked file ----------------------------------------------------------------------------


def before_the_lock(storage: SimulatedStorage, change: Callable[[], None], count: int = 1) -> None:
    """Make a change between the opening of a lock file and the locking, so many times."""
    left = count

    def hook(verb: str, path: Path) -> None:
        nonlocal left
        if verb == "try_lock" and left:
            left -= 1
            change()

    storage.before_verb = hook


def make_again(storage: SimulatedStorage) -> None:
    """Remove the lock file, and make another one of its name."""
    storage.remove(LOCK)
    storage.open(LOCK, create=True).close()


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_lock_file_that_was_removed_before_it_was_locked_gives_no_second_owner(
    storage: SimulatedStorage, is_made_again: bool
) -> None:
    """Two processes would each lock the file that they have opened; the one whose file has no name tries again."""
    before_the_lock(storage, lambda: make_again(storage) if is_made_again else storage.remove(LOCK))
    lock = taken(storage, ROOT)
    assert lock.is_in_place()
    assert storage.is_locked(LOCK)
    assert OwnerLock.try_take(storage, ROOT) is None


def test_a_lock_file_that_another_one_has_made_again_and_locked_is_not_taken(storage: SimulatedStorage) -> None:
    """Both have locked a file; only one has that of the name."""
    others: list[OwnerLock] = []

    def other_owner() -> None:
        storage.remove(LOCK)
        others.append(taken(storage, ROOT))

    before_the_lock(storage, other_owner)
    assert OwnerLock.try_take(storage, ROOT) is None
    assert others[0].is_in_place()


def test_a_lock_file_that_was_renamed_before_it_was_locked_is_not_taken(storage: SimulatedStorage) -> None:
    """It has one name, and that is another one."""
    before_the_lock(storage, lambda: storage.rename(LOCK, ROOT / "elsewhere"))
    assert taken(storage, ROOT).is_in_place()
    assert not storage.is_locked(ROOT / "elsewhere")


def test_all_of_the_directory_may_be_removed_before_the_lock_is_opened(storage: SimulatedStorage) -> None:
    """It is made again."""
    taken(storage, ROOT).release()
    left = 2

    def remove_all(verb: str, path: Path) -> None:
        nonlocal left
        if verb == "open" and path == LOCK and left:
            left -= 1
            if LOCK.name in storage.list(LOCK.parent):
                storage.remove(LOCK)
            storage.remove_directory(LOCK.parent)

    storage.before_verb = remove_all
    assert taken(storage, ROOT).is_in_place()
    assert not left


def test_a_lock_file_that_is_removed_again_and_again_is_left_to_others(storage: SimulatedStorage) -> None:
    """A try has an end."""
    before_the_lock(storage, lambda: storage.remove(LOCK), count=10**6)
    assert OwnerLock.try_take(storage, ROOT) is None
    storage.before_verb = None
    assert OwnerLock.try_take(storage, ROOT) is not None


def test_an_owner_can_tell_that_its_lock_file_was_removed(storage: SimulatedStorage) -> None:
    """Another process may own the directory then."""
    lock = taken(storage, ROOT)
    assert lock.is_in_place()
    storage.remove(LOCK)
    assert not lock.is_in_place()
    taken(storage, ROOT)
    assert not lock.is_in_place()


# -- On a real file system -------------------------------------------------------------------------------------------


def test_the_files_of_the_owner_are_for_this_user_only(tmp_path: Path) -> None:
    """The epoch in the note is a secret."""
    taken(OS, tmp_path)
    assert (tmp_path / ".owner").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / ".owner" / "lock").stat().st_mode & 0o777 == 0o600


def test_a_lock_file_with_a_second_name_is_refused(tmp_path: Path) -> None:
    """A copy by hard links would have the lock of the original."""
    taken(OS, tmp_path).release()
    os.link(tmp_path / ".owner" / "lock", tmp_path / "copy")
    with pytest.raises(StorageError, match="second name"):
        OwnerLock.try_take(OS, tmp_path)
    (tmp_path / "copy").unlink()
    assert OwnerLock.try_take(OS, tmp_path) is not None


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """The file that it leads to may be the lock of something else."""
    taken(OS, tmp_path).release()
    (tmp_path / ".owner" / "lock").rename(tmp_path / "lock")
    (tmp_path / ".owner" / "lock").symlink_to(tmp_path / "lock")
    with pytest.raises(OSError, match="symbolic link") as caught:
        OwnerLock.try_take(OS, tmp_path)
    assert caught.value.errno == errno.ELOOP
    assert read_owner_note(OS, tmp_path) is None


@pytest.mark.parametrize("kind", ["link", "file", "writable"])
def test_a_directory_of_the_owner_that_others_could_change_is_refused(tmp_path: Path, kind: str) -> None:
    """A user who may write there can replace the socket."""
    directory = tmp_path / ".owner"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        directory.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        directory.touch()
    else:
        directory.mkdir()
        directory.chmod(0o777)
    with pytest.raises(ConfigError, match="owner"):
        OwnerLock.try_take(OS, tmp_path)


def test_a_directory_of_another_user_is_refused(storage: SimulatedStorage) -> None:
    """That user could read the epoch, and answer in place of the owner."""
    storage.owner = os.geteuid() + 1
    with pytest.raises(ConfigError, match="belongs to user"):
        OwnerLock.try_take(storage, ROOT)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    """Its note stays, until the next owner writes its own."""
    says, ends = Signal(), Signal()

    def own() -> None:
        says.send(taken(OS, tmp_path).epoch.hex())
        ends.wait()

    with child(own) as owner:
        epoch = bytes.fromhex(says.wait())
        assert OwnerLock.try_take(OS, tmp_path) is None
        note = read_owner_note(OS, tmp_path)
        assert note is not None
        assert (note.pid, note.epoch) == (owner.pid, epoch)
        owner.kill()
        assert owner.wait() == -signal.SIGKILL
        lock = taken(OS, tmp_path)
    changed = read_owner_note(OS, tmp_path)
    assert changed is not None
    assert (changed.pid, changed.epoch) == (os.getpid(), lock.epoch)


def test_a_forked_child_holds_no_lock(tmp_path: Path) -> None:
    """It outlives the release of its parent, and can do nothing with its copy."""
    lock = taken(OS, tmp_path)
    says, ends = Signal(), Signal()

    def stay() -> None:
        for refused in (lock.is_in_place, lambda: lock.set_socket(None)):
            with pytest.raises(OSError, match="descriptor"):
                refused()
        lock.release()
        says.send()
        ends.wait()

    with child(stay):
        says.wait()
        assert OwnerLock.try_take(OS, tmp_path) is None
        lock.release()
        assert OwnerLock.try_take(OS, tmp_path) is not None


def test_the_lock_stays_with_its_file_when_the_directory_is_moved(tmp_path: Path) -> None:
    """The owner finds out by the name; no other process owns the directory under its new one."""
    (tmp_path / "a").mkdir()
    lock = taken(OS, tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert OwnerLock.try_take(OS, tmp_path / "b") is None
    assert not lock.is_in_place()


def test_all_may_be_removed_while_no_process_owns(tmp_path: Path) -> None:
    """The next owner makes it again."""
    taken(OS, tmp_path).release()
    shutil.rmtree(tmp_path / ".owner")
    assert taken(OS, tmp_path).is_in_place()


def test_a_taking_that_is_interrupted_leaves_nothing_locked() -> None:
    """Wherever that is: another try gets the lock."""

    def made() -> SimulatedStorage:
        storage = SimulatedStorage()
        storage.make_directory(ROOT)
        return storage

    def take(storage: SimulatedStorage) -> None:
        taken(storage, ROOT).release()

    take(made())
    storage = made()
    points = [point for point in points_of(lambda: take(storage)) if point.kind is not Kind.ELSEWHERE]
    assert len(points) > 50
    for point in points:
        storage = made()
        error = interrupted(lambda storage=storage: OwnerLock.try_take(storage, ROOT), point)  # type: ignore[misc]
        if error is not None:
            assert isinstance(error, KeyboardInterrupt), point
            assert OwnerLock.try_take(storage, ROOT) is not None, point
            del error

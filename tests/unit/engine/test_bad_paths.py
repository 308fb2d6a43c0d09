"""Bad paths get one clear error each, and nothing is created or changed."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ConfigError,
    PersistentQueue,
    QueueNotFoundError,
    QueueService,
    StorageError,
    UnsupportedVersionError,
)
from holdfast.persistence.filesystem.document import write_document
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import FORMAT_VERSION
from support.processes.children import child
from support.storages.faults import FaultPlan
from support.storages.place import Place
from support.storages.real_trees import tree
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

IS_ROOT = os.geteuid() == 0
NOBODY = 65_534


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a path for a queue that does not exist yet."""
    return tmp_path / "orders"


@pytest.fixture
def unchanged(root: Path) -> Iterator[None]:
    """Make sure that a test leaves the directory above the queue as it found it."""
    before = tree(root.parent)
    yield
    assert tree(root.parent) == before


@pytest.mark.usefixtures("unchanged")
def test_a_queue_that_does_not_exist_is_not_made_by_those_who_look(root: Path) -> None:
    """QueueNotFoundError says who makes one."""
    with pytest.raises(QueueNotFoundError, match=r"another mode than 'read_only' creates one") as caught:
        PersistentQueue(root, mode="read_only")
    assert caught.value.path == str(root)


@pytest.mark.parametrize("mode", ["exclusive", "shared", "read_only"])
def test_a_file_is_no_queue(root: Path, mode: str) -> None:
    """It stays as it is."""
    root.write_bytes(b"mine")
    before = tree(root.parent)
    with pytest.raises(ConfigError, match="is a file"):
        PersistentQueue(root, mode=mode)
    assert tree(root.parent) == before


def test_a_directory_of_somebody_else_is_no_queue(root: Path) -> None:
    """The error names what stands there."""
    root.mkdir()
    (root / "thesis.tex").write_bytes(b"mine")
    before = tree(root.parent)
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        PersistentQueue(root, mode="exclusive")
    assert tree(root.parent) == before


def test_an_empty_directory_becomes_a_queue(root: Path) -> None:
    """Somebody may have made it with the right mount or owner."""
    root.mkdir()
    with PersistentQueue(root, mode="exclusive") as queue:
        assert queue.put(b"x") == 0


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_directories_above_a_queue_are_made_where_they_are_missing(root: Path, mode: str) -> None:
    """For this user alone."""
    PersistentQueue(root / "data" / "queues" / "orders", mode=mode).close()
    made = [root, root / "data", root / "data" / "queues", root / "data" / "queues" / "orders"]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 4
    QueueService(root / "some" / "service").queue("orders").close()


@pytest.mark.usefixtures("unchanged")
def test_looking_makes_no_directories(root: Path) -> None:
    """A typing error is told."""
    with pytest.raises(QueueNotFoundError):
        PersistentQueue(root / "missing" / "orders", mode="read_only")


def test_a_message_survives_in_a_directory_whose_parents_were_made() -> None:
    """Their names are as durable as the queue's."""
    storage = SimulatedStorage()
    root = Path("/var/lib/queues/orders")
    with PersistentQueue(root, mode="exclusive", storage=storage) as queue:
        queue.put(b"one")
        with PersistentQueue(root, mode="exclusive", storage=storage.crash_dropping_unsynced()) as again:
            assert again.get(timeout=0) == b"one"


@pytest.mark.parametrize("name", ["lib", "var"])
def test_parents_whose_names_could_not_be_synced_are_made_anew(name: str) -> None:
    """None of them is left, and the next attempt syncs names that are new."""
    storage = SimulatedStorage()
    root = Path("/var/lib/queues/orders")
    parent = next(path for path in root.parents if path.name == name)
    with (
        refusing(storage, "sync_directory", str(parent)),
        pytest.raises(StorageError, match="opening the queue failed"),
    ):
        PersistentQueue(root, mode="exclusive", storage=storage)
    assert not storage.tree()
    with PersistentQueue(root, mode="exclusive", storage=storage) as queue:
        queue.put(b"one")
        with PersistentQueue(root, mode="exclusive", storage=storage.crash_dropping_unsynced()) as again:
            assert again.get(timeout=0) == b"one"


def test_a_link_above_a_queue_is_followed(root: Path) -> None:
    """It is the operator's: only what belongs to the queue has to be a directory."""
    (root.parent / "real").mkdir()
    root.symlink_to(root.parent / "real")
    PersistentQueue(root / "orders", mode="exclusive").close()
    assert (root.parent / "real" / "orders" / "queue.json").exists()
    PersistentQueue(root / "orders", mode="exclusive").close()


@pytest.mark.parametrize("below", ["orders", "deeper/orders"])
@pytest.mark.parametrize("mode", ["exclusive", "read_only"])
def test_a_file_above_a_queue_is_named(root: Path, below: str, mode: str) -> None:
    """Not the queue, which is not there."""
    root.write_bytes(b"mine")
    with pytest.raises(ConfigError, match=f"{root} is a file; a queue is a directory"):
        PersistentQueue(root / below, mode=mode)


def test_a_path_of_which_nothing_more_can_be_found_out_is_named_itself() -> None:
    """The disk refuses to say what stands above it."""
    storage = SimulatedStorage()
    Place(storage, Path("/")).make("mine")
    storage.make_directory(Path("/above"))
    refused = Path("/above/file")
    Place(storage, Path("/above")).make("file")
    with refusing(storage, "directory_status", "/above"), pytest.raises(ConfigError, match=f"{refused} is a file"):
        PersistentQueue(refused, mode="exclusive", storage=storage)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (errno.EMFILE, r"this process may have \d+ files open: raise the limit \(ulimit -n\)"),
        (errno.ENFILE, "the system"),
    ],
)
def test_where_descriptors_are_short_the_error_speaks_of_them(error: int, advice: str) -> None:
    """Not of the disk and its permissions."""
    storage = SimulatedStorage()
    with refusing(storage, "open", error=error), pytest.raises(StorageError, match=advice) as caught:
        PersistentQueue(Path("/queue"), mode="exclusive", storage=storage)
    assert "disk" not in str(caught.value)


def test_a_queue_that_is_deleted_while_it_is_opened_blames_no_disk() -> None:
    """As another process may do it."""
    storage = SimulatedStorage()
    gone = FileNotFoundError(errno.ENOENT, "No such file or directory", "/queue/groups/.lock")
    with refusing(storage, "open", "groups/.lock", gone), pytest.raises(StorageError) as caught:
        PersistentQueue(Path("/queue"), mode="exclusive", storage=storage)
    assert str(caught.value) == (
        "opening the queue failed: /queue/groups/.lock (No such file or directory); the queue was deleted or moved "
        "meanwhile: open it again, or restore what is missing"
    )


def test_a_group_that_is_deleted_while_a_queue_is_opened_is_passed_over() -> None:
    """It was there when the groups were listed."""
    storage = SimulatedStorage()
    root = Path("/queue")
    with PersistentQueue(root, mode="exclusive", storage=storage) as queue:
        queue.groups.create("gone")
    with refusing(storage, "directory_status", "groups/gone", FileNotFoundError(errno.ENOENT, "No such file")):
        PersistentQueue(root, mode="exclusive", storage=storage).close()
    with (
        refusing(storage, "directory_status", "groups/gone"),
        pytest.raises(StorageError, match="opening the queue failed"),
    ):
        PersistentQueue(root, mode="exclusive", storage=storage)


@pytest.mark.parametrize("name", ["queue.json", "write.lock", "write.mark", "groups/default/group.json"])
@pytest.mark.parametrize(
    ("put", "advice"),
    [
        (os.mkfifo, "remove it, and restore the file"),
        (lambda path: path.symlink_to("elsewhere"), "replace the symbolic link with the file that it points to"),
    ],
    ids=["FIFO", "link"],
)
def test_the_error_names_what_is_no_file_and_says_what_to_do(
    root: Path, name: str, put: Callable[[Path], object], advice: str
) -> None:
    """Not the queue's directory, and not the disk and its permissions."""
    with PersistentQueue(root, mode="exclusive") as queue:
        queue.put(b"one")
        queue.get(timeout=0)
    (root / name).unlink()
    put(root / name)
    with pytest.raises(StorageError, match=advice) as caught:
        PersistentQueue(root, mode="exclusive")
    assert str(root / name) in str(caught.value)
    assert "disk" not in str(caught.value)


def open_with_few_descriptors(root: Path) -> None:
    """Open queues until there are no descriptors left."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    with pytest.raises(StorageError, match="this process may have 40 files open"):
        _ = [PersistentQueue(root / str(number), mode="exclusive") for number in range(40)]


def test_a_process_that_has_too_many_files_open_is_told_its_limit(root: Path) -> None:
    """As the operating system has it."""
    with child(lambda: open_with_few_descriptors(root)) as opening:
        assert opening.wait() == 0


@pytest.mark.parametrize("mode", ["exclusive", "shared", "read_only"])
def test_a_queue_of_a_newer_version_is_left_alone(root: Path, mode: str) -> None:
    """UnsupportedVersionError says which version it has."""
    PersistentQueue(root, mode="exclusive").close()
    fields = json.loads((root / "queue.json").read_text())
    del fields["crc32c"]
    write_document(OsStorage(), root / "queue.json", fields | {"format": FORMAT_VERSION + 1})
    before = tree(root.parent)
    with pytest.raises(UnsupportedVersionError, match="newer Holdfast") as caught:
        PersistentQueue(root, mode=mode)
    assert caught.value.version == FORMAT_VERSION + 1
    assert tree(root.parent) == before


@pytest.mark.parametrize("mode", ["exclusive", "shared", "read_only"])
def test_a_symbolic_link_is_not_followed(root: Path, mode: str) -> None:
    """Who can place a link must not choose where the queue goes."""
    PersistentQueue(root.parent / "real", mode="exclusive").close()
    root.symlink_to(root.parent / "real")
    before = tree(root.parent)
    with pytest.raises(ConfigError, match="symbolic link"):
        PersistentQueue(root, mode=mode)
    assert tree(root.parent) == before


@pytest.mark.parametrize("name", ["write.lock", "write.mark", "queue.json"])
def test_a_symbolic_link_in_place_of_a_file_is_not_followed(root: Path, name: str) -> None:
    """Nothing is written to where it points."""
    PersistentQueue(root, mode="exclusive").close()
    target = root.parent / "target"
    target.write_bytes(b"precious")
    (root / name).unlink()
    (root / name).symlink_to(target)
    with pytest.raises(StorageError):
        PersistentQueue(root, mode="exclusive")
    assert target.read_bytes() == b"precious"


PARTS = ["data", "groups", "spare", "prepared", "groups/default"]
MODES = ["exclusive", "shared", "read_only"]


@pytest.fixture
def used(root: Path) -> Path:
    """Return a queue with all its parts: two messages, one of them taken."""
    with PersistentQueue(root, mode="exclusive") as queue:
        queue.put_many([b"one", b"two"])
        queue.get(timeout=0)
    (root / "prepared").mkdir(mode=0o700, exist_ok=True)
    return root


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_a_symbolic_link_is_refused_and_nothing_is_changed(used: Path, part: str, mode: str) -> None:
    """Files would be made or removed where it points; a link of another queue's data would show its messages."""
    target = used.parent / "target"
    (used / part).rename(target)
    (target / "0123456789abcdef-0000000064.staging").write_bytes(b"precious")
    (used / part).symlink_to(target)
    before = tree(used.parent)
    with pytest.raises(ConfigError, match=f"{part} is a symbolic link; move the directory it points to here"):
        PersistentQueue(used, mode=mode)
    assert tree(used.parent) == before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_a_file_is_refused_and_nothing_is_changed(used: Path, part: str, mode: str) -> None:
    """The error says what belongs there."""
    (used / part).rename(used.parent / "aside")
    (used / part).write_bytes(b"mine")
    before = tree(used.parent)
    with pytest.raises(ConfigError, match=f"{part} is a file; here belongs a directory"):
        PersistentQueue(used, mode=mode)
    assert tree(used.parent) == before


def test_a_link_in_a_directory_that_is_no_queue_yet_is_refused(root: Path) -> None:
    """Before anything is made where it points."""
    root.mkdir(mode=0o700)
    (root.parent / "target").mkdir()
    (root / "data").symlink_to(root.parent / "target")
    before = tree(root.parent)
    with pytest.raises(ConfigError, match="symbolic link"):
        PersistentQueue(root, mode="exclusive")
    assert tree(root.parent) == before


# -- Other users -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
@pytest.mark.parametrize("bits", [0o775, 0o770, 0o777, 0o1777, 0o702, 0o2770])
@pytest.mark.parametrize("part", ["", "data", "prepared", "groups/default"])
def test_a_directory_that_others_may_write_is_refused(used: Path, part: str, bits: int, mode: str) -> None:
    """The error says which one, and the command that takes it away; behind that the queue opens."""
    path = used / part if part else used
    path.chmod(bits)
    before = tree(used.parent)
    with pytest.raises(ConfigError, match="forge or remove messages") as caught:
        PersistentQueue(used, mode=mode)
    assert tree(used.parent) == before
    advice = str(caught.value).rpartition(": ")[2]
    assert advice == f"chmod go-w {path}"
    subprocess.run(advice.split(), check=True)
    PersistentQueue(used, mode="exclusive").close()


def test_a_directory_that_was_made_beforehand_for_a_whole_group_gets_the_right_advice(root: Path) -> None:
    """With a umask of 002, as some systems have it."""
    before = os.umask(0o002)
    try:
        root.mkdir()
        with pytest.raises(ConfigError, match=r"mode 0775.*chmod go-w"):
            PersistentQueue(root, mode="exclusive")
        assert not list(root.iterdir())
        root.chmod(0o755)
        PersistentQueue(root, mode="exclusive").close()
        modes = {path.stat().st_mode & 0o077 for path in root.rglob("*")}
    finally:
        os.umask(before)
    assert modes == {0}, "whatever the umask, what we make is ours alone"


@pytest.mark.parametrize("bits", [0o700, 0o755, 0o750, 0o2755])
def test_a_directory_that_others_may_only_read_is_opened(used: Path, bits: int) -> None:
    """So that another user may look."""
    used.chmod(bits)
    with PersistentQueue(used, mode="exclusive") as queue:
        assert queue.get(timeout=0) == b"two"


def test_who_only_looks_is_told_of_a_directory_that_others_may_write(
    used: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Looking changes nothing, so it continues."""
    PersistentQueue(used, mode="read_only").close()
    assert not caplog.records
    used.chmod(0o777)
    with PersistentQueue(used, mode="read_only") as queue:
        assert queue.peek()[0].payload == b"two"
    assert "can be written by other users" in caplog.text


def test_a_path_with_a_nul_is_refused(root: Path) -> None:
    """The operating system cannot even be asked."""
    with pytest.raises(ConfigError, match="NUL"):
        PersistentQueue(f"{root}\0x", mode="exclusive")


@pytest.mark.parametrize("path", [None, 5, b"bytes\xff", pytest.param(object(), id="object")], ids=repr)
def test_a_path_that_is_none_is_a_type_error(path: Any) -> None:
    """As everywhere in the standard library."""
    with pytest.raises(TypeError):
        PersistentQueue(path, mode="exclusive")


@pytest.mark.skipif(IS_ROOT, reason="root may write everywhere")
def test_a_directory_that_is_read_only_is_a_clear_error(root: Path) -> None:
    """Permission denied, with the path and what to check."""
    PersistentQueue(root, mode="exclusive").close()
    for path in (root, *root.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = tree(root.parent)
    try:
        with pytest.raises(StorageError, match="permissions"):
            PersistentQueue(root, mode="exclusive")
        assert tree(root.parent) == before
    finally:
        for path in (root, *root.rglob("*")):
            path.chmod(0o700)


def test_a_file_system_that_is_read_only_is_a_clear_error(root: Path) -> None:
    """For whoever owns or writes; the same through the storage port for every user."""

    class ReadOnly(OsStorage):
        """A storage whose every change is refused."""

        def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Any:
            if writable:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return super().open(path, create=create, writable=writable)

        def make_directory(self, path: Path) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with pytest.raises(StorageError, match="Read-only file system"):
        PersistentQueue(root, mode="exclusive", storage=ReadOnly())
    assert not root.exists()
    with PersistentQueue(root, mode="exclusive") as queue:
        queue.put(b"x")
    before = tree(root.parent)
    for mode in ("exclusive", "shared"):
        with pytest.raises(StorageError, match="Read-only file system"):
            PersistentQueue(root, mode=mode, storage=ReadOnly())
    assert tree(root.parent) == before


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a directory away")
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_directory_of_another_user_is_refused(root: Path, mode: str) -> None:
    """Files made by one user would lock the other out; the error names both."""
    PersistentQueue(root, mode="exclusive").close()
    os.chown(root, NOBODY, NOBODY)
    before = tree(root.parent)
    with pytest.raises(ConfigError, match=str(NOBODY)):
        PersistentQueue(root, mode=mode)
    assert tree(root.parent) == before


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a directory away")
def test_a_directory_of_another_user_can_be_looked_at(root: Path) -> None:
    """As far as its permissions allow; looking changes nothing."""
    with PersistentQueue(root, mode="exclusive") as queue:
        queue.put(b"x")
    os.chown(root, NOBODY, NOBODY)
    before = tree(root.parent)
    with PersistentQueue(root, mode="read_only") as queue:
        assert queue.peek()[0].payload == b"x"
    assert tree(root.parent) == before


def test_a_spare_file_that_the_disk_keeps_is_an_error_of_the_disk() -> None:
    """And a directory beside it is refused by name."""
    storage = SimulatedStorage()
    root = Path("/queue")
    PersistentQueue(root, mode="exclusive", storage=storage).close()
    storage.open(root / "spare" / "old.data", create=True).close()
    storage.faults = FaultPlan(2, verbs=frozenset({"remove"}))
    with pytest.raises(StorageError, match="check the disk"):
        PersistentQueue(root, mode="exclusive", storage=storage)
    storage.faults = None
    PersistentQueue(root, mode="exclusive", storage=storage).close()
    storage.make_directory(root / "spare" / "mine")
    with pytest.raises(ConfigError, match="spare/mine is a directory"):
        PersistentQueue(root, mode="exclusive", storage=storage)

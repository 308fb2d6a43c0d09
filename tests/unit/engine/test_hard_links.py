"""Copies made of hard links (``cp -al``): refused, because both would write into the same bytes."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from holdfast import PersistentQueue, StorageError, UnsupportedVersionError, verify
from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.filesystem.storage import OsFile, OsStorage
from holdfast.persistence.format.constants import HEADER_COPY_POSITIONS
from support.builders.segments import Segment

SMALL = 16 * 1024
MODES = ["exclusive", "shared"]


@pytest.fixture
def queue_path(tmp_path: Path) -> Path:
    """A closed queue with a message of each kind of file: of its log, its progress, its ids and its decisions."""
    root = tmp_path / "queue"
    with PersistentQueue(root, mode="exclusive", data_file_bytes=SMALL) as queue:
        queue.put_many([b"one", b"two", b"three"])
        queue.put(b"four", dedup_id="four")
        assert queue.get() == b"one"
        transaction = queue.begin()
        transaction.ack(transaction.receive())
        transaction.put(b"five")
        transaction.prepare("decided")
        transaction.commit()
        transaction = queue.begin()
        transaction.ack(transaction.receive())
        transaction.prepare("decided-here")
        transaction.commit()
    return root


def linked_copy(root: Path) -> Path:
    """Return a copy as ``cp -al`` makes it."""
    return Path(shutil.copytree(root, root.with_name("copy"), copy_function=os.link))


def content(root: Path) -> dict[str, bytes]:
    """Return the content of all files but those of owners and sessions."""
    paths = [path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file()]
    return {str(path): (root / path).read_bytes() for path in paths if path.parts[0] != ".owner"}


@pytest.mark.parametrize("mode", MODES)
def test_neither_a_linked_copy_nor_its_original_is_opened_for_writing(queue_path: Path, mode: str) -> None:
    """Both are left as they are, and may be looked at; the error says how to copy."""
    copy = linked_copy(queue_path)
    before = content(copy)
    for root in (copy, queue_path):
        with pytest.raises(StorageError, match=r"has a second name .* cp -a"):
            PersistentQueue(root, mode=mode)
        with PersistentQueue(root, mode="read_only") as queue:
            assert [message.payload for message in queue.peek(9)] == [b"four", b"five"]
        assert verify(root).ok
    assert content(copy) == content(queue_path) == before


def test_without_the_copy_the_original_is_opened_again(queue_path: Path) -> None:
    """And a copy made as the error says is a queue of its own."""
    linked = linked_copy(queue_path)
    copy = Path(shutil.copytree(queue_path, queue_path.with_name("copied")))
    shutil.rmtree(linked)
    with PersistentQueue(copy, mode="exclusive") as other:
        other.put(b"of the copy")
        with PersistentQueue(queue_path, mode="exclusive") as queue:
            assert queue.get_many(9) == [b"four", b"five"]
            queue.put(b"of the original")
        assert other.get_many(9) == [b"four", b"five", b"of the copy"]
    with PersistentQueue(queue_path, mode="exclusive") as queue:
        assert queue.get_many(9) == [b"of the original"]


@pytest.mark.parametrize(
    "name",
    [
        "write.mark",
        "dedup.ids",
        "prepared/decided",
        "groups/default/decided",
        "groups/default/next.position",
        "groups/default/*.position",
        "data/*.data",
    ],
)
def test_one_linked_file_that_is_changed_in_place_is_enough(queue_path: Path, tmp_path: Path, name: str) -> None:
    """A backup of that file alone would change with it."""
    path = max(path for path in queue_path.glob(name) if path.name != "next.position" or "next" in name)
    os.link(path, tmp_path / "backup")
    before = content(queue_path)
    with pytest.raises(StorageError, match="has a second name") as caught:
        PersistentQueue(queue_path, mode="exclusive")
    assert caught.value.path == str(path)
    assert content(queue_path) == before
    (tmp_path / "backup").unlink()
    PersistentQueue(queue_path, mode="exclusive").close()


def test_a_linked_segment_of_the_prepared_log_is_enough(queue_path: Path, tmp_path: Path) -> None:
    """What ends an entry is written into it."""
    directory, queue_id, _ = open_directory(OsStorage(), queue_path, create=False)
    segment = Segment(directory.prepared, 1, queue_id)
    segment.put(1)
    segment.write()
    os.link(segment.path, tmp_path / "backup")
    before = content(queue_path)
    with pytest.raises(StorageError, match="has a second name") as caught:
        PersistentQueue(queue_path, mode="exclusive")
    assert (caught.value.path, content(queue_path)) == (str(segment.path), before)
    with PersistentQueue(queue_path, mode="read_only") as look:
        assert [each.id for each in look.prepared()] == ["t1"]
    (tmp_path / "backup").unlink()
    with PersistentQueue(queue_path, mode="exclusive") as queue:
        assert [each.id for each in queue.prepared()] == ["t1"]


def test_a_segment_of_another_version_is_refused_before_anything_is_changed(queue_path: Path) -> None:
    """It is not damaged, so it is not repaired."""
    directory, queue_id, _ = open_directory(OsStorage(), queue_path, create=False)
    segment = Segment(directory.prepared, 1, queue_id)
    for position in HEADER_COPY_POSITIONS:
        segment.content[position + 8] = 9
    segment.write()
    before = content(queue_path)
    for mode in MODES:
        with pytest.raises(UnsupportedVersionError):
            PersistentQueue(queue_path, mode=mode)
    assert content(queue_path) == before


def test_files_that_are_never_changed_again_may_have_more_names(queue_path: Path, tmp_path: Path) -> None:
    """Documents are replaced, and data files before the last one are only read: a backup may link them."""
    with PersistentQueue(queue_path, mode="exclusive", data_file_bytes=SMALL) as queue:
        for _ in range(3):
            queue.put(bytes(9000))
    kept = [
        queue_path / "queue.json",
        queue_path / "groups/default/group.json",
        *sorted(queue_path.glob("data/*"))[:-1],
    ]
    for number, path in enumerate(kept):
        os.link(path, tmp_path / str(number))
    before = [(tmp_path / str(number)).read_bytes() for number in range(len(kept))]
    with PersistentQueue(queue_path, mode="exclusive", data_file_bytes=SMALL) as queue:
        assert len([queue.get() for _ in range(5)]) == 5
        for _ in range(4):
            queue.put(bytes(9000))
    assert [(tmp_path / str(number)).read_bytes() for number in range(len(kept))] == before


def test_a_copy_made_while_the_queue_is_open_is_never_written_into_by_what_uses_space_again(tmp_path: Path) -> None:
    """Spare data files and earlier position files that have got a second name are let go of instead."""
    root = tmp_path / "queue"
    with PersistentQueue(root, mode="exclusive", data_file_bytes=SMALL) as queue:
        for number in range(400):
            queue.put(b"%d" % number)
        for _ in range(6):
            queue.put(bytes(9000))
        while queue.qsize() > 1:
            queue.get()
        spare, earlier = sorted((root / "spare").iterdir()), sorted((root / "groups/default").glob("*.position"))[:-1]
        assert spare
        assert earlier
        for path in (*spare, *earlier):
            os.link(path, tmp_path / path.name)
        before = {path.name: (tmp_path / path.name).read_bytes() for path in (*spare, *earlier)}
        for number in range(400):
            queue.put(b"%d" % number)
        for _ in range(6):
            queue.put(bytes(9000))
        while queue.qsize():
            queue.get()
        assert {name: (tmp_path / name).read_bytes() for name in before} == before
        assert all((tmp_path / name).stat().st_nlink == 1 for name in before)
    PersistentQueue(root, mode="exclusive").close()


def test_a_file_that_gets_its_second_name_behind_the_look_is_refused_all_the_same(
    queue_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes in place looks again when the file is opened."""
    monkeypatch.setattr("holdfast.queue.engine.queue_handle.admit", lambda *_: None)
    for name in ("write.mark", "groups/default/*.position"):
        path = max(path for path in queue_path.glob(name) if path.name != "next.position")
        os.link(path, tmp_path / "backup")
        with pytest.raises(StorageError, match="has a second name"):
            PersistentQueue(queue_path, mode="exclusive")
        (tmp_path / "backup").unlink()


def test_a_disk_that_cannot_count_names_fails_the_roll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has happened; the next attempt may succeed."""
    with PersistentQueue(tmp_path / "queue", mode="exclusive", data_file_bytes=SMALL) as queue:
        queue.put(bytes(9000))
        with monkeypatch.context() as patch:
            patch.setattr(OsFile, "link_count", _refuse)
            with pytest.raises(StorageError):
                queue.put(bytes(9000))
        queue.close()
    with PersistentQueue(tmp_path / "queue", mode="exclusive", data_file_bytes=SMALL) as queue:
        queue.put(bytes(9000))


def _refuse(self: OsFile) -> int:
    raise OSError(5, "the disk refuses")


def test_the_progress_of_a_linked_copy_does_not_take_the_place_of_the_originals(tmp_path: Path) -> None:
    """Both would write their next position file, of one number, into one file: what one takes, the other never gets."""
    root = tmp_path / "queue"
    with PersistentQueue(root, mode="exclusive") as queue:
        queue.put(b"before")
        assert queue.get() == b"before"
    copy = linked_copy(root)
    with contextlib.suppress(StorageError), PersistentQueue(root, mode="exclusive") as queue:
        queue.put(b"confirmed")
    with contextlib.suppress(StorageError), PersistentQueue(copy, mode="exclusive") as queue:
        queue.put(b"of the copy")
        while queue.qsize():
            queue.get()
    shutil.rmtree(copy)
    with PersistentQueue(root, mode="exclusive") as queue:
        queue.put(b"confirmed later")
        assert queue.recovery.lost_count == 0
        assert queue.get_many(9) == [b"confirmed later"]

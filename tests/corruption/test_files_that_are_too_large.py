"""Small files that are large: nothing is allocated on the word of a size. Names with numbers out of range."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import ConfigError, CorruptionError, PersistentQueue, QueueService, StorageError, UsageError, verify
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem.document import read_document, write_document
from holdfast.persistence.filesystem.layout import list_data_files, list_generations, queue_directory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import ENTRY, FORMAT_VERSION, FRAME_PREFIX, FRAMES_START, STX
from holdfast.persistence.groups import position_file_writer
from holdfast.persistence.groups.pause_file import Pause, write_pause
from holdfast.persistence.segment.staged_file import staged_path
from holdfast.queue.protocol.messages import Put
from support.builders.settings import set_anew_if_lost
from support.owners.sides import owned_queue
from support.processes.log_handlers import text_said

SPARSE_BYTES = 3 * 2**30
LARGE_FRAME_BYTES = 2**29
PEAK_BYTES_MAX = 48 * 2**20
FILE_BYTES = 16 * 1024
LEFT = [b"two", b"three"]


@contextmanager
def little_memory() -> Iterator[None]:
    """Fail where the block takes much."""
    tracemalloc.start()
    try:
        yield
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < PEAK_BYTES_MAX, f"{peak_bytes} bytes"


def grow(path: Path) -> None:
    """Make a file as large as nothing of its kind is; it takes no room."""
    with path.open("ab") as file:
        file.truncate(SPARSE_BYTES)


def opened(root: Path) -> PersistentQueue:
    """Open the queue to write and to read."""
    return PersistentQueue(root, mode="exclusive", data_file_bytes=FILE_BYTES)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a closed queue of three messages, one of them taken."""
    path = tmp_path / "queue"
    with opened(path) as queue:
        queue.put_many([b"one", *LEFT])
        queue.get(timeout=0)
    return path


def test_a_queue_json_that_is_too_large_is_rebuilt_from_a_data_file(root: Path) -> None:
    """As any damaged one."""
    grow(root / "queue.json")
    with little_memory():
        assert "that such a file may have" in str(verify(root))
        queue, rebuilt = set_anew_if_lost(root, OsStorage(), lambda: opened(root))
        with queue:
            assert queue.get_many(10, timeout=0) == LEFT
    assert rebuilt == root / "queue.json"
    assert (root / "queue.json").stat().st_size < 1000


def test_a_group_json_that_is_too_large_is_rebuilt_and_reported(root: Path) -> None:
    """As any damaged one: the position files know what the group has done."""
    grow(root / "groups" / "default" / "group.json")
    with little_memory():
        assert not verify(root).ok
        queue, rebuilt = set_anew_if_lost(root, OsStorage(), lambda: opened(root))
        with queue:
            assert queue.get_many(10, timeout=0) == LEFT
    assert rebuilt == root / "groups" / "default" / "group.json"


def test_a_pause_json_that_is_too_large_is_a_pause_without_end(root: Path) -> None:
    """As any damaged one: nothing is handed out that somebody has held back."""
    pause = root / "groups" / "default" / "pause.json"
    pause.touch()
    grow(pause)
    with little_memory(), opened(root) as queue:
        assert "damaged" in (queue.stats().paused or "")
        queue.resume()
        assert queue.get_many(10, timeout=0) == LEFT


def test_a_joint_json_that_is_too_large_refuses_joint_commits(root: Path) -> None:
    """As any damaged one."""
    (root / "prepared").mkdir(mode=0o700)
    joint = root / "prepared" / "joint.json"
    joint.touch()
    grow(joint)
    with little_memory(), pytest.raises(CorruptionError, match="restore it"), opened(root) as queue:
        queue.joint_commits.latest("app")


def test_a_ring_of_ids_that_is_too_large_is_forgotten_and_made_anew(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the last data file the ids are read from the messages that count, where it was not closed in order."""
    with opened(root) as queue:
        queue.put(b"four", dedup_id="a")
    grow(root / "dedup.ids")
    with little_memory(), opened(root) as queue:
        queue.put(b"five", dedup_id="b")
        assert queue.put(b"five", dedup_id="b") == 4
    assert "ids in it are forgotten" in text_said(caplog)
    assert (root / "dedup.ids").stat().st_size < 2**23
    with opened(root) as queue:
        assert queue.put(b"five", dedup_id="b") == 4


def test_a_ring_of_ids_that_is_larger_than_was_asked_for_is_read_piece_by_piece(root: Path) -> None:
    """Its slots say by their number where they belong."""
    with PersistentQueue(root, mode="exclusive", data_file_bytes=FILE_BYTES, dedup_max=100_000) as queue:
        for number in range(3):
            queue.put(b"x", dedup_id=str(number))
    with (
        little_memory(),
        PersistentQueue(root, mode="exclusive", data_file_bytes=FILE_BYTES, dedup_max=100_000) as queue,
    ):
        assert queue.put(b"x", dedup_id="1") == 4


def test_a_position_file_that_is_too_large_is_damage_and_the_one_before_counts(root: Path) -> None:
    """Better twice than never."""
    group = root / "groups" / "default"
    (last,) = list_generations(OsStorage(), group)[-1:]
    grow(group / f"{last:010d}.position")
    with little_memory():
        assert "no position file is larger" in str(verify(root))
        with PersistentQueue(root, mode="read_only") as queue:
            assert [message.payload for message in queue.peek(10)] == [b"one", *LEFT]
        with opened(root) as queue:
            assert queue.recovery.progress_damage
            assert queue.get_many(10, timeout=0) == [b"one", *LEFT]
    assert max(path.stat().st_size for path in group.iterdir()) == SPARSE_BYTES
    opened(root).close()
    with opened(root) as queue:
        assert not queue.recovery.progress_damage
    assert max(path.stat().st_size for path in group.iterdir()) < 2**20, "what is used again is cut"


def test_a_large_position_file_is_read_piece_by_piece(root: Path) -> None:
    """Its room costs no memory."""
    group = root / "groups" / "default"
    (last,) = list_generations(OsStorage(), group)[-1:]
    os.truncate(group / f"{last:010d}.position", 200 * 2**20)
    with little_memory():
        assert verify(root).ok
        with opened(root) as queue:
            assert queue.get_many(10, timeout=0) == LEFT


@pytest.mark.parametrize("stx", [STX, STX + 1])
def test_a_staged_batch_with_a_frame_of_half_a_gigabyte_that_is_none_costs_no_memory(root: Path, stx: int) -> None:
    """A frame is verified before all of it is read; it is refused, and other requests are done."""
    nonce, session = bytes(15) + b"1", 1
    (root / "prepared").mkdir(mode=0o700, exist_ok=True)
    path = staged_path(queue_directory(root), nonce)
    with owned_queue(OsStorage(), root, SystemClock()) as owner:
        data_file = next((root / "data").iterdir()).read_bytes()
        path.write_bytes(data_file[:FRAMES_START] + FRAME_PREFIX.pack(stx, LARGE_FRAME_BYTES, 7) + bytes(100))
        os.truncate(path, FRAMES_START + LARGE_FRAME_BYTES + 100)
        with little_memory(), pytest.raises(CorruptionError):
            owner.append(session, Put(nonce, True, "", {}, 0, is_staged=True), ())
        assert owner.append(session, Put(bytes(15) + b"2", True, "", {}, 0), (b"four",)) == (range(3, 4), True)
    with opened(root) as queue:
        assert queue.get_many(10, timeout=0) == [*LEFT, b"four"]


def test_a_large_frame_is_verified_in_pieces_and_then_read(tmp_path: Path) -> None:
    """One that was put counts, and one that rots is damage."""
    root = tmp_path / "queue"
    size = 40 * 2**20
    with PersistentQueue(root, mode="exclusive", record_bytes_max=2 * size, data_file_bytes=2 * size + 2**20) as queue:
        queue.put(bytes(size))
    assert verify(root).message_count == 1
    (path,) = (root / "data").iterdir()
    with path.open("r+b") as file:
        file.seek(FRAMES_START + size // 2)
        file.write(b"?")
    assert "the checksum does not match" in str(verify(root))


def test_a_note_of_a_dead_letter_that_is_too_large_says_nothing(root: Path) -> None:
    """As one that is missing. What is written is cut, so that it can be read."""
    with opened(root) as queue:
        queue.receive(timeout=0).reject("no use " * 1_000_000)
        (letter,) = queue.dead.list()
        assert letter.detail.startswith("no use")
        assert len(letter.detail) == 5000
        (note,) = (root / "groups" / "default").glob("dead-*.json")
        grow(note)
        with little_memory():
            (letter,) = queue.dead.list()
        assert letter.detail == ""


def test_the_reason_of_a_pause_is_cut_so_that_it_can_be_read_again(root: Path) -> None:
    """The longest one comes back, with its characters that take most."""
    group = root / "groups" / "default"
    write_pause(OsStorage(), group, Pause(None, "\U0001f512" * 100_000))
    with opened(root) as queue:
        assert "\U0001f512" in (queue.stats().paused or "")


def test_a_document_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    """Whoever writes it is told."""
    path = tmp_path / "group.json"
    with pytest.raises(StorageError, match="nothing was written"):
        write_document(OsStorage(), path, {"format": FORMAT_VERSION, "much": "x" * 100_000})
    assert not path.exists()
    write_document(OsStorage(), path, {"format": FORMAT_VERSION, "much": "x" * 100_000}, 200_000)
    assert len(read_document(OsStorage(), path, 200_000)["much"]) == 100_000


def test_a_request_that_no_owner_would_read_is_not_made(root: Path) -> None:
    """Who asks is told at once, and asks for less."""
    with PersistentQueue(root, mode="shared") as owner, PersistentQueue(root, mode="shared") as client:
        with pytest.raises(UsageError, match="ask for less at a time"):
            client.dead.retry(range(1_000_000))
        assert client.dead.retry(range(1000)) == 0
        assert owner.get_many(10, timeout=0) == LEFT


def test_progress_that_no_position_file_holds_is_an_error_that_says_what_to_do(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would never be read again."""
    monkeypatch.setattr(position_file_writer, "POSITION_FILE_BYTES_LIMIT", FRAMES_START + ENTRY.size)
    with pytest.raises(StorageError, match="acknowledge what was delivered"):
        opened(root)


def test_a_holdfast_toml_that_is_too_large_is_a_clear_error(tmp_path: Path) -> None:
    """A file of 3 GB was not written by a person."""
    directory = tmp_path / "service"
    directory.mkdir(mode=0o700)
    config = directory / "holdfast.toml"
    config.touch()
    grow(config)
    with little_memory(), pytest.raises(ConfigError, match="that such a file may have"):
        QueueService(directory)


def test_other_small_files_that_are_large_cost_no_memory(root: Path) -> None:
    """Of these only the start is read, whatever their size."""
    (root / "prepared").mkdir(mode=0o700)
    for name in ("write.mark", "write.lock", "groups/default/read.lock", "prepared/decided", "priorities"):
        (root / name).touch()
        grow(root / name)
    with little_memory(), opened(root) as queue:
        assert queue.get_many(10, timeout=0) == LEFT


# -- Names -----------------------------------------------------------------------------------------------------------

STRANGE = [
    f"{9:010d}-{2**64:020d}.data",
    f"{9:010d}-{2**63:020d}.data",
    f"{2**63:010d}-{9:020d}.data",
    "9" * 200 + f"-{9:020d}.data",
    f"{9:012d}-{9:020d}.data",
    "\u0669" * 10 + f"-{9:020d}.data",
]


@pytest.mark.parametrize("name", STRANGE, ids=ascii)
def test_a_name_with_numbers_that_no_queue_reaches_is_no_data_file(root: Path, name: str) -> None:
    """It is left alone, and verify says that it is there."""
    strange = root / "data" / name
    strange.write_bytes(b"what")
    assert f"{name} is not a data file" in str(verify(root).notes)
    with opened(root) as queue:
        assert queue.recovery.clean
        assert queue.put(b"four") == 3
        assert queue.get_many(10, timeout=0) == [*LEFT, b"four"]
    assert strange.read_bytes() == b"what"
    assert len(list_data_files(OsStorage(), queue_directory(root))) == 1


@pytest.mark.parametrize("name", [f"{2**64:010d}.position", "9" * 200 + ".position", f"{9:012d}.position"])
def test_a_name_with_a_generation_that_no_group_reaches_is_no_position_file(root: Path, name: str) -> None:
    """It is left alone."""
    strange = root / "groups" / "default" / name
    strange.write_bytes(b"what")
    assert verify(root).ok
    with opened(root) as queue:
        assert not queue.recovery.progress_damage
        assert queue.get_many(10, timeout=0) == LEFT
    assert strange.read_bytes() == b"what"


@pytest.mark.parametrize("pid", ["Infinity", "9" * 400, '"x"', "[]"])
def test_a_note_in_a_lock_file_that_is_none_says_nothing(root: Path, pid: str) -> None:
    """Nothing depends on it."""
    with opened(root):
        (root / "write.lock").write_bytes((f'{{"pid": {pid}, "host": "h"}}').encode().ljust(512))
        with pytest.raises(Exception, match="write side") as caught:
            PersistentQueue(root, mode="exclusive", lock_timeout=0)
    assert json.dumps(str(caught.value))

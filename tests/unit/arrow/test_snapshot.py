"""Planning a read: what is pinned, what is missing, and how little is looked at."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    FlushPolicy,
    GroupNotFoundError,
    PersistentQueue,
    QueueNotFoundError,
    StorageError,
    UnsupportedVersionError,
)
from holdfast.arrow.reading.file_range_reader import FileRangeReader
from holdfast.arrow.reading.partitions import pack
from holdfast.arrow.reading.selection import Selection
from holdfast.arrow.reading.snapshot import take_snapshot
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory, open_directory
from holdfast.persistence.filesystem.storage import OsFile, OsStorage
from holdfast.persistence.format.constants import ENTRY, ENTRY_DONE, FRAMES_START
from holdfast.persistence.format.file_header import PositionFileHeader, block_copies
from holdfast.persistence.groups.position_entry import NO_HINT, Change, decode_entry, encode_entry, run_flags
from holdfast.persistence.log.watermark import Watermark
from support.arrow.range_rows import read_parts
from support.builders.small_queues import SmallQueue, build, tiny_files_allowed

FILES = 10_000
PER_FILE = 100


class ManyFilesStorage(OsStorage):
    """The operating system's storage, with thousands of data files that are only names; counts what is opened."""

    def __init__(self) -> None:
        self.opened: Counter[str] = Counter()

    def list(self, path: Path) -> list[str]:
        if path.name != "data":
            return super().list(path)
        return [str(DataFileName(number, (number - 1) * PER_FILE)) for number in range(1, FILES + 1)]

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        self.opened[path.suffix] += 1
        return super().open(path, create=create, writable=writable)


@pytest.fixture
def queue(tmp_path: Path) -> SmallQueue:
    """Return a closed queue of three data files on the disk, three of whose messages were taken."""
    return build(tmp_path / "queue", OsStorage(), taken_count=3)


def plan(queue: SmallQueue, **options: Any) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Return sequence and wanted runs of each part of a read."""
    parts = take_snapshot(queue.storage, Selection(queue.root, **options)).parts
    return [(part.name.sequence, part.wanted) for part in parts]


def test_a_plan_names_every_message_once(queue: SmallQueue) -> None:
    """Each file from its first message to the first one of the next."""
    wanted = [offset for _, runs in plan(queue) for run in runs for offset in range(*run)]
    assert wanted == list(range(queue.put_count))


def test_one_listing_in_the_middle_of_a_merge_is_no_loss(queue: SmallQueue) -> None:
    """It may have neither the merged file, nor what that has replaced: the next one has it."""

    class Torn(OsStorage):
        """Its first listing lacks the second file."""

        is_torn = True

        def list(self, path: Path) -> list[str]:
            names = sorted(super().list(path))
            if path.name != "data" or not self.is_torn:
                return names
            self.is_torn = False
            return [name for name in names if not name.startswith("0000000002-")]

    taken = take_snapshot(Torn(), Selection(queue.root, group="default"))
    assert [part.name.sequence for part in taken.parts] == [1, 2, 3]
    assert taken.missing == []
    pytest.importorskip("pyspark")
    from holdfast.spark.streaming.log import StreamLog

    log = StreamLog.look(Torn(), queue.root)
    assert log.between(0, log.end)[1] == ()


def test_offsets_bound_a_plan(queue: SmallQueue) -> None:
    """Files outside of them are not in it."""
    wanted = [offset for _, runs in plan(queue, offset_start=4, offset_end=6) for run in runs for offset in range(*run)]
    assert wanted == [4, 5]
    assert plan(queue, offset_start=queue.put_count) == []


def test_a_group_wants_what_it_has_not_finished(queue: SmallQueue) -> None:
    """Out of order too."""
    with queue.open() as opened:
        first, second, third = (opened.receive(timeout=0) for _ in range(3))
        second.ack()
        first.release()
        third.release()
    wanted = [offset for _, runs in plan(queue, group="default") for run in runs for offset in range(*run)]
    assert wanted == [offset for offset in queue.waiting if offset != 4]


def test_a_group_does_not_want_its_dead_letters(queue: SmallQueue) -> None:
    """They wait for a person."""
    with queue.open() as opened:
        opened.receive(timeout=0).reject("no such customer")
    wanted = [offset for _, runs in plan(queue, group="default") for run in runs for offset in range(*run)]
    assert wanted == [offset for offset in queue.waiting if offset != 3]


def test_a_group_that_has_not_begun_wants_everything(tmp_path: Path) -> None:
    """The default group begins when it is first used."""
    with PersistentQueue(tmp_path / "queue", mode="exclusive") as producer:
        producer.put_many([b"a", b"b"])
        snapshot = take_snapshot(OsStorage(), Selection(tmp_path / "queue", group="default"))
        assert [part.wanted for part in snapshot.parts] == [((0, 2),)]


def test_what_is_named_has_to_exist(queue: SmallQueue, tmp_path: Path) -> None:
    """A queue, a group."""
    with pytest.raises(GroupNotFoundError, match="nightly"):
        plan(queue, group="nightly")
    with pytest.raises(QueueNotFoundError):
        take_snapshot(OsStorage(), Selection(tmp_path / "nothing"))


def test_a_queue_that_was_never_written_to_is_empty(tmp_path: Path) -> None:
    """There is neither a data file nor a mark."""
    PersistentQueue(tmp_path / "queue", mode="exclusive").close()
    (tmp_path / "queue" / "write.mark").unlink(missing_ok=True)
    for path in (tmp_path / "queue" / "data").iterdir():
        path.unlink()
    assert take_snapshot(OsStorage(), Selection(tmp_path / "queue")).parts == []


def test_a_mark_that_does_not_verify_is_an_error_and_no_empty_table(queue: SmallQueue) -> None:
    """Nobody knows then how far may be read."""
    queue.flip(queue.root / "write.mark", 40)
    with pytest.raises(StorageError, match="open the queue once"):
        plan(queue)
    queue.open().close()
    assert plan(queue)


def test_what_is_behind_the_mark_is_not_read(queue: SmallQueue) -> None:
    """A file that another process has begun since then is not known to hold whole commits."""
    before = read_parts(queue.storage, queue.root)
    mark = queue.read(queue.root / "write.mark")
    with queue.open() as opened:
        opened.put(b"later")
    assert read_parts(queue.storage, queue.root)[0] == {**before[0], queue.put_count: b"later"}
    queue.write(queue.root / "write.mark", mark)
    assert read_parts(queue.storage, queue.root) == before


def test_a_file_that_is_gone_and_unfinished_is_missing(queue: SmallQueue) -> None:
    """Its offsets are named; the rest is read."""
    lost = plan(queue)[1][1][0]
    queue.storage.remove(queue.data_files()[1])
    found, losses = read_parts(queue.storage, queue.root)
    assert [(damage.offsets, damage.reason) for damage in losses] == [(range(*lost), "a data file is missing")]
    assert sorted(found) == [offset for offset in range(queue.put_count) if offset not in range(*lost)]


def test_files_that_were_retired_are_not_missing(queue: SmallQueue) -> None:
    """Every group has finished them."""
    with tiny_files_allowed(), queue.open() as opened:
        for _ in queue.waiting:
            opened.get(timeout=0)
    snapshot = take_snapshot(queue.storage, Selection(queue.root))
    assert snapshot.missing == []
    assert len(snapshot.parts) < 3


def test_ten_thousand_files_are_planned_from_their_names(tmp_path: Path) -> None:
    """Nothing but the mark, the identity of the queue and its groups is opened."""
    PersistentQueue(tmp_path / "queue", mode="exclusive").close()
    mark = Watermark(
        queue_id=open_directory(OsStorage(), tmp_path / "queue", create=False)[1],
        file_id=bytes(16),
        sequence=FILES,
        first_offset=(FILES - 1) * PER_FILE,
        written=FRAMES_START,
        written_count=PER_FILE,
        synced=FRAMES_START,
        synced_count=PER_FILE,
        redo=0,
        timestamp_ns=0,
        synced_only=True,
    )
    (tmp_path / "queue" / "write.mark").write_bytes(mark.encode())
    storage = ManyFilesStorage()
    parts = take_snapshot(storage, Selection(tmp_path / "queue")).parts
    assert len(parts) == FILES
    assert parts[-1].wanted == (((FILES - 1) * PER_FILE, FILES * PER_FILE),)
    assert sum(storage.opened.values()) < 10
    assert not storage.opened[".data"]


def test_small_files_share_a_task_and_a_large_one_is_cut(tmp_path: Path) -> None:
    """Cut where its seal knows messages to start; every message is in one task."""
    payloads = [b"%06d" % number * 200 for number in range(4000)]
    with PersistentQueue(
        tmp_path / "queue", mode="exclusive", data_file_bytes=2 * 2**20, flush=FlushPolicy.never()
    ) as opened:
        for start in range(0, 4000, 20):
            opened.put_many(payloads[start : start + 20])
    storage = OsStorage()
    options = Selection(tmp_path / "queue")
    snapshot = take_snapshot(storage, options)
    queues = [(snapshot.root, snapshot.parts)]
    assert len(pack(storage, queues, 2**30)) == 1
    tasks = [parts for ((_, parts),) in pack(storage, queues, 2**18)]
    assert [part.name.sequence for task in tasks for part in task] == [1, *4 * [2], *7 * [3], 4]
    wanted = [offset for task in tasks for part in task for run in part.wanted for offset in range(*run)]
    assert wanted == list(range(4000))
    assert [number for number, (part,) in enumerate(tasks) if not part.position] == [0, 1, 5, 12]
    read = {}
    for part in (part for task in tasks for part in task):
        path = QueueDirectory(snapshot.root).data_file(part.name)
        for walked in FileRangeReader(storage, path, snapshot.queue_id, part, lambda damage: None).walked():
            read.update(zip(walked.offsets, walked.bounds[1::2], strict=True))
    assert list(read) == wanted


@pytest.mark.parametrize(("task_count_min", "task_count"), [(1, 1), (2, 2), (3, 3), (100, 3)])
def test_so_many_tasks_are_made_that_all_processors_work(tmp_path: Path, task_count_min: int, task_count: int) -> None:
    """Of 16 MB in two sealed files, from the middle of the one into that of the other; but none is below 4 MiB."""
    with PersistentQueue(
        tmp_path / "queue", mode="exclusive", data_file_bytes=16 * 2**20, flush=FlushPolicy.never()
    ) as opened:
        for start in range(0, 20_000, 500):
            opened.put_many([b"%08d" % number * 250 for number in range(start, start + 500)])
    storage = OsStorage()
    selection = Selection(tmp_path / "queue", offset_start=5000, offset_end=13_000)
    snapshot = take_snapshot(storage, selection)
    assert len(snapshot.parts) == 2
    packed = pack(storage, [(snapshot.root, snapshot.parts)], 2**30, task_count_min)
    tasks = [parts for ((_, parts),) in packed]
    counts = [sum(end - first for part in task for first, end in part.wanted) for task in tasks]
    assert len(tasks) == task_count
    assert sum(counts) == 8000
    assert min(counts) >= 0.6 * 8000 / task_count
    wanted = [offset for task in tasks for part in task for run in part.wanted for offset in range(*run)]
    assert wanted == list(range(5000, 13_000))


def test_progress_that_speaks_of_messages_where_no_log_comes_takes_none_of_them_away(queue: SmallQueue) -> None:
    """An entry with a right checksum and an absurd count is ignored, as by every other reader."""
    path = queue.position_files()[-1]
    data = queue.read(path)
    header = PositionFileHeader.decode(block_copies(data), str(path))
    number = 0
    while decode_entry(data, FRAMES_START + number * ENTRY.size, header.salt, number) is not None:
        number += 1
    absurd = Change(ENTRY_DONE, 0, 2**40, NO_HINT)
    entry = encode_entry(header.salt, absurd, number, run_flags(0, 1), 0, number, header.generation)
    before = plan(queue, group="default")
    queue.patch(path, FRAMES_START + number * ENTRY.size, entry)
    assert plan(queue, group="default") == before != []


@pytest.mark.parametrize("name", ["v1", "joint-v1"])
def test_a_queue_of_an_earlier_format_version_is_refused(name: str) -> None:
    """Neither an empty table nor a loss: the error says what to do."""
    root = Path(__file__).parents[2] / "compat" / name
    with pytest.raises(UnsupportedVersionError, match="drain the queue with the Holdfast that wrote it"):
        take_snapshot(OsStorage(), Selection(root))

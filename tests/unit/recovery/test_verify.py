"""``verify`` walks a whole queue, changes nothing, and never cries wolf."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import ConfigError, Empty, FlushPolicy, PersistentQueue, QueueNotFoundError, StorageError, verify
from holdfast.persistence.filesystem.layout import data_file_name, list_data_files, list_replaced_files
from holdfast.persistence.format.constants import FRAMES_START, KIND_SEAL
from holdfast.persistence.format.file_header import block_buffers
from holdfast.persistence.format.report import Damage, VerifyReport, merged
from holdfast.persistence.format.seal import Seal
from holdfast.queue.inspect.groups import Groups
from support.builders.log_parts import LogParts, frame, put
from support.builders.merges import LIVE, compact, finish_all_but, with_log
from support.builders.small_queues import FILE_BYTES, SmallQueue, build, drain, payload, tiny_files_allowed
from support.builders.transactions import ORDERS, open_queue
from support.owners.sides import owned_queue
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture(autouse=True)
def tiny_files() -> Iterator[None]:
    """The queues have such files, and say so."""
    with tiny_files_allowed():
        yield


@pytest.fixture
def queue() -> SmallQueue:
    """Return a closed queue of three data files."""
    return build(Path("/queue"), SimulatedStorage(), taken_count=3)


def test_a_sound_queue_is_ok_and_counted(queue: SmallQueue) -> None:
    """Every file, frame and message: two seals and a mark of a clean close beside the messages."""
    report = queue.verify()
    assert report.ok
    assert (report.file_count, report.message_count) == (3, queue.put_count)
    assert report.frame_count == queue.put_count + 3
    assert (report.damage, report.lost, report.lost_count, report.torn_bytes, report.notes) == ((), (), 0, 0, ())
    assert str(report).startswith("ok: 3 data files")


def test_verifying_takes_no_lock_and_changes_nothing(queue: SmallQueue) -> None:
    """Damaged or not, owned or not."""
    queue.flip(queue.data_files()[1], FRAMES_START + 40)
    with queue.open():
        assert isinstance(queue.storage, SimulatedStorage)
        before = queue.storage.mutation_count
        assert not queue.verify().ok
        assert queue.storage.mutation_count == before


def test_a_new_queue_and_one_that_was_never_used_are_ok() -> None:
    """Nothing is there, and nothing is missing."""
    storage = SimulatedStorage()
    with PersistentQueue("/queue", mode="exclusive", storage=storage):
        assert verify("/queue", storage=storage).ok
    assert verify("/queue", storage=storage) == verify(Path("/queue"), storage=storage)


def test_no_queue_is_an_error(tmp_path: Path) -> None:
    """Nothing is made at a path that somebody mistyped."""
    with pytest.raises(QueueNotFoundError):
        verify(tmp_path / "nothing")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="is a file"):
        verify(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_killed_queue_is_ok(queue: SmallQueue) -> None:
    """What was never closed is no damage; what waits to be made durable is noted."""
    with queue.open() as handle:
        handle.put(b"new")
        storage = queue.storage
        assert isinstance(storage, SimulatedStorage)
        killed = SmallQueue(queue.root, storage.crash_keeping_all(), queue.put_count + 1, 3)
    report = killed.verify()
    assert report.ok
    assert report.message_count == killed.put_count


def test_a_torn_tail_is_counted_apart_from_damage(parts: LogParts) -> None:
    """It was never acknowledged."""
    good = frame(parts.header(), b"good", 0)
    parts.data_file([good, frame(parts.header(), b"torn", 1)[:-1] + b"?"], behind=bytes(200))
    report = verify(parts.directory.root, storage=parts.storage)
    assert report.ok
    assert (report.message_count, report.torn_bytes) == (1, 36)
    assert any("1 messages wait" in note for note in report.notes)
    assert "torn tail: 36 bytes" in str(report)


def test_every_place_is_reported_and_the_lost_ranges_are_merged(queue: SmallQueue) -> None:
    """Two neighbours and one apart."""
    path = queue.data_files()[1]
    first = queue.header(path).first_offset
    positions = [each.position for each in queue.frames(path)]
    for number in (1, 2, 4):
        queue.flip(path, positions[number] + 6)
    report = queue.verify()
    assert report.lost == (range(first + 1, first + 3), range(first + 4, first + 5))
    assert report.lost_count == 3
    assert "damaged" in str(report)


def test_files_that_all_groups_have_finished_are_not_missed(queue: SmallQueue) -> None:
    """Retiring is normal, wherever the file stood."""
    with queue.open() as handle:
        pinned = handle.receive(timeout=0)
        while True:
            try:
                handle.get_many(100, timeout=0)
            except Empty:
                break
        assert handle.stats().file_count == 2
        pinned.nack()
    assert queue.verify().ok


def test_a_file_that_one_group_still_needs_is_missed(queue: SmallQueue) -> None:
    """Though another one has finished it; what nobody needs is not lost."""
    with queue.open() as handle:
        handle.groups.create("slow")
        while handle.qsize():
            handle.get_many(100, timeout=0)
    first, second = (queue.header(path).first_offset for path in queue.data_files()[1:])
    queue.storage.remove(queue.data_files()[1])
    assert queue.verify().lost == (range(first, second),)


@pytest.mark.parametrize(
    ("seal", "reason"),
    [
        (Seal(3, 0, 2**63, ()), "3 messages instead of 2"),
        (Seal(2, 0, 2**63, ((1, FRAMES_START),)), "positions of other frames"),
        (Seal(2, 0, 2**63, ((9, FRAMES_START),)), "positions of other frames"),
        (Seal(2, 2**63, 2**63, ()), "timestamps"),
        (Seal(2, 0, 0, ()), "timestamps"),
    ],
)
def test_a_seal_that_says_something_else_than_the_file_is_damage(parts: LogParts, seal: Seal, reason: str) -> None:
    """Its checksum is good, but it would mislead whoever trusts it."""
    header = parts.header()
    frames = [frame(header, b"a", 0), frame(header, b"b", 1), frame(header, seal.encode(), 2, kind=KIND_SEAL)]
    parts.data_file(frames)
    parts.data_file([], header=parts.header(2, 2, FRAMES_START + sum(map(len, frames))))
    report = verify(parts.directory.root, storage=parts.storage)
    assert [len(damage.offsets) for damage in report.damage] == [0]
    assert reason in str(report)


def test_a_seal_that_cannot_be_read_is_damage(parts: LogParts) -> None:
    """A frame of that kind with something else in it."""
    header = parts.header()
    frames = [frame(header, b"a", 0), frame(header, b"no seal", 1, kind=KIND_SEAL)]
    parts.data_file(frames)
    parts.data_file([], header=parts.header(2, 1, FRAMES_START + sum(map(len, frames))))
    assert "the seal cannot be read" in str(verify(parts.directory.root, storage=parts.storage))


def test_bytes_behind_the_accepted_end_of_a_file_are_void(parts: LogParts) -> None:
    """The next header says where the file ends: what stands behind was never part of the log."""
    header = parts.header()
    good = frame(header, b"a", 0)
    parts.data_file([good, frame(header, b"dropped", 1)])
    parts.data_file([], header=parts.header(2, 1, FRAMES_START + len(good)))
    report = verify(parts.directory.root, storage=parts.storage)
    assert report.ok
    assert report.message_count == 1


def test_a_file_with_more_messages_than_its_successor_leaves_room_for_is_damage(parts: LogParts) -> None:
    """Two files would hold the same offsets."""
    header = parts.header()
    frames = [frame(header, b"a", 0), frame(header, b"b", 1)]
    parts.data_file(frames)
    parts.data_file([], header=parts.header(2, 1, FRAMES_START + sum(map(len, frames))))
    assert "holds 2 messages where 1 should be" in str(verify(parts.directory.root, storage=parts.storage))


def test_a_frame_out_of_order_is_damage(parts: LogParts) -> None:
    """Indexes are contiguous: what is missing between two good frames is lost."""
    header = parts.header()
    frames = [frame(header, b"a", 0), frame(header, b"d", 3)]
    parts.data_file(frames)
    parts.data_file([], header=parts.header(2, 4, FRAMES_START + sum(map(len, frames))))
    report = verify(parts.directory.root, storage=parts.storage)
    assert report.lost == (range(1, 3),)
    assert "index 3 is in the place of 1" in str(report)


@pytest.mark.parametrize(
    "policy", [FlushPolicy.every_commit(), FlushPolicy.never(), FlushPolicy.every(commits=10, seconds=0.01)], ids=str
)
def test_a_queue_in_use_is_never_reported_as_damaged(tmp_path: Path, policy: FlushPolicy) -> None:
    """Two producers and a consumer race through hundreds of tiny files while it is verified again and again."""
    queue = PersistentQueue(tmp_path / "queue", mode="exclusive", data_file_bytes=FILE_BYTES, flush=policy)
    stop = threading.Event()

    def produce() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            queue.put(payload(number % 50))
            queue.put_many([b"batch"] * (number % 6))
            if queue.qsize() > 300:
                stop.wait(0.002)

    def consume() -> None:
        while not stop.is_set():
            try:
                queue.get_many(40, timeout=0.05)
                with queue.receive(timeout=0.05):
                    pass
            except Empty:
                pass

    threads = [threading.Thread(target=work) for work in (produce, produce, consume)]
    for thread in threads:
        thread.start()
    try:
        reports = [verify(queue.path)]
        while len(reports) < 40 or queue.stats().next_offset < 400:
            reports.append(verify(queue.path))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        queue.close()
    assert [str(report) for report in reports if not report.ok] == []
    assert max(report.file_count for report in reports) > 0
    assert verify(queue.path).ok


def test_ranges_are_merged_where_they_touch_or_overlap() -> None:
    """In any order, and without empty ones."""
    ranges = [range(5, 7), range(0, 2), range(2, 3), range(9, 9), range(6, 10), range(20, 21)]
    assert merged(ranges) == (range(3), range(5, 10), range(20, 21))
    assert merged([]) == ()


def test_a_report_reads_in_one_look() -> None:
    """What is lost, where, and what else there is to know."""
    damage = Damage(Path("/q/data/x"), 5000, 60, range(7, 9), "damaged", "the checksum does not match")
    report = VerifyReport(1, 2, 3, (damage,), (range(7, 9),), 12, ("something",))
    text = str(report)
    for part in ("damaged: 1 data files", "2 lost (7..8)", "/q/data/x: 60 bytes at 5000", "offsets 7..8 lost"):
        assert part in text
    assert "torn tail: 12 bytes" in text
    assert "note: something" in text


# -- A disk that refuses -----------------------------------------------------------------------------------------------


def prepared() -> SmallQueue:
    """Return a queue in which a transaction waits to be decided, in a file of its own, as streams do."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        transaction = queue.begin()
        transaction.put_stream([b"new"])
        transaction.prepare("t")
    return SmallQueue(ORDERS, storage, 0)


def simulated(queue: SmallQueue) -> SimulatedStorage:
    """Return its storage."""
    assert isinstance(queue.storage, SimulatedStorage)
    return queue.storage


@pytest.mark.parametrize(("verb", "name"), [("list", "data"), ("open", "write.mark"), ("open", ".data")])
def test_a_disk_that_refuses_is_an_error_and_no_damage(queue: SmallQueue, verb: str, name: str) -> None:
    """Nobody knows what stands there."""
    with refusing(simulated(queue), verb, name), pytest.raises(StorageError, match="verifying the queue failed"):
        queue.verify()


class Third:
    """Does something before the third time that a verb is called on a file."""

    def __init__(self, storage: SimulatedStorage, verb: str, name: str, then: Callable[[Path], object]) -> None:
        self.count = 0

        def watch(called: str, path: Path) -> None:
            if called == verb and path.name.endswith(name):
                self.count += 1
                if self.count == 3:
                    storage.before_verb = None
                    then(path)

        storage.before_verb = watch


def test_a_position_file_that_cannot_be_looked_at_is_an_error(queue: SmallQueue) -> None:
    """It was read before: for the progress, and for what is damaged in it."""

    def refuse(path: Path) -> None:
        raise OSError(errno.EIO, "the disk refuses")

    third = Third(simulated(queue), "open", ".position", refuse)
    with pytest.raises(StorageError, match="the disk refuses"):
        queue.verify()
    assert third.count == 3


def test_a_batch_that_cannot_be_looked_at_is_an_error() -> None:
    """It may be whole."""
    queue = prepared()
    with refusing(simulated(queue), "open", "t.batch"), pytest.raises(StorageError, match="verifying the queue failed"):
        queue.verify()


# -- What goes meanwhile -----------------------------------------------------------------------------------------------


def test_a_position_file_that_goes_meanwhile_is_no_damage(queue: SmallQueue) -> None:
    """The next generation has replaced it."""
    third = Third(simulated(queue), "open", ".position", queue.storage.remove)
    assert queue.verify().ok
    assert third.count == 3


def test_a_batch_that_is_decided_meanwhile_is_no_damage() -> None:
    """It was listed, and has gone into the log."""
    queue = prepared()
    (note,) = queue.verify().notes
    assert note == "1 transaction is prepared"
    storage = simulated(queue)

    def decide(verb: str, path: Path) -> None:
        if verb == "open" and path.name == "t.batch":
            storage.before_verb = None
            storage.remove(path)

    storage.before_verb = decide
    report = queue.verify()
    assert (report.ok, report.notes) == (True, ())
    assert storage.before_verb is None


def test_a_file_that_is_retired_between_two_looks_at_its_damage_is_no_damage(parts: LogParts) -> None:
    """Everybody has finished it, and its space was used again."""
    header = parts.header()
    good = frame(header, b"a", 0)
    path, _ = parts.data_file([good[:-1] + b"?"])
    parts.data_file([], header=parts.header(2, 1, FRAMES_START + len(good)))
    assert not verify(parts.directory.root, storage=parts.storage).ok
    opened: list[Path] = []

    def retire(verb: str, of: Path) -> None:
        if verb == "open" and of == path:
            opened.append(of)
            if len(opened) == 2:
                parts.storage.before_verb = None
                parts.storage.remove(path)

    parts.storage.before_verb = retire
    report = verify(parts.directory.root, storage=parts.storage)
    assert len(opened) == 2
    assert report.ok
    assert report.file_count == 1


def test_a_log_that_moves_on_meanwhile_is_not_held_against_its_mark(parts: LogParts) -> None:
    """The last file was listed, and is retired when its turn comes: another one is the last."""
    header = parts.header()
    path, _ = parts.data_file([frame(header, b"a", 0)])
    file_count: list[int] = []

    def retire(verb: str, of: Path) -> None:
        if verb == "open" and of == path:
            parts.storage.before_verb = None
            parts.storage.remove(path)
            file_count.append(0)

    parts.storage.before_verb = retire
    report = verify(parts.directory.root, storage=parts.storage)
    assert file_count == [0]
    assert report.ok
    assert (report.file_count, report.message_count) == (0, 0)


def test_a_file_that_is_reused_while_it_is_read_is_not_counted(parts: LogParts) -> None:
    """Its header is another one when its last frame was read."""
    header = parts.header()
    path, _ = parts.data_file([frame(header, b"a", 0)])
    reads: list[Path] = []

    def reuse(verb: str, of: Path) -> None:
        if verb == "read_at" and of == path:
            reads.append(of)
            if len(reads) == 2:  # the header was the first
                parts.storage.before_verb = None
                file = parts.storage.open(path)
                file.write_at((block_buffers(replace(header, file_id=b"x" * 16).encode()),), 0)
                parts.storage.rename(path, parts.directory.data / "reused")

    parts.storage.before_verb = reuse
    report = verify(parts.directory.root, storage=parts.storage)
    assert len(reads) == 2
    assert report.ok
    assert report.message_count == 0


@pytest.mark.parametrize("opened", range(1, 12))
def test_files_that_are_merged_meanwhile_are_read_in_the_merged_one(opened: int) -> None:
    """However far the reading is: what lives is counted once. All else is read once too, as merges may never end."""
    parts = LogParts()
    finish_all_but(parts, with_log(parts), [*LIVE, *range(950, 1000)])
    seen: list[Path] = []
    marks: list[Path] = []

    def merge(verb: str, path: Path) -> None:
        if verb == "open" and path.name == "write.mark":
            marks.append(path)
        if verb == "open" and data_file_name(path.name) is not None:
            seen.append(path)
            if len(seen) == opened:
                assert compact(parts).merged_count

    parts.storage.before_verb = merge
    report = verify(parts.directory.root, storage=parts.storage)
    parts.storage.before_verb = None
    assert len(seen) > opened
    assert len(marks) == 1
    assert report == verify(parts.directory.root, storage=parts.storage)
    assert (report.ok, report.notes) == (True, ())
    assert report.file_count == len(parts.files())


def test_what_a_killed_merge_has_left_is_told_by_its_names() -> None:
    """It is no damage, and no foreign file; one that is removed meanwhile is not worth a note."""
    parts = LogParts()
    finish_all_but(parts, with_log(parts), [*LIVE, *range(950, 1000)])
    parts.storage.replay_from_here()
    compact(parts)
    states = [step.crash_keeping_all() for step in parts.storage.replay()]
    storage = next(each for each in states if list_replaced_files(each, parts.directory))
    merged_name = list_data_files(storage, parts.directory)[0]
    put(storage, parts.directory.data / f"{merged_name}.damaged", b"")
    put(storage, parts.directory.data / "notes", b"")
    put(storage, parts.directory.next_merged, b"")
    replaced = list_replaced_files(storage, parts.directory)
    data = parts.directory.data
    notes = [f"{data / str(name)} was replaced by a merged file: the next opening removes it" for name in replaced]
    notes += [
        f"{data / str(merged_name)}.damaged was withdrawn because it was damaged: it may be removed",
        f"{data / 'notes'} is not a data file",
    ]
    report = verify(parts.directory.root, storage=storage)
    assert report.ok
    assert sorted(report.notes) == sorted(notes)


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_group_that_is_deleted_or_moved_meanwhile_misses_nothing(
    queue: SmallQueue, call: int, is_deleted: bool
) -> None:
    """Its progress is gone once its turn comes; what it had finished was retired."""
    storage = simulated(queue)
    with queue.open() as handle:
        handle.groups.create("audit")
    drain(queue, "audit")
    drain(queue)
    lists: list[Path] = []
    with queue.open() as handle:
        assert handle.stats().first_offset > 0

        def change(verb: str, path: Path) -> None:
            if verb == "list" and path.name == "audit":
                lists.append(path)
                if len(lists) == call:
                    storage.before_verb = None
                    if is_deleted:
                        handle.groups.delete("audit")
                    else:
                        handle.groups.seek("audit", "earliest")
                        handle.groups.seek("audit", "earliest")

        storage.before_verb = change
        report = queue.verify()
        assert storage.before_verb is None
        assert (report.ok, report.lost) == (True, ())


# -- What only remembers -----------------------------------------------------------------------------------------------


def with_memories() -> SmallQueue:
    """Return a closed queue that remembers ids and outcomes, and is paused."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        for number in range(3):
            queue.put(b"%d" % number, dedup_id=str(number))
        for name in ("put", "ack"):
            transaction = queue.begin()
            if name == "put":
                transaction.put(b"more")
            else:
                transaction.ack(transaction.receive(timeout=0))
            transaction.prepare(name)
            queue.commit_prepared(name)
        queue.pause(reason="a check")
    return SmallQueue(ORDERS, storage, 4)


def test_what_is_forgotten_is_noted() -> None:
    """The second message of an id would be put, and an outcome is unknown: but a crash may tear such a slot as well."""
    queue = with_memories()
    assert (queue.verify().ok, queue.verify().notes) == (True, ())
    paths = [queue.root / "dedup.ids", queue.root / "prepared" / "decided", queue.root / "groups/default/decided"]
    for path in paths:
        queue.flip(path, 10)
    report = queue.verify()
    assert report.ok
    assert report.notes == (
        f"1 slots of {paths[0]} do not verify: the ids in them are forgotten",
        f"1 slots of {paths[1]} do not verify: the outcomes in them are forgotten",
        f"1 slots of {paths[2]} do not verify: the outcomes in them are forgotten",
    )


def test_a_slot_that_is_being_written_is_not_forgotten() -> None:
    """It is whole at the second look."""
    queue = with_memories()
    storage = simulated(queue)
    path = queue.root / "dedup.ids"
    whole = queue.read(path)
    queue.flip(path, 10)
    reads: list[Path] = []

    def write(verb: str, of: Path) -> None:
        if verb == "read_at" and of == path:
            reads.append(of)
            if len(reads) == 2:
                storage.before_verb = None
                queue.write(path, whole)

    storage.before_verb = write
    assert queue.verify().notes == ()
    assert len(reads) == 2


def test_a_pause_that_cannot_be_read_is_damage() -> None:
    """The group gets nothing until it is resumed."""
    queue = with_memories()
    path = queue.root / "groups/default/pause.json"
    queue.flip(path, 20)
    (damage,) = queue.verify().damage
    assert damage.path == path
    assert "until `resume`" in damage.reason


# -- What is missing ---------------------------------------------------------------------------------------------------


def test_messages_that_were_shown_and_never_synced_are_missed_where_they_are_gone(parts: LogParts) -> None:
    """Under such a policy a loss of power may take them: not damage for certain, and not nothing."""
    writer = parts.writer(synced_only=False)
    for number in range(3):
        writer.append(b"%d" % number)
        writer.publish()
    killed = parts.storage.crash_keeping_all()
    path = parts.files().path(parts.files().names()[0])
    killed.open(path).truncate(FRAMES_START + 33)
    report = verify(parts.directory.root, storage=killed)
    assert [(damage.offsets, damage.reason) for damage in report.damage] == [
        (range(1, 3), "written, but not on the disk")
    ]
    assert report.lost == (range(1, 3),)


def test_without_a_group_every_file_is_missed(queue: SmallQueue) -> None:
    """The first group would want everything."""
    with owned_queue(queue.storage, queue.root) as owner:
        Groups(owner.handle, check_open=lambda: None).delete("default")
    assert queue.verify().ok
    names = queue.data_files()
    lost = range(queue.header(names[1]).first_offset, queue.header(names[2]).first_offset)
    queue.storage.remove(names[1])
    report = queue.verify()
    assert report.lost == (lost,)
    assert "a data file is missing" in str(report)

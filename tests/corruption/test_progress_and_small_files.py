"""Malformed position files, write.mark, queue.json and group.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import CorruptionError, PersistentQueue, UnsupportedVersionError
from holdfast.persistence.filesystem.document import write_document
from holdfast.persistence.format.constants import ENTRY, FORMAT_VERSION, FRAMES_START, HEADER_COPY_POSITIONS
from support.builders.settings import set_anew
from support.builders.small_queues import SmallQueue, build, drain, judge, payload, tiny_files_allowed
from support.storages.simulated_storage import SimulatedStorage

ID_AT = 40


@pytest.fixture
def killed() -> SmallQueue:
    """Return a queue whose owner was killed: entries 0 and 1 of its progress are the checkpoint, 2 to 4 were taken."""
    storage = SimulatedStorage()
    made = build(Path("/queue"), storage)
    with made.open() as handle:
        for _ in range(3):
            handle.get(timeout=0)
        return SmallQueue(made.root, storage.crash_keeping_all(), made.put_count, 3)


def everything(queue: SmallQueue) -> dict[int, bytes]:
    """Return all messages that were ever put."""
    return {offset: payload(offset) for offset in range(queue.put_count)}


def entry_position(number: int) -> int:
    """Return where an entry of a position file stands."""
    return FRAMES_START + number * ENTRY.size


# -- Position files --------------------------------------------------------------------------------------------------


def test_a_damaged_entry_below_the_synced_mark_is_skipped_and_reported(killed: SmallQueue) -> None:
    """What it said is done again; what the others said stands."""
    path = killed.position_files()[-1]
    killed.flip(path, entry_position(3) + 30)
    report, drained = judge(killed)
    assert sorted(set(drained.payloads) - set(killed.waiting)) == [1]
    assert [damage.position for damage in report.damage] == [entry_position(3)]
    assert [damage.position for damage in drained.progress_damage] == [entry_position(3)]


def test_a_damaged_last_entry_of_a_killed_owner_is_a_torn_end(killed: SmallQueue) -> None:
    """Nothing says that it was ever on the disk: its message comes again."""
    killed.flip(killed.position_files()[-1], entry_position(4) + 30)
    report, drained = judge(killed)
    assert sorted(set(drained.payloads) - set(killed.waiting)) == [2]
    assert report.ok
    assert not drained.progress_damage


@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_damaged_entry_behind_a_clean_close_is_reported_and_nothing_comes_again(
    queue: SmallQueue, number: int
) -> None:
    """A clean close leaves the floor as a witness behind the last acknowledgement."""
    queue.flip(queue.position_files()[-1], entry_position(number) + 30)
    report, drained = judge(queue)
    assert set(drained.payloads) == set(queue.waiting)
    assert [damage.position for damage in report.damage] == [entry_position(number)]
    assert [damage.position for damage in drained.progress_damage] == [entry_position(number)]


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_entry_of_a_checkpoint_changes_nothing(queue: SmallQueue, number: int) -> None:
    """The floor stands in it twice."""
    queue.flip(queue.position_files()[-1], entry_position(number) + 30)
    report, drained = judge(queue)
    assert set(drained.payloads) == set(queue.waiting)
    assert not report.ok


@pytest.mark.parametrize("at", HEADER_COPY_POSITIONS)
def test_one_bad_copy_of_a_position_header_changes_nothing_and_is_found(queue: SmallQueue, at: int) -> None:
    """The other copy is good."""
    queue.flip(queue.position_files()[-1], at + ID_AT)
    report, drained = judge(queue)
    assert set(drained.payloads) == set(queue.waiting)
    assert [damage.position for damage in report.damage] == [at]


def test_two_bad_copies_of_a_position_header_deliver_again_and_say_so(queue: SmallQueue) -> None:
    """Better twice than never."""
    for at in HEADER_COPY_POSITIONS:
        queue.flip(queue.position_files()[-1], at + ID_AT)
    report, drained = judge(queue)
    assert drained.payloads == everything(queue)
    assert not report.ok
    assert drained.progress_damage


@pytest.mark.parametrize("size", [0, 300])
def test_a_position_file_cut_inside_its_header_delivers_again_and_says_so(queue: SmallQueue, size: int) -> None:
    """As one without a good header."""
    path = queue.position_files()[-1]
    queue.write(path, queue.read(path)[:size])
    report, drained = judge(queue)
    assert drained.payloads == everything(queue)
    assert not report.ok
    assert drained.progress_damage


def test_a_position_file_cut_in_the_middle_of_an_entry_counts_up_to_it(queue: SmallQueue) -> None:
    """A torn end is normal: what stood there may come again, what stands before it does not."""
    path = queue.position_files()[-1]
    queue.write(path, queue.read(path)[: entry_position(3) + 20])
    _, drained = judge(queue)
    assert sorted(set(drained.payloads) - set(queue.waiting)) == [1, 2]


def test_zeroed_entries_are_skipped_and_reported_where_later_ones_know_of_them(killed: SmallQueue) -> None:
    """A hole in the progress is not its end."""
    killed.patch(killed.position_files()[-1], entry_position(2), bytes(2 * ENTRY.size))
    report, drained = judge(killed)
    assert sorted(set(drained.payloads) - set(killed.waiting)) == [0, 1]
    assert len(report.damage) == 2


def test_an_entry_copied_over_another_does_not_count_twice(killed: SmallQueue) -> None:
    """Every entry carries its number."""
    path = killed.position_files()[-1]
    content = killed.read(path)
    killed.patch(path, entry_position(3), content[entry_position(2) : entry_position(3)])
    report, drained = judge(killed)
    assert sorted(set(drained.payloads) - set(killed.waiting)) == [1]
    assert not report.ok


def test_a_missing_position_file_delivers_again(queue: SmallQueue) -> None:
    """The group starts where group.json says."""
    for path in queue.position_files():
        queue.storage.remove(path)
    _, drained = judge(queue)
    assert drained.payloads == everything(queue)


def test_a_position_file_of_another_group_is_not_believed(queue: SmallQueue) -> None:
    """It names the group it belongs to."""
    other = build(Path("/other"), SimulatedStorage(), taken_count=10)
    queue.write(queue.position_files()[-1], other.read(other.position_files()[-1]))
    _, drained = judge(queue)
    assert drained.payloads == everything(queue)


def test_progress_beyond_the_end_of_the_log_is_reported_and_those_offsets_are_not_given_again(
    queue: SmallQueue,
) -> None:
    """A group that finished messages has seen them, whatever became of the data."""
    drain(queue)
    last = queue.data_files()[-1]
    queue.write(last, queue.read(last)[:FRAMES_START])
    queue.storage.remove(queue.root / "write.mark")
    report = queue.verify()
    assert report.lost[-1].stop == queue.put_count
    with queue.open() as handle:
        assert handle.put(b"new") == queue.put_count
        assert [damage.offsets.stop for damage in handle.recovery.damage] == [queue.put_count]
        assert handle.get(timeout=1) == b"new"


# -- write.mark ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", bytes(80)])
def test_an_empty_write_mark_says_nothing_and_nothing_is_lost(queue: SmallQueue, content: bytes) -> None:
    """The end of the log is found by reading it."""
    queue.write(queue.root / "write.mark", content)
    report, drained = judge(queue)
    assert report.ok
    assert any("write.mark" in note for note in report.notes)
    assert set(drained.payloads) == set(queue.waiting)


@pytest.mark.parametrize("content", [b"garbage" * 20, b"\x89HFMARK\n"])
def test_a_write_mark_that_does_not_verify_is_reported_and_nothing_is_lost(queue: SmallQueue, content: bytes) -> None:
    """Recovery reads the last file from its start."""
    queue.write(queue.root / "write.mark", content)
    report, drained = judge(queue)
    assert [damage.path for damage in report.damage] == [queue.root / "write.mark"]
    assert set(drained.payloads) == set(queue.waiting)


def test_a_missing_write_mark_loses_nothing(queue: SmallQueue) -> None:
    """It is a shortcut, no witness that is needed."""
    queue.storage.remove(queue.root / "write.mark")
    report, drained = judge(queue)
    assert report.ok
    assert set(drained.payloads) == set(queue.waiting)


def test_a_write_mark_of_another_queue_says_nothing(queue: SmallQueue) -> None:
    """It would speak of positions in files that are not ours."""
    other = build(Path("/other"), SimulatedStorage())
    queue.write(queue.root / "write.mark", other.read(other.root / "write.mark"))
    report, drained = judge(queue)
    assert not report.ok
    assert set(drained.payloads) == set(queue.waiting)


def test_a_write_mark_of_an_earlier_moment_loses_nothing(queue: SmallQueue) -> None:
    """A power loss can bring an old one back."""
    mark = queue.read(queue.root / "write.mark")
    with queue.open() as handle:
        for offset in range(queue.put_count, queue.put_count + 20):
            handle.put(payload(offset))
    queue.write(queue.root / "write.mark", mark)
    later = SmallQueue(queue.root, queue.storage, queue.put_count + 20, queue.taken_count)
    report, drained = judge(later)
    assert report.ok
    assert set(drained.payloads) == set(later.waiting)


# -- queue.json and group.json ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format": 1}'])
def test_a_damaged_queue_json_is_rebuilt_from_the_data_files(queue: SmallQueue, content: bytes) -> None:
    """The queue id stands in every header."""
    path = queue.root / "queue.json"
    queue.write(path, content)
    report, drained = judge(queue)
    assert [damage.path for damage in report.damage] == [path]
    assert drained.rebuilt == path
    assert set(drained.payloads) == set(queue.waiting)
    assert drain(queue).rebuilt is None
    assert queue.verify().ok, "opening has repaired it, and its settings are set"


def test_a_damaged_queue_json_with_nothing_to_rebuild_it_from_is_an_error(queue: SmallQueue) -> None:
    """Nothing is made up."""
    for path in queue.data_files():
        queue.storage.remove(path)
    queue.storage.remove(queue.root / "write.mark")
    queue.write(queue.root / "queue.json", b"{")
    with pytest.raises(CorruptionError):
        queue.open()
    with pytest.raises(CorruptionError):
        queue.verify()


def test_a_missing_queue_json_beside_data_files_is_an_error(queue: SmallQueue) -> None:
    """A new queue is not made on top of an old one."""
    queue.storage.remove(queue.root / "queue.json")
    before = queue.data_files()
    for use in (queue.open, queue.verify):
        with pytest.raises(CorruptionError, match=r"no queue\.json: .* --rebuilt"):
            use()
    assert queue.data_files() == before
    with tiny_files_allowed():
        set_anew(queue.root, queue.storage)
    assert queue.verify().ok
    assert set(drain(queue).payloads) == set(queue.waiting)


@pytest.mark.parametrize("left", ["write.mark", "prepared", "groups"])
def test_a_missing_queue_json_is_missed_beside_any_other_file(left: str) -> None:
    """Else a new queue would take its place, and remove what is prepared in the old one."""
    root, storage = Path("/queue"), SimulatedStorage()
    with PersistentQueue(root, mode="exclusive", storage=storage) as made:
        if left == "prepared":
            tx = made.begin()
            tx.put(b"payment")
            tx.prepare("tx")
        elif left == "groups":
            made.groups.create("other")
    storage.remove(root / "queue.json")
    if left != "write.mark":
        storage.remove(root / "write.mark")
    before = storage.tree()
    for mode in ("exclusive", "read_only"):
        with pytest.raises(CorruptionError, match=r"has the files of a queue, but no queue\.json"):
            PersistentQueue(root, mode=mode, storage=storage)
    assert storage.tree() == before
    if left == "groups":
        with pytest.raises(CorruptionError, match="no other file with the id of the queue"):
            set_anew(root, storage)
        return
    set_anew(root, storage)
    with PersistentQueue(root, mode="exclusive", storage=storage) as queue:
        assert [each.id for each in queue.prepared()] == (["tx"] if left == "prepared" else [])


def test_what_is_left_of_a_document_is_kept_until_it_is_rebuilt_and_beside_it_then(queue: SmallQueue) -> None:
    """It may show people the settings, and the filter of a group. An opening that is refused changes nothing."""
    paths = [queue.root / "queue.json", queue.root / "groups/default/group.json"]
    damaged = [bytes(queue.storage.tree()[path] or b"").replace(b'"crc32c"', b'"crc32x"') for path in paths]
    for path, content in zip(paths, damaged, strict=True):
        queue.write(path, content)
    for _ in range(2):
        with pytest.raises(CorruptionError):
            queue.open()
    assert [queue.storage.tree()[path] for path in paths] == damaged
    with tiny_files_allowed():
        set_anew(queue.root, queue.storage)
    tree = queue.storage.tree()
    assert [tree[path.with_name(f"{path.name}.damaged")] for path in paths] == damaged
    assert set(drain(queue).payloads) == set(queue.waiting)


@pytest.mark.parametrize("name", ["queue.json", "groups/default/group.json"])
def test_a_small_file_of_a_newer_version_refuses_the_queue(queue: SmallQueue, name: str) -> None:
    """Its checksum is good: it is not damaged."""
    fields = {"format": FORMAT_VERSION + 1, "queue_id": "00" * 16, "group_id": "00" * 16, "start_offset": 0}
    write_document(queue.storage, queue.root / name, fields)
    with pytest.raises(UnsupportedVersionError):
        queue.open()
    with pytest.raises(UnsupportedVersionError):
        queue.verify()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1, "group_id": "0"}'])
def test_a_damaged_group_json_is_rebuilt_from_the_position_file(queue: SmallQueue, content: bytes) -> None:
    """The group continues where it was, and the damage is reported once."""
    path = queue.root / "groups/default/group.json"
    queue.write(path, content)
    report, drained = judge(queue)
    assert [damage.path for damage in report.damage] == [path]
    assert drained.rebuilt == path
    assert set(drained.payloads) == set(queue.waiting)
    again = drain(queue)
    assert not again.progress_damage
    assert again.rebuilt is None
    assert queue.verify().ok


def test_a_lost_group_json_is_rebuilt_from_the_position_file(queue: SmallQueue) -> None:
    """It is not taken for a group that was never used: what was acknowledged does not come again."""
    path = queue.root / "groups/default/group.json"
    queue.storage.remove(path)
    report, drained = judge(queue)
    assert [damage.path for damage in report.damage] == [path]
    assert drained.rebuilt == path
    assert set(drained.payloads) == set(queue.waiting)
    assert queue.verify().ok


def test_a_lost_group_json_keeps_what_its_group_has_not_read(queue: SmallQueue) -> None:
    """Others may drain the queue meanwhile."""
    with queue.open() as handle:
        handle.groups.create("other")
    queue.storage.remove(queue.root / "groups/default/group.json")
    before = queue.data_files()
    with queue.open(mode="exclusive", group="other") as handle:
        while handle.qsize():
            handle.get_many(100)
    assert queue.data_files()[: len(before)] == before


def test_a_damaged_group_json_does_not_keep_other_groups_out(queue: SmallQueue) -> None:
    """Nor do they retire anything that the group may need."""
    with queue.open() as handle:
        handle.groups.create("other")
    queue.write(queue.root / "groups/default/group.json", b"{")
    before = queue.data_files()
    with queue.open(mode="exclusive", group="other") as handle:
        assert handle.put(b"new") == queue.put_count
        while handle.qsize():
            handle.get_many(100)
    assert queue.data_files()[: len(before)] == before


def test_a_damaged_group_json_without_a_position_file_starts_the_group_over(queue: SmallQueue) -> None:
    """At the oldest message that is still there; what is gone already is nobody's loss."""
    drain(queue)
    with queue.open() as handle:
        handle.groups.create("second")
        handle.put(b"new")
    queue.write(queue.root / "groups/second/group.json", b"{")
    assert [damage.path for damage in queue.verify().damage] == [queue.root / "groups/second/group.json"]
    drained = drain(queue, "second")
    assert drained.payloads[queue.put_count] == b"new"
    assert not drained.lost
    assert drained.rebuilt == queue.root / "groups/second/group.json"


def test_settings_are_set_anew_in_a_group_json_that_no_opening_has_repaired(queue: SmallQueue) -> None:
    """The group starts over as if it had: at the oldest message that is still there."""
    drain(queue)
    with queue.open() as handle:
        handle.groups.create("second")
        handle.put(b"new")
    queue.write(queue.root / "groups/second/group.json", b"{")
    with tiny_files_allowed():
        set_anew(queue.root, queue.storage, "second", lease_seconds=5)
    assert queue.verify().ok
    with queue.open(group="second") as handle:
        assert handle.settings["lease_seconds"] == 5
    drained = drain(queue, "second")
    assert (drained.rebuilt, drained.lost) == (None, frozenset())
    assert drained.payloads[queue.put_count] == b"new"

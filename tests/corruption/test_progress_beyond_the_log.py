"""Progress with right checksums that speaks of messages beyond the log: reported, ignored, and no memory taken."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast import PersistentQueue, verify
from holdfast.persistence.filesystem.document import write_document
from holdfast.persistence.format.constants import (
    ENTRY,
    ENTRY_DEAD,
    ENTRY_DELIVERED,
    ENTRY_DONE,
    ENTRY_FLOOR,
    ENTRY_LOST,
    ENTRY_RETURNED,
    ENTRY_TAKEN_AWAY,
    FRAMES_START,
)
from holdfast.persistence.format.file_header import PositionFileHeader, block_copies
from holdfast.persistence.groups.position_entry import NO_HINT, Change, decode_entry, encode_entry, run_flags
from holdfast.persistence.groups.reach import REACH_MAX, Reach
from holdfast.persistence.groups.vote import Vote, vote_changes
from holdfast.queue.inspect.groups import Groups
from support.builders.log_parts import LogParts, put
from support.builders.settings import set_anew_if_lost
from support.owners.sides import owned_queue
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/queue")
GROUP = ROOT / "groups" / "default"
FILE_BYTES = 16 * 1024
LEFT = [b"two", b"three"]
PEAK_BYTES_MAX = 32 * 2**20

NUMBER = 0xC0FFEE01_00000007
FAR = [2**28, 2**40, 2**62]
BEYOND = [
    *(Change(kind, 1, count, NO_HINT, 1) for kind in (ENTRY_DONE, ENTRY_DELIVERED, ENTRY_LOST) for count in FAR),
    *(Change(ENTRY_FLOOR, offset, 0, NO_HINT) for offset in FAR),
    *(Change(ENTRY_FLOOR, 1, lost, NO_HINT) for lost in FAR),
    *(Change(ENTRY_RETURNED, 1, count, (5, 5), 1) for count in FAR),
    *(Change(ENTRY_DEAD, offset, 5, (5, 1), 1) for offset in FAR),
    *(Change(ENTRY_DELIVERED, 1, count, NO_HINT, 1, NUMBER) for count in FAR),
    *(Change(ENTRY_RETURNED, 1, count, (5, 5), 1, NUMBER) for count in FAR),
    *(Change(ENTRY_TAKEN_AWAY, 1, count, NO_HINT, 0, NUMBER) for count in FAR),
]


def closed_queue() -> SimulatedStorage:
    """Return a queue of three messages, one of them taken."""
    storage = SimulatedStorage()
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=FILE_BYTES) as queue:
        queue.put_many([b"one", *LEFT])
        queue.get(timeout=0)
    return storage


def append(storage: SimulatedStorage, changes: Sequence[Change]) -> None:
    """Append one run of entries to the position file that counts."""
    names = [name for name in storage.list(GROUP) if name.endswith(".position") and name != "next.position"]
    file = storage.open(GROUP / names[-1])
    data = file.read_at(file.size(), 0)
    header = PositionFileHeader.decode(block_copies(data), names[-1])
    number = 0
    while decode_entry(data, FRAMES_START + number * ENTRY.size, header.salt, number) is not None:
        number += 1
    for at, change in enumerate(changes):
        flags = run_flags(at, len(changes), is_checkpoint=change.kind == ENTRY_TAKEN_AWAY)
        raw = encode_entry(header.salt, change, number + at, flags, 0, number, header.generation)
        file.write_at((raw,), FRAMES_START + (number + at) * ENTRY.size)
    file.sync()
    file.close()


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most memory that something takes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def judge(storage: SimulatedStorage) -> None:
    """Whoever reads the progress says what is wrong with it, and nothing else has changed."""
    report = verify(ROOT, storage=storage)
    assert len(report.damage) == 1
    assert "beyond the log" in report.damage[0].reason
    assert not report.lost
    with PersistentQueue(ROOT, storage=storage, mode="read_only") as queue:
        assert [message.payload for message in queue.peek(10)] == LEFT
        assert queue.qsize() == 2
        assert queue.groups.list() == ["default"]
    with owned_queue(storage, ROOT) as owner:
        groups = Groups(owner.handle, check_open=lambda: None)
        groups.create("other", start="latest")
        groups.delete("other")
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=FILE_BYTES) as queue:
        assert [damage.reason for damage in queue.recovery.progress_damage] == [report.damage[0].reason]
        assert not queue.recovery.damage
        assert queue.put(b"four") == 3
        assert queue.stats().lost == 0
        assert not queue.dead.list()
        assert queue.get_many(10, timeout=0) == [*LEFT, b"four"]
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=FILE_BYTES) as queue:
        assert queue.recovery.clean


@pytest.mark.parametrize(
    "change", BEYOND, ids=lambda each: f"{each.kind}-{each.first_offset}-{each.count}-{each.delivery_number}"
)
def test_an_entry_that_speaks_of_messages_where_no_log_comes_is_reported_and_ignored(change: Change) -> None:
    """Opening, looking, verify and groups take no memory for it, and the next offset stays."""
    storage = closed_queue()
    append(storage, [change])
    assert peak_bytes(lambda: judge(storage)) < PEAK_BYTES_MAX


@pytest.mark.parametrize("count", FAR)
def test_a_vote_that_holds_messages_where_no_log_comes_is_dropped_and_reported(count: int) -> None:
    """As any vote that is not whole: no message of it stays held."""
    storage = closed_queue()
    append(storage, vote_changes(Vote("t", bytes(range(16)), 5, None, ((1, 1, 1, 5000), (2, count, 1, 5000)))))

    def look_and_open() -> None:
        reasons = [damage.reason for damage in verify(ROOT, storage=storage).damage]
        assert any("beyond the log" in reason for reason in reasons)
        assert any("is incomplete" in reason for reason in reasons)
        with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=FILE_BYTES) as queue:
            assert [damage.reason for damage in queue.recovery.progress_damage] == reasons
            assert queue.get_many(10, timeout=0) == LEFT
            assert queue.put(b"four") == 3

    assert peak_bytes(look_and_open) < PEAK_BYTES_MAX


@pytest.mark.parametrize("kind", [ENTRY_DONE, ENTRY_LOST])
def test_what_a_loss_of_power_can_take_is_believed_and_its_offsets_are_never_given_again(kind: int) -> None:
    """As many messages as one data file can hold may be missing behind what is there."""
    storage = closed_queue()
    append(storage, [Change(kind, 3, REACH_MAX, NO_HINT)])
    assert verify(ROOT, storage=storage).lost == (range(3, 3 + REACH_MAX),)
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=FILE_BYTES) as queue:
        assert not queue.recovery.progress_damage
        assert queue.recovery.lost_count == REACH_MAX
        assert queue.put(b"four") == 3 + REACH_MAX
        assert queue.get_many(10, timeout=0) == [*LEFT, b"four"]
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=FILE_BYTES) as queue:
        assert queue.put(b"five") == 4 + REACH_MAX
        assert queue.get(timeout=0) == b"five"


@pytest.mark.parametrize("kind", [ENTRY_DELIVERED, ENTRY_RETURNED])
def test_deliveries_of_messages_that_are_not_there_are_not_kept(kind: int) -> None:
    """A reader keeps something for each message that was handed out: for those of the log, and no others."""
    storage = closed_queue()
    append(storage, [Change(kind, 1, REACH_MAX, NO_HINT, 4)])

    def look_and_open() -> None:
        assert verify(ROOT, storage=storage).ok
        with PersistentQueue(ROOT, storage=storage, mode="read_only") as queue:
            assert [message.delivery_count for message in queue.peek(10)] == [4, 4]
        with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=FILE_BYTES) as queue:
            assert not queue.recovery.progress_damage
            assert queue.put(b"four") == 3
            with queue.receive(timeout=0) as delivery:
                assert delivery.delivery_count == 5

    assert peak_bytes(look_and_open) < PEAK_BYTES_MAX


def test_looking_at_what_is_held_names_messages_of_the_log_only() -> None:
    """A vote may speak of as many more as power can take."""
    storage = closed_queue()
    append(storage, vote_changes(Vote("t", bytes(range(16)), 5, None, ((1, REACH_MAX, 1, 5000),))))

    def browse() -> None:
        with PersistentQueue(ROOT, storage=storage, mode="read_only") as queue:
            assert [message.payload for message in queue.browse("leased")] == LEFT

    assert peak_bytes(browse) < PEAK_BYTES_MAX


@pytest.mark.parametrize(
    "changed", [{"start_offset": 2**40}, {"retired": [[5, 2**40]]}, {"retired": [[2**62, 2**62 + 1]]}]
)
def test_a_group_json_that_speaks_of_offsets_where_no_log_comes_is_rebuilt_and_reported(
    changed: dict[str, object],
) -> None:
    """Its position files know what the group has done."""
    storage = closed_queue()
    path = GROUP / "group.json"
    file = storage.open(path, writable=False)
    fields = json.loads(file.read_at(file.size(), 0))
    file.close()
    fields.pop("crc32c")
    write_document(storage, path, {**fields, **changed})
    assert any("beyond the log" in damage.reason for damage in verify(ROOT, storage=storage).damage)
    queue, rebuilt = set_anew_if_lost(
        ROOT, storage, lambda: PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=FILE_BYTES)
    )
    with queue:
        assert rebuilt == path
        assert queue.put(b"four") == 3
        assert queue.get_many(10, timeout=0) == [*LEFT, b"four"]


def test_a_log_that_has_come_far_has_its_progress_read_as_any_other() -> None:
    """How far anything may reach is measured from where the log ends."""
    parts = LogParts()
    far = 2**40
    parts.data_file([], header=parts.header(sequence=9, first_offset=far))
    reach = Reach(parts.storage, parts.directory)
    done = Change(ENTRY_DONE, far, REACH_MAX, NO_HINT)
    assert reach.bounded(done) == done
    assert reach.bounded(Change(ENTRY_DONE, far + 1000, REACH_MAX, NO_HINT)) is None
    parts.data_file([], header=parts.header(sequence=10, first_offset=far + 1000))
    assert reach.bounded(Change(ENTRY_DONE, far + 1000, REACH_MAX, NO_HINT)) is None
    reach.renew()
    assert reach.bounded(Change(ENTRY_DONE, far + 1000, REACH_MAX, NO_HINT)) is not None


def test_a_write_mark_that_speaks_of_a_file_that_is_missing_is_believed() -> None:
    """Its offsets were given, so progress may speak of them."""
    storage = closed_queue()
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=FILE_BYTES) as queue:
        queue.get_many(10, timeout=0)
    for name in storage.list(ROOT / "data"):
        storage.remove(ROOT / "data" / name)
    reach = Reach(storage, LogParts().directory)
    assert reach.covers(3 + REACH_MAX)
    assert not reach.covers(4 + REACH_MAX)
    put(storage, ROOT / "write.mark", bytes(92))
    assert not Reach(storage, LogParts().directory).covers(3 + REACH_MAX)


@pytest.mark.parametrize("text", [None, b"?" * 92])
def test_where_data_files_and_write_mark_are_lost_progress_is_the_last_to_know_offsets(text: bytes | None) -> None:
    """It is believed, and none is given again; it keeps nothing for messages that are not there."""
    storage = closed_queue()
    append(storage, [Change(ENTRY_DELIVERED, 1, 2**40, NO_HINT, 1), Change(ENTRY_DONE, 1, 2**40, NO_HINT)])
    for name in storage.list(ROOT / "data"):
        storage.remove(ROOT / "data" / name)
    storage.remove(ROOT / "write.mark")
    if text is not None:
        put(storage, ROOT / "write.mark", text)
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=FILE_BYTES) as queue:
        assert queue.put(b"four") == 2**40 + 1
        assert queue.get(timeout=0) == b"four"


def test_a_data_file_that_is_retired_while_it_is_measured_is_passed_over() -> None:
    """There is a later one then."""
    parts = LogParts()
    old, _ = parts.data_file([], header=parts.header(sequence=1, first_offset=5))

    opened = parts.storage.open

    def retire(path: Path, *, create: bool = False, writable: bool = True) -> object:
        if path == old:
            parts.storage.remove(old)
            parts.data_file([], header=parts.header(sequence=2, first_offset=2**40))
        return opened(path, create=create, writable=writable)

    parts.storage.open = retire  # type: ignore[method-assign,assignment]
    assert Reach(parts.storage, parts.directory).covers(2**40 + REACH_MAX)


def test_flags_of_an_entry_that_does_not_count_end_its_run_all_the_same() -> None:
    """What stands before it in the same run counts, and so does what comes behind."""
    storage = closed_queue()
    append(storage, [Change(ENTRY_DONE, 1, 1, NO_HINT), Change(ENTRY_DONE, 2**40, 1, NO_HINT)])
    append(storage, [Change(ENTRY_DONE, 2, 1, NO_HINT)])
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=FILE_BYTES) as queue:
        assert len(queue.recovery.progress_damage) == 1
        assert queue.qsize() == 0


def test_a_log_that_cannot_be_measured_is_an_error_and_no_damage() -> None:
    """Whether an entry counts is not known then."""
    parts = LogParts()
    path, _ = parts.data_file([], header=parts.header())
    with (
        pytest.raises(OSError, match="Input/output"),
        refusing(parts.storage, "open", path.name),
    ):
        Reach(parts.storage, parts.directory).covers(2**40)

"""What no crash and no rot makes: bytes that verify and say what cannot be. An error of ours, and no memory taken."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import CorruptionError, HeadersError, PersistentQueue, verify
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import (
    ENTRY,
    ENTRY_DELIVERED,
    ENTRY_DONE,
    ENTRY_FLOOR,
    ENTRY_TAKEN_AWAY,
    FORMAT_VERSION,
    FRAMES_START,
    HEADER_CRC,
    NUMBER_MAX,
    TLV,
    TLV_EXPIRES,
    TLV_USER_HEADER,
)
from holdfast.persistence.format.file_header import DataFileHeader, PositionFileHeader, block_copies
from holdfast.persistence.format.report import DAMAGED, Damage, RecoveryReport, VerifyReport
from holdfast.persistence.groups.position_entry import Change, decode_entry, encode_entry
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.watermark import read_write_mark
from holdfast.persistence.outcomes.outcome_log import ABORTED, OutcomeEntry
from holdfast.persistence.segment.file_walk import FileWalk
from support.builders.handles import handle_of
from support.builders.log_parts import LogParts, frame, put
from support.builders.settings import set_anew_if_lost
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/queue")
DEEP = b"[" * 100_000
NONCE = "00" * 16


def sealed(fields: dict[str, Any]) -> bytes:
    """Return a document with the right checksum."""
    checksum = f"{crc32c(0, json.dumps(fields, sort_keys=True).encode()):08x}"
    return json.dumps({**fields, "crc32c": checksum}).encode()


def closed_queue() -> SimulatedStorage:
    """Return a queue of three messages, one of them taken."""
    storage = SimulatedStorage()
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=16 * 1024) as queue:
        queue.put_many([b"one", b"two", b"three"])
        queue.get(timeout=0)
    return storage


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        sealed({"format": FORMAT_VERSION}),
        sealed({"format": FORMAT_VERSION, "queue_id": "xy"}),
        sealed({"format": FORMAT_VERSION, "queue_id": "00"}),
    ],
    ids=["nests too deep", "no id", "no hexadecimal digits", "too short"],
)
def test_a_queue_json_that_names_no_queue_is_rebuilt_or_refused(text: bytes) -> None:
    """From other files; where there is none it is a clear error."""
    storage = closed_queue()
    put(storage, ROOT / "queue.json", text)
    queue, rebuilt = set_anew_if_lost(ROOT, storage, lambda: PersistentQueue(ROOT, mode="exclusive", storage=storage))
    with queue:
        assert rebuilt == ROOT / "queue.json"
        assert queue.get_many(10, timeout=0) == [b"two", b"three"]
    empty = SimulatedStorage()
    PersistentQueue(ROOT, mode="exclusive", storage=empty).close()
    put(empty, ROOT / "queue.json", text)
    empty.remove(ROOT / "write.mark")
    with pytest.raises(CorruptionError, match="restore"):
        PersistentQueue(ROOT, mode="exclusive", storage=empty)


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        sealed({"format": FORMAT_VERSION}),
        sealed({"format": FORMAT_VERSION, "group_id": NONCE, "start_offset": "x", "retired": []}),
        sealed({"format": FORMAT_VERSION, "group_id": NONCE, "start_offset": 0, "retired": [7]}),
        sealed({"format": FORMAT_VERSION, "group_id": NONCE, "start_offset": 2**64, "retired": []}),
    ],
)
def test_a_group_json_that_says_nothing_is_rebuilt_and_reported(text: bytes) -> None:
    """What its position files say counts."""
    storage = closed_queue()
    put(storage, ROOT / "groups" / "default" / "group.json", text)
    assert not verify(ROOT, storage=storage).ok
    queue, rebuilt = set_anew_if_lost(ROOT, storage, lambda: PersistentQueue(ROOT, mode="exclusive", storage=storage))
    with queue:
        assert rebuilt == ROOT / "groups" / "default" / "group.json"
        assert queue.get_many(10, timeout=0) == [b"two", b"three"]


@pytest.mark.parametrize(
    "changed",
    [
        {"first_offset": "7"},
        {"first_offset": -1},
        {"count": 1.5},
        {"count": 2**63},
        {"nonce": "00"},
        {"at": None},
        {"acknowledged": [["g", NONCE, [[1, 2, 3, "4"]]]]},
        {"part_of": ["a", "b"]},
        {"participants": [[".", "0", ""]]},
    ],
)
def test_a_decision_that_cannot_be_acted_upon_is_none(changed: dict[str, Any]) -> None:
    """One whose numbers are no numbers would stop recovery halfway."""
    fields = {"id": "t", "nonce": NONCE, "count": 1, "at": 5}
    assert CommitRecord.decode(json.dumps(fields).encode() + bytes(4)).count == 1
    with pytest.raises(ValueError, match="not a commit record"):
        CommitRecord.decode(json.dumps({**fields, **changed}).encode() + bytes(4))
    with pytest.raises(ValueError, match="not a commit record"):
        CommitRecord.decode(DEEP + bytes(4))


def test_a_message_with_an_index_of_four_billion_takes_no_memory() -> None:
    """Verify names all that would be missing before it, and keeps nothing for each of them."""
    parts = LogParts()
    last = 2**32 - 2
    path, header = parts.data_file([frame(parts.header(), b"a", 0), frame(parts.header(), b"b", last)])
    file = parts.storage.open(path, writable=False)
    tracemalloc.start()
    try:
        walk = FileWalk(file, header, path, file.size())
        walk.run()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [damage.offsets for damage in walk.damage] == [range(1, last)]
    assert (walk.message_count, walk.end_offset) == (2, last + 1)
    assert peak_bytes < 16 * 2**20


@pytest.mark.parametrize("until_ns", [float("inf"), "later", [1]])
def test_a_pause_that_ends_at_no_time_goes_on_until_resume(until_ns: object) -> None:
    """Nothing is handed out that somebody has held back."""
    storage = closed_queue()
    put(
        storage,
        ROOT / "groups" / "default" / "pause.json",
        sealed({"format": FORMAT_VERSION, "until_ns": until_ns, "reason": "x"}),
    )
    with PersistentQueue(ROOT, mode="exclusive", storage=storage) as queue:
        assert "damaged" in (queue.stats().paused or "")
        queue.resume()
        assert queue.get_many(10, timeout=0) == [b"two", b"three"]


def test_finishing_a_run_costs_what_is_known_of_it_not_its_length() -> None:
    """A run may be far longer than all that was ever handed out."""
    progress = GroupProgress()
    progress.deliver(5, 3, 1)
    progress.give_back(9, 2, 1, 7, 7)
    assert progress.finish(0, 2**60) == 2**60
    assert (progress.floor, progress.deliveries, progress.returned) == (2**60, {}, {})


def test_runs_and_headers_beyond_all_numbers_do_not_count() -> None:
    """Sums of them would not fit where they are written."""
    entry = encode_entry(9, Change(ENTRY_DONE, NUMBER_MAX, 1, (0, 0)), 0, 0, 1, 0, 1)
    assert decode_entry(entry, 0, 9, 0) is None
    block = DataFileHeader(bytes(16), 1, 2**63, 0).encode()
    with pytest.raises(CorruptionError, match="numbers that are out of range"):
        DataFileHeader.decode([block, block], "x")


@pytest.mark.parametrize(
    "wrong",
    [
        Change(ENTRY_DONE, 1, 1, (1, 5000), 0, 7),
        Change(ENTRY_FLOOR, 1, 0, (1, 5000), 0, 2**63),
        Change(ENTRY_TAKEN_AWAY, 1, 1, (0, 0), 0, 7),
        Change(ENTRY_TAKEN_AWAY, 1, 1, (0, 0)),
    ],
    ids=["done", "floor, more skipped than there are", "taken away, outside of a checkpoint", "taken away from none"],
)
def test_a_delivery_number_that_an_entry_cannot_have_is_found_and_costs_no_other_entry(wrong: Change) -> None:
    """Each kind has one or has none."""
    storage = closed_queue()
    group = ROOT / "groups" / "default"
    name = max(name for name in storage.list(group) if name.endswith(".position") and name != "next.position")
    with storage.open(group / name) as file:
        data = file.read_at(file.size(), 0)
        header = PositionFileHeader.decode(block_copies(data), name)
        count = 0
        while decode_entry(data, FRAMES_START + count * ENTRY.size, header.salt, count) is not None:
            count += 1
        for number, change in ((count, wrong), (count + 1, Change(ENTRY_DELIVERED, 1, 1, (0, 0), 1, 7))):
            raw = encode_entry(header.salt, change, number, 3, 0, number, header.generation)
            file.write_at((raw,), FRAMES_START + number * ENTRY.size)
        file.sync()
    (damage,) = verify(ROOT, storage=storage).damage
    assert f"entry {count} does not verify" in damage.reason
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=16 * 1024) as queue:
        assert [delivery.delivery_count for delivery in queue.receive_many(5)] == [2]


def resealed(entry: bytes, at: int) -> bytes:
    """Return an entry with all bits set in an integer, and the right checksum."""
    body = entry[HEADER_CRC.size : at] + b"\xff" * 8 + entry[at + 8 :]
    return HEADER_CRC.pack(crc32c(0, body)) + body


def test_an_outcome_that_speaks_of_more_messages_than_there_can_be_is_refused() -> None:
    """Their number could not even be counted."""
    decided = OutcomeEntry(1, "t", bytes(16), ABORTED, range(5), 1)
    with pytest.raises(ValueError, match="messages from"):
        OutcomeEntry.decode(resealed(decided.encode(), 48))


def test_reports_count_more_messages_than_len_can() -> None:
    """A range may be longer than any list."""
    lost = range(5, 2**64 + 5)
    damage = Damage(ROOT, 0, 0, lost, DAMAGED, "?")
    assert RecoveryReport(damage=(damage,)).lost_count == VerifyReport(lost=(lost,)).lost_count == 2**64


def test_who_only_looks_is_told_that_the_end_of_the_log_is_not_known() -> None:
    """A damaged ``write.mark`` shows an empty queue otherwise, as if nothing had ever been put; opening repairs it."""
    storage = closed_queue()
    mark = ROOT / "write.mark"
    file = storage.open(mark)
    file.write_at((b"?",), 60)
    file.close()
    with PersistentQueue(ROOT, storage=storage, mode="read_only") as queue:
        assert queue.peek(10) == []
        assert [damage.path for damage in queue.recovery.damage] == [mark]
    PersistentQueue(ROOT, mode="exclusive", storage=storage).close()
    with PersistentQueue(ROOT, storage=storage, mode="read_only") as queue:
        assert [message.payload for message in queue.peek(10)] == [b"two", b"three"]
        assert not queue.recovery.damage


def test_a_write_mark_of_a_later_file_with_earlier_offsets_takes_no_message_away() -> None:
    """The queue continues behind the messages that are there, in a file behind the one that is missing."""
    storage = closed_queue()
    with PersistentQueue(ROOT, storage=storage, mode="read_only") as queue:
        queue_id = handle_of(queue).queue_id
    file = storage.open(ROOT / "write.mark")
    mark = read_write_mark(file, queue_id)
    assert mark is not None
    file.write_at((replace(mark, sequence=7, written_count=1, synced_count=1).encode(),), 0)
    file.close()
    (gone,) = verify(ROOT, storage=storage).damage
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=16 * 1024) as queue:
        assert queue.recovery.damage == (gone,)
        assert "data files 2 to 7, the last ones, are missing" in gone.reason
        assert not gone.offsets
        assert queue.put(b"four") == 3
        assert [queue.get(timeout=0) for _ in range(3)] == [b"two", b"three", b"four"]
    with PersistentQueue(ROOT, mode="exclusive", storage=storage) as queue:
        assert queue.recovery.clean


@pytest.mark.parametrize("headers", [b"\x01", TLV.pack(TLV_EXPIRES, 200), TLV.pack(TLV_USER_HEADER, 9), b"\xff" * 9])
def test_a_message_whose_headers_cannot_be_read_is_handed_out_and_holds_nobody_up(headers: bytes) -> None:
    """Its payload is what was put; who asks for the headers is told, and in one line."""
    storage = SimulatedStorage()
    with PersistentQueue(ROOT, mode="exclusive", storage=storage) as queue:
        handle_of(queue).require_write_side().put(b"one", headers, None)
        queue.put(b"two")
        with PersistentQueue(ROOT, storage=storage, mode="read_only") as beside:
            for seen in (queue.peek(5), queue.browse("ready"), beside.peek(5)):
                assert [(each.payload, each.headers) for each in seen] == [(b"one", {}), (b"two", {})]
        delivery = queue.receive(timeout=0)
        with pytest.raises(HeadersError, match="headers of a message cannot be read"):
            _ = delivery.headers
        assert delivery.payload == b"one"
        delivery.nack(delay=0)
        assert queue.get_many(5, timeout=0) == [b"one"]
        assert queue.get(timeout=0) == b"two"
        assert queue.stats().lost == 0
        handle_of(queue).require_write_side().put(b"three", headers, None)
        queue.receive(timeout=0).reject("no use")
        (letter,) = queue.dead.list()
        assert (letter.payload, letter.headers, letter.detail) == (b"three", {}, "no use")

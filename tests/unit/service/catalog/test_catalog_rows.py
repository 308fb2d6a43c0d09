"""What the catalogue says of a queue: the same that the queue says of itself."""

import json
import os
import shutil
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Backoff, FlushPolicy, verify
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory, list_data_files, open_directory
from holdfast.persistence.filesystem.storage import OsStorage, Storage
from holdfast.persistence.format.constants import ENTRY, FORMAT_VERSION, FRAMES_START, HEADER_COPY_POSITIONS
from holdfast.service.catalog import data_files as catalog_data_files
from holdfast.service.catalog.facts import QueueFacts, settings_text
from support.builders.segments import Segment, nonce
from support.builders.transactions import prepare
from support.processes.children import Signal, child
from support.service.catalogs import catalog_of, contents, drain, fail, fill, open_queue, refreshed, select

pytestmark = pytest.mark.extra("catalog")


def data_files(directory: Path, name: str = "orders") -> list[Path]:
    """Return the data files of a queue in log order."""
    return sorted((directory / name / "data").iterdir())


def flip(path: Path, *positions: int) -> None:
    """Flip a bit at some positions of a file."""
    with path.open("r+b") as file:
        for position in positions:
            file.seek(position, os.SEEK_SET if position >= 0 else os.SEEK_END)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes((byte ^ 1,)))


def ns_of(text: str) -> int:
    """Return a point in time of the catalogue in nanoseconds."""
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


# -- Queues and data files -------------------------------------------------------------------------------------------


def test_a_service_without_queues_has_no_catalogue(tmp_path: Path) -> None:
    """Nothing is made before there is something to say, the directory neither."""
    catalog_of(tmp_path / "service").refresh()
    catalog_of(tmp_path / "service").rebuild()
    assert not (tmp_path / "service").exists()


def test_an_open_queue_stands_there_with_its_settings(tmp_path: Path) -> None:
    """As JSON; objects as they would stand in ``holdfast.toml``."""
    with open_queue(tmp_path) as queue:
        fill(queue, 1)
        settings = {"flush": FlushPolicy.never(), "backoff": Backoff(cap=60), "type": dict}
        facts = QueueFacts("orders", queue.path, settings, ("application/json",))
        (row,) = refreshed(catalog_of(tmp_path, lambda: [facts]))["queues"]
    document = json.loads((tmp_path / "orders" / "queue.json").read_text())
    assert row == {
        "name": "orders",
        "path": "orders",
        "queue_id": document["queue_id"],
        "format": FORMAT_VERSION,
        "created": document["created"],
        "next_offset": 1,
        "content_types": '["application/json"]',
        "settings": '{"backoff": {"base": 1, "cap": 60, "jitter": true}, "flush": "never", "type": "dict"}',
        "problem": None,
    }


def test_settings_are_written_for_people() -> None:
    """Whatever a program may pass."""
    settings = {
        "flush": FlushPolicy.every(seconds=2),
        "lease_seconds": timedelta(minutes=1),
        "also_read": [Path("/mnt/node7")],
        "backoff": (1, 2),
        "serializer": None,
    }
    assert json.loads(settings_text(settings)) == {
        "flush": {"commits": 1000, "seconds": 2},
        "lease_seconds": 60,
        "also_read": ["/mnt/node7"],
        "backoff": [1, 2],
        "serializer": None,
    }


def test_a_queue_that_is_not_open_is_found_with_what_is_configured(tmp_path: Path) -> None:
    """Its content types are those of the first messages of its data files."""
    with open_queue(tmp_path, "done") as queue:
        fill(queue, 15, **{"content-type": "application/json"})
        fill(queue, 15, **{"content-type": "application/msgpack"})
    with open_queue(tmp_path, "bare") as queue:
        queue.put(b"x")
    (tmp_path / "no-queue").mkdir()
    (tmp_path / ".hidden").mkdir()
    rows = refreshed(catalog_of(tmp_path, configured=lambda name: {"maxsize": len(name)}))["queues"]
    assert [(row["name"], row["settings"], row["content_types"]) for row in rows] == [
        ("bare", '{"maxsize": 4}', "[]"),
        ("done", '{"maxsize": 4}', '["application/json", "application/msgpack"]'),
    ]


def test_a_queue_elsewhere_has_its_whole_path(tmp_path: Path) -> None:
    """One that was adopted from another node."""
    (tmp_path / "service").mkdir()
    with open_queue(tmp_path, "adopted") as queue:
        facts = QueueFacts("orders-node7", queue.path)
        (row,) = refreshed(catalog_of(tmp_path / "service", lambda: [facts]))["queues"]
    assert (row["name"], row["path"]) == ("orders-node7", str(tmp_path / "adopted"))


def test_data_files_say_what_they_hold(tmp_path: Path) -> None:
    """Offsets and counts without a gap, the times of their first and last messages, their sizes."""
    with open_queue(tmp_path) as queue:
        fill(queue, 35)
        times = [message.timestamp_ns // 1000 * 1000 for message in queue.peek(100)]
        rows = refreshed(catalog_of(tmp_path))["data_files"]
        assert [row["state"] for row in rows] == ["sealed", "sealed", "sealed", "active"]
        assert sum(row["bytes"] for row in rows) == queue.stats().bytes_on_disk
        assert [row["file_name"] for row in rows] == [path.name for path in data_files(tmp_path)]
        covered = [offset for row in rows for offset in range(row["first_offset"], row["last_offset"] + 1)]
        assert covered == list(range(35))
        for row in rows:
            assert row["message_count"] == row["last_offset"] - row["first_offset"] + 1
            assert (ns_of(row["first_at"]), ns_of(row["last_at"])) == (
                times[row["first_offset"]],
                times[row["last_offset"]],
            )


def test_a_first_message_may_be_large(tmp_path: Path) -> None:
    """Larger than what is read of a file to begin with."""
    with open_queue(tmp_path, data_file_bytes=2**20) as queue:
        queue.put(bytes(200_000), headers={"content-type": "image/png"})
        first_ns = queue.peek()[0].timestamp_ns
        found = refreshed(catalog_of(tmp_path))
    assert found["queues"][0]["content_types"] == '["image/png"]'
    assert ns_of(found["data_files"][0]["first_at"]) == first_ns // 1000 * 1000


def test_a_merged_data_file_counts_what_it_has(tmp_path: Path) -> None:
    """Its offsets are those of the files that it has replaced."""
    with open_queue(tmp_path) as queue:
        for _ in range(2):
            queue.put_many([bytes(2300)] * 12)  # in a file of its own
        queue.put(b"last")
        for delivery in queue.receive_many(24, timeout=0):
            if delivery.offset in (3, 20):
                delivery.reject("no use")
            else:
                delivery.ack()
        assert queue.compact().merged_count == 1
        row, last = refreshed(catalog_of(tmp_path))["data_files"]
    assert (row["first_offset"], row["last_offset"], row["message_count"]) == (0, 23, 2)
    assert (last["first_offset"], last["message_count"]) == (24, 1)


def test_an_active_file_without_a_mark_is_read(tmp_path: Path) -> None:
    """As recovery would."""
    with open_queue(tmp_path) as queue:
        fill(queue, 3)
    (tmp_path / "orders" / "write.mark").unlink()
    (row,) = refreshed(catalog_of(tmp_path))["data_files"]
    assert (row["message_count"], row["last_offset"]) == (3, 2)


def test_finished_data_files_and_removed_queues_disappear(tmp_path: Path) -> None:
    """The catalogue speaks of what is there."""
    catalog = catalog_of(tmp_path)
    with open_queue(tmp_path) as queue, open_queue(tmp_path, "others"):
        fill(queue, 35)
        assert len(refreshed(catalog)["data_files"]) == 4
        assert drain(queue) == 35
        (row,) = refreshed(catalog)["data_files"]
        assert row["sequence"] == 4
    shutil.rmtree(tmp_path / "orders")
    catalog.refresh()
    found = contents(tmp_path)
    assert [row["name"] for row in found["queues"]] == ["others"]
    assert {row["queue"] for name, rows in found.items() if name != "queues" for row in rows} <= {"others"}
    assert refreshed(catalog) == found


# -- Groups, dead letters, prepared transactions ---------------------------------------------------------------------


def test_groups_have_the_depth_that_the_queue_says(tmp_path: Path) -> None:
    """Dead letters do not count for it."""
    with open_queue(tmp_path, max_deliveries=1) as queue:
        queue.groups.create("audit")
        fill(queue, 12)
        queue.get_many(4)
        fail(queue)
        rows = refreshed(catalog_of(tmp_path))["groups"]
        assert rows == [
            {"queue": "orders", "group_name": "audit", "depth": 12, "dead": 0, "floor": 0},
            {"queue": "orders", "group_name": "default", "depth": queue.stats().depth, "dead": 1, "floor": 4},
        ]
        assert rows[1]["depth"] == 7


def test_a_dead_letter_may_say_what_is_no_text(tmp_path: Path) -> None:
    """What UTF-8 cannot have is written as an escape, and everything else is there."""
    with open_queue(tmp_path) as queue:
        fill(queue, 1)
        fail(queue, rejected="file \udcff is no file")
        rows = refreshed(catalog_of(tmp_path))
    assert rows["dead_letters"][0]["detail"] == "file \\udcff is no file"
    assert "\\udcff" in rows["events"][0]["detail"]


def test_dead_letters_are_described_without_what_they_hold(tmp_path: Path) -> None:
    """And each one is an event."""
    with open_queue(tmp_path, max_deliveries=1) as queue:
        queue.put_many([b"one", b"two", b"secret"])
        fail(queue, rejected="no such customer")
        with pytest.raises(ValueError, match="five"), queue.receive(timeout=0):
            raise ValueError("five is too much")
        letters = queue.dead.list()
        found = refreshed(catalog_of(tmp_path))
        assert [
            (
                row["offset"],
                row["reason"],
                row["detail"],
                row["exception"],
                row["deliveries"],
                ns_of(row["last_failure_at"]),
            )
            for row in found["dead_letters"]
        ] == [
            (
                letter.offset,
                letter.reason,
                letter.detail,
                letter.exception,
                letter.delivery_count,
                letter.last_failure_ns // 1000 * 1000,
            )
            for letter in letters
        ]
        assert [(row["kind"], row["subject"], row["detail"]) for row in found["events"]] == [
            ("dead_lettered", "groups/default, offset 0", "rejected: no such customer"),
            ("dead_lettered", "groups/default, offset 1", "exception: builtins.ValueError: five is too much"),
        ]
        assert found["events"][0]["at"] == found["dead_letters"][0]["last_failure_at"]
        assert b"secret" not in (tmp_path / "catalog.db").read_bytes()
        queue.dead.retry(0)
        queue.dead.discard(1)
        found = refreshed(catalog_of(tmp_path))
        assert found["dead_letters"] == found["events"] == []


def test_a_letter_that_dies_again_is_described_anew(tmp_path: Path) -> None:
    """What was read of it before does not stand for it."""
    catalog = catalog_of(tmp_path)
    with open_queue(tmp_path) as queue:
        queue.put(b"x")
        for reason in ("first", "second"):
            fail(queue, rejected=reason)
            (row,) = refreshed(catalog)["dead_letters"]
            assert row["detail"] == reason
            queue.dead.retry(0)


@pytest.mark.parametrize(("kind", "puts", "acks"), [("puts", 1, 0), ("acks", 0, 1), ("both", 1, 1)])
def test_prepared_transactions_stand_there_once(tmp_path: Path, kind: str, puts: int, acks: int) -> None:
    """Their puts and their acknowledgements are in two places, and one row."""
    catalog = catalog_of(tmp_path)
    with open_queue(tmp_path) as queue:
        queue.put_many([b"one", b"two"])
        prepare(queue, kind, "pay-7")
        (row,) = refreshed(catalog)["prepared"]
        (known,) = queue.prepared()
        assert (row["id"], row["puts"], row["acks"], row["bytes"]) == ("pay-7", puts, acks, known.size_bytes)
        assert abs(ns_of(row["prepared_at"]) / 1e9 + known.age_seconds - datetime.now(UTC).timestamp()) < 30
        assert row["coordinator"] is None
        queue.commit_prepared("pay-7")
        assert refreshed(catalog)["prepared"] == []


def test_entries_of_a_prepared_log_stand_there_as_the_queue_has_them(tmp_path: Path) -> None:
    """Beside batch files; one that has ended does not, and a damaged one can only be aborted."""
    with open_queue(tmp_path) as queue:
        queue.put(b"one")
        directory, queue_id, _ = open_directory(OsStorage(), queue.path, create=False)
    segment = Segment(directory.prepared, 1, queue_id)
    segment.put(1)
    segment.put(2)
    segment.end(2)
    damaged, _ = segment.put(3)
    segment.sync()
    segment.write(damaged + 100)
    catalog = catalog_of(tmp_path)
    found = refreshed(catalog)
    rows = {row["id"]: (row["nonce"], row["puts"], row["bytes"]) for row in found["prepared"]}
    (whole,) = segment.read(damaged + 100).entries[:1]
    assert rows == {"t1": (nonce(1).hex(), 2, whole.frames_bytes), "t3": (nonce(3).hex(), 0, 0)}
    (event,) = found["events"]
    assert event["subject"] == f"prepared/0000000001.log, position {damaged}"
    ended, _ = segment.end(1)
    segment.sync()
    segment.write(damaged + 100, ended + 40)
    damage = {row["subject"] for row in refreshed(catalog)["events"]}
    assert damage == {f"prepared/0000000001.log, position {at}" for at in (ended, damaged)}


# -- Events ----------------------------------------------------------------------------------------------------------


def test_an_owner_that_was_killed_leaves_an_event(tmp_path: Path) -> None:
    """It shows once somebody has recovered the queue and gone on in a new file."""
    put = Signal()

    def produce() -> None:
        queue = open_queue(tmp_path)
        fill(queue, 4)
        put.send()
        signal.pause()

    with child(produce) as owner:
        put.wait()
        owner.kill()
    put.close()
    catalog = catalog_of(tmp_path)
    assert refreshed(catalog)["data_files"][0]["message_count"] == 4
    with open_queue(tmp_path) as queue:
        last_ns = queue.peek(10)[-1].timestamp_ns
        queue.put(b"x")
        found = refreshed(catalog)
    first, second = found["data_files"]
    assert (first["state"], first["message_count"], second["state"]) == ("cut", 4, "active")
    (event,) = found["events"]
    assert (event["kind"], event["subject"]) == ("recovered", f"data/{first['file_name']}")
    assert event["detail"] == "the log ended uncleanly; 4 messages of this file were kept"
    assert ns_of(event["at"]) == ns_of(first["last_at"]) == last_ns // 1000 * 1000


def test_a_damaged_header_is_an_event_that_says_what_is_lost(tmp_path: Path) -> None:
    """The file stands there with what its name and its successor say."""
    with open_queue(tmp_path) as queue:
        fill(queue, 25)
    flip(data_files(tmp_path)[1], *(position + 100 for position in HEADER_COPY_POSITIONS))
    found = refreshed(catalog_of(tmp_path))
    row = found["data_files"][1]
    assert (row["state"], row["first_offset"], row["last_offset"], row["first_at"]) == ("damaged", 10, 19, None)
    (event,) = found["events"]
    assert (event["kind"], event["at"]) == ("damaged", None)
    assert event["subject"] == f"data/{row['file_name']}, position 0"
    assert event["detail"].endswith("does not match its checksum; offsets 10 to 19 lost")
    assert sum(map(len, verify(tmp_path / "orders").lost)) == 10


def test_a_damaged_header_of_the_last_file_is_an_event_too(tmp_path: Path) -> None:
    """How much that was is what ``write.mark`` says."""
    with open_queue(tmp_path) as queue:
        fill(queue, 15)
    flip(data_files(tmp_path)[-1], *(position + 100 for position in HEADER_COPY_POSITIONS))
    found = refreshed(catalog_of(tmp_path))
    assert found["events"][0]["detail"].endswith("; offsets 10 to 14 lost")
    assert found["queues"][0]["next_offset"] == 15


def test_damaged_progress_is_an_event(tmp_path: Path) -> None:
    """With the entry that cannot be read."""
    with open_queue(tmp_path) as queue:
        fill(queue, 15)
        for _ in range(9):
            queue.get()
        group = tmp_path / "orders" / "groups" / "default"
        flip(sorted(group.glob("0*.position"))[-1], FRAMES_START + 3 * ENTRY.size + 20)
        (event,) = refreshed(catalog_of(tmp_path))["events"]
    assert event["subject"].startswith("groups/default/")
    assert "entry 3 does not verify" in event["detail"]


def test_a_vote_without_its_puts_is_the_transaction_that_it_is_of(tmp_path: Path) -> None:
    """The puts are damaged; the row has what the vote says."""
    with open_queue(tmp_path) as queue:
        queue.put_many([b"one", b"two"])
        prepare(queue, "both", "pay-7")
    open_queue(tmp_path).close()  # it moves to a file of its own
    flip(tmp_path / "orders" / "prepared" / "pay-7.batch", *(position + 100 for position in HEADER_COPY_POSITIONS))
    (row,) = refreshed(catalog_of(tmp_path))["prepared"]
    assert (row["id"], row["puts"], row["acks"]) == ("pay-7", 0, 1)


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (100, "one of the two copies of the header does not verify"),
        (-10, "the seal does not verify"),
    ],
)
def test_smaller_damage_is_an_event_too(tmp_path: Path, position: int, reason: str) -> None:
    """What costs no message, and is found on the way; also in a file that was known to be good."""
    catalog = catalog_of(tmp_path)
    with open_queue(tmp_path) as queue:
        fill(queue, 25)
    before = refreshed(catalog)
    flip(data_files(tmp_path)[0], position)
    found = refreshed(catalog)
    (event,) = found["events"]
    assert event["detail"] == f"damaged: {reason}; no offset lost"
    assert {**found["data_files"][0], "first_at": None} == {**before["data_files"][0], "first_at": None}


def test_damage_that_reading_met_is_an_event(tmp_path: Path) -> None:
    """It is deep in a file, where the catalogue does not look: the service hands it in."""
    with open_queue(tmp_path) as queue:
        fill(queue, 25)
    flip(data_files(tmp_path)[0], FRAMES_START + 3 * 1082 + 500)
    with open_queue(tmp_path) as queue:
        assert drain(queue) == 24
        facts = QueueFacts("orders", queue.path, damage=queue.recovery.damage)
        (event,) = refreshed(catalog_of(tmp_path, lambda: [facts]))["events"]
    assert event["kind"] == "damaged"
    assert event["subject"].startswith("data/0000000001-00000000000000000000.data, position ")
    assert event["detail"].endswith("; offsets 3 to 3 lost")


def test_a_last_file_that_is_gone_is_an_event(tmp_path: Path) -> None:
    """``write.mark`` speaks of it."""
    with open_queue(tmp_path) as queue:
        fill(queue, 25)
    data_files(tmp_path)[-1].unlink()
    found = refreshed(catalog_of(tmp_path))
    assert found["events"][0]["detail"].endswith("the last one, is missing; offsets 20 to 24 lost")
    assert found["queues"][0]["next_offset"] == 25


def test_a_damaged_batch_and_a_damaged_identity_are_events(tmp_path: Path) -> None:
    """And do not keep the rest from being shown."""
    with open_queue(tmp_path) as queue:
        queue.put(b"x")
        prepare(queue, "puts", "pay-7")
    open_queue(tmp_path).close()  # it moves to a file of its own
    flip(tmp_path / "orders" / "prepared" / "pay-7.batch", *(position + 100 for position in HEADER_COPY_POSITIONS))
    flip(tmp_path / "orders" / "queue.json", 30)
    found = refreshed(catalog_of(tmp_path))
    assert [event["subject"] for event in found["events"]] == [
        "prepared/pay-7.batch, position 0",
        "queue.json, position 0",
    ]
    assert [(row["id"], row["prepared_at"]) for row in found["prepared"]] == [("pay-7", None)]
    assert found["data_files"][0]["message_count"] == 1
    assert found["queues"][0]["format"] is None


def test_a_queue_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """One of a newer version, next to one that is well."""
    for name in ("newer", "orders"):
        with open_queue(tmp_path, name) as queue:
            fill(queue, 1)
    (path,) = data_files(tmp_path, "newer")
    with path.open("r+b") as file:
        for position in HEADER_COPY_POSITIONS:
            file.seek(position + 8)
            file.write(b"\x63\x00")
    found = refreshed(catalog_of(tmp_path))
    newer, orders = found["queues"]
    assert "open it with a newer Holdfast" in newer["problem"]
    assert orders["problem"] is None
    assert [row["queue"] for row in found["data_files"]] == ["orders"]


@pytest.mark.parametrize("is_drained", [False, True], ids=["rolled", "rolled and retired"])
@pytest.mark.parametrize("is_before", [False, True], ids=["behind the listing", "before the listing"])
def test_a_log_that_moves_on_meanwhile_is_not_damaged(
    tmp_path: Path, is_drained: bool, is_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data files are sealed, begun and retired while the catalogue looks; the next look has it right."""
    with open_queue(tmp_path) as queue:
        fill(queue, 5)

        def move_on() -> None:
            fill(queue, 25)
            if is_drained:
                drain(queue)

        def listed(storage: Storage, directory: QueueDirectory) -> list[DataFileName]:
            if is_before:
                move_on()
            names = list_data_files(storage, directory)
            if not is_before:
                move_on()
            return names

        catalog = catalog_of(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(catalog_data_files, "list_data_files", listed)
            catalog.refresh()
        found = contents(tmp_path)
        assert found["events"] == []
        assert found["queues"][0]["problem"] is None
        assert refreshed(catalog)["queues"][0]["next_offset"] == 30


# -- Views -----------------------------------------------------------------------------------------------------------


def test_the_overview_adds_it_all_up(tmp_path: Path) -> None:
    """What somebody asks first."""
    with open_queue(tmp_path, max_deliveries=1) as queue:
        fill(queue, 12)
        fail(queue)
        prepare(queue, "puts", "pay-7")
        catalog_of(tmp_path).refresh()
        stats = queue.stats()
    (row,) = select(tmp_path, "select * from overview")
    assert row["queue"] == "orders"
    assert (row["depth"], row["dead"], row["next_offset"]) == (stats.depth, 1, 12)
    assert (row["data_files"], row["bytes"], row["prepared"], row["damaged"]) == (2, stats.bytes_on_disk, 1, 0)
    assert row["oldest_at"] < row["newest_at"]
    (reason,) = select(tmp_path, "select * from dead_letter_reasons")
    assert (reason["reason"], reason["count"]) == ("rejected", 1)

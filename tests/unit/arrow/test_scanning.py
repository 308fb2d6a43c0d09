"""A scan: the chosen rows and columns of a queue, as a stream of small batches, or an error that names its cause."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, CorruptionError, GroupNotFoundError, PersistentQueue, Put, QueueNotFoundError
from holdfast.arrow import scan
from holdfast.arrow.reading.file_range_reader import ConsumedMeanwhileError
from holdfast.persistence.filesystem.storage import OsStorage
from support.builders.small_queues import SmallQueue, build, payload

pytestmark = pytest.mark.extra("arrow")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue of ten messages: the fifth is urgent, and the seventh has headers and a key."""
    with PersistentQueue(tmp_path / "q") as queue:
        queue.put_many(
            [
                *(b"%d" % number for number in range(4)),
                Put(b"4", priority=9),
                b"5",
                Put(b"6", headers={"a": "b"}, order_key="k"),
                *(b"%d" % number for number in range(7, 10)),
            ]
        )
    return tmp_path / "q"


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[SmallQueue, int]:
    """A closed queue of three data files, and the offset of a message of the first one that cannot be read."""
    queue = build(tmp_path / "queue", OsStorage(), taken_count=0)
    first = queue.data_files()[0]
    frame = queue.frames(first)[1]
    with first.open("r+b") as file:
        file.seek(frame.position + 20)
        byte = file.read(1)
        file.seek(frame.position + 20)
        file.write(bytes([byte[0] ^ 1]))
    return queue, queue.header(first).first_offset + frame.index


def offsets(path: Path, **options: Any) -> list[int]:
    """Return what a scan gives."""
    found: list[int] = scan(path, columns=["offset"], **options).read_all()["offset"].to_pylist()
    return found


def test_all_columns_of_all_messages_in_their_order(path: Path) -> None:
    """Without a group there are no delivery counts."""
    rows = scan(path).read_all().to_pylist()
    assert [row["payload"] for row in rows] == [b"%d" % number for number in range(10)]
    assert [row["offset"] for row in rows] == list(range(10))
    assert [row["priority"] for row in rows] == [0] * 4 + [9] + [0] * 5
    assert [row["order_key"] for row in rows] == [None] * 6 + ["k"] + [None] * 3
    assert [dict(row["headers"]) for row in rows] == [{}] * 6 + [{"a": "b"}] + [{}] * 3
    assert {row["delivery_count"] for row in rows} == {None}
    assert all(row["timestamp_ns"] // 1000 * 1000 == _nanoseconds(row["timestamp"]) for row in rows)


def _nanoseconds(time: dt.datetime) -> int:
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1) * 1000


def test_only_the_chosen_columns_in_the_chosen_order(path: Path) -> None:
    """The schema says so before a message is read."""
    reader = scan(path, columns=["offset", "payload"])
    assert reader.schema.names == ["offset", "payload"]
    assert reader.read_all().to_pylist()[3] == {"offset": 3, "payload": b"3"}


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (None, None, range(10)),
        ("earliest", "latest", range(10)),
        (3, None, range(3, 10)),
        (3, 5, range(3, 5)),
        (0, 0, range(0)),
        (20, None, range(0)),
    ],
)
def test_offsets_choose_rows(path: Path, start: Any, stop: Any, expected: range) -> None:
    """The first, and the one behind the last."""
    assert offsets(path, start=start, stop=stop) == list(expected)


def test_times_choose_rows(tmp_path: Path) -> None:
    """A time without a zone is UTC."""
    with PersistentQueue(tmp_path / "q") as queue:
        queue.put_many([b"1", b"2"])
        middle = dt.datetime.now(dt.UTC) + dt.timedelta(milliseconds=1)
        while dt.datetime.now(dt.UTC) <= middle:
            pass
        queue.put(b"3")
    assert offsets(tmp_path / "q", start=middle) == offsets(tmp_path / "q", start=middle.replace(tzinfo=None)) == [2]
    assert offsets(tmp_path / "q", stop=middle) == [0, 1]


def test_a_filter_may_name_any_column(path: Path) -> None:
    """Also those that are not asked for."""
    import pyarrow.compute as pc

    assert offsets(path, filter=pc.field("priority") > 0) == [4]
    assert offsets(path, filter=(pc.field("order_key") == "k") | (pc.field("payload") == b"2")) == [2, 6]
    assert offsets(path, start=3, filter=pc.field("offset") < 5) == [3, 4]
    assert offsets(path, filter=pc.scalar(value=False)) == []


def test_a_group_gives_what_it_has_not_finished(path: Path) -> None:
    """With delivery counts."""
    with PersistentQueue(path) as queue:
        queue.receive(timeout=0).ack()
        queue.receive(timeout=0).nack(delay=0)
    table = scan(path, columns=["offset", "delivery_count"], group="default").read_all()
    assert table["offset"].to_pylist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert sum(table["delivery_count"].to_pylist()) == 1


def test_the_messages_are_those_of_the_call(path: Path) -> None:
    """What is put later is in the next scan."""
    reader = scan(path)
    with PersistentQueue(path) as queue:
        queue.put(b"10")
    assert reader.read_all().num_rows == 10
    assert scan(path).read_all().num_rows == 11


def test_a_stream_holds_one_batch_at_a_time(tmp_path: Path) -> None:
    """A batch is made of about 4 MiB of the file; those without a row that is wanted are left out."""
    import pyarrow.compute as pc

    with PersistentQueue(tmp_path / "q") as queue:
        for _ in range(5):
            queue.put_many([bytes(2**16)] * 64)
    sizes = [batch.nbytes for batch in scan(tmp_path / "q", columns=["payload"])]
    assert len(sizes) >= 5
    assert max(sizes) <= 2**22 + 2**16
    assert [batch.num_rows for batch in scan(tmp_path / "q", filter=pc.field("offset") >= 319)] == [1]


def test_damage_is_an_error_or_left_out(damaged: tuple[SmallQueue, int]) -> None:
    """The error tells how to read the rest."""
    queue, lost = damaged
    with pytest.raises(CorruptionError, match="fail_on_data_loss=False"):
        scan(queue.root).read_all()
    rest = scan(queue.root, fail_on_data_loss=False).read_all()
    assert dict(zip(rest["offset"].to_pylist(), rest["payload"].to_pylist(), strict=True)) == {
        offset: payload(offset) for offset in range(queue.put_count) if offset != lost
    }


def test_a_data_file_that_is_gone_is_an_error_or_left_out(tmp_path: Path) -> None:
    """Found when it is planned, or later when it is read."""
    queue = build(tmp_path / "queue", OsStorage(), taken_count=3)
    readers = [scan(queue.root, fail_on_data_loss=each) for each in (True, False)]
    queue.data_files()[0].unlink()
    with pytest.raises(ConsumedMeanwhileError, match="scan again"):
        readers[0].read_all()
    left = readers[1].read_all().num_rows
    assert 0 < left < queue.put_count
    with pytest.raises(CorruptionError, match="a data file is missing"):
        scan(queue.root)
    assert scan(queue.root, fail_on_data_loss=False).read_all().num_rows == left


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": ["offsets"]}, r"columns are a list of payload, offset.*; not \['offsets'\]"),
        ({"columns": "offset"}, "columns are a list of .*; not 'offset'"),
        ({"columns": []}, r"columns are a list of .*; not \[\]"),
        ({"start": "latest"}, "start is an offset from 0, a datetime or 'earliest', not 'latest'"),
        ({"start": -1}, "start is an offset"),
        ({"stop": True}, "stop is an offset from 0, a datetime or 'latest', not True"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_by_name(path: Path, options: dict[str, Any], said: str) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError, match=said):
        scan(path, **options)


def test_a_filter_that_is_none_is_refused(path: Path) -> None:
    """One line says why."""
    import pyarrow.compute as pc

    for each in (pc.field("size") > 1, pc.field("offset") + 1, pc.field("offset") > "x"):
        with pytest.raises(ConfigError, match="the filter is no condition on the columns of a queue"):
            scan(path, filter=each)


def test_a_queue_or_a_group_that_is_not_there(tmp_path: Path, path: Path) -> None:
    """Nothing is created."""
    with pytest.raises(QueueNotFoundError):
        scan(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(GroupNotFoundError):
        scan(path, group="night")


def test_without_pyarrow_one_line_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package itself can be imported."""
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[arrow\]'"):
        scan(path)


@pytest.mark.parametrize("count", [1200, 24_000])
def test_a_scan_of_merged_files_gives_what_lives_without_a_loss(tmp_path: Path, count: int) -> None:
    """Also over a gap of more messages than one batch has."""
    live, path = [7, count // 3, count - 300], tmp_path / "merged"
    with PersistentQueue(path, mode="exclusive", data_file_bytes=2**20, lease_seconds=600) as queue:
        for _ in range(0, count, 200):
            queue.put_many([bytes(2_400_000 // count)] * 200)
        for _ in range(count - 200):
            delivery = queue.receive()
            if delivery.offset in live:
                delivery.reject("kept")
            else:
                delivery.ack()
        assert queue.compact().merged_count
        found = offsets(path)
        assert set(live) <= set(found)
        assert set(range(count - 200, count)) <= set(found)
        assert found == sorted(set(found))
        assert offsets(path, start=live[1], stop=live[1] + 2)[:1] == [live[1]]
        assert offsets(path, group="default") == list(range(count - 200, count))


@pytest.mark.parametrize("read_first", [False, True])
def test_a_lenient_scan_whose_files_are_merged_behind_its_plan_has_what_lives(
    tmp_path: Path, read_first: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each message once, also if it had begun with a file; two merges come before it ends."""
    from holdfast.arrow.reading import file_range_reader

    monkeypatch.setattr(file_range_reader, "CHUNK_BYTES", 8 * 1024)
    path, lives = tmp_path / "queue", [5, 17, 29, 41]
    with PersistentQueue(path, mode="exclusive", data_file_bytes=16 * 1024) as queue:
        for _ in range(4):
            queue.put_many([bytes(2300)] * 12)  # in a file of its own
        queue.put(b"last")
        deliveries = queue.receive_many(48, timeout=0)
        for delivery in deliveries:
            if delivery.offset in lives:
                delivery.reject("kept")
            elif delivery.offset < 36:
                delivery.ack()
        reader = scan(path, columns=["offset"], fail_on_data_loss=False)
        found = reader.read_next_batch()["offset"].to_pylist() if read_first else []
        assert queue.compact().merged_count == 1
        for delivery in deliveries:
            if delivery.offset >= 36 and delivery.offset not in lives:
                delivery.ack()
        assert queue.compact().merged_count == 1
        found += reader.read_all()["offset"].to_pylist()
    assert found == [*(range(12) if read_first else [5]), *lives[1:], 48]  # an open file is read to its end
    assert "was merged after this read was planned" in caplog.text


def test_a_scan_whose_files_are_merged_behind_its_plan_says_so_and_the_next_one_has_what_lives(tmp_path: Path) -> None:
    """A plan without a group names files, as it does if one of them was removed."""
    path = tmp_path / "queue"
    with PersistentQueue(path, mode="exclusive", data_file_bytes=16 * 1024) as queue:
        for _ in range(3):
            queue.put_many([bytes(2300)] * 12)  # in a file of its own
        queue.put(b"last")
        for delivery in queue.receive_many(36, timeout=0):
            if delivery.offset % 12 == 5:
                delivery.reject("kept")
            else:
                delivery.ack()
        reader = scan(path, columns=["offset"])
        assert queue.compact().merged_count == 1
        with pytest.raises(ConsumedMeanwhileError, match="scan again"):
            reader.read_all()
    assert offsets(path) == [5, 17, 29, 36]

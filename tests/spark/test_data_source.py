"""The format ``holdfast`` without a JVM: columns, batches, partitions; each object goes through a pickle on its way."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path

import pytest

from holdfast import ConfigError, FlushPolicy, PersistentQueue, Put
from holdfast.arrow.reading.file_range_reader import ConsumedMeanwhileError
from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.storage import OsStorage
from support.builders.small_queues import SmallQueue, build, payload
from support.spark.spark_rows import batches, payloads, planned, rows

pytestmark = pytest.mark.usefixtures("arrow_packages", "tiny_files")


@pytest.fixture
def queue(tmp_path: Path) -> SmallQueue:
    """Return a closed queue of three data files, three of whose messages were taken."""
    return build(tmp_path / "queue", OsStorage(), taken_count=3)


def test_a_snapshot_holds_what_is_in_the_data_files(queue: SmallQueue) -> None:
    """Taken messages too, as long as their file is there."""
    assert payloads(queue.root) == {offset: payload(offset) for offset in range(queue.put_count)}


def test_a_snapshot_takes_nothing_and_needs_no_lock(queue: SmallQueue) -> None:
    """The application continues; what it puts later is in the next snapshot."""
    with queue.open() as opened:
        before = payloads(queue.root)
        opened.put(b"later")
        assert opened.get(timeout=0) == payload(3)
        assert payloads(queue.root) == {**before, queue.put_count: b"later"}


def test_what_is_planned_is_pinned(queue: SmallQueue) -> None:
    """A DataFrame says the same however often it is asked."""
    reader, partitions = planned(queue.root, ["offset"])
    with queue.open() as opened:
        opened.put(b"later")
    found = [row["offset"] for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == list(range(queue.put_count))


def test_every_column_says_what_it_should(tmp_path: Path) -> None:
    """Headers shared and not, priority, order key, time."""
    before = time.time_ns()
    with PersistentQueue(tmp_path / "queue", mode="exclusive") as opened:
        opened.put(b"plain")
        opened.put(b"headed", headers={"source": "web", "trace": "é"})
        opened.put(b"first", priority=7, headers={"source": "web"})
        opened.put(b"keyed", order_key="customer 5")
        opened.put(b"", headers={"source": "web"})
    found = rows(tmp_path / "queue")
    assert [row["payload"] for row in found] == [b"plain", b"headed", b"first", b"keyed", b""]
    assert [row["offset"] for row in found] == [0, 1, 2, 3, 4]
    web = [("source", "web")]
    assert [row["headers"] for row in found] == [[], [*web, ("trace", "é")], web, [], web]
    assert [row["priority"] for row in found] == [0, 0, 7, 0, 0]
    assert [row["order_key"] for row in found] == [None, None, None, "customer 5", None]
    assert [row["delivery_count"] for row in found] == [None] * 5
    for row in found:
        assert before <= row["timestamp_ns"] <= time.time_ns()
        assert row["timestamp"] == dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(
            microseconds=row["timestamp_ns"] // 1000
        )


def test_a_group_sees_what_it_has_not_finished_and_how_often_it_was_given(queue: SmallQueue) -> None:
    """What a consumer has in hand just now is not finished."""
    with queue.open() as opened:
        opened.receive(timeout=0).nack(delay=0)
        with opened.receive_many(2, timeout=0) as batch:
            assert [delivery.offset for delivery in batch] == [3]
            found = {row["offset"]: row["delivery_count"] for row in rows(queue.root, group="default")}
    assert found == {offset: (2 if offset == 3 else 0) for offset in queue.waiting}


def test_a_narrower_schema_is_honoured_in_its_order(queue: SmallQueue) -> None:
    """Arrow's names and types are exactly those of Spark."""
    import pyarrow as pa

    (first, *_) = batches(queue.root, ["offset", "payload"])
    assert first.schema == pa.schema([("offset", pa.int64()), ("payload", pa.binary())])


def test_no_column_at_all_still_counts(queue: SmallQueue) -> None:
    """A count needs rows, and none of their columns."""
    assert sum(batch.num_rows for batch in batches(queue.root, [])) == queue.put_count


def test_a_column_that_a_queue_does_not_have_is_refused(queue: SmallQueue) -> None:
    """The error names those that it has, and where columns of payloads come from."""
    from pyspark.sql.types import LongType, StructField, StructType

    from holdfast.spark.data_source import HoldfastDataSource

    source = HoldfastDataSource({"path": str(queue.root)})
    for name in ("amount", "payload"):
        with pytest.raises(ConfigError, match=f"no column `{name} bigint`; it has payload binary, offset bigint.*json"):
            source.reader(StructType([StructField(name, LongType())]))


@pytest.mark.parametrize("batch", [1, 100])
def test_headers_of_many_messages_keep_their_places(tmp_path: Path, batch: int) -> None:
    """Some have some, and batches end anywhere."""
    puts = [
        Put(b"%d" % number, headers={"n": str(number), "kind": "third"} if number % 3 == 0 else None)
        for number in range(300)
    ]
    for third in range(0, 300, 100):  # closing leaves frames between messages that are none
        with PersistentQueue(tmp_path / "queue", mode="exclusive", flush=FlushPolicy.never()) as opened:
            for start in range(third, third + 100, batch):
                opened.put_many(puts[start : start + batch])
    found = rows(tmp_path / "queue", ["payload", "headers"], startingOffset=5)
    assert [row["payload"] for row in found] == [b"%d" % number for number in range(5, 300)]
    for number, row in enumerate(found, 5):
        assert dict(row["headers"]) == ({"n": str(number), "kind": "third"} if number % 3 == 0 else {})


def test_offsets_bound_a_read(queue: SmallQueue) -> None:
    """The first one is in it, the last one is not."""
    assert list(payloads(queue.root, startingOffset=4, endingOffset=9)) == [4, 5, 6, 7, 8]
    assert list(payloads(queue.root, startingOffset="earliest", endingOffset="latest")) == list(range(queue.put_count))
    assert payloads(queue.root, startingOffset=queue.put_count) == {}


def test_timestamps_bound_a_read(tmp_path: Path) -> None:
    """Exactly, over any number of files."""
    with PersistentQueue(
        tmp_path / "queue", mode="exclusive", data_file_bytes=16 * 2**10, flush=FlushPolicy.never()
    ) as opened:
        for number in range(200):
            opened.put(b"%d" % number * 500)
    times = [row["timestamp_ns"] for row in rows(tmp_path / "queue", ["timestamp_ns"])]
    for start, end in [(0, 200), (50, 51), (77, 150), (199, 200)]:
        bounds = {"startingTimestamp": times[start]}
        if end < 200:
            bounds["endingTimestamp"] = times[end]
        expected = [
            offset
            for offset, moment in enumerate(times)
            if times[start] <= moment and (end == 200 or moment < times[end])
        ]
        assert list(payloads(tmp_path / "queue", **bounds)) == expected
    assert payloads(tmp_path / "queue", startingTimestamp=times[-1] + 1) == {}
    files = len(list((tmp_path / "queue" / "data").iterdir()))
    _, partitions = planned(tmp_path / "queue", startingTimestamp=times[100])
    assert files > 4
    assert sum(len(each.parts) for partition in partitions for each in partition.queues) < files, (
        "whole files are left out"
    )


def test_damage_is_an_error_with_its_place_or_left_out(queue: SmallQueue) -> None:
    """The option says which."""
    path = queue.data_files()[1]
    frame = queue.frames(path)[1]
    offset = queue.header(path).first_offset + frame.index
    queue.flip(path, frame.end - 1)
    with pytest.raises(CorruptionError, match=f"{path}: .* at {frame.position} .*offsets {offset}") as raised:
        payloads(queue.root)
    assert (raised.value.path, raised.value.position) == (str(path), frame.position)
    assert raised.value.offsets == (range(offset, offset + 1),)
    expected = {number: payload(number) for number in range(queue.put_count) if number != offset}
    assert payloads(queue.root, failOnDataLoss=False) == expected


def test_a_file_that_is_consumed_meanwhile_is_an_error_or_empty(queue: SmallQueue) -> None:
    """Never wrong rows, and never fewer without a word."""
    strict, partitions = planned(queue.root, ["offset", "payload"])
    lenient, _ = planned(queue.root, ["offset", "payload"], failOnDataLoss=False)
    with queue.open() as opened:
        for _ in queue.waiting:
            opened.get(timeout=0)
        opened.put_many([b"another life"] * 200)  # in files that were used before
        with pytest.raises(ConsumedMeanwhileError):
            [list(strict.read(part)) for part in partitions]
        left = [row for part in partitions for batch in lenient.read(part) for row in batch.to_pylist()]
    assert len(left) < queue.put_count
    assert all(row["payload"] == payload(row["offset"]) for row in left)


def test_a_read_of_nothing_has_one_empty_partition(queue: SmallQueue) -> None:
    """Spark wants one."""
    _, partitions = planned(queue.root, startingOffset=10**6)
    assert [partition.queues for partition in partitions] == [()]


def test_importing_holdfast_imports_neither_spark_nor_arrow() -> None:
    """The extra is an extra."""
    import subprocess
    import sys

    code = "import sys, holdfast, holdfast.spark.session; print({'pyspark', 'pyarrow'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"

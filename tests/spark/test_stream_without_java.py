"""The streaming source without a JVM: where it begins, what a batch is, what is kept, and what it says of losses."""

from __future__ import annotations

import datetime as dt
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, CorruptionError, PersistentQueue
from holdfast.persistence.filesystem.layout import DataFileName
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import FRAMES_START
from support.builders.small_queues import SmallQueue, build, payload
from support.spark.spark_rows import payloads
from support.spark.spark_streams import StreamRun, sent

pytestmark = pytest.mark.usefixtures("arrow_packages", "tiny_files")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> SmallQueue:
    """Return a closed queue of four data files, of which nothing was taken."""
    return build(tmp_path_factory.mktemp("built") / "queue", OsStorage(), file_count=4)


@pytest.fixture
def queue(built: SmallQueue, tmp_path: Path) -> SmallQueue:
    """Return a copy of it."""
    shutil.copytree(built.root, tmp_path / "queue")
    return replace(built, root=tmp_path / "queue")


def stream(queue: SmallQueue, name: str = "checkpoint", **options: object) -> StreamRun:
    """Return a stream with a checkpoint of its own."""
    return StreamRun(queue.root, queue.root.parent / name, **options)


def firsts(queue: SmallQueue) -> list[int]:
    """Return the first offset of each data file."""
    return [queue.header(path).first_offset for path in queue.data_files()]


def depth(queue: SmallQueue, group: str) -> int:
    """Return how much of a queue a group has not finished."""
    with PersistentQueue(queue.root, mode="read_only", group=group) as looked:
        return looked.stats().depth


def put(queue: SmallQueue, count: int) -> None:
    """Put more messages."""
    with queue.open() as opened:
        first = opened.stats().next_offset
        opened.put_many([payload(number) for number in range(first, first + count)])


def take_all(queue: SmallQueue) -> None:
    """Finish everything for the default group."""
    with queue.open() as opened:
        while opened.stats().depth:
            opened.get_many(100, timeout=0)


def take_all_but_one(queue: SmallQueue) -> None:
    """Finish everything for the default group but the first message, which is kept; so files behind it go."""
    with queue.open() as opened:
        opened.receive(timeout=0).nack(delay=1000)
        while opened.stats().depth > 1:
            opened.get_many(100, timeout=0)


# -- Batches ---------------------------------------------------------------------------------------------------------


def test_one_batch_has_all_there_is_and_the_next_what_came_later(queue: SmallQueue) -> None:
    """In the order of the log; nothing is taken, and where there is nothing new there is no batch."""
    run = stream(queue)
    assert run.all() == [list(range(queue.put_count))]
    assert dict(run.rows[0]) == payloads(queue.root)
    put(queue, 5)
    assert run.all() == [list(range(queue.put_count, queue.put_count + 5))]
    assert depth(queue, "default") == queue.put_count + 5


def test_a_batch_is_bounded_by_messages(queue: SmallQueue) -> None:
    """Over the borders of files."""
    batches = stream(queue, maxMessagesPerTrigger=7).all()
    assert [offset for batch in batches for offset in batch] == list(range(queue.put_count))
    assert {len(batch) for batch in batches[:-1]} == {7}


@pytest.mark.parametrize("is_open", [False, True])
def test_a_batch_is_bounded_by_bytes_of_the_files(tmp_path: Path, is_open: bool) -> None:
    """As many messages as fit, one at least; in sealed files and in the one that is being written."""
    with PersistentQueue(tmp_path / "queue", mode="exclusive", data_file_bytes=2**16) as opened:
        for number in range(300):
            opened.put(b"x" * (9000 if number == 150 else 500))
        if not is_open:
            opened.put_many([b"x" * 500] * 200)
        count = opened.stats().next_offset
        run = StreamRun(tmp_path / "queue", tmp_path / "checkpoint", maxBytesPerTrigger=5000)
        batches = run.all()
    assert [offset for batch in batches for offset in batch] == list(range(count))
    for batch in batches:
        size = sum(len(found) for found in dict(run.rows[batches.index(batch)]).values()) + 32 * len(batch)
        assert size <= 5000 or batch == [150]
    assert len(batches) < 1.3 * (count * 532 + 9000) / 5000, "and not fewer than fit"


def test_both_bounds_hold(queue: SmallQueue) -> None:
    """The one that is reached first ends a batch."""
    assert len(stream(queue, maxMessagesPerTrigger=3, maxBytesPerTrigger=10**6).all()[0]) == 3
    assert len(stream(queue, "other", maxMessagesPerTrigger=10**6, maxBytesPerTrigger=1).all()[0]) == 1


def test_a_trigger_that_wants_everything_gets_it(queue: SmallQueue) -> None:
    """Spark may ask without a limit, whatever the options say."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    reader = stream(queue, maxMessagesPerTrigger=3).reader
    assert reader.getDefaultReadLimit() == ReadMaxRows(3)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable())["offset"] == queue.put_count
    assert reader.latestOffset(start, ReadMaxRows(5))["offset"] == 5


class Clock:
    """A clock that a test sets."""

    seconds = 0.0

    def monotonic(self) -> float:
        """Return the time that the test has set."""
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock by which streams wait for messages."""
    clock = Clock()
    monkeypatch.setattr("holdfast.spark.streaming.minimum.time", clock)
    return clock


def test_a_batch_waits_for_its_minimum_but_not_for_ever(queue: SmallQueue, clock: Clock) -> None:
    """The delay begins with the first message that waits, and anew behind each batch."""
    run = stream(queue, minMessagesPerTrigger=5, maxTriggerDelay="2m")
    assert run.batch() == list(range(queue.put_count)), "there are enough"
    clock.seconds = 1000
    assert run.batch() is None
    clock.seconds = 2000
    put(queue, 4)
    assert run.batch() is None
    clock.seconds += 119
    assert run.batch() is None, "nothing waited before the put"
    clock.seconds += 1
    assert run.batch() == list(range(queue.put_count, queue.put_count + 4))
    put(queue, 4)
    clock.seconds += 119
    assert run.batch() is None
    put(queue, 1)
    assert run.batch() == list(range(queue.put_count + 4, queue.put_count + 9)), "enough come before the delay ends"


@pytest.mark.parametrize("bound", [{}, {"maxMessagesPerTrigger": 6}, {"maxBytesPerTrigger": 2000}])
def test_a_minimum_holds_beside_every_bound(queue: SmallQueue, clock: Clock, bound: dict[str, int]) -> None:
    """Spark hands over one of the limits; the options know the others."""
    run = stream(queue, minMessagesPerTrigger=5, **bound)
    batches = run.all()
    assert all(len(batch) <= bound.get("maxMessagesPerTrigger", 10**9) for batch in batches)
    assert 0 <= queue.put_count - sum(map(len, batches)) < 5
    clock.seconds = 15 * 60
    rest = run.all()
    clock.seconds = 30 * 60
    assert [each for batch in (*batches, *rest, *run.all()) for each in batch] == list(range(queue.put_count))


def test_available_now_waits_for_no_minimum(queue: SmallQueue) -> None:
    """Such a query would never end; and a trigger that wants everything gets it."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    run = stream(queue, minMessagesPerTrigger=10**6)
    assert run.batch() is None
    end = run.reader.latestOffset(run.reader.initialOffset(), ReadAllAvailable())
    assert end["offset"] == queue.put_count
    run.restart(available_now=True)
    assert run.batch() == list(range(queue.put_count))


def test_what_came_after_the_start_is_not_available_now(queue: SmallQueue) -> None:
    """The end is what was there when Spark said so; the next run takes the rest."""
    run = stream(queue, maxMessagesPerTrigger=10)
    run.restart(available_now=True)
    assert run.batch() == list(range(10))
    put(queue, 30)
    assert [offset for batch in run.all() for offset in batch] == list(range(10, queue.put_count))
    run.restart(available_now=True)
    assert sum(map(len, run.all())) == 30


def test_a_place_is_spelled_in_one_way(queue: SmallQueue) -> None:
    """Spark compares text: what is given back is what was given, in every process."""
    run = stream(queue, retainBatches=2, maxMessagesPerTrigger=20)
    run.all()
    last = run.text(run.numbers("offsets")[-1])
    assert list(json.loads(last)) == ["queue", "group", "offset", "before"]
    run.restart()
    assert json.dumps(run.reader.latestOffset(json.loads(last), run.reader.getDefaultReadLimit())) == last
    assert list(run.reader.reportLatestOffset()) == ["queue", "group", "offset", "before"]


def test_a_batch_comes_again_as_it_was(queue: SmallQueue) -> None:
    """Whatever was put meanwhile: the file that was being written is sealed by then."""
    run = stream(queue, maxMessagesPerTrigger=queue.put_count - 1)
    number = run.plan()
    assert number == 0
    rows = run.run(number)
    put(queue, 100)
    run.restart()
    assert run.plan() == number
    assert run.run(number) == rows
    assert [offset for offset, _ in rows] == list(range(queue.put_count - 1))


def test_tasks_begin_where_the_batch_begins(queue: SmallQueue) -> None:
    """And do not read what is in front of it: in a sealed file and in the last one, remembered or not."""
    run = stream(queue, maxMessagesPerTrigger=5)
    last = queue.data_files()[-1]
    for path in (queue.data_files()[1], last):
        first = queue.header(path).first_offset
        start, end = ({**run.reader.initialOffset(), "offset": at} for at in (first + 2, first + 3))
        (task,) = run.new_reader().partitions(start, end)
        frames = [frame.position for frame in queue.frames(path) if frame.index == 2]
        assert task.queues[0].parts[0].position <= frames[0], "control frames may stand in front"
        assert task.queues[0].parts[0].position == queue.frames(path)[1].end
    run.all()
    place = json.loads(run.text(run.numbers("offsets")[-1]))
    put(queue, 1)
    (task,) = run.reader.partitions(place, {**place, "offset": place["offset"] + 1})
    assert [offset for batch in sent(run.new_reader()).read(task) for offset in batch["offset"].to_pylist()] == [
        queue.put_count
    ]


# -- Where it begins -------------------------------------------------------------------------------------------------


def test_a_stream_begins_where_it_is_told(queue: SmallQueue) -> None:
    """At the oldest message, the next one, an offset; not behind the end."""
    assert stream(queue, "a", startingOffset="earliest").batch() == list(range(queue.put_count))
    assert stream(queue, "b", startingOffset=9).batch() == list(range(9, queue.put_count))
    latest = stream(queue, "c", startingOffset="latest")
    assert latest.batch() is None
    grouped = stream(queue, "g", startingOffset="latest", group="spark")
    assert grouped.batch() is None
    put(queue, 2)
    grouped.restart()
    assert grouped.batch() == [queue.put_count, queue.put_count + 1], "its group was made when it began"
    with pytest.raises(ConfigError, match=f"startingOffset is 1000, and .* ends at {queue.put_count + 2}"):
        stream(queue, "d", startingOffset=1000).batch()


def test_a_stream_begins_at_a_time(tmp_path: Path) -> None:
    """With the first message that was put then or later."""
    from support.spark.spark_rows import rows

    with PersistentQueue(tmp_path / "queue", mode="exclusive", data_file_bytes=16 * 2**10) as opened:
        for number in range(100):
            opened.put(b"%d" % number * 300)
        times = [row["timestamp_ns"] for row in rows(tmp_path / "queue", ["timestamp_ns"])]
        for first in (0, 1, 50, 99):
            run = StreamRun(tmp_path / "queue", tmp_path / str(first), startingTimestamp=times[first])
            assert run.batch() == [offset for offset in range(100) if times[offset] >= times[first]]
        later = StreamRun(tmp_path / "queue", tmp_path / "later", startingTimestamp=times[-1] + 10**18)
        assert later.batch() is None
        opened.put(b"later")
        assert later.batch() == [100]


@pytest.mark.parametrize("kind", [str, dt.datetime.isoformat])
def test_a_time_is_a_datetime_or_its_text(tmp_path: Path, kind: Callable[[dt.datetime], str]) -> None:
    """As Spark makes text of what ``option`` is given, with a zone or in UTC."""
    from support.spark.spark_rows import rows

    zone = dt.timezone(dt.timedelta(hours=5, minutes=30))
    with PersistentQueue(tmp_path / "queue", mode="exclusive") as opened:
        for number in range(3):
            opened.put(b"%d" % number)
            time.sleep(0.002)
    times = [row["timestamp"] for row in rows(tmp_path / "queue", ["timestamp"])]
    for name, moment in (("zone", times[1].astimezone(zone)), ("utc", times[1].replace(tzinfo=None))):
        run = StreamRun(tmp_path / "queue", tmp_path / name, startingTimestamp=kind(moment))
        assert run.batch() == [1, 2], "timestamps are rounded down to microseconds"


def test_an_empty_queue_is_waited_for(tmp_path: Path) -> None:
    """Also one to which nothing was ever put; the place where a stream began stays, though Spark asks again."""
    PersistentQueue(tmp_path / "queue", mode="exclusive").close()
    for path in (tmp_path / "queue" / "write.mark", *(tmp_path / "queue" / "data").iterdir()):
        path.unlink(missing_ok=True)
    runs = [StreamRun(tmp_path / "queue", tmp_path / name, startingOffset=name) for name in ("earliest", "latest")]
    assert [run.batch() for run in runs] == [None, None]
    with PersistentQueue(tmp_path / "queue", mode="exclusive") as opened:
        opened.put_many([b"a", b"b"])
    assert [run.batch() for run in runs] == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffset": 5}, "no option 'endingoffset' for a stream"),
        ({"group": "default"}, "a group of its own"),
        ({"group": "a/b"}, "cannot name a group"),
        ({"startingOffset": 1, "startingTimestamp": 1}, "give one of them"),
        ({"retainBatches": 1001}, "at most 1000"),
        ({"maxBytesPerTrigger": 0}, "maxBytesPerTrigger is a whole number from 1"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"minMessagesPerTrigger": 0}, "minMessagesPerTrigger is a whole number from 1"),
        ({"minMessagesPerTrigger": 9, "maxMessagesPerTrigger": 8}, "at most maxMessagesPerTrigger, which is 8; not 9"),
        ({"minMessagesPerTrigger": 9, "maxTriggerDelay": "900"}, "a duration as 500ms, 30s, 15m, 2h or 1d, not '900'"),
        ({"maxTriggerDelay": "15m"}, "give both"),
    ],
)
def test_options_that_cannot_be_are_refused(queue: SmallQueue, options: dict[str, object], message: str) -> None:
    """In one line."""
    with pytest.raises(ConfigError, match=message):
        stream(queue, **options)


def test_an_older_pyspark_is_told(queue: SmallQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no rate limits."""
    monkeypatch.delitem(sys.modules, "holdfast.spark.streaming.source", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    with pytest.raises(ConfigError, match=r"pyspark 4\.2"):
        stream(queue)


def test_how_far_a_stream_is_behind_is_read_from_its_reports(queue: SmallQueue) -> None:
    """Of all queues that the query reads; other sources do not count."""
    from holdfast.spark import behind

    def source(end: object, latest: object) -> dict[str, object]:
        return {"startOffset": None, "endOffset": end, "latestOffset": latest}

    def place(offset: int) -> str:
        return json.dumps({"queue": "aa", "group": "", "offset": offset, "before": []})

    kafka = source('{"topic": {"0": 1}}', '{"topic": {"0": 9}}')
    rate = source("1", "7")
    assert behind(None) is None
    assert behind({"sources": [source(None, None), kafka, rate, source("gone", "gone")]}) is None
    assert behind({"sources": [source(place(10), place(13)), kafka, source(place(0), place(4))]}) == 7
    assert behind({"sources": [source(place(10), place(9))]}) == 0, "the log may end earlier after a loss of power"


# -- What is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retained", [0, 1, 3])
def test_a_group_keeps_what_spark_may_ask_for_again(queue: SmallQueue, retained: int) -> None:
    """Each batch that Spark says is committed, but for the latest ones; and the one that is under way."""
    run = stream(queue, group="spark", retainBatches=retained, maxMessagesPerTrigger=6)
    for number in range(5):
        run.batch()
        finished = run.offset(number - retained - 1) if number > retained else 0
        assert depth(queue, "spark") == queue.put_count - finished
    take_all(queue)
    assert firsts(queue)[0] <= finished < firsts(queue)[1], "nobody needs the files in front"


def test_runs_of_one_batch_each_let_go_too(queue: SmallQueue) -> None:
    """What may be finished is known from the checkpoint, and no process has to live long for it."""
    run = stream(queue, group="spark", retainBatches=2, maxMessagesPerTrigger=5)
    for _ in range(6):
        run.batch()
        run.restart()
    assert depth(queue, "spark") == queue.put_count - 15


def test_the_stream_itself_gives_space_back(queue: SmallQueue) -> None:
    """Where the consumers have gone ahead, nobody else comes by."""
    from holdfast.spark import finalize

    run = stream(queue, group="spark", retainBatches=0, maxMessagesPerTrigger=10)
    run.batch()
    take_all(queue)
    assert len(queue.data_files()) == 4
    run.all()
    assert len(queue.data_files()) == 2, "Spark has not said yet that the last batch is committed"
    assert finalize(queue.root, queue.root.parent / "checkpoint", group="spark") == queue.put_count
    assert len(queue.data_files()) == 1


def test_without_a_group_nothing_is_marked(queue: SmallQueue) -> None:
    """And no group is made."""
    stream(queue, maxMessagesPerTrigger=5).all()
    with PersistentQueue(queue.root, mode="read_only") as looked:
        assert looked.groups.list() == []


def test_a_group_in_use_is_finished_later(queue: SmallQueue, caplog: pytest.LogCaptureFixture) -> None:
    """The warning names its owner; nothing is lost by it."""
    run = stream(queue, group="spark", retainBatches=0, maxMessagesPerTrigger=5)
    run.batch()
    with PersistentQueue(queue.root, mode="exclusive", group="spark"), caplog.at_level(logging.WARNING, "holdfast"):
        run.batch()
    assert "messages below 5 stay" in caplog.text
    assert "is owned by process" in caplog.text
    run.batch()
    assert depth(queue, "spark") == queue.put_count - 10


@pytest.mark.parametrize("trace", ["delivery", "dead letter", "reservation"])
def test_a_group_that_consumers_use_is_never_finished(queue: SmallQueue, trace: str) -> None:
    """Their messages would be lost."""
    run = stream(queue, group="night", retainBatches=0, maxMessagesPerTrigger=5)
    run.batch()
    with PersistentQueue(queue.root, mode="exclusive", group="night") as opened:
        if trace == "reservation":
            opened.reservations.take(max_messages=3)
        else:
            delivery = opened.receive(timeout=0)
            delivery.reject("no") if trace == "dead letter" else delivery.nack(delay=100)
        before = opened.stats().depth
    with pytest.raises(ConfigError, match=r"'night' of .* is used by a consumer, or has dead letters"):
        run.batch()
    assert depth(queue, "night") == before


# -- What is gone ----------------------------------------------------------------------------------------------------


def test_messages_that_are_gone_are_an_error_that_names_them(
    queue: SmallQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that is older than the data; or the stream continues with what there is, and says what is lost."""
    from holdfast.spark.streaming.queue_stream import MessagesGoneError

    run = stream(queue, maxMessagesPerTrigger=3)
    run.batch()
    take_all(queue)
    first = firsts(queue)[0]
    assert first > 10
    with pytest.raises(MessagesGoneError, match=f"messages 3..{first - 1} of .* are gone.*failOnDataLoss") as raised:
        run.batch()
    assert sent(raised.value).offsets == [range(3, first)]
    run.forget(1)  # as it was, before a batch was planned over the loss
    run.options["failOnDataLoss"] = False
    run.restart()
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert run.all()[0] == [first, first + 1, first + 2], "what is gone does not count"
    assert f"messages 3..{first - 1} of" in caplog.text


def test_files_that_were_retired_before_the_group_are_no_loss(queue: SmallQueue) -> None:
    """A message that waits keeps the first file, and those behind it go. Without a group nobody knows when."""
    from holdfast.spark.streaming.queue_stream import MessagesGoneError

    take_all_but_one(queue)
    first, second = firsts(queue)
    end_of_first = next(
        end for end in range(queue.put_count) if end not in payloads(queue.root, startingOffset=0, endingOffset=second)
    )
    wanted = [*range(first, end_of_first), *range(second, queue.put_count)]
    assert stream(queue, group="spark").all() == [wanted]
    assert stream(queue, "limited", group="spark", maxMessagesPerTrigger=len(wanted)).batch() == wanted
    with pytest.raises(MessagesGoneError, match=f"messages {end_of_first}..{second - 1} "):
        stream(queue, "other").batch()
    assert stream(queue, "third", startingOffset=end_of_first + 1).batch() == list(range(second, queue.put_count))


def test_what_a_merge_has_left_out_is_gone_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In front of what lives, between and behind it; a group that was made later has no business with it."""
    from holdfast.spark.streaming.queue_stream import MessagesGoneError

    path, lives = tmp_path / "queue", [5, 17, 29]
    with PersistentQueue(path, mode="exclusive", data_file_bytes=16 * 1024) as queue:
        for _ in range(3):
            queue.put_many([bytes(2300)] * 12)  # in a file of its own
        queue.put(b"last")
    early = StreamRun(path, tmp_path / "early")
    assert early.plan() == 0
    limited = StreamRun(path, tmp_path / "limited", maxMessagesPerTrigger=18, failOnDataLoss=False)
    assert limited.batch() == list(range(18))
    with PersistentQueue(path, mode="exclusive") as queue:
        for delivery in queue.receive_many(36, timeout=0):
            if delivery.offset in lives:
                delivery.reject("kept")
            else:
                delivery.ack()
        assert queue.compact().merged_count == 1
    with pytest.raises(MessagesGoneError, match=r"messages 0\.\.4, 6\.\.16, 18\.\.28, 30\.\.35 of .* are gone"):
        early.run(0)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert limited.batch() == [29]
    assert "messages 18..28, 30..35 of" in caplog.text
    assert StreamRun(path, tmp_path / "other", group="spark").all() == [[*lives, 36]]
    with pytest.raises(MessagesGoneError, match=r"messages 6\.\.16, 18"):
        StreamRun(path, tmp_path / "new").batch()
    assert StreamRun(path, tmp_path / "late", startingOffset=20, failOnDataLoss=False).batch() == [29, 36]


@pytest.mark.parametrize(
    "limit", [{"maxMessagesPerTrigger": 2}, {"maxBytesPerTrigger": 5000}, {"maxBytesPerTrigger": 1}]
)
def test_a_bounded_stream_goes_through_a_merged_file(tmp_path: Path, limit: dict[str, int]) -> None:
    """Batches begin at offsets that were left out, also behind the last message of the file: that is no damage."""
    path, lives = tmp_path / "queue", [5, 17, 18, 29]
    with PersistentQueue(path, mode="exclusive", data_file_bytes=16 * 1024) as queue:
        for _ in range(3):
            queue.put_many([bytes(2300)] * 12)  # in a file of its own
        queue.put(bytes(2300))
        for delivery in queue.receive_many(36, timeout=0):
            if delivery.offset in lives:
                delivery.reject("kept")
            else:
                delivery.ack()
        assert queue.compact().merged_count == 1
    batches = StreamRun(path, tmp_path / "checkpoint", group="spark", **limit).all()
    assert [offset for batch in batches for offset in batch] == [*lives, 36]
    if limit == {"maxBytesPerTrigger": 5000}:
        assert max(map(len, batches)) == 2


def test_a_group_that_was_deleted_is_made_again_and_hides_no_loss(queue: SmallQueue) -> None:
    """What went meanwhile was not read."""
    from holdfast.spark.streaming.queue_stream import MessagesGoneError

    run = stream(queue, group="spark", maxMessagesPerTrigger=3)
    run.batch()
    with PersistentQueue(queue.root, mode="exclusive") as opened:
        opened.groups.delete("spark")
    run.restart()
    run.batch()
    assert depth(queue, "spark") == queue.put_count
    with PersistentQueue(queue.root, mode="exclusive") as opened:
        opened.groups.delete("spark")
    take_all_but_one(queue)
    run.restart()
    with pytest.raises(MessagesGoneError):
        run.batch()
    run.options["failOnDataLoss"] = False
    run.restart()
    assert run.all()[-1][-1] == queue.put_count - 1


def test_a_group_that_somebody_else_has_made_again_hides_no_loss(
    queue: SmallQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """It knows nothing of the holes before its time; the stream takes it over, and from there they are its own."""
    from holdfast.spark.streaming.queue_stream import MessagesGoneError

    run = stream(queue, group="spark", maxMessagesPerTrigger=3)
    run.batch()
    with PersistentQueue(queue.root, mode="exclusive") as opened:
        opened.groups.delete("spark")
    take_all_but_one(queue)
    with PersistentQueue(queue.root, mode="exclusive") as opened:
        opened.groups.create("spark")
    run.restart()
    for _ in range(2):
        with pytest.raises(MessagesGoneError, match=f"messages .*..{firsts(queue)[1] - 1} of .* are gone"):
            run.batch()
    run.options["failOnDataLoss"] = False
    run.restart()
    with caplog.at_level(logging.WARNING, "holdfast"):
        run.batch()
    assert "are gone" in caplog.text
    del run.options["failOnDataLoss"]
    run.restart()
    assert run.all()[-1][-1] == queue.put_count - 1


def test_what_goes_while_a_group_is_made_again_is_a_loss(queue: SmallQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers do not wait for the stream."""
    from holdfast.spark.streaming import queue_stream as stream_source

    run = stream(queue, group="spark", maxMessagesPerTrigger=3)
    run.batch()
    with PersistentQueue(queue.root, mode="exclusive") as opened:
        opened.groups.delete("spark")
    begin_group = stream_source.begin_group

    def late(*arguments: Any) -> Any:
        take_all_but_one(queue)
        return begin_group(*arguments)

    monkeypatch.setattr(stream_source, "begin_group", late)
    run.restart()
    with pytest.raises(stream_source.MessagesGoneError):
        run.batch()


def test_another_queue_at_the_same_path_is_refused(queue: SmallQueue, tmp_path: Path) -> None:
    """Its offsets mean other messages."""
    run = stream(queue)
    run.batch()
    place = json.loads(run.text(0))
    queue.root.rename(tmp_path / "old")
    build(queue.root, OsStorage())
    run.restart()
    for call in (
        lambda: run.reader.latestOffset(place, run.reader.getDefaultReadLimit()),
        lambda: run.reader.partitions({**place, "offset": 0}, place),
    ):
        with pytest.raises(ConfigError, match="give the stream a new checkpoint"):
            call()
    with pytest.raises(ConfigError, match="no place in a queue"):
        run.reader.latestOffset({"kafka": 5}, run.reader.getDefaultReadLimit())


def test_a_log_that_is_shorter_than_the_stream_does_not_wedge_it(queue: SmallQueue) -> None:
    """Messages it had read were lost; their offsets come again, and those messages are read."""
    from holdfast.spark.streaming.queue_stream import MessagesGoneError

    run = stream(queue, group="spark", retainBatches=1)
    run.batch()
    place = json.loads(run.text(0))
    ahead = {**place, "offset": place["offset"] + 7, "before": [place["offset"] + 5]}
    limit = run.reader.getDefaultReadLimit()
    with pytest.raises(MessagesGoneError, match=f"messages {queue.put_count}..{queue.put_count + 6} of"):
        run.reader.latestOffset(ahead, limit)
    run.options["failOnDataLoss"] = False
    run.restart()
    back = run.reader.latestOffset(ahead, limit)
    assert back == {**place, "before": [queue.put_count]}
    assert run.reader.partitions(ahead, back) == []
    run.reader.commit({**ahead, "before": [queue.put_count + 5]})
    put(queue, 4)
    assert depth(queue, "spark") == 4, "nothing was finished that was not there"
    assert run.reader.latestOffset(back, limit)["offset"] == queue.put_count + 4


def test_a_gap_that_a_power_failure_left_is_a_loss_and_no_wall(queue: SmallQueue) -> None:
    """Messages that were visible and not on the disk: their offsets are nobody's."""
    run = stream(queue, maxMessagesPerTrigger=queue.put_count - 2)
    run.batch()
    put(queue, 10)
    last = queue.data_files()[-1]
    frames = [frame for frame in queue.frames(last) if frame.index == 2]
    with last.open("r+b") as file:
        file.truncate(frames[0].position)
    put(queue, 3)
    run.restart()
    lost = range(queue.header(last).first_offset + 2, queue.put_count + 10)
    with pytest.raises(CorruptionError):
        run.all()
    run.options["failOnDataLoss"] = False
    run.restart()
    read = [offset for batch in run.all() for offset in batch]
    assert set(read) == set(range(queue.put_count - 2, queue.put_count + 13)) - set(lost)


def test_damage_is_an_error_with_its_place_or_left_out(queue: SmallQueue) -> None:
    """As in a read."""
    path = queue.data_files()[1]
    frame = queue.frames(path)[1]
    offset = queue.header(path).first_offset + frame.index
    queue.flip(path, frame.end - 1)
    with pytest.raises(CorruptionError, match=f"{path}: .* at {frame.position} .*offsets {offset}"):
        stream(queue).all()
    run = stream(queue, "lenient", failOnDataLoss=False, maxMessagesPerTrigger=5, maxBytesPerTrigger=10**5)
    assert [at for batch in run.all() for at in batch] == [at for at in range(queue.put_count) if at != offset]


# -- Finalizing ------------------------------------------------------------------------------------------------------


def test_finalize_finishes_what_was_committed_and_no_more(queue: SmallQueue) -> None:
    """Spark says nothing of the last batch; one that is under way is not finished."""
    from holdfast.spark import finalize

    run = stream(queue, group="spark", maxMessagesPerTrigger=10)
    checkpoint = queue.root.parent / "checkpoint"
    run.reader.initialOffset()
    assert finalize(queue.root, checkpoint, group="spark") == 0
    run.batch()
    run.batch()
    run.plan()
    (checkpoint / "commits" / ".1.crc").write_bytes(b"crc")
    assert finalize(queue.root, checkpoint, group="spark", retain_batches=1) == 10
    assert finalize(queue.root, f"file://{checkpoint}", group="spark") == 20
    assert depth(queue, "spark") == queue.put_count - 20
    run.all()
    assert finalize(str(queue.root), str(checkpoint), group="spark") == queue.put_count
    assert depth(queue, "spark") == 0


def test_finalize_takes_the_slowest_of_several_sources(queue: SmallQueue) -> None:
    """A query may read one queue twice, and others beside it."""
    from holdfast.spark import finalize

    run = stream(queue, group="spark", maxMessagesPerTrigger=10)
    run.batch()
    place = json.loads(run.text(0))
    lines = ["v1", "{}", json.dumps({**place, "offset": 7}), "-", '{"topic": {"0": 5}}', json.dumps(place), "not JSON"]
    (queue.root.parent / "checkpoint" / "offsets" / "0").write_text("\n".join(lines))
    assert finalize(queue.root, queue.root.parent / "checkpoint", group="spark") == 7


def test_finalize_refuses_what_does_not_belong_together(queue: SmallQueue, tmp_path: Path) -> None:
    """A directory that is no checkpoint, one of another queue, a group that is not there or in use."""
    from holdfast import GroupNotFoundError, QueueLockedError
    from holdfast.spark import finalize

    run = stream(queue, group="spark")
    run.batch()
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(ConfigError, match="is no checkpoint"):
        finalize(queue.root, tmp_path, group="spark")
    with pytest.raises(GroupNotFoundError, match="other"):
        finalize(queue.root, checkpoint, group="other")
    with pytest.raises(ConfigError, match="a group of its own"):
        finalize(queue.root, checkpoint, group="default")
    with (
        PersistentQueue(queue.root, mode="exclusive", group="spark"),
        pytest.raises(QueueLockedError, match="owned by"),
    ):
        finalize(queue.root, checkpoint, group="spark")
    other = build(tmp_path / "other", OsStorage())
    with PersistentQueue(other.root, mode="exclusive") as opened:
        opened.groups.create("spark")
    with pytest.raises(ConfigError, match="checkpoint of another stream"):
        finalize(other.root, checkpoint, group="spark")


# -- Cost ------------------------------------------------------------------------------------------------------------


def test_a_batch_of_ten_thousand_files_looks_at_few(queue: SmallQueue) -> None:
    """At those that it reads."""
    from holdfast.spark.streaming.log import StreamLog
    from holdfast.spark.streaming.places import NO_LIMIT, Places

    opened: list[Path] = []

    class ManyFiles(OsStorage):
        def list(self, path: Path) -> list[str]:
            return [str(DataFileName(number, (number - 1) * 100)) for number in range(1, 10_001)]

        def open(self, path: Path, *, create: bool = False, writable: bool = True) -> object:
            opened.append(path)
            return super().open(queue.data_files()[-1], writable=False)

    seen = StreamLog.look(OsStorage(), queue.root)
    assert seen.mark is not None
    mark = replace(seen.mark, sequence=10_000, first_offset=999_900)
    log = replace(seen, storage=ManyFiles(), mark=mark)
    assert log.end > 999_900
    assert Places().limited_end(log, 500_000, log.end, 250, NO_LIMIT) == 500_250
    assert opened == []
    file_bytes = queue.data_files()[-1].stat().st_size - FRAMES_START
    assert Places().limited_end(log, 500_000, log.end, NO_LIMIT, 2 * file_bytes) == 500_200
    parts, gaps = log.between(500_050, 500_250)
    assert ([part.wanted for part in parts], gaps) == (
        [((500_050, 500_100),), ((500_100, 500_200),), ((500_200, 500_250),)],
        (),
    )
    assert len(opened) < 15

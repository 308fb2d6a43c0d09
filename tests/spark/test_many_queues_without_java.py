"""Many queues as a table and as a stream of Spark, without a JVM: what a place says of each queue, and what joins."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, PersistentQueue, QueueNotFoundError
from support.spark.spark_rows import planned, rows
from support.spark.spark_streams import StreamRun

pytestmark = pytest.mark.usefixtures("arrow_packages", "tiny_files")


def put(root: Path, *numbers: int) -> None:
    """Put messages that have the name of their queue in them."""
    with PersistentQueue(root) as queue:
        queue.put_many([f"{root.name} {number}".encode() for number in numbers])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of two queues whose offsets are not alike."""
    put(tmp_path / "data" / "orders-a", *range(3))
    put(tmp_path / "data" / "orders-b", *range(7))
    return tmp_path / "data"


def stream(data: Path, **options: Any) -> StreamRun:
    """Return a stream of all of the orders."""
    return StreamRun(data, data.parent / "checkpoint", queues="orders-*", **options)


def batch(run: StreamRun) -> list[tuple[str, int]] | None:
    """Run the next batch; return queue and offset of each row, which its payload has too; None: no batch."""
    number = run.plan()
    if number is None:
        return None
    found = run.run(number)
    run.finish(number, found)
    together = [(name, offset) for name, (offset, _) in zip(run.queues, found, strict=True)]
    assert [payload.decode() for _, payload in found] == [f"{name} {offset}" for name, offset in together]
    return together


def all_of(**counts: range) -> list[tuple[str, int]]:
    """Return queue and offset of some messages."""
    return [(f"orders-{name}", offset) for name, offsets in counts.items() for offset in offsets]


def depth(root: Path, group: str) -> int:
    """Return how much of a queue a group has not finished."""
    with PersistentQueue(root, mode="read_only", group=group) as looked:
        return looked.stats().depth


# -- Tables ------------------------------------------------------------------------------------------------------------


def test_a_read_has_the_queue_of_each_row_and_shares_tasks(data: Path) -> None:
    """Two small queues are one task."""
    found = rows(data, ["queue", "offset", "payload"], queues="orders-*", minPartitions=1)
    assert [(row["queue"], row["offset"]) for row in found] == all_of(a=range(3), b=range(7))
    assert len(planned(data, ["queue"], queues="*")[1]) == 1


def test_the_column_is_there_with_the_option_alone(data: Path) -> None:
    """A read of one queue has the columns that it had."""
    assert "queue" in rows(data, queues="orders-a")[0]
    assert "queue" not in rows(data / "orders-a")[0]


def test_delivery_counts_are_those_of_each_queue(data: Path) -> None:
    """The same offset of two queues has two counts."""
    with PersistentQueue(data / "orders-b") as queue:
        queue.receive(timeout=0).nack()
    counts = {
        (row["queue"], row["offset"]): row["delivery_count"]
        for row in rows(data, ["queue", "offset", "delivery_count"], queues="*", group="default")
    }
    assert {key: count for key, count in counts.items() if count} == {("orders-b", 0): 1}


# -- Streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_has_a_place_in_each_queue(data: Path) -> None:
    """What is put into one of them is the next batch, and no message of the others comes again."""
    run = stream(data)
    assert batch(run) == all_of(a=range(3), b=range(7))
    assert batch(run) is None
    put(data / "orders-a", 3, 4)
    run.restart()
    assert batch(run) == all_of(a=range(3, 5))
    put(data / "orders-b", 7)
    assert batch(run) == all_of(b=range(7, 8))


def test_a_batch_that_comes_again_has_the_same_rows(data: Path) -> None:
    """Whatever was put into either queue meanwhile."""
    run = stream(data)
    number = run.plan()
    assert number == 0
    before = run.run(0)
    put(data / "orders-a", 3)
    put(data / "orders-b", 7)
    run.restart()
    assert run.run(0) == before


def test_a_queue_that_is_made_later_joins_with_its_oldest_message(data: Path) -> None:
    """Also if the stream began with the latest messages; an empty one joins when it has a message."""
    run = stream(data, startingOffset="latest")
    assert batch(run) is None
    PersistentQueue(data / "orders-c").close()
    assert batch(run) is None
    put(data / "orders-c", 0, 1)
    put(data / "other", 0)
    assert batch(run) == all_of(c=range(2))
    run.restart()
    assert batch(run) is None
    put(data / "orders-c", 2)
    assert batch(run) == all_of(c=range(2, 3))


def test_the_first_batch_of_a_late_queue_comes_again_the_same(data: Path) -> None:
    """Its start is in the place itself, as no place before has it; and without retained batches, too."""
    run = stream(data, group="spark", retainBatches=0)
    assert batch(run) == all_of(a=range(3), b=range(7))
    put(data / "orders-c", 0, 1)
    number = run.plan()
    assert number == 1
    run.restart()
    assert [offset for offset, _ in run.run(1)] == [0, 1]
    assert json.loads(run.text(1))["joined"] == {"orders-c": 0}


def test_the_group_is_made_in_each_queue_and_keeps_what_was_not_read(data: Path) -> None:
    """Messages of a queue are finished below the place in that queue."""
    run = stream(data, group="spark", retainBatches=0, maxMessagesPerTrigger=4)
    assert batch(run) == all_of(a=range(2), b=range(2))
    assert (depth(data / "orders-a", "spark"), depth(data / "orders-b", "spark")) == (3, 7)
    assert batch(run) == all_of(a=range(2, 3), b=range(2, 5))
    assert (depth(data / "orders-a", "spark"), depth(data / "orders-b", "spark")) == (1, 5)
    assert batch(run) == all_of(b=range(5, 7))
    put(data / "orders-c", 0)
    assert batch(run) == all_of(c=range(1))
    assert depth(data / "orders-c", "spark") == 1


def test_a_bound_is_shared_and_every_queue_advances(data: Path) -> None:
    """What a small one leaves the others get; each has one message at least."""
    run = stream(data, maxMessagesPerTrigger=8)
    assert batch(run) == all_of(a=range(3), b=range(5))
    assert batch(run) == all_of(b=range(5, 7))
    tiny = StreamRun(data, data.parent / "other", queues="*", maxMessagesPerTrigger=1, maxBytesPerTrigger=1)
    assert batch(tiny) == all_of(a=range(1), b=range(1))


def test_a_minimum_counts_the_messages_of_all_queues(data: Path) -> None:
    """And a stream of what is available waits for none."""
    run = stream(data, minMessagesPerTrigger=11)
    assert batch(run) is None
    put(data / "orders-a", 3)
    assert batch(run) == all_of(a=range(4), b=range(7))
    put(data / "orders-b", 7)
    assert batch(run) is None
    run.restart(available_now=True)
    put(data / "orders-b", 8)
    put(data / "orders-c", 0)
    assert batch(run) == all_of(b=range(7, 8))
    assert batch(run) is None


@pytest.mark.parametrize("make_again", [False, True])
def test_a_queue_that_was_deleted_is_an_error_or_leaves_the_stream(data: Path, make_again: bool) -> None:
    """One that was made again under its name joins as a late one."""
    run = stream(data)
    assert batch(run) == all_of(a=range(3), b=range(7))
    shutil.rmtree(data / "orders-b")
    if make_again:
        put(data / "orders-b", *range(9))
    run.restart()
    with pytest.raises(QueueNotFoundError, match=r"orders-b of this stream was deleted.*failOnDataLoss=false"):
        run.plan()
    run.options["failOnDataLoss"] = False
    run.restart()
    assert batch(run) == (all_of(b=range(9)) if make_again else [])
    assert batch(run) is None
    put(data / "orders-a", 3)
    assert batch(run) == all_of(a=range(3, 4))


def test_a_queue_that_is_not_named_any_more_waits_until_it_is(data: Path) -> None:
    """Its place stays in the checkpoint; a query that reads what is available ends though it gets more."""
    run = stream(data)
    batch(run)
    put(data / "orders-b", 7)
    run.options["queues"] = "orders-a"
    run.restart(available_now=True)
    assert batch(run) is None
    put(data / "orders-a", 3)
    run.restart(available_now=True)
    assert batch(run) == all_of(a=range(3, 4))
    run.options["queues"] = "orders-*"
    run.restart()
    assert batch(run) == all_of(b=range(7, 8))


def test_a_batch_of_a_deleted_queue_is_an_error_or_has_the_rest(data: Path) -> None:
    """It was planned before, and runs again."""
    run = stream(data, group="spark")
    assert run.plan() == 0
    shutil.rmtree(data / "orders-b")
    run.restart()
    with pytest.raises(QueueNotFoundError, match="was deleted"):
        run.run(0)
    run.options["failOnDataLoss"] = False
    run.restart()
    run.finish(0, run.run(0))
    assert run.queues == ["orders-a"] * 3
    run.reader.commit(json.loads(run.text(0)))
    shutil.rmtree(data / "orders-a")
    assert batch(run) == []
    assert json.loads(run.text(1)) == {"queues": {}, "joined": {}}


def test_a_log_that_ends_before_the_place_goes_back(data: Path) -> None:
    """Without failOnDataLoss; the other queues have their batch all the same."""
    run = stream(data, failOnDataLoss=False)
    assert batch(run) == all_of(a=range(3), b=range(7))
    place = json.loads(run.text(0))
    place["queues"]["orders-a"]["offset"] = 50
    (data.parent / "checkpoint" / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(place)}")
    put(data / "orders-b", 7)
    run.restart()
    assert batch(run) == all_of(b=range(7, 8))
    assert json.loads(run.text(1))["queues"]["orders-a"]["offset"] == 3


def test_no_queue_at_the_start_is_an_error(tmp_path: Path) -> None:
    """It names the pattern."""
    put(tmp_path / "returns", 0)
    with pytest.raises(QueueNotFoundError, match=r"is called 'orders-\*': there are returns"):
        StreamRun(tmp_path, tmp_path / "checkpoint", queues="orders-*").plan()


@pytest.mark.parametrize(
    "change",
    [
        lambda place: place.pop("joined"),
        lambda place: place.update(queues=[]),
        lambda place: place["queues"]["orders-a"].pop("offset"),
        lambda place: place["joined"].update({"orders-a": "x"}),
    ],
)
def test_a_checkpoint_of_another_kind_is_an_error(data: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """One of a stream of one queue, for instance."""
    run = stream(data)
    place = run.reader.initialOffset()
    change(place)
    with pytest.raises(ConfigError, match="give the stream a new one"):
        run.reader.latestOffset(place, run.reader.getDefaultReadLimit())


def test_a_place_that_does_not_say_where_a_queue_begins_is_an_error(data: Path) -> None:
    """No offset of another queue is taken for it."""
    run = stream(data)
    start = run.reader.initialOffset()
    end = run.reader.latestOffset(start, run.reader.getDefaultReadLimit())
    del start["queues"]["orders-b"]
    with pytest.raises(ConfigError, match="does not say where queue orders-b begins"):
        run.reader.partitions(start, end)


def test_how_far_a_stream_is_behind_is_the_sum_of_its_queues(data: Path) -> None:
    """In each of them, by its id."""
    from holdfast.spark import behind

    run = stream(data)
    assert batch(run) == all_of(a=range(3), b=range(7))
    put(data / "orders-a", 3)
    put(data / "orders-b", 7, 8)
    latest = json.dumps(run.reader.reportLatestOffset())
    assert behind({"sources": [{"endOffset": run.text(0), "latestOffset": latest}]}) == 3
    assert behind({"sources": [{"endOffset": None, "latestOffset": latest}]}) is None


def test_a_stream_of_many_is_finalized_queue_by_queue(data: Path) -> None:
    """Each by its own place in the checkpoint."""
    from holdfast.spark import finalize

    run = stream(data, group="spark")
    assert batch(run) == all_of(a=range(3), b=range(7))
    assert [finalize(data / name, data.parent / "checkpoint", group="spark") for name in ("orders-a", "orders-b")] == [
        3,
        7,
    ]
    assert depth(data / "orders-b", "spark") == 0


def test_each_queue_is_served_by_a_token_of_its_own(data: Path) -> None:
    """A token is for one queue, and a task that sees neither reads both."""
    from support.spark.range_servers import HOST, servers_end

    with servers_end():
        _, (partition,) = planned(data, ["queue", "offset"], queues="*", serveAddress=HOST, minPartitions=1)
        places = [each.place for each in partition.queues]
        assert len({place.token for place in places}) == 2
        assert len({place.certificate for place in places}) == 1

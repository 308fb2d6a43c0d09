"""Real streaming queries over a queue: rate limits, restarts, replays, losses, and what is kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue
from holdfast.spark import behind, finalize
from support.processes.threads import wait_until
from support.spark.drains import fill
from support.spark.streams import consume_all, offsets_in, rows_of, run_now, write_now

pytestmark = pytest.mark.spark


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue of 3,000 messages in several files."""
    fill(tmp_path / "queue", range(3000), size=300)
    return tmp_path / "queue"


def depth(path: Path, group: str) -> int:
    """Return how much of a queue a group has not finished."""
    with PersistentQueue(path, mode="read_only", group=group) as looked:
        return looked.stats().depth


def test_every_message_is_in_the_sink_once_over_restarts(spark: Any, path: Path, tmp_path: Path) -> None:
    """The rate limit holds with AvailableNow; the group keeps two committed batches, and finalize lets go of them."""
    arguments = (spark, path, tmp_path / "checkpoint", tmp_path / "out")
    query = write_now(*arguments, group="stream", maxMessagesPerTrigger=1300)
    assert [each["numInputRows"] for each in query.recentProgress] == [1300, 1300, 400]
    assert [behind(each) for each in query.recentProgress] == [1700, 400, 0]
    assert offsets_in(spark, tmp_path / "out") == list(range(3000))
    assert depth(path, "stream") == 3000, "only the first of two batches that are known to be committed is not retained"
    fill(path, range(3000, 3100))
    write_now(*arguments, group="stream")
    assert offsets_in(spark, tmp_path / "out") == list(range(3100))
    assert depth(path, "stream") == 1800
    assert finalize(path, tmp_path / "checkpoint", group="stream") == 3100
    assert depth(path, "stream") == 0


def test_a_running_stream_waits_for_its_minimum(spark: Any, path: Path, tmp_path: Path) -> None:
    """It has everything once there is enough, and tells how far it is behind."""
    batches: list[int] = []
    rows = rows_of(spark, path, minMessagesPerTrigger=3100, maxTriggerDelay="1d")
    writer = rows.writeStream.foreachBatch(lambda frame, _: batches.append(frame.count()))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_until(lambda: not query.isActive or query.status["message"] == "Waiting for data to arrive", 60)
        assert sum(batches) == 0, "Spark runs an empty batch for a stream without a checkpoint"
        fill(path, range(3000, 3100))
        wait_until(lambda: not query.isActive or behind(query.lastProgress) == 0, 60)
        assert batches[-1] == sum(batches) == 3100
    finally:
        query.stop()


def test_a_batch_that_failed_comes_again_as_it_was(spark: Any, path: Path, tmp_path: Path) -> None:
    """The same id, the same rows, though more was put and the limit is another one; in several tasks."""
    from pyspark.errors import PySparkException

    seen: list[tuple[int, list[Any]]] = []

    def each(frame: Any, batch_id: int) -> None:
        seen.append((batch_id, sorted(map(tuple, frame.select("offset", "payload", "timestamp_ns").collect()))))
        if len(seen) == 2:
            raise ValueError("the sink is down")

    options = {"group": "stream", "maxBytesPerTrigger": 300_000, "partitionBytes": 50_000}
    with pytest.raises(PySparkException, match="the sink is down"):
        run_now(spark, path, tmp_path / "checkpoint", each, **options)
    fill(path, range(3000, 3050))
    run_now(spark, path, tmp_path / "checkpoint", each, **{**options, "maxBytesPerTrigger": 400_000})
    assert [batch for batch, _ in seen] == [0, 1, 1, 2, 3]
    assert seen[1][1] == seen[2][1]
    taken = [row[0] for number in (0, 2, 3, 4) for row in seen[number][1]]
    assert taken == list(range(3050))
    sizes = [sum(32 + len(row[1]) for row in rows) for _, rows in seen]
    assert all(250_000 < size <= 300_000 for size in sizes[:3]), sizes
    assert 300_000 < sizes[3] <= 400_000


def test_a_checkpoint_that_is_older_than_the_data(spark: Any, path: Path, tmp_path: Path) -> None:
    """An error that names the lost offsets; without ``failOnDataLoss`` the rest is read."""
    from pyspark.errors import PySparkException

    seen: list[int] = []

    def each(frame: Any, _: int) -> None:
        seen.extend(row.offset for row in frame.select("offset").collect())

    run_now(spark, path, tmp_path / "checkpoint", each, maxMessagesPerTrigger=3000)
    fill(path, range(3000, 6000))
    consume_all(path)
    first = int(min(file.stem for file in (path / "data").iterdir()).split("-")[1])
    assert first > 3000
    with pytest.raises(PySparkException, match=f"messages 3000..{first - 1} of .* are gone.*failOnDataLoss=false"):
        run_now(spark, path, tmp_path / "checkpoint", each)
    run_now(spark, path, tmp_path / "checkpoint", each, failOnDataLoss="false")
    assert sorted(seen) == [*range(3000), *range(first, 6000)]


def test_a_batch_of_which_nothing_is_left_is_empty(spark: Any, path: Path, tmp_path: Path) -> None:
    """The stream continues behind it."""
    seen: list[int] = []

    def each(frame: Any, _: int) -> None:
        if not seen:
            consume_all(path)
        seen.append(frame.count())

    fill(path, range(3000, 3300))
    run_now(spark, path, tmp_path / "checkpoint", each, failOnDataLoss="false", maxMessagesPerTrigger=1000)
    assert seen[0] < 1000
    assert seen[-1] > 0


def test_what_the_documentation_shows_runs(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every snippet of the page, in its order, in a fresh directory."""
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).resolve().parents[2] / "docs" / "spark-stream.md"
    snippets = re.findall(r"^```python[^\n]*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(snippets) > 2
    namespace: dict[str, object] = {"spark": spark}
    for code in snippets:
        placed = re.sub(r'"(orders|out|checkpoints)(["/])', rf'"{tmp_path}/\1\2', code)  # Spark was started elsewhere
        exec(compile(placed, str(page), "exec"), namespace)
    assert spark.read.parquet(f"{tmp_path}/out/orders").count() == 1000

"""What a machine that runs tasks may have where the driver has the queue.

As a program it runs Spark on a cluster of two executors whose queue, or temporary directory, is not that of the driver:
a path below ``/proc/self/cwd`` is another directory for each process, as with another mount, and needs no root.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import HoldfastError, PersistentQueue
from holdfast.persistence.format.constants import FRAMES_START
from support.spark.drains import fill

OWN = Path("/proc/self/cwd")
"""Another directory for each process."""

GROUP = "night"


def nothing(path: Path) -> None:
    """Have no directory there."""


def an_empty_directory(path: Path) -> None:
    """Have a mount point without its mount."""
    path.mkdir()


def another_queue(path: Path) -> None:
    """Have a queue that somebody made there."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"of somebody else")


def an_older_copy(path: Path) -> None:
    """Have the queue as it was before anything was put: a directory of an image, or of a backup."""
    shutil.copytree(path.with_name("template"), path)


SIGHTS: list[Callable[[Path], None]] = [nothing, an_empty_directory, another_queue, an_older_copy]


@contextmanager
def elsewhere(path: Path, sight: Callable[[Path], None]) -> Iterator[None]:
    """Let this process see another machine's directory at a path for a while."""
    hidden = path.with_name("hidden")
    path.rename(hidden)
    try:
        sight(path)
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)
        hidden.rename(path)


def flip(path: Path) -> int:
    """Damage the first message of the second data file; return its offset."""
    file = sorted((path / "data").iterdir())[1]
    with file.open("r+b") as raw:
        raw.seek(FRAMES_START + 60)
        raw.write(b"\xff\xff")
    return int(file.stem.split("-")[1])


# -- On a cluster ----------------------------------------------------------------------------------------------------


def outcome(action: Callable[[], object]) -> str:
    """Return what came of something: its result, or the last line of what a task or the driver raised."""
    try:
        return repr(action())
    except HoldfastError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:  # Spark's own, which quotes the task
        return " ".join(str(error).split())


def run_on_a_cluster(place: Path, what: str) -> dict[str, Any]:
    """Run reads, a drain, a stream and writes, or a drain over damage, where executors have other directories."""
    from support.spark.spark_cluster import cluster_session

    os.chdir(place)
    spark = cluster_session(place)
    spark.sparkContext.setLogLevel("OFF")
    try:
        return _unseen(spark, place) if what == "unseen" else _private_temporary(spark, place)
    finally:
        spark.stop()


def _unseen(spark: Any, place: Path) -> dict[str, Any]:
    from holdfast.spark import drain, finalize

    path, out, off = str(OWN / "q"), str(place / "out"), {"serveAddress": "off"}

    def read(is_strict: str, options: dict[str, str]) -> int:
        rows = spark.read.format("holdfast").options(failOnDataLoss=is_strict, **options).load(path)
        return int(rows.selectExpr("count(distinct offset)").first()[0])

    def stream(options: dict[str, str]) -> int:
        rows = spark.readStream.format("holdfast").options(failOnDataLoss="false", group="stream", **options)
        to = rows.load(path).writeStream.format("parquet").trigger(availableNow=True)
        query = to.option("checkpointLocation", str(place / "checkpoint")).start(f"{out}/stream")
        query.awaitTermination()
        return int(spark.read.parquet(f"{out}/stream").count())

    def drained(address: str | None) -> int:
        drain(
            path,
            spark,
            lambda frame, _: frame.write.mode("overwrite").parquet(f"{out}/d"),
            group=GROUP,
            serve_address=address,
        )
        return int(spark.read.parquet(f"{out}/d").count())

    def drained_of_many() -> list[int]:
        write = f"{out}/many"
        for number in range(2):
            fill(place / f"shop-{number}", range(1200 + number))  # more than the driver reads by itself
        report = drain(
            str(OWN),
            spark,
            lambda frame, batch_id: frame.write.mode("overwrite").parquet(f"{write}/{batch_id}"),
            queues="shop-*",
            group=GROUP,
        )
        rows = dict(spark.read.parquet(f"{write}/*").groupBy("queue").count().collect())
        assert rows == {name: each.message_count for name, each in report.queues.items()}
        return sorted(rows.values())

    def written(name: str, options: dict[str, str]) -> int:
        rows = spark.range(0, 1000, 1, 4).selectExpr("cast(id as string) payload")
        rows.write.format("holdfast").mode("append").options(create="true", **options).save(str(OWN / name))
        return _count(OWN / name)

    def written_by_column(name: str) -> list[int]:
        (place / name).mkdir()
        columns = ("concat('shop-', id % 3) queue", "cast(id as string) payload")
        rows = spark.range(0, 900, 1, 4).selectExpr(*columns).write.format("holdfast").mode("append")
        rows.options(create="true").save(str(OWN / name))
        return [_count(OWN / name / f"shop-{number}") for number in range(3)]

    def streamed(name: str, options: dict[str, str]) -> int:
        rows = spark.readStream.schema("payload binary").parquet(f"{out}/stream").writeStream.format("holdfast")
        to = rows.options(create="true", **options).trigger(availableNow=True)
        to.option("checkpointLocation", str(place / f"{name}-checkpoint")).start(str(OWN / name)).awaitTermination()
        return _count(OWN / name)

    return {
        "strict": outcome(lambda: read("true", off)),
        "lenient": outcome(lambda: read("false", off)),
        "drain": outcome(lambda: drained("off")),
        "stream": outcome(lambda: stream(off)),
        "finalized": outcome(lambda: finalize(path, place / "checkpoint", group="stream")),
        "served": [outcome(lambda: read("true", {})), outcome(lambda: drained(None)), outcome(lambda: stream({}))],
        "drained_of_many": outcome(drained_of_many),
        "write": outcome(lambda: written("refused", off)),
        "written_by_column": outcome(lambda: written_by_column("shops")),
        "written": [outcome(lambda: written("batch", {})), outcome(lambda: streamed("from-stream", {}))],
    }


def _count(path: Path) -> int:
    """Return how many different payloads a queue holds; none may be there twice, and nothing is in doubt."""
    with PersistentQueue(path, mode="read_only") as queue:
        payloads = [each.payload for each in queue.peek(10**6)]
        assert len(set(payloads)) == len(payloads)
        assert queue.prepared() == []
    return len(payloads)


def _private_temporary(spark: Any, place: Path) -> dict[str, Any]:
    from holdfast.spark import drain

    (place / "tmp").mkdir()
    tempfile.tempdir = str(OWN / "tmp")

    def write(frame: Any, _: str) -> None:
        flip(place / "q")  # it is reserved by now: only a task can find it
        frame.write.parquet(str(place / "out" / "d"))

    report = drain(place / "q", spark, write, group=GROUP)
    return {
        "message_count": report.message_count,
        "lost_count": report.lost_count,
        "row_count": spark.read.parquet(str(place / "out" / "d")).count(),
    }


if __name__ == "__main__":
    print(json.dumps(run_on_a_cluster(Path(sys.argv[1]), sys.argv[2])))

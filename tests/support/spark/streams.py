"""Streams for tests: a query that ends with what is there, and a driver that is killed in one, and in drains."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import PersistentQueue
from support.spark.drains import MOMENTS, drain_until

KILLED_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
}


STREAM = "stream"
"""The name of its place, beside those of drains, which are their moments."""


def rows_of(spark: Any, path: Path, **options: Any) -> Any:
    """Return a queue as a stream."""
    return spark.readStream.format("holdfast").options(**options).load(str(path))


def run_now(spark: Any, path: Path, checkpoint: Path, each: Callable[[Any, int], None], **options: Any) -> Any:
    """Run a query over what is there, with a function for each batch; return it when it has ended."""
    writer = rows_of(spark, path, **options).writeStream.foreachBatch(each).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    return query


def write_now(spark: Any, path: Path, checkpoint: Path, out: Path, **options: Any) -> Any:
    """As :func:`run_now`, into Spark's own file sink."""
    writer = rows_of(spark, path, **options).writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start(str(out))
    query.awaitTermination()
    return query


def offsets_in(spark: Any, out: Path) -> list[int]:
    """Return the offsets of all rows of a table."""
    return sorted(row[0] for row in spark.read.parquet(str(out)).select("offset").collect())


def consume_all(path: Path) -> None:
    """Finish everything for the default group."""
    with PersistentQueue(path, mode="exclusive", data_file_bytes=2**18) as queue:
        while queue.stats().depth:
            queue.get_many(1000, timeout=0)


def stream_and_die(spark: Any, place: Path) -> None:
    """Write ``place/q`` to Parquet in batches of 1,000 messages, and be killed at some moment of the third one."""
    checkpoint = place / "checkpoint"

    def watch() -> None:
        while not (checkpoint / "offsets" / "2").exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    arguments = (spark, place / "q", checkpoint, place / "out")
    write_now(*arguments, group="stream", maxMessagesPerTrigger=1000, retainBatches=1)


def die_in_the_middle(root: Path) -> None:
    """Be killed in the middle of a stream, while drains are at each of their moments, as the places below root say.

    Each drain continues with the next one, and the last of them with the stream.
    """
    from holdfast.spark.session import local_session

    spark = local_session("local[1]", settings=KILLED_SETTINGS)
    go_on = partial(stream_and_die, spark, root / STREAM)
    for moment in MOMENTS:
        go_on = partial(drain_until, spark, root / moment, moment, go_on)
    go_on()


if __name__ == "__main__":
    die_in_the_middle(Path(sys.argv[1]))

"""Streams for tests: a query that ends with what is there, and a driver that is killed in the middle of one."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KILLED_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
}


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


def stream_and_die(path: Path, checkpoint: Path, out: Path) -> None:
    """Write a queue to Parquet in batches of 1,000 messages, and be killed at some moment of the third one."""
    from holdfast.spark.session import local_session

    spark = local_session("local[1]", settings=KILLED_SETTINGS)

    def watch() -> None:
        while not (checkpoint / "offsets" / "2").exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    write_now(spark, path, checkpoint, out, group="stream", maxMessagesPerTrigger=1000, retainBatches=1)


if __name__ == "__main__":
    stream_and_die(*map(Path, sys.argv[1:]))

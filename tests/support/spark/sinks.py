"""Writes into queues as Spark does, without Spark's JVM; and a driver that kills itself in the middle of a write.

pyspark and pyarrow are imported when they are used: where they are missing, the tests that need them are skipped.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from holdfast import Message, PersistentQueue

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
}

BEFORE, AFTER = "before", "after"
"""The commit point."""

ROWS = 2000
WAIT_SECONDS = 90


def sent(value: Any) -> Any:
    """Return what another process gets."""
    return pickle.loads(pickle.dumps(value))


def schema_of(**types: Any) -> Any:
    """Return a schema of columns."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, kind) for name, kind in types.items()])


def payload_schema() -> Any:
    """Return the schema of payloads alone."""
    from pyspark.sql.types import BinaryType

    return schema_of(payload=BinaryType())


def writer(path: Path, schema: Any = None, *, overwrite: bool = False, is_stream: bool = False, **options: Any) -> Any:
    """Return the writer that Spark would send to its tasks."""
    from holdfast.spark.data_source import HoldfastDataSource

    texts = {name.lower(): str(value) for name, value in options.items()}
    source = sent(HoldfastDataSource({"path": str(path), **texts}))
    make = source.streamWriter if is_stream else source.writer
    return sent(make(schema or payload_schema(), overwrite))


def rows(payloads: Iterable[bytes]) -> Any:
    """Return payloads as Spark hands them to a task."""
    import pyarrow as pa

    return pa.record_batch({"payload": pa.array(payloads, pa.binary())})


def stage(writer: Any, *batches: Any) -> Any:
    """Return the message of a task that writes these record batches."""
    return sent(sent(writer).write(iter(batches)))


def commit(writer: Any, *messages: Any) -> None:
    """Commit a batch, in another process as it were."""
    sent(writer).commit([*messages])


def messages(path: Path) -> list[Message]:
    """Return what is in a queue."""
    with PersistentQueue(path, mode="read_only") as queue:
        return queue.peek(10**6)


def payloads(path: Path) -> list[bytes]:
    """Return the payloads of what is in a queue."""
    return [message.payload for message in messages(path)]


def staged(path: Path) -> list[str]:
    """Return the names of what was staged and not decided, whosever it is."""
    return sorted(each.name for each in (path / "prepared").glob("*") if each.suffix in (".batch", ".staging"))


# -- A driver that is killed -----------------------------------------------------------------------------------------


def write_numbers(spark: Any, place: Path, txnid: str) -> None:
    """Write the numbers below ROWS into ``place/q``, in two tasks."""
    numbers = spark.range(0, ROWS, 1, 2).selectExpr("cast(id as string) payload")
    numbers.write.format("holdfast").mode("append").option("txnid", txnid).save(str(place / "q"))


def start_stream(spark: Any, place: Path) -> Any:
    """Begin to write the lines of the files in ``place/lines`` into ``place/q``, with a checkpoint."""
    lines = spark.readStream.text(str(place / "lines")).withColumnRenamed("value", "payload")
    sink = lines.writeStream.format("holdfast").option("checkpointLocation", str(place / "checkpoint"))
    return sink.trigger(availableNow=True).start(str(place / "q"))


def stream_numbers(spark: Any, place: Path) -> None:
    """Write what there is of them."""
    assert start_stream(spark, place).awaitTermination(WAIT_SECONDS)


def run_again(spark: Any, place: Path, kind: str) -> None:
    """Run what a killed driver was about, as it was."""
    if kind == "batch":
        write_numbers(spark, place, "numbers")
    else:
        stream_numbers(spark, place)


def _source_that_waits() -> type:
    """Return a format that waits at the commit point of what it writes, until it is killed."""
    from holdfast.spark.data_source import HoldfastDataSource
    from holdfast.spark.writing.sink import QueueWriter
    from holdfast.spark.writing.stream_sink import QueueStreamWriter

    def at_its_moment(path: str, commit: Callable[[], None]) -> None:
        if AFTER in Path(path).parent.name:
            commit()
        Path(path).with_name("arrived.new").write_text(str(os.getpid()))
        Path(path).with_name("arrived.new").rename(Path(path).with_name("arrived"))
        signal.pause()

    class Waiting(QueueWriter):
        def commit(self, messages: Any) -> None:
            at_its_moment(str(self._sink._options.path), lambda: QueueWriter.commit(self, messages))

    class WaitingStream(QueueStreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803  # Spark's own name
            at_its_moment(str(self._sink._options.path), lambda: QueueStreamWriter.commit(self, messages, batchId))

    class WaitingSource(HoldfastDataSource):
        def writer(self, schema: Any, overwrite: bool) -> Any:
            made = super().writer(schema, overwrite)
            made.__class__ = Waiting
            return made

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802  # Spark's own name
            made = super().streamWriter(schema, overwrite)
            made.__class__ = WaitingStream
            return made

    return WaitingSource


def _write_beside(spark: Any, place: Path) -> None:
    """Write in a thread of its own: Spark looks a format up in the session of the thread."""
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    write_numbers(spark, place, "numbers")


def write_and_die(root: Path) -> None:
    """Write into several queues at once, as the names of their places say, and be killed when all have arrived."""
    from holdfast.spark import local_session

    spark = local_session("local[2]", settings=_SETTINGS)
    spark.dataSource.register(_source_that_waits())
    places = sorted(root.iterdir())
    for place in places:
        if place.name.startswith("stream"):
            start_stream(spark, place)
        else:
            threading.Thread(target=_write_beside, args=(spark, place), daemon=True).start()
    java = spark.sparkContext._gateway.proc.pid
    arrived = [place / "arrived" for place in places]
    deadline = time.monotonic() + WAIT_SECONDS
    while not all(each.exists() for each in arrived) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in (java, *(int(each.read_text()) for each in arrived if each.exists()), os.getpid()):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    write_and_die(Path(sys.argv[1]))

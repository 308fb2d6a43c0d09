"""The driver of one step: it knows nothing of kills, and does the same when it is started again.

``drain`` takes both queues into Parquet, as the example pipeline does; ``write`` puts the flights of the table into
another queue, under a name of its own; ``stream`` goes from there into a third one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from examples.spark.events import FLIGHTS, GROUP, STREAMS, queues
from pyspark.sql.types import StructType

from holdfast.spark import drain, local_session
from holdfast.spark.draining.directories import DirectoryWriter
from proof.cluster.standalone import HOSTS
from proof.cluster.strikes import striking

COPIES, STREAMED = "copies", "streamed"
"""Queues."""

DRAIN, WRITE, STREAM = "drain", "write", "stream"
STEPS = (DRAIN, WRITE, STREAM)

BATCHES = 6
TASKS = 8
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


def run(base: Path, url: str, step: str, flight_count: int) -> None:
    """Do one step."""
    settings = {
        "spark.driver.host": HOSTS[0],
        "spark.driver.bindAddress": HOSTS[0],
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": _JAVA,
        "spark.executor.extraJavaOptions": _JAVA,
        "spark.local.dir": str(base / "driver"),
        "spark.sql.warehouse.dir": str(base / "driver" / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        "spark.hadoop.fs.permissions.umask-mode": "000",  # executors of another user write beside the driver
        "spark.task.maxFailures": "8",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = local_session(url, app_name=f"holdfast: {step}", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    struck = striking(base / "work", step, flight_count)
    {DRAIN: _drain, WRITE: _write, STREAM: _stream}[step](spark, base, struck, flight_count)
    spark.stop()


def _drain(spark: Any, base: Path, struck: Any, flight_count: int) -> None:
    for stream in STREAMS:
        write = DirectoryWriter(str(stream.table(base)), "parquet", StructType.fromDDL(stream.schema))

        def write_struck(frame: Any, batch_id: str, write: DirectoryWriter = write) -> None:
            write(frame.where(struck(frame["offset"])), batch_id)

        function = write_struck if stream is FLIGHTS else write
        drain(stream.queue(base), spark, function, group=GROUP, max_messages=flight_count // BATCHES)


def _write(spark: Any, base: Path, struck: Any, _flight_count: int) -> None:
    flights = spark.read.parquet(str(FLIGHTS.table(base))).select(*FLIGHTS.type.__struct_fields__)
    rows = flights.repartition(TASKS, "id").where(struck(flights["id"]))
    sink = rows.write.format("holdfast").mode("append").option("serializer", "json").option("create", "true")
    sink.option("txnid", "copies").save(str(queues(base) / COPIES))


def _stream(spark: Any, base: Path, struck: Any, flight_count: int) -> None:
    source = spark.readStream.format("holdfast").option("group", "stream")
    rows = source.option("maxMessagesPerTrigger", str(flight_count // BATCHES)).load(str(queues(base) / COPIES))
    sink = rows.where(struck(rows["offset"])).select("payload").writeStream.format("holdfast").option("create", "true")
    sink = sink.option("checkpointLocation", str(base / "checkpoint")).trigger(availableNow=True)
    sink.start(str(queues(base) / STREAMED)).awaitTermination()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))

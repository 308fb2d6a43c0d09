"""The Spark job: drains both queues into Parquet, counts every row, adds up, and draws. Started again, it goes on.

It knows nothing of kills. What a killed job has reserved and not committed comes again, as the same batch with the same
messages, and the writer replaces what is there of that batch.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from rich.console import Console

from examples.spark.count import Count
from examples.spark.events import EARTHQUAKES, FLIGHTS, GROUP, STREAMS, Stream, read_events
from examples.spark.session import open_session
from examples.spark.tables import earthquakes_by_region, earthquakes_table, routes_by_delay, routes_table
from holdfast.cli.demo.journal import Journal
from holdfast.spark import DrainProgress, drain
from holdfast.spark.draining.directories import DirectoryWriter

BATCH_MESSAGES_MAX = 2500
"""Small, so that there are batches enough to be killed between; docs/spark-drain.md says what is sensible."""


def run(directory: Path, journal: Journal, flight_count: int, plot: Path) -> str:
    """Do all of it; return what went wrong, or nothing."""
    spark = open_session(directory / "spark")
    for stream in STREAMS:
        drain_stream(spark, stream, directory, journal)
    tables = {stream: spark.read.parquet(str(stream.table(directory))) for stream in STREAMS}
    counts = [Count.of(stream, read_events(stream, flight_count), tables[stream]) for stream in STREAMS]
    console = Console()
    console.print()
    console.print(Count.table(counts), end="")
    if failure := "; ".join(filter(None, (count.violations for count in counts))):
        return failure
    regions, routes = earthquakes_by_region(tables[EARTHQUAKES]), routes_by_delay(tables[FLIGHTS])
    console.print(earthquakes_table(regions), routes_table(routes), end="")
    from examples.spark.plot import draw  # takes a second, which the drain need not wait for

    draw(regions, routes, plot)
    spark.stop()
    return ""


def drain_stream(spark: SparkSession, stream: Stream, directory: Path, journal: Journal) -> None:
    """Drain one queue: a directory ``batch_id=...`` for each batch, the fields of the JSON payloads as columns."""
    write = DirectoryWriter(str(stream.table(directory)), "parquet", StructType.fromDDL(stream.schema))

    def write_batch(frame: DataFrame, batch_id: str) -> None:
        journal.note("writing", stream.name, batch_id)
        write(frame, batch_id)

    def tell(progress: DrainProgress) -> None:
        journal.note("committed", stream.name, progress.batch_id)
        print(
            f"  {stream.name:<11} {progress.message_count:6,} messages, {progress.size_bytes / 1e6:4.2f} MB "
            f"in {progress.seconds:4.1f} s, {progress.depth:6,} left",
            flush=True,
        )

    report = drain(
        stream.queue(directory),
        spark,
        write_batch,
        group=GROUP,
        max_messages=BATCH_MESSAGES_MAX,
        on_progress=tell,
    )
    if count := len(report.batch_ids):
        batches = "1 batch" if count == 1 else f"{count} batches"
        resumed = ", the first one resumed" if report.resumed_count else ""
        speed = report.size_bytes / 1e6 / report.seconds
        print(f"  {stream.name:<11} {batches} drained at {speed:.2f} MB/s{resumed}", flush=True)


def main(directory: Path, flight_count: int, plot: Path) -> int:
    """Run the job; return the exit status."""
    journal = Journal(directory / "job.journal")
    if failure := run(directory, journal, flight_count, plot):
        journal.note("failed", failure)
    return int(bool(failure))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))

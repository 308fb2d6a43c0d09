"""Events go through queues into Spark tables; the Spark job is killed while it writes, and every row counts once.

An application puts earthquakes and flights into two queues, as typed objects. A Spark job drains both into Parquet, is
killed with SIGKILL in the middle of a batch, and is started again: it goes on with that batch. Then each row is
compared with what was put, Spark adds up, and one plot shows what came out.

Start with ``make pipeline``, or as the last part of ``make demo``; needs Java 17 or newer. ``events.py`` has the types,
``processes/job.py`` the drain, ``tables.py`` the figures. docs/spark-pipeline.md.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from examples.spark.events import FLIGHTS, GROUP, STREAMS, queues, read_events
from examples.spark.kill import Job
from holdfast import PersistentQueue, QueueService
from holdfast.cli.demo.victim import ChildFailedError
from holdfast.errors import ConfigError
from holdfast.serializers.extras import import_extra
from holdfast.spark.session import check_java, check_spark

PLOT = Path(__file__).resolve().parents[2] / "build" / "spark-pipeline.svg"
PUT_COUNT = 1000
BATCHES_BEFORE_KILL = 2
FLIGHTS_MIN = 7500
"""Three batches."""

say = partial(print, flush=True)  # in order with what the job prints


class LostPlaceError(Exception):
    """The second run did not go on where the first one was killed."""


def run(directory: Path, options: argparse.Namespace) -> str:
    """Show the pipeline from its one end to the other; return what went wrong, or nothing."""
    put_events(directory, options.flights)

    say("\nA Spark job drains both queues into Parquet, batch by batch")
    with closing(Job(directory, options.flights, options.plot)) as job:
        killed = job.kill_while_writing(FLIGHTS, BATCHES_BEFORE_KILL)
    say(f"  kill -9     while batch {killed} was being written")
    tell_what_is_held(directory, killed)

    say("\nThe same job, started again")
    with closing(Job(directory, options.flights, options.plot)) as job:
        job.finish()
    resumed = job.first_batches.get(FLIGHTS.name)
    if resumed != killed:
        raise LostPlaceError(f"batch {killed} was being written, and the next run began with {resumed}")
    if not job.failure:
        say(f"Killed and resumed: batch {resumed}\nPlot: {options.plot}")
    return job.failure


def put_events(directory: Path, flight_count: int) -> None:
    """Put all events, as an application does: objects of a type, in batches."""
    say("Objects go into two queues")
    with QueueService(queues(directory)) as service:
        for stream in STREAMS:
            events = read_events(stream, flight_count)
            queue = service.queue(stream.name, type=stream.type, serializer="json")
            started = time.monotonic()
            for at in range(0, len(events), PUT_COUNT):
                queue.put_many(events[at : at + PUT_COUNT])
            seconds = time.monotonic() - started
            megabytes = sum(len(msgspec.json.encode(event)) for event in events) / 1e6
            say(f"  {stream.name:<11} {len(events):6,} messages, {megabytes:4.2f} MB at {megabytes / seconds:.1f} MB/s")


def tell_what_is_held(directory: Path, batch_id: str) -> None:
    """Look into the queue for the batch that was being written: reserved, and kept through the kill."""
    with PersistentQueue(FLIGHTS.queue(directory), mode="read_only", group=GROUP) as queue:
        held = {each.id: each.ack_count for each in queue.prepared()}
        depth = queue.stats().depth
    if batch_id not in held:
        raise LostPlaceError(f"batch {batch_id} was being written, and the queue does not hold it")
    say(f"  the queue   holds its {held[batch_id]:,} messages under that id; with them {depth:,} are left")


def main() -> int:
    """Run the pipeline; return the exit status."""
    options = parse_arguments()
    if missing := what_is_missing(options):
        print(f"The Spark pipeline is left out: {missing}", file=sys.stderr)
        return 1
    if options.check_java:
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    started = time.monotonic()
    directory = make_directory(options.keep)
    failure = ""
    try:
        failure = run(directory, options)
    except (ChildFailedError, LostPlaceError) as error:
        failure = str(error)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        if options.keep or failure:  # a failure is worth a look
            print(f"Kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    print(f"\nEvery row is in the tables once, through a kill -9; {time.monotonic() - started:.0f} s in all.")
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Queues are drained into Spark, which is killed on the way.")
    parser.add_argument("--flights", type=int, default=20_000, help="how many to put (all 20,000)")
    parser.add_argument("--plot", type=Path, default=PLOT, help="the SVG to write (build/spark-pipeline.svg)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this new directory and leave it there")
    parser.add_argument("--check-java", action="store_true", help="only say whether there is a Java for Spark")
    options = parser.parse_args()
    if options.flights < FLIGHTS_MIN:
        parser.error(f"--flights: {FLIGHTS_MIN:,} at least, or there is no batch left to be killed in")
    if options.keep is not None and options.keep.exists():
        parser.error(f"--keep: {options.keep} is there already")
    return options


def what_is_missing(options: argparse.Namespace) -> str:
    """Return what has to be installed first; empty where nothing."""
    try:
        check_java()
        if not options.check_java:
            check_spark()
            import_extra("matplotlib", "demo", "the plot")
    except ConfigError as error:
        return str(error)
    return ""


def make_directory(kept: Path | None) -> Path:
    """Make the directory that all of it happens in: a new one."""
    if kept is None:
        return Path(tempfile.mkdtemp(prefix="holdfast-spark-"))
    kept.mkdir(parents=True)
    return kept.resolve()


if __name__ == "__main__":
    sys.exit(main())

"""Puts real events through queues while the processes are killed again and again, and counts what came out.

A producer and a consumer share one queue. Each is killed with SIGKILL at random moments and started again at once. In
the end every event must have come out, unchanged, and none again behind its acknowledgement.

Then a worker moves events from one queue to another, each in a transaction over both, and is killed too. In the end
every event must be in the second queue, once.

In the end a service reads the events as typed objects, and workers sum them up by magnitude.

Start with ``make demo``; the modules of ``processes`` and ``typed.py`` show what an application writes.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from examples.demo.events import digest, read_events
from examples.demo.evidence import Evidence, table
from examples.demo.pipeline import Pipeline
from examples.demo.prepared import UndecidedError, kill_and_decide
from examples.demo.typed import show_typed
from examples.demo.victim import ChildFailedError, Victim, plan_kills, watch
from holdfast import PersistentQueue, verify

PIPELINE_EVENTS_MAX = 600
"""So many are moved from one queue to another: enough for all kills, and soon done."""


def main() -> int:
    """Run the demo in a temporary directory; return the exit status."""
    options = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    logging.basicConfig(stream=sys.stdout, format="  log: %(message)s")
    directory = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    failure = ""
    try:
        failure = show(directory, options) or show_pipeline(directory, options)
        failure = failure or show_typed(directory, read_events(options.events))
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        if options.keep or failure:  # a failure is worth a look
            print(f"\nKept: {directory}", flush=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if failure:
        print(f"FAILED: {failure}; seed {options.seed}", file=sys.stderr)
        return 1
    print("\nEvery event came out unchanged, and none came again behind its acknowledgement.")
    print("Every event that was to move is in the other queue, once.")
    print("Every event that can be read was handled as an object; what cannot be read was set aside.")
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="A producer and a consumer share a queue and are killed all the time.")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="decides when to kill")
    parser.add_argument("--kills", type=int, default=8, help="of each process (8)")
    parser.add_argument("--worker-kills", type=int, default=5, help="of the process that moves events (5)")
    parser.add_argument("--events", type=int, help="how many to put (all 1,707)")
    parser.add_argument("--keep", action="store_true", help="keep the queue and the journals of both processes")
    return parser.parse_args()


def show(directory: Path, options: argparse.Namespace) -> str:
    """Run both processes and print the table; return what went wrong, or nothing."""
    digests = [digest(event) for event in read_events(options.events)]
    print(
        f"{len(digests):,} earthquakes through one queue, kill -9 at random moments (seed {options.seed})\n", flush=True
    )
    evidence = Evidence(digests)
    started = time.monotonic()
    try:
        killed = run(directory, evidence, len(digests), options.kills, random.Random(options.seed))
    except ChildFailedError as error:
        return str(error)
    with PersistentQueue(directory / "queue", mode="look") as queue:
        evidence.left_count = queue.stats().depth
    evidence.damage_count = len(verify(directory / "queue").damage)
    seconds = f"{time.monotonic() - started:.1f} s"
    print(
        "\n" + table([*evidence.rows(), ("killed", killed, "producer / consumer"), ("total", seconds, "")]), flush=True
    )
    return "; ".join(evidence.violations)


def show_pipeline(directory: Path, options: argparse.Namespace) -> str:
    """Move events from one queue to another and print the table; return what went wrong, or nothing."""
    events = read_events(options.events)[:PIPELINE_EVENTS_MAX]
    print(f"\n{len(events):,} of them from one queue to another, each in one transaction over both\n", flush=True)
    pipeline = Pipeline(directory, events)
    started = time.monotonic()
    try:
        pipeline.run(options.worker_kills, random.Random(options.seed))
        pipeline.count()
        decided = kill_and_decide(directory)
    except (ChildFailedError, UndecidedError) as error:
        return str(error)
    rows = [*pipeline.rows(), ("decided after a kill", *decided), ("total", f"{time.monotonic() - started:.1f} s", "")]
    print("\n" + table(rows), flush=True)
    return "; ".join(pipeline.violations)


def run(directory: Path, evidence: Evidence, event_count: int, kill_count: int, dice: random.Random) -> str:
    """Let both processes work until every event came out; return how often each was killed."""
    queue = directory / "queue"
    PersistentQueue(queue, mode="produce").close()  # so that the consumer may come first

    def victim(role: str) -> Victim:
        journal = directory / f"{role}.journal"
        kills = plan_kills(dice, kill_count, event_count)
        return Victim(role, [queue, journal, event_count], journal, kills, evidence.take)

    with closing(victim("producer")) as producer, closing(victim("consumer")) as consumer:
        watch([producer, consumer], lambda: f"{producer.done_count:5,} put, {consumer.done_count:5,} acknowledged")
        return f"{producer.kill_count} / {consumer.kill_count}"


if __name__ == "__main__":
    sys.exit(main())

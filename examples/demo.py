"""Puts real events through a queue while both of its processes are killed again and again, and counts what came out.

A producer and a consumer share one queue. Each is killed with SIGKILL at random moments and started again at once. In
the end every event must have come out, unchanged, and none again behind its acknowledgement. Start with ``make demo``;
``demo_producer.py`` and ``demo_consumer.py`` show what an application writes.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from demo_events import digest, read_events
from demo_evidence import Evidence, table
from demo_victim import ChildFailedError, Victim, plan_kills

from holdfast import PersistentQueue, verify

POLL_SECONDS = 0.001
STALL_SECONDS = 60.0
"""A process that does nothing for so long hangs."""


def main() -> int:
    """Run the demo in a temporary directory; return the exit status."""
    options = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    directory = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    failure = ""
    try:
        failure = show(directory, options)
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
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="A producer and a consumer share a queue and are killed all the time.")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="decides when to kill")
    parser.add_argument("--kills", type=int, default=8, help="of each process (8)")
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


def run(directory: Path, evidence: Evidence, event_count: int, kill_count: int, dice: random.Random) -> str:
    """Let both processes work until every event came out; return how often each was killed."""
    PersistentQueue(directory / "queue", mode="produce").close()  # so that the consumer may come first

    def victim(role: str) -> Victim:
        return Victim(role, directory, event_count, plan_kills(dice, kill_count, event_count), evidence.take)

    with closing(victim("producer")) as producer, closing(victim("consumer")) as consumer:
        watch(producer, consumer)
        return f"{producer.kill_count} / {consumer.kill_count}"


def watch(producer: Victim, consumer: Victim) -> None:
    """Kill when it is due and say so, until both have ended."""
    started = last_progress = time.monotonic()
    before = None
    while not (producer.ended and consumer.ended):
        for victim in (producer, consumer):
            if victim.step():
                at = f"{time.monotonic() - started:6.2f} s"
                counts = f"{producer.done_count:5,} put, {consumer.done_count:5,} acknowledged"
                print(f"{at}  kill -9 {victim.role}   {counts}", flush=True)
        now = producer.done_count, consumer.done_count, producer.ended, consumer.ended
        if now != before:
            before, last_progress = now, time.monotonic()
        elif time.monotonic() - last_progress > STALL_SECONDS:
            raise ChildFailedError(f"nothing was done for {STALL_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())

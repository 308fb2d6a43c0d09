"""Moves real events from one queue to another while the process is killed again and again, and counts what came out.

A worker moves each event in a transaction over both queues. It is killed with SIGKILL at random moments and started
again at once. In the end every event must be in the second queue, once.

Then a service reads the events as typed objects, and workers sum them up by magnitude.

``make demo`` runs ``holdfast demo`` before this; the modules of ``processes`` and ``typed.py`` show what an application
writes.
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
from pathlib import Path

from examples.demo.events import read_events
from examples.demo.pipeline import Pipeline
from examples.demo.prepared import UndecidedError, kill_and_decide
from examples.demo.typed import show_typed
from holdfast.cli.demo.evidence import table
from holdfast.cli.demo.victim import ChildFailedError

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
        failure = show_pipeline(directory, options)
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
    print("\nEvery event that was to move is in the other queue, once.")
    print("Every event that can be read was handled as an object; what cannot be read was set aside.")
    return 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="A worker moves events between queues and is killed all the time.")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="decides when to kill")
    parser.add_argument("--kills", type=int, default=5, help="of the process that moves events (5)")
    parser.add_argument("--events", type=int, help="how many to put (all 1,707)")
    parser.add_argument("--keep", action="store_true", help="keep the queues and the journals of the processes")
    return parser.parse_args()


def show_pipeline(directory: Path, options: argparse.Namespace) -> str:
    """Move events from one queue to another and print the table; return what went wrong, or nothing."""
    events = read_events(options.events)[:PIPELINE_EVENTS_MAX]
    print(f"{len(events):,} earthquakes from one queue to another, each in one transaction over both\n", flush=True)
    pipeline = Pipeline(directory, events)
    started = time.monotonic()
    try:
        pipeline.run(options.kills, random.Random(options.seed))
        pipeline.count()
        decided = kill_and_decide(directory)
    except (ChildFailedError, UndecidedError) as error:
        return str(error)
    rows = [*pipeline.rows(), ("decided after a kill", *decided), ("total", f"{time.monotonic() - started:.1f} s", "")]
    print("\n" + table(rows), flush=True)
    return "; ".join(pipeline.violations)


if __name__ == "__main__":
    sys.exit(main())

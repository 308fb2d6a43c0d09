"""What has to happen in a process of its own: opening with nothing in memory, dying, taking and putting from afar.

``python -m benchmarks.processes.fresh_process fill|delay|open|wake|relay|stream …``; each prints what it measured.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from itertools import repeat
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

STAMP_BYTES = 8
STOP = bytes(STAMP_BYTES)
"""A message that ends a relay."""

DAY_SECONDS = 86_400

STREAM_SECONDS_MAX = 600.0
"""Longer than a slow disk needs."""


def command(*arguments: object) -> list[str]:
    """Return the command line that runs this module; its working directory has to be ``ROOT``."""
    return [sys.executable, "-m", "benchmarks.processes.fresh_process", *map(str, arguments)]


def run(*arguments: object, dies: bool = False) -> str:
    """Run this module to its end, which is SIGKILL where it ``dies``, and return what it printed."""
    done = subprocess.run(command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    expected = -signal.SIGKILL if dies else 0
    assert done.returncode == expected, f"{arguments[0]} ended with {done.returncode}"
    return done.stdout


def peak_resident_bytes() -> int:
    """Return the most memory this process has had resident so far.

    On Linux from ``VmHWM``: what ``getrusage`` says there also counts the parent, from before the program was loaded.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def fill(folder: Path, count: int, size: int, ending: str) -> None:
    """Fill a queue, and close it or die by SIGKILL with it open."""
    from benchmarks.cases.queue_cases import NEVER, open_queue
    from benchmarks.measuring.load import BATCH, Load

    load = Load(count, size)
    queue = open_queue(folder, NEVER)
    for _ in range(load.batches):
        queue.put_many([load.payload] * BATCH)
    if ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    queue.close()


def open_and_get(folder: Path, size: int) -> None:
    """Print the seconds of opening and the first get, and the memory before and after."""
    from holdfast import FlushPolicy, PersistentQueue

    flush = FlushPolicy.never()
    before_bytes = peak_resident_bytes()
    started = time.perf_counter()
    queue = PersistentQueue(folder / "queue", mode="exclusive", flush=flush)
    payload = queue.get()
    seconds = time.perf_counter() - started
    after_bytes = peak_resident_bytes()
    assert len(payload) == size
    print(json.dumps({"seconds": seconds, "before_bytes": before_bytes, "after_bytes": after_bytes}))
    queue.close()


def fill_delayed(folder: Path, count: int, size: int) -> None:
    """Fill a queue with messages that wait for a day, and close it."""
    from benchmarks.cases.queue_cases import NEVER, open_queue
    from benchmarks.measuring.load import BATCH, Load
    from holdfast import Put

    load = Load(count, size)
    with open_queue(folder, NEVER) as queue:
        for _ in range(load.batches):
            queue.put_many([Put(load.payload, delay=DAY_SECONDS)] * BATCH)


def open_and_wake(folder: Path, count: int) -> None:
    """Open a queue whose messages all wait, and take them a day later; print seconds and memory of both."""
    from benchmarks.measuring.load import BATCH
    from holdfast import Empty, FlushPolicy, PersistentQueue
    from holdfast.clock import SystemClock

    class LaterClock(SystemClock):
        """Shows the time, or what it will be in a while."""

        ahead_ns = 0

        def time_ns(self) -> int:
            return time.time_ns() + self.ahead_ns

    clock = LaterClock()
    before_bytes = peak_resident_bytes()
    started = time.perf_counter()
    queue = PersistentQueue(folder / "queue", mode="exclusive", flush=FlushPolicy.never(), clock=clock)
    try:
        queue.get_nowait()
        raise AssertionError("a message came before its time")
    except Empty:
        open_seconds = time.perf_counter() - started
    opened_bytes = peak_resident_bytes()
    clock.ahead_ns = 2 * DAY_SECONDS * 10**9
    started = time.perf_counter()
    left = count
    while left:
        left -= len(queue.get_many(BATCH))
    take_seconds = time.perf_counter() - started
    queue.close()
    print(
        json.dumps(
            {
                "open_seconds": open_seconds,
                "take_seconds": take_seconds,
                "before_bytes": before_bytes,
                "opened_bytes": opened_bytes,
                "after_bytes": peak_resident_bytes(),
            }
        )
    )


def relay(folder: Path, policy: str) -> None:
    """Take messages that hold the time at which they were put; print how many nanoseconds ago that was."""
    from holdfast import FlushPolicy, PersistentQueue

    flush = FlushPolicy.never() if policy == "never" else FlushPolicy.every_commit()
    with PersistentQueue(folder / "queue", mode="shared", flush=flush) as queue:
        print("ready", flush=True)
        while (stamp := queue.get()[:STAMP_BYTES]) != STOP:
            print(time.monotonic_ns() - int.from_bytes(stamp, "little"), flush=True)


def stream(folder: Path, size: int) -> None:
    """Put one message of ``size`` bytes that comes in pieces; print the seconds, and the memory before and after."""
    from holdfast import FlushPolicy, PersistentQueue

    piece = bytes(range(256)) * 2**12
    with PersistentQueue(folder / "queue", mode="exclusive", flush=FlushPolicy.never()) as queue:
        before_bytes = peak_resident_bytes()
        started = time.perf_counter()
        with queue.transaction(timeout=STREAM_SECONDS_MAX) as tx:
            put_bytes = tx.put_stream(repeat(piece, size // len(piece)), max_bytes=size)
        seconds = time.perf_counter() - started
        after_bytes = peak_resident_bytes()
        assert (put_bytes, queue.qsize()) == (size, 1)
    print(json.dumps({"seconds": seconds, "before_bytes": before_bytes, "after_bytes": after_bytes}))


def main(action: str, folder: str, *rest: str) -> None:
    """Do what the command line says."""
    place, numbers = Path(folder), [int(word) for word in rest if word.isdecimal()]
    if action == "fill":
        fill(place, numbers[0], numbers[1], rest[2])
    elif action == "delay":
        fill_delayed(place, *numbers)
    elif action == "open":
        open_and_get(place, *numbers)
    elif action == "wake":
        open_and_wake(place, *numbers)
    elif action == "relay":
        relay(place, rest[0])
    else:
        stream(place, *numbers)


if __name__ == "__main__":
    main(*sys.argv[1:])

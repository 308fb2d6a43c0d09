"""A service that does nothing, in a process of its own: what that costs, and how soon it wakes up.

``python -m benchmarks.processes.idle_process many|wait|work|answer …``; each prints what it measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from benchmarks.processes.fresh_process import ROOT, STAMP_BYTES, STOP, peak_resident_bytes

SETTLE_SECONDS = 6.0
"""Threads and handles of a queue that is not used are given up within 4 s."""


def command(*arguments: object) -> list[str]:
    """Return the command line that runs this module; its working directory has to be ``ROOT``."""
    return [sys.executable, "-m", "benchmarks.processes.idle_process", *map(str, arguments)]


def run(*arguments: object) -> dict[str, float]:
    """Run this module to its end, and return what it measured."""
    done = subprocess.run(command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def handle_count() -> int:
    """Return how many handles this process has open."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        if os.path.isdir(folder):
            return len(os.listdir(folder))
    raise OSError("this system does not show the handles of a process")


def core_share(seconds: float) -> float:
    """Return what this process takes of a core for so long, in percent."""
    started, used = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - used) / (time.perf_counter() - started) * 100


def open_many(folder: Path, count: int, seconds: float) -> None:
    """Open queues, use each once, and then none of them."""
    from holdfast import QueueService

    handles_before, threads_before = handle_count(), threading.active_count()
    started = time.perf_counter()
    with QueueService(folder, mode="exclusive") as service:
        queues = [service.queue(f"queue-{number}", type=bytes) for number in range(count)]
        open_seconds = time.perf_counter() - started
        for queue in queues:
            queue.put(b"message")
            queue.receive(timeout=0).ack()
        time.sleep(SETTLE_SECONDS)
        figures = {
            "open_seconds": open_seconds,
            "resident_bytes": peak_resident_bytes(),
            "handles": (handle_count() - handles_before) / count,
            "threads": threading.active_count() - threads_before,
            "core_percent": core_share(seconds),
        }
    print(json.dumps(figures))


def wait_idly(folder: Path, mode: Literal["exclusive", "shared"], seconds: float) -> None:
    """Wait in ``receive`` for a message that does not come."""
    from holdfast import QueueService
    from holdfast.errors import ShutDown

    with QueueService(folder, mode=mode) as service:
        queue = service.queue("orders", type=bytes)
        queue.receive(timeout=0).ack()

        def consume() -> None:
            with suppress(ShutDown):
                queue.receive()

        consumer = threading.Thread(target=consume)
        consumer.start()
        time.sleep(SETTLE_SECONDS)
        print(json.dumps({"core_percent": core_share(seconds)}))
        queue.raw.shutdown(immediate=True)
        consumer.join()


def work_idly(folder: Path, concurrency: int, seconds: float) -> None:
    """Run a consumer that handles one message, and then has nothing to do."""
    from holdfast import QueueService

    with QueueService(folder, mode="exclusive") as service:
        queue = service.queue("orders", type=bytes)
        handled = threading.Event()
        service.consumer(queue, concurrency=concurrency)(lambda body: handled.set())
        queue.put(b"message")

        def measure() -> None:
            handled.wait()
            time.sleep(SETTLE_SECONDS)
            print(json.dumps({"core_percent": core_share(seconds)}))
            service.stop()

        measuring = threading.Thread(target=measure, daemon=True)
        measuring.start()
        service.run()
        measuring.join()


def answer(folder: Path) -> None:
    """Take messages that hold the time at which they were put; print how many nanoseconds ago that was."""
    from holdfast import QueueService

    with QueueService(folder, mode="shared") as service:
        queue = service.queue("orders", type=bytes)
        print("ready", flush=True)
        while True:
            with queue.receive() as delivery:
                now, stamp = time.monotonic_ns(), delivery.body[:STAMP_BYTES]
                if stamp == STOP:
                    return
                print(now - int.from_bytes(stamp, "little"), flush=True)


def main(action: str, folder: str, *rest: str) -> None:
    """Do what the command line says."""
    if action == "many":
        open_many(Path(folder), int(rest[0]), float(rest[1]))
    elif action == "wait":
        wait_idly(Path(folder), "shared" if rest[0] == "shared" else "exclusive", float(rest[1]))
    elif action == "work":
        work_idly(Path(folder), int(rest[0]), float(rest[1]))
    else:
        answer(Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])

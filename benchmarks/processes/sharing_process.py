"""A process that shares a queue: ``python -m benchmarks.processes.sharing_process put|take|loop|own|idle …``.

It opens the queue, prints ``ready``, begins once a line comes in, and prints what it measured, or ``done``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.processes.fresh_process import ROOT
from benchmarks.processes.idle_process import core_share

if TYPE_CHECKING:
    from holdfast.queue.options.queue_options import Mode

SECONDS_LIMIT = 60.0
"""For a process to end by itself, once its work is done."""

IDLE_SECONDS = 2.0
"""Before an idle process is measured: what it had to tell has been told by then."""


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run this module in the block, ready to begin; it is dead behind it."""
    command = [sys.executable, "-m", "benchmarks.processes.sharing_process", *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert answer_of(process) == "ready"
            yield process
        finally:
            process.kill()


def tell(process: subprocess.Popen[str]) -> None:
    """Have a process begin."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def answer_of(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def main(verb: str, folder: str, *rest: str) -> None:
    """Do what the command line says: ``count size batch`` of a put, ``count batch mode`` of a take or a loop."""
    from benchmarks.measuring.load import Load
    from holdfast import PersistentQueue

    mode: Mode = "exclusive" if "exclusive" in rest else "shared"
    with PersistentQueue(Path(folder) / "queue", mode=mode) as queue:
        if verb == "put":
            count, size, batch = map(int, rest)
            payload = Load(count, size).payload
        print("ready", flush=True)
        sys.stdin.readline()
        if verb == "put" and batch == 1:
            for _ in range(count):
                queue.put(payload)
        elif verb == "put":
            for _ in range(count // batch):
                queue.put_many([payload] * batch)
        elif verb == "take":
            left, batch = int(rest[0]), int(rest[1])
            while left:
                messages = queue.receive_many(min(batch, left), timeout=SECONDS_LIMIT)
                left -= len(messages)
                messages.ack()
        elif verb == "loop":
            left, batch = int(rest[0]), int(rest[1])
            for message in queue.consume(prefetch=batch, timeout=SECONDS_LIMIT):
                left -= 1
                if not left:
                    message.ack()
                    break
        elif verb == "idle":
            time.sleep(IDLE_SECONDS)
            print(core_share(float(rest[0])), flush=True)
        print("done", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Who is killed in the middle of which batch: tasks strike at some rows, once each, and travel to them by value."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

EXECUTOR, WORKER, DRIVER, SERVER = "executor", "worker", "driver", "range server"
VICTIMS = (EXECUTOR, WORKER, DRIVER, SERVER)

_WAITS_SECONDS = 600
"""How long a task waits for the end of what it runs on."""

_LOOKS_SECONDS = 0.1


def mark(work: Path, step: str, victim: str) -> Path:
    """Return the file that a task makes which strikes; it names the task's machine."""
    return work / f"{step}.{victim}"


def done(work: Path, step: str, victim: str) -> Path:
    """Return the file that tells the task which struck that the victim is dead; only a range server leaves it alive."""
    return work / f"{step}.{victim} is dead"


def striking(work: Path, step: str, count: int) -> Any:
    """Return a function for a column of numbers below ``count``: true, and at some of them somebody is killed."""
    from pyspark import cloudpickle
    from pyspark.sql.functions import udf

    places = {count * (2 * number + 1) // (2 * len(VICTIMS) + 1): victim for number, victim in enumerate(VICTIMS)}

    def act(number: int) -> bool:
        victim = places.get(number)
        if victim is not None:
            strike(work, step, victim)
        return True

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return udf(act, "boolean", useArrow=False).asNondeterministic()  # so it stays where it is, behind a shuffle


def strike(work: Path, step: str, victim: str) -> None:
    """Kill the executor of this task, or wait until another victim is killed; the first time only."""
    path = mark(work, step, victim)
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return
    os.write(handle, os.environ["HOLDFAST_MACHINE"].encode())
    os.close(handle)
    if victim == EXECUTOR:
        daemon = os.getppid()
        executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(executor, signal.SIGKILL)
    end = time.monotonic() + _WAITS_SECONDS
    while time.monotonic() < end:
        if done(work, step, victim).exists():
            return
        time.sleep(_LOOKS_SECONDS)
    raise RuntimeError(f"the {victim} was not killed")

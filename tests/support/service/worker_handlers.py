"""Handlers that worker processes import: each message says what is to happen, and what has happened is in a journal."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import msgspec

from holdfast.queue.dispatch.delivery import Delivery
from holdfast.service.queue_service import QueueService
from holdfast.service.workers.handler_errors import Reject, Retry

JOURNAL_VARIABLE = "HOLDFAST_TEST_JOURNAL"
DATA_VARIABLE = "HOLDFAST_TEST_DATA"


class Task(msgspec.Struct):
    """What a worker process is to do.

    Attributes
    ----------
    number : int
        Which one it is.
    does : str
        Name of a deed, or nothing.
    """

    number: int
    does: str = ""


def note(*words: object) -> None:
    """Add a line to the journal; a kill does not lose it."""
    file = os.open(os.environ[JOURNAL_VARIABLE], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)


def noted(journal: Path) -> list[list[str]]:
    """Return the lines of a journal as words."""
    return [line.split() for line in journal.read_text().splitlines()] if journal.exists() else []


def _raise() -> None:
    raise ValueError("bad task")


def _reject() -> None:
    raise Reject("no such task")


def _retry() -> None:
    raise Retry(0)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit() -> None:
    os._exit(7)


def _fork_and_die() -> None:
    """Leave a copy of this process behind, as a library may that forks."""
    if os.fork() == 0:
        note("forked", -1, os.getpid())
        _hang()
    _die()


def _fork_and_return() -> None:
    """Have a copy of this process come back from the handler as well."""
    os.fork()


def _hang() -> None:
    threading.Event().wait()


def _wait() -> None:
    """Wait until a test makes the file ``go_on`` beside the journal."""
    while not Path(os.environ[JOURNAL_VARIABLE]).with_name("go_on").exists():
        time.sleep(0.01)


def _put() -> None:
    """Put into another queue, as a client of its owner."""
    with QueueService(os.environ[DATA_VARIABLE], mode="exclusive", catalog=False) as service:
        service.queue("results", type=str).put(f"from process {os.getpid()}")


def _receive() -> None:
    with QueueService(os.environ[DATA_VARIABLE], mode="exclusive", catalog=False) as service:
        service.queue("tasks", type=Task).receive(timeout=0)


def _run() -> None:
    with QueueService(os.environ[DATA_VARIABLE], mode="exclusive", catalog=False) as service:
        service.consumer("tasks")(print)
        service.run()


def _interrupt() -> None:
    """Have all processes of the group hear what Ctrl-C and a service manager say; here, this one."""
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)


DEEDS = {
    "raise": _raise,
    "reject": _reject,
    "retry": _retry,
    "die": _die,
    "exit": _exit,
    "fork and die": _fork_and_die,
    "fork and return": _fork_and_return,
    "hang": _hang,
    "wait": _wait,
    "put": _put,
    "receive": _receive,
    "run": _run,
    "interrupt": _interrupt,
}


def handle(task: Task) -> None:
    """Note the task, and do what it says."""
    note("begun", task.number, os.getpid())
    DEEDS.get(task.does, lambda: None)()
    note("done", task.number, os.getpid())


def handle_with_delivery(task: Task, delivery: Delivery[Task]) -> None:
    """Note what the delivery says; then try to settle it, which is not for here."""
    note(task.number, delivery.offset, delivery.delivery_count, delivery.headers["tenant"], delivery.is_last)
    delivery.ack()

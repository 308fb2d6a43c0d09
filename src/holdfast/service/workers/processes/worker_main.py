"""The main function of a worker process: handles one message after another, and answers each with its outcome.

It ends when its pipe does, and at once when the process that started it is gone.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import connection, parent_process
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast import forks
from holdfast.errors import SerializationError, UsageError
from holdfast.persistence.format.message_headers import decode_headers
from holdfast.persistence.log.log_reader import Record
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.options.failure import Failure, failure_of
from holdfast.service.workers.job import Job
from holdfast.service.workers.settlement import PARK, Settlement
from holdfast.threads import start_thread

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

READY = "ready"
"""The first thing it says; or, in its place, the :class:`Failure` that keeps it from working."""

Task = tuple[int, Record, int, bool]
"""The number of the job, the message as it is stored, its delivery count, and whether that is the last delivery."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Go to all processes of a terminal or of a service at once; the one that owns the queues says when to end."""

_DECODERS_MAX = 256

_LOOK_SECONDS = 1.0
"""How soon the end of a parent is seen that has left copies of itself: these keep its sentinel open."""


class _RefusingDeliverer:
    """The read side of a delivery in a worker process: the handler's end is the outcome."""

    def __init__(self, *, is_last: bool) -> None:
        self._is_last = is_last

    def is_last(self, _: int) -> bool:
        """Return what the owner of the queue has said."""
        return self._is_last

    def _refuse(self, *_: object) -> NoReturn:
        raise UsageError(
            "in a worker process a message is settled by its handler: return, or raise Reject(reason) or Retry(delay)"
        )

    ack = nack = reject = park = release = extend = redacted = _refuse


class _Worker:
    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._decoders: dict[tuple[int, bytes], Callable[[bytes], Any]] = {}

    def work(self, task: Task) -> Settlement | None:
        """Handle one message."""
        number, record, delivery_count, is_last = task
        delivery: Delivery[Any] = Delivery(_RefusingDeliverer(is_last=is_last), record, delivery_count)
        try:
            delivery.body = self._decoder(number, delivery.stored_headers)(delivery.payload)
        except SerializationError as error:
            error.context["offset"] = delivery.offset
            return Settlement(PARK, failure=failure_of(error, "undecodable"))
        return self._jobs[number].handle(delivery)

    def _decoder(self, number: int, stored: bytes) -> Callable[[bytes], Any]:
        """Return what decodes messages of one job with these headers."""
        decode = self._decoders.get((number, stored))
        if decode is None:
            if len(self._decoders) >= _DECODERS_MAX:
                self._decoders.clear()
            decode = self._decoders[number, stored] = self._jobs[number].codec.decoder(decode_headers(stored))
        return decode


def main(pipe: Connection, pickled_jobs: bytes) -> None:
    """Work until the pipe ends."""
    parent_pid = os.getppid()  # of a wrapper, if the executable is one
    for each in SIGNALS:
        signal.signal(each, _pass_by)
    forks.in_child(pipe.close)  # a copy could answer, and would keep our end from being heard
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    # Without this thread the end of the pipe tells it, a message later.
    start_thread(partial(_end_with_parent, parent_pid), "holdfast-parent-watch")
    try:
        jobs = pickle.loads(pickled_jobs)  # noqa: S301  # of the process that started this one
    except BaseException as error:
        pipe.send(failure_of(error))
        return
    worker = _Worker(jobs)
    try:
        pipe.send(READY)
        while True:
            pipe.send(worker.work(pipe.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _pass_by(number: int, frame: object) -> None:
    """Do nothing. A function, because an ignored signal stays ignored in programs that a handler starts."""


def _end_with_parent(parent_pid: int) -> None:
    parent = parent_process()
    if parent is not None:
        while os.getppid() == parent_pid and not connection.wait([parent.sentinel], _LOOK_SECONDS):
            pass
        os._exit(1)  # its messages are handed out again: its result is not wanted any more


Answer = Settlement | None | Failure | str

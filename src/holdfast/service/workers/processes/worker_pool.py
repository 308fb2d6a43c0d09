"""The worker processes of a service: each has one message at a time, and one that dies is replaced.

The work of a process is counted message by message: one that dies takes a delivery from the message it had, and from no
other.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue

from holdfast.errors import ConfigError, WorkerDiedError
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.options.failure import failure_of
from holdfast.queue.threads.notifier import Flag
from holdfast.service.workers.consumer import name_of
from holdfast.service.workers.job import Job
from holdfast.service.workers.processes.worker_process import LAST_SECONDS, WorkerProcess
from holdfast.service.workers.processes.worker_role import NAME_PREFIX
from holdfast.service.workers.settlement import NACK, RELEASE, Settlement

logger = logging.getLogger("holdfast")

START_FAILURES_MAX = 5
"""So many processes in a row may die before they are ready; then something is wrong with the program."""

_START_PAUSE_SECONDS = 0.2
"""Behind the first of them; twice as long behind each."""

_RELEASED = Settlement(RELEASE)


class WorkerPool:
    """So many processes that can all do the same jobs.

    Parameters
    ----------
    jobs : sequence of Job
        The jobs that they can do.
    size : int
        How many they are.

    Raises
    ------
    ConfigError
        A handler, or an object that it needs, cannot be sent to another process; none was started.
    """

    def __init__(self, jobs: Sequence[Job], size: int) -> None:
        self._jobs = _pickled(jobs)
        self._pid = os.getpid()
        self._idle: SimpleQueue[int] = SimpleQueue()
        self._retry_of = [job.retry for job in jobs]
        self._is_stopping = False
        self._is_stopped = Flag()
        self._lock = threading.Lock()
        self._started_count = 0
        self._start_failures = 0
        self._processes: list[WorkerProcess | None] = [None] * size
        atexit.register(self.kill)
        try:
            for place in range(size):
                self._start(place)
                self._idle.put(place)
        except BaseException:
            self.kill()
            self.close()
            raise

    # -- Working -----------------------------------------------------------------------------------------------------

    def handle(self, job_number: int, delivery: Delivery) -> Settlement | None:
        """Have the next idle process work on a message.

        Raises
        ------
        ConfigError, WorkerDiedError
            Processes do not come up; the message was not tried.
        """
        place = self._idle.get()
        try:
            process = None if self._is_stopping else self._ready(place)
            if process is None or self._is_stopping:
                return _RELEASED
            try:
                return process.handle(job_number, delivery)
            except WorkerDiedError as error:
                self._processes[place] = None
                process.wait()
                return self._settlement_of(error, job_number, delivery)
            except BaseException:  # no memory: its answer may come yet, and the next message would get it
                self._processes[place] = None
                process.kill()
                raise
        finally:
            self._idle.put(place)

    def _settlement_of(self, error: WorkerDiedError, job_number: int, delivery: Delivery) -> Settlement:
        if self._is_stopped.is_set():
            return _RELEASED  # it was we who killed it
        logger.error("%s; it is replaced", error)
        retry = self._retry_of[job_number]
        return Settlement(
            NACK, None if retry is None else retry.wait_seconds(delivery.delivery_count), failure_of(error)
        )

    def _ready(self, place: int) -> WorkerProcess | None:
        """Return the process of a place, a new one if it has died; None if the pool is stopped."""
        while not self._is_stopped.is_set():
            process = self._processes[place]
            try:
                if process is None or not process.is_alive():
                    if process is not None:
                        process.wait()
                        logger.error("worker process %s ended with nothing to do; it is replaced", process.pid)
                    process = self._start(place)
                process.wait_until_ready()
            except WorkerDiedError as error:
                self._processes[place] = None
                if process is not None:
                    process.wait()
                self._pause_after(error)
                continue
            self._start_failures = 0
            return process
        return None

    def _start(self, place: int) -> WorkerProcess:
        with self._lock:  # so that kill() comes before it, or sees it
            if self._is_stopped.is_set():
                raise WorkerDiedError("the workers are stopped: no process is started", pid=None, exit_code=None)
            self._started_count += 1
            process = self._processes[place] = WorkerProcess(f"{NAME_PREFIX}{self._started_count}", self._jobs)
            return process

    def _pause_after(self, error: WorkerDiedError) -> None:
        """Wait before the next start, longer each time; raises WorkerDiedError if there is no point any more."""
        if self._is_stopped.is_set():
            return
        with self._lock:
            self._start_failures += 1
            failures = self._start_failures
        if failures >= START_FAILURES_MAX:
            raise WorkerDiedError(
                f"{failures} worker processes in a row ended before they were ready, the last: {error}; what they "
                "wrote to standard error says why",
                **error.context,
            ) from error
        logger.error("%s; another one is started", error)
        self._is_stopped.wait(_START_PAUSE_SECONDS * 2 ** (failures - 1))

    # -- Ending ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin no more messages: those that wait for a process are given back."""
        self._is_stopping = True

    def kill(self) -> None:
        """End all processes now; the messages in their hands have not failed."""
        if os.getpid() != self._pid:
            return  # a forked process that exits: they are not its own
        for each in self._stop():
            each.kill()

    def close(self) -> None:
        """End all processes, which have nothing to do any more, and wait for that."""
        processes = self._stop()
        for each in processes:
            each.dismiss()
        deadline = time.monotonic() + LAST_SECONDS  # for all of them, however many they are
        for each in processes:
            each.wait(max(0.0, deadline - time.monotonic()))
        atexit.unregister(self.kill)

    def _stop(self) -> list[WorkerProcess]:
        with self._lock:
            self._is_stopped.set()
            return [each for each in self._processes if each is not None]


def _pickled(jobs: Sequence[Job]) -> bytes:
    for job in jobs:
        try:
            pickle.dumps(job)
        except Exception as error:
            raise ConfigError(
                f"{name_of(job.handler)} cannot be sent to a worker process ({error}): define it, and the types and "
                f"upcasts of queue {job.queue_name!r}, at the top of a module"
            ) from error
    return pickle.dumps(list(jobs))

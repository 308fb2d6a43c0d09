"""One worker process, as the process that started it sees it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, resource_tracker
from typing import TYPE_CHECKING

from holdfast import forks
from holdfast.errors import ConfigError, WorkerDiedError
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.options.failure import Failure, shortened
from holdfast.queue.threads import lifecycle
from holdfast.service.workers.processes.worker_ends import how_it_ended
from holdfast.service.workers.processes.worker_main import READY, SIGNALS, Answer, Task, main
from holdfast.service.workers.settlement import Settlement

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

LAST_SECONDS = 5.0
"""How long a process has for its own end, once its pipe has ended: it writes out and closes what it has open."""

_LOOK_SECONDS = 0.02
"""How soon the end of a process is seen that has left copies of itself: these keep its sentinel open."""

_processes_lock = forks.gate()
"""Around starting and waiting: multiprocessing looks after all children at each start, and two threads that wait for
one child take its exit code from each other. A fork waits, too: multiprocessing has a lock of its own meanwhile."""


class WorkerProcess:
    """Starts a process, hands it messages, receives their outcomes.

    Parameters
    ----------
    name : str
        The process's: names its purpose, for people and for itself.
    pickled_jobs : bytes
        The jobs, pickled.
    """

    def __init__(self, name: str, pickled_jobs: bytes) -> None:
        context = get_context("spawn")  # a forked one would have copies of all threads' locks
        lifecycle.watch(self)  # first: another thread may fork from here on
        self._pipe, self._theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=main, args=(self._theirs, pickled_jobs), name=name)
        try:
            with _processes_lock, _signals_blocked():
                self._process.start()
        except BaseException:
            self._pipe.close()
            raise
        finally:
            self._theirs.close()
        self._is_ready = False

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        with _processes_lock:
            return self._process.is_alive()

    def wait_until_ready(self) -> None:
        """Return once it can work.

        Raises
        ------
        ConfigError
            It cannot make out what to do.
        WorkerDiedError
            It ended before.
        """
        if self._is_ready:
            return
        answer = self._answer("before it was ready")
        if isinstance(answer, Failure):
            why = shortened(answer)
            raise ConfigError(
                f"a worker process cannot import the handler ({why.exception}: {why.detail}): define it, and the "
                "types of its queue, at the top of a module that can be imported"
            )
        assert answer == READY, "that is what it says first"
        self._is_ready = True

    def handle(self, job_number: int, delivery: Delivery) -> Settlement | None:
        """Have a message worked on; raises WorkerDiedError if the process did not survive that."""
        task: Task = (job_number, delivery.record, delivery.delivery_count, delivery.is_last)
        with suppress(BrokenPipeError, ConnectionResetError):  # then there will be no answer either
            self._pipe.send(task)
        answer = self._answer(f"while it handled offset {delivery.offset}")
        assert answer is None or isinstance(answer, Settlement), "a task is answered with its outcome"
        return answer

    def _answer(self, when: str) -> Answer:
        try:
            answer: Answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._wait_for_end()
            exit_code = self._process.exitcode
            raise WorkerDiedError(
                f"worker process {self.pid} {how_it_ended(exit_code)} {when}", pid=self.pid, exit_code=exit_code
            ) from None
        return answer

    # -- Ending ------------------------------------------------------------------------------------------------------

    def forget_after_fork(self) -> None:
        """In a forked child of this process: copies of the pipe would keep each side from seeing the other's end."""
        for end in ("_pipe", "_theirs"):
            with suppress(AttributeError, OSError):  # there was no pipe yet, or an end was being closed
                getattr(self, end).close()

    def dismiss(self) -> None:
        """Have it end when it has nothing to do; returns at once."""
        self._pipe.close()

    def kill(self) -> None:
        """End it now; a thread that waits for its answer learns that it died."""
        with _processes_lock:
            self._process.kill()

    def wait(self, seconds: float = LAST_SECONDS) -> None:
        """Wait until it has ended, behind :meth:`dismiss` or :meth:`kill`; after ``seconds`` it is killed."""
        self._wait_for_end(seconds)
        self._pipe.close()

    def _wait_for_end(self, seconds: float = LAST_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while self.is_alive() and (left := deadline - time.monotonic()) > 0:
            connection.wait([self._process.sentinel], min(left, _LOOK_SECONDS))
        with _processes_lock:
            if self._process.is_alive():
                self._process.kill()
            self._process.join()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start a process that ignores signals until it sets its handlers."""
    resource_tracker.ensure_running()  # now: it would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

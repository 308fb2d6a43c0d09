"""The loop of every drain: of one queue, or of many. docs/spark-drain.md."""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast.arrow.draining.many_drains import ManyDrains
from holdfast.arrow.draining.queue_drain import LOOK_SECONDS, PAUSE_SECONDS_MIN, DrainOptions, Engine, open_drain
from holdfast.arrow.draining.reports import DrainReport, DrainTally
from holdfast.arrow.reading.many_queues import check_patterns
from holdfast.errors import ConfigError
from holdfast.queue.persistent_queue import PersistentQueue


class DrainLoop:
    """Drains one consumer group of one queue, or of many.

    Parameters
    ----------
    queue : str, path-like or PersistentQueue
        The queue, which is opened with mode "shared"; an open one has to take for the group, and stays open. With
        ``queues`` the directory of a service.
    engine : Engine
        Runs the batches.
    options : DrainOptions
        The group, and the bounds of a batch.
    queues : str or None
        Names of queues, or patterns; None: ``queue`` is one.
    """

    def __init__(
        self,
        queue: str | os.PathLike[str] | PersistentQueue,
        engine: Engine,
        options: DrainOptions,
        queues: str | None = None,
    ) -> None:
        if isinstance(queue, PersistentQueue):
            if queues is not None:
                raise ConfigError(f"queues= goes with a directory of queues; {queue.path} is one open queue")
            if queue.group != options.group:
                raise ConfigError(
                    f"{queue.path} is open for group {queue.group!r}, not {options.group!r}: open it for that one"
                )
        self._queue = queue
        self._patterns = None if queues is None else check_patterns(queues)
        self._engine = engine
        self._options = options
        self._is_stopping = False

    def stop(self) -> None:
        """End after the batches at hand, for good; from any thread, from a signal handler, and from ``fn``."""
        self._is_stopping = True  # and no more: a signal handler must not wait for a lock

    def run(self, until: str = "snapshot") -> DrainReport:
        """Drain; return the report.

        Parameters
        ----------
        until : "snapshot" or "forever"
            "snapshot": the messages of the start that can be taken; of many queues, each one's when its turn comes.
            "forever": until :meth:`stop`.

        Raises
        ------
        QueueLockedError, LockTimeoutError
            Another drain of the group runs, or a program has the queue open with mode "exclusive"; names its process.
        QueueNotFoundError, ConfigError
            There is no queue, or ``until`` is another value.
        TransactionStateError
            The batch was given back meanwhile.
        DrainError
            Of many queues some failed, by any of these errors; the others were drained.
        Exception
            What ``fn`` raises comes out. Its batch stays reserved, and so do those in flight behind it: the next drain
            runs them again, under the same ids.
        """
        if until not in ("snapshot", "forever"):
            raise ConfigError(f"until is 'snapshot' or 'forever', not {until!r}")
        if self._patterns is None:
            return self._drain(self._queue, until)
        assert not isinstance(self._queue, PersistentQueue), "refused at the beginning"
        directory = Path(os.path.abspath(self._queue))
        return ManyDrains(directory, self._patterns, self._engine, self._options, lambda: self._is_stopping).run(until)

    def _drain(self, queue: str | os.PathLike[str] | PersistentQueue, until: str) -> DrainReport:
        started = time.monotonic()
        tally = DrainTally()
        with open_drain(queue, self._engine, self._options, tally, lambda: self._is_stopping) as drain:
            end_offset = drain.queue.stats().next_offset if until == "snapshot" else None
            pause = PAUSE_SECONDS_MIN
            while True:
                if drain.advance(end_offset):
                    pause = PAUSE_SECONDS_MIN
                elif end_offset is not None or self._is_stopping or drain.is_shut_down:
                    break
                elif drain.queue.mode == "shared":  # only its owner knows whether there is more
                    time.sleep(pause)
                    pause = min(2 * pause, LOOK_SECONDS)
                else:
                    drain.queue.wait_for_more(LOOK_SECONDS)
            drain.conclude()
        return tally.report(time.monotonic() - started)

"""A drain of many queues: a drain of each, one after the other. docs/adr/0067.

Each queue has its own batches, under ids that name it, its own lock, and its own errors: a queue that fails keeps no
other one from being drained. So every row counts once as it does with one queue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from holdfast.arrow.draining.queue_drain import (
    LOOK_SECONDS,
    PAUSE_SECONDS_MIN,
    DrainOptions,
    Engine,
    QueueDrain,
    open_drain,
)
from holdfast.arrow.draining.reports import DrainReport, DrainTally
from holdfast.arrow.reading.many_queues import copies_among, queues_named
from holdfast.errors import ConfigError, DrainError, HoldfastError, QueueNotFoundError, StorageError
from holdfast.log import printable, text_of
from holdfast.persistence.filesystem.storage import OsStorage

logger = logging.getLogger("holdfast")

FIND_SECONDS = 1.0
"""How long a queue may be there before a drain without end sees it."""

AGAIN_SECONDS = 30.0
"""The pause before a drain without end tries a queue again that has failed, or was shut down."""

OPEN_MAX = 32
"""How many queues a drain without end has open at once: a third of the descriptors that a process usually may have."""

REST_SECONDS = 5.0
"""How long a queue that has made room for another one is not opened again."""

_SHOWN_MAX = 3


class ManyDrains:
    """Drains the queues of a directory that patterns name.

    Parameters
    ----------
    directory : Path
        Where the queues are.
    patterns : tuple of str
        Which of them.
    engine, options, is_stopping
        As of :class:`QueueDrain`.
    """

    def __init__(
        self,
        directory: Path,
        patterns: tuple[str, ...],
        engine: Engine,
        options: DrainOptions,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._directory = directory
        self._patterns = patterns
        self._engine = engine
        self._options = options
        self._is_stopping = is_stopping
        self._open: dict[str, tuple[ExitStack, QueueDrain]] = {}
        self._tallies: dict[str, DrainTally] = {}
        self._errors: dict[str, Exception] = {}
        self._again_at: dict[str, float] = {}
        self._drained_at: dict[str, float] = {}
        self._copies: dict[str, str] = {}
        self._is_blind = False

    def run(self, until: str) -> DrainReport:
        """Drain the queues; return one report, with that of each.

        Parameters
        ----------
        until : "snapshot" or "forever"
            "snapshot": what is in each queue when its turn comes. "forever": until it is stopped, with queues that are
            made meanwhile.

        Raises
        ------
        QueueNotFoundError
            There is no queue of a name, or none that matches; nothing was drained.
        DrainError
            Some queues failed; the others were drained.
        """
        started = time.monotonic()
        paths = queues_named(OsStorage(), self._directory, self._patterns)
        self._copies = copies_among(OsStorage(), paths)
        try:
            if until == "snapshot":
                self._drain_each(paths)
            else:
                self._drain_forever(paths)
        finally:
            for name in list(self._open):
                self._leave(name)
        reports = {name: tally.report(tally.seconds) for name, tally in sorted(self._tallies.items())}
        report = DrainReport.of_queues(reports, time.monotonic() - started)
        if self._errors:
            raise _drain_error(self._errors, report) from next(iter(self._errors.values()))
        return report

    def _drain_each(self, paths: list[Path]) -> None:
        """Open one queue after the other: there may be more than a process can have open."""
        for path in paths:
            if self._is_stopping():
                return
            self._join(path)
            self._take_turn(path.name)
            self._leave(path.name)

    def _drain_forever(self, paths: list[Path]) -> None:
        """Give each queue a turn in every round, and keep it open, unless there are many."""
        found_at, pause = time.monotonic(), PAUSE_SECONDS_MIN
        while not self._is_stopping():
            now = time.monotonic()
            if now - found_at >= FIND_SECONDS:
                paths, found_at = self._found(paths), now
            has_advanced = False
            for path in paths:
                if path.name not in self._open and now >= self._again_at.get(path.name, now):
                    self._make_room()
                    self._join(path)
                has_advanced |= self._take_turn(path.name)
            if has_advanced:
                pause = PAUSE_SECONDS_MIN
            else:
                time.sleep(pause)
                pause = min(2 * pause, LOOK_SECONDS)

    def _found(self, before: list[Path]) -> list[Path]:
        """Return the queues that are there now; the others are left, and their errors do not count any more."""
        try:
            paths = queues_named(OsStorage(), self._directory, self._patterns, may_be_gone=True)
        except (QueueNotFoundError, StorageError) as error:  # a directory of the network may be away for a time
            if not self._is_blind:
                logger.error("%s; until it can be read, no queue joins the drain", error)
            self._is_blind = True
            return before
        self._is_blind = False
        for name in (self._open.keys() | self._errors.keys()) - {path.name for path in paths}:
            logger.warning("%s is gone: its drain ends", self._directory / name)
            self._leave(name)
            self._errors.pop(name, None)
        if paths != before:
            self._copies = copies_among(OsStorage(), paths)
        return paths

    def _make_room(self) -> None:
        """Close a queue if as many are open as may be: the one in which nothing has come for the longest time.

        Of several in which nothing ever came it is the last one: so most stay open, and few are opened again and again.
        """
        if len(self._open) >= OPEN_MAX:
            name = min(reversed(self._open), key=lambda name: self._drained_at.get(name, 0.0))
            self._leave(name)
            self._again_at[name] = max(self._again_at.get(name, 0.0), time.monotonic() + REST_SECONDS)

    # -- One queue ---------------------------------------------------------------------------------------------------

    def _join(self, path: Path) -> None:
        stack, tally = ExitStack(), self._tallies.get(path.name, DrainTally())
        try:
            self._refuse_copy(path)
            drain = stack.enter_context(open_drain(path, self._engine, self._options, tally, self._is_stopping))
        except Exception as error:
            self._fail(path.name, error)
        else:
            self._open[path.name], self._tallies[path.name] = (stack, drain), tally

    def _refuse_copy(self, path: Path) -> None:
        """Refuse a queue whose batches would have the ids of those of another one, and take their places."""
        if path.name in self._copies:
            raise ConfigError(
                f"{path} has the id of {self._copies[path.name]}, as a copy has: batches of one would replace those of "
                "the other; move one to another directory, or drain each alone, into a place of its own"
            )

    def _take_turn(self, name: str) -> bool:
        """Drain what is in an open queue now; return whether there was something."""
        if name not in self._open:
            return False
        _, drain = self._open[name]
        started, has_drained = time.monotonic(), False
        try:
            end_offset = drain.queue.stats().next_offset
            while drain.advance(end_offset):
                has_drained = True
                self._drained_at[name] = time.monotonic()
        except Exception as error:
            self._fail(name, error)
            self._leave(name)
        else:
            if not self._is_stopping():  # else it was not tried
                self._errors.pop(name, None)
            if drain.is_shut_down:
                self._again_at[name] = time.monotonic() + AGAIN_SECONDS
                self._leave(name)
        finally:
            self._tallies[name].seconds += time.monotonic() - started
        return has_drained

    def _leave(self, name: str) -> None:
        """Close a queue, if it is open."""
        if name not in self._open:
            return
        stack, drain = self._open.pop(name)
        try:
            with stack:
                drain.conclude()
        except Exception as error:
            if name not in self._errors:  # else that is why
                self._fail(name, error)

    def _fail(self, name: str, error: Exception) -> None:
        """Note an error of a queue."""
        path = self._directory / name
        logger.error("the drain of %s failed: %s", path, error, exc_info=not isinstance(error, HoldfastError))
        self._again_at[name] = time.monotonic() + AGAIN_SECONDS
        self._errors[name] = error


def _drain_error(errors: Mapping[str, Exception], report: DrainReport) -> DrainError:
    shown = [f"{name}: {_line_of(error)}" for name, error in list(errors.items())[:_SHOWN_MAX]]
    more = [f"and {len(errors) - _SHOWN_MAX} more"] if len(errors) > _SHOWN_MAX else []
    count = len(errors.keys() | report.queues.keys())
    return DrainError(
        f"{len(errors)} of {count} queues were not drained to the end; drain again, which continues there "
        f"({'; '.join(shown + more)})",
        report=report,
        errors=dict(errors),
    )


def _line_of(error: Exception) -> str:
    """Return the first line of an error: those of Spark have many."""
    return printable(next(iter(text_of(error).strip().splitlines()), "") or type(error).__name__)

"""Runs the handler of one queue in threads: takes, calls, settles, stops."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

from holdfast.errors import HoldfastError, RetryableError
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.service.workers.handled_by import handled_by
from holdfast.service.workers.intake import Intake, Source
from holdfast.service.workers.settle_failed import note_left, report_failed, settle_failed
from holdfast.service.workers.settlement import RELEASE, Settlement
from holdfast.service.workers.settler import Settler
from holdfast.threads import no_thread_error, start_thread

logger = logging.getLogger("holdfast")

Handle = Callable[[Delivery[Any]], Settlement | None]
"""Works on one message; None: it is done."""


class Engine:
    """The threads of one consumer.

    Parameters
    ----------
    name : str
        The queue's.
    source : Source
        Where messages come from.
    handle : callable
        Works on one: here, or in another process while the thread waits.
    thread_count : int
        Messages that are worked on at a time.
    on_change : callable
        Called when it has failed, and when it has ended.
    owner : object
        What runs it, for handlers that ask: see ``handled_by``.

    Attributes
    ----------
    failure : BaseException or None
        What made it stop.
    is_over : bool
        Whether nothing runs any more, and everything that was done is acknowledged.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        handle: Handle,
        thread_count: int,
        on_change: Callable[[], object],
        owner: object,
    ) -> None:
        self.name = name
        self._owner = owner
        self.failure: BaseException | None = None
        self.is_over = False
        self._handle = handle
        self._on_change = on_change
        self._settler = Settler(name, self.fail, self._end)
        self._intake = Intake(source, thread_count, self._settler)
        self._lock = threading.Lock()
        self._left_count = self._thread_count = thread_count

    def start(self) -> None:
        """Begin to take, with as many threads as can be started; raises RetryableError if none can be."""
        self._settler.start()
        count = self._thread_count
        numbers = [each for each in range(1, count + 1) if not start_thread(self._run, f"holdfast-{self.name}-{each}")]
        for _ in numbers:
            self._leave()
        if len(numbers) == count:
            raise no_thread_error(f"handling messages of {self.name!r}")
        if numbers:
            logger.error(
                "%s: %d of its %d threads cannot be started; it continues without them", self.name, len(numbers), count
            )

    def stop(self) -> None:
        """Take no more, and give back messages that were not begun; running handlers continue."""
        self._intake.stop()

    def fail(self, error: BaseException) -> None:
        """Stop, because of that."""
        with self._lock:
            is_first = self.failure is None
            if is_first:
                self.failure = error
        if is_first:
            try:
                logger.critical("%s: stopping its consumer, which cannot continue: %s", self.name, error)
            finally:
                self.stop()
                self._on_change()

    # -- The threads -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        handled_by.set(self._owner)
        try:
            self._work()
        except BaseException as error:
            self.fail(error)
        finally:
            self._intake.give_back()  # messages that came while it was stopped
            self._leave()

    def _leave(self) -> None:
        """Count a thread as over; with the last one all is."""
        with self._lock:
            self._left_count -= 1
            is_last = self._left_count == 0
        if is_last:
            self._settler.end()

    def _work(self) -> None:
        intake, handle, done = self._intake, self._handle, self._settler.add
        while (delivery := intake.next()) is not None:
            started = perf_counter()
            try:
                settlement = handle(delivery)
            except BaseException:
                delivery.is_open = False  # it comes again when its lease runs out
                raise
            intake.note_seconds(perf_counter() - started)
            if settlement is None and delivery.delivery_count == 1:
                done(delivery)
            elif settlement is not None and settlement.verb == RELEASE:
                self._settler.release((delivery,))
            else:
                self._settle(settlement, delivery)

    def _settle(self, settlement: Settlement | None, delivery: Delivery[Any]) -> None:
        """Settle a message that failed or came again; a stop ends the wait for an owner that does not answer."""
        try:
            if settlement is None:  # before the next one, which may be the one that kills this process each time
                self._settler.acknowledge((delivery,), self._intake.stopped)
                return
            report_failed(self.name, settlement, delivery)
            settle_failed(self.name, settlement, delivery, self._intake.stopped)
        except RetryableError as error:
            note_left(self.name, delivery, error)

    def _end(self) -> None:
        with suppress(HoldfastError):  # it was closed meanwhile
            self._intake.log_left(self.name)
        self.is_over = True
        self._on_change()

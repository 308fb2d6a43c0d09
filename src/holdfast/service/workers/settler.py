"""Settles for all threads of a consumer: messages finished during one step go into the next.

So batches form by themselves, as in group commit: a slow disk makes them large, and an idle consumer's message is
acknowledged at once. No handler waits for a disk, and no stop for an owner that does not answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.errors import ClosedError, HoldfastError, LeaseError, RetryableError
from holdfast.queue.dispatch.delivery import Delivery, DeliveryBatch, by_queue
from holdfast.queue.threads.notifier import Flag
from holdfast.service.workers.patience import AT_ONCE, patiently
from holdfast.threads import TROUBLE_SECONDS, start_thread

logger = logging.getLogger("holdfast")

LOOK_SECONDS = 1.0
"""How often to look after what is to be given back."""

UNSETTLED_MAX = 1_000
"""Messages that may be finished and not acknowledged: so many are done again after a crash, not more."""


class Settler:
    """A thread that settles; if none can be started, the threads that hand messages in settle them.

    Parameters
    ----------
    name : str
        The queue's, for the log.
    on_failure : callable
        Told of what makes acknowledging impossible.
    on_end : callable
        Told that all is done, behind :meth:`end`.

    Attributes
    ----------
    name : str
        As above.
    """

    def __init__(self, name: str, on_failure: Callable[[BaseException], None], on_end: Callable[[], None]) -> None:
        self.name = name
        self._on_failure = on_failure
        self._on_end = on_end
        self._finished: deque[Delivery] = deque()
        self._unbegun: deque[Sequence[Delivery]] = deque()
        self._look: Callable[[], bool] | None = None
        self._wake = Flag()
        self._space_available = Flag()
        self._is_asleep = False
        self._ending = Flag()
        self._no_patience = self._ending
        self._has_failed = False
        self._is_alone = False

    def start(self) -> None:
        """Start the thread."""
        self._is_alone = start_thread(self._run, f"holdfast-{self.name}-settler") is None
        if self._is_alone:  # who hands messages in must not wait for an owner: that could be what would end the wait
            self._no_patience = AT_ONCE

    def add(self, delivery: Delivery) -> None:
        """Have a message acknowledged that is done."""
        if self._is_alone:
            self._settle([delivery])
            return
        self._finished.append(delivery)
        if self._is_asleep:  # it checks once more after that
            self._wake.set()

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Have messages given back that were not begun, uncounted."""
        if self._is_alone:
            self._give_back(deliveries)
            return
        self._unbegun.append(deliveries)
        if self._is_asleep:
            self._wake.set()

    def look_after(self, look: Callable[[], bool]) -> None:
        """Have ``look`` called each second or more often, until it returns False; always the same one."""
        self._look = look
        if self._is_asleep:
            self._wake.set()

    def acknowledge(self, deliveries: Sequence[Delivery], stopped: threading.Event) -> None:
        """Acknowledge at once those that are not settled and not in a transaction.

        One that is stale keeps no other from it. An owner that does not answer is asked again until ``stopped`` is set.
        Raises what makes acknowledging impossible. One that is not settled here, or by its transaction, comes again
        when its lease runs out.
        """
        try:
            for batch in by_queue(deliveries):
                self._acknowledge_batch(batch, stopped)
        finally:
            for delivery in deliveries:
                delivery.is_open = False

    def _acknowledge_batch(self, batch: DeliveryBatch, stopped: threading.Event) -> None:
        try:
            patiently(batch.ack, self.name, stopped)
        except (LeaseError, ClosedError):
            for delivery in batch:
                if delivery.holder is None and (delivery.has_expired or not delivery.is_settled):
                    self._acknowledge_alone(delivery, stopped)

    def _acknowledge_alone(self, delivery: Delivery, stopped: threading.Event) -> None:
        try:
            patiently(delivery.ack, self.name, stopped)
        except (LeaseError, ClosedError) as error:
            logger.warning("%s: offset %d was handled, and may come again: %s", self.name, delivery.offset, error)

    def wait_for_space(self, seconds: float) -> bool:
        """Wait until few enough messages are waiting; False if that takes too long."""
        if len(self._finished) <= UNSETTLED_MAX:
            return True
        self._space_available.clear()
        return len(self._finished) <= UNSETTLED_MAX or self._space_available.wait(seconds)

    def end(self) -> None:
        """End when everything is acknowledged; nothing is added any more."""
        self._ending.set()
        self._wake.set()
        if self._is_alone:
            self._on_end()

    # -- The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: BaseException | None = None
        while failure or self._finished or self._unbegun or not self._ending.is_set():
            try:
                if failure is not None:
                    self._fail(failure)
                    failure = None
                self._step()
            except BaseException as error:  # without memory, say: what is handed in from now on comes again
                failure = failure or error
                time.sleep(TROUBLE_SECONDS)
        self._on_end()

    def _step(self) -> None:
        """Wait for messages, and settle those that are there."""
        finished, unbegun = self._finished, self._unbegun
        if not (finished or unbegun):
            self._is_asleep = True
            if not (finished or unbegun or self._ending.is_set()):
                self._wake.wait(None if self._look is None else LOOK_SECONDS)
            self._is_asleep = False
            self._wake.clear()
        if (look := self._look) is not None:
            self._look_after(look)
        while unbegun:
            self._give_back(unbegun[0])
            unbegun.popleft()
        batch = list(finished)
        for _ in batch:
            finished.popleft()
        try:
            self._settle(batch)
        finally:
            for delivery in batch:
                delivery.is_open = False
        self._space_available.set()

    def _settle(self, deliveries: list[Delivery]) -> None:
        if self._has_failed:
            for delivery in deliveries:
                delivery.is_open = False  # they come again
            return
        try:
            self.acknowledge(deliveries, self._no_patience)
        except BaseException as error:
            if self._is_alone and isinstance(error, RetryableError):
                logger.warning("%s: messages that were handled may come again: %s", self.name, error)
                return
            self._fail(error)

    def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        try:
            for batch in by_queue(deliveries):
                with suppress(HoldfastError):  # the queue is closed or broken: then they come again counted
                    self._release(batch)
        except BaseException as error:
            self._fail(error)
        finally:
            for delivery in deliveries:
                delivery.is_open = False

    def _release(self, batch: DeliveryBatch) -> None:
        try:
            patiently(batch.release, self.name, self._no_patience)
        except LeaseError:  # one that is stale keeps no other here
            for delivery in batch:
                with suppress(LeaseError):
                    delivery.release()

    def _look_after(self, look: Callable[[], bool]) -> None:
        self._look = None  # before: it may be set again meanwhile
        try:
            if look():
                self._look = look
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._has_failed = True
        self._on_failure(error)

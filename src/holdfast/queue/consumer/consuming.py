"""One loop over the messages of a queue: takes them ahead, and finishes those that the loop has left behind.

What is finished is acknowledged together with the next take, at the end of the loop, and if the queue is closed
meanwhile. So a process that dies gets no more again than it has taken ahead. A loop that ends leaves nothing in hand:
what was handed out and not finished has failed, and what was not handed out goes back uncounted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from holdfast.errors import ClosedError, Empty, ForkedError, HoldfastError, ShutDown, StaleReceiptError
from holdfast.queue.consumer.draining import log_left
from holdfast.queue.dispatch.delivery import Deliverer, Delivery


class Source(Deliverer, Protocol):
    """The read side of a queue, or what asks its owner."""

    def ack_and_receive(
        self, deliveries: Sequence[Delivery], count_max: int, timeout: float | None, lease_seconds: float | None = None
    ) -> list[Delivery]:
        """Finish deliveries, and take others; if it raises queue.Empty or ShutDown, they are finished."""


class Consuming:
    """The messages of one loop: :meth:`PersistentQueue.consume`. One thread iterates; others may :meth:`settle`.

    Parameters
    ----------
    name : object
        The queue, for the log.
    source : Source
        What is taken from.
    prefetch : int
        How many messages are taken at once.
    timeout : float or None, seconds
        The loop ends if nothing comes for so long; None: it never does.
    lease_seconds : float or None
        None: as the queue has it.

    Attributes
    ----------
    taken : list of Delivery
        What was taken last.
    finished_count : int
        How many of them the loop has left behind.
    """

    def __init__(
        self, name: object, source: Source, prefetch: int, timeout: float | None, lease_seconds: float | None
    ) -> None:
        self._name = name
        self._source = source
        self._prefetch = prefetch
        self._timeout = timeout
        self._lease_seconds = lease_seconds
        self.taken: list[Delivery] = []
        self.finished_count = 0

    def run(self) -> Iterator[Delivery]:
        """Yield messages until nothing comes any more, or the queue is shut down; log the messages left then."""
        try:
            while True:
                self.take()
                for delivery in self.taken:
                    if not delivery.is_settled:  # its lease may have run out, while this process was stopped
                        try:
                            yield delivery
                        except BaseException:  # the loop was left: by `break`, `return` or an exception of its body
                            self.fail(delivery)
                            raise
                    self.finished_count += 1
        except Empty:
            return
        except ShutDown as error:
            log_left(self._name, error)
        finally:
            self.leave()

    def take(self) -> None:
        """Finish what the loop has left behind, and take more."""
        finished = []
        for each in self.taken:
            if each.has_expired or not (each.is_settled or each.holder):  # as _is_left has it, without the call
                finished.append(each)
            else:
                each.is_open = False  # a transaction may have it
        taken = self._source.ack_and_receive(finished, self._prefetch, self._timeout, self._lease_seconds)
        self.finished_count = 0
        self.taken = taken
        for each in taken:
            each.is_open = True  # until it is settled: a lease does not run out because others are worked on first

    def fail(self, delivery: Delivery) -> None:
        """Note that the loop was left with this message in hand."""
        if _is_left(delivery):
            with suppress(HoldfastError):
                self._source.nack((delivery,))

    def settle(self) -> None:
        """Acknowledge what is finished so far. What was taken away comes again; a queue that is closed did all that."""
        left = [each for each in self.taken[: self.finished_count] if _is_left(each)]
        with suppress(ClosedError, ForkedError):
            while left:
                try:
                    self._source.ack(left)
                    return
                except StaleReceiptError as error:
                    left = [each for each in left if each.offset != error.context.get("offset", left[0].offset)]

    def leave(self) -> None:
        """Acknowledge what is finished, and give the rest back."""
        try:
            self.settle()
        finally:
            left = [each for each in self.taken[self.finished_count :] if _is_left(each)]
            with suppress(HoldfastError):
                self._source.release(left)
            for each in self.taken:
                each.is_open = False


def _is_left(delivery: Delivery) -> bool:
    """Whether its receiver has not settled it, nor given it to a transaction."""
    return not (delivery.is_settled or delivery.holder)

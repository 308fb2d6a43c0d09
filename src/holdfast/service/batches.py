"""Gathers messages into batches for a loop, and settles each batch when the loop continues."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from holdfast.errors import Empty, HoldfastError, ShutDown
from holdfast.queue.consumer.draining import log_left
from holdfast.queue.dispatch.delivery import Delivery, DeliveryBatch, by_queue

Body = TypeVar("Body")


class ReceiveMany(Protocol[Body]):
    """Takes several messages."""

    def __call__(self, max_messages: int, *, timeout: float | None = None) -> DeliveryBatch[Body]:
        """As :meth:`TypedQueue.receive_many`."""


class Batches(Generic[Body]):
    """The batches of one loop: see :meth:`TypedQueue.consume_many`."""

    def __init__(self, name: str, receive_many: ReceiveMany[Body], max_messages: int, max_wait: float) -> None:
        self._name = name
        self._receive_many = receive_many
        self._max_messages = max_messages
        self._max_wait = max_wait
        self._gathered: list[Delivery[Body]] = []
        self._next: Sequence[Delivery[Body]] = ()

    def run(self, *, stop_when_empty: bool) -> Iterator[DeliveryBatch[Body]]:
        """Yield batches until the queue is shut down, or nothing came for so long."""
        try:
            while True:
                try:
                    batch = self._gather()
                except ShutDown as error:
                    log_left(self._name, error)
                    return
                if batch is not None:
                    with batch:
                        self._gathered = []
                        yield batch
                elif stop_when_empty:
                    return
        finally:
            for left in by_queue([*self._gathered, *self._next]):
                with suppress(HoldfastError):  # a queue that was closed meanwhile has given everything back
                    left.release()

    def _gather(self) -> DeliveryBatch[Body] | None:
        """Take messages until there are enough, or the time is over; a redelivered message comes alone."""
        gathered = self._gathered = [each for each in self._next if not each.is_settled]  # a lease may have run out
        self._next = ()
        deadline = time.monotonic() + self._max_wait
        while len(gathered) < self._max_messages and not (gathered and gathered[0].delivery_count > 1):
            left = max(0.0, deadline - time.monotonic())
            try:
                taken = self._receive_many(self._max_messages - len(gathered), timeout=left)
            except Empty:
                break
            except ShutDown:
                if not gathered:
                    raise
                break
            self._next = taken  # first: an interruption below gives it back
            if gathered and not may_join(taken, gathered):
                break
            gathered += taken
            self._next = ()
        return by_queue(gathered)[0] if gathered else None


def may_join(taken: Sequence[Delivery], gathered: Sequence[Delivery]) -> bool:
    """Whether messages may be in one batch with others: first deliveries, of the same queue."""
    return taken[0].delivery_count == 1 and len(by_queue((gathered[0], taken[0]))) == 1

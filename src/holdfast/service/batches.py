"""Gathers messages into batches for a loop, and settles each batch when the loop goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from holdfast.errors import Empty, ShutDown
from holdfast.queue.delivery import by_queue
from holdfast.service.typed_delivery import TypedBatch, TypedDelivery

Body = TypeVar("Body")


class ReceiveMany(Protocol[Body]):
    """Takes several messages."""

    def __call__(self, max_messages: int, *, timeout: float | None = None) -> TypedBatch[Body]:
        """As :meth:`TypedQueue.receive_many`."""


class Batches(Generic[Body]):
    """The batches of one loop: see :meth:`TypedQueue.consume_many`."""

    def __init__(self, receive_many: ReceiveMany[Body], max_messages: int, max_wait: float) -> None:
        self._receive_many = receive_many
        self._max_messages = max_messages
        self._max_wait = max_wait
        self._next: list[TypedDelivery[Body]] = []

    def run(self, *, stop_when_empty: bool) -> Iterator[TypedBatch[Body]]:
        """Yield batches until the queue is shut down, or nothing came for so long."""
        try:
            while True:
                try:
                    batch = self._gather()
                except ShutDown:
                    return
                if batch:
                    with TypedBatch(by_queue(each.delivery for each in batch), batch) as open_batch:
                        yield open_batch
                elif stop_when_empty:
                    return
        finally:
            for left in by_queue(each.delivery for each in self._next):
                left.release()

    def _gather(self) -> list[TypedDelivery[Body]]:
        """Take messages until there are enough, or the time is over; one that was handed out before comes alone."""
        gathered, self._next = self._next, []
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
            if gathered and taken[0].delivery_count > 1:
                self._next = list(taken)
                break
            gathered += taken
        return gathered

"""A work queue on a simulated disk, with a clock that stands still: leases, back-off and dead letters to the second."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import Delivery, Empty, PersistentQueue
from holdfast.queue import persistent_queue
from holdfast.queue.local_engine import LocalEngine
from holdfast.queue.options.queue_options import Mode
from support.builders.clocks import FakeClock
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/q")


@dataclass
class Jobs:
    """A disk, a clock, and how to open the queue that lives there: without jitter, and by default without back-off."""

    storage: SimulatedStorage = field(default_factory=SimulatedStorage)
    clock: FakeClock = field(default_factory=FakeClock)

    def open(self, *, mode: Mode = "exclusive", living: Collection[int] = (), **options: Any) -> PersistentQueue:
        """Open it, while these sessions live.

        Only a handle that takes says the back-off: the first one that says it sets it.
        """
        if mode == "exclusive":
            options.setdefault("backoff", [])
        module = vars(persistent_queue)
        module["LocalEngine"] = partial(LocalEngine, living=living.__contains__)
        try:  # without a context: its end would be a point to interrupt, with a queue that is open and has no name
            return PersistentQueue(
                ROOT, mode=mode, data_file_bytes=16 * 2**10, storage=self.storage, clock=self.clock, **options
            )
        finally:
            module["LocalEngine"] = LocalEngine

    def put(self, *payloads: bytes) -> None:
        """Put messages, with a handle that says nothing of the back-off: the next one does."""
        with PersistentQueue(
            ROOT, mode="exclusive", data_file_bytes=16 * 2**10, storage=self.storage, clock=self.clock
        ) as queue:
            queue.put_many(payloads)

    def killed(self) -> Jobs:
        """Return what is left where the process dies now."""
        return Jobs(self.storage.crash_keeping_all(), self.clock)

    def without_power(self) -> Jobs:
        """Return what is left where the power fails now, and takes all it can."""
        return Jobs(self.storage.crash_dropping_unsynced(), self.clock)


def ready(queue: PersistentQueue) -> list[bytes]:
    """Return what would be handed out next."""
    return [message.payload for message in queue.peek(1000)]


def in_hand(queue: PersistentQueue) -> int:
    """Return how many messages are leased."""
    return queue.stats().in_flight


def drained(queue: PersistentQueue) -> list[bytes]:
    """Receive and acknowledge all that is ready; return it in the order in which it came."""
    found: list[bytes] = []
    with suppress(Empty):
        while True:
            with queue.receive_many(100, timeout=0) as batch:
                found += [delivery.payload for delivery in batch]
    return found


def fail(delivery: Delivery, error: Exception | None = None) -> None:
    """Work on a message until an exception ends it."""
    with suppress(type(error) if error is not None else RuntimeError), delivery:
        raise error if error is not None else RuntimeError("it cannot be done")


def bury_some(queue: PersistentQueue) -> None:
    """Make dead letters: a rejected, b given back, c failed; it takes a queue with ``max_deliveries=1``."""
    queue.receive().reject("not wanted")
    queue.receive().nack()
    fail(queue.receive(), KeyError("key"))

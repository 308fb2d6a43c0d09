"""One case: a simulated disk, a clock that stands still, the queues of the operation, and repeatable random bytes."""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast import Delivery, DeliveryBatch, FlushPolicy, HoldfastError, PersistentQueue, Transaction
from holdfast.queue.options.queue_options import Mode
from holdfast.queue.producer import nonces
from support.builders.clocks import FakeClock
from support.owners.machine_link import machine_links
from support.storages.simulated_storage import SimulatedStorage

MAIN = Path("/q")
OTHER = Path("/r")
FILTERED = Path("/f")
GROUPS = {FILTERED: "small"}
"""Queues that are opened for another group than the default one."""
DATA_FILE_BYTES = 16 * 2**10  # the smallest
DEDUP_MAX = 64  # a longer memory takes longer to read, and each case reads it
LARGE = bytes(5000)  # three of them fill a data file; a transaction of one goes through a file of its own

POLICIES = {
    "every_commit": FlushPolicy.every_commit(),
    "every(commits=2)": FlushPolicy.every(commits=2, seconds=1000),
    "never": FlushPolicy.never(),
}

_random = random.Random()  # repeatable on purpose


@contextmanager
def repeatable_bytes() -> Iterator[None]:
    """Take ids and salts from a seed: cases whose disks are equal byte for byte need judging once."""
    with (
        mock.patch.object(secrets, "token_bytes", _random.randbytes),
        mock.patch.object(secrets, "token_hex", lambda size: _random.randbytes(size).hex()),
    ):
        yield


def begin_life(name: str) -> None:
    """Start the random bytes of one life of a disk: no two lives of one disk may have the same."""
    _random.seed(name)
    nonces.begin_anew()


class StandingClock(FakeClock):
    """No time passes for background threads: all that happens is the operation."""

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        return super().wait(event, None)


@dataclass
class World:
    """What an operation works on. ``paths`` are its queues; in ``held`` is what was received for it.

    In the ``mode`` "shared" each queue has a machine without a socket for its owner, which is in this process if it
    ``is_own``.
    """

    storage: SimulatedStorage
    policy: FlushPolicy
    paths: tuple[Path, ...] = (MAIN,)
    clock: StandingClock = field(default_factory=StandingClock)
    queues: dict[Path, PersistentQueue] = field(default_factory=dict)
    held: list[Delivery] = field(default_factory=list)
    batch: DeliveryBatch | None = None
    waiting: Delivery | None = None
    mode: Mode = "exclusive"
    is_own: bool = False

    @property
    def queue(self) -> PersistentQueue:
        """The queue itself."""
        return self.queues[MAIN]

    @property
    def other(self) -> PersistentQueue:
        """The second queue."""
        return self.queues[OTHER]

    def open(self, path: Path = MAIN, **options: Any) -> PersistentQueue:
        """Open a queue, with data files as small as they can be and without back-off."""
        options.setdefault("backoff", [])
        options.setdefault("dedup_max", DEDUP_MAX)
        options.setdefault("group", GROUPS.get(path, "default"))
        with machine_links() as machines:
            machines.are_own = self.is_own
            queue = PersistentQueue(
                path,
                mode=self.mode,
                flush=self.policy,
                data_file_bytes=DATA_FILE_BYTES,
                storage=self.storage,
                clock=self.clock,
                **options,
            )
        self.queues[path] = queue
        return queue

    def open_all(self) -> None:
        """Open what is not open."""
        for path in self.paths:
            if path not in self.queues:
                self.open(path)

    def take(self, count: int) -> list[Delivery]:
        """Receive messages for the operation."""
        self.batch = self.queue.receive_many(count, timeout=0)
        self.held = list(self.batch)
        return self.held

    def transaction(self, *payloads: bytes, acks: int = 0, **options: Any) -> Transaction:
        """Begin a transaction that puts messages and acknowledges some that it has received."""
        transaction = self.queue.begin(**options)
        for _ in range(acks):
            transaction.ack(transaction.receive(timeout=0))
        transaction.put_many(payloads)
        return transaction

    def close(self) -> None:
        """Close all; where that fails they are closed all the same. Only errors of ours may come."""
        for queue in self.queues.values():
            with suppress(HoldfastError):
                queue.close()
        self.queues.clear()

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
from holdfast.persistence.exchange.requests import list_requests
from holdfast.queue.local_engine import LocalEngine
from holdfast.queue.producer import nonces
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of
from support.storages.simulated_storage import SimulatedStorage

MAIN = Path("/q")
OTHER = Path("/r")
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


class ServingClock(FakeClock):
    """The clock of who submits: while it waits the owner serves, in the same thread, so that runs are the same.

    Where there is no owner, time passes.
    """

    STEP_SECONDS = 0.25

    def __init__(self, owner: PersistentQueue | None) -> None:
        super().__init__()
        self._owner = owner
        self._thread = threading.current_thread()

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        if threading.current_thread() is not self._thread:
            return super().wait(event, None)
        if self._owner is not None:
            engine = self._owner._engine
            assert isinstance(engine, LocalEngine)
            server = engine.server
            assert server is not None
            with suppress(HoldfastError, OSError):  # as its thread does, which tries again
                server._serve(list_requests(server._storage, server._requests))
        self.advance(self.STEP_SECONDS)
        return event.is_set()


@dataclass
class World:
    """What an operation works on. ``paths`` are its queues; in ``held`` is what was received for it."""

    storage: SimulatedStorage
    policy: FlushPolicy
    paths: tuple[Path, ...] = (MAIN,)
    clock: StandingClock = field(default_factory=StandingClock)
    queues: dict[Path, PersistentQueue] = field(default_factory=dict)
    held: list[Delivery] = field(default_factory=list)
    batch: DeliveryBatch | None = None
    waiting: Delivery | None = None
    handles: list[PersistentQueue] = field(default_factory=list)

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
        queue = PersistentQueue(
            path,
            flush=self.policy,
            data_file_bytes=DATA_FILE_BYTES,
            storage=self.storage,
            clock=self.clock,
            **{"mode": "exclusive", **options},
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

    def submitter(self) -> PersistentQueue:
        """Open a handle that submits to the open queue, if it is open; all happens in one thread."""
        clock = ServingClock(self.queues.get(MAIN))
        handle = PersistentQueue(MAIN, mode="submit", flush=self.policy, storage=self.storage, clock=clock)
        side = handle_of(handle).submit_side
        assert side is not None
        helper: Any = side._requester._helper
        helper.call = helper._run
        self.handles.append(handle)
        return handle

    def close(self) -> None:
        """Close all; where that fails they are closed all the same. Only errors of ours may come."""
        for queue in [*self.handles, *self.queues.values()]:
            with suppress(HoldfastError):
                queue.close()
        self.handles.clear()
        self.queues.clear()

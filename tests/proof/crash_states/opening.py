"""How the explorer opens queues: small, on one clock that stands still, and with the same identifiers every time."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from holdfast import FlushPolicy, PersistentQueue
from support.simulated_storage import SimulatedStorage
from support.transaction_worlds import PatientClock

DATA_FILE_BYTES = 16 * 2**10  # the smallest: a transaction of more than a quarter of it is adopted

POLICIES = {
    "every_commit": FlushPolicy.every_commit(),
    "every_2_commits": FlushPolicy.every(commits=2),
    "never": FlushPolicy.never(),
}

CLOCK = PatientClock()


def open_queue(
    storage: SimulatedStorage, name: str, policy: FlushPolicy, *, mode: str = "both", group: str = "default"
) -> PersistentQueue:
    """Open a queue by its name."""
    return PersistentQueue(
        Path("/") / name,
        mode=mode,
        group=group,
        flush=policy,
        data_file_bytes=DATA_FILE_BYTES,
        max_deliveries=None,
        storage=storage,
        clock=CLOCK,
    )


def take_apart(queue: PersistentQueue) -> None:
    """Cut the cycles in a closed queue, so that its memory is used again while it is in the processor's caches.

    All queues that took part in a transaction with it are closed before.
    """
    sides, write_side = queue.sides, queue.sides.require_write_side()
    for part in (write_side.deduplication, write_side, sides.read_side, sides, queue):
        vars(part).clear()


@contextmanager
def same_identifiers() -> Iterator[None]:
    """Draw all identifiers and nonces from :func:`draw_from`, so that a history makes the same bytes each time.

    What files say of who locked them, and of the second when they were made, is the same too: states that differ in
    nothing else are one.
    """
    with (
        patch.object(os, "getpid", lambda: 1),
        patch.object(socket, "gethostname", lambda: "host"),
        patch.object(time, "gmtime", lambda *_: _MADE),
        patch.object(secrets, "token_bytes", lambda count=16: _drawn.randbytes(count)),
        patch.object(secrets, "token_hex", lambda count=16: _drawn.randbytes(count).hex()),
        patch.object(secrets, "randbits", _drawn.getrandbits),
    ):
        yield


_drawn = random.Random(0)
_MADE = time.struct_time((2026, 1, 1, 0, 0, 0, 3, 1, 0))


def draw_from(seed: str) -> None:
    """Begin the identifiers of a life, or of a recovery: two that come together need seeds that differ."""
    _drawn.seed(seed)


@contextmanager
def no_threads() -> Iterator[None]:
    """Leave open queues alone: time stands still, so nothing is due or to be looked for. Files are closed at once."""
    with ExitStack() as stack:
        stack.enter_context(patch("holdfast.queue.flusher.Flusher.kick", lambda flusher: None))
        stack.enter_context(patch("holdfast.persistence.log_files.close_aside", lambda file: file.close()))
        for module in ("resting", "request_server"):
            for verb in ("watch", "unwatch"):
                stack.enter_context(patch(f"holdfast.queue.{module}.{verb}", lambda watched, clock: None))
        yield

"""How the explorer opens queues: small, on one clock that stands still, and with the same identifiers every time."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from unittest.mock import patch

from holdfast import Damage, FlushPolicy, PersistentQueue
from holdfast.persistence.log.log_reader import LogReader
from holdfast.persistence.outcomes.shared_joint_file import DIRECTORY, SharedJointFile
from holdfast.queue.inspect.groups import Groups
from holdfast.queue.local_engine import LocalEngine
from holdfast.queue.options.queue_options import Mode
from holdfast.queue.producer import nonces
from support.builders.handles import handle_of
from support.owners.second_groups import open_beside
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.transaction_worlds import PatientClock

DATA_FILE_BYTES = 16 * 2**10  # the smallest: a transaction of more than a quarter of it is adopted

POLICIES = {
    "every_commit": FlushPolicy.every_commit(),
    "every_2_commits": FlushPolicy.every(commits=2),
    "never": FlushPolicy.never(),
}

CLOCK = PatientClock()
"""The one of all queues here. It stands still but for lives that set it on; who recovers sets it as it was."""

ALL = 10**6
"""More messages than there ever are."""

APPLICATION = "app"
"""Whose joint commits there are."""

SLOW = "slow"
"""The second group. It has a handle of its own, beside that of the first one."""

LIVING, DEAD = 1, 2
"""Numbers of the session that lives over all crashes, and of the one that does not."""

FIRST_SESSION = 10
"""The number of the first session of a life in the mode "shared": it dies in each crash."""

DEDUP_SECONDS = 10**6
"""Longer than any life."""


DEDUP_MAX = 64
"""More than there are ids: the file with room for the default takes 5 MB, and is on each disk."""


def slow_policy(policy: FlushPolicy) -> FlushPolicy:
    """Return the policy of the second group's handle: the next stronger one, as it may ask for more than the queue."""
    policies = list(POLICIES.values())
    return policies[max(policies.index(policy) - 1, 0)]


def open_queue(storage: SimulatedStorage, name: str, policy: FlushPolicy, mode: Mode = "exclusive") -> PersistentQueue:
    """Open a queue by its name."""
    return PersistentQueue(
        Path("/") / name,
        mode=mode,
        flush=policy,
        data_file_bytes=DATA_FILE_BYTES,
        max_deliveries=None,
        dedup_window=DEDUP_SECONDS,
        dedup_max=DEDUP_MAX,
        data_file_max_age=3600,
        max_lag_bytes=1,
        storage=storage,
        clock=CLOCK,
    )


def open_slow(queue: PersistentQueue, policy: FlushPolicy) -> PersistentQueue:
    """Open the second group of an open queue, under the next stronger policy."""
    return open_beside(queue, SLOW, flush=slow_policy(policy), max_deliveries=None)


@contextmanager
def another_actor(queue: PersistentQueue) -> Iterator[Groups]:
    """Return what makes and deletes groups of an open queue, and knows nothing of what that one has in memory.

    So it works as another thread of the queue does in the worst case: only the lock of the groups is between them.
    """
    with PersistentQueue(queue.path, mode="read_only", storage=queue._storage, clock=CLOCK) as looking:
        handle = handle_of(looking)
        handle.options = handle_of(queue).options
        yield looking.groups
    take_apart(looking)


def log_of(queue: PersistentQueue) -> list[tuple[int, bytes]]:
    """Return every message of the data files by offset, whatever groups say of it."""
    handle = handle_of(queue)
    handle.files.refresh()
    losses: list[Damage] = []
    reader = LogReader(handle.files, losses.append)
    found: list[tuple[int, bytes]] = []
    try:
        reader.seek(handle.files.first_offset)
        while records := reader.read(ALL, handle.require_read_side().log_end):
            found += [(record[0], once(record[3])) for record in records]
    finally:
        reader.close()
    return found


def version_beside(storage: SimulatedStorage) -> int | None:
    """Return what the document beside the queues has decided last, durably."""
    file = SharedJointFile(storage, CLOCK, Path("/") / DIRECTORY)
    if file.id() is None:
        return None
    with file.locked() as decided:
        commit = decided.find(APPLICATION)
    return None if commit is None else commit.version


@lru_cache(maxsize=1024)
def once(payload: bytes) -> bytes:
    """Return the same payload for all that are alike: what queues show is kept."""
    return payload


def take_apart(queue: PersistentQueue) -> None:
    """Cut the cycles in a closed queue, so that its memory is used again while it is in the processor's caches.

    All queues that took part in a transaction with it are closed before.
    """
    handle = handle_of(queue)
    write_side = handle.write_side if handle._beside is None else None
    if write_side is not None:
        vars(write_side.deduplication).clear()
    for part in (write_side, handle.read_side, handle.look_side, handle, queue):
        if part is not None:
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
    nonces.begin_anew()


@contextmanager
def no_threads() -> Iterator[None]:
    """Leave open queues alone: time stands still, so nothing is due or to be looked for. Files are closed at once.

    One session of a client is alive whenever a queue is opened.
    """
    with ExitStack() as stack:
        stack.enter_context(patch("holdfast.queue.threads.flusher.Flusher.kick", lambda flusher: None))
        stack.enter_context(patch("holdfast.queue.client.upkeep.Upkeep.wake", lambda upkeep: None))
        stack.enter_context(patch("holdfast.persistence.log.log_files.close_in_background", lambda file: file.close()))
        living = partial(LocalEngine, living=LIVING.__eq__)
        stack.enter_context(patch("holdfast.queue.persistent_queue.LocalEngine", living))
        for verb in ("watch", "unwatch"):
            for room in ("engine.idle_handles", "prepared.log_moves"):
                stack.enter_context(patch(f"holdfast.queue.{room}.{verb}", lambda watched, clock: None))
        yield

"""A handler of log records may use the queue that logs: no record is said under a lock of it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from holdfast import Empty, FlushPolicy, HoldfastError, PersistentQueue
from support.builders.jobs import Jobs
from support.processes.log_handlers import VERBS, calling, is_all_said
from support.processes.threads import Threads, wait_until
from support.storages.refusals import refusing

Trouble = Callable[[Jobs, PersistentQueue], object]

NO_MEMORY = MemoryError("none left")


def a_sync_of_a_put(jobs: Jobs, queue: PersistentQueue) -> None:
    """The write side is poisoned."""
    with refusing(jobs.storage, "sync", ".data", count=1):
        queue.put(b"new")


def a_sync_of_an_acknowledgement(jobs: Jobs, queue: PersistentQueue) -> None:
    """The read side is poisoned."""
    delivery = queue.receive(timeout=0)
    with refusing(jobs.storage, "sync", ".position", count=1):
        delivery.ack()


def a_file_that_cannot_go(jobs: Jobs, queue: PersistentQueue) -> None:
    """What follows an acknowledgement fails, under the lock of takes."""
    while queue.stats().file_count < 3:
        queue.put(bytes(5000))
    with refusing(jobs.storage, "rename", ".data", errno.EIO, count=1), suppress(Empty):
        while True:
            queue.get(timeout=0)


def a_note_of_a_dead_letter(jobs: Jobs, queue: PersistentQueue) -> None:
    """The text of an exception cannot be kept."""
    delivery = queue.receive(timeout=0)
    with refusing(jobs.storage, "write_at", ".json", errno.ENOSPC, count=1):
        delivery.reject("no use")


def a_mark(jobs: Jobs, queue: PersistentQueue) -> None:
    """Other processes see a message later."""
    with refusing(jobs.storage, "write_at", "write.mark", NO_MEMORY, count=1):
        queue.put(b"new")


def ids_that_come_too_fast(jobs: Jobs, queue: PersistentQueue) -> None:
    """More than are remembered."""
    for number in range(4):
        queue.put(b"new", dedup_id=str(number))


TROUBLES: tuple[Trouble, ...] = (
    a_sync_of_a_put,
    a_sync_of_an_acknowledgement,
    a_file_that_cannot_go,
    a_note_of_a_dead_letter,
    a_mark,
    ids_that_come_too_fast,
)


def close(queue: PersistentQueue) -> None:
    """End the queue, as a handler may that has read of a failure."""
    queue.close()


@pytest.mark.parametrize("verbs", [VERBS, (close,)], ids=["every verb", "close"])
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_a_handler_calls_what_it_likes_at_every_record(
    trouble: Trouble, verbs: tuple[Callable[[PersistentQueue], object], ...]
) -> None:
    """The call that logs returns, and so does each call of the handler."""
    jobs, threads = Jobs(), Threads()
    queue = jobs.open(flush=FlushPolicy.every_commit(), dedup_max=2)
    queue.put_many([b"one", b"two", b"three"])

    def run() -> None:
        with suppress(HoldfastError):
            trouble(jobs, queue)

    with calling(queue, verbs) as handler:
        threads.start(run)
        threads.join(20)
        wait_until(lambda: bool(handler.said) and is_all_said())
    assert not handler.failures
    with suppress(HoldfastError):
        queue.close()

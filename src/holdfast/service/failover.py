"""Takes over the queues of nodes that died: their messages are delivered together with a queue's own.

A node is dead when the locks of its queue are free. The queue that takes it over holds them until nothing is unfinished
there, and then releases them: the node may come back. Dead letters stay in their queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from holdfast.errors import (
    ClosedError,
    ConfigError,
    Empty,
    HoldfastError,
    QueueLockedError,
    QueueNotFoundError,
    StorageError,
    UsageError,
)
from holdfast.queue.dispatch.delivery import Delivery, DeliveryBatch
from holdfast.queue.options.arguments import wait_for
from holdfast.queue.options.put_options import Seconds
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.threads import lifecycle

Taken = TypeVar("Taken")

logger = logging.getLogger("holdfast")

LOOK_SECONDS = 2.0
"""How often to look whether a node has died, or its queue is finished. A look costs some milliseconds."""

UNFINISHED_SECONDS = 0.1
"""The longest wait for a queue's own messages while some of a dead node's may become ready."""


@dataclass
class Adopted:
    """The queue of another node.

    Attributes
    ----------
    path : Path
        The path of the queue.
    is_watched : bool
        Whether to take it over again, whenever its node dies.
    queue : PersistentQueue or None
        While it is taken over.
    was_finished : bool
        Whether nothing was unfinished at the last check.
    rests_until : float
        Nothing is taken from it before: its disk fails.
    """

    path: Path
    is_watched: bool
    queue: PersistentQueue | None = None
    was_finished: bool = False
    rests_until: float = 0.0


class FailoverSource:
    """A queue of bytes with those of nodes that died.

    Parameters
    ----------
    own : PersistentQueue
        The queue itself.
    open_queue : callable
        Opens the queue at a path in a mode, and makes none.
    """

    def __init__(self, own: PersistentQueue, open_queue: Callable[[Path, str], PersistentQueue]) -> None:
        self._own = own
        self._open_queue = open_queue
        self._adopted: list[Adopted] = []
        self._lock = threading.Lock()
        self._look_at = 0.0
        self._is_closed = False
        lifecycle.watch(self)

    @property
    def queues(self) -> list[PersistentQueue]:
        """The queue itself, and those that are taken over just now."""
        return [self._own, *(each.queue for each in tuple(self._adopted) if each.queue is not None)]

    @property
    def paths(self) -> list[Path]:
        """The paths of queues that are taken over, or watched."""
        return [each.path for each in tuple(self._adopted)]

    # -- Taking over -------------------------------------------------------------------------------------------------

    def watch(self, path: Path) -> None:
        """Take a queue over whenever its node is dead and something is unfinished there."""
        with self._lock:
            self._check(path)
            self._adopted.append(Adopted(path, is_watched=True))

    def adopt(self, path: Path) -> None:
        """Take a queue over now, until it is finished; raises QueueLockedError if its node lives."""
        with self._lock:
            self._check(path)
            self._adopted.append(Adopted(path, is_watched=False, queue=self._open_queue(path, "exclusive")))
        self.wake()

    def _check(self, path: Path) -> None:
        if self._is_closed:
            raise ClosedError(f"{self._own.path} is closed; open it again")
        if not self._own.can_take:
            raise UsageError(f"{self._own!r} takes nothing, so it takes over nothing: open it with mode='shared'")
        if path in (self._own.path, *self.paths):
            raise ConfigError(f"{path} takes part in {self._own.path} already")

    def _look(self) -> None:
        """Open queues that are free now, and close finished ones; now and then only. The caller holds the lock."""
        if self._is_closed or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_SECONDS
        for each in list(self._adopted):
            if each.queue is None:
                self._try_to_open(each)
                continue
            is_finished = not each.queue.depth()
            if is_finished and each.was_finished:  # after one check: the call that finished the last one is over
                self._let_go(each)
            each.was_finished = is_finished

    def _try_to_open(self, adopted: Adopted) -> None:
        try:
            with self._open_queue(adopted.path, "read_only") as glance:
                if not glance.depth():
                    return
            adopted.queue = self._open_queue(adopted.path, "exclusive")
            logger.warning("taking over %s, whose node is gone", adopted.path)
        except (QueueLockedError, QueueNotFoundError):  # it lives, or has not begun
            pass
        except HoldfastError as error:
            logger.error("cannot take over %s: %s", adopted.path, error)

    def _let_go(self, adopted: Adopted) -> None:
        queue, adopted.queue = adopted.queue, None
        if not adopted.is_watched:
            self._adopted.remove(adopted)
        if queue is not None:
            logger.warning("finished %s, which was taken over", adopted.path)
            try:
                queue.close()
            except StorageError as error:  # no reason to stop taking from the queue itself
                logger.error("cannot close %s, which was taken over: %s", adopted.path, error)

    # -- Taking ------------------------------------------------------------------------------------------------------

    def receive(self, *, timeout: float | None = None, lease_seconds: Seconds | None = None) -> Delivery:
        """Take one message from any of them; as that of :class:`PersistentQueue`."""
        return self._take(lambda queue, wait: queue.receive(timeout=wait, lease_seconds=lease_seconds), timeout)

    def receive_many(
        self, max_messages: int, *, timeout: float | None = None, lease_seconds: Seconds | None = None
    ) -> DeliveryBatch:
        """Take messages from one of them; as that of :class:`PersistentQueue`."""
        return self._take(
            lambda queue, wait: queue.receive_many(max_messages, timeout=wait, lease_seconds=lease_seconds), timeout
        )

    def _take(self, take: Callable[[PersistentQueue, float | None], Taken], timeout: float | None) -> Taken:
        """Take from the queues of dead nodes first: it has waited longest."""
        wait_for(True, timeout)  # refuses an invalid time
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                self._look()
                for each in self._adopted:
                    if each.queue is not None and each.rests_until <= time.monotonic():
                        try:
                            return take(each.queue, 0)
                        except Empty:
                            pass
                        except StorageError as error:  # no reason to stop taking from the queue itself
                            each.rests_until = time.monotonic() + LOOK_SECONDS
                            logger.error("cannot take from %s, which was taken over: %s", each.path, error)
                wait = self._wait_seconds()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return take(self._own, min((each for each in (wait, left) if each is not None), default=None))
            except Empty:
                if left is not None and (wait is None or left <= wait):
                    raise

    def _wait_seconds(self) -> float | None:
        """Return how long to wait for the queue's own messages before checking the others again; None: for ever."""
        if any(each.queue is not None and not each.was_finished for each in self._adopted):
            return UNFINISHED_SECONDS
        return LOOK_SECONDS if self._adopted else None

    def wait_for_more(self, seconds: float | None, is_over: Callable[[], bool]) -> None:
        """Sleep until one of them may have more, or ``is_over()`` at a :meth:`wake`; at most ``seconds``."""
        with self._lock:
            wait, known = self._wait_seconds(), tuple(self._adopted)
        left = min((each for each in (wait, seconds) if each is not None), default=None)
        self._own.wait_for_more(left, lambda: is_over() or known != tuple(self._adopted))

    def wake(self) -> None:
        """Wake threads that wait for a message, so that they check again."""
        self._own.wake()

    # -- Ending ------------------------------------------------------------------------------------------------------

    def forget_after_fork(self) -> None:
        """In a forked child: the parent has what it has taken over, and its thread may hold the lock.

        A shared queue opens anew there, and takes over again what it watches; others take over nothing.
        """
        self._lock = threading.Lock()
        self._is_closed = self._is_closed or self._own.mode != "shared"
        self._adopted = [Adopted(each.path, is_watched=True) for each in self._adopted if each.is_watched]

    def close(self) -> None:
        """Close all of them."""
        with ExitStack() as stack:  # each is closed, even if closing another one fails
            stack.callback(self._own.close)
            with self._lock:
                self._is_closed = True  # a concurrent take takes over nothing more, which would never be closed
                for each in self._adopted:
                    if each.queue is not None:
                        stack.callback(each.queue.close)

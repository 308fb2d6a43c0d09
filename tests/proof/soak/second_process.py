"""What the second process does: it puts, and takes for the slow group, through the first one, which owns the queue.

The slow group stays so many messages behind, holds on to some, and is closed and opened again every few seconds.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from holdfast import Empty, PersistentQueue
from proof.soak.ledger import Lane, Ledger, Table, name_of, payload_of
from proof.soak.load import BATCH_COUNT, TAKE_COUNT, WAIT_SECONDS, Pace, Pins, open_work
from proof.soak.samples import tidy
from support.processes.children import Signal
from support.processes.threads import Threads

PUTS_PER_SECOND = 10
REOPEN_SECONDS = 10.0
DRAIN_SECONDS_MAX = 60.0


class SecondProcess:
    """Its jobs.

    Parameters
    ----------
    path : Path
        Where the queues are.
    ledger : Ledger
        What is noted of each message.
    backlog : int, messages
        How far the slow group stays behind.
    maxsize : int
        As the owner bounds the queue.
    pin_seconds : float
        How long messages are held on to.
    """

    def __init__(self, path: Path, ledger: Ledger, backlog: int, maxsize: int, pin_seconds: float) -> None:
        self._path = path
        self._ledger = ledger
        self._dispatcher = backlog
        self._maxsize = maxsize
        self._pin_seconds = pin_seconds
        self._no_more_puts = threading.Event()
        self._is_over = threading.Event()
        self.started = Signal()
        self.told = Signal()
        self.said = Signal()

    # -- From the first process --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Have it open the queue, which the first process owns by now, and return once it works."""
        self.told.send("begin")
        self.started.wait()

    def stop_putting(self) -> None:
        """Have it put no more, and return once nothing is under way."""
        self.told.send("stop putting")
        self.said.wait()

    def drain(self) -> None:
        """Have it finish all there is and end."""
        self.told.send("drain")

    def close(self) -> None:
        """Let go of the pipes."""
        for pipe in (self.started, self.told, self.said):
            pipe.close()

    # -- In the process ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until told to end; what a job raises comes out."""
        producers, consumers = Threads(), Threads()
        self.told.wait(seconds=86400)
        with open_work(self._path, group="slow") as queue:
            producers.start(lambda: self.put_singles(queue))
            producers.start(lambda: self.put_batches(queue))
            consumers.start(self.stay_behind)
            consumers.start(self.keep_tidy)
            self.started.send()
            self.told.wait(seconds=86400)
            self._no_more_puts.set()
            producers.join()
        self.said.send()
        self.told.wait(seconds=86400)
        self._is_over.set()
        consumers.join()

    def put_singles(self, queue: PersistentQueue) -> None:
        """Put one at a time, through the owner."""
        for number in Pace(PUTS_PER_SECOND, self._no_more_puts).turns():
            self._ledger.begin(Lane.OTHER, number)
            queue.put(payload_of(Lane.OTHER, number))
            self._ledger.acknowledge(Lane.OTHER, number)

    def put_batches(self, queue: PersistentQueue) -> None:
        """Put batches, through the owner."""
        for first in Pace(PUTS_PER_SECOND * BATCH_COUNT / 2, self._no_more_puts).turns(BATCH_COUNT):
            self._ledger.begin(Lane.OTHER_BATCH, first, BATCH_COUNT)
            queue.put_many([payload_of(Lane.OTHER_BATCH, first + number) for number in range(BATCH_COUNT)])
            self._ledger.acknowledge(Lane.OTHER_BATCH, first, BATCH_COUNT)

    def keep_tidy(self) -> None:
        """Let its memory be what it uses, for those who look."""
        while not self._is_over.wait(1):
            tidy()

    def stay_behind(self) -> None:
        """Take what is more than the backlog; at the end all of it."""
        while not self._is_over.is_set():
            with open_work(self._path, group="slow") as queue:
                self._take_for_a_while(queue)
        with open_work(self._path, group="slow") as queue:
            deadline = time.monotonic() + DRAIN_SECONDS_MAX
            while queue.stats().depth:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the slow group is not drained: {queue.stats()}")
                self._take(queue, TAKE_COUNT)

    def _take_for_a_while(self, queue: PersistentQueue) -> None:
        pins = Pins(queue, Table.SLOW, self._ledger, self._pin_seconds)
        until = time.monotonic() + REOPEN_SECONDS
        while time.monotonic() < until and not self._is_over.is_set():
            pins.turn()
            surplus = queue.stats().depth - self._dispatcher
            if surplus > 0:
                self._take(queue, min(surplus, 2 * TAKE_COUNT))
            else:
                self._is_over.wait(WAIT_SECONDS / 10)

    def _take(self, queue: PersistentQueue, count_max: int) -> None:
        with suppress(Empty):
            batch = queue.receive_many(count_max, timeout=WAIT_SECONDS)
            for delivery in batch:
                self._ledger.check_is_open(Table.SLOW, name_of(delivery.payload))
            batch.ack()
            self._ledger.finish(Table.SLOW, [name_of(delivery.payload) for delivery in batch])

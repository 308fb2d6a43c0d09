"""Real signals at random moments of real calls on real files: what is acknowledged stays, what is finished is gone."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import CommitUnknownError, Empty, FlushPolicy, PersistentQueue, PoisonedError

_DELAY_SECONDS_MAX = 0.002
_DATA_FILE_BYTES = 16 * 2**10  # the smallest: files roll and are retired all the time


@dataclass
class Signalled:
    """A queue that is used and interrupted, and what is known of each of its messages.

    Attributes
    ----------
    there, maybe, gone : set of bytes
        Messages that were acknowledged, those of which nobody knows, and those that were finished.
    taken_count : int
        How many messages calls may have finished that were interrupted before they could say which.
    """

    path: Path
    rng: random.Random
    policy: FlushPolicy = field(default_factory=FlushPolicy.never)
    there: set[bytes] = field(default_factory=set)
    maybe: set[bytes] = field(default_factory=set)
    gone: set[bytes] = field(default_factory=set)
    taken_count: int = 0
    call_count: int = 0
    interruption_count: int = 0
    reopened_count: int = 0
    _number: int = 0
    _is_armed: bool = False

    def run(self, seconds: float) -> None:
        """Call and interrupt for so long, then open the queue anew and compare; raises AssertionError."""
        before = signal.signal(signal.SIGALRM, self._strike)
        queue = self._open()
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                try:
                    self.rng.choice((self._put, self._put_many, self._get, self._ack, self._nack, self._transact))(
                        queue
                    )
                except (PoisonedError, CommitUnknownError):
                    self.reopened_count += 1
                    queue.close()
                    queue = self._open()
        finally:
            signal.signal(signal.SIGALRM, before)
        queue.close()
        self._compare()

    def _open(self) -> PersistentQueue:
        return PersistentQueue(
            self.path, mode="exclusive", flush=self.policy, data_file_bytes=_DATA_FILE_BYTES, max_deliveries=None
        )

    def _strike(self, *_: object) -> None:
        if self._is_armed:
            raise KeyboardInterrupt

    def _call(self, call: Callable[[], object]) -> bool:
        """Make a call under a timer; return whether it came to its end."""
        self.call_count += 1
        signal.setitimer(signal.ITIMER_REAL, self.rng.uniform(1e-6, _DELAY_SECONDS_MAX))
        try:
            self._is_armed = True
            call()
            self._is_armed = False
        except KeyboardInterrupt:
            self._is_armed = False
            self.interruption_count += 1
            return False
        finally:
            self._is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        return True

    def _new(self, count: int) -> list[bytes]:
        self._number += count
        payloads = [b"%d " % (self._number - each) + bytes(self.rng.randrange(900)) for each in range(count)]
        self.maybe.update(payloads)
        return payloads

    def _are_there(self, payloads: list[bytes]) -> None:
        self.maybe.difference_update(payloads)
        self.there.update(payloads)

    def _are_gone(self, *payloads: bytes) -> None:
        for known in (self.there, self.maybe):
            known.difference_update(payloads)
        assert not self.gone.intersection(payloads), "finished before"
        self.gone.update(payloads)

    def _put(self, queue: PersistentQueue) -> None:
        payloads = self._new(1)
        if self._call(lambda: queue.put(payloads[0])):
            self._are_there(payloads)

    def _put_many(self, queue: PersistentQueue) -> None:
        payloads = self._new(3)
        if self._call(lambda: queue.put_many(payloads)):
            self._are_there(payloads)

    def _get(self, queue: PersistentQueue) -> None:
        taken: list[bytes] = []
        self.taken_count += 1
        with suppress(Empty):
            self._call(lambda: taken.append(queue.get(timeout=0)))
            if not taken:
                return
            self._are_gone(*taken)
        self.taken_count -= 1

    def _ack(self, queue: PersistentQueue) -> None:
        with suppress(Empty):
            delivery = queue.receive(timeout=0)
            assert delivery.payload not in self.gone, "finished before"
            self.there.discard(delivery.payload)
            self.maybe.add(delivery.payload)
            if self._call(delivery.ack):
                self._are_gone(delivery.payload)

    def _nack(self, queue: PersistentQueue) -> None:
        with suppress(Empty):
            delivery = queue.receive(timeout=0)
            assert delivery.payload not in self.gone, "finished before"
            self._call(lambda: delivery.nack(0))

    def _transact(self, queue: PersistentQueue) -> None:
        payloads = self._new(2)
        tx = queue.begin()
        tx.put_many(payloads)
        if self._call(tx.commit):
            self._are_there(payloads)

    def _compare(self) -> None:
        found: Counter[bytes] = Counter()
        with self._open() as queue, suppress(Empty):
            assert not queue.recovery.damage, f"damage where there is none: {queue.recovery}"
            while True:
                found.update(queue.get_many(1000, timeout=0))
        assert max(found.values(), default=1) == 1, "doubled"
        assert not self.gone & found.keys(), "finished, and there again"
        assert found.keys() <= self.there | self.maybe, "never put"
        lost = self.there - found.keys()
        assert len(lost) <= self.taken_count, f"lost: {len(lost)}, and {self.taken_count} may be finished"

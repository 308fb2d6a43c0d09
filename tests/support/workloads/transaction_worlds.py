"""Two queues and the model of them side by side: every verb of a transaction does the same in both worlds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import Delivery, Empty, PersistentQueue, Transaction, TransactionStateError, transaction
from support.builders.clocks import FakeClock
from support.builders.transactions import prepared_ids
from support.models.transaction_model import Seen, TransactionModel
from support.storages.simulated_storage import SimulatedStorage

NAMES = ("x", "y")
DATA_FILE_BYTES = 16 * 2**10  # the smallest: transactions of more than 4 KiB go into a file, and are adopted
TIMEOUT_SECONDS = 60.0


class PatientClock(FakeClock):
    """Its time passes for transactions alone: background threads sleep, so that runs are the same each time."""

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        return super().wait(event, None)


class TransactionWorlds:
    """One process at a time; what is expected stands in ``model``. Everything is put under ``every_commit()``.

    Attributes
    ----------
    queues : dict of str to PersistentQueue
        Those that are open.
    handles : dict of int to Transaction or QueuesTransaction
        The open transactions, by the model's numbers.
    deliveries : dict of int to list
        What each has taken over from a plain receiver.
    prepared : dict of (str, str) to Transaction
        The handles of what this process has prepared, by queue and id.
    """

    def __init__(self) -> None:
        self.storage = SimulatedStorage()
        self.clock = PatientClock()
        self.model = TransactionModel(NAMES)
        self.queues: dict[str, PersistentQueue] = {}
        self.handles: dict[int, Any] = {}
        self.deliveries: dict[int, list[tuple[str, Delivery]]] = {}
        self.prepared: dict[tuple[str, str], Transaction] = {}
        self.put_count = 0

    def open(self, order: Sequence[str]) -> None:
        """Open the queues that are not, in an order."""
        for name in order:
            if name not in self.queues:
                self.queues[name] = PersistentQueue(
                    Path("/") / name,
                    mode="exclusive",
                    storage=self.storage,
                    clock=self.clock,
                    data_file_bytes=DATA_FILE_BYTES,
                    max_deliveries=None,
                )

    def message(self, size: int) -> bytes:
        """Return a payload that there was never before."""
        self.put_count += 1
        return b"%04d" % self.put_count + bytes(size)

    def tick(self) -> None:
        """Let a moment pass, so that no two decisions are of the same time."""
        self.clock.advance(0.001)

    def seen(self) -> dict[str, Seen]:
        """Return what can be seen of the queues."""
        found = {}
        for name, queue in self.queues.items():
            messages = sorted(queue.peek(1000), key=lambda each: each.offset)
            ids = prepared_ids(queue)
            assert len(set(ids)) == len(ids)
            found[name] = Seen(tuple(each.payload for each in messages), queue.stats().depth, frozenset(ids))
            assert queue.qsize() == len(messages)
        return found

    def begin(self, order: Sequence[str], count: int) -> int:
        """Begin a transaction over one queue or over both; return its number."""
        chosen = tuple(order[:count])
        number = self.model.begin(chosen, self.clock.monotonic() + TIMEOUT_SECONDS)
        queues = [self.queues[name] for name in chosen]
        self.handles[number] = queues[0].begin() if count == 1 else transaction(*queues)
        self.deliveries[number] = []
        return number

    def add(self, number: int, name: str, batch: list[int], *, streams: bool) -> None:
        """Add messages: one, several, or one as a stream."""
        expected, handle = self.model.open[number], self.handles[number]
        place = () if isinstance(handle, Transaction) else (self.queues[name],)
        payloads = [self.message(size) for size in batch]
        if streams:
            payloads = [b"".join(payloads)]
            handle.put_stream(*place, [payloads[0][:7], payloads[0][7:]])
        elif len(payloads) == 1:
            handle.put(*place, payloads[0])
        else:
            handle.put_many(*place, payloads)
        expected.puts[name] += payloads

    def receive(self, number: int, name: str, *, inside: bool, acks: bool) -> None:
        """Receive a message inside, and perhaps acknowledge it; or take one over from a plain receiver."""
        expected, handle = self.model.open[number], self.handles[number]
        place = () if isinstance(handle, Transaction) else (self.queues[name],)
        free = self.model.free(name)
        if not free:
            with pytest.raises(Empty):
                handle.receive(*place, timeout=0)
            return
        if inside:
            delivery = handle.receive(*place, timeout=0)
        else:
            delivery = self.queues[name].receive(timeout=0)
            self.deliveries[number].append((name, delivery))
        assert delivery.payload in free
        if acks or not inside:
            handle.ack(*place, delivery)
        (expected.acked if acks or not inside else expected.in_hand)[name].add(delivery.payload)

    def committing(self, number: int) -> Callable[[], object]:
        """Return what commits an open transaction, in both worlds."""

        def commit() -> None:
            self.handles.pop(number).commit()
            self.model.commit(number)

        return commit

    def preparing(self, number: int, transaction_id: str) -> Callable[[], object]:
        """Return what prepares an open transaction, in both worlds."""
        (name,) = self.model.open[number].names
        handle = self.handles[number]

        def prepare() -> None:
            if transaction_id in self.model.in_doubt[name]:
                with pytest.raises(TransactionStateError, match="is prepared"):
                    handle.prepare(transaction_id)
                return
            assert handle.prepare(transaction_id) == transaction_id
            self.model.prepare(number, transaction_id)
            self.prepared[name, transaction_id] = self.handles.pop(number)

        return prepare

    def deciding(self, name: str, transaction_id: str, commits: bool, by_handle: bool) -> Callable[[], object]:
        """Return what decides a prepared transaction, in both worlds."""
        handle = self.prepared.get((name, transaction_id)) if by_handle else None
        queue = self.queues[name]

        def decide() -> None:
            if handle is not None:
                (handle.commit if commits else handle.abort)()
            else:
                (queue.commit_prepared if commits else queue.abort_prepared)(transaction_id)
            self.prepared.pop((name, transaction_id), None)
            self.model.decide(name, transaction_id, commits=commits)

        return decide

    def ended(self, numbers: list[int]) -> None:
        """Note that transactions were aborted, and give back what has come back to its receivers."""
        for number in numbers:
            with pytest.raises(TransactionStateError):
                self.handles.pop(number).commit()
            for name, delivery in self.deliveries.pop(number):
                if name in self.queues:
                    delivery.nack(delay=0)
        self.model.abort(numbers)

    def restart(self, left: SimulatedStorage, order: Sequence[str]) -> None:
        """Go on with what a crash has left."""
        for queue in self.queues.values():
            queue.close()  # on the disk that nobody looks at any more
        self.queues.clear()
        self.handles.clear()
        self.deliveries.clear()
        self.prepared.clear()
        self.storage = left
        self.open(order)

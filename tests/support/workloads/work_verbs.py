"""Puts, takes and settles messages of a real work queue and of its model, chosen at random from a seed."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Delivery,
    DeliveryBatch,
    Empty,
    FlushPolicy,
    LeaseExpiredError,
    PersistentQueue,
    Put,
    StaleReceiptError,
    Transaction,
)
from support.builders.clocks import FakeClock
from support.builders.settings import set_first
from support.models.work_model import NS, ModelMessage, WorkModel
from support.storages.simulated_storage import SimulatedStorage

ROOT = "/q"
VERBS_KEPT = 25
KEYS = ("a", "b", "c")


class WorkError(Exception):
    """What goes wrong in a ``with`` block of these runs."""


class WorkVerbs:
    """A queue, its model, and the verbs for messages.

    Parameters
    ----------
    seed : int
        What decides everything.

    Attributes
    ----------
    verbs : deque of str
        The last verbs, for whoever looks at a failure.
    verb_count : int
        How many there were.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.verbs: deque[str] = deque(maxlen=VERBS_KEPT)
        self.verb_count = 0
        self.storage = SimulatedStorage()
        self.clock = FakeClock()
        self.start_ns = self.clock.time_ns()
        self.options: dict[str, Any] = {
            "max_deliveries": rng.choice([1, 2, 3, 5, None]),
            "backoff": rng.choice([[], [1, 10, 60], [5]]),
            "lease_seconds": rng.choice([5, 30]),
            "expired": rng.choice(["drop", "dead"]),
            "dedup_window": rng.choice([20, 300]),
            "data_file_bytes": 16 * 2**10,
        }
        self.model = WorkModel(
            now_ns=self.clock.time_ns(),
            monotonic=self.clock.monotonic(),
            max_deliveries=self.options["max_deliveries"],
            backoff=self.options["backoff"],
            lease_seconds=self.options["lease_seconds"],
            keeps_expired=self.options["expired"] == "dead",
            dedup_seconds=self.options["dedup_window"],
        )
        self.payload_count = 0
        self.offsets: dict[bytes, int] = {}
        self.in_hand: dict[int, Delivery] = {}
        self.settled: deque[Delivery] = deque(maxlen=20)
        self.batches: deque[DeliveryBatch] = deque(maxlen=3)
        self.transactions: dict[int, Transaction] = {}
        self.open()

    def open(self) -> None:
        """Open the queue."""
        flush = self.rng.choice([FlushPolicy.every_commit(), FlushPolicy.never()])
        set_first(Path(ROOT), storage=self.storage, clock=self.clock, flush=flush)
        self.queue = PersistentQueue(
            ROOT, flush=flush, storage=self.storage, clock=self.clock, **{"mode": "exclusive", **self.options}
        )
        self.dropped_before = 0

    # -- Verbs -------------------------------------------------------------------------------------------------------

    @property
    def simulated_seconds(self) -> float:
        """How long the run has taken by its own clock."""
        return (self.clock.time_ns() - self.start_ns) / NS

    def note(self, text: str) -> None:
        """Remember what is done, for whoever looks at a failure."""
        self.verbs.append(f"{self.simulated_seconds:8.1f} s  {text}")

    def _ask(self) -> dict[str, Any]:
        """Choose what to ask for a message."""
        rng = self.rng
        wish: dict[str, Any] = {}
        if rng.random() < 0.25:
            wish["delay"] = rng.choice([0, 1, 7, 90])
        elif rng.random() < 0.1:
            wish["not_before"] = self.clock.time_ns() // NS + rng.choice([-10, 3, 40])
        if rng.random() < 0.2:
            wish["priority"] = rng.choice([1, 5, 9])
        elif rng.random() < 0.35:
            wish["order_key"] = rng.choice(KEYS)
        if rng.random() < 0.15:
            wish["ttl"] = rng.choice([2, 20, 200])
        return wish

    def _message(self, wish: dict[str, Any]) -> ModelMessage:
        self.payload_count += 1
        return self.model.message(b"message %d" % self.payload_count, **wish)

    def put(self) -> None:
        """Append one message, sometimes under an id."""
        wish = self._ask()
        message = self._message(wish)
        if self.rng.random() < 0.2:
            dedup_id = f"id {self.rng.randrange(8)}"
            self.note(f"put {message.payload!r} {wish} {dedup_id=}")
            offset = self.queue.put(message.payload, dedup_id=dedup_id, **wish)
            assert offset == self.model.put_once(dedup_id, message)
        else:
            self.note(f"put {message.payload!r} {wish}")
            offset = self.queue.put(message.payload, **wish)
            assert offset == self.model.append([message]).start
        self.offsets[message.payload] = message.offset

    def put_many(self) -> None:
        """Append a batch."""
        wishes = [self._ask() for _ in range(self.rng.randint(1, 5))]
        messages = [self._message(wish) for wish in wishes]
        self.note(f"put_many {[(each.payload, wish) for each, wish in zip(messages, wishes, strict=True)]}")
        puts = [Put(each.payload, **wish) for each, wish in zip(messages, wishes, strict=True)]
        assert self.queue.put_many(puts) == self.model.append(messages)
        self.offsets |= {each.payload: each.offset for each in messages}

    # -- Taking ------------------------------------------------------------------------------------------------------

    def _nothing_came(self) -> None:
        self.note("   nothing came")
        assert not self.model.must_come(), f"nothing came, but {sorted(self.model.may_come())} should"

    def get(self) -> None:
        """Take and finish one message."""
        try:
            payload = self.queue.get(block=False)
        except Empty:
            self._nothing_came()
            return
        self.note(f"get: {self.offsets[payload]}")
        self.model.get(self.offsets[payload])

    def get_many(self) -> None:
        """Take and finish several."""
        count = self.rng.randint(1, 4)
        try:
            payloads = self.queue.get_many(count, timeout=0)
        except Empty:
            self._nothing_came()
            return
        self.note(f"get_many({count}): {[self.offsets[payload] for payload in payloads]}")
        assert 1 <= len(payloads) <= count
        for payload in payloads:
            self.model.get(self.offsets[payload])

    def peek(self) -> None:
        """Look at what comes next, and be given just that.

        Unless a message is over that had the turn of its key: looking ends it, and who waited behind it may be sooner.
        """
        is_sure = not any(each.order_key and self.model.is_over(each) for each in self.model.live.values())
        seen = self.queue.peek(1)
        self.note(f"peek: {[each.offset for each in seen]}")
        if seen and not self.model.is_paused:
            assert seen[0].offset in self.model.may_come()
            self._received(self.queue.receive(timeout=0))
            assert not is_sure or seen[0].offset in self.in_hand
        elif not self.model.is_paused:
            assert not self.model.must_come()

    def _received(self, delivery: Delivery, lease: float | None = None, holder: int | None = None) -> None:
        self.note(f"   received {delivery.offset}, lease {lease}, holder {holder}")
        message = self.model.receive(delivery.offset, lease, holder)
        assert (delivery.payload, delivery.delivery_count) == (message.payload, message.delivery_count)
        self.in_hand[delivery.offset] = delivery

    def receive(self) -> None:
        """Take one message, and sometimes open its block."""
        lease = self.rng.choice([None, None, 3, 100])
        try:
            delivery = self.queue.receive(timeout=0, lease_seconds=lease)
        except Empty:
            self._nothing_came()
            return
        self._received(delivery, lease)
        if self.rng.random() < 0.3:
            self.note("   its block is open")
            delivery.__enter__()
            self.model.live[delivery.offset].is_open = True

    def receive_many(self) -> None:
        """Take several; one that was handed out before comes alone."""
        count = self.rng.randint(1, 5)
        try:
            batch = self.queue.receive_many(count, timeout=0)
        except Empty:
            self._nothing_came()
            return
        self.note(f"receive_many({count}): {[each.offset for each in batch]}")
        assert 1 <= len(batch) <= count
        for delivery in batch:
            assert len(batch) == 1 or not self.model.live[delivery.offset].delivery_count, "not alone"
            self._received(delivery)
        self.batches.append(batch)

    # -- Settling ----------------------------------------------------------------------------------------------------

    def _down(self, offsets: list[int]) -> None:
        for offset in offsets:
            delivery = self.in_hand.pop(offset)
            assert delivery.is_settled
            self.settled.append(delivery)

    def _free(self) -> list[int]:
        """Return what is in hand of nobody but its receiver, and in no open block."""
        live = self.model.live
        return [offset for offset in self.in_hand if live[offset].holder is None and not live[offset].is_open]

    def _settle(self, verbs: Any, offsets: list[int], items: list[Delivery] | None) -> None:
        """Settle deliveries with a verb of one of them, or of their batch, and in the model."""
        rng, model = self.rng, self.model
        args = () if items is None else (items,)
        kind = rng.choice(["ack", "nack", "nack", "reject", "release", "extend"])
        delay = rng.choice([None, None, 0, 4, 50]) if kind == "nack" else None
        seconds = rng.choice([None, 2, 60]) if kind == "extend" else None
        self.note(f"{kind} {offsets} {delay=} {seconds=}")
        if kind == "nack":
            verbs.nack(*args, delay=delay)
        elif kind == "reject":
            verbs.reject("no good", *args)
        elif kind == "extend":
            verbs.extend(seconds, *args)
        else:
            getattr(verbs, kind)(*args)
        does: dict[str, Callable[[int], None]] = {
            "ack": model.ack,
            "nack": lambda offset: model.fail(offset, delay),
            "reject": model.reject,
            "release": model.release,
            "extend": lambda offset: model.extend(offset, seconds),
        }
        for offset in offsets:
            does[kind](offset)
        if kind != "extend":
            self._down(offsets)

    def settle_one(self) -> None:
        """Settle a delivery by itself."""
        free = self._free()
        if free:
            offset = self.rng.choice(free)
            self._settle(self.in_hand[offset], [offset], None)

    def settle_batch(self) -> None:
        """Settle some of a batch, or all that is left of it; where one lease has run out nothing happens."""
        if not self.batches:
            return
        batch = self.rng.choice(self.batches)
        if any(each.has_expired for each in batch):
            self.note("batch.ack, of which one lease has run out")
            try:
                batch.ack()
            except LeaseExpiredError:
                return
            raise AssertionError("nobody heard of a lease that had run out")
        left = [each for each in batch if not each.is_settled and self.model.live[each.offset].holder is None]
        if not left or any(self.model.live[each.offset].is_open for each in left):
            return
        if self.rng.random() < 0.4:
            left = self.rng.sample(left, self.rng.randint(1, len(left)))
            self._settle(batch, [each.offset for each in left], left)
        elif self.rng.random() < 0.5:
            self._settle(batch, [each.offset for each in left], None)
        else:
            self._leave(batch, [each.offset for each in left])

    def _leave(self, block: Delivery | DeliveryBatch, offsets: list[int]) -> None:
        """Leave a ``with`` block, in order or by an exception."""
        is_clean = self.rng.random() < 0.5
        self.note(f"the block of {offsets} ends, {is_clean=}")
        if is_clean:
            block.__exit__(None, None, None)
        else:
            error = WorkError("it went wrong")
            block.__exit__(WorkError, error, None)
        for offset in offsets:
            self.model.live[offset].is_open = False
            self.model.ack(offset) if is_clean else self.model.fail(offset, None, "exception")
        self._down(offsets)

    def leave_block(self) -> None:
        """Leave the block of one delivery."""
        several = [offset for offset in self.in_hand if self.model.live[offset].is_open]
        if several:
            offset = self.rng.choice(several)
            self._leave(self.in_hand[offset], [offset])

    def settle_twice(self) -> None:
        """A stale receipt changes nothing, and says whether its lease had run out."""
        if self.settled:
            delivery = self.rng.choice(self.settled)
            self.note(f"settle {delivery.offset} twice")
            verb = self.rng.choice([delivery.ack, delivery.nack, delivery.release, delivery.extend])
            with pytest.raises(StaleReceiptError) as refused:
                verb()
            assert isinstance(refused.value, LeaseExpiredError) == delivery.has_expired

"""Deliveries that a life has received, and gives to a transaction; and owners of shared queues that are succeeded."""

from __future__ import annotations

import time

import pytest

from holdfast import TransactionStateError
from holdfast.queue.client.shared_engine import SharedEngine
from proof.crash_states.lives.holding import Holding
from proof.crash_states.opening import CLOCK

WAIT_SECONDS, WAITS = 15.0, 4
"""Half a lease, and how often."""


class Giving(Holding):
    """Gives what it has in hand to the transaction."""

    def give(self) -> None:
        """Acknowledge the oldest message in hand in the transaction, in the block of the delivery."""
        tx, offset = self._begun_transaction(), min(self.in_hand)
        delivery = tx.given[offset] = self.in_hand.pop(offset)
        with delivery:
            tx.handle.ack(delivery)
        tx.acks.append(offset)
        self._refuses_others(offset)
        self._return(f"give({offset})")

    def give_and_take(self) -> None:
        """Acknowledge in one call the oldest message in hand, and one that the transaction has received itself."""
        tx, offset = self._begun_transaction(), min(self.in_hand)
        own, own_offset = self._received(tx)
        self._progressed(f"receive_in({own_offset})")
        delivery = tx.given[offset] = self.in_hand.pop(offset)
        tx.handle.ack([delivery, own])
        tx.acks += [offset, own_offset]
        self._refuses_others(offset)
        self._return(f"give_and_take({offset}, {own_offset})")

    def receive_in(self) -> None:
        """Receive a message in the transaction, and leave it at that."""
        tx = self._begun_transaction()
        _, offset = self._received(tx)
        tx.received.append(offset)
        self._progressed(f"receive_in({offset})")

    def use_in(self) -> None:
        """Receive a message in the transaction in a block of its own, whose end acknowledges it there."""
        tx = self._begun_transaction()
        delivery, offset = self._received(tx)
        with delivery:
            self._progressed(f"use_in({offset})")
        tx.acks.append(offset)
        self._return("used in")

    def _refuses_others(self, offset: int) -> None:
        """Check that a message in the transaction is settled by nothing else."""
        assert self.tx is not None
        delivery = self.tx.given[offset]
        for verb in (delivery.ack, delivery.nack, delivery.release, delivery.extend):
            with pytest.raises(TransactionStateError):
                verb()

    def wait_in(self) -> None:
        """Wait for longer than a lease, with upkeep as in life: none of a message in the transaction ends."""
        for _ in range(WAITS):
            CLOCK.advance(WAIT_SECONDS)
            CLOCK.set_time_ns(self.now_ns)
            engine = self.queue._engine
            if isinstance(engine, SharedEngine):
                engine._consumer.do_due(time.monotonic())
        self._return("wait_in")

    def succeed(self) -> None:
        """Have the owner of the shared queue succeeded in order, by this process or another one."""
        self.machines.succeed(are_own=self.way == "owner")
        self._return("succeed")

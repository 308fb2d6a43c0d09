"""Reserving through the owner of a shared queue, in this process or another one."""

from __future__ import annotations

import secrets
from typing import Any

from holdfast.queue.client.membership import Membership, ask_verb
from holdfast.queue.client.shared_consumer import SharedConsumer
from holdfast.queue.owner.reserving import reserve_fields, settle_fields
from holdfast.queue.prepared.reservations import Reservation
from holdfast.queue.protocol.messages import Verb


class SharedReservations:
    """Has messages reserved for the group of a handle in the mode "shared". Threads may share it.

    Parameters
    ----------
    membership : Membership
        The way to the owner.
    consumer : SharedConsumer
        The consumer of the handle: it tells whether the handle was shut down.
    """

    def __init__(self, membership: Membership, consumer: SharedConsumer) -> None:
        self._membership = membership
        self._consumer = consumer

    def reserve(self, prefix: str, count_max: int, bytes_max: int, end_offset: int) -> Reservation | None:
        """Hold the next messages. As :meth:`Reservations.take`."""
        self._consumer.check_taking()
        nonce = secrets.token_bytes(16)
        made = self._ask(reserve_fields(nonce, prefix, count_max, bytes_max, end_offset))
        if not made:
            self._consumer.check_left()
            return None
        runs = tuple((first, count, sequence, end) for first, count, sequence, end in made["runs"])
        return Reservation(made["id"], nonce, runs, made["size_bytes"])

    def commit(self, reservation: Reservation) -> None:
        """Finish the messages, durably; asked again, it was done before."""
        self._settle(reservation, is_committed=True)

    def abort(self, reservation: Reservation) -> None:
        """Give the messages back, durably; asked again, it was done before."""
        self._settle(reservation, is_committed=False)

    def _settle(self, reservation: Reservation, *, is_committed: bool) -> None:
        self._ask(settle_fields(reservation.id, reservation.nonce, is_committed=is_committed))

    def _ask(self, fields: dict[str, Any]) -> dict[str, Any]:
        return ask_verb(self._membership, Verb(self._consumer.group, fields))

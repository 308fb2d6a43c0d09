"""Takes and decides reservations of the group that this process owns."""

from __future__ import annotations

import secrets
import threading
from collections import deque

from holdfast.errors import TransactionStateError
from holdfast.persistence.filesystem.layout import check_name
from holdfast.persistence.format.commit_record import Run
from holdfast.persistence.format.constants import NUMBER_MAX
from holdfast.persistence.groups.vote import Vote
from holdfast.queue.dispatch.taken_runs import TakenRuns
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.prepared.reservations import Reservation, id_prefix

NOTHING_FOUND_MAX = 1024
"""So many requests that found nothing are remembered."""


class OwnReservations:
    """Reserves with the read side of a handle. Threads may share it.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with the read side of the group.
    resolver : PreparedResolver
        Decides.
    """

    def __init__(self, handle: QueueHandle, resolver: PreparedResolver) -> None:
        self._handle = handle
        self._resolver = resolver
        self._lock = threading.Lock()
        self._found_nothing: deque[bytes] = deque(maxlen=NOTHING_FOUND_MAX)

    def reserve(self, prefix: str, count_max: int, bytes_max: int, end_offset: int) -> Reservation | None:
        """Hold the next messages. As :meth:`Reservations.take`."""
        return self._reserve(secrets.token_bytes(16), prefix, TakenRuns(count_max, bytes_max, end_offset))

    def reserve_once(
        self, nonce: bytes, prefix: str, count_max: int, bytes_max: int, end_offset: int
    ) -> Reservation | None:
        """As :meth:`reserve`, under a nonce of the caller's: asked again, it returns the same reservation, or nothing.

        Raises TransactionStateError if that was decided since: it is an old copy of the request.
        """
        with self._lock:  # another copy may come while this one runs
            if nonce in self._found_nothing:  # its caller knows of no reservation, and would leave one for ever
                return None
            vote = self._handle.require_read_side().progress.votes.get(nonce)
            if vote is not None:
                return Reservation.of(vote)
            known = self._resolver.own_votes.outcome(nonce)
            if known is not None:
                raise TransactionStateError(
                    f"reservation {known.id} was made and decided before: this is an old copy of its request",
                    transaction=known.id,
                    state="committed" if known.is_committed else "aborted",
                )
            made = self._reserve(nonce, prefix, TakenRuns(count_max, bytes_max, end_offset))
            if made is None:
                self._found_nothing.append(nonce)
            return made

    def _reserve(self, nonce: bytes, prefix: str, taken: TakenRuns) -> Reservation | None:
        check_name(f"{prefix}-{bytes(16).hex()}-{bytes(8).hex()}-{NUMBER_MAX}", "reservation")

        def vote(runs: tuple[Run, ...]) -> Vote:
            chosen = f"{id_prefix(self._handle, prefix)}{runs[0][0]}"
            self._resolver.make_ready(chosen, puts=False, is_new=True)
            return Vote(chosen, nonce, self._handle.clock.time_ns(), None, runs)

        made = self._handle.require_read_side().reserve(taken, vote)
        return None if made is None else Reservation.of(made, taken.size_bytes)

    def commit(self, reservation: Reservation) -> None:
        """Finish the messages, with one sync. It is not remembered: its holder sees that it is gone."""
        self._resolver.finish(reservation.id, reservation.nonce)

    def abort(self, reservation: Reservation) -> None:
        """Give the messages back; that is remembered."""
        self._resolver.abort(reservation.id, nonce=reservation.nonce)

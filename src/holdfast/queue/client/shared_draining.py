"""Draining of a handle in the mode "shared": its owner tells what is left, and the handle what it has in hand."""

from __future__ import annotations

import logging
import math
import time

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, ShutDown
from holdfast.queue.client.membership import ENDING_SECONDS, Membership, ask_verb
from holdfast.queue.consumer.draining import Draining, Left, shut_down_with
from holdfast.queue.owner.verbs import LEFT
from holdfast.queue.protocol.messages import Verb

logger = logging.getLogger("holdfast")


class SharedDraining(Draining):
    """The messages that the takers of one handle wait for after a shutdown.

    Parameters
    ----------
    clock : Clock
        As of :class:`Draining`.
    membership : Membership
        The way to the owner.
    group : str
        The consumer group.
    """

    def __init__(self, clock: Clock, membership: Membership, group: str) -> None:
        super().__init__(clock)
        self._membership = membership
        self._group = group

    def begin(self, seconds: float | None) -> None:
        """Wait for so long from now; None: without a bound. So long an owner is looked for, too."""
        super().begin(seconds)
        longest = math.inf if seconds is None else max(seconds, ENDING_SECONDS)
        self._membership.look_until(time.monotonic() + longest)

    def begin_at_once(self) -> ShutDown:
        """Wait for nothing, and look for an owner as long as was said before; return the error for takers from now on.

        It is checked under a lock, so it asks for nothing.
        """
        super().begin(0.0)
        return self.ending_here(0)

    def ending(self, in_hand_count: int) -> ShutDown:
        """Return the error that counts the messages left; those in hand here, if no owner tells."""
        try:
            return shut_down_with(self._ask().counts)
        except HoldfastError as error:
            logger.debug("the owner does not tell what is left: %s", error)
            return self.ending_here(in_hand_count)

    def ending_here(self, in_hand_count: int) -> ShutDown:
        """Return the error that counts the messages in hand here."""
        return shut_down_with({"in_hand": in_hand_count})

    def check_left(self, in_hand_count: int) -> None:
        """Raise queue.ShutDown if a taker that has found nothing has nothing to wait for. Raises as the owner."""
        if self.is_on:
            left = self._ask()
            if left.is_paused or self.is_over(in_hand_count, left.due_ns):
                raise shut_down_with(left.counts) from None

    def check_time(self, in_hand_count: int) -> None:
        """Raise queue.ShutDown if the time is over for which takers wait."""
        if self.seconds_left() == 0:
            raise self.ending_here(in_hand_count)

    def _ask(self) -> Left:
        return Left(**ask_verb(self._membership, Verb(self._group, {"verb": LEFT}), 0.0))

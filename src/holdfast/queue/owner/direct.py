"""What only a handle in the owner's own process asks and is answered: objects, which no frame carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.queue.dispatch.delivery import Delivery


class Fetch(NamedTuple):
    """Takes messages and finishes them in the same step; the payloads come with the answer.

    No client in another process may ask so: if the answer is lost on the way, the messages are too.

    Attributes
    ----------
    group : str
        The consumer group.
    count_max : int
        How many at most.
    timeout : float or None, seconds
        How long to wait for the first one; None: for ever.
    """

    group: str
    count_max: int
    timeout: float | None


class Handed(NamedTuple):
    """Answers a take.

    Attributes
    ----------
    deliveries : sequence of Delivery
        Those of the owner, at least one: their records and counts are the messages, and they are not to be settled.
    deliveries_max : int
        As of ``Taken``.
    """

    deliveries: Sequence[Delivery]
    deliveries_max: int

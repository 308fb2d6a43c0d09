"""A group's record of a dead letter: a message that is not delivered again until it is retried. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.persistence.format.constants import DEAD_REASONS


@dataclass(frozen=True, slots=True)
class DeadMark:
    """A dead letter as the position file holds it.

    Attributes
    ----------
    reason : str
        One of ``DEAD_REASONS``.
    delivery_count : int
        How often the message was handed out.
    first_failure_ns, last_failure_ns : int
        In nanoseconds since the epoch; the last one is when it became a dead letter.
    """

    reason: str
    delivery_count: int
    first_failure_ns: int
    last_failure_ns: int

    @property
    def reason_number(self) -> int:
        """Place of the reason in ``DEAD_REASONS``."""
        return DEAD_REASONS.index(self.reason)


def reason_of(number: int) -> str:
    """Return the reason at a place in ``DEAD_REASONS``; empty for one that this version does not know."""
    return DEAD_REASONS[number] if number < len(DEAD_REASONS) else ""

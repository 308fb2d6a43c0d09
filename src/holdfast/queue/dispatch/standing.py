"""What became of a message that is not in hand under a delivery number: the answer to a verb of that delivery. Pure."""

from __future__ import annotations

from enum import Enum, auto

from holdfast.persistence.groups.progress import GroupProgress


class Standing(Enum):
    """What became of a message that a session asks about by the number of a delivery."""

    TAKEN_AWAY = auto()
    """Its owner took it away from this delivery, whatever happened to it later."""
    FINISHED = auto()
    """It is finished."""
    OTHER = auto()
    """Anything else: it waits, is a dead letter, is held by a vote, or is in hand under another number."""


def standing_of(progress: GroupProgress, number: int, offset: int) -> Standing:
    """Return the standing of a message that is not in hand under this number."""
    if offset in progress.taken_away.get(number, ()):
        return Standing.TAKEN_AWAY
    return Standing.FINISHED if progress.is_finished(offset) else Standing.OTHER


def none_lives(_: int) -> bool:
    """Whether a session lives, if there are none."""
    return False

"""Lets go of handles that an idle queue does not need: those of its readers, and that of ``write.mark``.

They are opened again at the next use, which costs microseconds. What holds a lock, and what a sync may still have to
report an error on, stays open.
"""

from __future__ import annotations

from holdfast.queue.sides import Sides
from holdfast.queue.watcher import unwatch, watch

REST_SECONDS = 1.0
"""What was not used from one look to the next is closed: after 1 to 2 s."""


class Resting:
    """Looks after the handles of one queue while it is open.

    Parameters
    ----------
    sides : Sides
        The queue, with its write side, its read side, or both.
    """

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        watch(self, sides.clock)

    def look(self) -> float:
        """Close what was not used since the last look; waits for nobody who is at work."""
        if self._sides.write_side is not None:
            self._sides.write_side.rest()
        if self._sides.read_side is not None:
            self._sides.read_side.rest()
        return REST_SECONDS

    def stop(self) -> None:
        """Look no more."""
        unwatch(self, self._sides.clock)

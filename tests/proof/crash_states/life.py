"""A life: all that is done to two queues on a simulated disk, one process after the other."""

from __future__ import annotations

from proof.crash_states.lives.merging import Merging


class Life(Merging):
    """Does things and keeps the books."""

    def twin(self) -> Life:
        """Return a life with the same past, whose queues were closed, that goes its own way."""
        twin = Life(self.policy)
        twin.past_of(self)
        return twin

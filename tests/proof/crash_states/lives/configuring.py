"""Settings of a life: of the queue and of its first group, changed while it is open; once it returns, durably."""

from __future__ import annotations

from proof.crash_states.history import Part
from proof.crash_states.lives.books import A
from proof.crash_states.lives.moving import Moving

SETTINGS, RULES = (A, Part.SETTINGS), (A, Part.RULES)
SIZE_MIN, SECONDS_MIN = 2**20, 1000
"""The first values that are set: no setting has them before."""


class Configuring(Moving):
    """Changes settings."""

    def configure(self) -> None:
        """Change a setting of the queue."""
        value = SIZE_MIN + self.history.number(SETTINGS)
        self.queue.configure(record_bytes_max=value)
        self._configured(value)

    def reset(self) -> None:
        """Give a setting of the queue its default again."""
        self.queue.configure(reset=["record_bytes_max"])
        value = self.queue.settings["record_bytes_max"]
        assert value == self.history.states[SETTINGS][0]
        self._configured(value)

    def _configured(self, value: int) -> None:
        self._happened({SETTINGS: value}, durable=True)
        self._return("configure")

    def configure_group(self) -> None:
        """Change a setting of the first group, which begins with it."""
        self._group()
        value = SECONDS_MIN + self.history.number(RULES)
        self.queue.configure(lease_seconds=value)
        self._happened({RULES: value}, durable=True)
        self._return("configure_group")

    def configure_both(self) -> None:
        """Change both in one call, which does one behind the other."""
        self._group()
        of_queue, of_group = SIZE_MIN + self.history.number(SETTINGS), SECONDS_MIN + self.history.number(RULES)
        self.queue.configure(record_bytes_max=of_queue, lease_seconds=of_group)
        self._happened({SETTINGS: of_queue}, durable=True)
        self._happened({RULES: of_group}, durable=True)
        self._return("configure_both")

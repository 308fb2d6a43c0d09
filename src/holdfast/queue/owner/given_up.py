"""Takes that were given up: their callers were interrupted, or got no answer. For the thread of the machine.

A copy of such a take may be parked, or wait in the buffer of a connection that broke. If it were done, its messages
would be in hand until their leases end. Memory only: a later owner has none of those connections.
"""

from __future__ import annotations

GIVEN_UP_MAX = 1000
"""Of one session, the last ones: a copy in a buffer is seconds old."""


class GivenUpTakes:
    """The delivery numbers that sessions have given up."""

    def __init__(self) -> None:
        self._numbers: dict[int, dict[int, None]] = {}

    def add(self, session: int, number: int) -> None:
        """Note that a session has given up a take."""
        numbers = self._numbers.setdefault(session, {})
        numbers[number] = None
        if len(numbers) > GIVEN_UP_MAX:
            del numbers[next(iter(numbers))]

    def has(self, session: int, number: int) -> bool:
        """Whether a session has given up this take."""
        return number in self._numbers.get(session, ())

    def end_session(self, session: int) -> None:
        """Forget a session that is dead."""
        self._numbers.pop(session, None)

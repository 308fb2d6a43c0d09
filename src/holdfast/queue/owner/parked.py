"""Requests that wait for messages or for space: tried again, in the order in which they came, until their time is over.

Pure: the machine says when to try.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class ParkedRequest:
    """A request without an answer yet.

    Attributes
    ----------
    connection, request_id : int
        Where its answer goes.
    resource : str
        What it waits for: the name of a group, or :data:`SPACE`.
    deadline : float
        Monotonic seconds; infinite if it waits for ever.
    attempt : callable
        Tries it: returns whether it was answered. Its argument tells whether its time is over.
    """

    connection: int
    request_id: int
    resource: str
    deadline: float
    attempt: Callable[[bool], bool]


SPACE = ""
"""The resource of puts: no group has this name."""


class ParkedRequests:
    """The line of parked requests; for the thread of the machine."""

    def __init__(self) -> None:
        self._line: list[ParkedRequest] = []

    def __len__(self) -> int:
        return len(self._line)

    @property
    def resources(self) -> set[str]:
        """What any of them waits for."""
        return {each.resource for each in self._line}

    def park(self, request: ParkedRequest) -> None:
        """Let a request wait, behind the others."""
        self._line.append(request)

    def forget(self, connection: int) -> None:
        """Drop the requests of a connection that is closed."""
        self._line = [each for each in self._line if each.connection != connection]

    def next_deadline(self) -> float:
        """Return when the first of them is over; infinite if none ever is."""
        return min((each.deadline for each in self._line), default=math.inf)

    def attempt(self, now: float) -> None:
        """Try them in order; those behind one that finds nothing are only tried if their own time is over."""
        exhausted: set[str] = set()
        self._line = [each for each in self._line if not self._is_answered(each, now, exhausted)]

    def _is_answered(self, request: ParkedRequest, now: float, exhausted: set[str]) -> bool:
        is_over = request.deadline <= now
        if request.resource in exhausted and not is_over:
            return False
        if request.attempt(is_over):
            return True
        exhausted.add(request.resource)
        return False

    def __iter__(self) -> Iterator[ParkedRequest]:
        return iter(self._line)

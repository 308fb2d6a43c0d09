"""Requests that wait for messages or for space: tried in the order in which they came, until their time is over.

Pure: the machine says when to try.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class ParkedRequest:
    """A request without an answer yet.

    Attributes
    ----------
    connection, request_id : int
        Where its answer goes.
    resource : str
        What it waits for: the name of a group, :data:`PUTS`, or :func:`of_commit`.
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


PUTS = ""
"""The resource of puts: space. No group has this name."""


def of_commit(nonce: bytes) -> str:
    """Return the resource of a commit: space, too, but what it acknowledges may make some. So it is in no line."""
    return f"/{nonce.hex()}"


def of_verb(connection: int, request_id: int) -> str:
    """Return the resource of a verb that runs elsewhere: its end, which wakes the machine. It is in no line either."""
    return f"/{connection}.{request_id}"


def is_space(resource: str) -> bool:
    """Whether a resource is space or a verb, and not the messages of a group."""
    return not resource or resource.startswith("/")


class ParkedRequests:
    """The lines of parked requests, one for each resource; for the thread of the machine."""

    def __init__(self) -> None:
        self._lines: dict[str, list[ParkedRequest]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values())) if self._lines else 0

    def __contains__(self, resource: str) -> bool:
        """Whether a request waits for this: a new one has its turn behind it."""
        return resource in self._lines

    @property
    def resources(self) -> set[str]:
        """What any of them waits for."""
        return set(self._lines)

    def park(self, request: ParkedRequest) -> None:
        """Let a request wait, behind the others of its resource."""
        self._lines.setdefault(request.resource, []).append(request)

    def forget(self, connection: int) -> None:
        """Drop the requests of a connection that is closed."""
        for resource, line in list(self._lines.items()):
            self._keep(resource, [each for each in line if each.connection != connection])

    def drain(self) -> list[ParkedRequest]:
        """Return all of them, and forget them."""
        parked = [each for line in self._lines.values() for each in line]
        self._lines.clear()
        return parked

    def next_deadline(self) -> float:
        """Return when the first of them is over; infinite if none ever is."""
        return min((each.deadline for line in self._lines.values() for each in line), default=math.inf)

    def attempt(self, now: float) -> None:
        """Try each line in order; those behind one that finds nothing are only tried if their own time is over."""
        for resource, line in list(self._lines.items()):
            left: list[ParkedRequest] = []
            for each in line:
                is_over = each.deadline <= now
                if (left and not is_over) or not each.attempt(is_over):
                    left.append(each)
            self._keep(resource, left)

    def _keep(self, resource: str, line: list[ParkedRequest]) -> None:
        if line:
            self._lines[resource] = line
        else:
            del self._lines[resource]

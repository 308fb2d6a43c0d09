"""The lines of requests that wait."""

from __future__ import annotations

import math

from holdfast.queue.owner.parked import PUTS, ParkedRequest, ParkedRequests, is_space, of_commit


class Tried:
    """Requests that write down when they are tried, and are answered if there is something for them."""

    def __init__(self) -> None:
        self.parked = ParkedRequests()
        self.there: dict[str, int] = {}
        self.log: list[tuple[int, bool]] = []

    def park(self, request_id: int, resource: str, deadline: float = math.inf, connection: int = 1) -> None:
        def attempt(is_over: bool) -> bool:
            self.log.append((request_id, is_over))
            if self.there.get(resource, 0):
                self.there[resource] -= 1
                return True
            return is_over

        self.parked.park(ParkedRequest(connection, request_id, resource, deadline, attempt))

    def attempt(self, now: float = 0.0) -> list[tuple[int, bool]]:
        self.log = []
        self.parked.attempt(now)
        return self.log


def test_each_line_is_tried_in_order_until_one_finds_nothing() -> None:
    """The lines of other resources are not held up."""
    tried = Tried()
    for request_id, resource in [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, PUTS)]:
        tried.park(request_id, resource)
    tried.there = {"a": 1, "b": 1}
    assert tried.attempt() == [(1, False), (2, False), (4, False), (5, False)]
    assert len(tried.parked) == 3
    assert tried.parked.resources == {"a", PUTS}
    assert ["a" in tried.parked, "b" in tried.parked] == [True, False]
    assert tried.attempt() == [(2, False), (5, False)]


def test_a_request_whose_time_is_over_is_tried_a_last_time() -> None:
    """Also behind one that still waits."""
    tried = Tried()
    tried.park(1, "a")
    tried.park(2, "a", deadline=5.0)
    tried.park(3, "a", deadline=9.0)
    assert tried.parked.next_deadline() == 5.0
    assert tried.attempt(5.0) == [(1, False), (2, True)]
    assert tried.parked.next_deadline() == 9.0
    assert tried.attempt(10.0) == [(1, False), (3, True)]
    assert tried.parked.next_deadline() == math.inf


def test_the_requests_of_a_closed_connection_are_dropped() -> None:
    """Of all lines; those of others keep their order."""
    tried = Tried()
    for request_id, resource, connection in [(1, "a", 1), (2, "a", 2), (3, "b", 1), (4, "a", 2)]:
        tried.park(request_id, resource, connection=connection)
    tried.parked.forget(1)
    tried.there = {"a": 9, "b": 9}
    assert tried.attempt() == [(2, False), (4, False)]
    assert len(tried.parked) == 0


def test_puts_and_commits_wait_for_space() -> None:
    """Each commit in a line of its own."""
    assert [is_space(PUTS), is_space(of_commit(b"\1")), is_space("default")] == [True, True, False]
    assert of_commit(b"\1") != of_commit(b"\2")


def test_what_is_drained_is_forgotten() -> None:
    """Of all lines."""
    tried = Tried()
    for request_id, resource in [(1, "a"), (2, PUTS)]:
        tried.park(request_id, resource)
    assert [each.request_id for each in tried.parked.drain()] == [1, 2]
    assert len(tried.parked) == 0
    assert tried.attempt() == []

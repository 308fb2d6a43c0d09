"""Groups that are moved to another place in the log, and made at a time."""

from __future__ import annotations

from datetime import timedelta

from holdfast import GroupStart, LeaseExpiredError
from proof.crash_states.asked import AskingGroup
from proof.crash_states.history import Part
from proof.crash_states.lives.books import PROGRESS, SLOW_PROGRESS, A
from proof.crash_states.lives.groups import Grouping
from proof.crash_states.opening import SLOW, log_of

AGO = timedelta(minutes=30)
"""How long ago a group is moved to: behind what was put before the hour that a life lets pass."""


class Moving(Grouping):
    """Moves groups."""

    def seek(self, start: str | int | timedelta) -> None:
        """Move the first group: what is in hand is taken away, and all but its dead letters is forgotten."""
        before, expected = self._group(), self._offset_of(start)
        self._check(self.queue.groups.seek("default", start), expected)
        for delivery in self.in_hand.values():
            try:
                delivery.ack()
            except LeaseExpiredError:
                continue
            raise AssertionError(f"offset {delivery.offset} was acknowledged for another life of its group")
        self.in_hand.clear()
        self.groups[A] = moved = self._moved(before, expected)
        self._happened({PROGRESS: moved.state()}, durable=True)
        self.history.begin_life(A)
        self._return(f"seek({start})")

    def slow_seek(self, start: str | int | timedelta) -> None:
        """Move the second group, through the handle that has it open."""
        assert self.slow is not None
        assert self.slow_group is not None
        expected = self._offset_of(start)
        self._check(self.slow.groups.seek(SLOW, start), expected)
        self.slow_in_hand.clear()
        self.slow_group = self._moved(self.slow_group, expected)
        self._happened({SLOW_PROGRESS: self.slow_group.state()}, durable=True)
        self.history.is_durable((A, Part.SLOW))
        self._return(f"slow_seek({start})")

    def create_since(self) -> None:
        """Make the second group at a time."""
        expected = self._offset_of(AGO)
        first = self.queue.groups.create(SLOW, AGO, max_deliveries=None, max_lag_bytes=1)
        assert first == expected, f"the group starts at {first}, not at {expected}"
        self._created(first)
        self._return("create_since")
        self._open_slow()

    def _check(self, started: GroupStart, expected: int) -> None:
        assert started.offset == expected, f"the group is at {started.offset}, not at {expected}"

    def _offset_of(self, start: str | int | timedelta) -> int:
        """Return the first message that is there from a start on."""
        end = len(self.history.payloads[A])
        there = {each.offset: each.timestamp_ns for each in self.queue.read()}
        if start == "latest":
            return end
        if isinstance(start, timedelta):
            since_ns = self.now_ns - start // timedelta(microseconds=1) * 1000
            return min([offset for offset, time_ns in there.items() if time_ns >= since_ns], default=end)
        wanted = 0 if isinstance(start, str) else max(0, end + start)
        return min([offset for offset in there if offset >= wanted], default=end)

    def _moved(self, before: AskingGroup, offset: int) -> AskingGroup:
        """Return a group that begins anew at an offset, with its dead letters."""
        there = {each for each, _ in log_of(self.queue)}
        first = min([offset, *before.dead])
        gone = {each for each in range(first, offset) if each not in before.dead}
        gone |= {each for each in range(offset, len(self.history.payloads[A])) if each not in there}
        return AskingGroup(first, finished=gone, dead=set(before.dead))

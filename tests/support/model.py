"""A queue as a few Python objects: what every test that compares with "what should be there" compares with.

It keeps no files, takes no locks and knows no time. It models one handle at a time: opening again forgets what is in
hand, as the death of a process does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class GroupState:
    """What a group's progress says, comparable: where it started, what is finished, how often each was handed out."""

    start: int
    finished: frozenset[int]
    deliveries: tuple[tuple[int, int], ...]

    def unfinished(self, end: int) -> dict[int, int]:
        """Return the messages below ``end`` that the group would still be given, with their delivery counts."""
        counts = dict(self.deliveries)
        return {offset: counts.get(offset, 0) for offset in range(self.start, end) if offset not in self.finished}


@dataclass
class ModelGroup:
    """One consumer group.

    Attributes
    ----------
    start : int
        Where it started: what lies below is not its business.
    finished : set of int
        Acknowledged offsets.
    deliveries : dict of int to int
        How often each unfinished message was handed out.
    in_flight, returned : set of int
        Handed out now; given back and not handed out again.
    cursor : int
        The first message that this opening has not reached.
    """

    start: int = 0
    finished: set[int] = field(default_factory=set)
    deliveries: dict[int, int] = field(default_factory=dict)
    in_flight: set[int] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)
    cursor: int = 0

    def reopen(self) -> None:
        """Forget what a process knows; what is in hand is ready again, with its count."""
        self.in_flight.clear()
        self.returned.clear()
        self.cursor = self.start

    def ready(self, end: int) -> list[int]:
        """Return what can be taken, in order: what was given back first, lowest offset first."""
        fresh = (offset for offset in range(max(self.cursor, self.start), end) if offset not in self.finished)
        return [*sorted(self.returned), *fresh]

    def depth(self, end: int) -> int:
        """Return how many messages are not finished."""
        return sum(offset not in self.finished for offset in range(self.start, end))

    def hand_out(self, offsets: Iterable[int]) -> None:
        """Take messages out of what is ready."""
        for offset in offsets:
            if offset in self.returned:
                self.returned.remove(offset)
            else:
                self.cursor = offset + 1

    def deliver(self, offsets: Collection[int]) -> list[int]:
        """Hand messages out, to be settled; return their delivery counts."""
        self.hand_out(offsets)
        self.in_flight.update(offsets)
        for offset in offsets:
            self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
        return [self.deliveries[offset] for offset in offsets]

    def finish(self, offsets: Iterable[int]) -> None:
        """Acknowledge messages, in hand or just taken."""
        for offset in offsets:
            self.in_flight.discard(offset)
            self.finished.add(offset)
            self.deliveries.pop(offset, None)

    def give_back(self, offsets: Iterable[int]) -> None:
        """Make messages in hand ready again."""
        for offset in offsets:
            self.in_flight.remove(offset)
            self.returned.add(offset)

    def state(self) -> GroupState:
        """Return what the progress says, for comparing."""
        return GroupState(self.start, frozenset(self.finished), tuple(sorted(self.deliveries.items())))


@dataclass
class ModelQueue:
    """The log, and the groups that exist.

    Attributes
    ----------
    payloads : list of bytes
        By offset.
    groups : dict of str to ModelGroup
        By name.
    """

    payloads: list[bytes] = field(default_factory=list)
    groups: dict[str, ModelGroup] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Offset of the message that comes next."""
        return len(self.payloads)

    def put(self, payloads: Iterable[bytes]) -> range:
        """Append a batch; return its offsets."""
        first = self.end
        self.payloads.extend(payloads)
        return range(first, self.end)

    def create(self, name: str, start: int) -> ModelGroup:
        """Make a group that starts at an offset, or return the one that exists."""
        return self.groups.setdefault(name, ModelGroup(start, cursor=start))

    def reopen(self) -> None:
        """Forget what a process knows."""
        for group in self.groups.values():
            group.reopen()

    def everything_is_finished(self) -> bool:
        """Whether there are groups and all of them have finished every message."""
        return bool(self.groups) and not any(group.depth(self.end) for group in self.groups.values())

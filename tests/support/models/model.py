"""A queue as a few Python objects: what every test that compares with "what should be there" compares with.

It keeps no files, takes no locks and has no clock. It models one handle at a time: opening again forgets what is in
hand, as the death of a process does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class GroupState:
    """What a group's progress says, comparable: where it started, and what has become of which message.

    ``is_filtered``: the group gets some messages only; which, says who made it.
    """

    start: int
    finished: frozenset[int]
    deliveries: tuple[tuple[int, int], ...]
    dead: frozenset[int] = frozenset()
    until_ns: tuple[tuple[int, int], ...] = ()
    is_filtered: bool = False

    def unfinished(self, end: int, now_ns: int = 0) -> dict[int, int]:
        """Return the messages below ``end`` that the group would still be given now, with their delivery counts."""
        counts, until = dict(self.deliveries), dict(self.until_ns)
        return {
            offset: counts.get(offset, 0)
            for offset in range(self.start, end)
            if offset not in self.finished and offset not in self.dead and until.get(offset, 0) <= now_ns
        }


@dataclass
class ModelGroup:
    """One consumer group. Time may stand still or go forwards while it has messages that wait.

    Attributes
    ----------
    start : int
        Where it started: what lies below is not its business.
    max_deliveries : int or None
        How often a message is handed out.
    finished, dead : set of int
        Acknowledged offsets; dead letters.
    deliveries : dict of int to int
        How often each unfinished message was handed out, as far as it counts.
    until_ns : dict of int to int
        Until when a message waits that has failed.
    in_flight, returned : set of int
        Handed out now; given back in this opening and not handed out again.
    """

    start: int = 0
    max_deliveries: int | None = None
    finished: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    deliveries: dict[int, int] = field(default_factory=dict)
    until_ns: dict[int, int] = field(default_factory=dict)
    in_flight: set[int] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)

    def reopen(self) -> None:
        """Forget what a process knows; what is in hand is ready again, with its count."""
        self.in_flight.clear()
        self.returned.clear()

    # -- What comes next ---------------------------------------------------------------------------------------------

    @property
    def doomed(self) -> set[int]:
        """Messages whose last receiver died: dead letters as soon as somebody comes by them."""
        most = self.max_deliveries
        counts = () if most is None else self.deliveries.items()
        return {at for at, count in counts if count >= (most or 0) and at not in self.in_flight | self.dead}

    def aside(self, now_ns: int) -> list[int]:
        """Return what was handed out before and can be taken again, in order."""
        waiting = (self.returned | self.deliveries.keys()) - self.in_flight - self.dead - self.doomed
        return sorted(offset for offset in waiting if self.until_ns.get(offset, 0) <= now_ns)

    def fresh(self, end: int) -> list[int]:
        """Return what was never handed out, in order."""
        known = self.finished | self.dead | self.in_flight | self.returned | self.deliveries.keys()
        return [offset for offset in range(self.start, end) if offset not in known]

    def ready(self, end: int, now_ns: int = 0) -> list[int]:
        """Return all that can be taken."""
        return [*self.aside(now_ns), *self.fresh(end)]

    def waiting(self, now_ns: int) -> set[int]:
        """Return what has failed and waits for its time."""
        return {offset for offset, until in self.until_ns.items() if until > now_ns} - self.doomed

    def check_order(self, offsets: Sequence[int], end: int, now_ns: int = 0, *, mixes: bool = False) -> None:
        """Raise AssertionError unless these may be the first ones.

        What was handed out before comes first, by offset; where that was in an earlier life, from when reading has come
        so far. What is taken at once ``mixes`` the two only where it is looked at and not taken.
        """
        aside, fresh = self.aside(now_ns), self.fresh(end)
        count = next((at for at, offset in enumerate(offsets) if offset not in aside), len(offsets))
        again, new = list(offsets[:count]), list(offsets[count:])
        assert again == aside[:count], f"{again} again, not the first of {aside}"
        assert new == fresh[: len(new)], f"{new}, not the first of {fresh}"
        assert mixes or not (again and new), f"{again} and {new} in one batch"
        late = [offset for offset in aside[count:] if offset in self.returned or (new and offset < new[-1])]
        assert not (new and late), f"{new} before {late}"

    def check_alone(self, offsets: Sequence[int]) -> None:
        """Raise AssertionError where a message that was handed out before is received in company."""
        assert len(offsets) == 1 or not self.deliveries.keys() & set(offsets), f"{list(offsets)} came together"

    # -- What happens to messages ------------------------------------------------------------------------------------

    def depth(self, end: int) -> int:
        """Return how many messages are neither finished nor dead letters."""
        return sum(offset not in self.finished and offset not in self.dead for offset in range(self.start, end))

    def hand_out(self, offsets: Iterable[int]) -> None:
        """Take messages out of what is ready."""
        self.returned.difference_update(offsets)

    def deliver(self, offsets: Collection[int]) -> list[int]:
        """Hand messages out, to be settled; return their delivery counts."""
        self.hand_out(offsets)
        self.in_flight.update(offsets)
        for offset in offsets:
            self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
        return [self.deliveries[offset] for offset in offsets]

    def finish(self, offsets: Iterable[int]) -> None:
        """Acknowledge messages, in hand or just taken; or discard dead letters."""
        for offset in offsets:
            self.in_flight.discard(offset)
            self.dead.discard(offset)
            self.finished.add(offset)
            self.deliveries.pop(offset, None)
            self.until_ns.pop(offset, None)

    def give_back(self, offsets: Iterable[int], until_ns: int = 0) -> None:
        """Note that messages in hand have failed: they come again then, or are dead letters."""
        for offset in offsets:
            if self.max_deliveries is not None and self.deliveries[offset] >= self.max_deliveries:
                self.bury([offset])
                continue
            self.in_flight.remove(offset)
            self.returned.add(offset)
            self.until_ns[offset] = until_ns

    def release(self, offsets: Iterable[int]) -> None:
        """Note that deliveries never took place: a time that the message waited for before counts again."""
        for offset in offsets:
            self.in_flight.remove(offset)
            self.returned.add(offset)
            self.deliveries[offset] -= 1
            if not self.deliveries[offset]:
                del self.deliveries[offset]

    def bury(self, offsets: Iterable[int]) -> None:
        """Make messages dead letters."""
        for offset in offsets:
            self.in_flight.discard(offset)
            self.returned.discard(offset)
            self.until_ns.pop(offset, None)
            self.dead.add(offset)

    def retry(self, offsets: Iterable[int], now_ns: int) -> None:
        """Have dead letters come again, as if they never had been handed out; when that was is noted as their time."""
        for offset in offsets:
            self.dead.remove(offset)
            self.deliveries.pop(offset, None)
            self.returned.add(offset)
            self.until_ns[offset] = now_ns

    def state(self) -> GroupState:
        """Return what the progress says, for comparing."""
        return GroupState(
            self.start,
            frozenset(self.finished),
            tuple(sorted(self.deliveries.items())),
            frozenset(self.dead),
            tuple(sorted((offset, until) for offset, until in self.until_ns.items() if until)),
        )


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
        return self.groups.setdefault(name, ModelGroup(start))

    def reopen(self) -> None:
        """Forget what a process knows."""
        for group in self.groups.values():
            group.reopen()

    def everything_is_finished(self) -> bool:
        """Whether there are groups and all of them have finished every message."""
        return bool(self.groups) and not any(group.depth(self.end) or group.dead for group in self.groups.values())

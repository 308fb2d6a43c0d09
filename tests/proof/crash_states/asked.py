"""What a put may ask for, and what follows from it for one group: who may come next, and what a recovery shows.

The rules of docs/work-queue.md as the oracle has them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from support.models.model import GroupState, ModelGroup


@dataclass(frozen=True)
class Asked:
    """What one message asks for; times are those of the wall clock, 0: never."""

    priority: int = 0
    order_key: str = ""
    until_ns: int = 0
    expires_ns: int = 0

    def is_over(self, now_ns: int, delivery_count: int, until_ns: int) -> bool:
        """Whether its time to live is over; not of a dead letter that was retried behind that, for one delivery."""
        return 0 < self.expires_ns <= now_ns and (delivery_count > 0 or until_ns < self.expires_ns)


PLAIN = Asked()
_NOBODY = frozenset({-1})
Wishes = Mapping[int, Asked]
"""By offset, of those that ask for anything."""


@dataclass(frozen=True)
class Waiting:
    """One message that a group has not finished, and that is no dead letter."""

    offset: int
    delivery_count: int
    asked: Asked
    due_ns: int


def unfinished(state: GroupState, wishes: Wishes, end: int, now_ns: int) -> list[Waiting]:
    """Return what a group has not finished, without what nobody is given any more."""
    counts, until = dict(state.deliveries), dict(state.until_ns)
    found = []
    for offset in range(state.start, end):
        if offset in state.finished or offset in state.dead:
            continue
        asked, count, until_ns = wishes.get(offset, PLAIN), counts.get(offset, 0), until.get(offset, 0)
        if not asked.is_over(now_ns, count, until_ns):
            found.append(Waiting(offset, count, asked, until_ns or asked.until_ns))
    return found


def takeable(waiting: Iterable[Waiting], held: Set[int], now_ns: int) -> list[Waiting]:
    """Return what can be taken right after an opening: of each order key the first one, if that one can."""
    turns: set[str] = set()
    found = []
    for each in waiting:
        key = each.asked.order_key
        if key and key in turns:
            continue
        turns.add(key)
        if each.offset not in held and each.due_ns <= now_ns:
            found.append(each)
    return found


def in_the_end(waiting: Iterable[Waiting], held: Set[int], now_ns: int) -> list[Waiting]:
    """Return what is taken by who takes all there is: those too whose turn comes meanwhile."""
    stuck: set[str] = set()
    found = []
    for each in waiting:
        key = each.asked.order_key
        if key in stuck or each.offset in held or each.due_ns > now_ns:
            stuck |= {key} - {""}
        else:
            found.append(each)
    return found


def in_turn(shown: Iterable[Waiting]) -> list[int]:
    """Return offsets in the order in which they come right after an opening."""
    place = lambda each: (-each.asked.priority, each.delivery_count == 0, each.offset)  # noqa: E731
    return [each.offset for each in sorted(shown, key=place)]


@dataclass
class AskingGroup(ModelGroup):
    """A group whose messages may ask for something.

    Attributes
    ----------
    behind : dict of int to frozenset of int
        Of a dead letter that was retried the messages of its key then: one of them has the turn, and ends before it.
    perhaps_behind : dict of int to frozenset of int
        The same, once reading may have begun anew: then each stands where it was put.
    is_filtered : bool
        Whether it gets small messages only.
    """

    is_filtered: bool = False
    behind: dict[int, frozenset[int]] = field(default_factory=dict)
    perhaps_behind: dict[int, frozenset[int]] = field(default_factory=dict)

    def state(self) -> GroupState:
        """Return what its progress says now."""
        return replace(super().state(), is_filtered=self.is_filtered)

    def reopen(self) -> None:
        """Forget who waits behind whom, too: messages of a key stand where they were put."""
        super().reopen()
        self.behind.clear()
        self.perhaps_behind.clear()

    def may_read_anew(self) -> None:
        """Note that reading may have begun anew, so that who was retried may stand where it was put."""
        self.perhaps_behind |= self.behind
        self.behind.clear()

    def retry_in_line(self, offset: int, wishes: Wishes, end: int, now_ns: int) -> None:
        """Have a dead letter come again, behind whoever has the turn of its key."""
        key = wishes.get(offset, PLAIN).order_key
        others = [each.offset for each in unfinished(self.state(), wishes, end, now_ns) if each.asked.order_key == key]
        self.behind = {each: line for each, line in self.behind.items() if offset not in line}  # it had ended
        self.retry([offset], now_ns)
        if key and others:
            self.behind[offset] = frozenset(others)

    def release(self, offsets: Iterable[int]) -> None:
        """As of a plain message; but the time of a retry stays noted."""
        until_ns = {offset: self.until_ns[offset] for offset in offsets if offset in self.until_ns}
        super().release(offsets)
        self.until_ns |= until_ns

    def may_come(self, wishes: Wishes, end: int, now_ns: int, held: Set[int]) -> tuple[list[int], bool]:
        """Return which messages the next one is one of, and whether one of them surely comes.

        A message that was delayed, or waits for its key, stands in the log or aside of it, by how far reading has come;
        so does one of a key that was retried, as long as others are left that it may wait behind.
        """
        if not wishes:
            ready = [offset for offset in self.ready(end, now_ns) if offset not in held][:1]
            return ready, bool(ready)
        can = {each.offset: each for each in unfinished(self.state(), wishes, end, now_ns)}
        allowed, is_sure = self._by_keys(can, held, now_ns)
        lines = self.perhaps_behind | self.behind
        in_line = {offset for offset, line in lines.items() if line & can.keys()} & allowed
        aside = [offset for offset in self.aside(now_ns) if offset in allowed - in_line]
        fresh = [offset for offset in self.fresh(end) if offset in allowed]
        top = max((can[offset].asked.priority for offset in allowed), default=0)
        if top:
            return [min(offset for offset in allowed if can[offset].asked.priority == top)], is_sure
        either = {offset for offset in fresh if can[offset].asked != PLAIN} | in_line
        if aside:
            return sorted({aside[0], *(each for each in either if each < aside[0] or each in in_line)}), is_sure
        return sorted({*[offset for offset in fresh if offset not in either][:1], *either}), is_sure

    def _by_keys(self, can: Mapping[int, Waiting], held: Set[int], now_ns: int) -> tuple[set[int], bool]:
        """Return what its order key does not hold back, and whether any of it is there for sure."""
        lines: dict[str, list[Waiting]] = {}
        free = set()
        for each in can.values():
            if each.asked.order_key:
                lines.setdefault(each.asked.order_key, []).append(each)
            elif each.offset not in held | self.in_flight and each.due_ns <= now_ns:
                free.add(each.offset)
        is_sure = bool(free)
        for line in lines.values():
            if any(each.offset in self.in_flight and each.offset not in held for each in line):
                continue  # one at a time
            offsets = {each.offset for each in line}
            behind = {each.offset for each in line if offsets >= self.behind.get(each.offset, _NOBODY)}
            may = [each for each in line if each.offset not in behind]
            known = self.returned | self.deliveries.keys()
            first = [may[0].offset, *[each.offset for each in may if each.offset not in self.returned][:1]]
            turns = [each for each in may if each.offset in known or each.offset in first]
            ready = [each.offset for each in turns if each.offset not in held and each.due_ns <= now_ns]
            free.update(ready)
            is_sure = is_sure or (len(ready) == len(turns) and not any(each.offset in held for each in line))
        return free, is_sure

"""The progress of one consumer group: a floor, runs of finished messages above it, delivery counts. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator

from holdfast.persistence.format.constants import SESSION_SHIFT
from holdfast.persistence.format.dead_letter import DeadMark
from holdfast.persistence.groups.position_entry import NO_HINT, Hint
from holdfast.persistence.groups.vote import Vote

_LARGE_RUN_COUNT = 64
"""Held messages that are kept as a run: reading a group's progress must not cost as much as what it has drained."""

_NO_END = 2**64


def _among(known: Collection[int], first: int, end: int) -> Iterable[int]:
    """Return the known ones of ``first`` to ``end``: a run can be far longer than all that is known."""
    if end - first <= len(known):
        return range(first, end)
    return [offset for offset in known if first <= offset < end]


class GroupProgress:
    """The finished and the delivered messages of a queue, with delivery counts.

    Parameters
    ----------
    floor : int
        Offset below which the group has finished every message, or began later.

    Attributes
    ----------
    floor, hint
        As above, and where the record at ``floor`` starts, as far as known.
    finished_count : int
        Messages finished so far, those below the first floor included: ``next offset - finished_count`` is the depth.
    lost_count : int
        Messages given up because their bytes are damaged.
    skipped_count : int
        Messages skipped because the group was too far behind.
    deliveries : dict of int to int
        Delivery count of each unfinished message that was ever delivered.
    returned : dict of int to tuple of int
        Messages that were given back: from when on they may be delivered again (ns), and when they failed first (s; 0:
        never), or both 0 if they were only released. Stays while they are delivered again.
    again : set of int
        Those of them that were delivered again.
    numbers : dict of int to int
        Delivery number of each message that is in hand under one.
    taken_away : dict of int to set of int
        By delivery number: the messages that their owner has taken away from it, until its session has heard of it.
    dead : dict of int to DeadMark
        Dead letters, oldest first.
    votes : dict of bytes to Vote
        Votes by nonce, in their order: prepared transactions that wait for their outcome. Changed by :meth:`hold` and
        :meth:`settle` only.
    """

    __slots__ = (
        "_ends",
        "_held",
        "_held_runs",
        "_hints",
        "_starts",
        "again",
        "dead",
        "deliveries",
        "finished_count",
        "floor",
        "hint",
        "lost_count",
        "numbers",
        "returned",
        "skipped_count",
        "taken_away",
        "votes",
    )

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self.hint = NO_HINT
        self.finished_count = floor
        self.lost_count = 0
        self.skipped_count = 0
        self.deliveries: dict[int, int] = {}
        self.returned: dict[int, tuple[int, int]] = {}
        self.again: set[int] = set()
        self.numbers: dict[int, int] = {}
        self.taken_away: dict[int, set[int]] = {}
        self.dead: dict[int, DeadMark] = {}
        self.votes: dict[bytes, Vote] = {}
        self._held: dict[int, int] = {}  # by offset: how many votes hold it, which is 1 unless something went wrong
        self._held_runs: list[tuple[int, int]] = []  # large ones instead: first and end offset, ascending
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._hints: list[Hint] = []

    @property
    def finished_end(self) -> int:
        """Offset behind the last finished message."""
        return self._ends[-1] if self._ends else self.floor

    @property
    def seen_end(self) -> int:
        """Offset behind the last message that is finished, held or dead: these offsets are never given again."""
        held = (run.stop for vote in self.votes.values() for run in vote.offsets)
        return max([self.finished_end, *held, *(offset + 1 for offset in self.dead)])

    @property
    def touched_end(self) -> int:
        """Offset behind the last message that the progress names."""
        return max([self.seen_end, *(offset + 1 for offset in self.deliveries)])

    def live_count(self, end: int) -> int:
        """Return how many messages below ``end`` are neither finished nor dead letters."""
        return max(0, end - self.finished_count - len(self.dead))

    def run_at(self, offset: int) -> tuple[int, Hint] | None:
        """Return end and hint of the run of finished messages above the floor that holds a message."""
        at = bisect_right(self._starts, offset) - 1
        return (self._ends[at], self._hints[at]) if at >= 0 and offset < self._ends[at] else None

    def runs(self) -> Iterator[tuple[int, int, Hint]]:
        """Yield first offset, end offset and hint of each run of finished messages above the floor, in order."""
        return zip(self._starts, self._ends, self._hints, strict=True)

    def is_finished(self, offset: int) -> bool:
        """Whether a message is finished."""
        if offset < self.floor:
            return True
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def due_ns(self, offset: int, not_before_ns: int) -> int:
        """Return the time from which a message may be delivered: of its retry or back-off, if any, else of its put."""
        return (self.returned.get(offset, (0, 0))[0] or not_before_ns) if self.returned else not_before_ns

    def is_over(self, offset: int, expires_ns: int, now_ns: int) -> bool:
        """Whether a message has expired; a dead letter that was retried after that has not."""
        if not 0 < expires_ns <= now_ns:
            return False
        return self.deliveries.get(offset, 0) > 0 or self.returned.get(offset, (0, 0))[0] < expires_ns

    def may_end(self, offset: int, *, is_filtered: bool = False) -> bool:
        """Whether a message can still end by its time to live: it is not finished, no dead letter, and not held.

        ``is_filtered``: the group has a filter. Then only one that was handed out can: whether the group gets another
        one is not known.
        """
        if is_filtered and offset not in self.deliveries:
            return False
        return not (self.is_finished(offset) or offset in self.dead or self.is_held(offset))

    def unfinished_in(self, first: int, end: int) -> int:
        """Return how many messages of ``first`` to ``end`` are not finished."""
        first = max(first, self.floor)
        if first >= end:
            return 0
        count = end - first
        at = bisect_right(self._ends, first)
        while at < len(self._starts) and self._starts[at] < end:
            count -= min(end, self._ends[at]) - max(first, self._starts[at])
            at += 1
        return count

    def unfinished_runs(self, first: int, end: int) -> list[range]:
        """Return the messages of ``first`` to ``end`` that are not finished, as ascending ranges."""
        runs = []
        first = max(first, self.floor)
        at = bisect_right(self._ends, first)
        while first < end:
            run_start, run_end = (self._starts[at], self._ends[at]) if at < len(self._starts) else (end, end)
            if first < run_start:
                runs.append(range(first, min(run_start, end)))
            first = run_end
            at += 1
        return runs

    def deliver(self, first: int, count: int, delivery_count: int, number: int = 0) -> None:
        """Record deliveries with their count and their number; a finished message stays finished."""
        is_new = first >= (self._ends[-1] if self._ends else self.floor)
        if count == 1 and is_new and not self.returned:  # of nearly all, what follows
            self.deliveries[first] = delivery_count
            if number or self.numbers:
                self._number((first,), number)
            return
        offsets: Iterable[int] = range(first, first + count)
        if not is_new:
            offsets = [offset for offset in offsets if not self.is_finished(offset)]
        for offset in offsets:
            self.deliveries[offset] = delivery_count
        if self.returned:
            self.again.update(offset for offset in offsets if offset in self.returned)
        if number or self.numbers:
            self._number(offsets, number)

    def _number(self, offsets: Iterable[int], number: int) -> None:
        """Record under which number messages are in hand; 0: under none."""
        if number and not (self.dead or self.returned or self._held or self._held_runs or self.taken_away):
            for offset in offsets:  # nearly always, and what the loop below would do
                self.numbers[offset] = number
            return
        for offset in offsets:
            if number:
                self.forget_taken_away(number, offset)  # the take was sent again, and has them now
            if number and self.is_out(offset):  # no dead letter is handed out, and nothing that a vote holds
                self.numbers[offset] = number
            else:
                self.numbers.pop(offset, None)

    def is_out(self, offset: int) -> bool:
        """Whether a message was delivered and is not settled."""
        is_back = offset in self.dead or (offset in self.returned and offset not in self.again)
        return offset in self.deliveries and not is_back and not self.is_held(offset)

    def give_back(
        self, first: int, count: int, delivery_count: int, until_ns: int, first_failure_s: int, taken_away_from: int = 0
    ) -> None:
        """Record that messages may be delivered again from ``until_ns`` on; dead letters too, finished ones not.

        They were ``taken_away_from`` the delivery of this number; 0: their holder gave them back.
        """
        for offset in range(first, first + count):
            if self.is_finished(offset):
                continue
            self.dead.pop(offset, None)
            self.again.discard(offset)
            self.numbers.pop(offset, None)
            if delivery_count:
                self.deliveries[offset] = delivery_count
            else:
                self.deliveries.pop(offset, None)
            if until_ns or first_failure_s or delivery_count:  # else it is as one that was never delivered
                self.returned[offset] = (until_ns, first_failure_s)
            else:
                self.returned.pop(offset, None)
            if taken_away_from:
                self.take_away(taken_away_from, offset, 1)

    def bury(self, offset: int, mark: DeadMark, taken_away_from: int = 0) -> None:
        """Record a dead letter, as :meth:`give_back` has it; a finished message stays finished."""
        if not self.is_finished(offset):
            self.returned.pop(offset, None)
            self.again.discard(offset)
            self.numbers.pop(offset, None)
            self.dead.pop(offset, None)  # the latest is last
            self.dead[offset] = mark
            if taken_away_from:
                self.take_away(taken_away_from, offset, 1)

    def finish(self, first: int, count: int, hint: Hint = NO_HINT) -> int:
        """Record finished messages; return how many of them were not finished before."""
        end = first + count
        if first == self.floor and count == 1 and not (self._starts or self.returned or self.dead or self._held):
            self.deliveries.pop(first, None)  # of nearly all, what follows
            if self.numbers:
                self.numbers.pop(first, None)
            self.floor, self.hint = end, hint
            self.finished_count += 1
            return 1
        is_short = count < _LARGE_RUN_COUNT
        if self.deliveries:
            if self.numbers:  # in here: what has a number was delivered
                self._forget_numbers(first, end)
            for offset in range(first, end) if is_short else _among(self.deliveries, first, end):
                self.deliveries.pop(offset, None)
        if self.returned or self.dead:
            for offset in range(first, end) if is_short else _among({**self.returned, **self.dead}, first, end):
                self.returned.pop(offset, None)
                self.again.discard(offset)
                self.dead.pop(offset, None)
        self._forget_held(first, end)
        if first <= self.floor and not self._starts:
            newly = end - self.floor if end > self.floor else 0  # max() takes longer, for every acknowledgement
            if newly:
                self.floor, self.hint = end, hint
        elif self._starts and first == self._ends[-1]:  # in order, behind an unfinished one: what _insert would do
            newly = count
            self._ends[-1], self._hints[-1] = end, hint
        else:
            newly = self.unfinished_in(first, end)
            if newly:
                self._insert(max(first, self.floor), end, hint)
        self.finished_count += newly
        return newly

    def _forget_held(self, first: int, end: int) -> None:
        """Forget that finished messages are held: their vote stays, it still waits for its outcome."""
        for offset in [] if not self._held else _among(self._held, first, end):
            self._held.pop(offset, None)

    # -- Delivery numbers --------------------------------------------------------------------------------------------

    def take_away(self, number: int, first: int, count: int) -> None:
        """Record that messages were taken away from a delivery."""
        if count:
            self.taken_away.setdefault(number, set()).update(range(first, first + count))

    def forget_taken_away(self, number: int, offset: int) -> None:
        """Forget that a message was taken away from a delivery: its session has heard of it."""
        offsets = self.taken_away.get(number)
        if offsets is not None:
            offsets.discard(offset)
            if not offsets:
                self.taken_away.pop(number, None)

    def forget_session(self, session: int, kept: Collection[int] = ()) -> None:
        """Forget what was taken away from a session that asks about no takes but those ``kept``."""
        for number in [each for each in self.taken_away if each >> SESSION_SHIFT == session and each not in kept]:
            del self.taken_away[number]

    def _forget_numbers(self, first: int, end: int) -> None:
        for offset in range(first, end) if end == first + 1 else _among(self.numbers, first, end):
            self.numbers.pop(offset, None)

    # -- Votes -------------------------------------------------------------------------------------------------------

    def hold(self, vote: Vote) -> None:
        """Record a vote: its unfinished messages are held until :meth:`settle`."""
        if vote.nonce in self.votes:  # done twice
            self._let_go(self.votes[vote.nonce])
        self.votes[vote.nonce] = vote
        for offsets in vote.offsets:
            if self.numbers:  # from here on they are held by the nonce
                self._forget_numbers(offsets.start, offsets.stop)
            if len(offsets) >= _LARGE_RUN_COUNT:
                insort(self._held_runs, (offsets.start, offsets.stop))
                continue
            for run in self.unfinished_runs(offsets.start, offsets.stop):
                for offset in run:
                    self._held[offset] = self._held.get(offset, 0) + 1

    def settle(self, nonce: bytes, *, committed: bool) -> None:
        """Finish the messages of a vote, or release them; an unknown nonce changes nothing."""
        vote = self.votes.get(nonce)
        if vote is None:
            return
        if committed:  # the vote goes last: after an interruption in between it is settled again
            for first, count, sequence, end_position in vote.runs:
                self.finish(first, count, (sequence, end_position))
        self._let_go(vote)
        if not committed:
            for offsets in vote.offsets:
                self._take_back(offsets)
        del self.votes[nonce]

    def _take_back(self, offsets: range) -> None:
        """Record that messages delivered before they were held are available again."""
        known = _among(self.deliveries, offsets.start, offsets.stop)
        for offset in [each for each in known if each in self.deliveries and each not in self.dead]:
            self.returned.setdefault(offset, (0, 0))
            self.again.discard(offset)

    def _let_go(self, vote: Vote) -> None:
        for offsets in vote.offsets:
            if len(offsets) >= _LARGE_RUN_COUNT:
                run = (offsets.start, offsets.stop)
                if run in self._held_runs:  # not when it is settled again after an interruption
                    self._held_runs.remove(run)
                continue
            for offset in offsets:
                if self._held.get(offset, 0) > 1:
                    self._held[offset] -= 1
                else:
                    self._held.pop(offset, None)

    def is_held(self, offset: int) -> bool:
        """Whether a vote holds a message that is not finished."""
        if offset in self._held:
            return True
        if not self._held_runs:
            return False
        at = bisect_right(self._held_runs, (offset, _NO_END))
        near = self._held_runs[max(0, at - 2) : at]  # two: after a failure, two votes may hold a message
        return any(offset < end for _, end in near) and not self.is_finished(offset)

    def held_offsets(self, end: int) -> list[int]:
        """Return the messages below ``end`` that are held and not finished: a vote may name more than the log has."""
        large = (run for first, stop in self._held_runs for run in self.unfinished_runs(first, min(stop, end)))
        return list(dict.fromkeys([*self._held, *(offset for run in large for offset in run)]))

    @property
    def held_count(self) -> int:
        """Messages held and not finished; any thread may ask."""
        return len(self._held) + sum(end - first for first, end in list(self._held_runs))

    # -- Runs --------------------------------------------------------------------------------------------------------

    def _insert(self, first: int, end: int, hint: Hint) -> None:
        """Merge a run into the others, and into the floor if it touches it."""
        low = bisect_left(self._ends, first)
        high = bisect_right(self._starts, end)
        if low < high:
            first = min(first, self._starts[low])
            if self._ends[high - 1] >= end:
                end, hint = self._ends[high - 1], self._hints[high - 1]
        if first <= self.floor:
            self.floor, self.hint = end, hint
            del self._starts[low:high], self._ends[low:high], self._hints[low:high]
        else:
            self._starts[low:high], self._ends[low:high], self._hints[low:high] = [first], [end], [hint]

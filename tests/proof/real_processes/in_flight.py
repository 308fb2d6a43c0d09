"""What takes that were cut off may have taken: the head of what was ready then, and nothing behind it.

A ``get`` that did not return has taken what came next, up to as many as it asked for, or nothing. What came next is
known: what was handed out before, by offset, and then the log, by offset. So a message that is missing is excused by a
``get`` only if fewer messages than that came before it, and if none of those is still there.

What is not known is allowed for: who holds what while it is being given back, where a released message stands, and the
messages that a ``receive`` which did not return may have had in hand, which are there again and were passed over. Where
a put stands that did not return is known once one of its messages is seen; till then it may stand anywhere behind what
had returned when it began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from proof.real_processes.steps import DONE, LOST, NEVER, Step, Stored

Turn = tuple[bool, float]
"""When a message comes: not early, and its offset."""


@dataclass(slots=True)
class Take:
    """A call that has not returned: how many messages it asks for, since which line, and whether it finishes them."""

    count: int
    since: int
    finishes: bool


class CutOff:
    """The takes of one process that did not return.

    Parameters
    ----------
    count : int
        How many messages those may have finished together that finish what they take.
    passed_max : int
        How many the others may have had in hand.
    stored : dict of Stored
        All messages by name. Those that may have been taken get a step more that may have finished them.
    since : int
        The line from which on what was ready is to count.
    """

    def __init__(self, count: int, passed_max: int, stored: dict[str, Stored], since: int) -> None:
        self.count = count
        self._passed_max = passed_max
        self._seen: set[str] = set()
        certain = sorted(
            (_latest(each), name) for name, each in stored.items() if each.ready_since is not None
            and each.ready_since < since and each.put.fates == {DONE} and not each.may_be_taken()
        )  # fmt: skip
        self._line = [name for _, name in certain]
        self._turns = [turn for turn, _ in certain]
        self._never_handed_out = {
            name for name, each in stored.items()
            if each.hand is None and each.is_early is False and not each.takers and not each.put.has_returned
        }  # fmt: skip
        self._guesses: list[tuple[Stored, Step]] = []
        for name, each in stored.items():
            if self._before(each) < count + passed_max and _may_be_ready(each):
                guess = Step(f"of a get that took {name}", 0, (name,), {NEVER, DONE}, is_guess=True)
                each.takers.append(guess)
                self._guesses.append((each, guess))

    def _passed_of_its_own(self, stored: Stored) -> int:
        """Return how many messages that the same put has put before it are there, if the put did not return.

        Those are in front of it only if it was never handed out.
        """
        if stored.is_early is not False:
            return 0
        before = {f"{stored.put.key}:{index}" for index in range(stored.index)}
        return len(before & self._never_handed_out & self._seen)

    def _before(self, stored: Stored) -> int:
        """Return how many messages surely come before it."""
        return bisect_left(self._turns, _soonest(stored))

    def see(self, name: str) -> None:
        """Take note that a message is there: what comes behind it was not taken."""
        self._seen.add(name)

    def conclude(self) -> None:
        """Rule out what came too late, or behind more messages that are there than could have been passed over.

        Puts whose place was not known when the process ended may have been placed since. All messages of a put become
        ready at once, so those of its own that are there were passed over too.
        """
        passed = [0]
        for name in self._line:
            passed.append(passed[-1] + (name in self._seen))
        for stored, guess in self._guesses:
            before = self._before(stored)
            if before >= self.count + self._passed_max:
                guess.rule_out(DONE, LOST, "more messages came before it than were asked for")
            elif passed[before] + self._passed_of_its_own(stored) > self._passed_max:
                guess.rule_out(DONE, LOST, "a message in front of it is there")


def _latest(stored: Stored) -> Turn:
    return (not stored.is_early, stored.offset)  # where nobody knows whether it is early, it is not


def _soonest(stored: Stored) -> Turn:
    return (stored.is_early is False, stored.offset_min)


def _may_be_ready(stored: Stored) -> bool:
    """Whether a take may have come upon it: nobody has it in hand, or somebody was giving it back."""
    return stored.hand is None and all(NEVER in taker.fates for taker in stored.takers)


class InHand:
    """Follows who has what in hand, what is ready, and which takes are under way, line by line."""

    def __init__(self, stored: dict[str, Stored], *, is_shared: bool = False) -> None:
        self.stored = stored
        self._is_shared = is_shared
        self.line = 0
        self._takes: dict[int, Take] = {}
        self._given_back: dict[int, tuple[str, ...]] = {}

    def put(self, name: str) -> None:
        """A message can be taken from now on, if it was not taken already."""
        stored = self.stored[name]
        if stored.hand is None and not stored.takers and stored.ready_since is None:
            stored.ready_since = self.line

    def begin(self, hand: int, count: int, *, finishes: bool) -> None:
        """A thread is about to take up to so many."""
        self._takes[hand] = Take(count, self.line, finishes)

    def end(self, hand: int, names: Iterable[str] = ()) -> None:
        """A thread has these in hand now; or had no luck."""
        self._takes.pop(hand, None)
        for name in names:
            stored = self.stored.get(name)
            if stored is not None:
                stored.hand, stored.ready_since = hand, None

    def give_back(self, hand: int, names: tuple[str, ...], *, counted: bool) -> None:
        """A thread is about to give these back: another one may have any of them before it has returned."""
        self._given_back[hand] = names
        for name in names:
            stored = self.stored[name]
            stored.hand = None
            if counted:
                stored.is_early = True
            elif not stored.is_early:  # it comes early as long as this handle reads on, and stands in the log then
                stored.is_early = None

    def gave_back(self, hand: int) -> None:
        """It has returned: those that nobody has taken since can be taken."""
        for name in self._given_back.pop(hand):
            stored = self.stored.get(name)
            if stored is not None and stored.hand is None and not stored.may_be_taken():
                stored.ready_since = self.line

    def free(self, names: Iterable[str]) -> None:
        """A transaction that is being aborted held these: they may be taken from now on, at any turn."""
        for name in names:
            if name in self.stored:
                self.stored[name].hand, self.stored[name].is_early = None, None

    def end_process(self) -> CutOff | None:
        """Give back what the process had in hand, as it is dead; return what its takes may have taken."""
        takes, self._takes = list(self._takes.values()), {}
        self._given_back.clear()
        gets = [take for take in takes if take.finishes]
        passed_max = sum(take.count for take in takes if self._is_shared or not take.finishes)
        cut_off = None
        if gets:
            count, since = sum(get.count for get in gets), min(get.since for get in gets)
            cut_off = CutOff(count, passed_max, self.stored, since)
        for stored in self.stored.values():
            if stored.hand is not None:
                stored.hand, stored.is_early = None, True
                stored.ready_since = None if self._is_shared or stored.may_be_taken() else self.line
            elif passed_max and not stored.is_early:  # one of those may have been handed out
                stored.is_early = None
                stored.ready_since = None if self._is_shared else stored.ready_since
        return cut_off

    def see_all(self, visible: Iterable[str], early: Iterable[str]) -> None:
        """Take note of what is ready as a process opens the queue."""
        for stored in self.stored.values():
            stored.hand = stored.ready_since = None
            stored.is_early = False
        for name in visible:
            self.stored[name].ready_since = self.line
        for name in early:
            self.stored[name].is_early = True

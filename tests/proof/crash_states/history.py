"""What was done to some queues, and what a crash from each instant on may leave of it.

A queue has *sides*, each with a sequence of states: where its log ends, how many commits in there put nothing, how far
its group has come, how far its second and slower group, what is in doubt, what was committed jointly, its settings, and
those of its group. A call makes a new state on one side, or on several at once. A crash leaves each side at some state
of its sequence: no earlier than what was durable, no later than what was attempted; and of what was made on several
sides at once it leaves all or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.queue.options.settings import DEFAULTS
from proof.crash_states.asked import Asked
from support.models.model import GroupState


class Part(StrEnum):
    """What a side is a side of."""

    LOG = "log"
    COMMITS = "commits in the log that only acknowledge"
    PROGRESS = "progress"
    PREPARED = "prepared"
    SLOW = "progress of the slow group"
    JOINT = "joint commits"
    SETTINGS = "settings"
    RULES = "settings of the group"
    BESIDE = "commits over several queues"


OF_GROUPS = (Part.PROGRESS, Part.SLOW)

FILTERED_BYTES = 5000
"""Payloads of this size, and larger ones, do not match the filter of a group that has one."""


Side = tuple[str, Part]
"""The name of a queue, and which of its sides."""

InDoubt = frozenset[tuple[str, int, frozenset[int]]]
"""The id of each prepared transaction, how many messages it puts, and the offsets it acknowledges."""

State = int | GroupState | InDoubt | None
"""The offset behind the log, the progress of a group that exists, what is in doubt, a version, or a setting."""

Request = tuple[CommitRecord, int]
"""What a client sends, and the offset that it was put at."""

Numbers = dict[Side, int]
"""One state of each side, by its number."""


@dataclass(frozen=True)
class Step:
    """What happened at once on several sides.

    Attributes
    ----------
    numbers : dict of Side to int
        The number of the state that each of them has from then on.
    finished : dict of str to frozenset of int
        By queue: the messages it has finished where it happened, even where the progress does not say so yet.
    """

    numbers: Mapping[Side, int]
    finished: Mapping[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """What was true when a call returned: the number of each side's latest state, and of its last durable one.

    ``now_ns`` is the wall clock.
    """

    operation_count: int
    call: str
    latest: Mapping[Side, int]
    durable: Mapping[Side, int]
    now_ns: int = 0


@dataclass
class History:
    """The states of each side in order, the steps that tie them together, and the payloads of each log by offset.

    By queue too: what messages ask for, by offset; the offset of the message that was put with an id; and of
    each thread of a client its last request, if its answer has not arrived, with the offset of what it has put.
    """

    states: dict[Side, list[State]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    payloads: dict[str, list[bytes]] = field(default_factory=dict)
    durable: dict[Side, int] = field(default_factory=dict)
    wishes: dict[str, dict[int, Asked]] = field(default_factory=dict)
    ids: dict[str, dict[str, int]] = field(default_factory=dict)
    requests: dict[str, dict[bytes, Request]] = field(default_factory=dict)
    lives: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By queue: with which state of its progress each further life of its group began, and how many steps before."""

    def add_queue(self, name: str) -> None:
        """Begin with a queue of which there is nothing yet."""
        self.payloads[name], self.wishes[name], self.ids[name] = [], {}, {}
        self.requests[name], self.lives[name] = {}, []
        for part in Part:
            self.states[name, part] = [_NOTHING[part]]
            self.durable[name, part] = 0

    def wishes_of(self, name: str, *, is_filtered: bool) -> Mapping[int, Asked]:
        """Return what the messages of a queue ask for, as a group sees them: a filter leaves out what is large.

        That is as if those had asked to end long ago.
        """
        if not is_filtered:
            return self.wishes[name]
        large = [offset for offset, payload in enumerate(self.payloads[name]) if len(payload) >= FILTERED_BYTES]
        return {**self.wishes[name], **dict.fromkeys(large, Asked(expires_ns=1))}

    def copy(self) -> History:
        """Return a twin that goes its own way."""
        return History(
            {side: list(states) for side, states in self.states.items()},
            list(self.steps),
            {name: list(payloads) for name, payloads in self.payloads.items()},
            dict(self.durable),
            {name: dict(wishes) for name, wishes in self.wishes.items()},
            {name: dict(ids) for name, ids in self.ids.items()},
            {name: dict(requests) for name, requests in self.requests.items()},
            {name: list(lives) for name, lives in self.lives.items()},
        )

    def begin_life(self, name: str) -> None:
        """Note that the latest state of a group's progress is the first one of another life."""
        self.lives[name].append((self.number((name, Part.PROGRESS)), len(self.steps)))

    def steps_of_life(self, name: str, numbers: Numbers) -> list[Step]:
        """Return the steps that may have finished something for the life of the group that is in these states."""
        progress = numbers[name, Part.PROGRESS]
        begun = max([steps for number, steps in self.lives.get(name, ()) if number <= progress], default=0)
        return self.steps[begun:]

    def happened(
        self,
        states: Mapping[Side, State],
        finished: Mapping[str, frozenset[int]] | None = None,
        *,
        durable: bool = False,
    ) -> None:
        """Note what is true of these sides from now on, all of it or nothing; ``durable``: for good, all before too."""
        numbers = {}
        for side, state in states.items():
            self.states[side].append(state)
            numbers[side] = len(self.states[side]) - 1
        if len(numbers) > 1:
            self.steps.append(Step(numbers, finished or {}))
        if durable:
            self.is_durable(*states)

    def number(self, side: Side) -> int:
        """Return the number of the latest state of a side."""
        return len(self.states[side]) - 1

    def is_durable(self, *handle: Side, number: int | None = None) -> None:
        """Note that sides do not fall back behind their latest states, or behind that number."""
        for side in handle:
            self.durable[side] = max(self.durable[side], self.number(side) if number is None else number)

    def moment(self, operation_count: int, call: str, now_ns: int) -> Moment:
        """Return what is true now."""
        latest = {side: self.number(side) for side in self.states}
        return Moment(operation_count, call, latest, dict(self.durable), now_ns)


_NOTHING: dict[Part, State] = {
    Part.LOG: 0,
    Part.COMMITS: 0,
    Part.PROGRESS: None,
    Part.PREPARED: frozenset(),
    Part.SLOW: None,
    Part.JOINT: None,
    Part.BESIDE: None,
    Part.SETTINGS: DEFAULTS["record_bytes_max"],
    Part.RULES: 30,  # seconds of a lease: nothing else is different for these two
}

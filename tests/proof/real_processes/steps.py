"""What the ledger knows of calls and of messages, and what it raises."""

from __future__ import annotations

from dataclasses import dataclass, field

from support.models.kill_oracle import BrokenPromiseError

NEVER, DONE, HELD = "never happened", "happened", "is in doubt"

LOST, DOUBLED, HALF, BACK, PLACE, FAILED = "lost", "doubled", "half", "back", "place", "failed"
"""Kinds of violations: the message is gone; came again after its acknowledgement; a step happened in part; nobody put
it, or it was aborted; offsets do not fit; a child met what it must not meet."""


class ViolationError(BrokenPromiseError):
    """A promise was broken; ``kind`` says which."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass(eq=False, slots=True)
class Step:
    """Something that happens wholly or not at all.

    Attributes
    ----------
    key : str
        Its name; its messages are ``key:0`` and so on.
    put_count, takes
        How many messages it puts, and which ones it finishes.
    fates : set of str
        What may have become of it.
    before : str
        What it is where it did not happen: nothing, or in doubt.
    first : int or None
        Offset of its first message, once that is known.
    first_min : int
        The least that it can be: the end of the log as far as it was told when the call began.
    life : int
        How many losses of power may have taken an end of the log before it got its place there.
    has_returned, keeps : bool
        Whether the call returned, and whether it survives a loss of power then.
    returned_late : bool
        Whether it returned when the power might be gone already.
    is_guess : bool
        Whether it is one message that a ``get`` in flight may have taken.
    """

    key: str
    put_count: int
    takes: tuple[str, ...]
    fates: set[str]
    before: str = NEVER
    first: int | None = None
    first_min: int = 0
    life: int = 0
    has_returned: bool = False
    keeps: bool = False
    returned_late: bool = False
    is_guess: bool = False

    def narrow(self, fate: str, kind: str, why: str) -> None:
        """Learn what became of it."""
        if fate not in self.fates:
            raise ViolationError(kind, f"step {self.key} {' or '.join(sorted(self.fates))}, but {why}")
        self.fates = {fate}

    def rule_out(self, fate: str, kind: str, why: str) -> bool:
        """Learn what did not become of it; return whether that is news."""
        if fate not in self.fates:
            return False
        if len(self.fates) == 1:
            raise ViolationError(kind, f"step {self.key} {fate}, but {why}")
        self.fates.discard(fate)
        return True


@dataclass(eq=False, slots=True)
class Stored:
    """A message that may be there: who put it, and who may have finished it.

    Attributes
    ----------
    put, index
        The step that puts it, and the how-manieth of that it is.
    takers : list of Step
        Those that may have finished it.
    is_early : bool or None
        Whether it comes before all that stands in the log, as what was handed out before does; None: nobody knows.
    hand : int or None
        Which thread has it in hand.
    ready_since : int or None
        Since which line it surely could be taken; None: perhaps it cannot.
    """

    put: Step
    index: int
    takers: list[Step] = field(default_factory=list)
    is_early: bool | None = False
    hand: int | None = None
    ready_since: int | None = None

    @property
    def offset(self) -> float:
        """Where it stands; behind everything else where that is not known."""
        return float("inf") if self.put.first is None else self.put.first + self.index

    @property
    def offset_min(self) -> int:
        """Where it stands, or the first place where it may."""
        return (self.put.first_min if self.put.first is None else self.put.first) + self.index

    def may_be_taken(self) -> bool:
        """Whether somebody may have finished it, or holds it."""
        return any(taker.fates != {NEVER} for taker in self.takers)

    def possible_takers(self) -> list[Step]:
        """Return those who may have finished it, or hold it."""
        return [taker for taker in self.takers if taker.fates != {NEVER}]

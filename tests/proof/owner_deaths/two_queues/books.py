"""What was done to two queues, and which of their contents follow from that. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

from proof.owner_deaths.books import expect

Payloads = dict[str, list[bytes]]
"""By queue."""


@dataclass(eq=False)
class Step:
    """Something that happens wholly or not at all, in one queue or in both.

    Attributes
    ----------
    name : str
        What it is.
    puts, takes : dict of str to list of bytes
        What it puts into each queue, and what it finishes there; no two messages are the same.
    fates : set of bool
        Whether it may have happened.
    is_durable : bool
        Whether it survives a loss of power once it has returned.
    offsets : dict of str to int
        Where its puts begin in each queue, if it was told.
    """

    name: str
    puts: Payloads = field(default_factory=dict)
    takes: Payloads = field(default_factory=dict)
    fates: set[bool] = field(default_factory=lambda: {False, True})
    is_durable: bool = True
    offsets: dict[str, int] = field(default_factory=dict)

    def happened(self, offsets: Mapping[str, int] | None = None) -> None:
        """Note that it has returned."""
        self.fates = {True}
        self.offsets.update(offsets or {})

    def never_happened(self) -> None:
        """Note that it was refused."""
        self.fates = {False}


Left = dict[str, dict[bytes, int]]
"""By queue, the offset of each message that is left."""


class Books:
    """All steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def begin(self, name: str, puts: Payloads | None = None, takes: Payloads | None = None) -> Step:
        """Note that something is about to be done."""
        step = Step(name, puts or {}, takes or {})
        self.steps.append(step)
        return step

    def judge(self, left: Left, when: str, *, lost_power: bool = False) -> None:
        """Judge what is left: it has to follow from some steps that may have happened, each of them as a whole."""
        fates = [{False, True} if lost_power and not each.is_durable else each.fates for each in self.steps]
        expect(
            any(_follows(list(zip(self.steps, choice, strict=True)), left) for choice in product(*fates)),
            f"{when}: {_named(left)} is left behind {'; '.join(map(_told, self.steps))}",
        )
        for step in self.steps:
            for name, first in step.offsets.items():
                for offset, payload in enumerate(step.puts[name], first):
                    at = left[name].get(payload, offset)
                    expect(at == offset, f"{when}: {step.name} was told offset {offset} of {name}, and is at {at}")


def _follows(choice: list[tuple[Step, bool]], left: Left) -> bool:
    for name, messages in left.items():
        there = Counter(payload for step, has in choice if has for payload in step.puts.get(name, ()))
        gone = {payload for step, has in choice if has for payload in step.takes.get(name, ())}
        if {payload for payload in there if payload not in gone} != set(messages):
            return False
    return True


def _told(step: Step) -> str:
    fate = "happened" if step.fates == {True} else "did not happen" if step.fates == {False} else "is unknown"
    return f"{step.name} puts {_named(step.puts)} takes {_named(step.takes)} {fate}"


def _named(payloads: Mapping[str, Iterable[bytes]]) -> str:
    names = {name: b" ".join(each[:4].strip() for each in some).decode() for name, some in payloads.items()}
    return ", ".join(f"{name}: {each}" for name, each in names.items())

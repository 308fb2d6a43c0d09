"""Judges what children report, round by round, by promises 1 to 4. Pure.

A *step* is a call that puts messages, finishes messages, or both: all of it happens, or none. It has *fates*: what may
have become of it. A call that returned has one; one that was cut off has two; what returned without a promise to
survive a loss of power has two again after one. What the next child sees when it opens the queue decides: each message
that is there or is not narrows the fates of the steps it hangs on, and a step that has none left is a broken promise.

After that everything that was seen is durable: recovery has made it so.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.persistence.format.report import UNSYNCED_OR_DAMAGED
from proof.real_processes.in_flight import CutOff, InHand
from proof.real_processes.steps import (
    BACK,
    DONE,
    DOUBLED,
    FAILED,
    HALF,
    HELD,
    LOST,
    NEVER,
    PLACE,
    Step,
    Stored,
    ViolationError,
)


def excuses(ledgers: Iterable[Ledger]) -> dict[str, int | str]:
    """Return how often a ``get`` that was cut off had to explain what was missing, and how much of it."""
    all_of = list(ledgers)
    judged = sum(ledger.judged_count for ledger in all_of)
    return {
        "judgements": judged,
        "with a get in flight": sum(ledger.in_flight_count for ledger in all_of),
        "of them that explained messages": sum(ledger.excused_count for ledger in all_of),
        "messages so explained": sum(ledger.excused_messages for ledger in all_of),
    }


class Ledger:
    """All that is known of one queue.

    Parameters
    ----------
    in_order : bool
        Whether one thread puts, so that calls return in the order of the log.
    is_shared : bool
        Whether several processes share the queue. What a killed one had in hand comes again once its owner has seen
        that it is dead: so another one may take what is behind it.

    Attributes
    ----------
    judged_count, in_flight_count, excused_count, excused_messages : int
        How often all that is there was looked at; how often a ``get`` had been in flight then, how often that had to
        explain what was missing, and how many messages that were.
    """

    def __init__(self, *, in_order: bool = True, is_shared: bool = False) -> None:
        self.stored: dict[str, Stored] = {}
        self.steps: dict[str, Step] = {}
        self.gone: dict[str, str] = {}
        self.end: int | None = 0
        self._told_end = 0  # the log goes at least so far; unlike ``end`` also where several threads put
        self._judged_end: int | None = 0  # where the log ended when no step of unknown fate was left
        self.put_count = self.finished_count = 0
        self.acknowledged_count = self.returned_count = 0
        self.dropped_count = self.late_lost_count = 0
        self.judged_count = self.in_flight_count = self.excused_count = self.excused_messages = 0
        self._in_order = in_order
        self._in_hand = InHand(self.stored, is_shared=is_shared)
        self._cut_off: list[CutOff] = []
        self._may_lack = self._lacks = False
        self._life = 0
        self._own: list[Step] = []  # of the child whose words are being read
        self._before_flush: dict[str, list[Step]] = {}
        self._is_cut = False

    # -- What a child says -------------------------------------------------------------------------------------------

    def read(self, lines: list[list[str]]) -> None:
        """Take all that one child has said."""
        self.follow(self.open(lines))

    def follow(self, lines: list[list[str]]) -> None:
        """Take what a child has said of its work."""
        self._own, self._before_flush = [], {}
        for line in lines:
            self._in_hand.line += 1
            self._event(line[0], line[1:])
        self._is_cut = False
        cut_off = self._in_hand.end_process()
        self._cut_off += [cut_off] if cut_off is not None else []

    def open(self, lines: list[list[str]]) -> list[list[str]]:
        """Judge what a child saw when it opened the queue, if it came so far; return what it said of its work."""
        for number, line in enumerate(lines):
            if line[0] in ("X", "w"):
                self._event(line[0], line[1:])
            if line[0] == "cut":
                return lines[number:]
            if line[0] != "go":
                continue
            said = {each[0]: each[1:] for each in lines[:number]}
            self._lacks = "w" in said
            if "v" in said:
                visible = dict(event.split("@") for event in said["v"])
                self._see_held(set(said["h"]))
                self._observe({name: int(offset) for name, offset in visible.items()}, int(said["o"][0]))
                self._in_hand.see_all(visible, said.get("c", ()))
            elif "o" in said:
                self._check_end(int(said["o"][0]))
            return lines[number + 1 :]
        return []

    def _event(self, kind: str, fields: list[str]) -> None:
        if kind == "X":
            raise ViolationError(FAILED, " ".join(fields))
        if kind == "w":
            self._judge_damage(fields)
        elif kind == "cut":
            self._is_cut = True
        elif kind in ("s", "p"):
            self._begin(fields[0], int(fields[1]), tuple(fields[2:]), DONE if kind == "s" else HELD)
        elif kind == "d":
            self._decide(self.steps[fields[0]], DONE if fields[1] == "commit" else NEVER)
        elif kind == "S":
            self._returned(fields[0], int(fields[1]), fields[2] == "keeps")
        elif kind in ("f", "F"):
            self._flush(fields[0], has_returned=kind == "F")
        elif kind in ("g", "q", "E", "G", "r"):
            self._taken(kind, int(fields[0]), fields[1:])
        elif kind == "b":
            self._in_hand.give_back(int(fields[0]), tuple(fields[2:]), counted=fields[1] == "counted")
        elif kind == "B":
            self._in_hand.gave_back(int(fields[0]))

    def _taken(self, kind: str, hand: int, fields: list[str]) -> None:
        """Take note of what was taken, or is about to be."""
        if kind in ("g", "q"):
            self._in_hand.begin(hand, int(fields[0]), finishes=kind == "g")
        elif kind == "E":
            self._in_hand.end(hand)
        elif kind == "G":
            for name in fields[2:]:
                self._see_taken(name)
            self._in_hand.end(hand, fields[2:])
            self._begin(fields[0], 0, tuple(fields[2:]), DONE)
            self._returned(fields[0], -1, fields[1] == "keeps")
        else:
            offsets = dict(event.split("@") for event in fields)
            for name, offset in offsets.items() if not self._is_cut else ():
                self._see_taken(name)
                self._place(self.stored[name], int(offset))
            self._in_hand.end(hand, offsets)

    def _flush(self, hand: str, *, has_returned: bool) -> None:
        if not has_returned:
            self._before_flush[hand] = [step for step in self._own if step.has_returned]
        elif not self._is_cut:
            for step in self._before_flush[hand]:
                step.keeps = True

    def _judge_damage(self, verdicts: list[str]) -> None:
        if not (self._may_lack and set(verdicts) == {UNSYNCED_OR_DAMAGED.replace(" ", "-")}):
            raise ViolationError(LOST, f"recovery found something {' and '.join(verdicts)}")

    def _decide(self, step: Step, outcome: str) -> None:
        if outcome == NEVER:  # a get in flight may have what it gives back before it has returned
            self._in_hand.free(step.takes)
        if self._is_cut:  # before the power went, perhaps: then the next owner continues with it
            step.fates |= {HELD, outcome}
            step.before = HELD
            return
        step.narrow(HELD, BACK, "was found in doubt")
        step.fates, step.before = {HELD, outcome}, HELD
        step.has_returned = step.keeps = False
        step.life = self._life

    def _begin(self, key: str, count: int, takes: tuple[str, ...], fate: str) -> None:
        step = self.steps[key] = Step(key, count, takes, {NEVER, fate}, first_min=self._told_end, life=self._life)
        self._own.append(step)
        for index in range(count):
            self.stored[f"{key}:{index}"] = Stored(step, index)
        for name in takes:
            self.stored[name].takers.append(step)
        self.put_count += count

    def _returned(self, key: str, first: int, keeps: bool) -> None:
        step = self.steps[key]
        if self._is_cut:  # some system calls still say that all is well
            step.returned_late = True
            return
        step.has_returned, step.keeps = True, keeps
        self.returned_count += 1
        step.rule_out(step.before, DOUBLED, "its call returned")
        if step.fates == {DONE}:
            self.acknowledged_count += step.put_count + len(step.takes)
            if step.put_count:
                self._check_next(step, first)
            for index in range(step.put_count):
                self._in_hand.put(f"{step.key}:{index}")

    def _check_next(self, step: Step, first: int) -> None:
        """Check that offsets go on without a gap; where several threads put, that is to be seen in the end."""
        if step.first not in (None, first):
            raise ViolationError(PLACE, f"step {step.key} was told offset {first}, and stands at {step.first}")
        step.first = first
        self._told_end = max(self._told_end, first + step.put_count)
        if not self._in_order:
            return
        if self.end is not None and first != self.end:  # an owner may do what a killed client has sent at any time
            self._check_gaps(self._certain(), self._possible_sums())
        self.end = first + step.put_count

    # -- Evidence ----------------------------------------------------------------------------------------------------

    def _see_taken(self, name: str) -> None:
        """Take note that a message was handed out; if the power was gone, out of memory perhaps."""
        if not self._is_cut:
            self._see(name, on_disk=False)

    def _see(self, name: str, *, on_disk: bool = True) -> None:
        """Take note that a message is there; if not ``on_disk``, an abort under way may have released it in memory."""
        stored = self.stored.get(name)
        if stored is None:
            why = self.gone.get(name)
            if why is None:
                raise ViolationError(BACK, f"message {name} was aborted, or nobody has put it")
            raise ViolationError(DOUBLED if why == "finished" else BACK, f"message {name} is there again: it was {why}")
        for cut_off in self._cut_off:
            cut_off.see(name)
        stored.put.narrow(DONE, BACK, f"message {name} of it is there")
        for taker in stored.takers:
            taker.rule_out(DONE, DOUBLED, f"message {name}, which it finished, is there again")
            if on_disk or taker.fates != {HELD, NEVER}:
                taker.rule_out(HELD, DOUBLED, f"message {name}, which it holds, is there")

    def _place(self, stored: Stored, offset: int) -> None:
        first = offset - stored.index
        if stored.put.first is None:
            stored.put.first = first
        if stored.put.first != first:
            raise ViolationError(PLACE, f"message {stored.index} of step {stored.put.key} is at offset {offset}")

    def _see_held(self, held: set[str]) -> None:
        """Take note of what is in doubt."""
        for key in held:
            if key not in self.steps:
                raise ViolationError(BACK, f"transaction {key} is in doubt: it was decided, or nobody prepared it")
            self.steps[key].narrow(HELD, BACK, "it is in doubt")
        for key, step in self.steps.items():
            if key not in held:
                step.rule_out(HELD, LOST, "it is in doubt nowhere")

    def _observe(self, visible: dict[str, int], end: int) -> None:
        """Judge what is there when nothing is in flight."""
        for name, offset in visible.items():
            self._see(name)
            self._place(self.stored[name], offset)
        if len(set(visible.values())) != len(visible):
            raise ViolationError(PLACE, "two messages have one offset")
        for cut_off in self._cut_off:
            cut_off.conclude()
        while self._keep_order() or self._explain(visible):
            pass
        unexplained = [name for name in self.stored if name not in visible and not self._why_absent(name)]
        if unexplained:
            raise ViolationError(LOST, f"messages {' '.join(sorted(unexplained)[:9])} were put, and are nowhere")
        self._count_excused([name for name in self.stored if name not in visible])
        self._check_end(end)
        self._judged_end = end
        self._settle(visible)

    def _count_excused(self, missing: list[str]) -> None:
        """Count the messages that nothing but a ``get`` in flight explains; these took no more than they asked for."""
        excused = [
            name
            for name in missing
            if self.stored[name].put.fates == {DONE}
            and all(taker.is_guess for taker in self.stored[name].possible_takers())
        ]
        asked = sum(cut_off.count for cut_off in self._cut_off)
        if len(excused) > asked:
            raise ViolationError(
                LOST, f"{len(excused)} messages are nowhere, {' '.join(excused[:9])}; gets took {asked}"
            )
        self.judged_count += 1
        self.in_flight_count += asked > 0
        self.excused_count += bool(excused)
        self.excused_messages += len(excused)

    def _explain(self, visible: dict[str, int]) -> bool:
        """Learn from what is not there; return whether there is more to learn."""
        news = False
        for name, stored in self.stored.items():
            if name in visible:
                continue
            if not stored.may_be_taken():
                kind = LOST if stored.put.has_returned else HALF
                news |= stored.put.rule_out(DONE, kind, f"message {name} of it is nowhere")
            elif stored.put.fates == {DONE}:
                possible = stored.possible_takers()
                if len(possible) == 1:
                    news |= possible[0].rule_out(NEVER, LOST, f"message {name} is not there any more")
        return news

    def _keep_order(self) -> bool:
        """Learn from the order of the log: none is missing in front of one that is there; return whether it is news.

        One of a later life proves nothing: it may have the place of what a loss of power took.
        """
        told = sorted((step for step in self.steps.values() if step.first is not None), key=_first)
        last = {step.life: number for number, step in enumerate(told) if step.fates == {DONE}}
        earlier = [step for number, step in enumerate(told) if number < last.get(step.life, 0)]
        return any(step.rule_out(step.before, HALF, "a step behind it in the log happened") for step in earlier)

    def _why_absent(self, name: str) -> bool:
        stored = self.stored[name]
        return stored.may_be_taken() or stored.put.fates != {DONE}

    def _certain(self) -> list[Step]:
        """Return the steps that happened and whose place is known."""
        placed = {*self.steps.values(), *(stored.put for stored in self.stored.values())}
        return [step for step in placed if step.first is not None and step.fates == {DONE}]

    def _possible_sums(self) -> set[int]:
        """Return how many offsets the steps of unknown fate may have, some of them together."""
        possible = {0}
        for step in self.steps.values():
            if step.first is None and DONE in step.fates:
                possible |= {size + step.put_count for size in possible}
        return possible

    def _check_end(self, end: int) -> None:
        """Check that the log continues where it ended, as far as steps of unknown fate leave that open."""
        certain, possible = self._certain(), self._possible_sums()
        known = max((_first(step) + step.put_count for step in certain), default=0)
        if end < known:
            raise ViolationError(PLACE, f"the log ends at {end}, and a message stands at {known - 1}")
        if self._judged_end is None:
            self._judged_end = end
        else:
            at, gaps = max(known, self._judged_end), self._check_gaps(certain, possible)
            if end < (self.end or 0) or not {end - at, gaps + end - at} <= possible:
                raise ViolationError(PLACE, f"the log ends at {end}, and not at {at} + one of {sorted(possible)[:9]}")
        self.end = self._told_end = end

    def _check_gaps(self, certain: list[Step], possible: set[int]) -> int:
        """Check that steps of unknown fate explain each gap in the log, and all gaps; return how large these are."""
        end, gaps = self._judged_end or 0, 0
        for step in sorted((step for step in certain if _first(step) >= end), key=_first):
            gap = _first(step) - end
            gaps += gap
            if not {gap, gaps} <= possible:
                raise ViolationError(PLACE, f"step {step.key} was told offset {step.first}, and the log ended at {end}")
            end = _first(step) + step.put_count
        return gaps

    def _settle(self, visible: Iterable[str]) -> None:
        """Take what was seen for final, and forget what needs no proof any more."""
        seen = set(visible)
        stored: dict[str, Stored] = {}
        for name, each in self.stored.items():
            each.takers = [taker for taker in each.takers if HELD in taker.fates]
            if name in seen or each.takers or HELD in each.put.fates:
                stored[name] = each
                continue
            is_done = each.put.fates == {DONE}
            self.finished_count += is_done
            self.dropped_count += each.put.has_returned and not is_done and not each.put.keeps
            self.gone[name] = "finished" if is_done else "never there when all was looked at"
        self.stored = self._in_hand.stored = stored
        self.late_lost_count += sum(step.returned_late and step.fates == {NEVER} for step in self.steps.values())
        self.steps = {key: step for key, step in self.steps.items() if HELD in step.fates}
        self._cut_off, self._may_lack = [], False

    # -- Loss of power -----------------------------------------------------------------------------------------------

    def lose_power(self, *, keeps_all: bool) -> None:
        """What did not promise to survive this may be gone; ``keeps_all``: every call of this round promised it."""
        for step in self.steps.values():
            if not keeps_all and not step.keeps and DONE in step.fates:
                step.fates = {*step.fates, step.before}
        if not keeps_all:
            self.end, self._judged_end, self._told_end = None, None, 0
            self._life += 1
            for step in self.steps.values():
                step.life = self._life if HELD in step.fates else step.life  # a later owner may give it its place
        # Until an opening has looked, what was lost before may still lack; that it lacks is noted, perhaps not synced.
        self._may_lack |= not keeps_all or self._lacks


def _first(step: Step) -> int:
    assert step.first is not None
    return step.first

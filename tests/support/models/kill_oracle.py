"""Judges the journals of killed processes (``kill_work.py``) by promises 1 to 3. Pure.

A call that did not return before the kill may have had its whole effect or none of it: a put may be in the log, a get
may have taken what came next, up to as many as it asked for, an acknowledgement may have finished all it named.
Everything else is certain:

* every acknowledged put stands at the offset it was told, once, and offsets have no gap;
* a batch is whole or absent, and batches stand in the order in which they were put;
* takes come in offset order, those that were handed out before first; none is skipped;
* one that was handed out and not released comes alone; what was acknowledged never comes again.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


def check(holds: bool, what: str) -> None:
    """Raise BrokenPromiseError with ``what`` unless ``holds``."""
    if not holds:
        raise BrokenPromiseError(what)


@dataclass
class LogModel:
    """Which batch stands where, from everything that was said about it."""

    counts: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)

    def attempted(self, key: int, count: int) -> None:
        """Take note that batch ``key`` was about to be put."""
        check(key not in self.counts, f"batch {key} was put twice by the test")
        self.counts[key] = count

    def stands(self, key: int, start: int) -> None:
        """Take note that batch ``key`` begins at ``start``."""
        check(key in self.counts, f"a batch {key} that nobody put is at offset {start}")
        known = self.starts.get(key)
        check(known in (None, start), f"batch {key} is at offset {start} and at {known}")
        if known is not None:
            return
        self.starts[key] = start
        for offset in range(start, start + self.counts[key]):
            other = self.owners.setdefault(offset, key)
            check(other == key, f"offset {offset} belongs to batch {key} and to batch {other}")

    def check_whole(self, end: int) -> None:
        """Check order, contiguity and atomicity of a log whose next offset is ``end``."""
        position = 0
        possible: set[int] = {0}  # what batches of unknown fate may add in front of the next known one
        for key, count in sorted(self.counts.items()):
            start = self.starts.get(key)
            if start is None:
                check(key not in self.acknowledged, f"batch {key} was acknowledged and is nowhere")
                possible |= {size + count for size in possible}
                continue
            check(start - position in possible, f"batch {key} is at {start}, not at {position} + one of {possible}")
            position, possible = start + count, {0}
        check(end - position in possible, f"the log ends at {end}, not at {position} + one of {possible}")


@dataclass
class CutOffGet:
    """A ``get`` that did not return: it may have taken what came next, and nothing behind what is still there.

    Attributes
    ----------
    left : int
        How many messages it may have taken, beyond those of which it is known.
    line : list of int
        What surely could be taken, in the order in which it came next.
    anywhere : set of int
        What could be taken too, and nobody knows when.
    taken : set of int
        What it has taken.
    """

    left: int
    line: list[int]
    anywhere: set[int]
    taken: set[int] = field(default_factory=set)

    def came(self, offset: int) -> None:
        """Take note that a message is still there: what came behind it was not taken."""
        self.anywhere.discard(offset)
        if offset in self.line:
            behind = self.line[self.line.index(offset) :]
            check(self.taken.isdisjoint(behind), f"offset {offset} was passed over by a get")
            self.line = self.line[: -len(behind)]

    def explains(self, offset: int) -> bool:
        """Whether it may have taken this one; then it has."""
        if not self.left or (offset not in self.line and offset not in self.anywhere):
            return False
        self.left -= 1
        self.taken.add(offset)
        return True


@dataclass
class TakeModel:
    """What one consumer group has finished, and what it may have."""

    log: LogModel
    floor: int = 0
    finished: set[int] = field(default_factory=set)
    in_flight: set[int] = field(default_factory=set)
    maybe: list[set[int]] = field(default_factory=list)
    gets: list[CutOffGet] = field(default_factory=list)
    pending_get: int = 0
    pending_ack: set[int] = field(default_factory=set)
    pending_release: set[int] = field(default_factory=set)
    handed_out: set[int] = field(default_factory=set)
    counted: set[int] = field(default_factory=set)  # those handed out whose count is above 0 for certain
    delivered_count: int = 0

    def killed(self) -> None:
        """What was in flight is given back; the call that did not return may have had its effect."""
        if self.pending_get:
            self.gets.append(self.cut_off(self.pending_get))
        if self.pending_ack:
            self.maybe.append(self.pending_ack)
        self.counted |= self.in_flight - self.pending_release
        self.in_flight, self.pending_get, self.pending_ack, self.pending_release = set(), 0, set(), set()

    def is_open(self, offset: int) -> bool:
        """Whether ``offset`` is neither finished nor in flight."""
        return offset >= self.floor and offset not in self.finished and offset not in self.in_flight

    def cut_off(self, count: int) -> CutOffGet:
        """Return what a ``get`` of up to ``count`` may have taken: what was handed out before, then the others.

        Calls that were cut off before may have finished as many in front, and so this one may have come further.
        """
        in_front = sum(get.left for get in self.gets) + sum(map(len, self.maybe))
        line, offset = sorted(filter(self.is_open, self.counted))[: count + in_front], self.floor
        while len(line) < count + in_front:
            if self.is_open(offset) and offset not in self.handed_out:
                line.append(offset)
            offset += 1
        return CutOffGet(count, line, set(filter(self.is_open, self.handed_out - self.counted)))

    def next_unknown(self) -> int:
        """Return the first open offset that no batch is known to stand at."""
        offset = self.floor
        while offset in self.log.owners or not self.is_open(offset):
            offset += 1
        return offset

    def take(self, offset: int, key: int, index: int) -> None:
        """Check one delivery: it is what must come next, or an unreturned call explains why it is not."""
        self.log.stands(key, offset - index)
        self.delivered_count += 1
        for get in self.gets:
            get.came(offset)
        for passed in range(self.floor, offset):
            if self.is_open(passed) and (offset not in self.handed_out or passed in self.counted):
                self.explain(passed)
        check(offset >= self.floor and offset not in self.finished, f"offset {offset} came again after its ack")
        check(offset not in self.in_flight, f"offset {offset} was handed out twice at once")
        for group in [group for group in self.maybe if offset in group]:
            half = [other for other in group if other < self.floor or other in self.finished]
            check(not half, f"half of an acknowledgement counted: {sorted(half)} of {sorted(group)}")
            self.maybe.remove(group)

    def explain(self, offset: int) -> None:
        """Accept that an open offset was passed over, where a call that did not return explains it."""
        for group in self.maybe:
            if offset in group:
                self.maybe.remove(group)
                self.finish(group)
                return
        explained = any(get.explains(offset) for get in self.gets)
        check(explained, f"offset {offset} was passed over, and nothing had finished it")
        self.finish({offset})

    def finish(self, offsets: set[int]) -> None:
        """Take note that offsets are done."""
        self.finished |= offsets
        for known in (self.in_flight, self.handed_out, self.counted):
            known.difference_update(offsets)
        while self.floor in self.finished:
            self.finished.remove(self.floor)
            self.floor += 1

    def read(self, line: list[str]) -> None:
        """Take one line of the consumer's journal."""
        kind, fields = line[0], line[1:]
        check(kind != "X", f"a consumer failed: {' '.join(fields)}")
        if kind == "R":
            self.killed()
        elif kind == "g":
            self.pending_get = int(fields[0])
        elif kind == "E":
            self.pending_get = 0
        elif kind == "G":
            self.pending_get = 0
            for name in fields:
                key, index = map(int, name.split(":"))
                start = self.log.starts.get(key)
                offset = self.next_unknown() if start is None else start + index
                self.take(offset, key, index)
                self.finish({offset})
        elif kind == "D":
            places = [int(event.split("=")[0]) for event in fields]
            known = self.counted & set(places)
            check(not known or len(places) == 1, f"{places} came together, though {known} were handed out before")
            for event in fields:
                place, name = event.split("=")
                key, index = map(int, name.split(":"))
                self.take(int(place), key, index)
                self.in_flight.add(int(place))
            self.handed_out |= set(places)
        elif kind == "a":
            self.pending_ack = set(map(int, fields))
        elif kind == "A":
            self.finish(self.pending_ack)
            self.pending_ack = set()
        elif kind == "N":
            self.in_flight -= set(map(int, fields))
            self.counted |= set(map(int, fields))
        elif kind == "f":
            self.pending_release = set(map(int, fields))
        elif kind == "F":
            self.in_flight -= self.pending_release
            self.counted -= self.pending_release  # perhaps
            self.pending_release = set()

    def check_drained(self, end: int) -> None:
        """Check that everything below ``end`` was finished, or may have been by a call that did not return."""
        for offset in range(self.floor, end):
            if offset not in self.finished:
                check(offset not in self.in_flight, f"offset {offset} was never finished")
                self.explain(offset)


def judge(puts: list[list[str]], takes: list[list[str]], end: int) -> tuple[LogModel, TakeModel]:
    """Check all that two journals say of a queue that was drained to ``end``; raises BrokenPromiseError."""
    log = LogModel()
    for line in puts:
        kind, fields = line[0], line[1:]
        check(kind != "X", f"a producer failed: {' '.join(fields)}")
        if kind == "p":
            log.attempted(int(fields[0]), int(fields[1]))
        elif kind == "P":
            log.acknowledged.add(int(fields[0]))
            log.stands(int(fields[0]), int(fields[1]))
    for line in takes:  # where deliveries say it themselves, it need not be guessed
        for event in line[1:] if line[0] == "D" else ():
            place, name = event.split("=")
            key, index = map(int, name.split(":"))
            log.stands(key, int(place) - index)
    model = TakeModel(log)
    for number, line in enumerate(takes):
        try:
            model.read(line)
        except BrokenPromiseError as error:
            around = "\n".join(" ".join(near) for near in takes[max(0, number - 6) : number + 2])
            where = f"line {number + 1} of the consumer's journal, and what came before"
            raise BrokenPromiseError(f"{error}\n{where}:\n{around}") from None
    model.check_drained(end)
    log.check_whole(end)
    return log, model

"""What clients are owed, as their requests and the answers to them say."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.persistence.format.constants import SESSION_SHIFT
from holdfast.queue.options.settings import GROUP_SETTINGS
from holdfast.queue.protocol.messages import (
    AnyReply,
    Commit,
    Done,
    Offsets,
    Prepare,
    Put,
    Receipt,
    Settle,
    Take,
    Taken,
    Verb,
)
from proof.owner_deaths.held import Held

Request = Put | Commit | Prepare | Settle | Take | Verb

GROUPS = ("default", "slow")

CHANGED = {"dedup_window": 300.0, "dead_letter_seconds": 1_209_600.0}
"""Settings that clients change, and their defaults: one of the queue, and one of each group."""

ENDS = ("ack", "reject")
"""Verbs behind which a message never comes again."""


class BrokenPromiseError(AssertionError):
    """The queue has done what it must not."""


def expect(is_kept: bool, broken: str) -> None:  # as assert, which may be left out
    """Raise BrokenPromiseError unless a promise is kept."""
    if not is_kept:
        raise BrokenPromiseError(broken)


@dataclass
class Asked:
    """A request that was sent.

    Attributes
    ----------
    request : Request
        What is asked.
    payloads : list of bytes
        What it puts; no two messages have the same payload.
    offsets : list of int
        The messages that it settles.
    written_at : int or None
        How many operations the disk had seen when the file was whole that has its messages; None: it is not yet.
    held : Held or None
        What it prepares, reserves or decides.
    settings : dict of str to float
        What it changes.
    step : "prepare", "reserve", "decide", "configure" or empty
        Which of these it does.
    is_again : bool
        Whether an owner has died that it was sent to.
    """

    request: Request
    payloads: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    written_at: int | None = None
    held: Held | None = None
    settings: dict[str, float] = field(default_factory=dict)
    step: str = ""
    is_again: bool = False

    @property
    def is_staged(self) -> bool:
        """Whether its messages are in a file."""
        return isinstance(self.request, Put | Commit | Prepare) and self.request.is_staged

    @property
    def payloads_sent(self) -> list[bytes]:
        """What goes with the request itself."""
        return [] if self.is_staged else self.payloads

    @property
    def group(self) -> str:
        """The group that it is about; empty: of none."""
        return "" if isinstance(self.request, Put) else self.request.group

    def given_back_in(self, group: str) -> list[int]:
        """Return the messages that others of a group may take as soon as it is done, or was cut off by a kill."""
        if self.held is not None:
            gives_back = self.step == "prepare" or (self.step == "decide" and not self.held.is_to_commit)
            return self.held.offsets if gives_back and self.held.group == group else []
        gives_back = isinstance(self.request, Settle) and self.request.verb not in ENDS
        return self.offsets if gives_back and self.group == group else []

    def sets(self, group: str, name: str) -> bool:
        """Whether it changes a setting; ``group`` is empty for those of the queue."""
        return name in self.settings and group == place_of(name, self.group)

    @property
    def receipts(self) -> list[Receipt]:
        """The deliveries that it prepares to finish."""
        assert isinstance(self.request, Prepare)
        return self.request.receipts


def place_of(name: str, group: str) -> str:
    """Return the group that a setting belongs to; empty: the queue."""
    return group if name in GROUP_SETTINGS else ""


def given_back_in(group: str, waiting: Iterable[Asked | None]) -> set[int]:
    """Return the messages of a group that requests without an answer may have given back."""
    return {offset for each in waiting if each is not None for offset in each.given_back_in(group)}


@dataclass
class Books:
    """Of one queue.

    Attributes
    ----------
    offset_of : dict of bytes to int
        Of each message that was seen: in an answer to its put, or by its taker.
    put : set of bytes
        What was answered: it must not be lost.
    ended : dict of str to set of int
        By group: messages that were finished, or are dead letters.
    in_hand : dict of str to dict of int to int
        By group: the delivery number of each message in hand.
    refused : set of bytes
        What a full queue refused: it must not be there.
    unanswered : list of Asked
        Of clients that have died: each was done, or not.
    held : dict of str to Held
        By id: what is prepared or reserved, as answers say, and not decided.
    committed : list of Held
        What was decided by requests without an answer: what it puts has to be there, at any offset.
    settings : dict of (str, str) to float
        By group, which is empty for those of the queue, and name: as the last answered change has it.
    """

    offset_of: dict[bytes, int] = field(default_factory=dict)
    put: set[bytes] = field(default_factory=set)
    ended: dict[str, set[int]] = field(default_factory=lambda: {group: set() for group in GROUPS})
    in_hand: dict[str, dict[int, int]] = field(default_factory=lambda: {group: {} for group in GROUPS})
    refused: set[bytes] = field(default_factory=set)
    unanswered: list[Asked] = field(default_factory=list)
    held: dict[str, Held] = field(default_factory=dict)
    committed: list[Held] = field(default_factory=list)
    settings: dict[tuple[str, str], float] = field(default_factory=dict)

    def copy(self) -> Books:
        """Return books that go on by themselves."""
        return deepcopy(self)

    # -- Answers -----------------------------------------------------------------------------------------------------

    def answered(
        self, asked: Asked, reply: AnyReply, payloads: Collection[bytes], waiting: Iterable[Asked | None]
    ) -> None:
        """Note an answer, and judge it; ``waiting`` are requests without an answer yet, which may have been done."""
        request = asked.request
        if isinstance(request, Put | Commit):
            assert isinstance(reply, Offsets)
            expect(reply.count == len(asked.payloads), f"{len(asked.payloads)} messages were put, not {reply.count}")
            for offset, payload in enumerate(asked.payloads, reply.first):
                self._seen(offset, payload)
                self.put.add(payload)
            if isinstance(request, Commit):
                self._settled(request.group, request.receipts, is_over=True)
        elif isinstance(request, Settle):
            assert isinstance(reply, Done)
            self._settled(request.group, request.receipts, is_over=request.verb in ENDS)
        elif isinstance(request, Prepare):
            assert isinstance(reply, Done)
            self._prepared(asked)
        elif isinstance(request, Verb):
            assert isinstance(reply, Done)
            if asked.step == "configure":
                for name, value in asked.settings.items():
                    self.settings[place_of(name, request.group), name] = value
            else:
                self._held_answered(asked, reply.result, waiting)
        else:
            assert isinstance(reply, Taken)
            self.finished(request)
            given_back = given_back_in(request.group, [*waiting, *self.unanswered])
            in_hand, held = self.in_hand[request.group], self.held_in(request.group)
            for (offset, *_), payload in zip(reply.messages, payloads, strict=True):
                self._seen(offset, payload)
                is_free = in_hand.get(offset) in (None, request.number) or offset in given_back
                expect(is_free, f"offset {offset} is in two hands")
                expect(offset not in held or offset in given_back, f"offset {offset} comes, and is held in doubt")
                expect(offset not in self.ended[request.group], f"offset {offset} comes again, and was finished")
                in_hand[offset] = request.number

    def found_full(self, asked: Asked) -> None:
        """Note that a full queue has refused a request: nothing was done, and nothing will be."""
        there = [payload for payload in asked.payloads if payload in self.offset_of]
        expect(not there, "what is there already was refused")
        self.refused.update(asked.payloads)

    def judge_settings(self, found: Mapping[tuple[str, str], float]) -> None:
        """Judge what is stored once no client lives: what was answered last, or a request without an answer says."""
        for (group, name), value in found.items():
            allowed = {self.settings.get((group, name), CHANGED[name])}
            allowed |= {each.settings[name] for each in self.unanswered if each.sets(group, name)}
            expect(value in allowed, f"{name} of {group or 'the queue'} is {value}, and not one of {sorted(allowed)}")

    # -- What is in doubt --------------------------------------------------------------------------------------------

    def held_in(self, group: str) -> set[int]:
        """Return the messages of a group that are held in doubt."""
        return {offset for each in self.held.values() if each.group == group for offset in each.offsets}

    def _prepared(self, asked: Asked) -> None:
        held = asked.held
        assert held is not None
        in_hand = self.in_hand[held.group]
        taken = [at for number, at in asked.receipts if in_hand.pop(at, None) != number]
        expect(not taken, f"{held.id} is prepared, and others have what it finishes: {taken}")
        self.held[held.id] = held

    def _held_answered(self, asked: Asked, result: dict[str, Any], waiting: Iterable[Asked | None]) -> None:
        held = asked.held
        assert held is not None
        if asked.step == "decide":
            self.decided(held, result)
        elif result:
            expect(result["id"].startswith(held.id), f"{result['id']} was reserved instead of {held.id}")
            given_back = given_back_in(held.group, [*waiting, *self.unanswered])
            self._reserved(replace(held, id=result["id"]), result["runs"], given_back)

    def _reserved(self, held: Held, runs: Iterable[tuple[int, int, int, int]], given_back: Container[int]) -> None:
        held.offsets = [offset for first, count, *_ in runs for offset in range(first, first + count)]
        others = {*self.in_hand[held.group], *self.held_in(held.group)}
        doubled = [offset for offset in held.offsets if offset in others and offset not in given_back]
        expect(not doubled, f"{doubled} are reserved, and in another hand")
        ended = [offset for offset in held.offsets if offset in self.ended[held.group]]
        expect(not ended, f"{ended} are reserved, and were finished")
        self.held[held.id] = held

    def decided(self, held: Held, result: dict[str, Any]) -> None:
        """Note what became of it; another one may have decided it before."""
        self.held.pop(held.id, None)
        if not held.is_to_commit:
            self.refused.update(held.payloads)
            return
        self.ended[held.group].update(held.offsets)
        if held.payloads:
            expect(result["count"] == len(held.payloads), f"{held.id} has put {result['count']}")
            for offset, payload in enumerate(held.payloads, result["first"]):
                self._seen(offset, payload)
                self.put.add(payload)

    def was_aborted(self, asked: Asked) -> None:
        """Note that the successor of a killed owner has aborted what was about to be prepared."""
        assert asked.held is not None
        self.refused.update(asked.payloads)
        self._settled(asked.held.group, asked.receipts, is_over=False)

    def judge_doubts(self, found: Mapping[str, tuple[str, list[int]]], unanswered: Iterable[Asked]) -> list[Held]:
        """Judge what is in doubt once all clients are dead; return it, to be decided.

        Parameters
        ----------
        found : mapping of str to (str, list of int)
            By id, the group and the messages that are held.
        unanswered : iterable of Asked
            Of clients that have not died before.
        """
        asks = [*self.unanswered, *unanswered]
        self.unanswered = [each for each in asks if each.held is None]
        doubts = [each for each in asks if each.held is not None]
        begun = [each.held for each in doubts if each.held is not None and each.step in ("prepare", "reserve")]
        deciding = {each.held.id for each in doubts if each.held is not None and each.step == "decide"}
        for held in list(self.held.values()):
            if held.id not in found:
                expect(held.id in deciding, f"{held.id} is in doubt nowhere")
                self._decided_unseen(held)
        for name, (group, offsets) in found.items():
            if name not in self.held:
                made = next(
                    (each for each in begun if name == each.id or (each.is_reserved and name.startswith(each.id))), None
                )
                expect(made is not None, f"{name} is in doubt, and was decided, or is not known")
                assert made is not None
                self.held[name] = replace(made, id=name, offsets=offsets if made.is_reserved else made.offsets)
            known = self.held[name]
            right = not known.offsets or (known.group, sorted(known.offsets)) == (group, offsets)
            expect(right, f"{name} holds {offsets} of {group}, not {known.offsets} of {known.group}")
        for each in begun:
            if each.id not in self.held:
                self.refused.update(each.payloads)
        return list(self.held.values())

    def _decided_unseen(self, held: Held) -> None:
        del self.held[held.id]
        if held.is_to_commit:
            self.ended[held.group].update(held.offsets)
            self.committed.append(held)
        else:
            self.refused.update(held.payloads)

    # -- Takes and settling ------------------------------------------------------------------------------------------

    def finished(self, take: Take) -> None:
        """Note what is acknowledged with a take that was answered, by messages or by the word that there are none."""
        self._settled(take.group, take.finished, is_over=True)

    def _seen(self, offset: int, payload: bytes) -> None:
        expect(payload not in self.refused, f"{payload[:20]!r} was refused, and is there as offset {offset}")
        known = self.offset_of.setdefault(payload, offset)
        expect(known == offset, f"{payload[:20]!r} has offset {known}, and now {offset}")
        others = [each for each, at in self.offset_of.items() if at == offset and each != payload]
        expect(not others, f"offset {offset} was given twice")

    def _settled(self, group: str, receipts: Iterable[Receipt], *, is_over: bool) -> None:
        for number, offset in receipts:
            if self.in_hand[group].get(offset) == number:  # else it was given back before, and another has it now
                del self.in_hand[group][offset]
            if is_over:
                self.ended[group].add(offset)

    def died(self, session: int, asked: Asked | None) -> None:
        """Note that a client has died: what it has in hand comes again, and its last request was done, or not."""
        for group, in_hand in self.in_hand.items():
            self.in_hand[group] = {at: number for at, number in in_hand.items() if number >> SESSION_SHIFT != session}
        if asked is not None:
            self.unanswered.append(asked)

    # -- The end -----------------------------------------------------------------------------------------------------

    def judge(self, group: str, left: Mapping[int, bytes], unanswered: Iterable[Asked] = ()) -> None:
        """Judge all that is left for a group when nothing is in hand any more; ``unanswered`` were sent, too."""
        unanswered = [*self.unanswered, *unanswered]
        settled = {offset for each in unanswered if each.group == group for offset in each.offsets}
        for offset, payload in left.items():
            self._seen(offset, payload)
            expect(offset not in self.ended[group], f"offset {offset} comes again, and was finished")
        for payload in self.put:
            offset = self.offset_of[payload]
            may_be_gone = offset in self.ended[group] or offset in settled
            expect(may_be_gone or offset in left, f"{payload[:20]!r} was acknowledged as offset {offset}, and is lost")
        for held in self.committed:
            lost = self._missing(held.payloads, group)
            expect(not lost, f"{held.id} was committed, and {len(lost)} of its {len(held.payloads)} puts are not there")
        known = self.put | {payload for each in unanswered for payload in each.payloads}
        known |= {payload for held in self.committed for payload in held.payloads}
        expect(set(left.values()) <= known, "a message comes that was never put")
        for each in unanswered:
            others = {offset for other in unanswered if other is not each for offset in other.offsets}
            self._judge_whole(each, group, left, others | self.ended[group])

    def _missing(self, payloads: Sequence[bytes], group: str) -> list[bytes]:
        """Return which messages of a batch are not there; one that was reserved may be finished, and was never seen."""
        firsts = {
            self.offset_of[payload] - index for index, payload in enumerate(payloads) if payload in self.offset_of
        }
        unseen = self.ended[group].difference(self.offset_of.values())
        missing = [(index, payload) for index, payload in enumerate(payloads) if payload not in self.offset_of]
        if not firsts:
            return [] if len(missing) <= len(unseen) else list(payloads)
        return [payload for index, payload in missing if not {first + index for first in firsts} <= unseen]

    def _judge_whole(
        self, asked: Asked, group: str, left: Mapping[int, bytes], settled_by_others: Container[int]
    ) -> None:
        """A request was done, or not: never a part of it."""
        there = {payload for payload in asked.payloads if payload in self.offset_of}  # or were there, and taken
        expect(not there or not self._missing(asked.payloads, group), f"half of a batch is there: {sorted(there)}")
        if not isinstance(asked.request, Commit) or asked.group != group:
            return
        telling = [offset for offset in asked.offsets if offset not in settled_by_others]
        given_back = [offset for offset in telling if offset in left]
        expect(not given_back or given_back == telling, "half of what a commit acknowledges is there")
        if asked.payloads and telling:
            expect(
                bool(there) is not bool(given_back), "a commit has put, and not acknowledged, or the other way round"
            )

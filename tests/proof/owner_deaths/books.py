"""What clients are owed, as their requests and the answers to them say."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from holdfast.persistence.format.constants import SESSION_SHIFT
from holdfast.queue.protocol.messages import AnyReply, Commit, Done, Offsets, Put, Receipt, Settle, Take, Taken

Request = Put | Commit | Settle | Take

GROUPS = ("default", "slow")

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
    """

    request: Request
    payloads: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    written_at: int | None = None

    @property
    def is_staged(self) -> bool:
        """Whether its messages are in a file."""
        return isinstance(self.request, Put | Commit) and self.request.is_staged

    @property
    def payloads_sent(self) -> list[bytes]:
        """What goes with the request itself."""
        return [] if self.is_staged else self.payloads

    @property
    def group(self) -> str:
        """The group that it is about; empty: of none."""
        return "" if isinstance(self.request, Put) else self.request.group

    def gives_back_in(self, group: str) -> bool:
        """Whether others of a group may take its messages as soon as it is done."""
        return isinstance(self.request, Settle) and self.request.verb not in ENDS and self.group == group


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
    """

    offset_of: dict[bytes, int] = field(default_factory=dict)
    put: set[bytes] = field(default_factory=set)
    ended: dict[str, set[int]] = field(default_factory=lambda: {group: set() for group in GROUPS})
    in_hand: dict[str, dict[int, int]] = field(default_factory=lambda: {group: {} for group in GROUPS})
    refused: set[bytes] = field(default_factory=set)
    unanswered: list[Asked] = field(default_factory=list)

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
        else:
            assert isinstance(reply, Taken)
            self.finished(request)
            given_back = {at for each in waiting if each and each.gives_back_in(request.group) for at in each.offsets}
            in_hand = self.in_hand[request.group]
            for (offset, *_), payload in zip(reply.messages, payloads, strict=True):
                self._seen(offset, payload)
                is_free = in_hand.get(offset) in (None, request.number) or offset in given_back
                expect(is_free, f"offset {offset} is in two hands")
                expect(offset not in self.ended[request.group], f"offset {offset} comes again, and was finished")
                in_hand[offset] = request.number

    def found_full(self, asked: Asked) -> None:
        """Note that a full queue has refused a request: nothing was done, and nothing will be."""
        there = [payload for payload in asked.payloads if payload in self.offset_of]
        expect(not there, "what is there already was refused")
        self.refused.update(asked.payloads)

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
        known = self.put | {payload for each in unanswered for payload in each.payloads}
        expect(set(left.values()) <= known, "a message comes that was never put")
        for each in unanswered:
            others = {offset for other in unanswered if other is not each for offset in other.offsets}
            self._judge_whole(each, group, left, others | self.ended[group])

    def _judge_whole(
        self, asked: Asked, group: str, left: Mapping[int, bytes], settled_by_others: Container[int]
    ) -> None:
        """A request was done, or not: never a part of it."""
        there = {payload for payload in asked.payloads if payload in self.offset_of}  # or were there, and taken
        expect(not there or len(there) == len(asked.payloads), f"half of a batch is there: {sorted(there)}")
        if not isinstance(asked.request, Commit) or asked.group != group:
            return
        telling = [offset for offset in asked.offsets if offset not in settled_by_others]
        given_back = [offset for offset in telling if offset in left]
        expect(not given_back or given_back == telling, "half of what a commit acknowledges is there")
        if asked.payloads and telling:
            expect(
                bool(there) is not bool(given_back), "a commit has put, and not acknowledged, or the other way round"
            )

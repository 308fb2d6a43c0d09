"""What a life takes, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence

from proof.crash_states.asked import AskingGroup
from proof.crash_states.lives.books import PROGRESS, A
from proof.crash_states.lives.putting import HALF_AN_HOUR_NS, Putting


class Taking(Putting):
    """Takes for the first group."""

    def may_come(self) -> list[int]:
        """Return which messages the next one is one of; nothing if none has to come."""
        group = self.groups[A] or AskingGroup()
        allowed, is_sure = self._may_come(group, len(self.history.payloads[A]), self.held_offsets)
        return allowed if is_sure else []

    def _may_come(self, group: AskingGroup, end: int, held: frozenset[int]) -> tuple[list[int], bool]:
        wishes = self.history.wishes_of(A, is_filtered=group.is_filtered)
        return group.may_come(wishes, end, self.now_ns, held)

    def get(self, count: int = 1) -> None:
        """Take and acknowledge."""
        group = self._group()
        payloads = [self.queue.get(block=False)] if count == 1 else self.queue.get_many(count, timeout=0)
        offsets = self._offsets(group, payloads, len(self.history.payloads[A]), self.held_offsets)
        if self.way == "client":  # the owner hands them out, and then finishes them
            group.deliver(offsets)
            self._happened({PROGRESS: group.state()})
        group.in_flight.difference_update(offsets)
        group.finish(offsets)
        self._progressed(f"get({count})", is_commit=True)

    def _offsets(self, group: AskingGroup, payloads: Sequence[bytes], end: int, held: frozenset[int]) -> list[int]:
        """Return the offsets of what was taken, out of what was ready; no matter that empty ones are alike."""
        offsets: list[int] = []
        for payload in payloads:
            allowed, _ = self._may_come(group, end, held)
            found = [offset for offset in allowed if self.history.payloads[A][offset] == payload]
            assert found, f"{payload[:40]!r} came, which is none of {allowed}"
            offsets.append(found[0])
            group.hand_out(found[:1])
            group.in_flight.add(found[0])
        return offsets

    def receive(self) -> None:
        """Take a message and keep it in hand."""
        group, end = self._group(), len(self.history.payloads[A])
        delivery = self.queue.receive(timeout=0)
        (offset,) = self._offsets(group, [delivery.payload], end, self.held_offsets)
        assert [delivery.delivery_count] == group.deliver([offset])
        self.in_hand[offset] = delivery
        self._progressed("receive")

    def purge(self) -> None:
        """Finish all that is ready, unseen; of a queue without wishes that is known."""
        group = self._group()
        ready = sorted(set(group.ready(len(self.history.payloads[A]), self.now_ns)) - self.held_offsets)
        purged_count = self.queue.purge()
        assert purged_count == len(ready), f"{purged_count} messages are purged, of {ready}"
        group.hand_out(ready)
        group.finish(ready)
        self._progressed(f"purge({ready})", is_commit=True)

    def ack(self) -> None:
        """Acknowledge the oldest message in hand."""
        offset = min(self.in_hand)
        self.in_hand.pop(offset).ack()
        self._group().finish([offset])
        self._progressed(f"ack({offset})", is_commit=True)

    def nack(self) -> None:
        """Give the oldest message in hand back, to come again at once."""
        offset = min(self.in_hand)
        self.in_hand.pop(offset).nack(delay=0)
        self._group().give_back([offset])
        self._progressed(f"nack({offset})")

    def nack_later(self) -> None:
        """Give the oldest message in hand back, to come again later."""
        offset = min(self.in_hand)
        self.in_hand.pop(offset).nack(delay=HALF_AN_HOUR_NS / 10**9)
        self._group().give_back([offset], self.now_ns + HALF_AN_HOUR_NS)
        self._progressed(f"nack_later({offset})")

    def release(self) -> None:
        """Give the oldest message in hand back untried."""
        offset = min(self.in_hand)
        self.in_hand.pop(offset).release()
        self._group().release([offset])
        self._progressed(f"release({offset})")

    def reject(self) -> None:
        """Make the oldest message in hand a dead letter."""
        offset = min(self.in_hand)
        self.in_hand.pop(offset).reject("no use")
        self._group().bury([offset])
        self._progressed(f"reject({offset})", is_commit=True)

    def retry(self) -> None:
        """Have all dead letters come again, before the others: reading has come by them."""
        group = self._group()
        self.queue.peek(sum(map(len, self.history.payloads.values())))
        offsets = sorted(group.dead)
        assert self.queue.dead.retry(offsets) == len(offsets)
        for offset in offsets:
            group.retry_in_line(offset, self.history.wishes[A], len(self.history.payloads[A]), self.now_ns)
        self._progressed(f"retry({offsets})", is_commit=True)

    def _progressed(self, call: str, *, is_commit: bool = False) -> None:
        self._happened({PROGRESS: self._group().state()})
        if is_commit:
            self._committed(PROGRESS)
        self._return(call)

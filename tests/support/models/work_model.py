"""A work queue with one group as lists and dicts: what every random run of a real one is compared with.

It knows no files and no clock of its own: ``now_ns`` and ``monotonic`` are set from outside. What becomes of a message
goes by the table of ``message_states.py`` and nothing else. Where the real queue may choose when to notice
something (that a time to live is over, that a process died at the last delivery) the message is ``over`` here: nobody
is given it, and :meth:`WorkModel.notice` takes over what the real one has made of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.queue.inspect.browse import MessageState
from support.models.message_states import Event, next_state

NS = 1_000_000_000
READY, LEASED, DELAYED, DEAD = MessageState.READY, MessageState.LEASED, MessageState.DELAYED, MessageState.DEAD

LOG, ASIDE, EITHER = "log", "aside", "log or aside"
"""Where a ready message waits: in its order, surely out of it, or as far as the real queue has read."""


@dataclass
class ModelMessage:
    """One message, from its put to its end."""

    offset: int
    payload: bytes
    until_ns: int = 0
    expires_ns: int = 0
    priority: int = 0
    order_key: str | None = None
    state: MessageState = READY
    place: str = LOG
    delivery_count: int = 0
    first_failure_s: int = 0
    was_retried: bool = False
    is_wanted: bool = False  # retried after its time to live was over
    is_open: bool = False
    holder: int | None = None
    expires_at: float = 0.0
    lease_seconds: float = 0.0
    reason: str = ""

    def happens(self, event: Event) -> None:
        """Go where the table says."""
        self.state = next_state(self.state, event)


@dataclass
class ModelTransaction:
    """What one has done so far; nothing of it is in the queue."""

    deadline: float
    puts: list[ModelMessage] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    taken_over: list[int] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)


class WorkModel:
    """One queue, one group.

    Parameters
    ----------
    max_deliveries, backoff, lease_seconds, keeps_expired, dedup_seconds
        As the real queue is opened; ``backoff`` without jitter.

    Attributes
    ----------
    live : dict of int to ModelMessage
        Those that are not done, by offset; dead letters too, and those of which it is not known that they were dropped.
    dropped_count : int
        How many of these were.
    """

    def __init__(
        self,
        *,
        now_ns: int,
        monotonic: float,
        max_deliveries: int | None = 5,
        backoff: Sequence[float] = (),
        lease_seconds: float = 30,
        keeps_expired: bool = False,
        dedup_seconds: float = 300,
    ) -> None:
        self.now_ns, self.monotonic = now_ns, monotonic
        self.max_deliveries, self.backoff = max_deliveries, backoff
        self.lease_seconds, self.keeps_expired = lease_seconds, keeps_expired
        self.dedup_seconds = dedup_seconds
        self.live: dict[int, ModelMessage] = {}
        self.end = 0
        self.dropped_count = 0
        self.turns: dict[str, int] = {}
        self.ids: dict[str, tuple[int, int]] = {}
        self.transactions: dict[int, ModelTransaction] = {}
        self.paused_until_ns: float = 0

    # -- Putting -----------------------------------------------------------------------------------------------------

    def message(
        self,
        payload: bytes,
        *,
        delay: float = 0,
        not_before: float | None = None,
        priority: int = 0,
        ttl: float | None = None,
        order_key: str | None = None,
    ) -> ModelMessage:
        """Return what a put asks for; its times count from now."""
        until_ns = self.now_ns + round(delay * NS) if delay else 0
        if not_before is not None:
            until_ns = round(not_before * NS)
        expires_ns = self.now_ns + round(ttl * NS) if ttl is not None else 0
        return ModelMessage(-1, payload, until_ns, expires_ns, priority, order_key)

    def append(self, messages: Iterable[ModelMessage]) -> range:
        """Put them into the log; return their offsets."""
        first = self.end
        for each in messages:
            each.offset = self.end
            each.state = DELAYED if each.until_ns > self.now_ns else READY
            each.place = EITHER if each.state is DELAYED or each.order_key else LOG
            self.live[self.end] = each
            self.end += 1
        return range(first, self.end)

    def put_once(self, dedup_id: str, message: ModelMessage) -> int:
        """Put a message unless its id was put within the window; return whose offset it is."""
        offset, put_ns = self.ids.get(dedup_id, (-1, -math.inf))
        if self.now_ns - put_ns < self.dedup_seconds * NS:
            return offset
        self.ids[dedup_id] = (self.end, self.now_ns)
        return self.append([message]).start

    # -- What comes next ---------------------------------------------------------------------------------------------

    def is_doomed(self, message: ModelMessage) -> bool:
        """Whether a process died at the last delivery, which nobody has noticed yet."""
        maximum = self.max_deliveries
        return message.state is READY and maximum is not None and message.delivery_count >= maximum

    def is_expired(self, message: ModelMessage) -> bool:
        """Whether a message's time to live is over, and nobody has noticed yet."""
        if message.state not in (READY, DELAYED) or not 0 < message.expires_ns <= self.now_ns:
            return False
        return message.delivery_count > 0 or not message.is_wanted

    def is_over(self, message: ModelMessage) -> bool:
        """Whether a message is not handed out any more."""
        return self.is_doomed(message) or self.is_expired(message)

    @property
    def is_paused(self) -> bool:
        """Whether nobody is given anything."""
        return self.now_ns < self.paused_until_ns

    def _turn_candidates(self, key: str) -> list[ModelMessage]:
        """Return who may have the turn of a key: one message, or with retried dead letters several."""
        several = [each for each in self.live.values() if each.order_key == key and each.state is not DEAD]
        several = [each for each in several if not self.is_over(each)]
        holding = [each for each in several if each.offset == self.turns.get(key) or each.state is LEASED]
        first = [each for each in several if not each.was_retried][:1]
        return holding or first + [each for each in several if each.was_retried]

    def takeable(self) -> list[ModelMessage]:
        """Return the messages that may be handed out now, in the order of the log."""
        if self.is_paused:
            return []
        ready = [each for each in self.live.values() if each.state is READY and not self.is_over(each)]
        keys = {each.order_key for each in ready if each.order_key is not None}
        in_turn = {each.offset for key in keys for each in self._turn_candidates(key)}
        return [each for each in ready if each.order_key is None or each.offset in in_turn]

    def may_come(self) -> set[int]:
        """Return the offsets of which the next message is one; exactly one where the order is promised."""
        ready = self.takeable()
        top = max((each.priority for each in ready), default=0)
        by_place: dict[str, list[int]] = {LOG: [], ASIDE: [], EITHER: []}
        for each in ready:
            if each.priority == top:
                by_place[each.place].append(each.offset)
        if top:
            return {min(offset for offsets in by_place.values() for offset in offsets)}
        if by_place[ASIDE]:
            first = by_place[ASIDE][0]
            return {first, *(offset for offset in by_place[EITHER] if offset < first)}
        return {*by_place[LOG][:1], *by_place[EITHER]}

    def must_come(self) -> bool:
        """Whether some message has to come: there are some, and no key waits for one that is delayed."""
        for each in self.takeable():
            if each.order_key is None or all(other.state is READY for other in self._turn_candidates(each.order_key)):
                return True
        return False

    # -- Taking ------------------------------------------------------------------------------------------------------

    def get(self, offset: int) -> None:
        """Take a message and finish it."""
        assert offset in self.may_come(), f"{offset} came, not one of {sorted(self.may_come())}"
        self._finish(offset, Event.GET)

    def receive(self, offset: int, lease_seconds: float | None = None, holder: int | None = None) -> ModelMessage:
        """Take a message and lease it."""
        assert offset in self.may_come(), f"{offset} came, not one of {sorted(self.may_come())}"
        message = self.live[offset]
        message.happens(Event.RECEIVE)
        message.delivery_count += 1
        message.holder, message.is_open = holder, False
        self.extend(offset, self.lease_seconds if lease_seconds is None else lease_seconds)
        if message.order_key is not None:
            self.turns[message.order_key] = offset
        return message

    def extend(self, offset: int, seconds: float | None) -> None:
        """Lease it for so long from now."""
        message = self.live[offset]
        message.lease_seconds = message.lease_seconds if seconds is None else seconds
        message.expires_at = self.monotonic + message.lease_seconds

    # -- Settling ----------------------------------------------------------------------------------------------------

    def _leave_key(self, message: ModelMessage) -> None:
        if message.order_key is not None and self.turns.get(message.order_key) == message.offset:
            del self.turns[message.order_key]

    def _finish(self, offset: int, event: Event) -> None:
        message = self.live.pop(offset)
        message.happens(event)
        self._leave_key(message)

    def _bury(self, message: ModelMessage, event: Event, reason: str) -> None:
        message.happens(event)
        message.reason = reason
        self._leave_key(message)

    def ack(self, offset: int) -> None:
        """Finish a message in hand."""
        self._finish(offset, Event.ACK)

    def fail(
        self, offset: int, delay: float | None = None, reason: str = "max_deliveries", *, runs_out: bool = False
    ) -> None:
        """Note that a delivery has failed; None: it waits as the back-off says."""
        message = self.live[offset]
        message.holder, message.place = None, ASIDE
        message.first_failure_s = message.first_failure_s or self.now_ns // NS
        if self.max_deliveries is not None and message.delivery_count >= self.max_deliveries:
            self._bury(message, Event.GIVE_UP, reason)
            return
        if delay is None:
            delay = self.backoff[min(message.delivery_count, len(self.backoff)) - 1] if self.backoff else 0
        message.until_ns = self.now_ns + round(delay * NS) if delay else 0
        at_once = Event.RUNS_OUT if runs_out else Event.NACK_AT_ONCE
        message.happens(Event.NACK_LATER if delay else at_once)

    def release(self, offset: int) -> None:
        """Give a message back as if it had not been handed out."""
        message = self.live[offset]
        message.happens(Event.RELEASE)
        message.delivery_count -= 1
        message.holder, message.place = None, ASIDE

    def reject(self, offset: int) -> None:
        """Make a message in hand a dead letter."""
        message = self.live[offset]
        message.first_failure_s = message.first_failure_s or self.now_ns // NS
        self._bury(message, Event.REJECT, "rejected")

    # -- Dead letters ------------------------------------------------------------------------------------------------

    def retry(self, offset: int) -> None:
        """Hand a dead letter out again, as if it never had been; behind whoever has the turn of its key."""
        message = self.live[offset]
        message.happens(Event.RETRY)
        message.is_wanted = 0 < message.expires_ns <= self.now_ns
        message.until_ns, message.delivery_count, message.first_failure_s = 0, 0, 0
        message.was_retried, message.place, message.reason = True, EITHER, ""

    def discard(self, offset: int) -> None:
        """Finish a dead letter."""
        self._finish(offset, Event.DISCARD)

    def notice(self, dead: Mapping[int, str], newly_dropped_count: int) -> None:
        """Take over what the real queue has made of messages that are over; refuse anything else."""
        known = {offset for offset, each in self.live.items() if each.state is DEAD}
        assert known <= dead.keys(), f"no dead letters any more: {sorted(known - dead.keys())}"
        for offset in sorted(dead.keys() - known):
            message = self.live[offset]
            if self.is_doomed(message):
                self._bury(message, Event.GIVE_UP, "max_deliveries")
            else:
                assert self.keeps_expired, f"{offset} is a dead letter: {dead[offset]}"
                assert self.is_expired(message), f"{offset} is a dead letter: {dead[offset]}"
                self._bury(message, Event.EXPIRE_DEAD, "expired")
        for offset, reason in dead.items():
            assert reason == self.live[offset].reason, f"{offset}: {reason}, not {self.live[offset].reason}"
        droppable = [each for each in self.live.values() if self.is_expired(each) and not self.is_doomed(each)]
        self.dropped_count += newly_dropped_count
        assert self.dropped_count <= (0 if self.keeps_expired else len(droppable)), "more were dropped than may be"
        if self.dropped_count == len(droppable):  # else nobody says which
            self.dropped_count = 0
            for message in droppable:
                if not self.keeps_expired:
                    self._finish(message.offset, Event.EXPIRE_DROP)

    # -- Transactions ------------------------------------------------------------------------------------------------

    def commit(self, number: int) -> range:
        """Make a transaction happen; return the offsets of its puts. What it leaves over has not failed."""
        transaction = self.transactions.pop(number)
        offsets = self.append(transaction.puts)
        for offset in transaction.acked:
            self.ack(offset)
        for offset in transaction.received:
            if offset not in transaction.acked:
                self.release(offset)
        return offsets

    def abort(self, number: int, delay: float | None = 0, reason: str = "max_deliveries") -> None:
        """Forget a transaction: what it has received failed, what it took over is its receiver's, leased anew."""
        transaction = self.transactions.pop(number)
        for offset in transaction.taken_over:
            self.live[offset].holder = None
            self.extend(offset, None)
        for offset in transaction.received:
            self.fail(offset, delay, reason)

    # -- Time and endings --------------------------------------------------------------------------------------------

    def pass_time(self, now_ns: int, monotonic: float) -> list[int]:
        """Let time pass; return the transactions that it has ended."""
        self.now_ns, self.monotonic = now_ns, monotonic
        ended = [number for number, each in self.transactions.items() if each.deadline <= monotonic]
        for number in ended:
            self.abort(number)
        for message in list(self.live.values()):
            if message.state is DELAYED and message.until_ns <= now_ns:
                message.happens(Event.BECOMES_DUE)
            elif message.state is LEASED and message.expires_at <= monotonic:
                if message.is_open or message.holder is not None:
                    message.expires_at = monotonic + message.lease_seconds
                else:
                    self.fail(message.offset, 0, "lease_expired", runs_out=True)
        return ended

    def reopen(self, *, is_clean: bool) -> None:
        """Close in order, which gives back what is in hand; or die, which the next owner counts."""
        self.transactions.clear()
        self.turns.clear()
        for message in self.live.values():
            if message.state is LEASED and is_clean:
                self.release(message.offset)
            elif message.state is LEASED:
                message.happens(Event.RUNS_OUT)
            message.holder, message.was_retried = None, False
            is_apart = message.state is DELAYED or message.delivery_count or message.order_key
            message.place = EITHER if is_apart else LOG

    # -- Looking -----------------------------------------------------------------------------------------------------

    def in_state(self, state: MessageState) -> list[ModelMessage]:
        """Return what ``browse`` shows: a message whose time to live is over stands nowhere."""
        return [each for each in self.live.values() if each.state is state and not self.is_expired(each)]

    @property
    def depth(self) -> int:
        """Messages that are neither done nor dead letters."""
        return sum(each.state is not DEAD for each in self.live.values()) - self.dropped_count

"""Says from journals whether any promise of a shared queue was broken; knows nothing of how the queue works.

What is judged: the page docs/processes.md promises it. A message that was put is there once, at the offset that was
told. What was finished never comes again. No two hold a message at once before a lease has ended. A transaction happens
as a whole, or not at all. Offsets grow with time. No call fails without a reason.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.queue.client.membership import OWNERS_MAX
from proof.successions.journal import CUT, Call, Receipt, queue_of_key

LOST, DOUBLED, AGAIN, TWO_HANDS, HALF, ORDER, FAILED, INVENTED = (
    "lost",
    "doubled",
    "came again",
    "in two hands",
    "half a transaction",
    "out of order",
    "failed",
    "never put",
)

OWNER_SECONDS = 25.0
"""A call that has waited for so long may give up: its owner was stopped."""

_GIVES_UP = ("RetryableError", "QueueLockedError", "CommitUnknownError")
_FINISHES = ("ack", "commit")
_LEASES_END = ("LeaseExpiredError", "StaleReceiptError")
_PREPARED_NOT = ("StaleReceiptError", "LeaseExpiredError")
"""Of a commit over two queues: the owner has died that was to prepare a part of it. It is aborted."""

_DECIDED_NOT = ("was begun with another owner", "was to decide it")
"""In the text of the error if the owner is gone that was to decide a commit over two queues: perhaps in order."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise.

    Attributes
    ----------
    kind : str
        Which one.
    text : str
        What has happened.
    calls : tuple of Call
        Those that prove it.
    """

    kind: str
    text: str
    calls: tuple[Call, ...] = ()

    def __str__(self) -> str:
        return "\n    ".join([f"{self.kind}: {self.text}", *map(str, self.calls)])


@dataclass(slots=True)
class Delivery:
    """A message in the hands of a thread.

    Attributes
    ----------
    call : Call
        Which took it.
    until : float, seconds
        It was in hand at least until then: settled, leased no more, or its process killed.
    """

    call: Call
    until: float = math.inf


@dataclass(slots=True)
class Message:
    """All that the journals tell of a message."""

    puts: list[Call] = field(default_factory=list)
    offsets: dict[int, Call] = field(default_factory=dict)
    deliveries: dict[tuple[str, int], Delivery] = field(default_factory=dict)
    finishes: list[Call] = field(default_factory=list)
    may_finish: list[Call] = field(default_factory=list)


class Judge:
    """Judges the calls on all queues.

    Parameters
    ----------
    calls : iterable of Call
        All of them; the last ones have drained the queues.
    ended : mapping of int to float
        When each worker was killed.
    lease_seconds : float
        Of the group.

    Attributes
    ----------
    violations : list of Violation
        What is wrong, after :meth:`judge`.
    excused : int
        Messages that only a ``get`` in flight explains.
    """

    def __init__(self, calls: Iterable[Call], ended: Mapping[int, float], lease_seconds: float) -> None:
        self._calls = sorted(calls, key=lambda call: call.begin)
        self._lease_seconds = lease_seconds
        self._messages: dict[str, Message] = defaultdict(Message)
        self._takes = {(call.journal, call.number): call for call in self._calls if call.verb in ("take", "get")}
        self.violations: list[Violation] = []
        self.excused = 0
        for call in self._calls:
            if call.outcome == CUT:
                call.end = ended.get(call.worker, math.inf)
        self._ended = ended
        self._seen: dict[str, float] = {}

    def judge(self) -> None:
        """Judge all; what is wrong is in ``violations``."""
        self._gather()
        for call in self._calls:
            self._judge_failure(call)
        for key, message in self._messages.items():
            self._judge_place(key, message)
            self._judge_finish(key, message)
            self._judge_hands(key, message)
        self._judge_lost()
        self._judge_order()

    def _say(self, kind: str, text: str, *calls: Call) -> None:
        self.violations.append(Violation(kind, text, calls))

    # -- Gathering ---------------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        for call in self._calls:
            if call.verb in ("put", "commit"):
                self._put_by(call)
            self._taken_by(call)
        self._seen = self._first_seen()
        for call in self._calls:
            if call.verb == "commit" and call.is_unknown and call.keys:
                times = [self._seen[key] for key in call.keys if key in self._seen]
                if times:  # else it may have happened, and a get in flight has taken what it put
                    self._finished_by(call, min(times), is_certain=True)
                else:
                    self._settled_by(call)
            elif call.verb in _FINISHES:
                self._finished_by(call, call.end, is_certain=call.has_returned)
            elif call.receipts:
                self._settled_by(call)

    def _put_by(self, call: Call) -> None:
        for index, key in enumerate(call.keys):
            self._messages[key].puts.append(call)
            if call.first >= 0:
                self._messages[key].offsets.setdefault(call.first + index, call)

    def _taken_by(self, call: Call) -> None:
        for key, offset, _ in call.taken:
            message = self._messages[key]
            if offset >= 0:
                message.offsets.setdefault(offset, call)
            until = min(call.begin + self._lease_seconds, self._ended.get(call.worker, math.inf))
            message.deliveries[call.journal, call.number] = Delivery(call, until)
            if call.verb == "get":
                message.finishes.append(call)

    def _first_seen(self) -> dict[str, float]:
        """Return when each message was seen first."""
        seen: dict[str, float] = {}
        for call in self._calls:
            for key, _, _ in call.taken:
                seen[key] = min(seen.get(key, math.inf), call.end)
        return seen

    def _finished_by(self, call: Call, end: float, *, is_certain: bool) -> None:
        for taker, number, key in call.receipts:
            message = self._messages[key]
            if is_certain:
                message.finishes.append(call)
            elif call.is_unknown or call.outcome == "RetryableError":
                message.may_finish.append(call)
            delivery = message.deliveries.get((taker, number))
            if delivery is not None:
                delivery.until = min(delivery.until, call.begin)
        if is_certain:
            call.end = end

    def _settled_by(self, call: Call) -> None:
        for taker, number, key in call.receipts:
            delivery = self._messages[key].deliveries[taker, number]
            if call.verb != "extend":
                delivery.until = min(delivery.until, call.begin)
            elif call.has_returned:
                delivery.until = min(call.begin + self._lease_seconds, self._ended.get(call.worker, math.inf))

    # -- Judging -----------------------------------------------------------------------------------------------------

    def _judge_failure(self, call: Call) -> None:
        if call.outcome in ("", CUT, "Empty"):
            return
        has_waited = call.end - call.begin >= OWNER_SECONDS
        if call.outcome in _GIVES_UP and (has_waited or self._endings_in(call) >= OWNERS_MAX):
            return
        if call.is_over_two and (call.outcome in _PREPARED_NOT and self._endings_in(call)):
            return
        if call.is_over_two and call.outcome == "TransactionStateError" and _has_any(call.detail, _DECIDED_NOT):
            return
        if call.outcome in _LEASES_END and call.end > self._leased_until(call):
            return
        if call.outcome == "TransactionStateError" and call.end > self._leased_until(call):
            return
        self._say(FAILED, f"{call.outcome}: {call.detail}", call, *self._takes_of(call.receipts))

    def _endings_in(self, call: Call) -> int:
        """Return how many processes were killed, or handles closed, while a call was under way."""
        times = [*self._ended.values(), *(each.begin for each in self._calls if each.verb == "close")]
        return sum(call.begin <= each <= call.end for each in times)

    def _leased_until(self, call: Call) -> float:
        """Return until when a call could count on the leases of what it settles."""
        if call.verb == "get":
            return call.begin + self._lease_seconds
        begins = [take.begin for take in self._takes_of(call.receipts)]
        return min(begins, default=call.begin) + self._lease_seconds

    def _takes_of(self, receipts: Iterable[Receipt]) -> list[Call]:
        return [self._takes[place] for place in {(taker, number) for taker, number, _ in receipts}]

    def _judge_place(self, key: str, message: Message) -> None:
        if len(message.offsets) > 1:
            self._say(DOUBLED, f"message {key} has the offsets {sorted(message.offsets)}", *message.offsets.values())
        if not message.puts:
            calls = [each.call for each in message.deliveries.values()]
            self._say(INVENTED, f"message {key}", *calls)

    def _judge_finish(self, key: str, message: Message) -> None:
        if not message.finishes:
            return
        first = min(message.finishes, key=lambda call: call.end)
        if len(message.finishes) > 1:
            kind = HALF if any(call.verb == "commit" and call.is_unknown for call in message.finishes) else AGAIN
            self._say(kind, f"message {key} was finished {len(message.finishes)} times", *message.finishes)
            return
        for delivery in message.deliveries.values():
            if delivery.call.begin > first.end:
                kind = HALF if first.is_unknown else AGAIN
                self._say(kind, f"message {key} came again after it was finished", first, delivery.call)

    def _judge_hands(self, key: str, message: Message) -> None:
        """Look for a take that begins and ends while another thread has the message in hand."""
        held = sorted(message.deliveries.values(), key=lambda each: each.call.end)
        for number, delivery in enumerate(held):
            for other in held[number + 1 :]:
                if other.call.begin > delivery.call.end and other.call.end < delivery.until:
                    text = f"message {key} was in hand until {delivery.until:.4f}, and was taken meanwhile"
                    self._say(TWO_HANDS, text, delivery.call, other.call)

    def _judge_lost(self) -> None:
        """Look for messages that were put and are nowhere; each get in flight excuses as many as it asked for."""
        missing = [
            (key, message)
            for key, message in self._messages.items()
            if not message.finishes and not message.may_finish and any(map(self._has_happened, message.puts))
        ]
        self.excused = len(missing)
        gets = Counter[int]()
        for call in self._calls:
            if call.verb == "get" and call.outcome == CUT:
                gets[call.queue] += call.count
        counts = Counter(queue_of_key(key) for key, _ in missing)
        for key, message in missing:
            queue = queue_of_key(key)
            if counts[queue] > gets[queue]:
                calls = [each.call for each in message.deliveries.values()]
                text = f"message {key}; gets in flight may have taken {gets[queue]}"
                self._say(LOST, text, *message.puts, *calls)

    def _has_happened(self, put: Call) -> bool:
        """Whether a put has surely happened: it returned, or a message of it was seen."""
        return put.has_returned or any(key in self._seen for key in put.keys)

    def _judge_order(self) -> None:
        """Look for a put that returned before another began, and has a larger offset; and for shared offsets."""
        placed = [each for each in self._calls if each.verb in ("put", "commit") and each.first >= 0 and not each.once]
        for queue in sorted({each.queue for each in placed}):
            self._judge_order_of([each for each in placed if each.queue == queue and each.keys])
        taken: dict[tuple[int, int], str] = {}
        for key, message in self._messages.items():
            for offset, call in message.offsets.items():
                if taken.setdefault((queue_of_key(key), offset), key) != key:
                    other = taken[queue_of_key(key), offset]
                    self._say(ORDER, f"offset {offset} has the messages {key} and {other}", call)

    def _judge_order_of(self, returned: Sequence[Call]) -> None:
        by_end = sorted(returned, key=lambda call: call.end)
        ended, last = 0, None
        for call in returned:
            while by_end[ended].end < call.begin:
                if last is None or by_end[ended].first > last.first:
                    last = by_end[ended]
                ended += 1
            if last is not None and last.first >= call.first:
                self._say(ORDER, "a later put has a smaller offset", last, call)


def _has_any(text: str, parts: Iterable[str]) -> bool:
    return any(part in text for part in parts)

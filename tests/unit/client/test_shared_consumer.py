"""Taking through an owner: what is asked, what is in hand here, and what becomes of it if the owner refuses."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast import (
    ClosedError,
    CommitUnknownError,
    ForkedError,
    LeaseExpiredError,
    RetryableError,
    StaleReceiptError,
)
from holdfast.errors import Empty, ShutDown
from holdfast.queue.client import shared_consumer as module
from holdfast.queue.client.deliveries_in_hand import UNCLAIMED_SECONDS
from holdfast.queue.client.large_payloads import LargePayloads
from holdfast.queue.client.link import Answer
from holdfast.queue.client.membership import ENDING_SECONDS
from holdfast.queue.client.shared_consumer import SharedConsumer
from holdfast.queue.consumer.draining import Left
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.options.failure import Failure
from holdfast.queue.protocol.messages import Done, SessionLostError, Settle, Take, Taken, Verb
from support.builders.clocks import FakeClock
from support.processes.threads import Threads, wait_until

LEASE = 30.0


class FakeMembership:
    """Hands out these batches of payloads, one for each take, then none; settling is refused with ``refusals``.

    Attributes
    ----------
    asked : list
        All requests.
    refusals : list of Exception
        For the next requests that settle.
    own_queue : object or None
        The queue, if it is the membership of an owner's process.
    waits : Event
        Set when a take finds nothing.
    meanwhile : callable
        Called by a take that finds nothing.
    settling : callable
        Called by a request that settles or extends.
    left : Left or Exception
        What the owner says is left.
    """

    def __init__(self) -> None:
        self.batches: list[Sequence[bytes] | BaseException] = []
        self.asked: list[Any] = []
        self.refusals: list[BaseException | None] = []
        self.own_queue: Any = None
        self.waits = threading.Event()
        self.meanwhile: Callable[[], object] = lambda: None
        self.settling: Callable[[], object] = lambda: None
        self.left: Left | Exception = Left({"not_taken": 2})
        self.looks_until = math.inf
        self.was_woken = 0
        self._offset = 0
        self._number = 0

    def next_number(self) -> int:
        self._number += 1
        return 7 << 32 | self._number

    def ask(
        self, request: Any, payloads: Any = (), seconds: Any = 0.0, is_over: Callable[[], bool] = lambda: False
    ) -> Answer:
        self.asked.append(request)
        if isinstance(request, Take):
            batch = self.batches.pop(0) if self.batches else None
            if batch is None:
                self.waits.set()
                self.meanwhile()
                raise Empty
            if isinstance(batch, BaseException):
                raise batch
            first, self._offset = self._offset, self._offset + len(batch)
            return Answer(Taken([(first + at, 0, b"", 1) for at in range(len(batch))], LEASE, 3), batch, is_kept=True)
        if isinstance(request, Settle):
            self.settling()
            refusal = self.refusals.pop(0) if self.refusals else None
            if refusal is not None:
                raise refusal
        if isinstance(request, Verb) and request.fields["verb"] == "left":
            if isinstance(self.left, Exception):
                raise self.left
            return Answer(Done(self.left._asdict()), (), is_kept=True)
        return Answer(Done({"count": 4}), (), is_kept=True)

    def look_until(self, at: float) -> None:
        self.looks_until = at

    def here(self, do: Callable[[Any], Any]) -> Any:
        """Do something with a queue of its own, if this is an owner's process."""
        return do(self.own_queue) if self.own_queue is not None else None

    def wake(self) -> None:
        self.was_woken += 1

    @property
    def settled(self) -> list[tuple[str, list[int]]]:
        """The verbs and offsets that were asked."""
        return [(each.verb, [at for _, at in each.receipts]) for each in self.asked if isinstance(each, Settle)]


class FakeUpkeep:
    """Counts how often it was woken."""

    chores: Any = None
    count = 0
    at = 0.0

    def wake(self) -> None:
        self.count += 1

    def wake_by(self, at: float) -> None:
        self.at = at
        self.wake()


class Parts:
    """A consumer with its fakes."""

    def __init__(self, *batches: Sequence[bytes] | BaseException) -> None:
        self.membership = FakeMembership()
        self.membership.batches = list(batches)
        self.clock = FakeClock()
        self.upkeep = FakeUpkeep()
        self.group_seconds = LEASE
        large = LargePayloads(None)  # type: ignore[arg-type]  # none is large
        self.side = SharedConsumer(
            self.membership,  # type: ignore[arg-type]
            self.upkeep,  # type: ignore[arg-type]
            "g",
            self.clock,
            None,
            large,
            lambda: self.group_seconds,
        )

    def in_hand(self) -> list[int]:
        """The offsets that are in hand here."""
        return list(self.side._leases.by_offset)


class Holding:
    """A transaction."""

    def refusal(self) -> Exception:
        return StaleReceiptError("it is the transaction's")

    def leave(self, delivery: Delivery, *, is_clean: bool) -> None: ...


# -- Taking ----------------------------------------------------------------------------------------------------------


def test_a_take_has_a_number_and_its_messages_are_in_hand() -> None:
    """Upkeep is told of them: their leases may have to be extended."""
    parts = Parts([b"a", b"b"])
    first, second = parts.side.receive(5, 1.0, None, 9.0)
    (take,) = parts.membership.asked
    assert (take.group, take.number, take.count_max, take.lease) == ("g", 7 << 32 | 1, 5, 9.0)
    assert 0 < take.timeout <= 1.0
    assert [(each.offset, each.payload, each.number, each.delivery_count) for each in (first, second)] == [
        (0, b"a", take.number, 1),
        (1, b"b", take.number, 1),
    ]
    assert (parts.in_hand(), parts.upkeep.count) == ([0, 1], 1)
    assert 0 < parts.upkeep.at - time.monotonic() <= LEASE / 2
    assert (parts.side.is_last(3), parts.side.is_last(2)) == (True, False)
    assert parts.side.numbers_in_hand() == [take.number]


def test_nothing_comes_in_time() -> None:
    """A take without a bound asks again and again, for a while each."""
    parts = Parts()
    with pytest.raises(Empty):
        parts.side.receive(1, 0.0)
    assert [take.timeout for take in parts.membership.asked] == [0.0]
    threads = Threads()
    parts.membership.waits.clear()
    threads.start(lambda: _ends(parts, ClosedError))
    assert parts.membership.waits.wait(30)
    parts.side.close()
    threads.join()
    assert {take.timeout for take in parts.membership.asked[1:]} == {module.WAIT_SECONDS_MAX}
    assert parts.side._given_up == [] or parts.upkeep.count


def _raise(error: Exception) -> None:
    raise error


def _ends(parts: Parts, error: type[Exception]) -> None:
    with pytest.raises(error):
        parts.side.receive(1, None)


def test_a_take_of_a_session_found_dead_is_made_anew() -> None:
    """With a number of the next session."""
    parts = Parts(SessionLostError("dead"), [b"a"])
    assert [each.payload for each in parts.side.receive(1, 1.0)] == [b"a"]
    assert [take.number & 0xFF for take in parts.membership.asked] == [1, 2]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RetryableError("no answer")])
def test_a_take_without_an_answer_is_given_up(error: BaseException) -> None:
    """Its messages may be in hand at the owner: upkeep gives them back."""
    parts = Parts(error)
    with pytest.raises(type(error)):
        parts.side.receive(1, 1.0)
    assert parts.upkeep.count == 1
    parts.side.do_due(0.0)
    parts.side.do_due(0.0)
    given_up = [each for each in parts.membership.asked if isinstance(each, Verb)]
    assert given_up == [Verb("g", {"verb": "give_up", "number": 7 << 32 | 1})]


def test_a_take_that_is_given_up_while_another_one_is_told_is_told_too() -> None:
    """Threads give up at any time."""
    parts = Parts()
    told: list[int] = []

    def tell(number: int) -> None:
        told.append(number)
        if number == 1:
            parts.side.give_up(2)

    parts.side.give_up(1)
    parts.side.tell_given_up(tell)
    assert (told, parts.side._given_up) == ([1, 2], [])


def test_a_take_of_a_session_found_dead_is_given_up_by_no_owner_and_keeps_no_lease_from_being_extended() -> None:
    """All of that session was given back. What an owner refuses for another reason comes behind the leases."""
    parts = Parts([b"a"], RetryableError("no answer"))
    (opened,) = parts.side.receive(1, 1.0)
    with pytest.raises(RetryableError):
        parts.side.receive(1, 1.0)
    opened.is_open = True
    parts.clock.advance(LEASE / 2)
    ask, errors = parts.membership.ask, [RetryableError("no answer"), SessionLostError("dead")]

    def refuse(request: Any, *rest: Any) -> Answer:
        answer = ask(request, *rest)
        if isinstance(request, Verb):
            raise errors.pop(0)
        return answer

    parts.membership.ask = refuse  # type: ignore[method-assign]
    with pytest.raises(RetryableError):
        parts.side.do_due(100.0)
    assert parts.membership.settled == [("extend", [0])]
    assert parts.side.do_due(100.0) < math.inf
    assert (parts.side._given_up, errors) == ([], [])


def test_a_take_that_was_broken_off_is_given_up_too() -> None:
    """Its answer may have been on its way."""
    parts = Parts()
    parts.membership.meanwhile = lambda: parts.side.shut_down(0.0, immediate=False)
    with pytest.raises(ShutDown):
        parts.side.receive(1, None)
    assert parts.side._given_up == [7 << 32 | 1]


def test_a_message_that_comes_again_ends_the_delivery_before() -> None:
    """Its lease ran out at the owner, before this process noticed."""
    parts = Parts([b"a"], [b"a"])
    [former] = parts.side.receive(1, 1.0)
    parts.membership._offset = former.offset
    [again] = parts.side.receive(1, 1.0)
    with pytest.raises(LeaseExpiredError):
        former.ack()
    again.ack()
    assert parts.membership.settled == [("ack", [former.offset])]


def test_getting_is_taking_and_acknowledging() -> None:
    """In this order."""
    parts = Parts([b"a"], [b"b", b"c"])
    assert parts.side.get(1.0) == b"a"
    assert parts.side.get_many(2, 1.0) == [b"b", b"c"]
    assert parts.membership.settled == [("ack", [0]), ("ack", [1, 2])]
    assert parts.in_hand() == []


class OwnQueue:
    """A queue of this process, whose only group hands these out; then nothing comes."""

    def __init__(self, *batches: list[bytes]) -> None:
        self.batches = list(batches)
        self.parted: list[Delivery] = []

    def group(self, name: str) -> OwnQueue:
        return self

    def ack_same(self, deliveries: object) -> bool:
        return False

    def part_with(self, group: str, deliveries: Sequence[Delivery]) -> None:
        """Lease nothing: it has handed these out to no one else."""
        self.parted += deliveries

    def fetch(self, count_max: int, is_over: Callable[[], bool]) -> list[bytes]:
        if not self.batches:
            raise Empty
        return self.batches.pop(0)

    def wait_for_more(self, left: float | None, is_over: Callable[[], bool]) -> None:
        self.batches = [[b"late"]]


def test_getting_in_the_owner_s_process_is_one_step() -> None:
    """Nothing is in hand between; what another thread has taken ahead comes first."""
    parts = Parts([b"d"])
    parts.side.wait_for_more(1.0)
    parts.membership.own_queue = OwnQueue([b"a"], [b"b", b"c"])
    assert [parts.side.get(1.0), parts.side.get(1.0)] == [b"d", b"a"]
    assert parts.side.get_many(2, None) == [b"b", b"c"]
    assert parts.membership.settled == [("ack", [0])]  # what another owner has leased is named to this one
    assert parts.in_hand() == []


def test_a_get_in_the_owner_s_process_ends_with_its_time() -> None:
    """It waits as long as it was asked to, and longer than one wait of its owner."""
    parts = Parts()
    parts.membership.own_queue = OwnQueue()
    with pytest.raises(Empty):
        parts.side.get(0.0)
    assert parts.side.get(1.0) == b"late"


# -- Settling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "settle", "seconds", "failure"),
    [
        ("ack", lambda side, each: side.ack(each), None, None),
        ("nack", lambda side, each: side.nack(each, 2.0), 2.0, ("failed", "", "", "")),
        ("reject", lambda side, each: side.reject(each, "why"), None, ("rejected", "why", "", "")),
        ("park", lambda side, each: side.park(each, Failure("odd", "x")), None, ("odd", "x", "", "")),
        ("release", lambda side, each: side.release(each), None, None),
    ],
)
def test_a_verb_settles_all_its_deliveries_by_one_request(
    verb: str, settle: Callable[[SharedConsumer, Sequence[Delivery]], None], seconds: Any, failure: Any
) -> None:
    """Each once; a second time they are stale here already."""
    parts = Parts([b"a", b"b"])
    deliveries = parts.side.receive(2, 1.0)
    settle(parts.side, [*deliveries, deliveries[0]])
    asked = parts.membership.asked[-1]
    assert (asked.verb, [at for _, at in asked.receipts], asked.seconds) == (verb, [0, 1], seconds)
    assert (asked.failure is None) == (failure is None)
    if failure is not None and verb != "nack":
        assert asked.failure[:2] == failure[:2]
    assert all(each.is_settled for each in deliveries)
    with pytest.raises(StaleReceiptError):
        settle(parts.side, deliveries)
    assert len(parts.membership.settled) == 1


def test_a_lease_of_a_lost_session_is_not_extended() -> None:
    """All that the session had in hand is lost, and the caller hears that its lease has ended."""
    parts = Parts([b"a", b"b"])
    first, second = parts.side.receive(2, 1.0)
    parts.membership.refusals = [SessionLostError("found dead")]
    with pytest.raises(LeaseExpiredError, match="found dead"):
        first.extend(10)
    assert first.has_expired
    assert parts.in_hand() == [second.offset]


def test_settling_nothing_asks_nothing() -> None:
    """As an empty batch does."""
    parts = Parts()
    parts.side.ack([])
    assert parts.membership.asked == []


def test_a_reason_is_text() -> None:
    """The delivery stays in hand."""
    parts = Parts([b"a"])
    deliveries = parts.side.receive(1, 1.0)
    with pytest.raises(TypeError, match="not int"):
        parts.side.reject(deliveries, 5)  # type: ignore[arg-type]
    assert parts.in_hand() == [0]


@pytest.mark.parametrize("error", [RetryableError("no owner"), CommitUnknownError("no sync"), KeyboardInterrupt()])
def test_a_verb_without_an_answer_can_be_called_again(error: BaseException) -> None:
    """Sent again it is answered exactly, whether it was done or not."""
    parts = Parts([b"a"])
    (delivery,) = parts.side.receive(1, 1.0)
    parts.membership.refusals = [error]
    with pytest.raises(type(error)):
        delivery.ack()
    assert not delivery.is_settled
    delivery.ack()
    assert parts.membership.settled == [("ack", [0])] * 2


@pytest.mark.parametrize("kind", [LeaseExpiredError, StaleReceiptError])
def test_only_the_stale_one_of_a_batch_is_lost(kind: type[StaleReceiptError]) -> None:
    """The owner has settled none."""
    parts = Parts([b"a", b"b"])
    deliveries = parts.side.receive(2, 1.0)
    parts.membership.refusals = [kind("stale", offset=0)]
    with pytest.raises(kind):
        parts.side.ack(deliveries)
    assert parts.in_hand() == [1]
    assert deliveries[0].is_settled
    assert deliveries[0].has_expired == (kind is LeaseExpiredError)
    parts.side.ack(deliveries[1:])


def test_all_deliveries_of_a_session_found_dead_are_lost() -> None:
    """Whether a verb hears of it first or the membership."""
    parts = Parts([b"a", b"b"], [b"c"])
    deliveries = parts.side.receive(2, 1.0)
    parts.membership.refusals = [SessionLostError("dead")]
    with pytest.raises(LeaseExpiredError, match="found dead"):
        parts.side.ack(deliveries)
    assert parts.in_hand() == []
    (delivery,) = parts.side.receive(1, 1.0)
    parts.side.lose_session()
    with pytest.raises(LeaseExpiredError):
        delivery.ack()
    assert (parts.in_hand(), delivery.has_expired) == ([], True)


def test_a_delivery_whose_lease_ran_out_is_stale_here() -> None:
    """Without a question."""
    parts = Parts([b"a"])
    (delivery,) = parts.side.receive(1, 1.0)
    parts.clock.advance(LEASE + 1)
    with pytest.raises(LeaseExpiredError):
        delivery.ack()
    assert parts.membership.settled == []


@pytest.mark.parametrize(("seconds", "lease"), [(None, LEASE), (5.0, 5.0)])
def test_a_lease_is_extended_at_the_owner_and_here(seconds: float | None, lease: float) -> None:
    """For so long from now."""
    parts = Parts([b"a"])
    (delivery,) = parts.side.receive(1, 1.0)
    parts.clock.advance(1)
    delivery.extend(seconds)
    assert parts.membership.asked[-1].seconds == lease
    assert delivery.expires_at == parts.clock.monotonic() + lease


def test_a_delivery_that_is_settled_while_it_is_extended_does_not_come_back() -> None:
    """A third thread has taken the message again by then."""
    parts = Parts([b"a"], [b"a"])
    (former,) = parts.side.receive(1, 1.0)
    again: list[Delivery] = []

    def settle_meanwhile() -> None:
        parts.membership.settling = lambda: None
        former.nack(delay=0)
        parts.membership._offset = former.offset
        again.extend(parts.side.receive(1, 1.0))

    parts.membership.settling = settle_meanwhile
    former.extend(20)
    again[0].ack()
    assert again[0].is_settled
    assert parts.in_hand() == []


def test_a_lease_that_runs_out_while_it_is_extended_is_named_to_an_owner_that_begins_meanwhile() -> None:
    """So that owner remembers that it was taken away, and says so."""
    parts = Parts([b"a"])
    (delivery,) = parts.side.receive(1, 1.0)
    named: list[int] = []

    def begin() -> None:
        parts.clock.advance(2 * LEASE)
        parts.side.do_due(0.0)
        assert delivery.has_expired
        named.extend(parts.side.numbers_in_hand())

    parts.membership.settling = begin
    delivery.extend()
    assert named == [delivery.number]


def test_a_lease_that_runs_out_while_it_is_extended_is_in_hand_behind_that() -> None:
    """The owner has granted it, so another one that begins later is told of it, and its receiver may finish it."""
    parts = Parts([b"a"])
    (delivery,) = parts.side.receive(1, 1.0)

    def run_out() -> None:
        parts.membership.settling = lambda: None
        parts.clock.advance(2 * LEASE)
        parts.side.do_due(0.0)

    parts.membership.settling = run_out
    delivery.extend(20)
    assert (delivery.has_expired, delivery.is_settled) == (False, False)
    assert parts.side.numbers_in_hand() == [delivery.number]
    assert delivery.expires_at == parts.clock.monotonic() + 20
    delivery.ack()
    assert parts.in_hand() == []


def test_a_delivery_that_is_finished_while_it_is_extended_is_not_in_hand_behind_that() -> None:
    """Another thread has settled it."""
    parts = Parts([b"a"])
    (delivery,) = parts.side.receive(1, 1.0)

    def finish() -> None:
        parts.membership.settling = lambda: None
        delivery.ack()

    parts.membership.settling = finish
    delivery.extend(20)
    assert (delivery.is_settled, parts.in_hand()) == (True, [])


# -- Settling and taking at once -------------------------------------------------------------------------------------


def test_a_take_finishes_others_by_the_same_request() -> None:
    """They are not in hand behind it; those that it takes are."""
    parts = Parts([b"a", b"b"], [b"c"])
    deliveries = parts.side.receive(2, 1.0)
    (third,) = parts.side.ack_and_receive(deliveries, 5, 1.0, 9.0)
    take = parts.membership.asked[-1]
    assert (take.finished, take.count_max, take.lease) == ([(7 << 32 | 1, 0), (7 << 32 | 1, 1)], 5, 9.0)
    assert [each.is_settled for each in (*deliveries, third)] == [True, True, False]
    assert (parts.in_hand(), parts.membership.settled) == ([2], [])


def test_what_a_take_finishes_is_named_to_an_owner_that_begins_meanwhile() -> None:
    """So it does not give that back."""
    parts = Parts([b"a"])
    deliveries = parts.side.receive(1, 1.0)
    named: list[int] = []
    parts.membership.meanwhile = lambda: named.extend(parts.side.numbers_in_hand())
    with pytest.raises(Empty):
        parts.side.ack_and_receive(deliveries, 1, 0.0)
    assert sorted(named) == [7 << 32 | 1, 7 << 32 | 2]


def test_a_take_that_finds_nothing_has_finished_others_once() -> None:
    """The takes that wait on do not ask for that again."""
    parts = Parts([b"a"], [])
    deliveries = parts.side.receive(1, 1.0)
    parts.membership.batches = []
    parts.membership.meanwhile = lambda: parts.membership.batches.append([b"b"])
    assert [each.payload for each in parts.side.ack_and_receive(deliveries, 1, 30.0)] == [b"b"]
    assert [len(each.finished) for each in parts.membership.asked if isinstance(each, Take)] == [0, 1, 0]
    assert parts.in_hand() == [1]


def test_what_a_take_that_was_broken_off_should_finish_is_finished_by_itself() -> None:
    """It may not have been sent."""
    parts = Parts([b"a"])
    deliveries = parts.side.receive(1, 1.0)
    parts.membership.meanwhile = lambda: parts.side.shut_down(0.0, immediate=False)
    with pytest.raises(ShutDown):
        parts.side.ack_and_receive(deliveries, 1, None)
    assert (parts.membership.settled, parts.in_hand()) == ([("ack", [0])], [])


@pytest.mark.parametrize("error", [RetryableError("no owner"), KeyboardInterrupt()])
def test_what_a_take_without_an_answer_should_finish_can_be_finished_again(error: BaseException) -> None:
    """Whether it was done or not."""
    parts = Parts([b"a"], error)
    deliveries = parts.side.receive(1, 1.0)
    with pytest.raises(type(error)):
        parts.side.ack_and_receive(deliveries, 1, 1.0)
    assert parts.in_hand() == [0]
    parts.side.ack(deliveries)


@pytest.mark.parametrize("error", [LeaseExpiredError("gone", offset=0), SessionLostError("dead")])
def test_a_take_learns_of_what_was_taken_away(error: Exception) -> None:
    """The caller hears of it: the messages come again."""
    parts = Parts([b"a", b"b"], error, [b"c"])
    deliveries = parts.side.receive(2, 1.0)
    with pytest.raises(LeaseExpiredError):
        parts.side.ack_and_receive(deliveries, 1, 1.0)
    is_dead = isinstance(error, SessionLostError)
    assert (parts.in_hand(), [each.has_expired for each in deliveries]) == ([] if is_dead else [1], [True, is_dead])


# -- Transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_holds_deliveries_and_hands_them_back() -> None:
    """Only it settles them meanwhile."""
    parts, holder = Parts([b"a", b"b"]), Holding()
    first, second = parts.side.receive(2, 1.0)
    parts.side.hold([first, second], holder)
    assert parts.side.held_by(holder) == [first, second]
    assert [record[0] for record in parts.side.check([second, first], holder)] == [0, 1]
    with pytest.raises(StaleReceiptError, match="transaction"):
        first.ack()
    parts.side.hand_back([first, second], Holding())
    assert (first.holder, parts.membership.settled) == (holder, [])
    parts.side.hand_back([first], holder)
    first.ack()
    assert parts.membership.settled == [("extend", [0]), ("ack", [0])]
    parts.side.let_go([first, second], holder)
    assert parts.in_hand() == []


def test_a_message_comes_back_from_a_transaction_though_no_owner_answers() -> None:
    """What is left of its lease stays: the end of the transaction does not fail for that."""
    parts, holder = Parts([b"a"]), Holding()
    deliveries = parts.side.receive(1, 1.0)
    parts.side.hold(deliveries, holder)
    parts.membership.refusals = [RetryableError("no owner answers")]
    parts.side.hand_back(deliveries, holder)
    assert (deliveries[0].holder, parts.in_hand()) == (None, [0])


def test_a_transaction_finishes_its_messages() -> None:
    """The owner has done so with the commit."""
    parts, holder = Parts([b"a"]), Holding()
    deliveries = parts.side.receive(1, 1.0, holder)
    parts.side.end_committed(deliveries)
    parts.side.end_committed(deliveries)
    assert (parts.in_hand(), parts.membership.settled) == ([], [])


# -- Upkeep ----------------------------------------------------------------------------------------------------------


def test_leases_are_extended_only_while_a_block_is_open_or_a_transaction_holds_them() -> None:
    """Each third of the lease; the others run out."""
    parts, holder = Parts([b"a"], [b"b"], [b"c"]), Holding()
    (opened,), (held,), (idle,) = (parts.side.receive(1, 1.0) for _ in range(3))
    parts.side.hold([held], holder)
    with opened:
        assert parts.side.do_due(100.0) == pytest.approx(100.0 + LEASE / 3)
        assert parts.membership.settled == []
        parts.clock.advance(LEASE / 3)
        parts.side.do_due(100.0)
        assert parts.membership.settled == [("extend", [0, 1])]
        parts.clock.advance(LEASE * 0.7)
        parts.side.do_due(100.0)
        assert idle.has_expired
        assert parts.in_hand() == [0, 1]


def test_a_delivery_that_no_block_uses_is_looked_at_rarely() -> None:
    """One may be entered before its lease ends."""
    parts = Parts([b"a"])
    parts.side.receive(1, 1.0)
    assert parts.side.do_due(100.0) == pytest.approx(100.0 + LEASE / 2)
    parts.clock.advance(LEASE)
    parts.side._leases.next_due = math.inf
    assert parts.side.do_due(100.0) == math.inf


def test_a_lease_that_was_taken_away_is_not_extended_again() -> None:
    """Neither is one that was settled meanwhile."""
    parts = Parts([b"a"], [b"b"])
    (lost,), (settled,) = (parts.side.receive(1, 1.0) for _ in range(2))
    lost.is_open = settled.is_open = True
    parts.clock.advance(LEASE / 2)
    parts.membership.refusals = [LeaseExpiredError("gone", offset=0)]
    asked = parts.membership.ask

    def settle_meanwhile(request: Any, *arguments: Any) -> Answer:
        answer = asked(request, *arguments)
        settled.is_settled = True
        return answer

    parts.membership.ask = settle_meanwhile  # type: ignore[method-assign]
    before = settled.expires_at
    parts.side.do_due(100.0)
    assert (lost.has_expired, settled.expires_at) == (True, before)


def test_leases_of_different_lengths_are_extended_by_a_request_each() -> None:
    """One that was taken away does not keep the others from it."""
    parts = Parts([b"a", b"b", b"c"], [b"d"])
    many, (alone,) = parts.side.receive(3, 1.0), parts.side.receive(1, 1.0)
    for each in (*many, alone):
        each.is_open = True
    alone.extend(LEASE + 1)
    parts.clock.advance(LEASE / 2)
    parts.membership.asked.clear()
    ask = parts.membership.ask

    def refuse_several(request: Any, *rest: Any) -> Answer:
        answer = ask(request, *rest)
        if len(request.receipts) > 1:
            raise StaleReceiptError("gone", offset=1)
        return answer

    parts.membership.ask = refuse_several  # type: ignore[method-assign]
    parts.side.do_due(100.0)
    assert sorted(parts.membership.settled) == [("extend", each) for each in ([0], [0, 1, 2], [1], [2], [3])]


def test_a_lease_in_use_is_extended_before_another_owner_would_end_it() -> None:
    """One that begins leases it as the group does, however long the delivery was leased for."""
    parts = Parts([b"a"])
    parts.group_seconds = LEASE / 10
    (opened,) = parts.side.receive(1, 1.0)
    assert parts.upkeep.at - time.monotonic() <= LEASE / 20
    opened.is_open = True
    assert parts.side.do_due(100.0) == pytest.approx(100.0 + LEASE / 30)
    parts.clock.advance(LEASE / 30)
    assert parts.side.do_due(100.0) == pytest.approx(100.0 + LEASE / 30)
    assert [(each.verb, each.seconds) for each in parts.membership.asked[1:]] == [("extend", LEASE)]


def test_an_owner_is_told_again_of_a_longer_lease_than_that_of_the_group() -> None:
    """Another one may have begun. What is left of the lease stays the same, until the group's is as long."""
    parts = Parts([b"a", b"b"])
    deliveries = parts.side.receive(2, 1.0)
    parts.group_seconds = LEASE / 10
    ends_at = deliveries[0].expires_at
    parts.clock.advance(10)
    assert parts.side.do_due(100.0) == 100.0 + LEASE / 30
    assert parts.side.do_due(100.0 + LEASE / 40) == 100.0 + LEASE / 30
    told = parts.membership.asked[1:]
    assert [([at for _, at in each.receipts], each.seconds) for each in told] == [([0, 1], pytest.approx(20.0))]
    assert {(each.lease_seconds, each.expires_at) for each in deliveries} == {(LEASE, ends_at)}
    parts.clock.advance(18)
    assert parts.side.do_due(118.0) == 119.0
    assert len(parts.membership.asked) == 2


def test_what_is_told_again_is_another_object_of_an_owner_in_this_process() -> None:
    """Else it would take what is left for the length of the lease."""
    parts = Parts([b"a"])
    (delivery,) = parts.side.receive(1, 1.0)
    parts.group_seconds = LEASE / 10
    parts.membership.own_queue = own = OwnQueue()
    parts.side.do_due(100.0)
    assert own.parted == [delivery]


def test_deadlines_of_transactions_are_called_by_upkeep() -> None:
    """Or by the next take."""
    parts = Parts()
    called: list[int] = []
    parts.side.deadlines.add(parts.clock.monotonic() + 5, lambda: called.append(1) is None)
    assert parts.side.do_due(100.0) == pytest.approx(105.0)
    parts.clock.advance(5)
    assert parts.side.do_due(100.0) == math.inf
    assert called == [1]


# -- The group, and the end ------------------------------------------------------------------------------------------


def test_purging_is_a_verb_of_the_owner() -> None:
    """It counts."""
    parts = Parts()
    counts: list[int] = []
    assert parts.side.purge(counts.append) == 4
    assert counts == [4]
    assert parts.membership.asked == [Verb("g", {"verb": "purge"})]
    parts.side.flush()
    assert len(parts.membership.asked) == 1


@pytest.mark.parametrize(("left", "seconds"), [(None, module.WAIT_SECONDS_MAX), (0.0, 0.0)])
def test_waiting_for_more_is_a_take_whose_message_the_next_take_has(left: float | None, seconds: float) -> None:
    """One request for both; a wait beside it has nothing to wait for."""
    parts = Parts([b"a"], [b"b"])
    parts.side.wait_for_more(left)
    parts.side.wait_for_more(left)
    (take,) = parts.membership.asked
    assert (take.count_max, take.timeout, parts.in_hand()) == (1, seconds, [0])
    assert [each.payload for each in parts.side.receive(5, 0.0)] == [b"a"]
    assert [each.payload for each in parts.side.receive(5, 0.0)] == [b"b"]


def test_a_wait_that_is_over_asks_for_nothing() -> None:
    """One that nothing came for, neither, nor one whose session was found dead; a wake-up ends the one that asks."""
    parts = Parts(Empty(), SessionLostError("dead"))
    parts.side.wait_for_more(None, lambda: True)
    assert parts.membership.asked == []
    parts.side.wait_for_more(1.0)
    parts.side.wait_for_more(1.0)
    assert (len(parts.membership.asked), parts.side._given_up) == (2, [7 << 32 | 2])
    parts.side.wake()
    assert parts.membership.was_woken == 1
    over: list[bool] = []
    parts.membership.meanwhile = lambda: over.append(True)
    parts.side.wait_for_more(None, lambda: bool(over))
    assert parts.side._given_up[1:] == [7 << 32 | 3]


def test_a_wait_of_a_drain_is_short_and_takes_nothing() -> None:
    """Its end depends on what is in hand here."""
    parts = Parts([b"a"])
    parts.side.shut_down(100.0, immediate=False)
    parts.side.wait_for_more(None)
    assert parts.membership.asked == []


def test_a_message_that_came_ahead_is_leased_as_its_taker_asks() -> None:
    """For a transaction, for so long; one whose lease ended before that is the owner's again."""
    parts, holder = Parts([b"a"], [b"b"], [b"c"]), Holding()
    parts.side.wait_for_more(None)
    (delivery,) = parts.side.receive(1, 0.0, holder, 7.0)
    assert (delivery.holder, delivery.lease_seconds) == (holder, 7.0)
    parts.side.wait_for_more(None)
    parts.membership.refusals = [LeaseExpiredError("gone", offset=1)]
    assert [each.payload for each in parts.side.receive(1, 0.0, None, 7.0)] == [b"c"]


def test_a_message_that_came_ahead_for_no_taker_is_given_back() -> None:
    """By upkeep, after a moment; or by the end, whichever is first."""
    parts = Parts([b"a"], [b"b"], [b"c"])
    parts.side.wait_for_more(None)
    due = parts.side.do_due(time.monotonic())
    assert due <= time.monotonic() + UNCLAIMED_SECONDS
    assert parts.membership.settled == []
    parts.side.do_due(due)
    assert parts.membership.settled == [("release", [0])]
    parts.side.wait_for_more(None)
    parts.membership.refusals = [LeaseExpiredError("gone", offset=1)]
    parts.side.do_due(math.inf)
    assert parts.in_hand() == []
    parts.side.wait_for_more(None)
    parts.side.close()
    assert parts.membership.settled[2:] == [("release", [2])]
    assert parts.side.claim_ahead(None, None, parts.side.extend) == []


def test_a_shutdown_gives_takers_what_is_left() -> None:
    """It waits for what is in hand here, and for what others give back within its time."""
    parts = Parts([b"a"], [b"b"])
    (delivery,) = parts.side.receive(1, 1.0)
    parts.side.shut_down(100.0, immediate=False)
    assert [each.payload for each in parts.side.receive(1, None)] == [b"b"]
    threads = Threads()
    parts.membership.waits.clear()
    threads.start(lambda: _ends(parts, ShutDown))
    assert parts.membership.waits.wait(30)
    parts.side.release(list(parts.side._leases.by_offset.values()))
    threads.join()
    assert delivery.is_settled
    assert parts.side.ending().left == {"not_taken": 2}


def test_a_taker_waits_for_what_comes_in_time_and_not_for_a_paused_group() -> None:
    """The owner knows what waits for its time."""
    parts = Parts()
    parts.side.shut_down(100.0, immediate=False)
    parts.membership.left = Left({"backing_off": 1}, parts.clock.time_ns() + 50 * 10**9)
    parts.membership.meanwhile = lambda: parts.membership.batches.append([b"again"])
    assert [each.payload for each in parts.side.receive(1, None)] == [b"again"]
    parts.membership.meanwhile = lambda: None
    for left in (Left({"paused": 1}, None, True), Left({"delayed": 1}, parts.clock.time_ns() + 200 * 10**9)):
        parts.side._leases.by_offset.clear()
        parts.membership.left = left
        with pytest.raises(ShutDown) as caught:
            parts.side.receive(1, None)
        assert caught.value.left == left.counts


def test_an_end_says_what_is_in_hand_here_if_no_owner_tells_the_rest() -> None:
    """A taker whose time is over ends; before that, it hears of the owner."""
    parts = Parts([b"a"], RetryableError("no owner"), RetryableError("no owner"))
    parts.side.receive(1, 1.0)
    parts.membership.left = RetryableError("no owner")
    parts.side.shut_down(100.0, immediate=False)
    assert parts.side.ending().left == {"in_hand": 1}
    with pytest.raises(RetryableError):
        parts.side.receive(1, None)
    parts.clock.advance(100.0)
    with pytest.raises(ShutDown) as caught:
        parts.side.receive(1, None)
    assert caught.value.left == {"in_hand": 1}


@pytest.mark.parametrize(("timeout", "seconds"), [(None, math.inf), (100.0, 100.0), (0.0, ENDING_SECONDS)])
def test_a_shutdown_looks_for_an_owner_for_as_long_as_it_waits(timeout: float | None, seconds: float) -> None:
    """And a little longer, for what is to be told."""
    parts, before = Parts(), time.monotonic()
    parts.side.shut_down(timeout, immediate=False)
    assert before + seconds <= parts.membership.looks_until <= time.monotonic() + seconds


@pytest.mark.parametrize("take", [SharedConsumer.receive, SharedConsumer.get_many])
def test_a_take_ends_if_no_owner_is_found_before_it_is_closed(take: Callable[..., object]) -> None:
    """As any other take of a closed handle."""
    parts = Parts()

    def here(do: object) -> None:
        parts.side.close()
        raise RetryableError("no owner")

    parts.membership.here = here  # type: ignore[assignment]
    with pytest.raises(ClosedError):
        take(parts.side, 1, None)
    parts = Parts()
    parts.membership.here = lambda _: _raise(RetryableError("no owner"))  # type: ignore[assignment]
    with pytest.raises(RetryableError):
        take(parts.side, 1, None)


def test_a_transaction_does_not_wait_for_its_own_messages() -> None:
    """They cannot come back to it."""
    parts, holder = Parts([b"a"]), Holding()
    parts.side.receive(1, 1.0, holder)
    parts.side.shut_down(100.0, immediate=False)
    with pytest.raises(ShutDown):
        parts.side.receive(1, None, holder)


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_an_immediate_shutdown_looks_for_an_owner_no_longer_than_an_end_does(timeout: float | None) -> None:
    """The handle has said how long before: no thread waits for what is left."""
    parts = Parts([b"a"])
    parts.membership.look_until(7.0)
    parts.side.shut_down(timeout, immediate=True)
    assert parts.membership.looks_until == 7.0
    assert parts.side._draining.seconds_left() == 0


def test_an_immediate_shutdown_gives_back_what_is_in_hand() -> None:
    """And refuses takes at once."""
    parts = Parts([b"a"])
    parts.side.receive(1, 1.0)
    parts.side.shut_down(None, immediate=True)
    assert parts.membership.settled == [("release", [0])]
    with pytest.raises(ShutDown) as caught:
        parts.side.receive(1, None)
    assert caught.value.left == {"not_taken": 2}


def test_closing_gives_back_what_is_in_hand_as_far_as_an_owner_answers() -> None:
    """Else it comes again with the end of the session."""
    parts = Parts([b"a"])
    (delivery,) = parts.side.receive(1, 1.0)
    parts.membership.refusals = [RetryableError("no owner")]
    parts.side.close()
    assert parts.membership.settled == [("release", [0])]
    for call in (lambda: parts.side.receive(1, 0.0), delivery.ack):
        with pytest.raises(ClosedError):
            call()


def test_a_forked_child_takes_and_settles_nothing() -> None:
    """Also if a thread of the parent was just settling something."""
    parts = Parts([b"a"])
    (delivery,) = parts.side.receive(1, 1.0)
    parts.side._lock.acquire()
    parts.side.forget()
    for call in (lambda: parts.side.receive(1, 0.0), delivery.ack, lambda: delivery.extend(1.0)):
        with pytest.raises(ForkedError):
            call()
    wait_until(lambda: not parts.side._lock.locked())

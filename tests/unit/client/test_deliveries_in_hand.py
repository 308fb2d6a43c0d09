"""What a handle has in hand: messages that came while a thread only waited, and those that two threads were handed."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import pytest

from holdfast import LeaseExpiredError, RetryableError
from holdfast.queue.client.deliveries_in_hand import DeliveriesInHand
from holdfast.queue.dispatch.delivery import Delivery
from support.builders.clocks import FakeClock


class FakeUpkeep:
    """Counts how often it was woken."""

    count = 0

    def wake(self) -> None:
        self.count += 1


def in_hand() -> DeliveriesInHand:
    """Return what a handle has in hand, which is nothing yet."""
    return DeliveriesInHand(FakeClock(), FakeUpkeep())  # type: ignore[arg-type]


def delivery(offset: int) -> Delivery:
    """Return a delivery of no queue."""
    return Delivery(None, (offset, 0, b"", b"", 0, 0), 1)  # type: ignore[arg-type]


def test_the_first_one_that_is_still_in_hand_is_claimed() -> None:
    """One whose lease has ended, or that a shutdown gave back, is another taker's by now."""
    hand, (first, second) = in_hand(), (delivery(0), delivery(1))
    assert (hand.has_ahead, hand.unclaimed_due()) == (False, math.inf)
    hand.keep_ahead(first)
    hand.keep_ahead(second)
    first.is_settled = True
    assert hand.has_ahead
    assert hand.claim_ahead(None, None, _refuse) == [second]
    assert hand.claim_ahead(None, None, _refuse) == []


def test_what_no_take_has_claimed_is_given_back_once_its_time_is_over() -> None:
    """And not before."""
    hand, first, given_back = in_hand(), delivery(0), list[Delivery]()
    hand.keep_ahead(first)
    due = hand.unclaimed_due()
    hand.give_back_unclaimed(due - 0.01, given_back.extend)
    assert (given_back, hand.has_ahead) == ([], True)
    hand.give_back_unclaimed(due, given_back.extend)
    assert (given_back, hand.has_ahead) == ([first], False)


def test_a_thread_that_is_slower_than_another_one_claims_nothing() -> None:
    """Both have seen that there is one."""

    class Emptied(deque[Any]):
        def popleft(self) -> Any:
            raise IndexError

    hand = in_hand()
    hand._ahead = Emptied([(delivery(0), 0.0)])
    assert hand.claim_ahead(None, None, _refuse) == []


def test_two_that_settle_nothing_yet_are_told_apart() -> None:
    """As two threads that end a handle at once, before a take comes back that one of them gives back then."""
    hand, given_back = in_hand(), list[Delivery]()
    with hand.settling(given_back):
        with hand.settling([]):
            pass
        given_back.append(delivery(7))
        assert hand.numbers_in_hand() == [0]
    assert hand.numbers_in_hand() == []


def handed_out_again() -> tuple[DeliveriesInHand, Delivery, Delivery]:
    """Return what is in hand, and two deliveries of a message: while the first was settled, its lease ended."""
    hand, former, later = in_hand(), delivery(7), delivery(7)
    hand._leases.grant([former], 30)
    hand._leases.end([former])  # as the one who settles it does first
    hand.have_in_hand([later], 30)
    return hand, former, later


def test_a_message_that_comes_again_ends_its_delivery_before() -> None:
    """The owner hands it out again only once that lease has ended."""
    hand, former, later = in_hand(), delivery(7), delivery(7)
    hand.have_in_hand([former], 30)
    hand.have_in_hand([later], 30)
    assert (former.has_expired, former.is_settled) == (True, True)
    assert hand.check([later], None) == [later.record]  # type: ignore[arg-type]


def test_who_hears_that_a_lease_has_ended_takes_nothing_from_another_thread() -> None:
    """That one was handed the message meanwhile, before the answer of the first one had come."""
    hand, former, later = handed_out_again()
    hand.note_lost([former], LeaseExpiredError("it ran out", offset=7))
    assert former.has_expired
    assert hand.check([later], None) == [later.record]  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [RetryableError("no owner answers"), KeyboardInterrupt()])
def test_who_could_not_settle_a_message_leaves_it_to_the_thread_that_has_it_now(error: BaseException) -> None:
    """Its own delivery is over; one that no other thread was handed is in hand again."""
    hand, former, later = handed_out_again()
    other = delivery(8)
    hand._leases.grant([other], 30)
    hand._leases.end([other])
    hand.take_back([former, other], error)
    assert (former.has_expired, former.is_settled) == (True, True)
    assert hand.check([later, other], None) == [later.record, other.record]  # type: ignore[arg-type]
    with pytest.raises(LeaseExpiredError):
        hand.check([former], None)  # type: ignore[arg-type]


def _refuse(*_: object) -> None:
    raise AssertionError("it asks for no lease")

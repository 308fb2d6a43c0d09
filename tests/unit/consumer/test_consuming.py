"""Loops over messages: what is finished, and what becomes of the rest, whichever way they end."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

from holdfast import ClosedError, Delivery, Empty, ForkedError, LeaseExpiredError, PersistentQueue
from holdfast.errors import RetryableError
from holdfast.queue.consumer.consuming import Consuming
from holdfast.queue.consumer.draining import shut_down_with
from holdfast.queue.dispatch.delivery import Holder
from holdfast.queue.options.failure import GIVEN_BACK, Failure
from support.builders.jobs import Jobs

OFFSETS = range(5)


class FakeSource:
    """Hands out these offsets, then nothing.

    Attributes
    ----------
    called : list of (str, list of int)
        The verbs that were called, with offsets; a take with those that it finishes.
    refusals : dict of str to list of Exception
        By verb: raised by the next calls.
    """

    def __init__(self, offsets: Sequence[int] = OFFSETS) -> None:
        self.waiting = list(offsets)
        self.called: list[tuple[str, list[int]]] = []
        self.refusals: dict[str, list[BaseException]] = {}
        self.handed_out: list[Delivery] = []
        self.ending: Exception = Empty()

    def settle(self, verb: str, deliveries: Sequence[Delivery]) -> None:
        if deliveries or verb == "take":
            self.called.append((verb, [each.offset for each in deliveries]))
        if self.refusals.get(verb):
            raise self.refusals[verb].pop(0)
        for each in deliveries:
            assert not each.is_settled
            each.is_settled = True

    def ack_and_receive(
        self, deliveries: Sequence[Delivery], count_max: int, timeout: float | None, lease_seconds: float | None = None
    ) -> list[Delivery]:
        self.settle("take", deliveries)
        if not self.waiting:
            raise self.ending
        taken, self.waiting = self.waiting[:count_max], self.waiting[count_max:]
        found = [Delivery(self, (offset, 0, b"", b"%d" % offset, 0, 0), 1) for offset in taken]
        self.handed_out += found
        return found

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self.settle("ack", deliveries)

    def nack(self, deliveries: Sequence[Delivery], delay: float | None = None, failure: Failure = GIVEN_BACK) -> None:
        self.settle("nack", deliveries)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        self.settle("release", deliveries)

    def reject(self, deliveries: Sequence[Delivery], reason: str) -> None: ...

    def park(self, deliveries: Sequence[Delivery], failure: Failure, holder: Holder | None) -> None: ...

    def extend(self, deliveries: Sequence[Delivery], seconds: float | None) -> None: ...

    def redacted(self, failure: Failure) -> Failure:
        return failure

    def is_last(self, delivery_count: int) -> bool:
        return False


@pytest.fixture
def source() -> FakeSource:
    """Return five messages."""
    return FakeSource()


def loop(source: FakeSource, prefetch: int = 3) -> Iterator[Delivery]:
    """Return a loop."""
    return Consuming("q", source, prefetch, 0.0, None).run()


def go_through(source: FakeSource, prefetch: int = 3, stop_at: int = -1) -> None:
    """Go through all messages; fail at one of them."""
    for each in loop(source, prefetch):
        assert each.is_open
        if each.offset == stop_at:
            raise ZeroDivisionError


def test_what_is_finished_goes_with_the_next_take(source: FakeSource) -> None:
    """And with the last one, which finds nothing."""
    go_through(source)
    assert source.called == [("take", []), ("take", [0, 1, 2]), ("take", [3, 4])]
    assert not any(each.is_open for each in source.handed_out if not each.is_settled)


@pytest.mark.parametrize(
    ("stop_at", "called"),
    [
        (0, [("nack", [0]), ("release", [1, 2])]),
        (1, [("nack", [1]), ("ack", [0]), ("release", [2])]),
        (2, [("nack", [2]), ("ack", [0, 1])]),
        (4, [("take", [0, 1, 2]), ("nack", [4]), ("ack", [3])]),
    ],
)
def test_a_loop_that_fails_settles_all_that_it_has(
    source: FakeSource, stop_at: int, called: list[tuple[str, list[int]]]
) -> None:
    """What was finished, what was handed out, and what was not."""
    with pytest.raises(ZeroDivisionError):
        go_through(source, stop_at=stop_at)
    assert source.called[1:] == called
    assert not any(each.is_open for each in source.handed_out if not each.is_settled)


def test_a_loop_whose_take_fails_acknowledges_what_it_has_finished(source: FakeSource) -> None:
    """Once more, because that take may not have done so."""
    messages = loop(source)
    for _ in range(3):
        next(messages)
    source.refusals = {"take": [RetryableError("no owner")]}
    with pytest.raises(RetryableError):
        next(messages)
    assert source.called == [("take", []), ("take", [0, 1, 2]), ("ack", [0, 1, 2])]


def test_what_cannot_be_acknowledged_is_said(source: FakeSource) -> None:
    """Behind giving back the rest."""
    each = loop(source)
    next(each)
    next(each)
    source.refusals = {"ack": [RetryableError("no owner")]}
    with pytest.raises(RetryableError):
        each.close()  # type: ignore[attr-defined]  # it is a generator
    assert source.called == [("take", []), ("nack", [1]), ("ack", [0]), ("release", [2])]


def test_a_message_that_was_taken_away_does_not_keep_others_from_being_finished(source: FakeSource) -> None:
    """Its lease ran out while the process was stopped, as the loop learns at the next take."""
    messages = loop(source)
    taken = [next(messages) for _ in range(3)]
    taken[1].has_expired = taken[1].is_settled = True
    source.refusals = {
        "take": [LeaseExpiredError("gone", offset=1)],
        "ack": [LeaseExpiredError("gone", offset=0), RetryableError("no")],
    }
    with pytest.raises(RetryableError):
        next(messages)
    assert source.called[1:] == [("take", [0, 1, 2]), ("ack", [0, 2]), ("ack", [2])]


def test_what_was_taken_away_before_it_was_handed_out_is_passed_over(source: FakeSource) -> None:
    """Another consumer has it."""
    messages = loop(source)
    next(messages)
    source.handed_out[1].has_expired = source.handed_out[1].is_settled = True
    assert next(messages).offset == 2
    messages.close()  # type: ignore[attr-defined]  # it is a generator
    assert source.called[1:] == [("nack", [2]), ("ack", [0])]


@pytest.mark.parametrize("error", [ClosedError("closed"), ForkedError("forked")])
def test_a_loop_of_a_queue_that_is_closed_ends_without_a_word(source: FakeSource, error: Exception) -> None:
    """Closing has settled all; a forked child leaves it to its parent."""
    messages = loop(source)
    next(messages)
    next(messages)
    source.refusals = {verb: [error] for verb in ("nack", "ack", "release")}
    messages.close()  # type: ignore[attr-defined]  # it is a generator
    assert [verb for verb, _ in source.called] == ["take", "nack", "ack", "release"]


def test_what_a_transaction_has_is_left_to_it(source: FakeSource) -> None:
    """Its lease is the business of the transaction from then on."""
    for each in loop(source):
        each.holder = object()  # type: ignore[assignment]  # any
    assert source.called == [("take", [])] * 3
    assert not any(each.is_open for each in source.handed_out)


def test_a_loop_that_is_dropped_gives_everything_back(source: FakeSource) -> None:
    """As one that is left."""
    messages = loop(source)
    next(messages)
    del messages
    gc.collect()
    assert source.called == [("take", []), ("nack", [0]), ("release", [1, 2])]


def test_a_shutdown_ends_a_loop_and_what_is_left_is_logged(
    source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an error."""
    source.ending = shut_down_with({"delayed": 7})
    with caplog.at_level(logging.WARNING, "holdfast"):
        go_through(source)
    assert "7 messages left: 7 delayed" in caplog.text


def test_closing_a_queue_settles_its_loops_even_if_one_cannot_be() -> None:
    """It is closed all the same, and says so."""
    jobs = Jobs()
    queue: PersistentQueue = jobs.open()
    queue.put_many([b"a", b"b"])
    messages = queue.consume(timeout=0)
    next(messages)
    next(messages)

    def fail(*_: object) -> None:
        raise RetryableError("not now")

    queue._settle_loops = fail  # type: ignore[method-assign]
    with pytest.raises(RetryableError):
        queue.close()
    with suppress(StopIteration, ClosedError):
        next(messages)
    with jobs.open() as again:
        assert again.get_many(9, timeout=0) == [b"a", b"b"]

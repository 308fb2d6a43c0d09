"""The fast lane that is cut short: what is not written comes again, what is written stands."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import LeaseExpiredError, PersistentQueue, StaleReceiptError
from support.builders.handles import handle_of
from support.builders.jobs import Jobs, drained


def interrupted(*_: Any, **__: Any) -> None:
    """Come in between."""
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("take", "verb"),
    [(lambda queue: queue.get(), "finish_one"), (lambda queue: queue.receive(), "deliver_one")],
    ids=["get", "receive"],
)
def test_a_take_that_is_interrupted_before_its_entry_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, take: Callable[[PersistentQueue], object], verb: str
) -> None:
    """The message is read from the log again."""
    with Jobs().open() as queue:
        queue.put_many([b"first", b"second", b"third"])
        assert queue.get() == b"first"
        with monkeypatch.context() as patched:
            patched.setattr(handle_of(queue).require_read_side().progress_store, verb, interrupted)
            with pytest.raises(KeyboardInterrupt):
                take(queue)
        assert queue.stats().in_flight == 0
        assert drained(queue) == [b"second", b"third"]


@pytest.mark.parametrize("is_get", [True, False], ids=["get", "ack"])
def test_what_is_written_stands_if_the_next_of_its_order_key_cannot_be_made_ready(
    monkeypatch: pytest.MonkeyPatch, *, is_get: bool
) -> None:
    """That one is found in the log."""
    with Jobs().open() as queue:
        queue.put(b"plain")
        for payload in (b"first", b"second"):
            queue.put(payload, order_key="a")
        assert queue.get() == b"plain"
        delivery = None if is_get else queue.receive()
        with monkeypatch.context() as patched:
            patched.setattr(handle_of(queue).require_read_side(), "_leave", interrupted)
            with pytest.raises(KeyboardInterrupt):
                queue.get() if delivery is None else delivery.ack()
        assert queue.stats().depth == 1
        assert drained(queue) == [b"second"]


def test_a_delivery_that_is_over_is_told_so_by_the_general_way() -> None:
    """Acknowledged before, or expired."""
    jobs = Jobs()
    with jobs.open(lease_seconds=5) as queue:
        queue.put_many([b"first", b"second"])
        first, second = queue.receive(), queue.receive()
        first.ack()
        with pytest.raises(StaleReceiptError):
            first.ack()
        jobs.clock.advance(6)
        with pytest.raises(LeaseExpiredError):
            second.ack()

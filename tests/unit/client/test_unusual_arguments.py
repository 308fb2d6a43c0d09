"""Arguments that a frame does not take as they are: a client does with them what a handle of its own process does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue, TransactionNotFoundError

NO_UTF_8 = "caf\udce9"


@pytest.fixture(params=["exclusive", "shared"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PersistentQueue]:
    """Return the only handle of a queue, and then a client of another one; with one message, which fails once."""
    with PersistentQueue(tmp_path / "q", mode=request.param, max_deliveries=1) as handle:
        handle.put(b"a")
        if request.param == "exclusive":
            yield handle
            return
        with PersistentQueue(tmp_path / "q", mode="shared", can_own=False) as client:
            yield client


@pytest.mark.parametrize("timeout", [math.inf, 1e12, 3e6, Fraction(5)])
def test_any_number_of_seconds_is_a_timeout(queue: PersistentQueue, timeout: Any) -> None:
    """A socket takes 24 days."""
    queue.put(b"b", timeout=timeout)
    assert queue.get(timeout=timeout) == b"a"
    with queue.transaction(timeout=timeout) as tx:
        tx.ack(tx.receive(timeout=timeout))
        tx.put(b"c")
    with queue.receive(timeout=timeout) as delivery:
        assert delivery.payload == b"c"


def test_a_reason_may_be_no_utf_8(queue: PersistentQueue) -> None:
    """Names of files may not be, and become texts."""
    queue.receive(timeout=5).reject(NO_UTF_8)
    (letter,) = queue.dead.list()
    assert letter.detail in (NO_UTF_8, r"caf\udce9")
    queue.pause(reason=NO_UTF_8)
    queue.resume()


def test_an_exception_that_is_no_utf_8_comes_out_of_its_block(queue: PersistentQueue) -> None:
    """And its message has failed."""
    error = ValueError(NO_UTF_8)
    with pytest.raises(ValueError, match="caf") as caught, queue.receive(timeout=5):
        raise error
    assert caught.value is error
    assert queue.stats().dead == 1


@pytest.mark.parametrize("decide", ["retry", "discard"])
def test_a_dead_letter_has_no_offset_of_more_than_64_bits(queue: PersistentQueue, decide: str) -> None:
    """So none is decided."""
    assert getattr(queue.dead, decide)([2**63, 2**70]) == 0


@pytest.mark.parametrize(
    "decide",
    [
        PersistentQueue.commit_prepared,
        PersistentQueue.abort_prepared,
        lambda queue, chosen: queue.joint_commits.commit("app", 1, [chosen]),
    ],
    ids=["commit", "abort", "joint"],
)
@pytest.mark.parametrize("chosen", ["i" * 101, NO_UTF_8])
def test_no_transaction_has_an_id_that_none_can_have(
    queue: PersistentQueue, decide: Callable[[PersistentQueue, str], object], chosen: str
) -> None:
    """It is not found, as any other."""
    with pytest.raises(TransactionNotFoundError):
        decide(queue, chosen)

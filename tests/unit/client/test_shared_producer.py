"""Putting through an owner: what is asked, and when a thread gives up its random bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import ClosedError, CommitUnknownError, ForkedError, RetryableError
from holdfast.errors import Full, ShutDown
from holdfast.persistence.format.commit_record import count_of, thread_of
from holdfast.queue.client.link import Answer
from holdfast.queue.client.shared_producer import SharedProducer
from holdfast.queue.producer.nonces import next_nonce
from holdfast.queue.protocol.messages import Commit, Done, Offsets, Put, Verb


class FakeMembership:
    """Answers with offset 5, or raises."""

    def __init__(self, *, is_kept: bool = True) -> None:
        self.asked: list[tuple[Any, Any, Any]] = []
        self.is_kept = is_kept
        self.error: BaseException | None = None

    def here(self, do: Callable[[Any], Any]) -> None:
        """Another process owns."""

    def ask(self, request: Any, payloads: Any = (), seconds: Any = 0.0) -> Answer:
        self.asked.append((request, payloads, seconds))
        if self.error is not None:
            raise self.error
        if isinstance(request, Verb):
            return Answer(Done({}), (), is_kept=True)
        return Answer(Offsets(5, len(payloads)), (), is_kept=self.is_kept)


class FakeStaging:
    """Stages nothing: ``test_staging.py``."""

    def is_wanted(self, payloads: Any, headers: Any) -> bool:
        return False


class FakeUpkeep:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bytes, int]] = []

    def answered(self, thread: bytes, count: int) -> None:
        self.told.append(("answered", thread, count))

    def given_up(self, thread: bytes, count: int) -> None:
        self.told.append(("given up", thread, count))


Parts = tuple[SharedProducer, FakeMembership, FakeUpkeep]


@pytest.fixture
def parts() -> Parts:
    """Return a producer with its fakes."""
    membership, upkeep = FakeMembership(), FakeUpkeep()
    side = SharedProducer(membership, upkeep, FakeStaging(), is_synced=True)  # type: ignore[arg-type]
    return side, membership, upkeep


@pytest.mark.parametrize(
    ("put", "dedup_id", "headers", "payloads", "result"),
    [
        (lambda side: side.put(b"a", b"", 1.0), "", {}, (b"a",), 5),
        (lambda side: side.put(b"a", b"h", 1.0), "", {0: b"h"}, (b"a",), 5),
        (lambda side: side.put_once(b"a", b"h", "id", 1.0), "id", {0: b"h"}, (b"a",), 5),
        (lambda side: side.put_many([b"a", b"b"], 1.0), "", {}, [b"a", b"b"], range(5, 7)),
        (lambda side: side.put_many([b"a", b"b"], 1.0, {1: b"h"}), "", {1: b"h"}, [b"a", b"b"], range(5, 7)),
    ],
)
def test_a_put_is_asked_with_its_own_nonce(
    parts: Parts, put: Callable[[SharedProducer], object], dedup_id: str, headers: Any, payloads: Any, result: object
) -> None:
    """Its answer is acknowledged later."""
    side, membership, upkeep = parts
    assert put(side) == result
    ((request, sent, seconds),) = membership.asked
    assert isinstance(request, Put)
    assert (request.synced, request.dedup_id, request.headers, request.timeout) == (True, dedup_id, headers, 1.0)
    assert (sent, seconds) == (payloads, 1.0)
    assert upkeep.told == [("answered", thread_of(request.nonce), count_of(request.nonce))]


def test_an_answer_that_the_owner_does_not_keep_is_not_acknowledged() -> None:
    """It is of this process itself."""
    upkeep = FakeUpkeep()
    membership = FakeMembership(is_kept=False)
    SharedProducer(membership, upkeep, FakeStaging(), is_synced=False).commit(  # type: ignore[arg-type]
        next_nonce(), "tx", [b"a"], {}, "g", [], None
    )
    assert upkeep.told == []


def test_a_commit_is_asked_with_the_nonce_of_its_transaction(parts: Parts) -> None:
    """Offsets are those of its puts."""
    side, membership, _ = parts
    nonce = next_nonce()
    assert side.commit(nonce, "tx", [b"a"], {0: b"h"}, "g", [(1, 2)], 3.0) == range(5, 6)
    assert membership.asked == [(Commit(nonce, "tx", {0: b"h"}, 3.0, "g", [(1, 2)]), [b"a"], 3.0)]


@pytest.mark.parametrize("error", [Full(), ShutDown(), RetryableError("no owner")])
def test_a_thread_that_was_refused_keeps_its_random_bytes(parts: Parts, error: Exception) -> None:
    """Nothing of it waits for an answer."""
    side, membership, upkeep = parts
    before = thread_of(next_nonce())
    membership.error = error
    with pytest.raises(type(error)):
        side.put(b"a", b"", None)
    assert thread_of(next_nonce()) == before
    assert upkeep.told == []


@pytest.mark.parametrize("error", [CommitUnknownError("no answer"), KeyboardInterrupt()])
def test_a_thread_without_an_answer_gets_other_random_bytes(parts: Parts, error: BaseException) -> None:
    """Its next request would say that the answer has arrived."""
    side, membership, upkeep = parts
    membership.error = error
    with pytest.raises(type(error)):
        side.put(b"a", b"", None)
    nonce = membership.asked[0][0].nonce
    assert thread_of(next_nonce()) != thread_of(nonce)
    assert upkeep.told == [("given up", thread_of(nonce), count_of(nonce))]


def test_a_flush_is_a_verb_without_a_group(parts: Parts) -> None:
    """It may take as long as the disk does."""
    side, membership, _ = parts
    side.flush()
    assert membership.asked == [(Verb("", {"verb": "flush"}), (), None)]


@pytest.mark.parametrize(
    ("end", "error"),
    [(SharedProducer.shut_down, ShutDown), (SharedProducer.close, ClosedError), (SharedProducer.forget, ForkedError)],
)
def test_nothing_is_put_behind_the_end(
    parts: Parts, end: Callable[[SharedProducer], None], error: type[Exception]
) -> None:
    """Nor asked."""
    side, membership, _ = parts
    end(side)
    with pytest.raises(error):
        side.put(b"a", b"", None)
    with pytest.raises(error):
        side.commit(next_nonce(), "tx", [b"a"], {}, "g", [], None)
    assert membership.asked == []

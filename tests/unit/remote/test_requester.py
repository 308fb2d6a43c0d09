"""Asking the owner of a side: what whoever waits is told, whatever becomes of the request and of its owner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import ClosedError, CommitUnknownError, DiskFullError, ForkedError, Full, RetryableError, StorageError
from holdfast.errors import HoldfastError
from holdfast.persistence.exchange.mailbox import Answer, Answers
from holdfast.persistence.exchange.requests import BATCH, CLAIMED, STAGING, VERB, RequestName
from holdfast.persistence.filesystem.layout import QueueDirectory, open_directory
from holdfast.persistence.format.constants import ANSWER_DONE, ANSWER_ERROR, ANSWER_NO_ROOM, ANSWER_SLOTS
from holdfast.queue.remote import requester as module
from holdfast.queue.remote.requester import NoAnswerError, Requester
from support.builders.clocks import FakeClock
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

DIRECTORY = QueueDirectory(Path("/q"))
LOCK = DIRECTORY.write_lock


class PassingClock(FakeClock):
    """A clock on which a wait is over at once; something may happen in each."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] = lambda: None

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        self.advance(seconds or 0.0)
        self.meanwhile()
        return event.is_set()


class SilentHelper:
    """Nobody who serves."""

    def __init__(self) -> None:
        self.failure: HoldfastError | None = None
        self.is_there = False
        self.call_count = 0
        self.ended: list[str] = []

    def call(self) -> None:
        self.call_count += 1

    def stop(self) -> None:
        self.ended.append("stop")

    def forget(self) -> None:
        self.ended.append("forget")


class Bench:
    """A handle that asks on a simulated disk, and what an owner may do to its request."""

    def __init__(self) -> None:
        self.storage, self.clock, self.helper = SimulatedStorage(), PassingClock(), SilentHelper()
        open_directory(self.storage, DIRECTORY.root, create=True)
        self.requester = Requester(self.storage, self.clock, DIRECTORY, LOCK, self.helper)
        self.answers = Answers(self.storage, DIRECTORY.requests)
        self.name = RequestName(self.requester.mailbox_name, 0, BATCH)

    def ask(self, timeout: float | None = 1.0, kind: str = BATCH) -> Answer:
        """Ask for something, and return the answer."""
        with self.requester.request(kind, timeout) as self.name:
            staged = self.name.as_kind(STAGING).path(DIRECTORY)
            self.storage.open(staged, create=True).close()
            return self.requester.ask(staged, self.name, timeout)

    def waiting(self) -> list[str]:
        """Return the requests that wait or are under way."""
        return [each for each in self.storage.list(DIRECTORY.requests) if each.endswith((BATCH, CLAIMED, VERB))]

    def claim(self) -> None:
        """Take the request, as its owner does."""
        if self.waiting() == [str(self.name)]:
            self.storage.rename(self.name.path(DIRECTORY), self.name.as_kind(CLAIMED).path(DIRECTORY))

    def remove(self) -> None:
        """Let the request be gone, as one that was done is."""
        if str(self.name) in self.waiting():
            self.storage.remove(self.name.path(DIRECTORY))

    def answer(self, verdict: int, text: str = "") -> None:
        """Answer."""
        self.answers.write(self.name.mailbox, Answer(self.name.number, verdict, range(3), text))


@pytest.fixture
def bench() -> Bench:
    """An own one."""
    return Bench()


def test_an_answer_is_returned(bench: Bench) -> None:
    """With the offsets in it."""
    bench.clock.meanwhile = lambda: bench.answer(ANSWER_DONE)
    assert bench.ask().offsets == range(3)


def test_a_request_that_nobody_takes_is_taken_back(bench: Bench) -> None:
    """The helper was called to serve it; the caller may try again."""
    with pytest.raises(RetryableError, match="nothing was done"):
        bench.ask()
    assert bench.helper.call_count > 1
    assert bench.waiting() == []


def test_a_request_for_which_there_is_no_room_is_taken_back(bench: Bench) -> None:
    """Its owner has said so, and tries until then."""
    bench.clock.meanwhile = lambda: bench.answer(ANSWER_NO_ROOM)
    with pytest.raises(Full):
        bench.ask(0.1)
    assert bench.waiting() == []


def test_of_a_request_that_was_taken_and_not_answered_nobody_knows(bench: Bench) -> None:
    """Its owner is waited for long beyond the timeout."""
    bench.clock.meanwhile = bench.claim
    started = bench.clock.monotonic()
    with pytest.raises(CommitUnknownError, match="does not report its outcome"):
        bench.ask()
    assert bench.clock.monotonic() - started >= module.CLAIMED_SECONDS_MAX


def test_a_request_that_is_gone_without_an_answer_says_so(bench: Bench) -> None:
    """Whoever opens the queue next would have answered by then, if it had been done."""
    bench.clock.meanwhile = bench.remove
    with pytest.raises(NoAnswerError, match="check whether it is done"):
        bench.ask(None)


def test_a_verb_whose_request_is_gone_is_asked_for_again(bench: Bench) -> None:
    """Doing it twice changes nothing; under a number of its own."""
    asked: set[str] = set()

    def die_once() -> None:
        for each in bench.waiting():
            asked.add(each)
            if len(asked) == 1:
                bench.storage.remove(DIRECTORY.requests / each)
            else:
                name = RequestName.parse(each)
                assert name is not None
                bench.answers.write(name.mailbox, Answer(name.number, ANSWER_DONE))

    bench.clock.meanwhile = die_once
    assert bench.requester.ask_verb(VERB, {"verb": "x"}, None).verdict == ANSWER_DONE
    assert len(asked) == 2
    assert not [each for each in bench.storage.list(DIRECTORY.requests) if each.endswith(STAGING)]


def test_why_nobody_can_serve_is_told_once_the_request_is_taken_back(bench: Bench) -> None:
    """The next one is asked anew."""

    def fail() -> None:
        bench.helper.failure = StorageError("the disk refuses", path="/q")

    bench.clock.meanwhile = fail
    with pytest.raises(StorageError, match="the disk refuses"):
        bench.ask()
    assert bench.waiting() == []
    bench.helper.failure = None
    bench.clock.meanwhile = lambda: bench.answer(ANSWER_DONE)
    assert bench.ask().verdict == ANSWER_DONE


def test_a_helper_that_serves_already_is_told_of_the_request_at_once(bench: Bench) -> None:
    """Where an owner has answered before, nobody else is looked for so soon; an error comes out as one."""
    bench.clock.meanwhile = lambda: bench.answer(ANSWER_DONE)
    bench.ask()
    before = bench.helper.call_count
    bench.ask()
    assert bench.helper.call_count == before
    bench.helper.is_there = True
    bench.clock.meanwhile = lambda: bench.answer(ANSWER_ERROR, "nonsense")
    with pytest.raises(HoldfastError):
        bench.ask()
    assert bench.helper.call_count == before + 1


@pytest.mark.parametrize("verb", ["rename", "read_at"])
def test_a_disk_that_refuses_while_somebody_asks_is_told(bench: Bench, verb: str) -> None:
    """Nothing was done: the request was never seen, or is taken back."""
    name = ".staging" if verb == "rename" else ".making"
    with refusing(bench.storage, verb, name), pytest.raises(StorageError, match=r"asking|reading an answer"):
        bench.ask()
    assert bench.waiting() == []


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_request_that_cannot_be_taken_back_is_not_known_of(bench: Bench, is_taken: bool) -> None:
    """Its answer could not be read: the owner may have done it, or the disk does not let go of it."""

    def fail(verb: str, path: Path) -> None:
        if verb == "read_at" and path.name.endswith(".making"):
            if is_taken:
                bench.claim()
            raise OSError(5, "the disk refuses")
        if verb == "rename" and path.suffix == ".batch" and not is_taken:
            raise OSError(5, "the disk refuses")

    bench.storage.before_verb = fail
    with pytest.raises(CommitUnknownError, match=r"the outcome of request .* is unknown"):
        bench.ask()


def test_of_a_claimed_request_that_can_no_longer_be_looked_for_nobody_knows(bench: Bench) -> None:
    """The directory answers no more."""
    with refusing(bench.storage, "open", ".batch"), pytest.raises(StorageError, match="looking for a request"):
        bench.ask()
    assert bench.waiting() == []


def test_an_interrupted_wait_takes_the_request_back(bench: Bench) -> None:
    """Nobody does it from then on; the slot is free again."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    bench.clock.meanwhile = interrupt
    for _ in range(ANSWER_SLOTS + 1):
        with pytest.raises(KeyboardInterrupt):
            bench.ask()
    assert bench.waiting() == []


def test_more_requests_than_there_are_slots_wait_for_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are told where none gets free in time."""
    monkeypatch.setattr(module, "ANSWER_SECONDS_MIN", 0.0)
    with ExitStack() as stack:
        numbers = {stack.enter_context(bench.requester.request(VERB, 0)).number for _ in range(ANSWER_SLOTS)}
        assert len(numbers) == ANSWER_SLOTS
        with pytest.raises(RetryableError, match="wait already"):
            stack.enter_context(bench.requester.request(VERB, 0))
    with bench.requester.request(VERB, 0) as name:
        assert name.number not in numbers


@pytest.mark.parametrize("is_taken", [True, False])
def test_closing_takes_back_what_nobody_has_taken(bench: Bench, is_taken: bool) -> None:
    """What somebody has taken is waited for a little; nobody knows of it then."""

    def close() -> None:
        if is_taken:
            bench.claim()
        bench.requester.refuse(lambda: ClosedError("closed"))

    bench.clock.meanwhile = close
    with pytest.raises(CommitUnknownError if is_taken else ClosedError):
        bench.ask(None)
    with pytest.raises(ClosedError):
        bench.ask()
    bench.requester.close()
    assert bench.helper.ended == ["stop"]
    assert [each for each in bench.storage.list(DIRECTORY.requests) if "answers" in each] == []


def test_a_full_disk_has_no_room_for_a_mailbox(bench: Bench) -> None:
    """Nothing is left of the attempt."""
    before = bench.storage.list(DIRECTORY.requests)
    with refusing(bench.storage, "allocate", error=28), pytest.raises(DiskFullError):
        Requester(bench.storage, bench.clock, DIRECTORY, LOCK, bench.helper)
    assert bench.storage.list(DIRECTORY.requests) == before


def test_in_a_forked_child_nothing_is_asked(bench: Bench) -> None:
    """The mailbox is the parent's."""
    bench.requester.forget()
    with pytest.raises(ForkedError):
        bench.ask()
    assert bench.helper.ended == ["forget"]

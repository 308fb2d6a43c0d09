"""The membership of a handle: when a request is sent again, to whom, and what its caller is told if nobody answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NoReturn

import pytest

from holdfast import (
    ClosedError,
    CommitUnknownError,
    ForkedError,
    PoisonedError,
    QueueLockedError,
    RetryableError,
    StorageError,
)
from holdfast.errors import Full, HoldfastError
from holdfast.queue.client import membership as module
from holdfast.queue.client.link import Answer, LinkLostError, OwnerLink
from holdfast.queue.client.membership import Membership
from holdfast.queue.protocol.messages import Done, Prepare, Put, Verb
from support.processes.threads import Threads

PUT = Put(bytes(16), False, "", {}, None)
VERB = Verb("", {"verb": "flush"})
PREPARE = Prepare(b"n" * 16, "t", {}, "", [])
ANSWER = Answer(Done({}), (), is_kept=True)
LOST = LinkLostError("killed", was_sent=True)
UNSENT = LinkLostError("killed", was_sent=False)
SILENT = LinkLostError("stopped", was_sent=True, is_silent=True)


class FakeLink:
    """Answers with what it is given, in order: an error is raised."""

    def __init__(self, epoch: bytes, *answers: Answer | BaseException, session: int = 7) -> None:
        self.epoch = epoch
        self.session = session
        self.answers = list(answers)
        self.asked: list[tuple[Any, bool]] = []
        self.grace: float | None = None
        self.was: list[str] = []

    def ask(
        self,
        request: Any,
        payloads: Any,
        seconds: Any,
        is_over: Any = None,
        *,
        again: bool = False,
        grace: float | None = None,
    ) -> Answer:
        self.asked.append((request, again))
        self.grace = grace
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def wake(self) -> None:
        self.was.append("woken")

    def close(self) -> None:
        self.was.append("closed")

    def forget(self) -> None:
        self.was.append("forgotten")


class FakeOwnerLink(FakeLink, OwnerLink):  # type: ignore[misc]  # the fake has all that it does
    """The same, of an owner in this process."""

    session = 7
    queue: Any = None


class FakeFinder:
    """Finds these links one after another; then none."""

    def __init__(self, *links: FakeLink | Exception | None) -> None:
        self.links = list(links)
        self.was: list[str] = []
        self.consumer = None
        self.on_poisoned: Callable[[], object] = lambda: None
        self.on_displaced: Callable[[], object] = lambda: None
        self.owns_briefly = False
        self.owner: object = None
        self.error: Exception | None = None

    def find(self) -> FakeLink | None:
        link = self.links.pop(0) if self.links else None
        if isinstance(link, Exception):
            raise link
        return link

    def not_found(self) -> RetryableError:
        return QueueLockedError("no owner")

    def abdicate(self, *, has_failed: bool) -> None:
        self.was.append("failed" if has_failed else "displaced")
        if self.error is not None:
            raise self.error

    def begin_session(self) -> None:
        self.was.append("new session")

    def leave(self) -> None:
        self.was.append("left")

    def forget_after_fork(self) -> None:
        self.was.append("forgotten")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for an owner for a moment only."""
    monkeypatch.setattr(module, "OWNER_SECONDS", 0.02)


def test_a_request_goes_to_the_owner_that_is_found_once_one_greets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first looks may find none."""
    monkeypatch.setattr(module, "OWNER_SECONDS", 60.0)
    link = FakeLink(b"1", ANSWER, ANSWER)
    membership = Membership(FakeFinder(None, None, link))
    assert membership.ask(VERB) is ANSWER
    assert membership.ask(VERB) is ANSWER
    assert link.asked == [(VERB, False), (VERB, False)]


def test_a_queue_that_another_mode_has_open_is_not_waited_for() -> None:
    """But a member that has found an owner before waits: the old one may be closing the queue just now."""
    locked = QueueLockedError("write.lock")
    with pytest.raises(QueueLockedError, match=r"write\.lock"):
        Membership(FakeFinder(locked, FakeLink(b"1", ANSWER))).ask(VERB)
    membership = Membership(FakeFinder(FakeLink(b"1", UNSENT), locked, locked, FakeLink(b"2", ANSWER)))
    assert membership.ask(VERB) is ANSWER
    membership = Membership(FakeFinder(FakeLink(b"1", UNSENT), *[locked] * 100))
    with pytest.raises(QueueLockedError, match=r"write\.lock"):
        membership.ask(VERB)


def test_a_queue_is_taken_over_although_several_owners_end_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a restart of all of them."""
    monkeypatch.setattr(module, "OWNER_SECONDS", 60.0)
    links = [FakeLink(b"%d" % number, LOST) for number in range(module.OWNERS_MAX)]
    membership = Membership(FakeFinder(*links, FakeOwnerLink(b"9")))
    membership.take_over()
    assert membership.is_owner


def test_nothing_is_done_if_no_owner_is_found() -> None:
    """The caller may try again."""
    with pytest.raises(QueueLockedError):
        Membership(FakeFinder()).ask(PUT)


def test_a_request_that_was_not_sent_goes_to_the_successor_as_a_new_one() -> None:
    """No owner can have done it."""
    first, second = FakeLink(b"1", UNSENT), FakeLink(b"2", ANSWER)
    assert Membership(FakeFinder(first, second)).ask(PUT) is ANSWER
    assert second.asked == [(PUT, False)]
    assert first.was == ["closed"]


def test_a_request_without_an_answer_is_sent_again_with_the_same_nonce() -> None:
    """The successor is told so."""
    second = FakeLink(b"2", ANSWER)
    assert Membership(FakeFinder(FakeLink(b"1", LOST), second)).ask(PUT) is ANSWER
    assert second.asked == [(PUT, True)]


def test_a_put_that_two_successors_did_not_answer_is_unknown_and_its_nonce_is_told() -> None:
    """The same owner counts once, however often it cuts a connection off."""
    links = [FakeLink(epoch, LOST) for epoch in (b"1", b"1", b"2", b"3")]
    with pytest.raises(CommitUnknownError, match="killed") as caught:
        Membership(FakeFinder(*links, FakeLink(b"4", ANSWER))).ask(PUT)
    assert caught.value.nonce == PUT.nonce
    assert [len(link.asked) for link in links] == [1, 1, 1, 1]


def test_an_owner_that_cuts_a_request_off_each_time_gets_it_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that it cannot read would be sent for ever. There is a pause before it is sent once more."""
    pauses: list[float] = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    links = [FakeLink(b"1", LOST) for _ in range(module._TIMES_MAX)]
    with pytest.raises(CommitUnknownError, match="killed"):
        Membership(FakeFinder(*links, FakeLink(b"1", ANSWER))).ask(PUT)
    assert [len(link.asked) for link in links] == [1] * module._TIMES_MAX
    assert len(pauses) == module._TIMES_MAX - 2


def test_a_request_that_was_cut_off_by_that_of_another_thread_does_not_count() -> None:
    """That one has lost the link, and closed its connections."""
    links = [FakeLink(b"1") for _ in range(module._TIMES_MAX + 1)]
    membership = Membership(FakeFinder(*links, FakeLink(b"1", ANSWER)))

    def cut_off(link: FakeLink) -> Callable[..., Answer]:
        def ask(*_: Any, **__: Any) -> Answer:
            membership._drop(link)  # type: ignore[arg-type]
            raise LOST

        return ask

    for link in links:
        link.ask = cut_off(link)  # type: ignore[method-assign]
    assert membership.ask(PUT) is ANSWER


def test_a_handle_that_ends_waits_for_an_owner_for_a_moment_only() -> None:
    """For one that does not answer as for one that is not found."""
    link = FakeLink(b"1", *[ANSWER] * 3)
    membership = Membership(FakeFinder(link))
    membership.ask(VERB)
    assert link.grace is None
    membership.end_soon()
    membership.ask(VERB)
    assert link.grace == module.ENDING_SECONDS
    link.grace = None
    membership.ask_present(VERB)
    assert link.grace == module.ENDING_SECONDS
    assert membership._looks_until <= time.monotonic() + module.ENDING_SECONDS


def test_a_prepare_that_no_owner_answers_may_have_happened() -> None:
    """Its caller looks for it: an abort of what is not there would prove nothing."""
    links = [FakeLink(epoch, LOST) for epoch in (b"1", b"2", b"3")]
    with pytest.raises(CommitUnknownError, match=r"look whether it is in prepared\(\)"):
        Membership(FakeFinder(*links)).ask(PREPARE)


@pytest.mark.parametrize(
    ("links", "cause"),
    [
        ((FakeLink(b"1", LOST),), "no owner"),
        ((FakeLink(b"1", SILENT), FakeLink(b"1", ANSWER)), "stopped"),
        ((FakeLink(b"1", LOST), FakeLink(b"2", ANSWER, session=8)), "found dead"),
        ((FakeLink(b"1", LOST), FakeLink(b"2", PoisonedError("bad disk"))), "bad disk"),
    ],
    ids=["no successor", "a stopped owner", "a session found dead", "a poisoned successor"],
)
def test_a_put_without_an_answer_is_unknown(links: tuple[FakeLink, ...], cause: str) -> None:
    """It may have been done; the text says why no owner tells."""
    with pytest.raises(CommitUnknownError, match=cause) as caught:
        Membership(FakeFinder(*links)).ask(PUT)
    assert caught.value.nonce == PUT.nonce


def test_what_may_be_done_twice_may_be_tried_again() -> None:
    """It has no nonce."""
    with pytest.raises(RetryableError, match="try again"):
        Membership(FakeFinder(FakeLink(b"1", LOST))).ask(VERB)


def test_a_refusal_of_the_owner_is_raised_as_it_is() -> None:
    """The link stays."""
    membership = Membership(FakeFinder(FakeLink(b"1", Full(), ANSWER)))
    with pytest.raises(Full):
        membership.ask(PUT)
    assert membership.ask(PUT) is ANSWER


def test_a_failed_sync_of_another_process_is_told_with_the_nonce() -> None:
    """The owner there gives up by itself."""
    finder = FakeFinder(FakeLink(b"1", CommitUnknownError("the sync failed"), CommitUnknownError("again")))
    membership = Membership(finder)
    with pytest.raises(CommitUnknownError) as caught:
        membership.ask(PUT)
    assert caught.value.nonce == PUT.nonce
    with pytest.raises(CommitUnknownError, match="again"):
        membership.ask(VERB)
    assert finder.was == []


def test_a_poisoned_owner_in_another_process_is_a_reason_to_try_again() -> None:
    """Nothing was done, and this process has not failed."""
    with pytest.raises(RetryableError, match="the next one comes"):
        Membership(FakeFinder(FakeLink(b"1", PoisonedError("bad disk")))).ask(PUT)


@pytest.mark.parametrize("error", [PoisonedError("bad disk"), CommitUnknownError("bad disk")])
def test_a_poisoned_owner_in_this_process_lets_the_next_one_own(error: Exception) -> None:
    """Its own caller gets the error, and its next request goes to the successor."""
    finder = FakeFinder(FakeOwnerLink(b"1", error), FakeLink(b"2", ANSWER))
    membership = Membership(finder)
    with pytest.raises(type(error)):
        membership.ask(PUT)
    assert finder.was == ["failed"]
    assert not membership.is_owner
    assert membership.ask(PUT) is ANSWER


def test_an_owner_gives_up_if_a_client_finds_it_poisoned() -> None:
    """Once; a second report finds another owner."""
    finder = FakeFinder(FakeOwnerLink(b"1", ANSWER), FakeLink(b"2", ANSWER))
    membership = Membership(finder)
    finder.on_poisoned()
    assert finder.was == []
    membership.ask(VERB)
    assert membership.is_owner
    finder.on_poisoned()
    membership.ask(VERB)
    finder.on_poisoned()
    assert finder.was == ["failed"]


def test_an_owner_that_others_do_not_find_any_more_may_own_again(caplog: pytest.LogCaptureFixture) -> None:
    """It closes as far as it can; nobody hears of the rest but the log."""
    finder = FakeFinder(FakeOwnerLink(b"1", ANSWER), FakeOwnerLink(b"2", ANSWER))
    finder.error = StorageError("no such directory")
    membership = Membership(finder)
    membership.ask(VERB)
    finder.on_displaced()
    assert finder.was == ["displaced"]
    assert "no such directory" in caplog.text
    membership.ask(VERB)
    assert membership.is_owner


def test_an_owner_that_an_interruption_has_left_without_a_link_ends_too() -> None:
    """Others do not find it, or it has failed: nothing else would end it."""
    finder = FakeFinder()
    membership = Membership(finder)
    finder.on_displaced()
    assert finder.was == []
    finder.owner = object()
    finder.on_displaced()
    finder.on_poisoned()
    assert finder.was == ["displaced", "failed"]
    assert not membership.is_owner


class FakeConsumer:
    """Notes when it has to look after its leases."""

    group = "default"

    def __init__(self, finder: FakeFinder) -> None:
        self.finder = finder
        self.was: list[list[str]] = []

    def look_after_leases(self) -> None:
        self.was.append(list(self.finder.was))


@pytest.mark.parametrize("error", [None, StorageError("no such directory")])
def test_an_owner_that_has_ended_leaves_its_leases_to_its_handle(error: Exception | None) -> None:
    """Once it has, however it ends: nothing else may happen in this process before another owner ends them."""
    finder = FakeFinder(FakeOwnerLink(b"1", ANSWER), FakeOwnerLink(b"2", PoisonedError("bad disk")))
    finder.consumer = consumer = FakeConsumer(finder)  # type: ignore[assignment]
    finder.error = error
    membership = Membership(finder)
    membership.ask(VERB)
    finder.on_displaced()
    assert consumer.was == [["displaced"]]
    with pytest.raises(StorageError if error else PoisonedError):
        membership.ask(VERB)
    assert consumer.was[1:] == [["displaced", "failed"]]


def test_a_process_that_owns_briefly_lets_the_next_one_own_behind_each_call() -> None:
    """Whether the call returns or raises. A client of another owner stays its client."""
    finder = FakeFinder(FakeOwnerLink(b"1", ANSWER), FakeOwnerLink(b"2", Full()), FakeLink(b"3", ANSWER, ANSWER))
    finder.owns_briefly = True
    membership = Membership(finder)
    assert membership.ask(VERB) is ANSWER
    assert (membership.is_owner, finder.was) == (False, ["displaced"])
    with pytest.raises(Full):
        membership.ask(PUT)
    assert (membership.is_owner, finder.was) == (False, ["displaced"] * 2)
    for _ in range(2):
        assert membership.ask(VERB) is ANSWER
    assert finder.was == ["displaced"] * 2


def test_only_the_owner_s_own_process_does_something_with_the_queue_itself() -> None:
    """A process that asks another one has to ask; so has one whose owner has just ended."""
    finder = FakeFinder(FakeOwnerLink(b"1"), FakeLink(b"2"))
    membership = Membership(finder)
    assert membership.here(lambda queue: 5) == 5

    def end(queue: object) -> NoReturn:
        raise ClosedError("closed")

    assert membership.here(end) is None
    assert membership.here(lambda queue: 5) is None
    assert finder.was == []


@pytest.mark.parametrize("error", [CommitUnknownError("bad disk"), PoisonedError("bad disk")])
def test_an_owner_that_fails_in_its_own_process_is_given_up(error: HoldfastError) -> None:
    """Another process owns from here on."""

    def fail(queue: object) -> NoReturn:
        raise error

    finder = FakeFinder(FakeOwnerLink(b"1"))
    with pytest.raises(type(error)):
        Membership(finder).here(fail)
    assert finder.was == ["failed"]


def test_a_process_that_owns_briefly_lets_the_next_one_own_behind_what_it_does_itself() -> None:
    """As behind any request."""
    finder = FakeFinder(FakeOwnerLink(b"1"))
    finder.owns_briefly = True
    assert Membership(finder).here(lambda queue: 5) == 5
    assert finder.was == ["displaced"]


def test_an_owner_that_was_given_up_meanwhile_is_not_given_up_again() -> None:
    """Two threads may hear of the same failure."""
    finder = FakeFinder()
    link = FakeOwnerLink(b"1", ANSWER)
    finder.links = [link]
    membership = Membership(finder)

    def fail_twice(*_: Any, **__: Any) -> Answer:
        finder.on_poisoned()
        raise PoisonedError("bad disk")

    link.ask = fail_twice  # type: ignore[method-assign]
    with pytest.raises(PoisonedError):
        membership.ask(PUT)
    assert finder.was == ["failed"]


def test_delivery_numbers_belong_to_the_session_and_are_never_used_again() -> None:
    """Its number is the upper half."""
    membership = Membership(FakeFinder(FakeLink(b"1", session=0xABCD)))
    assert [hex(membership.next_number()) for _ in range(2)] == ["0xabcd00000001", "0xabcd00000002"]


def test_a_session_without_numbers_left_is_followed_by_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has in hand is stale then."""
    monkeypatch.setattr(module, "_COUNT_BITS", 1)
    finder = FakeFinder(FakeLink(b"1", session=7), FakeLink(b"1", session=8))
    membership = Membership(finder)
    assert [membership.next_number() for _ in range(2)] == [7 << 1 | 1, 8 << 1 | 1]
    assert finder.was == ["new session"]


def test_a_session_that_another_thread_has_replaced_is_not_replaced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have drawn a number above the last one."""
    monkeypatch.setattr(module, "_COUNT_BITS", 1)
    finder = FakeFinder(FakeLink(b"1", session=7))
    membership = Membership(finder)
    membership.next_number()

    def replace(start: int) -> Iterator[int]:
        membership._link, membership._counts = FakeLink(b"1", session=8), count(1)
        yield start

    membership._counts = replace(2)  # type: ignore[assignment]
    assert membership.next_number() == 8 << 1 | 1
    assert finder.was == []


def test_waking_wakes_those_that_wait_at_the_owner() -> None:
    """If there is a link."""
    link = FakeLink(b"1", ANSWER)
    membership = Membership(FakeFinder(link))
    membership.wake()
    membership.ask(VERB)
    membership.wake()
    assert link.was == ["woken"]


def test_a_link_that_another_thread_has_replaced_stays() -> None:
    """Only the lost one is forgotten."""
    second = FakeLink(b"2", ANSWER, ANSWER)
    membership = Membership(FakeFinder(FakeLink(b"1"), second))
    membership.next_number()
    first = membership._link
    assert isinstance(first, FakeLink)

    def lose(*_: Any, **__: Any) -> Answer:
        membership._link = second
        raise UNSENT

    first.ask = lose  # type: ignore[method-assign]
    assert membership.ask(PUT) is ANSWER
    assert membership.ask(PUT) is ANSWER


def test_leaving_ends_the_session_and_refuses_everything() -> None:
    """Also without a link."""
    link, finder = FakeLink(b"1", ANSWER), FakeFinder()
    finder.links = [link]
    membership = Membership(finder)
    membership.ask(VERB)
    membership.leave()
    assert (link.was, finder.was) == (["closed"], ["left"])
    with pytest.raises(ClosedError):
        membership.ask(VERB)
    membership.leave()
    assert finder.was == ["left", "left"]


def test_leaving_does_not_wait_for_a_thread_that_looks_for_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """That one is refused."""
    monkeypatch.setattr(module, "OWNER_SECONDS", 60.0)
    looks = threading.Event()
    finder = FakeFinder()
    monkeypatch.setattr(finder, "find", looks.set)
    membership = Membership(finder)
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            membership.ask(VERB)
        except ClosedError as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert looks.wait(30)
    membership.leave()
    thread.join(30)
    assert len(caught) == 1


def test_a_forked_child_refuses_everything() -> None:
    """The session is the parent's."""
    link, finder = FakeLink(b"1", ANSWER), FakeFinder()
    finder.links = [link]
    membership = Membership(finder)
    membership.forget_after_fork()
    assert finder.was == ["forgotten"]
    with pytest.raises(ForkedError):
        membership.ask(VERB)
    membership = Membership(FakeFinder(link))
    membership.ask(VERB)
    membership.forget_after_fork()
    assert link.was == ["forgotten"]


def test_a_handle_that_ends_looks_for_an_owner_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a thread that is looking already; behind that time each request looks once, and finds one that is there."""
    monkeypatch.setattr(module, "OWNER_SECONDS", 60.0)
    finder = FakeFinder()
    membership = Membership(finder)
    threads = Threads()
    looked = threading.Event()
    monkeypatch.setattr(finder, "find", looked.set)

    def ask() -> None:
        with pytest.raises(QueueLockedError, match="no owner"):
            membership.ask(VERB)

    for _ in range(3):
        threads.start(ask)
    assert looked.wait(30)
    membership.look_until(time.monotonic())
    threads.join()
    monkeypatch.setattr(finder, "find", lambda: FakeLink(b"1", ANSWER))
    assert membership.ask(VERB) is ANSWER


class SharedGate:
    """The lock of a membership, which another thread always has for the length of one look."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.looks_left = 5

    def __enter__(self) -> None:
        if self.looks_left:
            self.looks_left -= 1
            self._membership._look_count += 1

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize("is_last", [False, True])
def test_a_thread_that_waits_for_one_that_looks_has_looked_too(monkeypatch: pytest.MonkeyPatch, is_last: bool) -> None:
    """Each look may take a second: they do not take it one after the other."""
    monkeypatch.setattr(module, "OWNER_SECONDS", 60.0)
    finder = FakeFinder(FakeLink(b"1", ANSWER))
    membership = Membership(finder)
    membership._gate = gate = SharedGate(membership)  # type: ignore[assignment]
    if is_last:
        membership.look_until(time.monotonic())
        with pytest.raises(QueueLockedError, match="no owner"):
            membership.ask(VERB)
        assert (gate.looks_left, len(finder.links)) == (4, 1)
    else:
        assert membership.ask(VERB) is ANSWER
        assert gate.looks_left == 0


def test_what_another_thread_has_found_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a look."""
    membership, link = Membership(FakeFinder()), FakeLink(b"1", ANSWER)
    gate = SharedGate(membership)
    membership._gate = gate  # type: ignore[assignment]
    monkeypatch.setattr(SharedGate, "__enter__", lambda _: setattr(membership, "_link", link))
    assert membership.ask(VERB) is ANSWER


def test_what_only_a_present_owner_tells_is_asked_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before one was found, nor once that has ended; one that is stopped is no reason to say nothing."""
    link = FakeLink(b"1", ANSWER, Answer(Done({"dropped": 1}), (), is_kept=True), UNSENT, SILENT)
    membership = Membership(FakeFinder(link))
    assert membership.ask_present(VERB) is None
    membership.ask(VERB)
    assert membership.ask_present(VERB) == {"dropped": 1}
    assert membership.ask_present(VERB) is None
    with pytest.raises(RetryableError):
        membership.ask_present(VERB)

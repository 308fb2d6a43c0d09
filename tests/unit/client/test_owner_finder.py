"""Finding the owner: who may own, which session asks, and what is said if nobody answers."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast import PoisonedError, QueueLockedError, RetryableError, StorageError, UsageError
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.groups.group_files import DEFAULT_GROUP
from holdfast.persistence.ownership.owner_lock import OwnerLock
from holdfast.queue.client import owner_finder as module
from holdfast.queue.client.link import LinkLostError, OwnerLink, SocketLink
from holdfast.queue.client.owner_finder import OwnerFinder
from holdfast.queue.options.queue_options import Options
from holdfast.queue.protocol.messages import Arrived, Put, Take, Taken
from support.processes.served import listening


class Hand:
    """A consumer, with these delivery numbers in hand."""

    group = DEFAULT_GROUP

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.lost_count = 0

    def numbers_in_hand(self) -> list[int]:
        return self.numbers

    def look_after_leases(self) -> None: ...

    def lose_session(self) -> None:
        self.lost_count += 1


Make = Callable[..., OwnerFinder]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make finders of one queue; they leave at the end."""
    made: list[OwnerFinder] = []

    def make(*, can_own: bool = True) -> OwnerFinder:
        options = Options("shared", DEFAULT_GROUP, can_own=can_own)
        made.append(OwnerFinder(OsStorage(), SystemClock(), tmp_path / "q", options))
        return made[-1]

    yield make
    for each in made:
        each.leave()


def number_of(finder: OwnerFinder) -> int:
    """Return the number of its session."""
    return finder._session.number


def test_the_first_one_owns_and_the_next_one_connects(make: Make) -> None:
    """Each has a session of its own."""
    first, second = make(), make()
    assert (first.is_new, second.is_new) == (True, False)
    own, client = first.find(), second.find()
    assert isinstance(own, OwnerLink)
    assert isinstance(client, SocketLink)
    assert own.epoch == client.epoch
    assert 0 != own.session != client.session != 0
    assert (own.session, client.session) == (number_of(first), number_of(second))
    client.close()


def test_an_owner_that_an_interruption_has_left_behind_is_found_again(make: Make) -> None:
    """Its lock is taken, and no link is known."""
    finder = make()
    finder.find()
    owner = finder.owner
    assert isinstance(finder.find(), OwnerLink)
    assert finder.owner is owner


def test_an_owner_whose_session_has_no_more_numbers_has_another_one(make: Make) -> None:
    """Its own sessions know that one too."""
    finder = make()
    link = finder.find()
    assert link is not None
    finder.begin_session()
    again = finder.find()
    assert isinstance(again, OwnerLink)
    assert again.session not in (0, link.session)
    assert finder.owner is not None
    assert finder.owner.sessions.is_alive(again.session)


def test_an_owner_that_cannot_open_the_queue_lets_the_next_one_in(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is the caller's."""
    finder = make()
    monkeypatch.setattr(module.Owner, "start", lambda owner: (_ for _ in ()).throw(RetryableError("no thread")))
    with pytest.raises(RetryableError, match="no thread"):
        finder.find()
    monkeypatch.undo()
    assert isinstance(make().find(), OwnerLink)


def test_a_process_that_may_not_own_connects_if_there_is_an_owner(make: Make) -> None:
    """Its own time is for other things."""
    finder = make(can_own=False)
    make().find()
    link = finder.find()
    assert isinstance(link, SocketLink)
    assert finder.owns_briefly
    link.close()


def test_a_process_that_may_not_own_does_so_while_it_is_alone(make: Make) -> None:
    """Once it has closed the queue, another one may own at once."""
    finder = make(can_own=False)
    for _ in range(2):
        assert isinstance(finder.find(), OwnerLink)
        finder.abdicate(has_failed=False)
    assert isinstance(make().find(), OwnerLink)


def test_a_process_that_may_not_own_leaves_the_queue_to_others_first(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner has just ended, and others look for it each 50 ms. A brief owner has no such others."""
    owner, brief, other = make(), make(can_own=False), make(can_own=False)
    owner.find()
    link = brief.find()
    assert isinstance(link, SocketLink)
    owner.leave()
    link.close()
    assert brief.find() is None
    lock = OwnerLock.try_take(OsStorage(), brief._path)
    assert lock is not None
    monkeypatch.setattr(module, "_FREE_SECONDS", 0.0)
    assert brief.find() is None
    lock.release()
    assert isinstance(brief.find(), OwnerLink)
    monkeypatch.undo()
    again = other.find()
    assert isinstance(again, SocketLink)
    brief.abdicate(has_failed=False)
    again.close()
    assert isinstance(other.find(), OwnerLink)


def test_a_process_that_owned_briefly_and_has_failed_never_owns_again(make: Make) -> None:
    """As any other one."""
    finder = make(can_own=False)
    finder.find()
    finder.abdicate(has_failed=True)
    assert finder.find() is None
    assert not finder.owns_briefly


def test_an_interruption_behind_the_making_of_an_owner_loses_neither_lock_nor_queue(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look takes both."""
    finder, made = make(), module.Owner

    def interrupt(*arguments: object) -> None:
        made(*arguments)  # type: ignore[arg-type]  # and nothing knows it
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "Owner", interrupt)
    with pytest.raises(KeyboardInterrupt):
        finder.find()
    monkeypatch.undo()
    assert isinstance(finder.find(), OwnerLink)


@pytest.mark.parametrize(
    ("what", "said"), [("Endpoint.bind", "making the owner's socket"), ("ServerLoop", "serving the owner's socket")]
)
def test_an_owner_that_can_make_no_socket_says_which_queue_and_lets_the_next_one_in(
    make: Make, monkeypatch: pytest.MonkeyPatch, what: str, said: str
) -> None:
    """The error is one of this library."""

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(f"holdfast.queue.owner.owner.{what}", fail)
    with pytest.raises(StorageError, match=rf"{said}.*Too many open files"):
        make().find()
    monkeypatch.undo()
    assert isinstance(make().find(), OwnerLink)


@pytest.mark.parametrize(("is_patched", "kind"), [(True, type(None)), (False, OwnerLink)])
def test_a_process_patched_by_gevent_is_only_a_client(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_patched: bool,
    kind: type[object],
) -> None:
    """Its threads are not real ones; the log says so."""
    caplog.set_level("INFO", "holdfast")
    monkey = SimpleNamespace(is_module_patched=lambda name: is_patched and name == "socket")
    monkeypatch.setitem(sys.modules, "gevent.monkey", monkey)  # type: ignore[arg-type]
    finder = make()
    assert type(finder.find()) is kind
    assert ("gevent" in caplog.text) == is_patched
    if is_patched:
        error = finder.not_found()
        assert type(error) is RetryableError
        assert "no process owns" in str(error)
        assert "patched by gevent" in str(error)


def test_an_owner_that_does_not_answer_is_named(make: Make, tmp_path: Path) -> None:
    """It may be stopped, or recover the queue."""
    finder = make()
    lock = OwnerLock.try_take(OsStorage(), tmp_path / "q")
    assert lock is not None
    assert finder.find() is None
    with listening(tmp_path / "q" / ".owner" / "socket") as listener:
        lock.set_socket(tmp_path / "q" / ".owner" / "socket")
        listener.close()
        assert finder.find() is None
    error = finder.not_found()
    assert isinstance(error, QueueLockedError)
    assert str(lock and error.pid) in str(error)
    (tmp_path / "q" / ".owner" / "lock").write_bytes(b"")
    assert "another process" in str(finder.not_found())
    lock.release()


def test_a_poisoned_owner_never_owns_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is opened anew: it is a client, and says so if no other process takes over."""
    finder, other = make(), make()
    finder.find()
    finder.abdicate(has_failed=True)
    other.find()
    link = finder.find()
    assert isinstance(link, SocketLink)
    link.close()
    other.abdicate(has_failed=True)
    assert finder.find() is None
    monkeypatch.setattr(module, "_FREE_SECONDS", 0.0)
    with pytest.raises(PoisonedError, match="open it again"):
        finder.find()


def test_a_poisoned_owner_waits_for_one_that_takes_over(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as that one has the lock, it is on the way."""
    monkeypatch.setattr(module, "_FREE_SECONDS", 0.0)
    finder = make()
    finder.find()
    finder.abdicate(has_failed=True)
    lock = OwnerLock.try_take(OsStorage(), tmp_path / "q")
    assert lock is not None
    assert finder.find() is None
    lock.release()


def test_a_session_tells_a_successor_what_it_has_in_hand(make: Make) -> None:
    """The rest comes again at once; the numbers of both ways to it count."""
    owner, client = make(), make()
    own = owner.find()
    link = client.find()
    assert own is not None
    assert link is not None
    own.ask(Put(bytes(16), False, "", {}, None), (b"a", b"b"), None)
    numbers = [link.session << 32 | at for at in (1, 2)]
    for number in numbers:
        assert isinstance(link.ask(Take(DEFAULT_GROUP, number, 1, None, 0.0), (), 0.0).reply, Taken)
    client.consumer = Hand(numbers[1])
    owner.leave()
    link.close()
    successor = client.find()
    assert isinstance(successor, OwnerLink)
    again = Take(DEFAULT_GROUP, successor.session << 32 | 3, 5, None, 0.0)
    _, payloads, _ = successor.ask(again, (), 0.0)
    assert payloads == [b"a"]
    assert client.consumer.lost_count == 0


def test_a_client_that_connects_again_tells_what_it_has_in_hand(make: Make) -> None:
    """As after a cut connection."""
    owner, client = make(), make()
    owner.find()
    first = client.find()
    assert first is not None
    first.close()
    client.consumer = Hand()
    second = client.find()
    assert second is not None
    assert second.session == first.session
    second.close()


@pytest.mark.parametrize("is_owner", [False, True], ids=["found dead by the owner", "found dead by itself"])
def test_a_session_that_was_found_dead_is_followed_by_another_one(make: Make, *, is_owner: bool) -> None:
    """What it had in hand is stale."""
    owner, client = make(), make()
    owner.find()
    link = client.find()
    assert link is not None
    link.close()
    client.consumer = Hand(link.session << 32 | 1)
    before = number_of(client)
    client._session.end()
    if is_owner:
        owner.leave()
    again = client.find()
    assert again is not None
    assert again.session == number_of(client) != before
    assert client.consumer.lost_count == 1
    again.close()


def test_a_hello_that_fails_leaves_no_connection(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is none of an owner that ends is the caller's."""
    make().find()
    client = make()
    closed: list[SocketLink] = []

    def close(link: SocketLink) -> None:
        closed.append(link)

    def greet(link: SocketLink, session: int, making: str) -> None:
        raise StorageError("a bug")

    monkeypatch.setattr(SocketLink, "greet", greet)
    monkeypatch.setattr(SocketLink, "close", close)
    with pytest.raises(StorageError, match="a bug"):
        client.find()
    assert len(closed) == 1


def test_an_owner_that_ends_during_the_hello_is_not_found(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next look finds another one."""
    make().find()
    client = make()

    def greet(link: SocketLink, session: int, making: str) -> None:
        raise LinkLostError("killed", was_sent=False)

    monkeypatch.setattr(SocketLink, "greet", greet)
    assert client.find() is None


def test_a_session_without_a_file_is_a_client_too(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk; its number is of no other session."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    owner = make()
    owner.find()
    monkeypatch.setattr("holdfast.persistence.ownership.sessions._make", full)
    first, second = make(), make()
    links = first.find(), second.find()
    numbers = {link.session for link in links if link is not None}
    assert len(numbers) == 2
    for link in links:
        assert link is not None
        link.ask(Arrived(bytes(8), 1), (), 0.0)
        link.close()


def test_leaving_ends_owner_and_session(make: Make, tmp_path: Path) -> None:
    """Both are free."""
    finder = make()
    finder.find()
    assert finder.owner is not None
    finder.leave()
    finder.leave()
    lock = OwnerLock.try_take(OsStorage(), tmp_path / "q")
    assert lock is not None
    lock.release()
    assert finder.owner is None


def test_a_forked_child_leaves_the_owner_to_the_parent(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """With or without one."""
    finder, forgotten = make(), list[object]()
    finder.forget_after_fork()
    finder.find()
    owner = finder.owner
    assert owner is not None
    monkeypatch.setattr(owner, "forget_after_fork", lambda: forgotten.append(owner))
    finder.forget_after_fork()
    assert forgotten == [owner]
    assert finder.owner is None
    owner.close()


def test_an_owner_that_looks_where_the_queue_was_before_is_not_found(make: Make, tmp_path: Path) -> None:
    """It finds out within about a second that the directory was moved; until then it knows no session file of it."""
    owner = make()
    owner.find()
    (tmp_path / "q").rename(tmp_path / "moved")
    client = OwnerFinder(OsStorage(), SystemClock(), tmp_path / "moved", Options("shared", DEFAULT_GROUP))
    assert client.find() is None
    owner.abdicate(has_failed=False)
    assert isinstance(client.find(), OwnerLink)
    client.leave()


def test_an_owner_of_another_version_is_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """No later look would find it otherwise."""
    make().find()
    monkeypatch.setattr("holdfast.queue.client.link.VERSION", 99)
    with pytest.raises(UsageError, match="version 99"):
        make().find()

"""A process that owns a queue for others, and the way in which an owner hands the queue over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast import PersistentQueue, QueueLockedError, RetryableError, StorageError, UsageError
from holdfast.clock import SystemClock
from holdfast.errors import Empty
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.groups.group_files import DEFAULT_GROUP
from holdfast.persistence.ownership.owner_lock import OwnerLock
from holdfast.persistence.ownership.sessions import SessionFile, Sessions
from holdfast.queue import standing_owner
from holdfast.queue.client import membership, owner_finder
from holdfast.queue.client.link import OwnerLink, SocketLink
from holdfast.queue.client.membership import Membership
from holdfast.queue.client.owner_finder import OwnerFinder
from holdfast.queue.client.shared_engine import SharedEngine
from holdfast.queue.options.queue_options import Options
from holdfast.queue.protocol.messages import Verb
from holdfast.queue.standing_owner import StandingOwner
from support.processes.thread_starts import no_threads
from support.processes.threads import Threads, wait_until

Stand = Callable[[], StandingOwner]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often."""
    monkeypatch.setattr(standing_owner, "LOOK_SECONDS", 0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()
    return tmp_path / "q"


@pytest.fixture
def stand(path: Path) -> Iterator[Stand]:
    """Make owners of the queue, which are closed at the end."""
    made: list[StandingOwner] = []

    def stand() -> StandingOwner:
        made.append(StandingOwner(OsStorage(), SystemClock(), path))
        return made[-1]

    yield stand
    for each in made:
        each.close()


def test_an_application_hands_the_queue_over_and_gets_it_back(
    path: Path, stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    """Its handle stays usable all the time, with what it has in hand. Each change is one line in the log."""
    caplog.set_level("INFO", "holdfast")
    with PersistentQueue(path, mode="shared") as queue:
        queue.put_many([b"a", b"b"])
        delivery = queue.receive(timeout=5)
        owner = stand()
        assert (owner.is_owner, queue.is_owner) == (True, False)
        assert queue.put(b"c") == 2
        delivery.ack()
        owner.close()
        assert [queue.get(timeout=5), queue.get(timeout=5)] == [b"b", b"c"]
        assert queue.is_owner
    lines = [record.getMessage() for record in caplog.records if str(path) in record.getMessage()]
    assert [line.removeprefix(f"{path} ") for line in lines[-2:]] == ["is owned by this process", "is given back"]
    assert "hands it over to session" in lines[-3]


def test_requests_that_wait_are_sent_to_the_next_owner(path: Path, stand: Stand) -> None:
    """A take without messages, and a put without space: neither fails, however often the owner changes."""
    with (
        PersistentQueue(path, mode="shared", maxsize=1) as owner,
        PersistentQueue(path, mode="shared") as taker,
        PersistentQueue(path, mode="shared") as putter,
    ):
        threads, taken = Threads(), list[bytes]()
        threads.start(lambda: taken.extend(taker.get(timeout=30) for _ in range(2)))
        wait_until(lambda: _parked(owner) == 1, 60)
        standing = [stand() for _ in range(5)]
        assert not taken
        owner.put(b"a")
        wait_until(lambda: taken == [b"a"], 60)
        owner.put(b"b")
        threads.join()
        owner.put(b"c")
        threads.start(lambda: putter.put(b"d", timeout=30))
        wait_until(lambda: _parked_at(standing[-1]) == 1, 60)
        stand(), stand(), stand(), stand()
        assert owner.get(timeout=5) == b"c"
        threads.join()
        assert owner.get(timeout=5) == b"d"


def _parked(queue: PersistentQueue) -> int:
    assert isinstance(queue._engine, SharedEngine)
    return _parked_by(queue._engine._finder)


def _parked_at(owner: StandingOwner) -> int:
    return _parked_by(owner._finder)


def _parked_by(finder: OwnerFinder) -> int:
    owner = finder.owner
    return 0 if owner is None else len(owner._loop._handler._parked)  # type: ignore[attr-defined]


def test_a_second_one_takes_over_and_the_first_one_waits_until_it_has_ended(path: Path, stand: Stand) -> None:
    """A rolling restart ends the first one; if the second one ends instead, the first one owns again."""
    first = stand()
    second = stand()
    assert (first.is_owner, second.is_owner) == (False, True)
    with PersistentQueue(path, mode="shared") as queue:
        queue.put(b"a")
        second.close()
        wait_until(lambda: first.is_owner)
        assert queue.get(timeout=5) == b"a"
        assert not queue.is_owner


def test_an_owner_that_was_lost_is_owned_again(path: Path, stand: Stand) -> None:
    """As after the directory was moved and moved back, or if the thread that serves has failed."""
    owner = stand()
    assert owner._finder.owner is not None
    owner._finder.owner._loop.on_failed()
    epoch = owner._finder.owner.epoch
    wait_until(lambda: owner._finder.owner is not None and owner._finder.owner.epoch != epoch)
    wait_until(lambda: owner.is_owner)


def test_a_queue_of_another_mode_is_refused_and_names_its_owner(path: Path) -> None:
    """Nothing stays open."""
    with PersistentQueue(path, mode="exclusive"), pytest.raises(QueueLockedError, match="mode='shared'"):
        StandingOwner(OsStorage(), SystemClock(), path)
    PersistentQueue(path, mode="exclusive").close()


def test_settings_of_the_configuration_are_stored(path: Path) -> None:
    """Those of the group too."""
    StandingOwner(OsStorage(), SystemClock(), path, {"maxsize": 7, "max_deliveries": 3}).close()
    with PersistentQueue(path, mode="exclusive") as queue:
        assert (queue.settings["maxsize"], queue.settings["max_deliveries"]) == (7, 3)


def test_without_a_thread_nothing_is_owned(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that it may be tried again."""
    monkeypatch.setattr(standing_owner, "start_thread", lambda *_: None)
    with pytest.raises(RetryableError, match="no thread"):
        StandingOwner(OsStorage(), SystemClock(), path)
    PersistentQueue(path, mode="exclusive").close()


@pytest.mark.parametrize(
    ("error", "level"), [(StorageError, "ERROR"), (QueueLockedError, "INFO"), (MemoryError, "ERROR")]
)
def test_what_keeps_it_from_owning_is_logged_once(
    stand: Stand,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[Exception],
    level: str,
) -> None:
    """It tries again all the time."""
    caplog.set_level("INFO", "holdfast")
    owner, count = stand(), list[int]()

    def fail() -> None:
        count.append(1)
        raise error("not now")

    monkeypatch.setattr(owner, "_look", fail)
    wait_until(lambda: len(count) > 3)
    monkeypatch.undo()
    told = [record for record in caplog.records if "not now" in record.getMessage()]
    assert [record.levelname for record in told] == [level]


def test_an_owner_that_cannot_even_log_looks_again(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory, say."""
    owner, fail = stand(), Mock(side_effect=MemoryError)
    with monkeypatch.context() as patched:
        patched.setattr(owner, "_look", fail)
        patched.setattr(standing_owner.logger, "log", Mock(side_effect=MemoryError))
        wait_until(lambda: fail.call_count > 2)
    assert owner._thread is not None
    assert owner._thread.is_alive()


# -- The parts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def finders(path: Path) -> Iterator[Callable[[], OwnerFinder]]:
    """Make finders of the queue; they leave at the end."""
    made: list[OwnerFinder] = []

    def make() -> OwnerFinder:
        made.append(OwnerFinder(OsStorage(), SystemClock(), path, Options("shared", DEFAULT_GROUP)))
        return made[-1]

    yield make
    for each in made:
        each.leave()


def _hand_over(finders: Callable[[], OwnerFinder], heir: OwnerFinder) -> None:
    """Have an owner hand the queue over to a session, and close."""
    owner = finders()
    link = owner.find()
    assert isinstance(link, OwnerLink)
    other = heir.find()
    assert isinstance(other, SocketLink)
    heard: list[int] = []
    assert owner.owner is not None
    owner.owner.on_displaced = lambda: heard.append(1)
    other.ask(Verb("", {"verb": "hand_over", "heir": other.session}), (), 0.0)
    other.ask(Verb("", {"verb": "hand_over", "heir": other.session}), (), 0.0)
    wait_until(lambda: heard == [1])
    other.close()
    owner.abdicate(has_failed=False)
    assert owner.heir == other.session


def test_the_lock_is_left_to_an_heir_that_lives(finders: Callable[[], OwnerFinder]) -> None:
    """The first that looks."""
    heir, third = finders(), finders()
    _hand_over(finders, heir)
    assert third.find() is None
    assert isinstance(heir.find(), OwnerLink)
    link = third.find()
    assert isinstance(link, SocketLink)
    link.close()


@pytest.mark.parametrize("dies", [True, False])
def test_the_lock_is_not_left_to_an_heir_that_died_or_does_not_take_it(
    finders: Callable[[], OwnerFinder], monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    """It has a second for that."""
    heir, third = finders(), finders()
    _hand_over(finders, heir)
    if dies:
        heir._session.end()
    else:
        assert third.find() is None
        monkeypatch.setattr(owner_finder, "_HEIR_SECONDS", 0.0)
    assert isinstance(third.find(), OwnerLink)


def test_a_queue_is_handed_over_to_a_living_session_only(path: Path, finders: Callable[[], OwnerFinder]) -> None:
    """The owner stays."""
    finder = finders()
    link = finder.find()
    assert link is not None
    for heir in (0, -1, 2**32, "7", None):
        with pytest.raises(UsageError, match="number of a session"):
            link.ask(Verb("", {"verb": "hand_over", "heir": heir}), (), 0.0)
    with pytest.raises(UsageError, match="does not live"):
        link.ask(Verb("", {"verb": "hand_over", "heir": 7}), (), 0.0)
    assert finder.owner is not None
    assert finder.owner.heir == 0
    with no_threads(), pytest.raises(RetryableError, match="no thread"):
        link.ask(Verb("", {"verb": "hand_over", "heir": link.session}), (), 0.0)
    assert finder.owner.heir == 0


def test_an_heir_that_cannot_be_noted_is_one_of_all(
    finders: Callable[[], OwnerFinder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: the lock is released all the same."""
    heir, third = finders(), finders()
    set_socket = OwnerLock.set_socket

    def fail(lock: OwnerLock, socket: Path | None, *, is_brief: bool = False, heir: int = 0) -> None:
        if heir:
            raise OSError("No space left on device")
        set_socket(lock, socket, is_brief=is_brief)

    monkeypatch.setattr(OwnerLock, "set_socket", fail)
    _hand_over(finders, heir)
    assert isinstance(third.find(), OwnerLink)


def test_an_owner_that_does_not_hand_over_in_time_is_named(
    path: Path, finders: Callable[[], OwnerFinder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is owned by another process then."""
    finders().find()
    other = Membership(finders())
    monkeypatch.setattr(membership, "OWNER_SECONDS", 0.05)
    monkeypatch.setattr(other, "ask", lambda request: None)
    with pytest.raises(QueueLockedError, match="does not answer"):
        other.take_over()
    other.leave()


def test_a_session_that_lives_is_told_by_its_file(path: Path) -> None:
    """So a standing owner whose heir was killed owns again."""
    session = SessionFile.begin(OsStorage(), path)
    sessions = Sessions(OsStorage(), path)
    session.named(sessions.admit(session.making))
    assert sessions.is_alive(session.number)
    session.end()
    assert not Sessions(OsStorage(), path).is_alive(session.number)


def test_an_empty_queue_stays_empty_for_takers_across_owners(path: Path, stand: Stand) -> None:
    """A take ends at its own time, and no sooner or later because the owner changes."""
    with PersistentQueue(path, mode="shared") as queue:
        stand()
        with pytest.raises(Empty):
            queue.get(timeout=0.05)


def test_what_was_handed_over_is_not_taken_back_while_it_is_closed(path: Path, stand: Stand) -> None:
    """It looks meanwhile, and sees that it does not own."""
    first = stand()
    owner = first._finder.owner
    assert owner is not None
    is_closing, may_end = threading.Event(), threading.Event()

    def held_up() -> None:
        is_closing.set()
        assert may_end.wait(30)

    owner._closing.callback(held_up)
    made, threads = list[StandingOwner](), Threads()
    threads.start(lambda: made.append(stand()))
    assert is_closing.wait(30)
    looks: list[int] = []
    has_heir = first._has_heir
    first._has_heir = lambda: looks.append(1) or has_heir()  # type: ignore[func-returns-value, method-assign]
    wait_until(lambda: len(looks) > 0)
    may_end.set()
    threads.join()
    before = len(looks)
    wait_until(lambda: len(looks) > before + 5)
    assert made[0].is_owner
    assert made[0]._finder.heir == 0

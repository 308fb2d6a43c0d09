"""Sessions: who lives is told by a name and a lock, and dead is final."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import signal
from pathlib import Path

import pytest

from holdfast import ConfigError, UsageError
from holdfast.persistence.filesystem.storage import File, OsStorage
from holdfast.persistence.ownership import sessions as module
from holdfast.persistence.ownership.sessions import NO_NUMBER, SessionFile, Sessions
from support.processes.children import Signal, child
from support.processes.interruptions import Kind, interrupted, points_of
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/service")
PLACE = ROOT / ".owner" / "sessions"
OS = OsStorage()


@pytest.fixture
def storage() -> SimulatedStorage:
    """Return a disk with the directory of a service."""
    storage = SimulatedStorage()
    storage.make_directory(ROOT)
    return storage


@pytest.fixture
def sessions(storage: SimulatedStorage) -> Sessions:
    """Return the sessions as an owner sees them."""
    return Sessions(storage, ROOT)


def admitted(storage: SimulatedStorage, sessions: Sessions) -> SessionFile:
    """Begin a session and have it admitted."""
    session = SessionFile.begin(storage, ROOT)
    session.named(sessions.admit(session.making))
    return session


def file_of(session: SessionFile) -> Path:
    """Return the path of a session that is admitted."""
    return PLACE / f"{session.number:08x}.lock"


def test_a_session_lives_from_its_admission_to_its_end(storage: SimulatedStorage, sessions: Sessions) -> None:
    """The owner finds the end by a sweep, which says so once, and removes the file."""
    session = SessionFile.begin(storage, ROOT)
    assert session.number == NO_NUMBER
    assert sessions.living() == set()
    number = sessions.admit(session.making)
    session.named(number)
    assert 0 < number < 2**32
    assert storage.list(PLACE) == [f"{number:08x}.lock"]
    assert sessions.is_alive(number)
    assert sessions.living() == {number}
    assert sessions.sweep() == []
    session.end()
    session.end()
    assert not sessions.is_alive(number)
    assert sessions.sweep() == [number]
    assert sessions.sweep() == []
    assert storage.list(PLACE) == []
    assert sessions.living() == set()


def test_sessions_have_different_numbers(
    storage: SimulatedStorage, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never 0, nor that of another file, nor that of one that is dead."""
    drawn = iter([0, 1, 1, 2, 1, 2, 3])
    monkeypatch.setattr(secrets, "randbits", lambda bits: next(drawn) if bits == 32 else None)
    first, second = admitted(storage, sessions), admitted(storage, sessions)
    assert (first.number, second.number) == (1, 2)
    second.end()
    assert sessions.sweep() == [2]
    assert admitted(storage, sessions).number == 3


def test_a_number_of_an_owner_before_is_not_given_again(
    storage: SimulatedStorage, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor has not met the session yet, but its file is there."""
    drawn = iter([7, 7, 8])
    monkeypatch.setattr(secrets, "randbits", lambda _: next(drawn))
    assert admitted(storage, sessions).number == 7
    assert admitted(storage, Sessions(storage, ROOT)).number == 8


def test_a_successor_finds_who_lives(storage: SimulatedStorage, sessions: Sessions) -> None:
    """By the files alone; what has ended in between is reported, and its file goes."""
    first, second, third = (admitted(storage, sessions) for _ in range(3))
    second.end()
    third.end()
    successor = Sessions(storage, ROOT)
    assert not successor.is_alive(third.number)
    assert successor.living() == {first.number}
    assert successor.sweep() == sorted([second.number, third.number])
    assert storage.list(PLACE) == [file_of(first).name]


def test_dead_is_final(storage: SimulatedStorage, sessions: Sessions) -> None:
    """Also if the file of the number gets a lock afterwards: its messages are with others by then."""
    session = admitted(storage, sessions)
    storage.rename(file_of(session), PLACE / "elsewhere")
    assert not sessions.is_alive(session.number)
    storage.rename(PLACE / "elsewhere", file_of(session))
    assert storage.is_locked(file_of(session))
    assert not sessions.is_alive(session.number)
    assert sessions.living() == set()
    assert sessions.sweep() == [session.number]
    assert storage.list(PLACE) == []


def test_a_number_that_has_no_file_is_dead(storage: SimulatedStorage, sessions: Sessions) -> None:
    """As after a loss of power, when only position files speak of it."""
    assert not sessions.is_alive(5)
    assert not sessions.is_alive(NO_NUMBER)
    assert sessions.sweep() == [5]


def test_session_files_that_were_removed_are_dead_sessions(storage: SimulatedStorage, sessions: Sessions) -> None:
    """The process has a lock, and no name; the sweep reports it without having been asked before."""
    session = admitted(storage, sessions)
    storage.remove(file_of(session))
    assert sessions.sweep() == [session.number]


def test_all_of_the_directory_may_be_removed(tmp_path: Path) -> None:
    """All are dead, and the next session makes it again."""
    (sessions, session) = Sessions(OS, tmp_path), SessionFile.begin(OS, tmp_path)
    number = sessions.admit(session.making)
    shutil.rmtree(tmp_path / ".owner")
    assert sessions.living() == set()
    assert sessions.sweep() == [number]
    again = SessionFile.begin(OS, tmp_path)
    assert sessions.living() == set()
    assert sessions.is_alive(sessions.admit(again.making))
    session.end()


def test_a_session_that_has_said_goodbye_is_removed_and_not_reported(
    storage: SimulatedStorage, sessions: Sessions
) -> None:
    """The owner knows. Removing it again does nothing."""
    session = admitted(storage, sessions)
    sessions.remove(session.number)
    sessions.remove(session.number)
    assert storage.list(PLACE) == []
    assert not sessions.is_alive(session.number)
    assert sessions.sweep() == []


def test_a_beginning_that_no_process_holds_is_removed(storage: SimulatedStorage, sessions: Sessions) -> None:
    """Its process has ended; one that is locked waits for its hello, and other names stay."""
    held, ended = SessionFile.begin(storage, ROOT), SessionFile.begin(storage, ROOT)
    ended.end()
    storage.open(PLACE / "note", create=True).close()
    assert sessions.sweep() == []
    assert storage.list(PLACE) == sorted([held.making, "note"])
    assert sessions.is_alive(sessions.admit(held.making))


def test_a_test_is_not_taken_for_a_session(storage: SimulatedStorage, sessions: Sessions) -> None:
    """Two owners for a moment, or an owner and a command that looks: both find the file free."""
    session = admitted(storage, sessions)
    session.end()
    with storage.open(file_of(session), writable=False) as other_test:
        assert other_test.try_lock(shared=True)
        assert not sessions.is_alive(session.number)


# -- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "making",
    [
        "../x",
        "../sessions/0123456789abcdef.making",
        "/service/.owner/sessions/0123456789abcdef.making",
        "0123456789abcdef.making\n",
        "0123456789abcdef.making\0",
        "0123456789ABCDEF.making",
        "\N{ARABIC-INDIC DIGIT ZERO}123456789abcdef.making",
        "123456789abcdef.making",
        "0123456789abcdef.lock",
        "0123456789abcdef",
        7,
        None,
        b"0123456789abcdef.making",
    ],
)
def test_a_name_that_no_session_makes_is_refused(storage: SimulatedStorage, sessions: Sessions, making: str) -> None:
    """Before anything is opened: it comes from another process."""
    storage.make_directory(ROOT / ".owner")
    storage.make_directory(PLACE)
    count = storage.verb_count
    with pytest.raises(UsageError, match="no name of a session file"):
        sessions.admit(making)
    assert storage.verb_count == count


@pytest.mark.parametrize("kind", ["missing", "free", "link", "directory", "fifo", "second name"])
def test_a_file_that_is_no_session_is_refused(tmp_path: Path, kind: str) -> None:
    """It stays as it is: a locked file of another name must not become a session's."""
    sessions, session = Sessions(OS, tmp_path), SessionFile.begin(OS, tmp_path)
    place = tmp_path / ".owner" / "sessions"
    path = place / f"{'a' * 16}.making"
    if kind == "free":
        path.touch()
    elif kind == "link":
        path.symlink_to(place / session.making)
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "second name":
        os.link(place / session.making, path)
    before = sorted(os.listdir(place))
    with pytest.raises(UsageError, match="begin another session"):
        sessions.admit(path.name)
    assert sorted(os.listdir(place)) == before
    session.end()


def test_a_session_is_admitted_once(storage: SimulatedStorage, sessions: Sessions) -> None:
    """The second hello finds no file."""
    session = admitted(storage, sessions)
    with pytest.raises(UsageError, match="begin another session"):
        sessions.admit(session.making)


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_what_is_no_plain_file_is_a_dead_session(tmp_path: Path, kind: str) -> None:
    """A link to a locked file does not make a session."""
    session = SessionFile.begin(OS, tmp_path)
    path = tmp_path / ".owner" / "sessions" / "0000000a.lock"
    if kind == "link":
        path.symlink_to(path.with_name(session.making))
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    sessions = Sessions(OS, tmp_path)
    assert sessions.living() == set()
    assert (sessions.sweep(), sessions.sweep()) == ([10], [])
    session.end()


def test_what_cannot_be_told_is_an_error_and_no_death(storage: SimulatedStorage, sessions: Sessions) -> None:
    """A process without descriptors must not give away what others have in hand."""
    session, making = admitted(storage, sessions), SessionFile.begin(storage, ROOT)
    ended = admitted(storage, sessions)
    ended.end()
    for verb in ("open", "try_lock"):
        with refusing(storage, verb, error=errno.EMFILE):
            with pytest.raises(OSError, match="Too many"):
                sessions.is_alive(session.number)
            with pytest.raises(OSError, match="Too many"):
                sessions.sweep()
            with pytest.raises(OSError, match="Too many"):
                sessions.admit(making.making)
    with refusing(storage, "list", error=errno.EIO), pytest.raises(OSError, match="Input/output"):
        sessions.living()
    assert sessions.is_alive(session.number)
    assert sessions.sweep() == [ended.number]


def test_files_that_cannot_be_removed_are_tried_again(storage: SimulatedStorage, sessions: Sessions) -> None:
    """A session is reported once all the same."""
    session, making = admitted(storage, sessions), SessionFile.begin(storage, ROOT)
    session.end()
    making.end()
    with refusing(storage, "remove", error=errno.EROFS):
        assert sessions.sweep() == [session.number]
    with refusing(storage, "open", name=".making", error=errno.EMFILE):
        assert sessions.sweep() == []
    assert storage.list(PLACE) == [making.making]
    assert sessions.sweep() == []
    assert storage.list(PLACE) == []


# -- Beginning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("verb", ["make_directory", "open"])
def test_without_space_a_session_has_no_file(
    storage: SimulatedStorage, sessions: Sessions, verb: str, error: int
) -> None:
    """It is a client all the same; no later owner finds its number."""
    with refusing(storage, verb, error=error):
        session = SessionFile.begin(storage, ROOT)
    assert (session.making, session.number) == ("", NO_NUMBER)
    session.end()
    session.named(sessions.admit(session.making))
    assert 0 < session.number < 2**32
    assert sessions.is_alive(session.number)
    assert sessions.living() == {session.number}
    assert sessions.sweep() == []
    assert not Sessions(storage, ROOT).is_alive(session.number)
    sessions.remove(session.number)
    assert not sessions.is_alive(session.number)
    assert sessions.sweep() == []


@pytest.mark.parametrize("verb", ["make_directory", "open", "try_lock", "identity"])
def test_another_error_of_the_disk_is_one(storage: SimulatedStorage, sessions: Sessions, verb: str) -> None:
    """Nothing stays locked, so a sweep removes what was made."""
    with refusing(storage, verb, error=errno.EIO), pytest.raises(OSError, match="Input/output"):
        SessionFile.begin(storage, ROOT)
    sessions.sweep()
    assert not storage.tree().keys() > {PLACE} or storage.list(PLACE) == []
    with pytest.raises(FileNotFoundError):
        SessionFile.begin(storage, Path("/missing"))


def test_others_may_not_write_among_the_sessions(tmp_path: Path) -> None:
    """Another user could end or keep a session."""
    SessionFile.begin(OS, tmp_path).end()
    (tmp_path / ".owner" / "sessions").chmod(0o777)
    with pytest.raises(ConfigError, match="sessions"):
        SessionFile.begin(OS, tmp_path)


def test_a_file_that_an_owner_sweeps_away_before_it_is_locked_is_made_again(
    storage: SimulatedStorage, sessions: Sessions
) -> None:
    """Without a lock it looks like one whose process has ended; without a name it would never live."""
    swept = 0

    def sweep(called: str, _: Path) -> None:
        nonlocal swept
        if called == "try_lock" and swept < 3:
            swept += 1
            before, storage.before_verb = storage.before_verb, None
            sessions.sweep()
            storage.before_verb = before

    storage.before_verb = sweep
    session = SessionFile.begin(storage, ROOT)
    assert swept == 3
    assert storage.list(PLACE) == [session.making]
    assert sessions.is_alive(sessions.admit(session.making))


def test_a_file_that_is_being_tested_is_not_taken(storage: SimulatedStorage) -> None:
    """The owner is about to remove it: the session takes another one."""
    tests: list[File] = []

    def test(called: str, path: Path) -> None:
        if called == "try_lock" and not tests:
            storage.before_verb = None
            tests.append(storage.open(path, writable=False))
            assert tests[0].try_lock(shared=True)

    storage.before_verb = test
    session = SessionFile.begin(storage, ROOT)
    assert len(storage.list(PLACE)) == 2
    assert storage.is_locked(PLACE / session.making)


def test_files_that_are_removed_again_and_again_are_an_error(storage: SimulatedStorage) -> None:
    """Beginning has an end."""

    def remove(called: str, path: Path) -> None:
        if called == "try_lock":
            storage.remove(path)

    storage.before_verb = remove
    with pytest.raises(OSError, match="as soon as they are made"):
        SessionFile.begin(storage, ROOT)


def test_a_beginning_that_is_interrupted_leaves_nothing_locked() -> None:
    """Wherever that is, no session without a process seems to live."""

    def made() -> SimulatedStorage:
        storage = SimulatedStorage()
        storage.make_directory(ROOT)
        return storage

    def begin(storage: SimulatedStorage) -> None:
        SessionFile.begin(storage, ROOT).end()

    begin(made())
    storage = made()
    points = [point for point in points_of(lambda: begin(storage)) if point.kind is not Kind.ELSEWHERE]
    assert len(points) > 50
    for point in points:
        storage = made()
        error = interrupted(lambda storage=storage: SessionFile.begin(storage, ROOT), point)  # type: ignore[misc]
        if error is not None:
            assert isinstance(error, KeyboardInterrupt), point
            Sessions(storage, ROOT).sweep()
            assert not [path for path in storage.tree() if path.suffix == ".making"], point
            del error


def test_a_beginning_that_is_interrupted_at_its_very_end_is_unlocked(
    storage: SimulatedStorage, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is locked by then, and the caller has nothing to end."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SessionFile, "__init__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        SessionFile.begin(storage, ROOT)
    assert len(storage.list(PLACE)) == 1
    sessions.sweep()
    assert storage.list(PLACE) == []


# -- Real processes --------------------------------------------------------------------------------------------------


def test_a_killed_process_is_a_dead_session(tmp_path: Path) -> None:
    """From the moment at which it has ended; before, it lives."""
    says, ends = Signal(), Signal()

    def live() -> None:
        says.send(SessionFile.begin(OS, tmp_path).making)
        ends.wait()

    sessions = Sessions(OS, tmp_path)
    with child(live) as process, child(live) as other:
        numbers = {says.wait(): 0, says.wait(): 0}
        numbers = {making: sessions.admit(making) for making in numbers}
        assert sessions.living() == set(numbers.values())
        process.kill()
        assert process.wait() == -signal.SIGKILL
        (found,) = sessions.sweep()
        assert sessions.living() == set(numbers.values()) - {found}
        other.kill()
        other.wait()
        assert sessions.sweep() == list(set(numbers.values()) - {found})
    assert os.listdir(tmp_path / ".owner" / "sessions") == []


def test_a_forked_child_does_not_keep_the_session_of_its_parent(tmp_path: Path) -> None:
    """Also if it outlives the parent, and ends the session that it has a copy of."""
    session, sessions = SessionFile.begin(OS, tmp_path), Sessions(OS, tmp_path)
    number = sessions.admit(session.making)
    says, ends = Signal(), Signal()

    def stay() -> None:
        session.end()
        says.send()
        ends.wait()

    with child(stay):
        says.wait()
        assert sessions.is_alive(number)
        session.end()
        assert not sessions.is_alive(number)


def test_the_files_of_sessions_are_for_this_user_only(tmp_path: Path) -> None:
    """As all of the owner's."""
    session = SessionFile.begin(OS, tmp_path)
    place = tmp_path / ".owner" / "sessions"
    assert place.stat().st_mode & 0o777 == 0o700
    assert (place / session.making).stat().st_mode & 0o777 == 0o600
    session.end()


def test_an_owner_that_lives_long_remembers_a_bounded_number_of_dead_sessions(
    storage: SimulatedStorage, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before have no file, and so are found dead again; no session is ever named as none."""
    monkeypatch.setattr(module, "_DEAD_MAX", 3)
    numbers = []
    for _ in range(5):
        session = admitted(storage, sessions)
        session.end()
        numbers += sessions.sweep()
    assert len(numbers) == 5
    assert sorted(sessions._dead) == sorted([NO_NUMBER, *numbers[-2:]])
    assert not any(sessions.is_alive(each) for each in (NO_NUMBER, *numbers))

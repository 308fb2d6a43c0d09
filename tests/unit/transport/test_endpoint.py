"""The owner's socket: a name that clients find once it listens, in any directory, and this user only."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast import ConfigError
from holdfast.queue.transport import endpoint as module
from holdfast.queue.transport import open_sockets, peer
from holdfast.queue.transport.endpoint import Endpoint, connect
from support.processes.children import Signal, child
from support.processes.interruptions import Kind, interrupted, points_of

SECONDS = 5.0
NOBODY = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory for a socket, whose path is short enough."""
    path = tmp_path / "d"
    path.mkdir(mode=0o700)
    return path


@contextmanager
def bound(directory: Path) -> Iterator[Endpoint]:
    """Bind a socket, which is closed when the block ends."""
    with closing(Endpoint.bind(directory)) as endpoint:
        yield endpoint


def accepted(endpoint: Endpoint) -> socket.socket:
    """Return the connection that waits."""
    assert select.select([endpoint.listener], [], [], SECONDS)[0]
    return endpoint.listener.accept()[0]


def is_reached(endpoint: Endpoint, path: Path) -> bool:
    """Whether bytes that go into a connection to ``path`` come out at an endpoint."""
    with connect(path, SECONDS) as client, accepted(endpoint) as server:
        client.sendall(b"hello")
        server.settimeout(SECONDS)
        return server.recv(5) == b"hello"


def test_a_client_reaches_the_socket_by_its_name(directory: Path) -> None:
    """It listens as soon as the name is there, and is for this user only."""
    with bound(directory) as endpoint:
        assert endpoint.path == directory / "socket"
        assert stat.S_IMODE(endpoint.path.lstat().st_mode) == 0o600
        assert os.listdir(directory) == ["socket"]
        assert is_reached(endpoint, endpoint.path)
        with pytest.raises(BlockingIOError):
            endpoint.listener.accept()
        assert not endpoint.listener.get_inheritable()
        endpoint.listener.close()  # as the loop does that it was given to
    assert os.listdir(directory) == []
    with pytest.raises(FileNotFoundError):
        connect(endpoint.path, SECONDS)


def test_a_connection_has_the_timeout_for_each_call(directory: Path) -> None:
    """An owner that does not answer holds up no client for ever."""
    with bound(directory) as endpoint, connect(endpoint.path, 0.01) as client:
        assert not client.get_inheritable()
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_the_socket_of_a_killed_owner_is_replaced(directory: Path) -> None:
    """A client is refused by the remains; what was bound and had no name yet is removed."""
    says, ends = Signal(), Signal()

    def own() -> None:
        Endpoint.bind(directory)
        module._temporary(directory / "socket").touch()
        says.send()
        ends.wait()

    with child(own) as owner:
        says.wait()
        owner.kill()
        owner.wait()
    (directory / "socket.note").touch()
    with pytest.raises(ConnectionRefusedError):
        connect(directory / "socket", SECONDS)
    with bound(directory) as endpoint:
        assert is_reached(endpoint, endpoint.path)
        assert sorted(os.listdir(directory)) == ["socket", "socket.note"]


def test_a_socket_that_was_removed_is_not_in_place_and_is_bound_anew(directory: Path) -> None:
    """The old one removes no name that is no longer its own."""
    with bound(directory) as old:
        assert old.is_in_place()
        old.path.unlink()
        assert not old.is_in_place()
        with bound(directory) as new:
            assert new.is_in_place()
            assert not old.is_in_place()
            old.close()
            assert is_reached(new, new.path)
        with bound(directory) as newest:
            old.close()
            new.close()
            assert is_reached(newest, newest.path)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_no_socket_is_neither_connected_to_nor_removed(directory: Path, kind: str) -> None:
    """A link could lead to another program's socket."""
    with bound(directory) as endpoint:
        moved = endpoint.path.rename(directory / "moved")
        if kind == "file":
            endpoint.path.touch()
        else:
            endpoint.path.symlink_to(moved)
        with pytest.raises(OSError, match="socket") as caught:
            connect(endpoint.path, SECONDS)
        assert caught.value.errno == errno.ENOTSOCK
        endpoint.close()
        assert sorted(os.listdir(directory)) == ["moved", "socket"]


def test_a_name_that_cannot_be_taken_leaves_nothing(directory: Path) -> None:
    """No socket under a temporary name either."""
    (directory / "socket").mkdir()
    with pytest.raises(IsADirectoryError):
        Endpoint.bind(directory)
    assert os.listdir(directory) == ["socket"]
    with pytest.raises(FileNotFoundError):
        Endpoint.bind(directory / "missing")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the interpreter closes what is dropped
def test_a_binding_that_is_interrupted_leaves_nothing(directory: Path) -> None:
    """Wherever that is, another one succeeds, and is alone."""

    def bind() -> None:
        Endpoint.bind(directory).close()

    points = [point for point in points_of(bind) if point.kind is Kind.DELIVERED]
    assert len(points) > 10
    for point in points:
        error = interrupted(bind, point)
        assert error is None or isinstance(error, KeyboardInterrupt), point
        del error
    with bound(directory) as endpoint:
        assert is_reached(endpoint, endpoint.path)
        assert os.listdir(directory) == ["socket"]


def test_a_client_waits_for_room_and_not_longer(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many connections wait as the kernel has room for; more of them are refused at once, or wait."""
    monkeypatch.setattr(module, "_WAITING_MAX", 1)
    with bound(directory) as endpoint:
        held: list[socket.socket] = []
        started = time.monotonic()
        with pytest.raises((TimeoutError, ConnectionRefusedError)):
            held.extend(connect(endpoint.path, 0.05) for _ in range(10))
        assert time.monotonic() - started < SECONDS
        for each in held:
            each.close()


# -- Long paths ------------------------------------------------------------------------------------------------------


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """Return a directory whose path has no room in an address."""
    path = tmp_path / ("a" * 100) / ("b" * 100)
    path.mkdir(parents=True)
    return path


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="takes /proc")
def test_a_socket_with_a_long_path_is_reached_through_its_directory(far: Path) -> None:
    """Its path is as long, and a note beside it may name it by one word."""
    with bound(far) as endpoint:
        assert endpoint.path == far / "socket"
        assert os.listdir(far) == ["socket"]
        assert endpoint.is_in_place()
        assert is_reached(endpoint, endpoint.path)
    assert os.listdir(far) == []


def test_a_socket_moves_with_its_directory(directory: Path) -> None:
    """Clients that know the new path reach it; for the owner it is not in place."""
    with bound(directory) as endpoint:
        moved = directory.rename(directory.with_name("moved"))
        assert not endpoint.is_in_place()
        assert is_reached(endpoint, moved / "socket")


@pytest.fixture
def without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as on a system that cannot name a file through a descriptor of its directory."""
    monkeypatch.setattr(module, "_DESCRIPTORS", Path("/missing"))


@pytest.mark.usefixtures("without_descriptors")
@pytest.mark.parametrize("is_told", [True, False])
def test_elsewhere_it_is_in_the_runtime_directory(
    far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """Each long path has a name of its own there, and a new owner replaces what a killed one has left."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if is_told:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    else:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (far / "c").mkdir()
    with bound(far) as endpoint, bound(far / "c") as other, bound(far) as successor:
        home = tmp_path / f"holdfast-{os.geteuid()}"
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert endpoint.path.parent == other.path.parent == home
        assert endpoint.path == successor.path != other.path
        assert not endpoint.is_in_place()
        assert is_reached(successor, successor.path)
        assert is_reached(other, other.path)
    assert os.listdir(home) == []
    with pytest.raises(FileNotFoundError):
        connect(far / "socket", SECONDS)


@pytest.mark.usefixtures("without_descriptors")
@pytest.mark.parametrize("kind", ["link", "file", "others"])
def test_a_runtime_directory_that_is_not_this_users_alone_is_refused(
    far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Everybody can make a directory in /tmp, also under the name that is ours."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    home = tmp_path / f"holdfast-{os.geteuid()}"
    if kind == "link":
        home.symlink_to(tmp_path)
    elif kind == "file":
        home.touch(mode=0o600)
    else:
        home.mkdir()
        home.chmod(0o750)
    with pytest.raises(ConfigError, match="alone"):
        Endpoint.bind(far)


@pytest.mark.usefixtures("without_descriptors")
def test_a_long_path_that_cannot_be_reached_is_an_error(far: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that was bound on another system, or a runtime directory with a long path itself."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(far))
    with pytest.raises(OSError, match="too long") as caught:
        Endpoint.bind(far)
    assert caught.value.errno == errno.ENAMETOOLONG
    monkeypatch.undo()
    with bound(far) as endpoint:
        monkeypatch.setattr(module, "_DESCRIPTORS", Path("/missing"))
        with pytest.raises(OSError, match="too long"):
            connect(endpoint.path, SECONDS)


# -- Forks -----------------------------------------------------------------------------------------------------------


def test_a_forked_child_has_no_copy_of_a_socket(directory: Path) -> None:
    """A client would connect to an owner that has ended, or wait for one whose end it cannot see."""
    says, ends = Signal(), Signal()
    with bound(directory) as endpoint, connect(endpoint.path, SECONDS) as client, accepted(endpoint) as server:

        def stay() -> None:
            assert endpoint.listener.fileno() == client.fileno() == -1
            endpoint.close()
            os.close(server.fileno())  # as the loop does that accepted it
            says.send()
            ends.wait()

        with child(stay):
            says.wait()
            assert endpoint.is_in_place()
            client.close()
            server.settimeout(SECONDS)
            assert server.recv(1) == b""
            endpoint.listener.close()
            with pytest.raises(ConnectionRefusedError):
                connect(endpoint.path, SECONDS)


def test_a_child_closes_its_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be closed holds up no other."""
    first, second = socket.socketpair()
    with first, second:
        monkeypatch.setattr(open_sockets, "_open_sockets", [first, second])
        os.close(first.fileno())
        open_sockets._close_copies()
        assert first.fileno() == second.fileno() == -1


# -- Who is at the other end -----------------------------------------------------------------------------------------


def test_the_peer_of_a_connection_is_this_user(directory: Path) -> None:
    """Both ends can tell."""
    with bound(directory) as endpoint, connect(endpoint.path, SECONDS) as client, accepted(endpoint) as server:
        assert peer.peer_uid(client) == peer.peer_uid(server) == os.geteuid()
        peer.check_peer(server)


def test_a_client_refuses_an_owner_of_another_user(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is closed, and the error says which users these are."""
    with bound(directory) as endpoint:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
        with pytest.raises(ConfigError, match=f"is of user {os.getuid()}, this is user {NOBODY}"):
            connect(endpoint.path, SECONDS)
        with accepted(endpoint) as server:
            server.settimeout(SECONDS)
            assert server.recv(1) == b""


@needs_root
def test_two_users_refuse_one_another(directory: Path) -> None:
    """The owner's check and the client's, with processes that are who they are."""
    says = Signal()

    def visit() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        with pytest.raises(ConfigError, match=f"is of user 0, this is user {NOBODY}"):
            connect(directory / "socket", SECONDS)
        says.send("refused")

    with bound(directory) as endpoint:
        endpoint.path.chmod(0o666)  # what an owner must not do
        for path in (directory, *directory.parents):
            if path != Path("/"):
                path.chmod(path.stat().st_mode | 0o011)
        with child(visit) as visitor:
            assert says.wait() == "refused"
            with accepted(endpoint) as server, pytest.raises(ConfigError, match=f"is of user {NOBODY}, this is user 0"):
                peer.check_peer(server)
            assert visitor.wait() == 0


class MacSocket:
    """A socket that tells who is at its other end as macOS does."""

    def __init__(self, version: int, uid: int) -> None:
        self._told = (version, uid)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (0, 1)
        told = peer._MACOS.pack(*self._told, 1, *range(16))
        assert len(told) == size == 76
        return told


def test_macos_tells_the_user_in_a_form_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 0 is the one that there is."""
    monkeypatch.setattr("sys.platform", "darwin")
    assert peer.peer_uid(MacSocket(0, 501)) == 501  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown form"):
        peer.peer_uid(MacSocket(1, 501))  # type: ignore[arg-type]


def test_a_system_that_does_not_tell_the_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check any user could take messages."""
    monkeypatch.setattr("sys.platform", "plan9")
    with pytest.raises(ConfigError, match="one process only"):
        peer.peer_uid(MacSocket(0, 501))  # type: ignore[arg-type]

"""Owners look for requests in one thread, and serve them in threads of their own."""

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.server import request_server
from holdfast.queue.server.request_server import RequestServer
from support.processes.threads import Threads, wait_until


class BrokenStorage(OsStorage):
    """Cannot list ``requests/`` while ``is_broken``."""

    is_broken = False

    def list(self, path: Path) -> list[str]:
        if self.is_broken and path.name == "requests":
            raise OSError(errno.EIO, "broken")
        return super().list(path)


@pytest.fixture
def storage() -> BrokenStorage:
    """That of the first queue."""
    return BrokenStorage()


@pytest.fixture
def first(tmp_path: Path, storage: BrokenStorage) -> Iterator[PersistentQueue]:
    """An owner."""
    with PersistentQueue(tmp_path / "first", storage=storage) as queue:
        yield queue


@pytest.fixture
def second(tmp_path: Path) -> Iterator[PersistentQueue]:
    """Another one in the same process."""
    with PersistentQueue(tmp_path / "second") as queue:
        yield queue


def server_of(queue: PersistentQueue) -> RequestServer:
    """Return what serves its requests."""
    assert queue._engine.server is not None
    return queue._engine.server


def submit_to(queue: PersistentQueue) -> None:
    """Put one message as another process does."""
    with PersistentQueue(queue.path, mode="submit") as submitter:
        submitter.put(b"asked", timeout=20)


class Held:
    """Serves nothing until it is let go."""

    def __init__(self, serve: Callable[[list[str]], bool]) -> None:
        self._serve = serve
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, names: list[str]) -> bool:
        self.begun.set()
        assert self.go_on.wait(20)
        return self._serve(names)


def hold(queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch) -> Held:
    """Have its serving thread stand still at the next request."""
    desk = server_of(queue)._write_desk
    assert desk is not None
    held = Held(desk.serve)
    monkeypatch.setattr(desk, "serve", held)
    return held


def test_the_serving_thread_is_there_while_requests_come(
    first: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle queue has none, and lets go of the mailboxes; the next request starts another one."""
    monkeypatch.setattr(request_server, "_LINGER_SECONDS", 0.01)
    server = server_of(first)
    with PersistentQueue(first.path, mode="submit") as submitter:
        for number in range(3):
            assert submitter.put(b"asked", timeout=20) == number
            wait_until(lambda: not server._is_serving)
            assert server._write_desk is not None
            assert not server._write_desk._answers._files


def test_requests_that_come_in_a_row_are_served_by_one_thread(
    first: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays for a while."""
    monkeypatch.setattr(request_server, "_LINGER_SECONDS", 60)
    server, threads = server_of(first), set()
    with PersistentQueue(first.path, mode="submit") as submitter:
        for _ in range(5):
            submitter.put(b"asked", timeout=20)
            threads.add(server._thread)
    assert len(threads) == 1
    assert threads != {None}


def test_a_queue_whose_requests_take_long_holds_up_no_other(
    first: PersistentQueue, second: PersistentQueue, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large batch is committed there, with all its syncs."""
    held = hold(first, monkeypatch)
    threads.start(lambda: submit_to(first))
    assert held.begun.wait(20)
    submit_to(second)
    assert (first.qsize(), second.qsize()) == (0, 1)
    held.go_on.set()
    threads.join()
    assert first.qsize() == 1


def test_a_queue_is_closed_while_another_is_served(
    first: PersistentQueue, second: PersistentQueue, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for its own requests alone; and the other one is served meanwhile."""
    held = hold(first, monkeypatch)
    threads.start(lambda: submit_to(first))
    assert held.begun.wait(20)
    submit_to(second)
    second.close()
    with PersistentQueue(second.path) as again:
        assert again.qsize() == 1
    held.go_on.set()
    threads.join()
    submit_to(first)
    assert first.qsize() == 2


def test_closing_waits_for_the_request_that_is_being_served(
    first: PersistentQueue, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way is finished, and answered."""
    held = hold(first, monkeypatch)
    threads.start(lambda: submit_to(first))
    assert held.begun.wait(20)
    closed = threading.Event()
    threads.start(lambda: (first.close(), closed.set()))
    assert not closed.wait(0.05)
    held.go_on.set()
    threads.join()
    assert closed.is_set()
    with PersistentQueue(first.path) as again:
        assert again.qsize() == 1


def test_a_queue_that_cannot_be_looked_at_stops_no_other(
    first: PersistentQueue, second: PersistentQueue, storage: BrokenStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, and is looked at again."""
    storage.is_broken = True
    wait_until(lambda: "requests to" in caplog.text)
    submit_to(second)
    storage.is_broken = False
    submit_to(first)
    assert (first.qsize(), second.qsize()) == (1, 1)


def test_a_fault_in_serving_one_queue_stops_no_other_and_is_tried_again(
    first: PersistentQueue,
    second: PersistentQueue,
    threads: Threads,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ours, or the disk's: whoever asked waits for the next attempt."""
    desk = server_of(first)._write_desk
    assert desk is not None
    faults: list[Exception] = [ValueError("a fault"), OSError(errno.EIO, "broken")]
    serve = desk.serve

    def fail_first(names: list[str]) -> bool:
        if faults:
            raise faults.pop(0)
        return serve(names)

    monkeypatch.setattr(desk, "serve", fail_first)
    threads.start(lambda: submit_to(first))
    submit_to(second)
    threads.join()
    assert not faults
    assert "a fault" in caplog.text
    assert "broken" in caplog.text


def test_a_queue_that_can_start_no_thread_serves_once_it_can(
    first: PersistentQueue, threads: Threads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that looks continues to look."""
    start = threading.Thread.start

    def fail(self: threading.Thread) -> None:
        if self.name.startswith("holdfast-requests"):
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", fail)
        threads.start(lambda: submit_to(first))
        wait_until(lambda: "can't start new thread" in caplog.text)
    threads.join()
    assert first.qsize() == 1


def test_a_look_that_fails_by_a_fault_of_ours_is_logged_with_its_queue(
    first: PersistentQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other queues of the process are looked at all the same."""

    def fail(*_: object) -> list[str]:
        raise ValueError("a fault of ours")

    with monkeypatch.context() as patched:
        patched.setattr(request_server, "list_requests", fail)
        wait_until(lambda: f"<RequestServer {first.path}> cannot be polled" in caplog.text)
    assert "a fault of ours" in caplog.text

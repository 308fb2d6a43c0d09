"""``holdfast serve``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from holdfast.cli.commands import serving
from holdfast.errors import Empty
from support.processes.children import Child, Signal
from support.processes.cli import done, run, run_alone, started
from support.processes.threads import wait_until

Server = subprocess.Popen[bytes]


def _said(server: Server, text: str) -> str:
    """Return the next line of a server's log that has this text."""
    assert server.stderr is not None
    for line in iter(server.stderr.readline, b""):
        if text in line.decode():
            return line.decode()
    raise AssertionError(f"it ended and did not say {text!r}")


@contextmanager
def _serving(directory: Path, *options: str) -> Iterator[Server]:
    """Run the command until the block ends, from when it owns the queue."""
    with started("serve", directory, *options) as server:
        _said(server, "is owned by this process")
        yield server


def _end(server: Server, number: signal.Signals = signal.SIGTERM) -> int:
    server.send_signal(number)
    return server.wait(60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_takes_over_from_an_application_and_gives_the_queue_back(tmp_path: Path, number: signal.Signals) -> None:
    """The application is a client meanwhile; ``ps`` shows who owns. Both signals end it well."""
    path = tmp_path / "q"
    with PersistentQueue(path, mode="shared") as queue:
        queue.put(b"a")
        with _serving(path) as server:
            assert queue.put(b"b") == 1
            assert not queue.is_owner
            roles = {each["pid"]: each["role"] for each in done("ps", path, "--json").document}
            assert roles == {server.pid: "owner", os.getpid(): "client"}
            assert _end(server, number) == 0
        assert [queue.get(timeout=5), queue.get(timeout=5)] == [b"a", b"b"]
        assert queue.is_owner


def test_a_queue_that_is_open_in_another_mode_is_named_and_left(tmp_path: Path) -> None:
    """The exit code says that it may be tried later."""
    path = tmp_path / "q"
    with PersistentQueue(path, mode="exclusive") as queue:
        ran = run_alone("serve", path)
        assert ran.code == 75
        assert f"process {os.getpid()}" in ran.err
        assert "mode='shared'" in ran.err
        queue.put(b"a")


def test_a_directory_that_is_missing_is_refused(tmp_path: Path) -> None:
    """Or a file."""
    (tmp_path / "file").touch()
    for name, why in (("missing", "no directory at"), ("file", "is a file")):
        ran = run("serve", tmp_path / name)
        assert (ran.code, why in ran.err) == (1, True)


def test_all_queues_of_a_directory_are_owned_those_of_later_too(tmp_path: Path) -> None:
    """One that is removed is left. With --json each line of the log is a document."""
    with started("serve", tmp_path, "--json") as server:
        _said(server, "has no queues yet")
        with PersistentQueue(tmp_path / "a", mode="shared") as queue:
            line = json.loads(_said(server, "is owned by this process"))
            assert (line["logger"], line["level"]) == ("holdfast", "INFO")
            assert str(tmp_path / "a") in line["message"]
            queue.put(b"a")
            assert not queue.is_owner
        with PersistentQueue(tmp_path / "b", mode="exclusive"):
            assert "mode='shared'" in json.loads(_said(server, "is not served"))["message"]
        _said(server, "is owned by this process")
        shutil.rmtree(tmp_path / "a")
        _said(server, "was removed")
        assert _end(server) == 0


def test_one_queue_that_cannot_be_owned_at_the_start_leaves_all_of_them(tmp_path: Path) -> None:
    """So a supervisor starts it again."""
    PersistentQueue(tmp_path / "a", mode="exclusive").close()
    with PersistentQueue(tmp_path / "b", mode="exclusive"):
        assert run_alone("serve", tmp_path).code == 75
    PersistentQueue(tmp_path / "a", mode="exclusive").close()


def test_the_directory_may_be_removed_while_it_serves(tmp_path: Path) -> None:
    """Then it ends with an error."""
    root = tmp_path / "service"
    root.mkdir()
    with started("serve", root) as server:
        _said(server, "has no queues yet")
        root.rmdir()
        assert "no directory at" in _said(server, "error")
        assert server.wait(60) == 1


def test_it_runs_in_this_process_until_a_signal_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves the handlers of signals as they were."""
    path, looks = tmp_path / "q", list[int]()
    PersistentQueue(path, mode="exclusive").close()
    before = signal.getsignal(signal.SIGTERM)
    look = serving.Served.look

    def looking(served: serving.Served) -> None:
        look(served)
        looks.append(1)
        if len(looks) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(serving, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(serving.Served, "look", looking)
    assert run("serve", path).code == 0
    assert signal.getsignal(signal.SIGTERM) is before
    PersistentQueue(path, mode="exclusive").close()


ROUNDS = 3


def _work(path: Path, name: str, said: Signal, over: Path) -> None:
    """Put and take all the time; say how often, and what failed."""
    tally: Counter[str] = Counter()
    with PersistentQueue(path, mode="shared") as queue:
        said.send("began")
        while not over.exists():
            try:
                queue.put(name.encode(), timeout=5)
                tally["put"] += 1
            except Exception as error:
                tally[f"put failed: {error!r}"] += 1
            try:
                with queue.receive(timeout=5):
                    tally["taken"] += 1
            except Empty:
                tally["empty"] += 1
            except Exception as error:
                tally[f"take failed: {error!r}"] += 1
    said.send(json.dumps(tally))


def test_a_rolling_restart_fails_no_put_and_no_take(tmp_path: Path) -> None:
    """Each next one takes over from the one before, which ends later; clients put and take all the time."""
    path, over, said = tmp_path / "q", tmp_path / "over", Signal()
    PersistentQueue(path, mode="exclusive").close()
    workers = [Child(lambda name=name: _work(path, name, said, over)) for name in ("a", "b", "c")]  # type: ignore[misc]
    try:
        for _ in workers:
            assert said.wait() == "began"
        with _serving(path) as first:
            running = first
            for _ in range(ROUNDS):
                with _serving(path) as second:
                    assert _end(running) == 0
                    done_at = _count(path)
                    wait_until(lambda done_at=done_at: _count(path) > done_at)  # type: ignore[misc]
                    running = second
                    assert _end(second) == 0
        over.touch()
        tallies = [Counter[str](json.loads(said.wait(60))) for _ in workers]
        assert [each.wait() for each in workers] == [0, 0, 0]
    finally:
        for each in workers:
            each.kill()
            each.wait()
        said.close()
    total = sum(tallies, Counter[str]())
    assert set(total) == {"put", "taken"}, total
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.stats().depth == total["put"] - total["taken"]


def _count(path: Path) -> int:
    """Return how many messages were ever put."""
    with PersistentQueue(path, mode="read_only") as queue:
        return queue.stats().next_offset

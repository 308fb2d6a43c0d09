"""The command beside an application that shares its queue, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from support.processes.children import Child, child
from support.processes.cli import run, run_alone, started
from support.processes.threads import wait_until

SECONDS = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the queue is."""
    return tmp_path / "orders"


@pytest.fixture
def application(path: Path, tmp_path: Path) -> Iterator[Child]:
    """A process that owns the queue and shares it: it has one message in hand, and rejected one."""

    def own() -> None:
        with PersistentQueue(path, mode="shared") as queue:
            queue.put_many([b"bad", b"held", b"waiting"])
            queue.receive().reject("it is bad")
            with queue.receive():
                (tmp_path / "ready").touch()
                signal.pause()

    with child(own) as process:
        wait_until((tmp_path / "ready").exists, SECONDS)
        yield process


def test_messages_are_put_and_taken_beside_the_application(path: Path, application: Child) -> None:
    """The command is one more process that shares the queue."""
    ran = run("put", path, "more", "--json")
    assert (ran.code, ran.err, ran.document["first_offset"]) == (0, "", 3)
    ran = run_alone("put", path, "--lines", "--json", stdin=b"1\n2\n")
    assert (ran.code, ran.err, ran.document["count"]) == (0, "", 2)
    ran = run_alone("get", path, "-n", "4", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert [document["offset"] for document in ran.documents] == [2, 3, 4, 5]
    assert run("get", path, "--timeout", "0").code == 3
    assert run("stats", path, "--json").document["depth"] == 1, "what the application has in hand stays its"


def test_who_shares_the_queue_is_listed_with_the_command(path: Path, application: Child) -> None:
    """While it waits for a message, and has none in hand."""
    with started("get", path, "-n", "2") as process:
        expected = [(application.pid, "owner", {"default": 1}), (process.pid, "client", {})]
        wait_until(lambda: listed(path) == expected, SECONDS)
        run("put", path, "more")
        assert process.communicate(timeout=SECONDS)[0] == b"waiting\nmore\n"


def listed(path: Path) -> list[tuple[int, str, dict[str, int]]]:
    """Return who shares the queue: process, role, and what it has in hand."""
    members = run("ps", path, "--json").document
    return [(each["pid"], each["role"], each["in_hand"]) for each in members]


def test_dead_letters_are_handed_out_again_or_discarded_by_the_owner(path: Path, application: Child) -> None:
    """As with any other handle."""
    assert run("dead", "retry", path, "--all", "--json").document == {"count": 1}
    assert run("get", path, "--json").document["payload_text"] in ("bad", "waiting")
    with PersistentQueue(path, mode="shared") as queue:
        queue.receive(timeout=5).reject("no")
    assert run("dead", "discard", path, "--all", "--yes", "--json").document == {"count": 1}
    assert run("dead", "list", path, "--json").out == b""


def test_settings_are_changed_by_the_owner(path: Path, application: Child) -> None:
    """A queue that is shared need not be closed for that; lost settings need it."""
    ran = run("set", path, "max_deliveries=9", "maxsize=100", "--json")
    assert (ran.code, ran.err) == (0, "")
    values = {each["name"]: each["value"] for each in ran.document}
    assert (values["max_deliveries"], values["maxsize"]) == (9, 100)
    with PersistentQueue(path, mode="shared", maxsize=100) as queue:
        assert not queue.is_owner
        assert queue.settings["max_deliveries"] == 9
    assert run("set", path, "--reset", "maxsize").code == 0
    assert run("set", path, "--rebuilt").code == 75


def test_an_owner_that_does_not_answer_is_named(
    path: Path, application: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped: the command does not take its place, and ends with the code of what may work later."""
    monkeypatch.setattr("holdfast.queue.client.membership.OWNER_SECONDS", 0.2)
    application.stop()
    try:
        for words in (["put", path, "more"], ["get", path]):
            ran = run(*words, "--json")
            told = json.loads(ran.err)
            assert (ran.code, told["error"]) == (75, "queue_locked")
            assert f"process {application.pid}" in told["message"]
            assert "does not answer" in told["message"]
    finally:
        os.kill(application.pid, signal.SIGCONT)


def test_the_command_takes_over_if_the_application_is_killed(path: Path, application: Child) -> None:
    """What it waits for comes: what was in hand there is available again, counted."""
    with started("get", path, "-n", "2", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["payload_text"] == "waiting"
        application.kill()
        application.wait()
        held = json.loads(process.stdout.readline())
        assert (held["payload_text"], held["delivery_count"]) == ("held", 2)
        assert process.wait(SECONDS) == 0


def test_an_application_that_has_the_queue_alone_is_named_with_what_would_help(path: Path) -> None:
    """The command changes nothing then; what only shows messages works all the same."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"one")
        for words in (
            ["put", path, "two"],
            ["get", path],
            ["dead", "retry", path, "--all"],
            ["dead", "discard", path, "--all", "--yes"],
            ["commit", path, "some"],
            ["abort", path, "some"],
            ["serve", path],
        ):
            ran = run(*words, "--json")
            told = json.loads(ran.err)
            assert (ran.code, told["error"]) == (75, "queue_locked"), words
            assert f"process {os.getpid()}" in told["message"], words
            assert "mode='shared'" in told["message"], words
        assert [each["payload_text"] for each in run("peek", path, "--json").documents] == ["one"]

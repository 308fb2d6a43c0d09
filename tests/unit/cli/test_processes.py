"""The command in a process of its own, beside an application that owns the queue."""

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from holdfast.queue.options.queue_options import Mode
from support.builders.small_queues import build
from support.processes.children import Signal, child
from support.processes.cli import command, run, run_alone, started
from support.processes.threads import wait_until

SECONDS = 60


@contextmanager
def writing_owner(path: Path, mode: Mode) -> Iterator[int]:
    """Have another process own the queue, and put without end; yields its pid."""
    begun = Signal()

    def own() -> None:
        with PersistentQueue(path, mode=mode) as queue:
            queue.put_many([b"bad", b"held", b"waiting"])
            queue.receive().reject("it is bad")
            held = queue.receive()
            begun.send()
            while not held.is_settled:
                queue.put(b"more")
                time.sleep(0.001)  # what looks need not race against all that a disk can take

    with child(own) as process:
        begun.wait()
        yield process.pid
        assert process.is_alive()
    begun.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the queue is."""
    return tmp_path / "orders"


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_looking_works_while_another_process_owns_and_writes(path: Path, mode: Mode) -> None:
    """And takes nothing: depth only grows, each offset is there once."""
    with writing_owner(path, mode) as pid:
        first = json.loads(run_alone("stats", path, "--json").out)
        assert (first["dead"], first["leased"], first["last_writer"]["pid"]) == (1, 1, pid)
        for words in (["ls"], ["peek", "-n", "1000"], ["dead", "list"], ["prepared"], ["verify"]):
            ran = run(*words, path, "--json")
            assert (ran.code, ran.err) == (0, ""), ran
            assert ran.documents
        letters = run("dead", "list", path, "--json").documents
        assert [letter["payload_text"] for letter in letters] == ["bad"]
        with PersistentQueue(path, mode="read_only") as queue:
            wait_until(lambda: queue.stats().depth > first["depth"])
        offsets = [document["offset"] for document in run("peek", path, "-n", "5000", "--json").documents]
        assert offsets == list(range(1, len(offsets) + 1))


def test_messages_are_put_through_the_owner(path: Path) -> None:
    """It continues meanwhile, and has them when the command ends."""
    with writing_owner(path, "shared"):
        ran = run_alone("put", path, "--lines", "--json", stdin=b'"a"\n"b"\n"c"\n')
        assert (ran.code, ran.err, ran.document["count"]) == (0, "", 3)
        with PersistentQueue(path, mode="read_only") as queue:
            put = queue.browse(after=ran.document["first_offset"] - 1, limit=3)
        assert [(each.offset, each.payload) for each in put] == [
            (ran.document["first_offset"] + number, payload) for number, payload in enumerate([b'"a"', b'"b"', b'"c"'])
        ]


def test_an_application_that_has_the_queue_alone_is_named(path: Path) -> None:
    """With the exit code of what may work later."""
    with writing_owner(path, "exclusive") as pid:
        ran = run_alone("get", path)
        assert (ran.code, ran.out) == (75, b"")
        assert ran.err.startswith(f"error: process {pid} on ")
        assert ran.err.count("\n") == 1


def test_exit_codes_reach_the_shell(tmp_path: Path) -> None:
    """Those of usage, failure and damage."""
    assert run_alone("put").code == 64
    assert run_alone("stats", tmp_path / "nowhere").code == 1
    queue = build(tmp_path / "orders")
    queue.flip(queue.data_files()[0], queue.frames(queue.data_files()[0])[1].end - 1)
    ran = run_alone("verify", queue.root, "--json")
    assert (ran.code, ran.document["lost"]) == (2, [{"count": 1, "first_offset": 1, "last_offset": 1}])


def test_ctrl_c_ends_a_waiting_get(path: Path) -> None:
    """With 130; what was written and acknowledged does not come again."""
    PersistentQueue(path, mode="exclusive").close()
    with started("get", path, "-n", "2", "--json") as process:
        assert process.stdout is not None
        with PersistentQueue(path, mode="shared") as queue:
            queue.put(b"one")
            assert json.loads(process.stdout.readline())["payload_text"] == "one"
            wait_until(lambda: queue.stats().depth == 0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, out) == (130, b"")
        assert b"Traceback" not in err
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.stats().depth == 0


def test_a_slow_pipe_puts_each_line_as_it_comes_and_ctrl_c_says_how_many(path: Path) -> None:
    """Nothing waits for a batch to be full."""
    PersistentQueue(path, mode="exclusive").close()
    with started("put", path, "--lines", "--json") as process, PersistentQueue(path, mode="read_only") as queue:
        assert process.stdin is not None
        for count in (1, 2):
            process.stdin.write(b'{"number": %d}\n' % count)
            wait_until(lambda count=count: queue.stats().depth == count)  # type: ignore[misc]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 130
        assert b"Traceback" not in err
        assert json.loads(out)["count"] in (1, 2)  # the second one is there a moment before the answer is


def test_what_could_not_be_written_stays_in_the_queue(path: Path) -> None:
    """Whoever read the output has gone: quiet, with 141, and nothing is acknowledged or counted."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put_many([b"x" * 2**20] * 3)
    with started("get", path, "-n", "3") as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(SECONDS) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.stats().depth == 3
        assert queue.receive(timeout=5).delivery_count == 1


def test_a_progress_bar_is_shown_on_a_terminal_only(path: Path, tmp_path: Path) -> None:
    """On standard error, so that the output stays what it is."""
    PersistentQueue(path, mode="exclusive").close()
    (tmp_path / "lines").write_bytes(b"1\n" * 1500)
    ours, theirs = pty.openpty()
    try:
        with (tmp_path / "lines").open("rb") as lines:
            process = subprocess.Popen(
                command("put", path, "--lines"), stdin=lines, stdout=subprocess.PIPE, stderr=theirs
            )
        os.close(theirs)
        shown = _all_of(ours)
        out, _ = process.communicate(timeout=SECONDS)
    finally:
        os.close(ours)
    assert (process.returncode, out) == (0, b"put 1500 messages, offsets 0 to 1499\n")
    assert b"1500 messages" in shown
    ran = run_alone("put", path, "--lines", stdin=b"1\n")
    assert ran.err == ""


def _all_of(terminal: int) -> bytes:
    """Return what is written to a terminal until its other end is closed."""
    shown = b""
    deadline = time.monotonic() + SECONDS
    while select.select([terminal], [], [], deadline - time.monotonic())[0]:
        try:
            some = os.read(terminal, 65536)
        except OSError:  # Linux says so where the other end is closed
            break
        if not some:
            break
        shown += some
    return shown


def _without(stream: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run a command that has not got one of its streams."""
    shell = ["sh", "-c", f'exec "$@" {stream}&-', "sh", *command(*arguments)]
    return subprocess.run(shell, capture_output=True, timeout=SECONDS, check=False)


def test_a_command_without_a_standard_output_does_nothing_and_says_so(path: Path) -> None:
    """What it took would be lost."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"one")
    for arguments in (("get", path), ("peek", path), ("put", path, "two")):
        ran = _without(">", *arguments)
        assert (ran.returncode, ran.stderr.splitlines()) == (
            1,
            [b"error: standard output is closed: send it to a file, or to /dev/null"],
        )
    assert len(run("peek", path, "--json").documents) == 1


def test_no_standard_input_is_an_empty_one(path: Path) -> None:
    """As under a service manager."""
    ran = _without("<", "put", path, "--create", "--lines", "--json")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert json.loads(ran.stdout)["count"] == 0

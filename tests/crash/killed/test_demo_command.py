"""``holdfast demo`` in a small form: what it shows on a sound queue, and that it notices promises that are broken."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.demo.victim import end

PACKAGE = Path(holdfast.__file__).parent
FIGURE = re.compile(r"^  (\w[\w ,/]*?) {2,}([\d.,]+(?: / [\d.]+)*(?: m?s)?)(?: {2}.*)?$", re.MULTILINE)
SECONDS = 100


def start(temporary: Path, *arguments: str, path: Path = PACKAGE.parent) -> subprocess.Popen[str]:
    """Start the command of the package below ``path``, with its temporary directory inside ``temporary``."""
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "demo", "--seed", "7", *arguments],
        cwd=temporary,
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_demo_kills_its_processes_and_every_order_comes_out(tmp_path: Path) -> None:
    """The table says what happened, the exit code is 0, and nothing stays behind."""
    demo = start(tmp_path, "--seconds", "8")
    output, errors = demo.communicate(timeout=SECONDS)
    assert (demo.returncode, errors) == (0, ""), output + errors
    table = dict(FIGURE.findall(output))
    assert table["orders"] == table["received"] == "400"
    assert table["lost"] == table["altered"] == table["received after durable ack"] == "0"
    assert table["left in the queue"] == table["damage found by verify"] == "0"
    assert 390 <= int(table["put, acknowledged"]) <= 400
    assert table["killed"] == "4 / 4 / 4"
    assert [output.count(f"kill -9 {role}") for role in ("producer", "consumer 1", "consumer 2")] == [4, 4, 4]
    assert int(table["owner killed"]) == output.count(", the owner") >= 1
    assert re.search(r"owner killed +\d+  (\d+) owners", output)
    assert table["recovery, median / max"].endswith(" ms")
    assert "Nothing was lost." in output
    assert list(tmp_path.iterdir()) == []


def test_the_demo_writes_one_document_and_keeps_the_files_if_it_is_asked_to(tmp_path: Path) -> None:
    """The kills are told on standard error, and so is the place of the files."""
    demo = start(tmp_path, "--seconds", "2", "--json", "--keep")
    output, errors = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 0, errors
    document = json.loads(output)
    assert (document["orders"], document["received"], document["lost"], document["left"]) == (100, 100, 0, 0)
    assert document["kills"] == {"producer": 1, "consumer 1": 1, "consumer 2": 1}
    assert document["owners"] > document["owner_kills"] == errors.count(", the owner") >= 1
    (kept,) = tmp_path.iterdir()
    assert f"The queue and the notes are in {kept}" in errors
    assert {path.name for path in kept.iterdir()} == {
        "orders",
        "producer.journal",
        "consumer-1.journal",
        "consumer-2.journal",
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("role", ["producer", "consumer-2"])
def test_an_interrupted_demo_ends_its_processes_and_removes_its_files(
    tmp_path: Path, number: signal.Signals, role: str
) -> None:
    """When the first process has been started, and when all are at work."""
    demo = start(tmp_path)
    deadline = time.monotonic() + SECONDS
    while not any(path.stat().st_size for path in tmp_path.glob(f"*/{role}.journal")):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    demo.send_signal(number)
    # Its processes hold the same pipe for errors: that it ends here proves that they are gone.
    demo.communicate(timeout=SECONDS)
    assert demo.returncode == (130 if number == signal.SIGINT else -number)
    assert list(tmp_path.iterdir()) == []


def test_the_demo_whose_reader_has_gone_leaves_nothing_behind(tmp_path: Path) -> None:
    """As of `holdfast demo | head -1`."""
    demo = start(tmp_path, "--seconds", "4")
    assert demo.stdout is not None
    assert demo.stderr is not None
    demo.stdout.readline()
    demo.stdout.close()
    assert demo.wait(timeout=SECONDS) == 141
    assert demo.stderr.read() == ""
    demo.stderr.close()
    assert list(tmp_path.iterdir()) == []


def test_the_processes_end_if_the_demo_itself_is_killed(tmp_path: Path) -> None:
    """They look whether it is still there; the files stay, as after every kill -9."""
    demo = start(tmp_path)
    deadline = time.monotonic() + SECONDS
    while not any(path.stat().st_size for path in tmp_path.glob("*/consumer-1.journal")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    demo.kill()
    demo.communicate(timeout=SECONDS)  # ends once every process has closed the pipe
    assert len(list(tmp_path.iterdir())) == 1


def test_a_process_ends_although_an_interrupt_left_the_lock_of_its_popen_held() -> None:
    """Ctrl-C between the lock and its release, inside ``Popen.poll``: ``Popen.wait`` would hang, and the demo too."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process._waitpid_lock.acquire()  # type: ignore[attr-defined]  # what the interrupt leaves
    started = time.monotonic()
    end(process)
    assert process.returncode == -signal.SIGKILL
    assert process.wait() == -signal.SIGKILL
    assert time.monotonic() - started < 60
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


RECEIVED = 'journal.note("received", delivery.offset, digest(delivery.payload))'
PUT = 'journal.note("put", offset)'
RECEIVE = "delivery = queue.receive(timeout=0.1)"
ACK = "delivery.ack()"


@pytest.mark.parametrize(
    ("role", "line", "broken", "failure"),
    [
        ("consumer", RECEIVED, f"if delivery.offset != 7: {RECEIVED}", "1 lost (offsets 7)"),
        ("producer", PUT, f"{PUT}; journal.note('resumed', 9) if offset == 9 else None", "1 lost (offsets 9)"),
        ("producer", "order(number)", "order(number + (number == 5))", "1 altered (offsets 5)"),
        (
            "consumer",
            "digest(delivery.payload)",
            "digest(delivery.payload[1:])",
            "20 altered (offsets 0, 1, 2, 3, 4, …)",
        ),
        (
            "consumer",
            'journal.note("acked", delivery.offset)',
            f'journal.note("acked", delivery.offset); {RECEIVED}',
            "20 received after a durable acknowledgement (offsets 0, 1, 2, 3, 4, …)",
        ),
        (
            "consumer",
            ACK,
            "delivery.ack() if delivery.offset != 7 else None",
            re.compile(r"(1 received after a durable acknowledgement \(offsets 7\); )?1 left in the queue"),
        ),
        ("consumer", RECEIVE, "sys.exit(3)", re.compile("the consumer [12] ended with exit status 3")),
        ("producer", PUT, "sys.exit(3)", "the producer ended with exit status 3"),
    ],
    ids=["lost", "forgotten", "swapped", "altered", "after-ack", "left", "broken-consumer", "broken-producer"],
)
def test_the_demo_fails_if_the_queue_seems_to_break_a_promise(
    tmp_path: Path, role: str, line: str, broken: str, failure: str | re.Pattern[str]
) -> None:
    """One clear line names what was broken, the exit code is 1, and the files stay for a look at them."""
    script = tmp_path / "holdfast" / "cli" / "demo" / f"{role}.py"
    shutil.copytree(PACKAGE, script.parents[2], ignore=shutil.ignore_patterns("__pycache__"))
    source = script.read_text(encoding="utf-8")
    assert line in source
    script.write_text(source.replace(line, broken), encoding="utf-8")
    show = script.parent / "show.py"
    unkilled = show.read_text(encoding="utf-8").replace("max(1, round(seconds / SECONDS_PER_KILL))", "0")
    show.write_text(unkilled, encoding="utf-8")

    demo = start(tmp_path / "temporary", "--seconds", "0.4", path=tmp_path)
    output, errors = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 1, output
    told = failure.pattern if isinstance(failure, re.Pattern) else re.escape(failure)
    assert re.fullmatch(f"error: {told}; seed 7\n", errors), errors
    assert "The queue and the notes are in " in output

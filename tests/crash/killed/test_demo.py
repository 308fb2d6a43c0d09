"""examples/demo in a small form: what it shows on sound queues, and that it would show a promise that is broken."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

FIGURE = re.compile(r"^  (\w[\w ,/]*?) {2,}([\d.,]+(?: / [\d.]+)?(?: m?s)?)(?: {2}.*)?$", re.MULTILINE)


def start(temporary: Path, *arguments: str, root: Path = ROOT, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start the demo, with its temporary directory inside ``temporary``."""
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--seed", "7", *arguments],
        cwd=root,
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def figures(output: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the tables that the demo printed: of the pipeline, and of the objects."""
    pipeline, typed = output.split("as typed objects")
    return dict(FIGURE.findall(pipeline)), dict(FIGURE.findall(typed))


def test_the_demo_kills_its_process_and_every_event_comes_out(tmp_path: Path) -> None:
    """The tables say what happened, the exit status is 0, and nothing stays behind."""
    demo = start(tmp_path, "--events", "300")
    output, errors = demo.communicate()
    assert (demo.returncode, errors) == (0, ""), output + errors
    pipeline, typed = figures(output)
    assert pipeline["recovery, median / max"].endswith(" ms")
    assert pipeline["moved"] == "300"
    assert pipeline["lost"] == pipeline["doubled"] == pipeline["altered"] == pipeline["taken again after commit"] == "0"
    assert pipeline["left in the first queue"] == pipeline["damage found by verify"] == "0"
    assert int(pipeline["transactions undone"]) <= 5
    assert pipeline["killed"] == str(output.count("kill -9 worker")) == "5"
    assert pipeline["decided after a kill"] == "1"
    assert typed["total"] == "300"
    assert sum(int(count) for name, count in typed.items() if "magnitude" in name) == 300
    assert typed["undecodable"] == "2"
    assert list(tmp_path.iterdir()) == []


def test_the_demo_keeps_the_queues_and_the_journals_where_it_is_asked_to(tmp_path: Path) -> None:
    """The last line says where they are."""
    demo = start(tmp_path, "--kills", "0", "--events", "20", "--keep")
    output, _ = demo.communicate()
    (kept,) = tmp_path.iterdir()
    assert f"Kept: {kept}" in output
    queues = {"detected", "enriched", "questions", "service"}
    roles = {"worker", "preparer"}
    assert {path.name for path in kept.iterdir()} == queues | {f"{role}.journal" for role in roles}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_its_processes_and_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C in the middle leaves neither a process nor a file."""
    demo = start(tmp_path, "--kills", "0")
    deadline = time.monotonic() + 30
    while not any(path.stat().st_size for path in tmp_path.glob("*/worker.journal")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    demo.send_signal(number)
    # Its processes hold the same pipe for errors: that it ends here proves that they are gone.
    demo.communicate(timeout=10)
    assert demo.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


MOVED_PUT = 'tx.put(target, enrich(message.payload), headers={"source-offset": str(message.offset)})'
MOVED_ACK = "tx.ack(source, message)"
MOVED_RECEIVE = "message = tx.receive(source, timeout=10)"
PREPARE = 'journal.note("prepared", tx.prepare())'


@pytest.mark.parametrize(
    ("role", "line", "broken", "failure"),
    [
        ("worker", MOVED_PUT, f"if message.offset != 7: {MOVED_PUT}", "1 lost on the way (offsets 7)"),
        ("worker", MOVED_PUT, f"{MOVED_PUT}; {MOVED_PUT}", "20 doubled on the way (offsets 0, 1, 2, 3, 4, …)"),
        ("worker", "enrich(message.payload)", "message.payload", "20 altered on the way (offsets 0, 1, 2, 3, 4, …)"),
        (
            "worker",
            MOVED_RECEIVE,
            f"{MOVED_RECEIVE}; journal.note('moved', message.offset)",
            "20 taken again after their transaction had committed (offsets 0, 1, 2, 3, 4, …)",
        ),
        (
            "worker",
            "while source.stats().depth",
            "while source.stats().depth > 1",
            "1 lost on the way (offsets 19); 1 left in the first queue",
        ),
        ("worker", MOVED_ACK, "sys.exit(3)", "the worker ended with exit status 3"),
        ("preparer", PREPARE, "sys.exit(3)", "the preparer prepared nothing"),
        (
            "preparer",
            PREPARE,
            "tx.prepare(); tx.commit(); journal.note('prepared')",
            "a transaction that was prepared when its process died is not in doubt",
        ),
    ],
    ids=[
        "moved-lost",
        "moved-twice",
        "moved-altered",
        "moved-after-commit",
        "moved-left",
        "broken-worker",
        "not-prepared",
        "decided-too-early",
    ],
)
def test_the_demo_fails_where_the_queue_seems_to_break_a_promise(
    tmp_path: Path, role: str, line: str, broken: str, failure: str
) -> None:
    """One clear line names what was broken, the exit status is 1, and the files stay for a look at them."""
    script = tmp_path / "examples" / "demo" / "processes" / f"{role}.py"
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    source = script.read_text(encoding="utf-8")
    assert line in source
    script.write_text(source.replace(line, broken), encoding="utf-8")

    demo = start(tmp_path / "temporary", "--kills", "0", "--events", "20", root=tmp_path)
    output, errors = demo.communicate()
    assert demo.returncode == 1, output
    assert f"FAILED: {failure}; seed 7\n" == errors
    assert "Kept: " in output

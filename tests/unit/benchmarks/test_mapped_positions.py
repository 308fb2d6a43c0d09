"""The study of mapped position files: the prototype keeps what it acknowledged, and its program prints all of it."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.studies.mapped_positions import MappedFile, MappedStorage

from holdfast import PersistentQueue

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="the study is of Linux"),
]


def test_what_was_stored_through_a_map_is_there_after_a_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred messages were taken by stores, and published at each: the next opening begins behind them."""
    monkeypatch.setattr("benchmarks.studies.mapped_positions.PUBLISH_SECONDS", 0)
    monkeypatch.setattr("benchmarks.studies.mapped_positions.SYNC_SECONDS", 0)
    published: list[float] = []
    publish = MappedFile.publish
    monkeypatch.setattr(MappedFile, "publish", lambda file, now: (published.append(now), publish(file, now)))
    with PersistentQueue(tmp_path / "queue", mode="exclusive", storage=MappedStorage(publishes=True)) as queue:
        queue.put_many([b"%d" % number for number in range(101)])
        for number in range(100):
            assert queue.get() == b"%d" % number
    assert len(published) >= 100
    with PersistentQueue(tmp_path / "queue", mode="exclusive") as queue:
        assert (queue.get(), queue.qsize()) == (b"100", 0)


def test_the_program_prints_ratios_and_rules(tmp_path: Path) -> None:
    """Each verb and policy has a row for each way, and a store into a shortened file is seen to kill."""
    arguments = "--dir", str(tmp_path), "--rounds", "1", "--messages", "100"
    command = [sys.executable, "-m", "benchmarks.studies.mapped_positions", *arguments]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=280).stdout
    for case in ("get, never()", "get, every_commit()", "receive_and_ack, never()", "receive_and_ack, every_commit()"):
        assert output.count(f"| {case} ") == 3
    assert "half-stored slots, 0 count as an entry" in output
    assert output.endswith("ends the process by SIGBUS\n")
    assert not list(tmp_path.iterdir())

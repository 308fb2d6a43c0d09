"""``holdfast compact``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from support.processes.cli import done, run

COUNT = 600


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a closed queue with one message that lives before the last data file."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", data_file_bytes=2**17) as queue:
        for _ in range(COUNT // 50):
            queue.put_many([bytes(2000)] * 50)
        for _ in range(COUNT - 50):
            delivery = queue.receive()
            if delivery.offset == 30:
                delivery.reject("kept")
            else:
                delivery.ack()
    return tmp_path / "orders"


def test_it_tells_what_it_would_do_then_does_it_then_has_nothing_to_do(path: Path) -> None:
    """With the bytes that it has freed and written, and why the others stay."""
    told = done("compact", path, "--dry-run").text
    assert "data files would be merged into 1: " in told
    assert "1 stay: is being written" in told
    document = done("compact", path, "--json").document
    assert document["merged_count"] == 1
    assert 0 < 3 * document["written_bytes"] <= document["freed_bytes"]
    assert done("compact", path).text.startswith("0 data files were merged into 0: 0 bytes freed, 0 bytes written")
    (letter,) = done("dead", "list", path, "--json").documents
    assert letter["offset"] == 30
    assert done("verify", path).text.startswith(f"{path}: ok: ")


def test_damage_ends_it_with_the_code_of_damage(path: Path) -> None:
    """What cannot be merged for it is told; nothing is changed."""
    first = min((path / "data").iterdir())
    content = bytearray(first.read_bytes())
    content[content.index(bytes(2000), 30 * 2000) + 1000] ^= 1
    first.write_bytes(content)
    outcome = run("compact", path, "--json")
    assert outcome.code == 2
    assert "would be merged with one that is" in outcome.text
    (line,) = outcome.err.splitlines()
    assert json.loads(line)["error"] == "corruption"
    assert first.read_bytes() == content


def test_without_a_queue_it_fails(tmp_path: Path) -> None:
    """And makes none."""
    assert run("compact", tmp_path / "none").code == 1
    assert list(tmp_path.iterdir()) == []

"""``holdfast verify``."""

import json
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from support.builders.small_queues import SmallQueue, build
from support.processes.cli import done, run


@pytest.fixture
def queue(tmp_path: Path) -> SmallQueue:
    """A queue of three data files, closed."""
    return build(tmp_path / "orders")


def test_an_undamaged_queue_ends_with_0(queue: SmallQueue, tmp_path: Path) -> None:
    """Several queues have a line each, in the order given."""
    PersistentQueue(tmp_path / "empty", mode="exclusive").close()
    first, second = done("verify", tmp_path / "empty", queue.root, "--json").documents
    assert (first["path"], first["ok"], first["message_count"]) == (str(tmp_path / "empty"), True, 0)
    assert (second["path"], second["ok"], second["file_count"]) == (str(queue.root), True, 3)
    assert (second["message_count"], second["lost"], second["damage"]) == (queue.put_count, [], [])
    assert done("verify", queue.root).text.startswith(f"{queue.root}: ok: 3 data files, ")


def test_a_flipped_bit_ends_with_2_and_names_file_position_and_offsets(queue: SmallQueue) -> None:
    """And nothing else is lost."""
    damaged = queue.data_files()[1]
    frame = queue.frames(damaged)[2]
    offset = queue.header(damaged).first_offset + frame.index
    queue.flip(damaged, frame.end - 1)
    ran = run("verify", queue.root, "--json")
    assert (ran.code, ran.err) == (2, "")
    lost = {"count": 1, "first_offset": offset, "last_offset": offset}
    assert (ran.document["ok"], ran.document["lost"], ran.document["lost_count"]) == (False, [lost], 1)
    (damage,) = ran.document["damage"]
    assert (damage["path"], damage["position"], damage["offsets"]) == (str(damaged), frame.position, lost)
    assert damage["verdict"] == "damaged"
    shown = run("verify", queue.root)
    assert (shown.code, shown.err) == (2, "")
    assert f"offsets {offset}..{offset} lost" in shown.text


def test_damage_counts_most_among_several_queues(queue: SmallQueue, tmp_path: Path) -> None:
    """One that is not there does not hide the others."""
    queue.flip(queue.data_files()[0], queue.frames(queue.data_files()[0])[0].end - 1)
    ran = run("verify", tmp_path / "nowhere", queue.root, "--json")
    assert (ran.code, ran.document["ok"]) == (2, False)
    assert json.loads(ran.err)["error"] == "queue_not_found"
    assert run("verify", tmp_path / "nowhere").code == 1


def test_an_identity_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    """With nothing to rebuild it from."""
    PersistentQueue(tmp_path / "empty", mode="exclusive").close()
    (tmp_path / "empty" / "queue.json").write_text("rot")
    (tmp_path / "empty" / "write.mark").unlink()
    ran = run("verify", tmp_path / "empty")
    assert (ran.code, ran.out) == (2, b"")
    assert ran.err.startswith("error: ")

"""``queue_id``: what tells one queue from another, wherever its directory is moved."""

import json
from pathlib import Path

from holdfast import PersistentQueue


def test_a_queue_keeps_the_id_it_was_made_with(tmp_path: Path) -> None:
    """It is what ``queue.json`` says, in every mode and at every path; another queue has another one."""
    with (
        PersistentQueue(tmp_path / "a", mode="exclusive") as queue,
        PersistentQueue(tmp_path / "b", mode="exclusive") as other,
    ):
        made = queue.queue_id
        assert len(made) == 16
        assert made != other.queue_id
    (tmp_path / "a").rename(tmp_path / "moved")
    assert json.loads((tmp_path / "moved" / "queue.json").read_text())["queue_id"] == made.hex()
    with PersistentQueue(tmp_path / "moved", mode="read_only") as queue:
        assert queue.queue_id == made

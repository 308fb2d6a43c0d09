"""What Spark has planned as a batch is on the disk before the sink commits it: then a power failure repeats it."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from holdfast import PersistentQueue
from holdfast.persistence.storage import OsFile, OsStorage
from holdfast.queue.joint_commits import JointCommits
from holdfast.spark.checkpoint import local_checkpoint, sync_plan
from holdfast.spark.sink import StagedParts
from support.sinks import writer

BATCH = 3


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint as Spark leaves it before batch 3 is committed, with checksums beside some files."""
    root = tmp_path / "checkpoint"
    for name in ("metadata", ".metadata.crc", "offsets/2", "offsets/3", "offsets/.3.crc", "sources/0/3", "sources/1/3"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return root


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced from here on, by name, in order."""
    seen: list[str] = []
    sync, sync_directory = OsFile.sync, OsStorage.sync_directory

    def note_file(self: OsFile) -> None:
        seen.append(os.readlink(f"/proc/self/fd/{self._fd}"))
        sync(self)

    def note_directory(self: OsStorage, path: Path) -> None:
        seen.append(f"{path}/")
        sync_directory(self, path)

    monkeypatch.setattr(OsFile, "sync", note_file)
    monkeypatch.setattr(OsStorage, "sync_directory", note_directory)
    return seen


def test_the_plan_of_a_batch_is_synced_files_first(checkpoint: Path, synced: list[str]) -> None:
    """The query's id, the batch's offsets, what each source has noted; their names; and no other batch."""
    sync_plan(OsStorage(), checkpoint, BATCH)
    base = f"{checkpoint}/"
    files = [name for name in synced if not name.endswith("/")]
    assert {name.removeprefix(base) for name in files} == {
        "metadata",
        ".metadata.crc",
        "offsets/3",
        "offsets/.3.crc",
        "sources/0/3",
        "sources/1/3",
    }
    assert synced[: len(files)] == files
    expected = {base, f"{base}offsets/", f"{base}sources/0/", f"{base}sources/1/", f"{base}sources/"}
    assert expected <= set(synced)
    assert f"{checkpoint.parent}/" in synced


def test_a_stream_commits_once_its_plan_is_on_the_disk(
    tmp_path: Path, checkpoint: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the other way round."""
    PersistentQueue(tmp_path / "q").close()
    del synced[:]
    monkeypatch.setattr(JointCommits, "commit", lambda *_, **__: synced.append("the joint commit"))
    stream = writer(tmp_path / "q", is_stream=True, checkpointLocation=checkpoint)
    stream.commit([StagedParts("query", BATCH, ())], BATCH)
    at = synced.index("the joint commit")
    assert f"{checkpoint}/offsets/3" in synced[:at]
    assert f"{checkpoint}/offsets/" in synced[:at]


def test_a_sync_that_fails_commits_nothing(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark runs the batch again."""
    PersistentQueue(tmp_path / "q").close()

    def failing(self: OsFile) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(JointCommits, "commit", pytest.fail)
    monkeypatch.setattr(OsFile, "sync", failing)
    stream: Any = writer(tmp_path / "q", is_stream=True, checkpointLocation=checkpoint)
    with pytest.raises(Exception, match="syncing a checkpoint"):
        stream.commit([StagedParts("query", BATCH, ())], BATCH)


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/c", "/data/c"),
        ("file:///data/c", "/data/c"),
        ("file:/data/c", "/data/c"),
        ("hdfs://node/c", None),
        ("s3a://bucket/c", None),
        ("c", os.path.abspath("c")),
    ],
)
def test_which_checkpoints_are_on_this_machine(location: str, path: str | None) -> None:
    """Others cannot be synced from here."""
    assert local_checkpoint(location) == (None if path is None else Path(path))

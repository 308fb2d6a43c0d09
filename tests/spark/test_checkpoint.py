"""What Spark has planned as a batch is on the disk before the sink commits it: then a power failure repeats it.

And a checkpoint that is older than the queue is refused: it would plan other rows under numbers that are taken.
"""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from holdfast import ConfigError, PersistentQueue
from holdfast.persistence.filesystem.storage import OsFile, OsStorage
from holdfast.queue.prepared.joint_commits import JointCommits
from holdfast.spark import finalize
from holdfast.spark.checkpoint import sync_plan
from holdfast.spark.reading.options import local_path
from holdfast.spark.writing.sink import StagedParts
from support.spark.sinks import writer
from support.spark.spark_streams import StreamRun

BATCH = 3


def plan(root: Path, batch: int, *log_offsets: int) -> None:
    """Note a batch as Spark does: how far it goes in the log of each source of files, and one that has no log."""
    lines = ["v1", '{"batchWatermarkMs":0}', *(f'{{"logOffset":{number}}}' for number in log_offsets), "-"]
    (root / "offsets" / str(batch)).write_text("\n".join(lines))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint as Spark leaves it before batch 3 is committed, with checksums beside some files.

    Each source has entries of its own count: batch 3 has nothing new of the first one, and two entries of the second.
    """
    root = tmp_path / "checkpoint"
    names = ["metadata", ".metadata.crc", "offsets/1", "offsets/.3.crc", "sources/2/0"]
    names += ["sources/0/0", "sources/1/3", "sources/1/4", "sources/1/5", "sources/1/.5.crc", "sources/1/9.compact"]
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    plan(root, BATCH - 1, 0, 3)
    plan(root, BATCH, 0, 5)
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
    """The query's id, where the batch begins and ends, what each source has noted of it and last; and their names."""
    sync_plan(OsStorage(), checkpoint, BATCH)
    base = f"{checkpoint}/"
    files = [name for name in synced if not name.endswith("/")]
    assert {name.removeprefix(base) for name in files} == {
        "metadata",
        ".metadata.crc",
        "offsets/2",
        "offsets/3",
        "offsets/.3.crc",
        "sources/0/0",
        "sources/1/4",
        "sources/1/5",
        "sources/1/.5.crc",
        "sources/1/9.compact",
        "sources/2/0",
    }
    assert synced[: len(files)] == files
    expected = {base, f"{base}offsets/", f"{base}sources/0/", f"{base}sources/1/", f"{base}sources/"}
    assert expected <= set(synced)
    assert f"{checkpoint.parent}/" in synced


def test_the_first_batch_begins_with_the_first_entry(checkpoint: Path, synced: list[str]) -> None:
    """There is no batch before it that says where."""
    plan(checkpoint, 0, 0, 4)
    (checkpoint / "sources" / "1" / "0").write_text("{}")
    sync_plan(OsStorage(), checkpoint, 0)
    entries = {Path(name).name for name in synced if name.startswith(f"{checkpoint}/sources/1/") and name[-1] != "/"}
    assert entries == {"0", "3", "4", "9.compact"}


def test_a_stream_commits_once_its_plan_is_on_the_disk(
    tmp_path: Path, checkpoint: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the other way round."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()
    del synced[:]
    monkeypatch.setattr(JointCommits, "commit", lambda *_, **__: synced.append("the joint commit"))
    stream = writer(tmp_path / "q", is_stream=True, checkpointLocation=checkpoint)
    stream.commit([StagedParts("query", BATCH, ())], BATCH)
    at = synced.index("the joint commit")
    assert f"{checkpoint}/offsets/3" in synced[:at]
    assert f"{checkpoint}/offsets/" in synced[:at]


def test_a_sync_that_fails_commits_nothing(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark runs the batch again."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()

    def failing(self: OsFile) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(JointCommits, "commit", pytest.fail)
    monkeypatch.setattr(OsFile, "sync", failing)
    stream: Any = writer(tmp_path / "q", is_stream=True, checkpointLocation=checkpoint)
    with pytest.raises(Exception, match="syncing a checkpoint"):
        stream.commit([StagedParts("query", BATCH, ())], BATCH)


def test_a_plan_that_is_new_under_a_number_that_is_taken(tmp_path: Path, checkpoint: Path) -> None:
    """Only a restored checkpoint leads there: its rows would be passed over. What is run again is as it was."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()

    def commit(batch: int) -> None:
        stream = writer(tmp_path / "q", is_stream=True, checkpointLocation=checkpoint)
        stream.commit([StagedParts("query", batch, ())], batch)

    commit(BATCH - 1)
    for _ in range(2):
        commit(BATCH)
    plan(checkpoint, BATCH, 0, 6)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"batch 3 just now.* has its batch 3 already: the checkpoint is older"):
            commit(BATCH)
    plan(checkpoint, BATCH + 1, 0, 6)
    commit(BATCH + 1)


def test_a_checkpoint_of_before_the_last_commit_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    """Though the sink had noted that batch in the one that is gone."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()
    stream = writer(tmp_path / "q", is_stream=True, checkpointLocation=checkpoint)
    stream.commit([StagedParts("query", BATCH, ())], BATCH)
    (checkpoint / "holdfast.json").unlink()
    with pytest.raises(ConfigError, match="restored from a backup"):
        stream.commit([StagedParts("query", BATCH, ())], BATCH)


def test_finalize_syncs_all_that_spark_needs_to_go_on(tmp_path: Path, synced: list[str]) -> None:
    """The query's id and where the last batch begins and ends, before that it is committed; then messages go."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        queue.put_many([b"%d" % number for number in range(30)])
    run = StreamRun(tmp_path / "q", tmp_path / "checkpoint", group="spark", maxMessagesPerTrigger=10)
    run.all()
    checkpoint = tmp_path / "checkpoint"
    for name in ("metadata", "sources/0/0"):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text("{}")
    del synced[:]
    assert finalize(tmp_path / "q", checkpoint, group="spark") == 30
    base = f"{checkpoint}/"
    needed = {f"{base}{name}" for name in ("metadata", "offsets/1", "offsets/2", "sources/0/0", "sources/", "")}
    at = synced.index(f"{base}commits/2")
    assert needed <= set(synced[:at])
    assert not any(name.startswith(str(tmp_path / "q")) for name in synced[:at])
    assert f"{base}commits/" in synced[at:]


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
    assert local_path(location) == (None if path is None else Path(path))

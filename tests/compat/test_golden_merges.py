"""Merged data files of older versions are read, and data files of before there were any can be merged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast import PersistentQueue, verify
from holdfast.persistence.compaction.compactor import Compactor
from holdfast.persistence.compaction.merging import MergeRun
from holdfast.persistence.format.constants import FORMAT_VERSION
from holdfast.persistence.format.report import merged
from holdfast.persistence.groups.group_files import list_groups, progress_reader
from holdfast.persistence.groups.retention import Retention
from support.builders.handles import handle_of
from support.builders.takes import taken
from support.golden.golden_merge import DEAD, END, FAILED, LIVE, REASON, SLEPT_ON, SLOW, payload

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("merge-v*"))


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one version's queue; it was killed, not closed."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "queue"))


def test_there_is_one_of_the_present_version() -> None:
    """A format version that cannot be read any more would not be noticed otherwise."""
    assert f"merge-v{FORMAT_VERSION}" in VERSIONS


def test_it_is_sound_and_has_what_lives(golden: Path) -> None:
    """What was left out is no loss."""
    report = verify(golden)
    assert report.ok, report
    assert report.message_count == len(LIVE) + 1
    with PersistentQueue(golden, mode="read_only") as look, look.read() as reading:
        assert [(each.offset, each.payload) for each in reading] == [
            *((offset, payload(offset)) for offset in LIVE),
            (END, b"last"),
        ]


def test_each_group_has_what_it_had(golden: Path) -> None:
    """The dead letter, the count of the message that has failed, and what the second group had left."""
    with PersistentQueue(golden, mode="exclusive") as queue:
        assert queue.recovery.damage == ()
        (letter,) = queue.dead.list()
        assert (letter.offset, letter.payload, letter.detail) == (DEAD, payload(DEAD), REASON)
        (failed,) = queue.receive_many(10, timeout=0)
        assert (failed.offset, failed.payload, failed.delivery_count) == (FAILED, payload(FAILED), 2)
        failed.ack()
        assert taken(queue) == [b"last"]
        assert queue.groups.create("late") == DEAD
    with PersistentQueue(golden, mode="exclusive", group=SLOW) as slow:
        assert taken(slow) == [payload(SLEPT_ON), b"last"]
        assert slow.stats().lost == 0
    with PersistentQueue(golden, mode="exclusive", group="late") as late:
        assert late.stats().lost == 0
    assert verify(golden).ok


@pytest.mark.parametrize("name", ["v2", "joint-v2", "filter-v2", "retention-v2"])
def test_files_of_before_there_were_merges_can_be_merged(name: str, tmp_path: Path) -> None:
    """With all that their groups need; how little lives in them does not matter here."""
    path = Path(shutil.copytree(HERE / name, tmp_path / "queue"))
    with PersistentQueue(path, mode="exclusive") as queue:
        handle = handle_of(queue)
        for waiting in queue.prepared():
            if waiting.part_of is None:
                queue.abort_prepared(waiting.id)
            else:
                queue.joint_commits.abort(waiting.part_of.application, waiting.part_of.version)
        queue.put_many([bytes(10_000), bytes(10_000)])  # which gets a file of its own
        before = {each.offset: (each.payload, each.headers, each.timestamp_ns) for each in queue.read()}
        groups = list_groups(handle.storage, handle.directory)
        readers = [progress_reader(handle.storage, handle.directory, handle.queue_id, each) for each in groups]
        names = handle.files.names()
        end = names[-1].first_offset
        live = merged(run for each in readers for run in each.refresh().unfinished_runs(names[0].first_offset, end))
        size = sum(map(handle.files.size_of, names[:-1]))
        compactor = Compactor(handle.directory, handle.files, handle.clock, Retention(), size)
        assert compactor._merge(MergeRun(tuple(names[:-1]), end, live, size * 4))
        assert handle.files.names()[0].is_merged
        there = {each.offset: (each.payload, each.headers, each.timestamp_ns) for each in queue.read(stop=end)}
        assert there == {offset: before[offset] for run in live for offset in run}
    assert verify(path).ok

"""Queues that older versions left in the middle of a joint commit: it is finished, once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast import PersistentQueue, TransactionStateError, verify
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.format.constants import FORMAT_VERSION
from support.golden.golden_joint_commit import APPLICATION, NEXT, OTHER, OTHER_VERSION, PARTS, VERSION, prepare

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("joint-v*") if path.name != "joint-v1")


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one version's queue; it was killed, not closed."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "queue"))


def test_there_is_one_of_the_present_version() -> None:
    """A format version that nobody can read any more would not be noticed otherwise."""
    assert f"joint-v{FORMAT_VERSION}" in VERSIONS


def test_it_is_sound_and_says_what_waits(golden: Path) -> None:
    """Before anybody opens it to write."""
    report = verify(golden)
    assert report.ok, str(report)
    assert any(f"joint commit {VERSION} of {APPLICATION} is decided" in note for note in report.notes)
    with PersistentQueue(golden, mode="read_only") as look:
        assert [message.payload for message in look.peek(9)] == [b"before", PARTS[0].encode()]


def test_opening_finishes_it_and_remembers_what_was_committed(golden: Path) -> None:
    """In order; the part that nobody named is gone, the next version's waits."""
    expected = [b"before", *(id.encode() for id in PARTS)]
    with PersistentQueue(golden, mode="exclusive") as queue:
        assert [message.payload for message in queue.peek(9)] == expected
        assert [(each.id, each.part_of) for each in queue.prepared()] == [(NEXT, PartOf(APPLICATION, VERSION + 1))]
        joint = queue.joint_commits
        assert (joint.latest(APPLICATION), joint.latest(OTHER)) == (VERSION, OTHER_VERSION)
        joint.commit(APPLICATION, VERSION, PARTS)
        with pytest.raises(TransactionStateError):
            prepare(queue, "late", OTHER, OTHER_VERSION)
        joint.commit(APPLICATION, VERSION + 1, [NEXT])
        assert [message.payload for message in queue.peek(9)] == [*expected, NEXT.encode()]
    assert verify(golden).ok

"""Queues that older versions left in the middle of a joint commit over several of them: each finishes it, once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast import PersistentQueue, verify
from holdfast.persistence.format.constants import FORMAT_VERSION
from holdfast.queue.queues_joint_commits import QueuesJointCommits
from support.golden.golden_queues_joint_commit import APPLICATION, NAMES, NEXT, VERSION

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("queues-joint-v*"))
VERSIONS_ONCE = sorted(path.name for path in HERE.glob("queues-once-v*"))


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one version's queues; their process was killed."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "data"))


def payloads(path: Path) -> list[bytes]:
    """Return what a queue shows to a look, which settles nothing."""
    with PersistentQueue(path, mode="read_only") as queue:
        return [message.payload for message in queue.peek(9)]


def test_there_is_one_of_the_present_version() -> None:
    """A format version that nobody can read any more would not be noticed otherwise."""
    assert f"queues-joint-v{FORMAT_VERSION}" in VERSIONS
    assert f"queues-once-v{FORMAT_VERSION}" in VERSIONS_ONCE


def test_each_queue_finishes_it_when_it_is_opened(golden: Path) -> None:
    """The part that nobody named is gone, the next version's waits and can be committed."""
    first, second = (golden / name for name in NAMES)
    assert all(verify(path).ok for path in (first, second))
    assert (payloads(first), payloads(second)) == ([NAMES[0].encode()], [])
    with PersistentQueue(second, mode="exclusive") as queue:
        assert [message.payload for message in queue.peek(9)] == [NAMES[1].encode()]
        assert [each.id for each in queue.prepared()] == [NEXT]
    commits = QueuesJointCommits(golden, mode="exclusive")
    assert commits.latest(APPLICATION) == VERSION
    commits.commit(APPLICATION, VERSION + 1, [f"{NAMES[1]}/{NEXT}"])
    assert (payloads(first), payloads(second)) == ([NAMES[0].encode()], [NAMES[1].encode(), NEXT.encode()])
    assert all(verify(path).ok for path in (first, second))


@pytest.mark.parametrize("version", VERSIONS_ONCE)
def test_the_next_commit_finishes_one_of_an_application_that_commits_once(version: str, tmp_path: Path) -> None:
    """Then the document forgets it; the part of its next version still waits."""
    golden = Path(shutil.copytree(HERE / version, tmp_path / "data"))
    commits = QueuesJointCommits(golden, mode="exclusive")
    assert commits.latest(APPLICATION) == VERSION
    commits.commit("another", 1, [])
    assert commits.latest(APPLICATION) is None
    first, second = (golden / name for name in NAMES)
    assert (payloads(first), payloads(second)) == ([NAMES[0].encode()], [NAMES[1].encode()])
    with PersistentQueue(second, mode="exclusive") as queue:
        assert NEXT in [each.id for each in queue.prepared()]
    assert all(verify(path).ok for path in (first, second))

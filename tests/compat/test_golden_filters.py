"""Groups with a filter that older versions left behind still have it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast import PersistentQueue, verify
from holdfast.persistence.format.constants import FORMAT_VERSION
from support.builders.takes import taken
from support.golden.golden_filter import EXPRESSION, GROUP

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("filter-v*"))


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one version's queue; it was killed, not closed."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "queue"))


def test_there_is_one_of_the_present_version() -> None:
    """A format version that nobody can read any more would not be noticed otherwise."""
    assert f"filter-v{FORMAT_VERSION}" in VERSIONS


@pytest.mark.extra("filter")
def test_a_group_has_its_filter_and_what_it_has_not_taken(golden: Path) -> None:
    """Messages that were finished unread stay so; what is put from now on is judged, too."""
    assert verify(golden).ok
    with PersistentQueue(golden, mode="exclusive", group=GROUP) as queue:
        assert taken(queue) == [b"urgent", b"3", b"6"]
        assert queue.settings["lease_seconds"] == 60
        queue.groups.create(GROUP, filter=EXPRESSION)
        queue.put_many([b"open"])
        queue.put(b"paid", headers={"kind": "paid"})
        assert taken(queue) == [b"paid"]

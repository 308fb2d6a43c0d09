"""Queues that older versions left with retention: what was skipped is counted, and what was kept can be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast import PersistentQueue, verify
from holdfast.persistence.format.constants import FORMAT_VERSION
from holdfast.persistence.groups.group_files import progress_reader, require_group
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of, pass_over
from support.golden.golden_retention import (
    DEAD,
    GROUP_SETTINGS,
    HELD,
    IN_HAND,
    NUMBER,
    SETTINGS,
    SKIPPED,
    SLEEPS,
)

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("retention-v*"))


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one version's queue; it was killed, not closed."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "queue"))


def test_there_is_one_of_the_present_version() -> None:
    """A format version that cannot be read any more would not be noticed otherwise."""
    assert f"retention-v{FORMAT_VERSION}" in VERSIONS


def test_it_is_sound_and_shows_what_was_skipped(golden: Path) -> None:
    """Before anybody opens it to write."""
    assert verify(golden).ok
    with PersistentQueue(golden, mode="read_only") as look:
        figures = look.stats()
        assert (figures.skipped, figures.dead, figures.first_offset) == (SKIPPED, 1, 0)
        assert figures.oldest_prepared_seconds is not None
        handle = handle_of(look)
        group = require_group(handle.storage, handle.directory, "default")
        progress = progress_reader(handle.storage, handle.directory, handle.queue_id, group).refresh()
        assert progress.taken_away == {NUMBER: {IN_HAND}}


def test_opening_keeps_all_of_it(golden: Path) -> None:
    """The settings, the counts, the dead letter and the vote; and the files that are kept, for a new group."""
    with PersistentQueue(golden, mode="exclusive", clock=FakeClock()) as queue:
        assert {**queue.settings, **SETTINGS, **GROUP_SETTINGS} == queue.settings
        pass_over(queue)
        assert queue.stats().skipped == SKIPPED
        assert [letter.offset for letter in queue.dead.list()] == [DEAD]
        queue.abort_prepared("held")
        assert queue.get() == str(HELD).encode()
        assert queue.groups.create("late") == 0
    with PersistentQueue(golden, mode="exclusive", group=SLEEPS) as sleeps:
        assert sleeps.stats().skipped == SKIPPED + 2
    with PersistentQueue(golden, mode="exclusive", group="late") as late:
        assert late.get() == b"0"
    assert verify(golden).ok

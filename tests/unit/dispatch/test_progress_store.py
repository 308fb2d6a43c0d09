"""A group's books when the disk refuses, and their flushing in the background."""

import pytest

from holdfast import FlushPolicy
from support.builders.handles import handle_of
from support.builders.jobs import Jobs
from support.processes.log_handlers import text_said
from support.storages.refusals import refusing


def test_a_file_that_cannot_be_retired_does_not_undo_the_acknowledgement(caplog: pytest.LogCaptureFixture) -> None:
    """It stays until the next one is retired; the log says so."""
    jobs = Jobs()
    with jobs.open() as queue:
        while queue.stats().file_count < 4:
            queue.put(bytes(1000))
        with refusing(jobs.storage, "rename", ".data"):
            while queue.stats().file_count == 4 and "could not be retired" not in text_said(caplog):
                queue.get(timeout=0)
        assert queue.stats().file_count == 4
        depth = queue.stats().depth
        while queue.stats().file_count == 4:
            queue.get(timeout=0)
        assert queue.stats().file_count <= 3
    with jobs.killed().open() as queue:
        assert queue.stats().depth < depth


def test_acknowledgements_wait_for_their_time_to_be_synced() -> None:
    """The first look notes when it began; later ones sync nothing before it is over."""
    jobs = Jobs()
    with jobs.open(flush=FlushPolicy.every(commits=100, seconds=1000)) as queue:
        queue.put_many([b"a", b"b"])
        queue.get(timeout=0)
        books = handle_of(queue).require_read_side().progress_store
        assert books is not None
        unsynced = books._positions.unsynced_count
        assert unsynced > 0
        assert books._tick()
        assert books._tick()
        assert books._positions.unsynced_count == unsynced
        queue.flush()
        books.flush()
        assert not books._tick()

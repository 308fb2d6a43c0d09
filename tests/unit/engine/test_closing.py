"""Closing if the disk refuses: everything is released, and the next owner continues."""

from __future__ import annotations

import pytest

from holdfast import ClosedError, CommitUnknownError, FlushPolicy
from support.builders.jobs import Jobs, drained
from support.storages.refusals import refusing


def test_a_closing_that_could_not_sync_says_so_once_and_lets_go_of_everything() -> None:
    """Closing again does nothing; whoever opens the queue finds out what is on the disk."""
    jobs = Jobs()
    queue = jobs.open(flush=FlushPolicy.never())
    queue.put_many([b"one", b"two"])
    assert queue.get() == b"one"
    with refusing(jobs.storage, "sync", count=1), pytest.raises(CommitUnknownError, match="reopen the queue and check"):
        queue.close()
    queue.close()
    with pytest.raises(ClosedError):
        queue.put(b"three")
    with jobs.open() as again:
        assert drained(again) == [b"two"]

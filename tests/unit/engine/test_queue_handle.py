"""Bringing sides up when there is no room, or when the disk refuses."""

import errno
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from holdfast import DiskFullError, PersistentQueue, StorageError, UsageError
from holdfast.persistence.filesystem.storage import File
from holdfast.queue import local_engine
from holdfast.queue.threads import poller
from support.builders.handles import handle_of
from support.builders.jobs import ROOT, Jobs
from support.storages.refusals import refusing


def test_a_read_side_that_cannot_be_opened_leaves_nothing_locked_or_open() -> None:
    """The next attempt gets it."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"a")
        assert queue.get(timeout=0) == b"a"
        queue.put(b"b")
    with refusing(jobs.storage, "allocate", ".position"), pytest.raises(StorageError, match="position file"):
        jobs.open(mode="exclusive")
    handles: Counter[Path] = Counter()

    def count(verb: str, path: Path) -> None:
        handles[path] -= verb == "close"

    def opened(path: Path, **options: Any) -> File:
        file = storage_open(path, **options)  # one that nobody has made is not open
        handles[path] += 1
        return file

    storage_open, jobs.storage.before_verb = jobs.storage.open, count
    with (
        mock.patch.object(jobs.storage, "open", opened),
        refusing(jobs.storage, "allocate", ".position"),
        pytest.raises(StorageError),
    ):
        jobs.open(mode="exclusive")
    jobs.storage.before_verb = None
    assert handles.total() == 0
    with jobs.open(mode="exclusive") as queue:
        assert queue.get(timeout=0) == b"b"


def test_a_group_begins_on_a_full_disk_with_the_room_that_was_set_aside() -> None:
    """Nobody has consumed yet, and consuming is what makes room."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"a")
        assert ROOT / "groups" / ".reserve" in jobs.storage.tree()
        with refusing(jobs.storage, "allocate", ".position", errno.ENOSPC, count=3):
            assert queue.get(timeout=0) == b"a"
        assert ROOT / "groups" / ".reserve" not in jobs.storage.tree()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_where_that_room_does_not_help_the_take_fails_and_can_be_tried_again(error: int) -> None:
    """It is spent for a full disk only, and once."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"a")
        with refusing(jobs.storage, "allocate", ".position", error):
            for _ in range(2):
                with pytest.raises(DiskFullError if error == errno.ENOSPC else StorageError):
                    queue.get(timeout=0)
        assert (ROOT / "groups" / ".reserve" in jobs.storage.tree()) == (error == errno.EIO)
        assert queue.get(timeout=0) == b"a"


def test_a_handle_that_looks_keeps_no_batches_that_wait() -> None:
    """Its error names the modes that do."""
    jobs = Jobs()
    jobs.open().close()
    queue: PersistentQueue
    with jobs.open(mode="read_only") as queue, pytest.raises(UsageError, match=r"does not put; use mode='shared'$"):
        handle_of(queue).require_batches()


def test_who_takes_can_be_woken_and_told_how_it_would_end() -> None:
    """For what waits on several queues; a handle that looks wakes no thread."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"a")
        queue.wait_for_more(60)  # there is one
        queue.get()
        queue.wait_for_more(60, lambda: True)
        queue.put(b"b")
        queue.receive()
        assert queue.ending().left == {"in_hand": 1}
        queue.wake()
    with jobs.open(mode="read_only") as queue:
        queue.wake()
        with pytest.raises(UsageError, match=r"does not take; use mode='shared'$"):
            queue.ending()


def test_a_side_that_is_shut_down_has_something_to_say_to_those_who_wait() -> None:
    """Its takes end once the queue is empty."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"a")
    with jobs.open(mode="exclusive") as queue:
        queue.shutdown()
        assert queue.get(timeout=0) == b"a"
        assert handle_of(queue).require_read_side()._may_have_more(), "whoever waits has to hear of it"


def test_who_looks_is_told_of_a_pause_until_it_is_over() -> None:
    """From the disk; the group's owner may be elsewhere, and need not have noted the end of it."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"a")
        queue.pause(jobs.clock.time_ns() / 1e9 + 60, reason="maintenance")
    with jobs.open(mode="read_only") as queue:
        assert queue.stats().paused == "maintenance"
        jobs.clock.advance(61)
        assert queue.stats().paused is None


def test_an_opening_that_is_interrupted_at_its_end_leaves_nothing_locked_or_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next attempt gets both sides."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    jobs = Jobs()
    with monkeypatch.context() as patched:
        patched.setattr(local_engine.LocalEngine, "expect", interrupt)
        with pytest.raises(KeyboardInterrupt):
            jobs.open()
    assert jobs.clock not in poller._pollers
    with jobs.open() as queue:
        queue.put(b"a")
        assert queue.get(timeout=0) == b"a"


@pytest.mark.parametrize("error", [StorageError("a disk that fails"), KeyboardInterrupt()])
def test_an_opening_that_fails_behind_its_sides_leaves_nothing_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Also if it is interrupted there: no other code could release the locks."""

    def fail(_: object) -> None:
        raise error

    with monkeypatch.context() as failing:
        failing.setattr("holdfast.queue.prepared.prepared_resolver.PreparedResolver.resolve", fail)
        with pytest.raises(type(error)):
            PersistentQueue(tmp_path / "q", mode="exclusive")
    PersistentQueue(tmp_path / "q", mode="exclusive").close()

"""Entries that ended without an "ended" frame, in a segment that stays: they get one before all else forgets them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from holdfast.persistence.outcomes import outcome_log
from holdfast.persistence.prepared_log.entry import Entry
from support.builders.handles import handle_of, log_of, segments, without_moves
from support.builders.transactions import cut_power, kill, open_queue, prepare, prepared_ids, waiting
from support.models.prepared_log_model import read_log
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two outcomes are remembered, so that a few others make a queue forget one."""
    monkeypatch.setattr(outcome_log, "OUTCOMES_MAX", 2)


def two_prepared(storage: SimulatedStorage) -> PersistentQueue:
    """Open a queue, and prepare a first and a second transaction."""
    queue = open_queue(storage)
    for name in ("first", "second"):
        prepare(queue, "puts", name)
    return queue


@contextmanager
def on_a_full_disk(left: SimulatedStorage) -> Iterator[PersistentQueue]:
    """Open a queue on a full disk: the segment of what is undecided stays."""
    with refusing(left, "open", ".staging", errno.ENOSPC):
        queue = without_moves(open_queue(left))
    with queue:
        assert segments(queue) == [1]
        yield queue


def decide_others(queue: PersistentQueue) -> None:
    """Decide so many transactions of batch files that the outcomes before are forgotten."""
    for number in range(3):
        prepare(queue, "puts", f"other-{number}", count=20)
        queue.abort_prepared(f"other-{number}")


def not_ended(storage: SimulatedStorage) -> list[str]:
    """Return what a second reader of the segments takes for undecided."""
    found = {path.name: content for path, content in storage.tree().items() if path.parent.name == "prepared"}
    return [each.id for each in read_log({name: each for name, each in found.items() if each}).not_ended]


def test_what_is_aborted_in_an_earlier_segment_is_never_in_doubt_again(storage: SimulatedStorage) -> None:
    """There was no segment for its frame: the abort begins one."""
    left = kill(storage, two_prepared(storage))
    with on_a_full_disk(left) as queue:
        queue.abort_prepared("first")
        assert segments(queue) == [1, 2]
        assert not_ended(left.crash_dropping_unsynced()) == ["second"]
        decide_others(queue)
        with open_queue(kill(left, queue)) as again:
            assert prepared_ids(again) == ["second"]


def test_an_abort_whose_frame_was_lost_is_never_in_doubt_again(storage: SimulatedStorage) -> None:
    """The outcome log tells the opening, which cannot write the frame, and forgets it later."""
    queue = two_prepared(storage)
    with refusing(storage, "sync", ".log", count=1):
        queue.abort_prepared("first")
    left = cut_power(storage, queue)
    assert not_ended(left) == ["first", "second"]
    with on_a_full_disk(left) as queue:
        assert prepared_ids(queue) == ["second"]
        decide_others(queue)
        with open_queue(kill(left, queue)) as again:
            assert prepared_ids(again) == ["second"]


def test_what_has_moved_without_its_frame_is_committed_once(storage: SimulatedStorage) -> None:
    """Its commit record would end, and its entry come back, as the batch file has gone."""
    queue = two_prepared(storage)
    found = log_of(queue).find("first")
    assert isinstance(found, Entry)
    handle_of(queue).require_batches().move(found)
    left = cut_power(storage, queue)
    assert not_ended(left) == ["first", "second"]
    with on_a_full_disk(left) as queue:
        assert queue.commit_prepared("first") == range(1)
        decide_others(queue)
        handle_of(queue).require_write_side()._record_ends.end_all()
        queue.flush()
        assert not handle_of(queue).require_write_side().pending_commit_records
        with open_queue(kill(left, queue)) as again:
            assert prepared_ids(again) == ["second"]
            assert waiting(again) == [b"new"]


def test_on_a_full_disk_commit_records_wait_for_the_segment_with_their_frames(storage: SimulatedStorage) -> None:
    """They end once there is space for one."""
    left = kill(storage, two_prepared(storage))
    with on_a_full_disk(left) as queue:
        write_side = handle_of(queue).require_write_side()
        with refusing(left, "allocate", ".log.new", errno.ENOSPC):
            assert queue.commit_prepared("first") == range(1)
            write_side._record_ends.end_all()
            assert segments(queue) == [1]
        assert len(write_side.pending_commit_records) == 1
        write_side._record_ends.end_all()
        assert segments(queue) == [1, 2]
        assert len(write_side.pending_commit_records) == 0


def test_the_reserve_of_earlier_segments_makes_room_for_the_frames(storage: SimulatedStorage) -> None:
    """On a full disk, so that commit records end; such a segment takes no entries."""
    left = kill(storage, two_prepared(storage))
    with on_a_full_disk(left) as queue:
        refused: list[int] = []
        cut: list[Path] = []

        def full(verb: str, path: Path) -> None:
            if verb == "truncate" and path.suffix == ".log":
                cut.append(path)
            if verb == "allocate" and path.name.endswith(".log.new") and not cut:
                refused.append(1)
                raise OSError(errno.ENOSPC, "no space", str(path))

        left.before_verb = full
        queue.abort_prepared("first")
        left.before_verb = None
        assert len(refused) == 2, "in its step, and then without a reserve"
        assert [path.name for path in cut] == ["0000000001.log"]
        assert segments(queue) == [1, 2]
        prepare(queue, "puts", "third")
        assert segments(queue) == [1, 2, 3]
        with open_queue(kill(left, queue)) as again:
            assert prepared_ids(again) == ["second", "third"]


def test_a_closed_log_begins_no_segment(storage: SimulatedStorage) -> None:
    """It would take the name of one of the next owner."""
    left = kill(storage, two_prepared(storage))
    with on_a_full_disk(left) as queue:
        log, found = log_of(queue), log_of(queue).find("first")
        assert found is not None
        log.close()
        log.end("first", found.nonce, 2, 0)
        assert not log.sync_ends()
        assert segments(queue) == [1]


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_a_crash_at_any_call_that_brings_missing_ends_decides_all_of_it_or_nothing(
    storage: SimulatedStorage, verb: str
) -> None:
    """With the power and without, while the segment for the frames is made, and while the frames are written."""
    left = kill(storage, two_prepared(storage))
    crashed: list[SimulatedStorage] = []

    def crash(*_: object) -> None:
        crashed.extend((left.crash_keeping_all(), left.crash_dropping_unsynced()))

    with on_a_full_disk(left) as queue:
        left.before_verb = crash
        getattr(queue, f"{verb}_prepared")("first")
        handle_of(queue).require_write_side()._record_ends.end_all()
        left.before_verb = None
        assert segments(queue) == [1, 2]
        crash()
    seen = set()
    for disk in crashed:
        with open_queue(disk) as again:
            seen.add((*prepared_ids(again), len(waiting(again))))
    assert seen == {("first", "second", 0), ("second", 1 if verb == "commit" else 0)}

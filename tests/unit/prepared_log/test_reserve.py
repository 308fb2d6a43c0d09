"""The reserve of an entry: given back in pieces, and no more than a commit can need."""

from __future__ import annotations

import errno

import pytest

from holdfast import DiskFullError, PersistentQueue
from holdfast.persistence.log.file_steps import LEAST_BYTES
from holdfast.persistence.prepared_log.entry import Entry
from holdfast.persistence.prepared_log.prepared_log import PreparedLog
from holdfast.persistence.prepared_log.reserve import Reserve
from support.builders.handles import handle_of, segments, without_moves
from support.builders.transactions import open_queue, prepare, prepared_ids, waiting
from support.storages.refusals import full_till_space_is_given_back, refusing
from support.storages.simulated_storage import SimulatedStorage


def size_of(queue: PersistentQueue, sequence: int) -> int:
    """Return the size of a segment."""
    handle = handle_of(queue)
    with handle.storage.open(handle.directory.segment(sequence)) as file:
        return file.size()


def test_no_more_is_given_back_than_helps() -> None:
    """A disk without inodes, or a limit of the size of files, refuses for ever: others keep their reserve."""
    given: list[int] = []

    def give(size: int) -> bool:
        given.append(size)
        return True

    reserve = Reserve(1000, give, lambda: None)
    while reserve.give_back():
        pass
    assert LEAST_BYTES + 1000 < sum(given) < 2 * LEAST_BYTES + 3 * 10_000


def test_a_commit_that_fails_all_the_same_reserves_again_what_it_gave_back(
    storage: SimulatedStorage, queue: PersistentQueue
) -> None:
    """It can be asked for again."""
    prepare(queue, "puts", "one")
    before = size_of(queue, 1)
    with refusing(storage, "allocate", "next.data", errno.ENOSPC), pytest.raises(DiskFullError):
        queue.commit_prepared("one")
    assert size_of(queue, 1) == before
    assert prepared_ids(queue) == ["one"]
    queue.commit_prepared("one")
    assert waiting(queue) == [b"new"]


@pytest.mark.parametrize("is_last", [True, False])
def test_a_put_that_needs_the_next_file_reserves_again_first(
    storage: SimulatedStorage, queue: PersistentQueue, log: PreparedLog, is_last: bool
) -> None:
    """For what waits still; a segment in which nothing does needs none."""
    for name in ("one", "two"):
        prepare(queue, "puts", name)
    if not is_last:
        while segments(queue) == [1]:
            prepare(queue, "puts", "filler", count=10)
            queue.abort_prepared("filler")
    before = size_of(queue, 1)
    with full_till_space_is_given_back(storage):
        queue.commit_prepared("one")
    assert size_of(queue, 1) < before
    assert handle_of(queue).require_write_side()._writer.keeps_room
    with refusing(storage, "allocate", ".log", errno.ENOSPC), pytest.raises(DiskFullError):
        queue.put(b"plain")
    queue.put(b"plain")
    assert size_of(queue, 1) == before
    assert not handle_of(queue).require_write_side()._writer.keeps_room
    queue.commit_prepared("two")
    assert waiting(queue) == [b"new", b"plain", b"new"]
    log._make_whole()
    assert log._given_back == {}


def test_what_nobody_waits_for_is_not_reserved_again(storage: SimulatedStorage, queue: PersistentQueue) -> None:
    """The puts go on with the space."""
    prepare(queue, "puts", "one")
    with full_till_space_is_given_back(storage):
        queue.commit_prepared("one")
    cut = size_of(queue, 1)
    queue.put(b"plain")
    assert size_of(queue, 1) == cut


def test_a_batch_that_is_adopted_leaves_the_reserve_whole(storage: SimulatedStorage, queue: PersistentQueue) -> None:
    """It leaves the data file that was made of it; without space it is adopted all the same."""
    for name in ("one", "two"):
        prepare(queue, "puts", name)
    prepare(queue, "puts", "large", count=40)
    before = size_of(queue, 1)
    with full_till_space_is_given_back(storage):
        queue.commit_prepared("one")
    assert size_of(queue, 1) < before
    queue.commit_prepared("large")
    assert size_of(queue, 1) == before
    with full_till_space_is_given_back(storage):
        queue.commit_prepared("two")
    assert len(waiting(queue)) == 42


def test_frames_are_no_reserve(queue: PersistentQueue, log: PreparedLog) -> None:
    """All that was reserved is given back, and what waits is there."""
    prepare(queue, "puts", "one")
    found = log.find("one")
    assert isinstance(found, Entry)
    while log.reserve_of(found).give_back():
        pass
    assert size_of(queue, 1) >= found.end
    queue.commit_prepared("one")
    assert waiting(queue) == [b"new"]


def test_without_space_for_the_next_step_a_segment_has_what_is_needed(
    storage: SimulatedStorage, queue: PersistentQueue
) -> None:
    """What is prepared next fits, with its reserve."""
    with refusing(storage, "allocate", ".log.new", errno.ENOSPC, count=1):
        prepare(queue, "puts", "one")
    assert segments(queue) == [1]
    queue.commit_prepared("one")
    assert waiting(queue) == [b"new"]


def test_an_opening_without_space_to_seal_the_data_file_moves_nothing(storage: SimulatedStorage) -> None:
    """A batch file is adopted behind a seal; an entry is committed with its reserve."""
    with without_moves(open_queue(storage)) as queue:
        queue.put(b"plain")
        prepare(queue, "puts", "one")
    with refusing(storage, "allocate", ".data", errno.ENOSPC), open_queue(storage) as again:
        assert segments(again) == [1]
        again.commit_prepared("one")
        assert waiting(again) == [b"plain", b"new"]


def test_the_reserve_of_a_segment_that_has_gone_is_gone(
    storage: SimulatedStorage, queue: PersistentQueue, log: PreparedLog
) -> None:
    """Another thread may remove it, once all of it is decided."""
    prepare(queue, "puts", "one")
    while segments(queue) == [1]:
        prepare(queue, "puts", "filler", count=10)
        queue.abort_prepared("filler")
    found = log.find("one")
    assert isinstance(found, Entry)
    storage.remove(handle_of(queue).directory.segment(1))
    assert not log.reserve_of(found).give_back()

"""What a group takes next, where priorities stand far ahead or cannot be read."""

from pathlib import Path

import pytest

from holdfast import Empty, StorageError
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.log.log_reader import CHUNK_BYTES
from holdfast.queue.dispatch.dispatcher import TAKE_BYTES
from support.builders.handles import handle_of
from support.builders.jobs import ROOT, Jobs, drained
from support.builders.small_queues import SmallQueue
from support.processes.threads import Threads, wait_until
from support.storages.refusals import refusing


def test_a_priority_far_behind_what_was_taken_is_found() -> None:
    """It comes before the plain ones that stand in front of it."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"x"] * 700)
        assert len(queue.get_many(700, timeout=0)) == 700
        queue.put(b"plain")
        queue.put(b"urgent", priority=5)
        assert drained(queue) == [b"urgent", b"plain"]


def test_a_priority_at_the_end_of_the_log_that_cannot_be_read_holds_nobody_up() -> None:
    """It is lost, and the plain ones come."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"one", b"two"])
        queue.put(b"urgent", priority=5)
        small = SmallQueue(ROOT, jobs.storage, 3)
        path = small.data_files()[0]
        content = jobs.storage.tree()[path]
        assert content is not None
        small.flip(path, content.index(b"urgent"))
        assert drained(queue) == [b"one", b"two"]
        assert (queue.stats().lost, queue.stats().depth) == (1, 0)
        queue.put(b"more", priority=1)
        assert drained(queue) == [b"more"]


def test_what_could_not_be_ended_by_a_look_is_ended_by_the_next_take() -> None:
    """Its last receiver died with it in hand, and the disk refused the note that it is a dead letter."""
    jobs = Jobs()
    with jobs.open(max_deliveries=1) as queue:
        queue.put(b"a")
        queue.receive(timeout=0)
        left = jobs.killed()
    with left.open(max_deliveries=1) as queue:
        with refusing(left.storage, "write_at", ".position", count=1), pytest.raises(StorageError):
            queue.peek(10)
        assert len(queue.dead) == 0
        with pytest.raises(Empty):
            queue.get(timeout=0)
        assert (len(queue.dead), queue.stats().dead) == (1, 1)


def test_a_retried_dead_letter_that_reading_has_yet_to_come_by_comes_in_its_order() -> None:
    """Looking ahead has passed it, for a priority behind it: so it comes once, with the others."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"one", b"two", b"three"])
        first, second = queue.receive_many(2, timeout=0)
        second.reject("not now")
        first.release()
        queue.put(b"urgent", priority=1)
    with jobs.open() as queue:
        assert queue.get(timeout=0) == b"urgent"
        assert queue.dead.retry([1]) == 1
        assert drained(queue) == [b"one", b"two", b"three"]


def test_a_retried_dead_letter_whose_file_cannot_be_read_any_more_is_lost_and_holds_nobody_up() -> None:
    """The header of its file was damaged in both copies; the file behind it is whole."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"dead")
        queue.receive(timeout=0).reject("not now")
        queue.put_many([bytes(1000)] * 30)
        assert len(queue.get_many(30, timeout=0)) == 30
        queue.put(b"last")
        assert queue.peek()[0].payload == b"last"
        small = SmallQueue(ROOT, jobs.storage, 32)
        path = small.data_files()[0]
        assert len(small.data_files()) > 1
        assert queue._engine.idle_handles is not None
        queue._engine.idle_handles.look()
        queue._engine.idle_handles.look()  # has let go of the file
        small.write(path, bytes(FRAMES_START) + small.read(path)[FRAMES_START:])
        assert queue.dead.retry([0]) == 1
        assert drained(queue) == [b"last"]
    with jobs.open() as queue:
        assert drained(queue) == []
        assert (queue.stats().depth, queue.stats().lost) == (0, 1)


def test_a_priority_that_is_written_and_not_durable_yet_is_waited_for_by_nobody(threads: Threads) -> None:
    """Consumers do not see it before its sync: they take what stands in front of it, and then it."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"one", b"two"])
        taken: list[bytes] = []

        def take(verb: str, path: Path) -> None:
            if verb == "sync" and path.suffix == ".data":
                jobs.storage.before_verb = None
                assert handle_of(queue).require_write_side().prioritized_end() == 3
                threads.start(lambda: taken.append(queue.get(timeout=0)))
                wait_until(lambda: bool(taken or threads.failures))

        jobs.storage.before_verb = take
        queue.put(b"urgent", priority=1)
        threads.join()
        assert taken == [b"one"]
        assert drained(queue) == [b"urgent", b"two"]


def test_what_was_read_ahead_is_more_to_take() -> None:
    """Whoever is about to sleep looks there too."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"one", b"two"])
        assert queue.get(timeout=0) == b"one"
        backlog = handle_of(queue).require_read_side()._dispatcher
        assert backlog.may_have_more
        assert queue.get(timeout=0) == b"two"
        assert not backlog.may_have_more


def test_what_was_over_its_time_in_a_look_that_failed_ends_with_the_next_take() -> None:
    """The disk refused the note that it was dropped."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"one")
        assert queue.get(timeout=0) == b"one"
        queue.put(b"late", ttl=5)
        assert len(queue.peek()) == 1
        jobs.clock.advance(10)
        with refusing(jobs.storage, "write_at", ".position", count=1), pytest.raises(StorageError):
            queue.peek()
        with pytest.raises(Empty):
            queue.get(timeout=0)
        assert (queue.stats().dropped, queue.stats().depth) == (1, 0)


def test_the_end_of_the_log_is_the_end_where_it_cannot_be_read() -> None:
    """What stands there is lost, and the next message comes."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"one")
        assert queue.get(timeout=0) == b"one"
        queue.put(b"broken")
        small = SmallQueue(ROOT, jobs.storage, 2)
        path = small.data_files()[0]
        small.flip(path, small.read(path).index(b"broken"))
        assert drained(queue) == []
        queue.put(b"two")
        assert drained(queue) == [b"two"]
        assert (queue.stats().lost, queue.stats().depth) == (1, 0)


@pytest.mark.parametrize("count", [40, 100])
def test_a_take_of_many_is_filled_up_from_the_next_chunk_and_the_next_data_file(count: int) -> None:
    """Only the last one has fewer; each is one entry that a crash takes or leaves."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"%04d" % each + bytes(1996) for each in range(330)])  # a chunk has 129 of them, a file too
        sizes, found = [], list[bytes]()
        while queue.stats().depth:
            taken = queue.get_many(count, timeout=0)
            sizes.append(len(taken))
            found += taken
            left = jobs.without_power()
            with left.open() as survivor:
                assert survivor.stats().depth == 330 - len(found)
        assert sizes == [count] * (330 // count) + [330 % count]
        assert [int(each[:4]) for each in found] == list(range(330))


def test_a_take_of_many_large_messages_ends_where_memory_would_follow_them() -> None:
    """However many are asked for; the others come with the next ones."""
    jobs = Jobs()
    with jobs.open() as queue:
        for number in range(40):
            queue.put(b"%04d" % number + bytes(100_000))
        sizes = []
        while queue.stats().depth:
            sizes.append(len(queue.get_many(1000, timeout=0)))
    assert sum(sizes) == 40
    assert TAKE_BYTES // 100_000 <= sizes[0] <= (TAKE_BYTES + CHUNK_BYTES) // 100_000 + 1


def test_what_was_read_is_handed_out_though_what_is_behind_it_cannot_be() -> None:
    """The disk refuses a chunk: the take that meets it first still has what was there before."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"%04d" % each + bytes(1996) for each in range(200)])
        assert len(queue.get_many(100, timeout=0)) == 100
        with refusing(jobs.storage, "read_at", ".data"):
            before = queue.get_many(100, timeout=0)
            assert 0 < len(before) < 100
            with pytest.raises(StorageError):
                queue.get_many(100, timeout=0)
        assert len(queue.get_many(100, timeout=0)) == 100 - len(before)
        assert queue.stats().depth == 0


def test_a_take_that_is_filled_up_still_drops_what_is_over_its_time() -> None:
    """Those from the chunk before too."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"first")
        assert queue.get(timeout=0) == b"first"
        for number in range(200):
            queue.put(b"%04d" % number + bytes(1996), ttl=5 if number < 60 else None)
        assert len(queue.get_many(50, timeout=0)) == 50  # more than these were read
        jobs.clock.advance(10)
        assert [int(each[:4]) for each in queue.get_many(50, timeout=0)] == list(range(60, 100))
        assert (queue.stats().dropped, queue.stats().depth) == (10, 100)

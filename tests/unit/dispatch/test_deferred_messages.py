"""Messages that wait aside, by reference, and cannot be read when their turn comes."""

import pytest

from holdfast import Empty, PersistentQueue
from holdfast.persistence.log.log_reader import Record
from support.builders.handles import handle_of
from support.builders.jobs import ROOT, Jobs, drained
from support.builders.small_queues import SmallQueue


def damage(jobs: Jobs, offset: int) -> None:
    """Break the payload of a message, in the first data file."""
    queue = SmallQueue(ROOT, jobs.storage, 0)
    path = queue.data_files()[0]
    content = jobs.storage.tree()[path]
    assert content is not None
    position = content.index(payload(offset))
    queue.flip(path, position)


def payload(number: int) -> bytes:
    """Return what is found again on the disk."""
    return b"payload %d" % number


def put_keyed(queue: PersistentQueue, count: int) -> None:
    """Put messages of one order key."""
    for number in range(queue.stats().next_offset, queue.stats().next_offset + count):
        queue.put(payload(number), order_key="key")


def test_a_key_goes_on_behind_a_message_that_cannot_be_read_when_its_turn_comes() -> None:
    """It is lost, and those behind it have waited for nothing else."""
    jobs = Jobs()
    with jobs.open() as queue:
        put_keyed(queue, 4)
        first = queue.receive(timeout=0)
        with pytest.raises(Empty):
            queue.receive(timeout=0)
        damage(jobs, 1)
        damage(jobs, 2)
        first.ack()
        assert drained(queue) == [payload(3)]
        assert queue.stats().lost == 2


@pytest.mark.parametrize("key", ["key", None])
def test_a_message_that_cannot_be_read_when_its_time_comes_lets_the_others_go_on(key: str | None) -> None:
    """It was given back for a while; those of its key have waited for it."""
    jobs = Jobs()
    with jobs.open() as queue:
        for number in range(2):
            queue.put(payload(number), order_key=key)
        queue.receive(timeout=0).nack(delay=10)
        assert drained(queue) == ([] if key else [payload(1)])
        damage(jobs, 0)
        jobs.clock.advance(10)
        assert drained(queue) == ([payload(1)] if key else [])
        assert (queue.stats().lost, queue.stats().depth) == (1, 0)


def given_back(jobs: Jobs, queue: PersistentQueue, count: int) -> None:
    """Have so many messages wait until the clock has gone on by ten seconds; nothing but their places is known."""
    for number in range(count):
        queue.put(payload(number))
    for _ in range(count):
        queue.receive(timeout=0).nack(delay=10)


def test_of_a_run_that_is_read_at_once_a_damaged_one_is_lost() -> None:
    """Those in front of it and behind it come, and it counts once."""
    jobs = Jobs()
    with jobs.open() as queue:
        given_back(jobs, queue, 6)
        damage(jobs, 3)
        jobs.clock.advance(10)
        assert drained(queue) == [payload(number) for number in (0, 1, 2, 4, 5)]
        assert (queue.stats().lost, queue.stats().depth) == (1, 0)


def test_one_that_comes_again_amid_a_run_that_is_read_at_once_is_itself() -> None:
    """It comes before those that were read already; a take that was idle for long reads the rest once more."""
    jobs = Jobs()
    with jobs.open() as queue:
        given_back(jobs, queue, 8)
        jobs.clock.advance(10)
        assert queue.get(timeout=0) == payload(0)
        again = queue.receive(timeout=0)
        assert queue.get(timeout=0) == payload(2)
        again.nack(delay=0)
        assert queue.get(timeout=0) == payload(1)
        assert [queue.get(timeout=0) for _ in range(2)] == [payload(3), payload(4)]
        handle_of(queue).require_read_side().rest()
        assert drained(queue) == [payload(number) for number in (5, 6, 7)]


def test_a_key_stays_with_the_message_in_hand_when_the_log_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a take that was cut short; the next of the key comes once that one is done."""
    jobs = Jobs()
    with jobs.open() as queue:
        put_keyed(queue, 2)
        queue.put(payload(2))
        first = queue.receive(timeout=0)
        store = handle_of(queue).require_read_side().progress_store
        assert store is not None
        deliver_one = store.deliver_one

        def cut_short(record: Record, number: int) -> None:
            deliver_one(record, number)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(store, "deliver_one", cut_short)
            with pytest.raises(KeyboardInterrupt):
                queue.receive(timeout=0)
        assert [each.payload for each in queue.receive_many(10, timeout=0)] == [payload(2)]
        first.ack()
        assert queue.get(timeout=0) == payload(1)

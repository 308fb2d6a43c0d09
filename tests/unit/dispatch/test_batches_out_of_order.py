"""Batches whose offsets do not ascend, because of priorities: what is noted is what was handed out, and no more."""

from holdfast import Put
from support.builders.jobs import Jobs, drained

PUTS = [Put(b"a", priority=9), b"b", Put(b"c", priority=1), b"d", Put(b"e", priority=5)]


def test_getting_a_batch_finishes_no_message_that_stands_between_its_first_and_its_last() -> None:
    """Offsets 0, 4, 2 came: once 0 to 2 were noted as done, so that 1 was lost and 4 came again."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many(PUTS)
        assert queue.get_many(3) == [b"a", b"e", b"c"]
        assert queue.stats().depth == 2
        assert drained(queue) == [b"b", b"d"]


def test_receiving_a_batch_counts_those_that_were_handed_out() -> None:
    """After a kill they have a delivery behind them, and the others have none."""
    jobs = Jobs()
    queue = jobs.open()
    queue.put_many(PUTS)
    assert [each.offset for each in queue.receive_many(3)] == [0, 4, 2]
    with jobs.killed().open() as again:
        assert [each.delivery_count for each in again.browse()] == [1, 0, 1, 0, 1]
    queue.close()

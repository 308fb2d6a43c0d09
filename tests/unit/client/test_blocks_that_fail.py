"""Blocks that end by an exception of the program: it comes out, whatever becomes of the messages."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import Empty, PersistentQueue, RetryableError
from holdfast.queue.client.shared_consumer import SharedConsumer


@pytest.fixture(params=["owner", "client"])
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PersistentQueue]:
    """Return a handle with three messages that owns the queue, or asks another one."""
    with ExitStack() as handles:
        first, second = (
            handles.enter_context(PersistentQueue(tmp_path / "q", mode="shared", backoff=[])) for _ in range(2)
        )
        first.put_many([b"a", b"b", b"c"])
        yield first if request.param == "owner" else second


def test_an_exception_comes_out_of_a_block_whose_message_was_taken_away(queue: PersistentQueue) -> None:
    """The message comes again, as its group was moved back."""
    with pytest.raises(ZeroDivisionError), queue.receive(timeout=0) as delivery:
        queue.groups.seek("default", "earliest")
        raise ZeroDivisionError
    assert delivery.is_settled
    assert queue.get_many(9, timeout=0) == [b"a", b"b", b"c"]


def test_an_exception_comes_out_of_the_block_of_a_batch_that_was_taken_away(queue: PersistentQueue) -> None:
    """It does not come again, as its group was moved ahead."""
    with pytest.raises(ZeroDivisionError), queue.receive_many(2, timeout=0):
        queue.groups.seek("default", "latest")
        raise ZeroDivisionError
    with pytest.raises(Empty):
        queue.get(timeout=0)


def test_an_exception_comes_out_of_a_transaction_whose_messages_were_taken_away(queue: PersistentQueue) -> None:
    """Both of the block of the message and of that of the transaction."""
    with pytest.raises(ZeroDivisionError), queue.transaction() as tx:
        tx.put(b"d")
        with queue.receive(timeout=0) as delivery, tx.receive(timeout=0):
            tx.ack(delivery)
            queue.groups.seek("default", "earliest")
            raise ZeroDivisionError
    assert queue.get_many(9, timeout=0) == [b"a", b"b", b"c"]


def test_an_exception_comes_out_of_a_block_though_no_owner_answers(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message comes again once its lease is over."""

    def ask(side: SharedConsumer, *_: object) -> None:
        raise RetryableError("no owner answers")

    with pytest.raises(ZeroDivisionError) as caught, queue.receive(timeout=0) as delivery:
        monkeypatch.setattr(SharedConsumer, "_ask_settle", ask)
        raise ZeroDivisionError
    assert caught.value.__notes__ == ["not given back: no owner answers"]
    assert not delivery.is_settled

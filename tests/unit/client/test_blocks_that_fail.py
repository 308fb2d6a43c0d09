"""Blocks that end by an exception of the program: it comes out, whatever becomes of the messages."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import Empty, PersistentQueue, RetryableError
from holdfast.queue.client.shared_consumer import SharedConsumer
from holdfast.queue.protocol.messages import SessionLostError


@pytest.fixture(params=["owner", "client"])
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PersistentQueue]:
    """Return a handle with three messages that owns the queue, or asks another one."""
    with ExitStack() as handles:
        first, second = (
            handles.enter_context(PersistentQueue(tmp_path / "q", mode="shared", backoff=[])) for _ in range(2)
        )
        first.put_many([b"a", b"b", b"c"])
        yield first if request.param == "owner" else second


def moved_and_failed(queue: PersistentQueue, start: str) -> None:
    """Have the group moved, as another handle may do at any time, and raise."""
    queue.groups.seek("default", start)  # type: ignore[arg-type]  # one of the words
    raise ZeroDivisionError


def test_an_exception_comes_out_of_a_block_whose_message_was_taken_away(queue: PersistentQueue) -> None:
    """The message comes again, as its group was moved back."""
    delivery = queue.receive(timeout=0)
    with pytest.raises(ZeroDivisionError), delivery:
        moved_and_failed(queue, "earliest")
    assert delivery.is_settled
    assert queue.get_many(9, timeout=0) == [b"a", b"b", b"c"]


def test_an_exception_comes_out_of_the_block_of_a_batch_that_was_taken_away(queue: PersistentQueue) -> None:
    """It does not come again, as its group was moved ahead."""
    with pytest.raises(ZeroDivisionError), queue.receive_many(2, timeout=0):
        moved_and_failed(queue, "latest")
    with pytest.raises(Empty):
        queue.get(timeout=0)


def test_an_exception_comes_out_of_a_transaction_whose_messages_were_taken_away(queue: PersistentQueue) -> None:
    """Both of the block of the message and of that of the transaction."""
    tx = queue.begin()
    tx.put(b"d")
    delivery, own = queue.receive(timeout=0), tx.receive(timeout=0)
    tx.ack(delivery)
    with pytest.raises(ZeroDivisionError), tx, delivery, own:
        moved_and_failed(queue, "earliest")
    assert queue.get_many(9, timeout=0) == [b"a", b"b", b"c"]


def test_an_exception_comes_out_of_a_block_though_no_owner_answers(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message comes again once its lease is over."""

    def ask(side: SharedConsumer, *_: object) -> None:
        raise RetryableError("no owner answers")

    delivery = queue.receive(timeout=0)
    monkeypatch.setattr(SharedConsumer, "_ask_settle", ask)
    with pytest.raises(ZeroDivisionError) as caught, delivery:
        raise ZeroDivisionError
    assert caught.value.__notes__ == ["not given back: no owner answers"]
    assert not delivery.is_settled


def test_a_batch_that_was_taken_away_as_a_whole_is_said_in_one_note(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a process was stopped for long: a note and another try for each message would take minutes."""

    def ask(side: SharedConsumer, *_: object) -> None:
        raise SessionLostError("no such session")

    batch = queue.receive_many(3, timeout=0)
    monkeypatch.setattr(SharedConsumer, "_ask_settle", ask)
    with pytest.raises(ZeroDivisionError) as caught, batch:
        raise ZeroDivisionError
    (note,) = caught.value.__notes__
    assert "this process was found dead" in note

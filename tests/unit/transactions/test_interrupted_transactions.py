"""Transactions that are interrupted, or whose undoing fails: nobody is told what nobody knows."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import CommitUnknownError, StorageError
from holdfast.queue.engine.coordinators import Coordinator
from holdfast.queue.producer.write_side import WriteSide
from holdfast.queue.transactions.branch import Branch
from holdfast.queue.transactions.transaction_state import State
from support.builders.transactions import INVOICES, kill, open_queue, prepare, prepared_ids, waiting
from support.processes.log_handlers import text_said
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage


def interrupted(*_: object, **__: object) -> None:
    """Stand in for a call during which somebody presses Control-C."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_prepare_is_in_doubt(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """It may be prepared: the next opening says, and here nothing is given back."""
    queue = open_queue(storage)
    queue.put(b"one")
    tx = queue.begin()
    tx.ack(tx.receive(timeout=0))
    tx.put(b"new")
    really = Branch.prepare

    def behind(self: Branch, *arguments: object) -> None:
        really(self, *arguments)  # type: ignore[arg-type]
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Branch, "prepare", behind)
        with pytest.raises(error):
            tx.prepare("t")
    assert tx.state is State.UNKNOWN
    with open_queue(kill(storage, queue)) as again:
        assert prepared_ids(again) == ["t"]
        again.commit_prepared("t")
        assert waiting(again) == [b"new"]


def test_a_prepare_that_is_interrupted_behind_its_end_gives_back_what_it_does_not_finish(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is prepared: no later call would give the message back."""
    queue = open_queue(storage)
    queue.put(b"one")
    tx = queue.begin()
    tx.receive(timeout=0)
    tx.put(b"new")
    with monkeypatch.context() as patched:
        patched.setattr(Coordinator, "end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tx.prepare("t")
    assert tx.state is State.PREPARED
    assert queue.receive(timeout=0).payload == b"one"


@pytest.mark.parametrize(("count", "verb"), [(1, "put"), (2, "put_many")])
def test_an_interrupted_commit_is_unknown(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, count: int, verb: str
) -> None:
    """It may have happened."""
    queue = open_queue(storage)
    tx = queue.begin()
    for _ in range(count):
        tx.put(b"new")
    with monkeypatch.context() as patched:
        patched.setattr(WriteSide, verb, interrupted)
        with pytest.raises(KeyboardInterrupt):
            tx.commit()
    assert tx.state is State.UNKNOWN
    with open_queue(kill(storage, queue)) as again:
        assert waiting(again) == []


def test_a_prepared_transaction_whose_commit_nobody_knows_is_unknown(storage: SimulatedStorage) -> None:
    """Its sync failed; the next opening finds out, and counts it once."""
    queue = open_queue(storage)
    queue.put(b"one")
    tx = prepare(queue, "puts", "t")
    with refusing(storage, "sync", ".data"), pytest.raises(CommitUnknownError):
        tx.commit()
    assert tx.state is State.UNKNOWN
    with open_queue(kill(storage, queue)) as again:
        for transaction_id in prepared_ids(again):
            again.commit_prepared(transaction_id)
        assert waiting(again) == [b"one", b"new"]


def test_a_put_that_is_interrupted_behind_its_move_into_a_file_is_in_the_transaction(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was put so far is there once, the interrupted one too."""
    with open_queue(storage) as queue:
        tx = queue.begin()
        tx.put_many([bytes(1000)] * 3)
        really = Branch._spill

        def behind(self: Branch) -> None:
            really(self)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Branch, "_spill", behind)
            with pytest.raises(KeyboardInterrupt):
                tx.put_many([bytes(1000)] * 100)
        tx.put(b"last")
        assert len(tx.commit()) == 104
        assert len(waiting(queue)) == 104


def test_a_part_that_cannot_be_undone_stays_in_doubt_until_its_queue_is_reopened(
    storage: SimulatedStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """The other could not decide: the caller hears of that, the log of this."""
    orders, invoices = open_queue(storage), open_queue(storage, INVOICES)
    tx = holdfast.transaction(orders, invoices)
    tx.put(orders, b"order")
    tx.put(invoices, b"invoice")
    with (
        refusing(storage, "allocate", "next.data"),
        refusing(storage, "remove", ".batch"),
        pytest.raises(StorageError),
    ):
        tx.commit()
    assert "stays in doubt" in text_said(caplog)
    left = kill(storage, orders, invoices)
    with open_queue(left) as orders, open_queue(left, INVOICES) as invoices:
        assert [waiting(each) for each in (orders, invoices)] == [[], []]
        assert [each.prepared() for each in (orders, invoices)] == [[], []]

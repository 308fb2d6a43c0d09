"""Prepared transactions of handles in the mode "shared", over the deaths of real processes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CommitUnknownError,
    DiskFullError,
    LeaseExpiredError,
    PersistentQueue,
    RetryableError,
    TransactionStateError,
)
from holdfast.queue.client.link import Answer
from holdfast.queue.client.membership import Membership
from holdfast.queue.client.staging import STAGED_BYTES
from holdfast.queue.producer.waiting_batches import WaitingBatches
from holdfast.queue.protocol.messages import Prepare
from support.builders.handles import handle_of
from support.owners.in_processes import drained, hold
from support.processes.children import child
from support.processes.threads import wait_until


@pytest.mark.parametrize("is_committed", [True, False])
def test_what_a_killed_client_has_prepared_is_decided_by_another(tmp_path: Path, is_committed: bool) -> None:
    """It was killed before it could decide; the owner lives."""
    path, ready = tmp_path / "q", tmp_path / "ready"

    def prepare() -> None:
        with PersistentQueue(path, mode="shared", can_own=False) as queue:
            tx = queue.begin()
            tx.ack(tx.receive(timeout=5))
            tx.put(b"b")
            tx.prepare("t")
            ready.touch()
            signal.pause()

    with PersistentQueue(path, mode="shared") as queue:
        queue.put(b"a")
        with child(prepare) as client:
            wait_until(ready.exists)
            client.kill()
            client.wait()
        assert [each.id for each in queue.prepared()] == ["t"]
        assert drained(queue) == []
        if is_committed:
            assert queue.commit_prepared("t") == range(1, 2)
        else:
            queue.abort_prepared("t")
        assert drained(queue) == ([b"b"] if is_committed else [b"a"])


def test_a_client_decides_what_it_prepared_with_an_owner_that_was_killed(tmp_path: Path) -> None:
    """The successor finds it in the files."""
    path, ready = tmp_path / "q", tmp_path / "ready"
    with child(lambda: hold(path, ready)) as owner:
        wait_until(ready.exists)
        with PersistentQueue(path, mode="shared") as queue:
            queue.put_many([b"a", b"b"])
            first, second = queue.begin(), queue.begin()
            for tx in (first, second):
                tx.ack(tx.receive(timeout=5))
                tx.put(b"c")
                tx.prepare()
            part = queue.begin()
            part.put(b"d")
            chosen = part.prepare(part_of=("app", 1))
            owner.kill()
            owner.wait()
            assert first.commit() == range(2, 3)
            second.abort()
            queue.joint_commits.commit("app", 1, [chosen])
            assert drained(queue) == [b"b", b"c", b"d"]
            assert queue.prepared() == []


# -- When a message was taken away -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["commit", "prepare"])
@pytest.mark.parametrize("is_client", [False, True])
def test_a_handle_remembers_that_a_message_of_its_transaction_was_taken_away(
    tmp_path: Path, ends: str, is_client: bool
) -> None:
    """The owner says it once: it forgets what it has told."""
    path = tmp_path / "q"
    with PersistentQueue(path, mode="shared") as owner, PersistentQueue(path, mode="shared") as client:
        queue = client if is_client else owner
        queue.put(b"a")
        delivery = queue.receive(timeout=0)
        tx = queue.begin()
        tx.ack(delivery)
        owner.groups.seek("default", "earliest")
        with pytest.raises(LeaseExpiredError):
            getattr(tx, ends)()
        tx.abort()
        assert delivery.has_expired
        again = queue.begin()
        for verb in (delivery.ack, lambda: again.ack(delivery)):
            with pytest.raises(LeaseExpiredError):
                verb()
        again.abort()
        assert queue.get(timeout=0) == b"a"


def test_an_aborted_transaction_keeps_no_message_from_an_owner_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its handle would extend the lease as long as it lives, for a transaction that is over."""
    path = tmp_path / "q"
    with (
        PersistentQueue(path, mode="shared", lease_seconds=0.3) as owner,
        PersistentQueue(path, mode="shared") as queue,
    ):
        queue.put(b"a")
        tx = queue.begin()
        tx.receive(timeout=5)

        def refuse(*_: object) -> None:
            raise RetryableError("the owner has not answered within 30 s: try again")

        with monkeypatch.context() as patch:
            patch.setattr(handle_of(queue).consumer, "_ask_settle", refuse)
            tx.abort()
        assert owner.get(timeout=10) == b"a"


def test_a_commit_that_is_tried_again_says_the_same_of_a_message_that_was_taken_away(tmp_path: Path) -> None:
    """The transaction is open until it is aborted."""
    with PersistentQueue(tmp_path / "q", mode="shared") as queue:
        queue.put(b"a")
        tx = queue.begin()
        tx.ack(tx.receive(timeout=0))
        queue.groups.seek("default", "earliest")
        for _ in range(2):
            with pytest.raises(LeaseExpiredError):
                tx.commit()
        tx.abort()


# -- When no answer comes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "text"), [(CommitUnknownError, "unknown"), (RetryableError, "prepare failed")])
def test_a_prepare_without_an_answer_may_have_happened_if_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], text: str
) -> None:
    """The transaction does not guess."""
    with PersistentQueue(tmp_path / "q", mode="shared") as queue:
        tx = queue.begin()
        tx.put(b"a")

        def ask(membership: Membership, request: object, *rest: object) -> Answer:
            if isinstance(request, Prepare):
                raise error("no owner tells")
            return asked(membership, request, *rest)  # type: ignore[arg-type]  # as they came

        asked = Membership.ask
        with monkeypatch.context() as patch:
            patch.setattr(Membership, "ask", ask)
            with pytest.raises(error):
                tx.prepare()
        with pytest.raises(TransactionStateError, match=text):
            tx.commit()
        assert queue.prepared() == []


def test_a_prepare_for_which_the_owner_has_no_memory_may_have_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has: what was written waits, and the transaction does not say that it was aborted."""
    really = WaitingBatches.prepare_in_log

    def behind(*arguments: Any) -> None:
        really(*arguments)
        raise MemoryError

    with PersistentQueue(tmp_path / "q", mode="shared") as queue:
        queue.put(b"a")
        tx = queue.begin()
        tx.ack(tx.receive(timeout=5))
        tx.put(b"b")
        with monkeypatch.context() as patch:
            patch.setattr(WaitingBatches, "prepare_in_log", behind)
            with pytest.raises(MemoryError):
                tx.prepare("t")
        with pytest.raises(TransactionStateError, match="unknown"):
            tx.commit()
        assert [(each.put_count, each.ack_count) for each in queue.prepared()] == [(1, 1)]
        assert queue.commit_prepared("t") == range(1, 2)
        assert drained(queue) == [b"b"]


def test_a_staged_file_that_cannot_be_synced_is_not_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is aborted, and leaves no file."""
    with PersistentQueue(tmp_path / "q", mode="shared") as queue:
        tx = queue.begin()
        tx.put(b"a" * (STAGED_BYTES + 1))

        def sync(self: object) -> None:
            raise DiskFullError("no space")

        with monkeypatch.context() as patch:
            patch.setattr("holdfast.persistence.segment.batch_file.BatchFileWriter.sync", sync)
            with pytest.raises(DiskFullError):
                tx.prepare()
        assert list((tmp_path / "q" / "prepared").iterdir()) == []

"""What follows an append costs time only: the message was put, or is the caller's, and the call says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Empty, PersistentQueue, transaction
from support.builders.handles import handle_of
from support.builders.jobs import Jobs
from support.processes.log_handlers import text_said
from support.storages.refusals import refusing

NO_MEMORY = MemoryError("none left")
NO_THREAD = RuntimeError("can't start new thread")


def with_files(jobs: Jobs, count: int) -> PersistentQueue:
    """Return an open queue with so many data files."""
    queue = jobs.open()
    while queue.stats().file_count < count:
        queue.put(b"%d" % queue.stats().depth + bytes(1000))
    return queue


def get(queue: PersistentQueue) -> int:
    """Take a message; return its number."""
    return int(queue.get(timeout=0).rstrip(b"\0"))


def get_many(queue: PersistentQueue) -> int:
    """Take a message as a batch."""
    (payload,) = queue.get_many(1, timeout=0)
    return int(payload.rstrip(b"\0"))


def receive_and_ack(queue: PersistentQueue) -> int:
    """Take a message, and acknowledge it."""
    delivery = queue.receive(timeout=0)
    delivery.ack()
    assert queue.stats().in_flight == 0
    return int(delivery.payload.rstrip(b"\0"))


def take_all(queue: PersistentQueue) -> list[int]:
    """Take one message after another."""
    return [get(queue) for _ in range(queue.qsize())]


@pytest.mark.parametrize("error", [NO_MEMORY, NO_THREAD, OSError(24, "too many open files")], ids=repr)
@pytest.mark.parametrize("take", [get, get_many, receive_and_ack])
def test_whoever_finishes_a_file_has_the_message_though_the_file_cannot_be_retired(
    take: Callable[[PersistentQueue], int], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The file stays until the next one is retired."""
    jobs = Jobs()
    with with_files(jobs, 4) as queue:
        depth = queue.stats().depth
        taken = []
        with refusing(jobs.storage, "rename", ".data", error):
            while "could not be retired" not in text_said(caplog):
                taken.append(take(queue))
        assert taken == list(range(len(taken)))
        assert queue.stats().depth == depth - len(taken)
        taken += [take(queue) for _ in range(queue.stats().depth)]
        assert taken == list(range(depth))
        assert queue.stats().file_count == 1


def test_an_interruption_behind_an_append_goes_on_to_the_caller() -> None:
    """As everywhere: the message may be his, and it does not come again."""
    jobs = Jobs()
    queue = with_files(jobs, 3)
    with queue, refusing(jobs.storage, "rename", ".data", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        take_all(queue)


def test_a_put_stands_though_other_processes_cannot_be_told(caplog: pytest.LogCaptureFixture) -> None:
    """They hear of it with the next one."""
    jobs = Jobs()
    with jobs.open() as queue:
        with refusing(jobs.storage, "write_at", "write.mark", NO_MEMORY):
            assert queue.put(b"one") == 0
        assert "write.mark" in text_said(caplog)
        assert queue.put(b"two") == 1
        with jobs.open(mode="read_only") as other:
            assert other.stats().depth == 2


@pytest.mark.parametrize("verb", ["nack", "reject", "release"])
def test_a_message_that_was_settled_comes_again_by_the_log_if_memory_cannot_follow(
    verb: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The entry stands; what waits in memory is read anew."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"one", b"two"])
        delivery = queue.receive(timeout=0)
        side = handle_of(queue).require_read_side()
        with monkeypatch.context() as broken:
            for name in ("give_back", "leave"):
                broken.setattr(side._dispatcher.deferred, name, _refuse)
            getattr(delivery, verb)(*(("no use",) if verb == "reject" else ()))
        assert "none left" in text_said(caplog)
        assert queue.stats().in_flight == 0
        left = [queue.get(timeout=0) for _ in range(queue.qsize())]
        assert left == ([b"two"] if verb == "reject" else [b"one", b"two"])


def test_dead_letters_that_are_retried_come_again_though_the_log_cannot_be_read_just_then() -> None:
    """The verb is done; they are found by the next take."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"one", b"two"])
        for delivery in queue.receive_many(2, timeout=0):
            delivery.reject("no use")
    with jobs.open() as queue:
        with pytest.raises(Empty):
            queue.get(timeout=0)
        backlog = handle_of(queue).require_read_side()._dispatcher
        revive = backlog.revive
        backlog.revive = _refuse  # type: ignore[method-assign]
        assert queue.dead.retry([0, 1]) == 2
        backlog.revive = revive  # type: ignore[method-assign]
        assert [queue.get(timeout=0) for _ in range(2)] == [b"one", b"two"]


def test_an_id_is_remembered_though_memory_ran_out_behind_its_put(caplog: pytest.LogCaptureFixture) -> None:
    """The put stands, and a second one of the same id writes nothing."""
    jobs = Jobs()
    with jobs.open() as queue:
        ids = handle_of(queue).require_write_side().deduplication
        note, ids._ring.note = ids._ring.note, _refuse  # type: ignore[method-assign]
        assert queue.put(b"one", dedup_id="one") == 0
        ids._ring.note = note  # type: ignore[method-assign]
        assert "remembered with the next" in text_said(caplog)
        assert queue.put(b"one", dedup_id="one") == 0
        assert queue.qsize() == 1


def test_a_transaction_is_committed_though_its_votes_cannot_be_let_go_of_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was prepared is prepared, and is decided later."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put_many([b"one", b"two"])
        transaction = queue.begin()
        transaction.ack(transaction.receive(timeout=0))
        side = handle_of(queue).require_read_side()
        with monkeypatch.context() as broken:
            broken.setattr(side._leases, "end", _refuse)
            transaction.prepare("one")
        queue.commit_prepared("one")
        assert queue.stats().depth == 1


def _refuse(*_: object) -> None:
    raise NO_MEMORY


OTHER = Path("/r")


@pytest.mark.parametrize("name", [".position", ".data"])
def test_a_transaction_that_was_decided_is_committed_whatever_fails_behind_that(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In its own queue and in the other one: what could not follow does so when it is opened again."""
    jobs = Jobs()
    with (
        jobs.open() as queue,
        PersistentQueue(OTHER, mode="exclusive", storage=jobs.storage, clock=jobs.clock) as other,
    ):
        queue.put_many([b"one", b"two"])
        other.put(b"three")
        tx = transaction(queue, other)
        tx.ack(queue, tx.receive(queue, timeout=0))
        tx.put(queue, b"four")
        tx.ack(other, tx.receive(other, timeout=0))
        tx.put(other, b"five")
        write_side = handle_of(queue).require_write_side()
        decide = write_side.decide

        def decide_and_break(*arguments: Any) -> range:
            offsets = decide(*arguments)
            jobs.storage.before_verb = _refuse_writing(name)
            return offsets

        write_side.decide = decide_and_break  # type: ignore[method-assign]
        tx.commit()
        jobs.storage.before_verb = None
    assert "committed" in text_said(caplog)
    with jobs.killed().open() as queue:
        assert [queue.get(timeout=0) for _ in range(2)] == [b"two", b"four"]
        with pytest.raises(Empty):
            queue.get(timeout=0)
        with PersistentQueue(OTHER, mode="exclusive", storage=handle_of(queue).storage, clock=jobs.clock) as other:
            assert other.get(timeout=0) == b"five"
            with pytest.raises(Empty):
                other.get(timeout=0)


def _refuse_writing(name: str) -> Callable[[str, Path], None]:
    def refuse(verb: str, path: Path) -> None:
        if verb == "write_at" and path.name.endswith(name):
            raise NO_MEMORY

    return refuse

"""Requests above 1 MiB of a handle in the mode "shared": staged in a file, and committed once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from queue import Full
from threading import Thread

import pytest

from holdfast import (
    CommitUnknownError,
    CorruptionError,
    DiskFullError,
    FlushPolicy,
    PersistentQueue,
    PoisonedError,
    Put,
    RecordTooLargeError,
    RetryableError,
    StorageError,
)
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.queue.client.link import Answer
from holdfast.queue.client.membership import Membership
from holdfast.queue.client.staging import STAGED_BYTES, Staging
from holdfast.queue.producer.nonces import next_nonce
from holdfast.queue.producer.waiting_batches import WaitingBatches
from holdfast.queue.producer.write_side import WriteSide
from holdfast.queue.protocol.frames import FRAME_BYTES_MAX, LENGTH_BYTES
from holdfast.queue.protocol.messages import Offsets
from holdfast.queue.protocol.messages import Put as RequestToPut
from support.processes.children import child

LARGE = (bytes(range(256)) * (STAGED_BYTES // 256))[LENGTH_BYTES:]
"""With its length just as much as a frame takes: one byte more is staged."""

ADOPTED = LARGE * 20
"""Too large to be copied into the log."""


def staged_files(path: Path) -> list[str]:
    """Return the names of the batches that are being written."""
    return [each.name for each in (path / "prepared").glob("*.staging")] if (path / "prepared").exists() else []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory for a queue."""
    return tmp_path / "q"


@pytest.fixture
def owner(path: Path) -> Iterator[PersistentQueue]:
    """The handle that owns the queue."""
    with PersistentQueue(path, mode="shared", flush=FlushPolicy.never(), record_bytes_max=2 * len(ADOPTED)) as queue:
        yield queue


@pytest.fixture
def client(owner: PersistentQueue, path: Path) -> Iterator[PersistentQueue]:
    """A handle that never owns."""
    with PersistentQueue(path, mode="shared", can_own=False) as queue:
        yield queue


@pytest.mark.parametrize("payload", [LARGE + b"x", ADOPTED])
def test_a_large_message_of_a_client_is_put_with_all_it_asks_for(
    owner: PersistentQueue, client: PersistentQueue, path: Path, payload: bytes
) -> None:
    """Copied or adopted; and a deduplication id counts."""
    offset = client.put(payload, headers={"kind": "large"}, priority=3, dedup_id="once")
    assert client.put(payload, dedup_id="once") == offset
    delivery = owner.receive(timeout=5)
    assert (delivery.payload == payload, dict(delivery.headers)) == (True, {"kind": "large"})
    delivery.ack()
    assert owner.stats().depth == 0
    assert staged_files(path) == []


def test_a_large_batch_of_a_client_is_one_commit(owner: PersistentQueue, client: PersistentQueue, path: Path) -> None:
    """Its messages have offsets in a row."""
    batch = [b"%d" % number + bytes(1000) for number in range(2000)]
    assert client.put_many([*batch, Put(b"with", headers={"a": "b"})]) == range(2001)
    assert client.put(b"next") == 2001
    assert [owner.get(timeout=5) for _ in range(2001)] == [*batch, b"with"]
    assert staged_files(path) == []


def test_as_many_empty_messages_as_no_frame_takes_are_one_commit(
    owner: PersistentQueue, client: PersistentQueue, path: Path
) -> None:
    """Their lengths alone are more than a frame: it would be refused each time that it is put again."""
    count = FRAME_BYTES_MAX // LENGTH_BYTES
    assert client.put_many([b""] * count) == range(count)
    assert owner.depth() == count
    assert staged_files(path) == []


def test_an_owner_stages_nothing_for_itself(owner: PersistentQueue, path: Path) -> None:
    """Its process has the bytes already."""
    owner.put(ADOPTED)
    assert not (path / "prepared").exists()


def test_a_large_batch_waits_for_space(path: Path) -> None:
    """And is put once there is some, by a client and by a transaction of it."""
    with (
        PersistentQueue(path, mode="shared", maxsize=2) as owner,
        PersistentQueue(path, mode="shared", can_own=False) as client,
    ):
        owner.put(b"first")
        with pytest.raises(Full):
            client.put_many([LARGE, LARGE], timeout=0)
        assert staged_files(path) == []
        with pytest.raises(RecordTooLargeError):
            client.put_many([LARGE, LARGE, LARGE])
        putting = Thread(target=lambda: client.put_many([LARGE, LARGE]))
        putting.start()
        assert owner.get(timeout=5) == b"first"
        putting.join()
        assert [len(owner.get(timeout=5)) for _ in range(2)] == [len(LARGE)] * 2
        owner.put(b"first")
        committing = Thread(target=lambda: _commit(client, [LARGE, LARGE]))
        committing.start()
        assert owner.get(timeout=5) == b"first"
        committing.join()
        assert owner.stats().depth == 2


def _commit(queue: PersistentQueue, payloads: list[bytes]) -> None:
    with queue.transaction() as tx:
        tx.put_many(payloads)


@pytest.mark.parametrize("size", [STAGED_BYTES // 2, len(LARGE), len(ADOPTED)])
@pytest.mark.parametrize("is_owner", [False, True])
def test_a_large_transaction_puts_and_acknowledges_as_one(
    owner: PersistentQueue, client: PersistentQueue, path: Path, size: int, is_owner: bool
) -> None:
    """In a frame, from memory through a file, and spilled; by a client and by the owner."""
    queue = owner if is_owner else client
    owner.put(b"job")
    with queue.transaction() as tx:
        delivery = tx.receive(timeout=5)
        tx.put(bytes(size), headers={"of": delivery.payload.decode()})
        tx.put(bytes(size))
        tx.ack(delivery)
    assert [len(owner.get(timeout=5)) for _ in range(2)] == [size, size]
    assert owner.stats().depth == 0
    assert staged_files(path) == []


def test_a_streamed_message_of_a_client_is_put(owner: PersistentQueue, client: PersistentQueue, path: Path) -> None:
    """By a transaction that only puts; an aborted one leaves nothing."""
    with client.transaction() as tx:
        tx.put_stream(iter([LARGE] * 3), headers={"a": "b"})
        assert staged_files(path) != []
    assert owner.get(timeout=5) == LARGE * 3
    tx = client.transaction()
    tx.put_stream(iter([LARGE] * 3))
    tx.abort()
    assert owner.stats().depth == 0
    assert staged_files(path) == []


def test_a_spilled_transaction_that_finds_no_space_may_be_committed_again(path: Path) -> None:
    """Its file takes more meanwhile."""
    with (
        PersistentQueue(path, mode="shared", maxsize=3) as owner,
        PersistentQueue(path, mode="shared", can_own=False) as client,
    ):
        owner.put_many([b"first", b"second"])
        side, nonce = client._handle.producer, next_nonce()
        assert side is not None
        writer = side.stage(nonce)
        writer.add_many([LARGE, b"small"], {}, 1)
        with pytest.raises(Full):
            side.commit_staged(writer, nonce, "id", "default", (), 0)
        assert owner.get(timeout=5) == b"first"
        assert side.commit_staged(writer, nonce, "id", "default", (), 0) == range(2, 4)
        assert [owner.get(timeout=5) for _ in range(3)] == [b"second", LARGE, b"small"]


def test_a_damaged_file_is_refused(owner: PersistentQueue, client: PersistentQueue, path: Path) -> None:
    """Nothing of it is put."""
    side, nonce = client._handle.producer, next_nonce()
    assert side is not None
    writer = side.stage(nonce)
    writer.add_many([LARGE * 2], {}, 1)
    with writer.path.open("r+b") as file:
        file.seek(STAGED_BYTES)
        file.write(b"damage")
    with pytest.raises(CorruptionError):
        side.commit_staged(writer, nonce, "id", "default", (), 0)
    writer.discard()
    assert owner.stats().depth == 0


def test_a_file_that_cannot_be_written_is_removed(
    client: PersistentQueue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk has its space back."""

    def full(*args: object) -> None:
        raise DiskFullError("full", path="disk")

    monkeypatch.setattr(BatchFileWriter, "add_many", full)
    with pytest.raises(DiskFullError):
        client.put(ADOPTED)
    assert staged_files(path) == []


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (KeyboardInterrupt(), True),
        (MemoryError(), True),
        (CommitUnknownError("no answer"), True),
        (PoisonedError("bad disk"), True),
        (StorageError("bad disk"), False),
        (Full(), False),
    ],
    ids=repr,
)
def test_a_file_that_an_owner_may_be_taking_over_is_left_to_the_next_opening(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, stays: bool
) -> None:
    """An owner that does not find it any more, in the middle of that, is poisoned."""

    def fail(*args: object) -> None:
        raise error

    with PersistentQueue(path, mode="shared"), PersistentQueue(path, mode="shared", can_own=False) as client:
        with monkeypatch.context() as patched:
            patched.setattr(Membership, "ask", fail)
            with pytest.raises(type(error)):
                client.put(LARGE + b"x")
        assert len(staged_files(path)) == stays
    PersistentQueue(path, mode="exclusive").close()
    assert staged_files(path) == []


def test_what_only_an_owner_in_the_same_process_takes_may_be_put_again(
    client: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It owned the queue until just now: the next time it stages."""
    with monkeypatch.context() as patched:
        patched.setattr(Staging, "is_wanted", lambda *args: False)
        with pytest.raises(RetryableError, match="does not own the queue any more"):
            client.put(ADOPTED)
    assert client.put(ADOPTED) == 0


def _serve(path: Path, ready: Path, dies_in: str) -> None:
    """Own the queue, and die while a put is done."""

    def die(*args: object, **options: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with PersistentQueue(path, mode="shared"):
        if dies_in == "settle":
            WriteSide.settle = die  # type: ignore[method-assign]
        else:
            WaitingBatches.commit_staged = die  # type: ignore[method-assign]
        ready.touch()
        signal.pause()


@pytest.mark.parametrize("payload", [LARGE + b"x", ADOPTED])
@pytest.mark.parametrize("dies_in", ["commit_staged", "settle"])
def test_an_owner_that_dies_over_a_staged_batch_leaves_it_to_its_successor(
    path: Path, tmp_path: Path, payload: bytes, dies_in: str
) -> None:
    """Killed before it has the batch, or with the batch in the log and no answer sent: it is there once."""
    with child(lambda: _serve(path, tmp_path / "ready", dies_in)):
        while not (tmp_path / "ready").exists():
            os.sched_yield()
        with PersistentQueue(path, mode="shared", record_bytes_max=2 * len(ADOPTED)) as queue:
            assert not queue.is_owner
            assert queue.put(payload) == 0
            assert queue.is_owner
            assert queue.put(b"next") == 1
            assert [queue.get(timeout=5) == payload, queue.get(timeout=5)] == [True, b"next"]
            assert staged_files(path) == []


def _stage(path: Path, ready: Path) -> None:
    with PersistentQueue(path, mode="shared") as queue, queue.transaction() as tx:
        tx.put_stream(iter([LARGE]))
        ready.touch()
        signal.pause()


def test_the_file_of_a_killed_client_is_removed_by_the_next_opening(path: Path, tmp_path: Path) -> None:
    """Not by one before: its maker holds the lock."""
    PersistentQueue(path, mode="shared").close()
    with child(lambda: _stage(path, tmp_path / "ready")) as client:
        while not (tmp_path / "ready").exists():
            os.sched_yield()
        PersistentQueue(path, mode="shared").close()
        assert len(staged_files(path)) == 1
        client.kill()
        client.wait()
    PersistentQueue(path, mode="shared").close()
    assert staged_files(path) == []


class _Members:
    """A membership whose process is found dead once, while a request is on its way."""

    is_owner = False

    def __init__(self, error: Exception) -> None:
        self.session = 1
        self.asked: list[object] = []
        self._error: Exception | None = error

    def ask(self, request: object, payloads: object, seconds: object) -> Answer:
        self.asked.append(request)
        if self._error is not None:
            error, self._error = self._error, None
            self.session = 2
            raise error
        return Answer(Offsets(0, 1), (), True)


def test_a_file_is_written_anew_for_another_session(client: PersistentQueue) -> None:
    """The owner takes a file only from the session in it, and has done nothing."""
    members = _Members(CorruptionError("of another session"))
    staging = Staging(client._handle, members)  # type: ignore[arg-type]
    put = RequestToPut(next_nonce(), False, "", {}, None, is_staged=True)
    writer = staging.staged(put.nonce, [LARGE], {})
    assert staging.ask(writer, put, "id", 0).is_kept
    assert members.asked == [put, put]

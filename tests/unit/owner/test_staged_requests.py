"""Staged requests and commits as an owner does them: for its own process, and for others while the queue is full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import Full
from threading import Thread

import pytest

from holdfast import PersistentQueue, StaleReceiptError
from holdfast.queue.client.shared_engine import SharedEngine
from holdfast.queue.client.staging import Staging
from holdfast.queue.owner.owner import Owner
from holdfast.queue.producer.nonces import next_nonce
from holdfast.queue.protocol.messages import Offsets, Put


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[PersistentQueue]:
    """A handle that owns a queue with space for one message."""
    with PersistentQueue(tmp_path / "q", mode="shared", maxsize=1) as queue:
        yield queue


@pytest.fixture
def client(queue: PersistentQueue) -> Iterator[PersistentQueue]:
    """Another handle, which never owns."""
    with PersistentQueue(queue.path, mode="shared", can_own=False) as client:
        yield client


def owner_of(queue: PersistentQueue) -> tuple[Owner, int]:
    """Return the owner in this process, and the session of its handle."""
    assert isinstance(queue._engine, SharedEngine)
    owner = queue._engine._finder.owner
    assert owner is not None
    return owner, queue._engine.membership.session


class _Direct:
    """A membership of a session that asks the owner in its process, and gives out its answer."""

    is_owner = False

    def __init__(self, owner: Owner, session: int) -> None:
        self.session = session
        self._owner = owner

    def ask(self, put: Put, payloads: object, seconds: float | None) -> object:
        return self._owner.perform(self.session, put, (), lambda: False)


def test_a_staged_put_of_the_owner_s_process_waits_for_space(queue: PersistentQueue) -> None:
    """It comes from the time in which another process owned the queue; sent again, it has the same offsets."""
    owner, session = owner_of(queue)
    staging = Staging(queue._handle, _Direct(owner, session))  # type: ignore[arg-type]
    put = Put(next_nonce(), False, "", {}, 0.01, is_staged=True)
    writer = staging.staged(put.nonce, [b"staged"], {})
    queue.put(b"first")
    with pytest.raises(Full):
        staging.ask(writer, put, "id", None)
    patient = Put(put.nonce, False, "", {}, None, is_staged=True)
    putting = Thread(target=lambda: staging.ask(writer, patient, "id", None))
    assert owner.queue.append(session, put, (), may_append=False) is None
    putting.start()
    assert queue.get(timeout=5) == b"first"
    putting.join()
    assert owner.queue.append(session, put, (), may_append=False) == (range(1, 2), False)
    again = owner.perform(session, put, (), lambda: False)
    assert again == (Offsets(1, 1), [])
    assert [queue.get(timeout=5), queue.qsize()] == [b"staged", 0]


def test_a_commit_of_a_client_waits_for_space_as_long_as_it_says(
    queue: PersistentQueue, client: PersistentQueue
) -> None:
    """Not at all, for a moment, or until there is some."""
    side = client._handle.producer
    assert side is not None
    queue.put(b"first")
    for timeout in (0, 0.05):
        with pytest.raises(Full):
            side.commit(next_nonce(), "id", [b"second"], {}, "default", (), timeout)
    committing = Thread(target=lambda: side.commit(next_nonce(), "id", [b"second"], {}, "default", (), None))
    committing.start()
    assert queue.get(timeout=5) == b"first"
    committing.join()
    assert queue.get(timeout=5) == b"second"


def test_a_commit_with_a_stale_receipt_is_refused(queue: PersistentQueue, client: PersistentQueue) -> None:
    """Nothing of it is put."""
    side = client._handle.producer
    assert side is not None
    client.put(b"job")
    delivery = client.receive(timeout=5)
    delivery.release()
    with pytest.raises(StaleReceiptError):
        side.commit(next_nonce(), "id", [b"second"], {}, "default", [(delivery.number, delivery.offset)], None)
    assert [queue.get(timeout=5), queue.stats().depth] == [b"job", 0]

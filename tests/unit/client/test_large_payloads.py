"""Messages that a client takes and reads from the log itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import CorruptionError, LeaseExpiredError, PersistentQueue
from holdfast.queue.client.large_payloads import LargePayloads
from holdfast.queue.owner.owned_queue import PAYLOAD_BYTES_MAX
from holdfast.queue.protocol.frames import FRAME_BYTES_MAX

SIZES = [PAYLOAD_BYTES_MAX + 1, FRAME_BYTES_MAX + 1, 20 * 2**20]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[PersistentQueue]:
    """The handle that owns the queue."""
    with PersistentQueue(tmp_path / "q", mode="shared", record_bytes_max=2**25) as queue:
        yield queue


@pytest.fixture
def client(owner: PersistentQueue) -> Iterator[PersistentQueue]:
    """A handle that never owns."""
    with PersistentQueue(owner.path, mode="shared", can_own=False) as client:
        yield client


def test_a_client_takes_messages_of_any_size(owner: PersistentQueue, client: PersistentQueue) -> None:
    """In order, with their headers, also in data files that have begun since the client was opened."""
    for number, size in enumerate([1, *SIZES]):
        owner.put(bytes([number]) * size, headers={"number": str(number)})
    for number, size in enumerate([1, *SIZES]):
        with client.receive(timeout=5) as delivery:
            assert dict(delivery.headers) == {"number": str(number)}
            assert delivery.payload == bytes([number]) * size
    assert owner.stats().depth == 0


def test_a_batch_has_large_and_small_messages(owner: PersistentQueue, client: PersistentQueue) -> None:
    """Each payload is in its place."""
    payloads = [b"a", b"b" * (PAYLOAD_BYTES_MAX + 1), b"", b"c" * (PAYLOAD_BYTES_MAX + 1)]
    owner.put_many(payloads)
    taken: list[bytes] = []
    while len(taken) < len(payloads):
        taken += client.get_many(10, timeout=5)
    assert taken == payloads


def test_a_damaged_message_is_refused_and_comes_again(owner: PersistentQueue, client: PersistentQueue) -> None:
    """The disk has damaged it since the owner has read it."""
    payload = b"a" * (PAYLOAD_BYTES_MAX + 1)
    owner.put(payload)
    delivery = owner.receive(timeout=5)
    files = client._handle.files
    files.refresh()
    (name,) = files.names()
    end = files.path(name).read_bytes().index(payload) + len(payload)
    place = (name.sequence, end - len(payload) - 28, end)
    large = LargePayloads(files)
    with files.path(name).open("r+b") as file:
        file.seek(end - 10)
        file.write(b"damage")
    with pytest.raises(CorruptionError, match="message 0 is damaged"):
        large.read(0, place)
    delivery.release()


def test_a_message_that_was_taken_away_is_not_there_any_more(client: PersistentQueue) -> None:
    """Another process has finished it, and its data file is gone."""
    with pytest.raises(LeaseExpiredError, match="given back before it could be read"):
        LargePayloads(client._handle.files).read(7, (7, 4096, 5000))

"""Requests made by hand on a simulated disk, an owner that serves them in one thread, and what a crash may leave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast import FlushPolicy, PersistentQueue
from holdfast.persistence.exchange.mailbox import ANSWERS, Answer, Mailbox
from holdfast.persistence.exchange.requests import BATCH, STAGING, RequestName
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.queue.engine.coordinators import Outcome
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.queue_options import Mode, Options
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.server.group_askers import GroupAskers
from holdfast.queue.server.request_desk import RequestDesk
from support.builders.clocks import FakeClock
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/q")
DATA_FILE_BYTES = 16 * 2**10
DIRECTORY = QueueDirectory(ROOT)


@dataclass(frozen=True)
class Asked:
    """One request: its number, and what it puts."""

    number: int
    payloads: tuple[bytes, ...]


class Asker:
    """A handle that submits, as far as the disk can see it."""

    def __init__(self, storage: SimulatedStorage, queue_id: bytes) -> None:
        self._storage = storage
        self._queue_id = queue_id
        storage.make_directory(DIRECTORY.requests)
        self.mailbox = Mailbox(storage, DIRECTORY.requests)

    def ask(self, number: int, *payloads: bytes, headers: bytes = b"") -> Asked:
        """Write a request and give it its name; ``headers`` are those of its first message."""
        name = RequestName(self.mailbox.name, number, BATCH)
        staged = name.as_kind(STAGING).path(DIRECTORY)
        writer = BatchFileWriter(self._storage, staged, self._queue_id)
        writer.add_many(payloads, {0: headers} if headers else {}, 1)
        nonce = number.to_bytes(16, "little")
        writer.finish(CommitRecord(str(name), nonce, len(payloads), 1, waiting_file=name.waiting_file))
        writer.sync()  # a real one does not: this is the worst case, a request that a loss of power leaves whole
        writer.close()
        self._storage.rename(staged, name.path(DIRECTORY))
        return Asked(number, payloads)


def answer_in(storage: SimulatedStorage, mailbox: str, number: int) -> Answer | None:
    """Return the answer to a request, as somebody who still waits for it would read it."""
    path = DIRECTORY.requests / (mailbox + ANSWERS)
    file = storage.open(path)
    file.try_lock()  # and so says that it is alive; the handle stays open
    reader = Mailbox.__new__(Mailbox)
    reader._file = file
    return reader.read(number)


def queue_in(storage: SimulatedStorage, policy: FlushPolicy, mode: Mode = "exclusive") -> PersistentQueue:
    """Open the queue; its background threads stand still."""
    return PersistentQueue(
        ROOT, mode=mode, flush=policy, data_file_bytes=DATA_FILE_BYTES, storage=storage, clock=FakeClock()
    )


def serve_all(storage: SimulatedStorage, policy: FlushPolicy) -> None:
    """Own the write side until nothing waits any more, and leave it in order."""
    options = Options("produce", "default", {"flush": policy, "data_file_bytes": DATA_FILE_BYTES})
    handle = QueueHandle(storage, FakeClock(), ROOT, options)
    try:
        in_doubt = PreparedResolver(handle, lambda _, __: Outcome.IN_DOUBT, GroupAskers(handle).do)
        desk = RequestDesk(handle, in_doubt)
        while desk.serve():
            pass
        desk.close()
        in_doubt.close()
    finally:
        handle.close()


def payloads_in(storage: SimulatedStorage) -> list[bytes]:
    """Return the messages of the log, in order."""
    queue = queue_in(storage, FlushPolicy.every_commit(), mode="read_only")
    try:
        return [message.payload for message in queue.peek(10_000)]
    finally:
        queue.close()

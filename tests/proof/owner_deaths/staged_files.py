"""The batch files of requests that are too large for a frame, as their clients write and lock them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import MISSING
from holdfast.persistence.format.commit_record import CommitRecord, Participant
from holdfast.persistence.outcomes.redo import OWN
from holdfast.persistence.segment.staged_file import stage, staged_path
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.protocol.messages import Commit, Put
from proof.owner_deaths.books import Asked
from support.builders.jobs import ROOT
from support.storages.simulated_storage import SimulatedFile, SimulatedStorage

DIRECTORY = QueueDirectory(ROOT)


class StagedFiles:
    """The files of clients on one disk, by nonce; each is locked until its request is answered, or its client dies."""

    def __init__(self) -> None:
        self._locked: dict[bytes, SimulatedFile] = {}

    def write(self, handle: QueueHandle, asked: Asked, session: int) -> None:
        """Write the file of a request; a part of it that is there is what a dead owner saw of it."""
        nonce, disk = nonce_of(asked), handle.storage
        assert isinstance(disk, SimulatedStorage)
        self.end(asked, disk)
        disk.make_directory(DIRECTORY.prepared)
        writer = stage(disk, DIRECTORY, nonce, handle.queue_id)
        self._locked[nonce] = writer.file  # type: ignore[assignment]  # of this storage
        now = handle.clock.time_ns()
        writer.add_many(asked.payloads, {}, now)
        writer.finish(_record_of(asked, handle, now, session))
        if asked.held is not None:  # what is prepared is durable once it is answered
            writer.sync()
        asked.written_at = len(disk.log)

    def lock(self, disk: SimulatedStorage, waiting: Iterable[Asked | None]) -> None:
        """Have the clients' locks on a copy of their disk, as they are after the death of an owner only."""
        for asked in waiting:
            if asked is not None and asked.is_staged:
                nonce = nonce_of(asked)
                with suppress(*MISSING):  # the owner has made it a part of the log, or its client has not begun it
                    file = disk.open(staged_path(DIRECTORY, nonce))
                    assert file.try_lock()
                    self._locked[nonce] = file

    def end(self, asked: Asked, disk: SimulatedStorage) -> None:
        """Remove the file of a request that was answered, if the owner has not."""
        self.release(asked)
        with suppress(*MISSING):
            disk.remove(staged_path(DIRECTORY, nonce_of(asked)))

    def release(self, asked: Asked) -> None:
        """Release the lock of a file, which stays: its client is dead."""
        file = self._locked.pop(nonce_of(asked), None)
        if file is not None:
            file.close()


def _record_of(asked: Asked, handle: QueueHandle, now: int, session: int) -> CommitRecord:
    nonce, count = nonce_of(asked), len(asked.payloads)
    if asked.held is None:
        name = asked.request.id if isinstance(asked.request, Commit) else nonce.hex()
        return CommitRecord(name, nonce, count, now, session=session)
    voters = (Participant(OWN, handle.queue_id, asked.held.group),) if asked.offsets else ()
    file = f"prepared/{asked.held.id}.batch"
    return CommitRecord(asked.held.id, nonce, count, now, participants=voters, waiting_file=file)


def nonce_of(asked: Asked) -> bytes:
    """Return the nonce of a put, a commit, or what is prepared."""
    if asked.held is not None:
        return asked.held.nonce
    assert isinstance(asked.request, Put | Commit)
    return asked.request.nonce

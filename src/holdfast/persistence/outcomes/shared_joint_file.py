"""The document of joint commits over several queues: it is beside them, in the directory ``.joint``.

It is like the document of one queue, but has no owner: a process that decides, or acts upon what is decided, holds its
lock. So no part is aborted while it is decided, and what the holder of the lock reads is durable.
docs/format.md, "Joint commits over several queues".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import ConfigError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.document import read_document, write_document
from holdfast.persistence.filesystem.locks import Owned
from holdfast.persistence.filesystem.storage import MISSING, Storage, storage_errors
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.format.constants import FORMAT_VERSION, LARGE_DOCUMENT_BYTES_MAX
from holdfast.persistence.format.file_header import random_id
from holdfast.persistence.format.json_object import read_id
from holdfast.persistence.outcomes.joint_file import JointCommit, JointFile

DIRECTORY = ".joint"
"""No queue has a name with a leading dot."""

_DOCUMENT = "joint.json"
_LOCK = "lock"
_LOCK_SECONDS = 60.0


class SharedJointFile:
    """Decides joint commits over the queues of one directory, and returns their outcomes.

    Parameters
    ----------
    storage, clock
        Where it is, and how long to wait for its lock.
    directory : Path
        The directory ``.joint``.
    """

    def __init__(self, storage: Storage, clock: Clock, directory: Path) -> None:
        self._storage = storage
        self._clock = clock
        self.directory = directory
        self._path = directory / _DOCUMENT

    def create(self) -> bytes:
        """Return the document's id; make it if there is none.

        Raises
        ------
        CorruptionError, UnsupportedVersionError, StorageError
            The document cannot be read, or the disk refuses.
        QueueLockedError
            Another process holds the lock for a minute.
        """
        found = self.id()
        if found is not None:
            return found
        with storage_errors("making", self.directory):
            self._storage.make_directory(self.directory)
            try:
                self._storage.sync_directory(self.directory.parent)
            except OSError:  # a second sync could succeed over the lost name: the next attempt makes a new one
                with suppress(OSError):
                    self._storage.remove_directory(self.directory)
                raise
        with self.locked():
            found = self.id()
            if found is None:
                found = random_id()
                with storage_errors("making", self._path):
                    fields = {"format": FORMAT_VERSION, "applications": {}, "id": found.hex()}
                    write_document(self._storage, self._path, fields, LARGE_DOCUMENT_BYTES_MAX)
            return found

    def id(self) -> bytes | None:
        """Return the document's id; None if there is no document. Raises as :meth:`create`."""
        with storage_errors("reading joint commits", self._path):
            try:
                return read_id(read_document(self._storage, self._path, LARGE_DOCUMENT_BYTES_MAX), "id", self._path)
            except MISSING:
                return None

    def find(self, application: str) -> JointCommit | None:
        """Return the latest commit of an application, as a hint: it may not be durable. Raises as :meth:`create`."""
        return JointFile(self._storage, self._path, is_owner=False).find(application)

    def pending(self) -> list[JointCommit]:
        """Return the commits with parts that may not be in the logs yet, as :meth:`find`."""
        return JointFile(self._storage, self._path, is_owner=False).pending()

    @contextmanager
    def locked(self) -> Iterator[JointFile]:
        """Hold the lock; what the document says is durable then. Raises as :meth:`create`.

        It may come from a process that was killed before its name was synced, or whose sync failed: a second sync could
        succeed over a lost name, so the document is written anew.
        """
        owned = Owned(f"deciding joint commits in {self.directory}")
        with storage_errors("locking joint commits", self.directory):
            lock = locks.acquire(self._storage, self.directory / _LOCK, self._clock, timeout=_LOCK_SECONDS, owned=owned)
        try:
            document_id = self._write_again()
            yield JointFile(self._storage, self._path, is_owner=False, document_id=document_id)
        finally:
            lock.release()

    def _write_again(self) -> bytes:
        """Make the document durable; return its id, which is empty if there is none."""
        with storage_errors("reading joint commits", self._path):
            try:
                fields = read_document(self._storage, self._path, LARGE_DOCUMENT_BYTES_MAX)
            except MISSING:
                return b""
            document_id = read_id(fields, "id", self._path)
            write_document(self._storage, self._path, fields, LARGE_DOCUMENT_BYTES_MAX)
            return document_id


def shared_document(queue: Path, part_of: PartOf) -> Path:
    """Return where the document is that decides a part of a queue, whose path has no links."""
    return Path(os.path.normpath(queue / part_of.directory / _DOCUMENT))


def shared_joint_file(storage: Storage, clock: Clock, queue: str, part_of: PartOf) -> SharedJointFile | None:
    """Return what decides a part of a queue; None if it is gone, or another one is there. Raises as ``create``."""
    file = SharedJointFile(storage, clock, shared_document(Path(queue), part_of).parent)
    return file if file.id() == part_of.document_id else None


def part_name(queue: str, transaction_id: str) -> str:
    """Return the name of a part in the document: no other queue of the directory has one of that name."""
    return f"{queue}/{transaction_id}"


def named_part(name: str) -> tuple[str, str]:
    """Return the queue and the transaction of a part; raises ConfigError if the name has none."""
    queue, slash, transaction_id = name.partition("/")
    if not slash:
        raise ConfigError(f"{name!r} is no part of a joint commit over several queues")
    return queue, transaction_id

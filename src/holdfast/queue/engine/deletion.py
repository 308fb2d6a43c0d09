"""Deletes a whole queue while all of its locks are held, so no other handle has it open, to share it or alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import QueueLockedError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import open_directory, rebuild_identity
from holdfast.persistence.filesystem.locks import Owned
from holdfast.persistence.filesystem.removal import move_away
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.groups.group_files import groups_locked
from holdfast.persistence.ownership.owner_lock import OwnerLock, read_owner_note
from holdfast.persistence.ownership.places import owner_directory
from holdfast.persistence.ownership.sessions import Sessions


def delete_queue(storage: Storage, clock: Clock, root: Path, check: Callable[[], None]) -> Path:
    """Take a queue out of its place, durably; return where its files are now, which are yet to be removed.

    Parameters
    ----------
    storage, clock, root
        The queue.
    check : callable
        Called once all locks are held; raises if the queue has to stay.

    Raises
    ------
    QueueNotFoundError
        There is none.
    UsageError
        Something else than a deleted queue has the name of its remains.
    QueueLockedError
        A handle owns a side, or shares the queue.
    StorageError
        The disk refuses; the queue is as it was, unless it is a CommitUnknownError.
    """
    directory, _, _ = open_directory(storage, root, create=False)
    owned = Owned(
        f"the queue {root}", here="close it, then delete it", elsewhere="stop that process, then delete the queue"
    )
    with storage_errors("deleting the queue", root), ExitStack() as held:
        _keep_sharers_out(storage, root, held)
        guard = groups_locked(storage, directory, clock)
        held.callback(guard.release)
        held.enter_context(guard)
        groups = [directory.group_lock(name) for name in storage.list(directory.groups) if not name.startswith(".")]
        for path in (directory.write_lock, *groups):
            held.callback(locks.acquire(storage, path, clock, timeout=0, owned=owned).release)
        check()
        rebuild_identity(storage, directory)  # by queue.json the remains are known, so it is whole and durable
        storage.sync_directory(root)
        return move_away(storage, root)


def _keep_sharers_out(storage: Storage, root: Path, held: ExitStack) -> None:
    """Take the lock of the owner, if there ever was one; raises QueueLockedError if a handle shares the queue."""
    if owner_directory(root).name not in storage.list(root):
        return
    lock = OwnerLock.try_take(storage, root)
    if lock is None:
        note = read_owner_note(storage, root)
        raise _shared(root, None if note is None else note.pid, None if note is None else note.host)
    held.callback(lock.release)
    sessions = Sessions(storage, root)
    for number in sessions.living():  # a client between two owners would make the queue again
        client = sessions.note(number)
        raise _shared(root, client.pid, client.host)


def _shared(root: Path, pid: int | None, host: str | None) -> QueueLockedError:
    who = "another process" if pid is None else f"process {pid} on {host}"
    return QueueLockedError(
        f"the queue {root} is shared by {who}: close it in all processes (`holdfast ps`), then delete it",
        path=str(root),
        pid=pid,
        host=host,
    )

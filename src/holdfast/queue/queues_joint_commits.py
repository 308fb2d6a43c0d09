"""Joint commits over the queues of one directory: parts that many processes have prepared in them, as one, and once.

The document beside the queues decides (``.joint/joint.json``). Each queue follows it: when it is told to, and at its
next opening. docs/adr/0062.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from holdfast.clock import Clock, SystemClock
from holdfast.errors import (
    ConfigError,
    CorruptionError,
    HoldfastError,
    QueueNotFoundError,
    ShutDown,
    StorageError,
    TransactionNotFoundError,
    UnsupportedVersionError,
)
from holdfast.persistence.filesystem.layout import list_batch_files, open_directory, queue_directory
from holdfast.persistence.filesystem.storage import MISSING, OsStorage, Storage, storage_errors
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.outcomes.joint_file import JointCommit
from holdfast.persistence.outcomes.shared_joint_file import DIRECTORY, SharedJointFile, named_part
from holdfast.persistence.segment.batch_file_reader import read_summary, verify_batch
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.prepared.joint_resolver import check_part_of

logger = logging.getLogger("holdfast")

Parts = tuple[tuple[str, bytes], ...]
"""Name and nonce of each."""

_TO_DOCUMENT = f"../{DIRECTORY}"

_OPEN_MAX = 32
"""Queues that are open at once, as in a drain: each has ten file descriptors, and processes have 1,024 by default."""


class QueuesJointCommits:
    """Commits prepared transactions of several queues as one. As ``JointCommits``, which is that of one queue.

    Parameters
    ----------
    directory : Path
        The directory of the queues.
    storage, clock
        Where it is; None: on the disks of this machine.
    mode : str
        How queues are opened.
    """

    def __init__(
        self,
        directory: Path,
        storage: Storage | None = None,
        clock: Clock | None = None,
        *,
        mode: Literal["shared", "exclusive"] = "shared",
    ) -> None:
        self.directory = directory
        self._storage = storage or OsStorage()
        self._clock = clock or SystemClock()
        self._mode = mode
        self._file = SharedJointFile(self._storage, self._clock, directory / DIRECTORY)

    def create(self) -> bytes:
        """Make the document if there is none; return its id. Raises as ``SharedJointFile.create``."""
        return self._file.create()

    def latest(self, application: str) -> int | None:
        """Return the version that an application has committed last; None if none is remembered."""
        commit = self._file.find(application)
        return None if commit is None else commit.version

    def commit(
        self, application: str, version: int, parts: Sequence[str], *, is_remembered: bool = True, id_prefix: str = ""
    ) -> None:
        """Commit parts as one; if this version or a later one was committed before, only finish that.

        Parameters
        ----------
        application, version
            As of ``JointCommits.commit``.
        parts : sequence of str
            ``queue/id`` of each. The messages of each queue come into its log in this order.
        is_remembered : bool
            False if this application will never commit again.
        id_prefix : str
            Queues with parts of this application whose ids begin so are told too, and abort those that are not named.

        Raises
        ------
        ConfigError
            The document was deleted meanwhile; nothing was committed.
        QueueNotFoundError, TransactionNotFoundError, CorruptionError
            A queue or a part is missing, not a part of this, or damaged; nothing was committed.
        QueueLockedError
            A queue of these parts is open with another mode, or another process decides; nothing was committed.
        DiskFullError, StorageError
            Nothing was committed; or it is, as ``latest`` tells, and a queue has not followed: then commit again, or
            reopen that queue. All other queues have followed.
        CommitUnknownError
            It may have happened or not: ask ``latest`` later.
        """
        part_of = self.part_of(application, version)
        self._finish_others(application)
        known = self._file.find(application)
        names = [*_queues_of(parts), *self._with_parts(part_of, id_prefix), *_queues_of_commit(known)]
        with _Queues(self._opened, names) as queues:
            queues.each(PersistentQueue.flush)  # else earlier puts could be lost, and this not
            if known is not None and known.parts:
                queues.follow()  # else the next commit would take the place of this one
            with self._file.locked() as decided:
                if self._file.id() != part_of.document_id:
                    raise ConfigError(
                        f"the document of joint commits in {self.directory} was deleted meanwhile; nothing was "
                        "committed, so write again"
                    )
                known = decided.find(application)
                if known is None or not known.covers(part_of):
                    away = self._require_followed(known, queues, "a later one cannot be decided before that")
                    queues.require(_queues_of(parts))
                    found = tuple((each, self._find_part(each, part_of)) for each in dict.fromkeys(parts))
                    now = self._clock.time_ns()
                    known = decided.decide(JointCommit(application, version, now, away + found, is_remembered))
            queues.follow()
            away = self._require_followed(known, queues, "commit again, or reopen that queue")
        if away:
            logger.warning(
                "commit %d of %s is in all queues but %s, which %s does not have: if they were deleted, their part is "
                "lost with them, and new queues of these names end this warning; if they were moved, move them back",
                known.version,
                application,
                ", ".join(dict.fromkeys(named_part(each)[0] for each, _ in away)),
                self.directory,
            )
        trouble = f"what is left of commit {known.version} of {application} stays in the document until the next one"
        follow_up(trouble, self._end, known, away)

    def _finish_others(self, application: str) -> None:
        """Finish what commits of other applications left: those that died, and never commit again, would fill it."""
        for commit in self._file.pending():
            if commit.application != application:
                trouble = f"commit {commit.version} of {commit.application} in {self.directory} is not finished"
                follow_up(trouble, self._finish, commit)

    def _finish(self, commit: JointCommit) -> None:
        with _Queues(self._opened, _queues_of_commit(commit)) as queues:
            queues.follow()
            self._end(commit, self._require_followed(commit, queues, "reopen that queue"))

    def _end(self, commit: JointCommit, away: Parts) -> None:
        if away and away == commit.parts:
            return
        with self._file.locked() as decided:
            decided.end(commit, away)

    def abort(self, application: str, version: int, *, id_prefix: str) -> None:
        """Abort parts of this version, and of earlier ones, that were not committed.

        Raises as :meth:`commit`; a queue that cannot be opened keeps its parts, and no other queue from its abort.
        """
        part_of = self.part_of(application, version)
        with _Queues(self._opened, self._with_parts(part_of, id_prefix)) as queues:
            queues.each(lambda queue: queue.joint_commits.abort(application, version))
            queues.require(list(queues.errors))

    def part_of(self, application: str, version: int) -> PartOf:
        """Return what a part of a commit says of it.

        Raises
        ------
        ConfigError
            The name or the version cannot be, or there is no document.
        """
        check_part_of(application, version)
        document_id = self._file.id()
        if document_id is None:
            raise ConfigError(f"{self.directory} has no document of joint commits: it was deleted, so write again")
        return PartOf(application, version, _TO_DOCUMENT, document_id)

    # -- The queues ----------------------------------------------------------------------------------------------------

    def _opened(self, name: str) -> PersistentQueue:
        path = self.directory / name
        open_directory(self._storage, path, create=False, writable=False)  # a missing queue is none to be made
        return PersistentQueue(path, mode=self._mode, storage=self._storage, clock=self._clock)

    def _with_parts(self, part_of: PartOf, id_prefix: str) -> list[str]:
        """Return the queues in which parts of an application wait; ids of them begin so. An empty prefix names none."""
        if not id_prefix:
            return []
        with storage_errors("looking for prepared transactions", self.directory):
            names = [name for name in self._storage.list(self.directory) if not name.startswith(".")]
            found = [(name, [each for each in self._waiting(name) if each.startswith(id_prefix)]) for name in names]
        return [name for name, ids in found if any(self._is_of(name, each, part_of) for each in ids)]

    def _is_of(self, name: str, transaction_id: str, part_of: PartOf) -> bool:
        """Whether a part is of an application: its id may begin like those of another one."""
        try:
            directory, queue_id, _ = open_directory(self._storage, self.directory / name, create=False, writable=False)
            path = directory.batch_file(transaction_id)
            with storage_errors("looking for a prepared transaction", path):
                record = read_summary(self._storage, path, queue_id).commit_record
        except HoldfastError as error:
            if isinstance(error, StorageError) and not isinstance(error, CorruptionError | UnsupportedVersionError):
                return True  # it cannot be read just now, and its queue looks again
            logger.info("transaction %s of %s cannot be read: %s", transaction_id, self.directory / name, error)
            return False  # so no commit can name it, and `collect` aborts it
        return record.part_of is not None and replace(record.part_of, version=part_of.version) == part_of

    def _waiting(self, name: str) -> list[str]:
        """Return the ids of the batch files of a queue, of none if it is no queue. Raises ``OSError``."""
        try:
            return list_batch_files(self._storage, queue_directory(self.directory / name))
        except MISSING:
            return []

    def _require_followed(self, commit: JointCommit | None, queues: _Queues, advice: str) -> Parts:
        """Raise StorageError if a queue has not put its parts of a commit into its log; return those of missing queues.

        These may have been moved, and may be moved back. So the document keeps what it has decided for them.
        """
        away: Parts = ()
        for part, nonce in () if commit is None else commit.parts:
            name, transaction_id = named_part(part)
            error = queues.errors.get(name)
            if isinstance(error, QueueNotFoundError):
                away += ((part, nonce),)
                continue
            with storage_errors("looking for prepared transactions", self.directory):
                waits = transaction_id in self._waiting(name)
            if commit is not None and (waits or error is not None):
                reason = "for the reason in its log lines" if error is None else f"because {error}"
                raise StorageError(
                    f"commit {commit.version} of {commit.application} is decided, and {self.directory / name} has "
                    f"not put transaction {transaction_id} into its log, {reason}: {advice}",
                    path=str(self.directory / name),
                ) from error
        return away

    def _find_part(self, part: str, part_of: PartOf) -> bytes:
        """Return the nonce of a part that can be committed."""
        name, transaction_id = named_part(part)
        directory, queue_id, _ = open_directory(self._storage, self.directory / name, create=False, writable=False)
        path = directory.batch_file(transaction_id)
        with storage_errors("looking for a prepared transaction", path):
            try:
                record = read_summary(self._storage, path, queue_id).commit_record
                damage = [each for each in verify_batch(self._storage, path, queue_id) if each.offsets]
            except MISSING:
                record, damage = None, []
        if record is None or record.part_of != part_of or record.id != transaction_id:
            raise TransactionNotFoundError(
                f"no transaction {transaction_id!r} is prepared in {directory.root} as a part of commit "
                f"{part_of.version} of {part_of.application}; nothing was committed",
                id=transaction_id,
            )
        if damage:
            raise CorruptionError(
                f"transaction {transaction_id} of {directory.root} is damaged ({damage[0].reason}); nothing was "
                "committed. Abort it, and put its messages again",
                path=str(path),
                position=damage[0].position,
            )
        return record.nonce


class _Queues:
    """Queues that do something together. One that cannot be opened, or fails, keeps no other from what it has to do.

    They stay open; if there are too many for that, some at a time are opened for each thing that they do.

    Parameters
    ----------
    opened : callable
        Opens a queue by its name.
    names : iterable of str
        Which ones.

    Attributes
    ----------
    errors : dict of str to Exception
        The first error of each queue that has one.
    """

    def __init__(self, opened: Callable[[str], PersistentQueue], names: Iterable[str]) -> None:
        self._opened = opened
        known = list(dict.fromkeys(names))
        self._groups = [known[at : at + _OPEN_MAX] for at in range(0, len(known), _OPEN_MAX)]
        self._stack = ExitStack()
        self._queues: dict[str, PersistentQueue] = {}
        self._group: list[str] = []
        self.errors: dict[str, Exception] = {}

    def __enter__(self) -> _Queues:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def each(self, *verbs: Callable[[PersistentQueue], object]) -> None:
        """Do something with each of them."""
        for group in self._groups:
            if group is not self._group:
                self._open(group)
            for name, queue in self._queues.items():
                for verb in verbs:
                    self._try(name, queue, verb)

    def _open(self, group: list[str]) -> None:
        """Open some of the queues, in the place of those that are open."""
        for name, queue in self._queues.items():
            self._try(name, queue, PersistentQueue.close)
        with suppress(HoldfastError):  # said by then
            self._stack.close()
        self._queues, self._group = {}, group
        with ExitStack() as stack:
            for name in group:
                try:
                    self._queues[name] = stack.enter_context(self._opened(name))
                except HoldfastError as error:
                    self.errors.setdefault(name, error)
            self._stack = stack.pop_all()

    def _try(self, name: str, queue: PersistentQueue, verb: Callable[[PersistentQueue], object]) -> None:
        try:
            verb(queue)
        except (HoldfastError, ShutDown) as error:
            self.errors.setdefault(name, error)

    def follow(self) -> None:
        """Have each of them put what is decided into its log. If that has poisoned one, its sync says so."""
        self.each(PersistentQueue.prepared, PersistentQueue.flush)

    def require(self, names: Iterable[str]) -> None:
        """Raise the error of the first of these that has one."""
        for name in names:
            if name in self.errors:
                raise self.errors[name]


def _queues_of(parts: Iterable[str]) -> list[str]:
    return [named_part(each)[0] for each in parts]


def _queues_of_commit(commit: JointCommit | None) -> list[str]:
    return [] if commit is None else _queues_of(name for name, _ in commit.parts)

"""Joint commits over the queues of one directory: parts that many processes have prepared in them, as one, and once.

The document beside the queues decides (``.joint/joint.json``). Each queue follows it: when it is told to, and at its
next opening. docs/adr/0062.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from holdfast.clock import Clock, SystemClock
from holdfast.errors import ConfigError, CorruptionError, StorageError, TransactionNotFoundError
from holdfast.persistence.filesystem.layout import list_batch_files, open_directory, queue_directory
from holdfast.persistence.filesystem.storage import MISSING, OsStorage, Storage, storage_errors
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.outcomes.joint_file import JointCommit
from holdfast.persistence.outcomes.shared_joint_file import DIRECTORY, SharedJointFile, named_part
from holdfast.persistence.segment.batch_file_reader import read_summary, verify_batch
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.prepared.joint_resolver import check_part_of

_TO_DOCUMENT = f"../{DIRECTORY}"


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
            Queues with parts whose ids begin so are told too, and abort those that are not named.

        Raises
        ------
        ConfigError
            The document was deleted meanwhile; nothing was committed.
        QueueNotFoundError, TransactionNotFoundError, CorruptionError
            A queue or a part is missing, not a part of this, or damaged; nothing was committed.
        QueueLockedError
            A queue is open with another mode, or another process decides; nothing was committed.
        DiskFullError, StorageError
            Nothing was committed; or it is, as ``latest`` tells: then commit again, or reopen the queues.
        CommitUnknownError
            It may have happened or not: ask ``latest`` later.
        """
        part_of = self.part_of(application, version)
        known = self._file.find(application)
        names = [named_part(each)[0] for each in (*parts, *(name for name, _ in (known.parts if known else ())))]
        names += self._with_parts(id_prefix)
        with ExitStack() as stack:
            queues = {name: stack.enter_context(self._opened(name)) for name in dict.fromkeys(names)}
            for queue in queues.values():
                queue.flush()  # else earlier puts could be lost, and this not
                if known is not None and known.parts:
                    queue.prepared()  # else the next commit would take the place of this one
            with self._file.locked() as decided:
                if self._file.id() != part_of.document_id:
                    raise ConfigError(
                        f"the document of joint commits in {self.directory} was deleted meanwhile; nothing was "
                        "committed, so write again"
                    )
                known = decided.find(application)
                if known is None or not known.covers(part_of):
                    self._require_followed(known, "a later one cannot be decided before that")
                    found = tuple((each, self._find_part(each, part_of)) for each in dict.fromkeys(parts))
                    known = decided.decide(JointCommit(application, version, self._clock.time_ns(), found))
            for queue in queues.values():
                queue.prepared()  # which settles what is decided
        self._require_followed(known, "commit again, or reopen that queue")
        trouble = f"what is left of commit {known.version} of {application} stays in the document until the next one"
        follow_up(trouble, self._end, known, is_remembered)

    def _end(self, commit: JointCommit, is_remembered: bool) -> None:
        with self._file.locked() as decided:
            decided.end(commit, is_remembered=is_remembered)

    def abort(self, application: str, version: int, *, id_prefix: str) -> None:
        """Abort parts of this version, and of earlier ones, that were not committed. Raises as :meth:`commit`."""
        self.part_of(application, version)
        for name in self._with_parts(id_prefix):
            with self._opened(name) as queue:
                queue.joint_commits.abort(application, version)

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

    def _with_parts(self, id_prefix: str) -> list[str]:
        """Return the queues in which parts wait whose ids begin so; an empty prefix names none."""
        if not id_prefix:
            return []
        with storage_errors("looking for prepared transactions", self.directory):
            names = [name for name in self._storage.list(self.directory) if not name.startswith(".")]
            return [name for name in names if any(each.startswith(id_prefix) for each in self._waiting(name))]

    def _waiting(self, name: str) -> list[str]:
        """Return the ids of the batch files of a queue, of none if it is no queue. Raises ``OSError``."""
        try:
            return list_batch_files(self._storage, queue_directory(self.directory / name))
        except MISSING:
            return []

    def _require_followed(self, commit: JointCommit | None, advice: str) -> None:
        """Raise StorageError if a queue has not put its parts of a commit into its log."""
        with storage_errors("looking for prepared transactions", self.directory):
            for each, _ in () if commit is None else commit.parts:
                name, transaction_id = named_part(each)
                if commit is not None and transaction_id in self._waiting(name):
                    raise StorageError(
                        f"commit {commit.version} of {commit.application} is decided, and {self.directory / name} has "
                        f"not put transaction {transaction_id} into its log, for the reason in its log lines: {advice}",
                        path=str(self.directory / name),
                    )

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

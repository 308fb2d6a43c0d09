"""The document of joint commits: which prepared transactions commit as one, and the latest of each application.

One JSON document, replaced as a whole. Being named in it commits a transaction. The owner of the write side does the
rest, again after a crash; twice changes nothing. docs/format.md, "Joint commits".
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.errors import CorruptionError, HoldfastError
from holdfast.persistence.filesystem.document import read_document, write_document
from holdfast.persistence.filesystem.poison import Poison, commit_unknown
from holdfast.persistence.filesystem.storage import MISSING, Storage, storage_errors
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.format.constants import FORMAT_VERSION, JOINT_APPLICATIONS_MAX, LARGE_DOCUMENT_BYTES_MAX
from holdfast.persistence.format.json_object import as_id, as_number

_ONCE = "once"


@dataclass(frozen=True, slots=True)
class JointCommit:
    """The latest joint commit of one application.

    Attributes
    ----------
    application : str
        Its name.
    version : int
        The number of the commit: each is larger than the one before.
    timestamp_ns : int
        When it was decided.
    parts : tuple of (str, bytes)
        Id and nonce of each transaction that it commits, in their order; none if all of them are in the log. In a
        document for several queues also those of an earlier version, if a queue is away that has not followed it.
    is_remembered : bool
        Whether it stays in the document when all parts are in the logs.
    """

    application: str
    version: int
    timestamp_ns: int
    parts: tuple[tuple[str, bytes], ...] = ()
    is_remembered: bool = True

    def covers(self, part_of: PartOf) -> bool:
        """Whether the outcome of a part is decided: by this commit, or by an earlier one."""
        return part_of.version <= self.version

    def commits(self, part_of: PartOf, nonce: bytes) -> bool:
        """Whether it commits this part."""
        return self.covers(part_of) and any(nonce == each for _, each in self.parts)


class JointFile:
    """Decides joint commits, and returns their outcomes. Threads may share it.

    Parameters
    ----------
    storage, path
        Where the document is; its directory exists before the first commit.
    is_owner : bool
        Whether no other process changes it meanwhile, so that reading it once is enough.
    document_id : bytes
        Of a document for several queues; empty: it is that of one queue.
    """

    def __init__(self, storage: Storage, path: Path, *, is_owner: bool, document_id: bytes = b"") -> None:
        self._document_id = document_id
        self._storage = storage
        self._path = path
        self._is_owner = is_owner
        self._lock = threading.Lock()
        self._poison = Poison("the memory of joint commits", path)
        self._known: dict[str, JointCommit] | None = None
        self._forgotten: dict[str, JointCommit] = {}

    def find(self, application: str) -> JointCommit | None:
        """Return the latest commit of an application; None if none is remembered.

        Raises
        ------
        CorruptionError, UnsupportedVersionError, StorageError
            The document cannot be read.
        PoisonedError
            It is not known whether the latest one is on the disk.
        """
        with self._lock:
            return self._read().get(application) or self._forgotten.get(application)

    def pending(self) -> list[JointCommit]:
        """Return the commits with parts that may not be in the log yet, oldest first. Raises as :meth:`find`."""
        with self._lock:
            return [each for each in _by_age(self._read()) if each.parts]

    def decide(self, commit: JointCommit) -> JointCommit:
        """Commit, durably; return the commit as remembered: younger than all others, even if the clock went back.

        Raises
        ------
        DiskFullError, StorageError, CorruptionError
            Nothing was decided.
        CommitUnknownError, PoisonedError
            The outcome is unknown, or an earlier failure has poisoned it: reopen the queue and check.
        """
        with self._lock:
            known = self._read()
            newest_ns = max((each.timestamp_ns for each in known.values()), default=0)
            commit = replace(commit, timestamp_ns=max(commit.timestamp_ns, newest_ns + 1))
            commits = {**known, commit.application: commit}
            self._forgotten.pop(commit.application, None)
            done = [each for each in _by_age(commits) if not each.parts and each is not commit]
            once = [commits.pop(each.application) for each in done if not each.is_remembered]
            remembered = [each for each in done if each.is_remembered]
            for each in remembered[: max(0, len(commits) - JOINT_APPLICATIONS_MAX)]:
                del commits[each.application]
            self._known = None  # until its contents are known
            try:
                with storage_errors("committing jointly", self._path):
                    self._write(commits)
            except BaseException as error:
                if self._may_say(commit):
                    self._poison.set(error)
                    raise commit_unknown("committing jointly", self._path, error) from error
                raise
            self._known = commits
            self._forget(once)
            return commit

    def finished(self, commit: JointCommit) -> None:
        """Note that all parts of a commit are in the log; the next commit writes this down."""
        with self._lock:
            known = self._known
            if known is not None and known.get(commit.application) == commit:
                known[commit.application] = replace(commit, parts=())

    def end(self, commit: JointCommit, left: tuple[tuple[str, bytes], ...] = ()) -> None:
        """Write down that all parts of a commit are in the logs but those left; for a document without an owner.

        Raises as :meth:`find`.
        """
        with self._lock:
            known = dict(self._read())
            if known.pop(commit.application, None) != commit:
                return
            if left or commit.is_remembered:
                known[commit.application] = replace(commit, parts=left)
            with storage_errors("ending a joint commit", self._path):
                self._write(known)

    def forget(self, application: str) -> None:
        """Leave an application out of the next document, if all of its parts are in the log.

        A caller that missed the outcome, and asks again, still gets it for a while.
        """
        with self._lock:
            known = self._known
            if known is not None and application in known and not known[application].parts:
                self._forget([known.pop(application)])

    def _forget(self, commits: list[JointCommit]) -> None:
        for each in commits:
            self._forgotten[each.application] = each
            if len(self._forgotten) > JOINT_APPLICATIONS_MAX:
                del self._forgotten[next(iter(self._forgotten))]

    def _write(self, commits: dict[str, JointCommit]) -> None:
        fields = _fields(commits) | ({"id": self._document_id.hex()} if self._document_id else {})
        write_document(self._storage, self._path, fields, LARGE_DOCUMENT_BYTES_MAX)

    def _may_say(self, commit: JointCommit) -> bool:
        """Whether the document may contain the commit by now."""
        try:
            return self._load().get(commit.application) == commit
        except (HoldfastError, OSError):
            return True

    def _read(self) -> dict[str, JointCommit]:
        self._poison.check()
        if self._known is not None and self._is_owner:
            return self._known
        with storage_errors("reading joint commits", self._path):
            self._known = self._load()
        return self._known

    def _load(self) -> dict[str, JointCommit]:
        try:
            fields = read_document(self._storage, self._path, LARGE_DOCUMENT_BYTES_MAX)
            return {name: _commit(name, each) for name, each in fields["applications"].items()}
        except MISSING:
            return {}
        except (CorruptionError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise CorruptionError(
                f"{self._path} is damaged ({error}): restore it. Without it joint commits still work, but their "
                "outcomes are unknown: a repeated commit counts twice, and parts that are not in the log yet wait",
                path=str(self._path),
            ) from error


def _by_age(commits: dict[str, JointCommit]) -> list[JointCommit]:
    return sorted(commits.values(), key=lambda each: each.timestamp_ns)


def _fields(commits: dict[str, JointCommit]) -> dict[str, Any]:
    applications = {
        each.application: {
            "version": each.version,
            "at": each.timestamp_ns,
            "parts": [[part, nonce.hex()] for part, nonce in each.parts],
            **({} if each.is_remembered else {_ONCE: True}),
        }
        for each in commits.values()
    }
    return {"format": FORMAT_VERSION, "applications": applications}


def _commit(application: str, fields: dict[str, Any]) -> JointCommit:
    parts = tuple((str(part), as_id(nonce)) for part, nonce in fields["parts"])
    is_remembered = fields.get(_ONCE) is not True
    return JointCommit(application, as_number(fields["version"]), as_number(fields["at"]), parts, is_remembered)

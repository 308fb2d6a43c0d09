"""The parts of one task in many queues. A task runs this if it sees their directory, or else the range server does."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.clock import Clock, SystemClock
from holdfast.errors import ConfigError, QueueNotFoundError
from holdfast.persistence.filesystem.access import check_root
from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.filesystem.storage import OsStorage, Storage, storage_errors
from holdfast.persistence.outcomes.shared_joint_file import DIRECTORY, part_name
from holdfast.queue.queues_joint_commits import QueuesJointCommits
from holdfast.service.queue_names import check_queue_name
from holdfast.spark.writing.staging import LocalParts, Staging

if TYPE_CHECKING:
    from holdfast.persistence.format.commit_record import PartOf

_BEGUN_MAX = 64
"""Parts that a task has begun at once: each has an open file."""


class ManyParts:
    """Stages the parts of a task in the queues of a directory. For one thread.

    Parameters
    ----------
    directory : Path
        That of the queues.
    document_id : bytes
        Of the document that was planned with: on another machine, another directory may be there.
    column : str
        Chooses the queue of each row, for errors.
    create : bool
        Whether to make queues that are missing.
    storage : Storage or None
        Where it is; None: on the disks of this machine.

    Attributes
    ----------
    clock : Clock
        What delays count from.

    Raises
    ------
    ConfigError, StorageError
        This machine does not see that directory, or this process may not write there as the owner of the queues does.
    """

    def __init__(
        self, directory: Path, document_id: bytes, column: str, *, create: bool, storage: Storage | None = None
    ) -> None:
        self.clock: Clock = SystemClock()
        self._storage = storage or OsStorage()
        self._directory = directory
        self._document_id = document_id
        self._column = column
        self._create = create
        self._commits = QueuesJointCommits(directory, self._storage)
        self._opened = ExitStack()
        self._staging: dict[str, Staging] = {}
        self._begun: dict[str, None] = {}
        self._part_of("planned", 0)
        with storage_errors("opening the directory of queues to write into them", directory):
            check_root(self._storage, directory / DIRECTORY, writable=True)  # else no owner could read what is written

    def _part_of(self, application: str, version: int) -> PartOf:
        try:
            part_of = self._commits.part_of(application, version)
        except ConfigError:
            part_of = None
        if part_of is None or part_of.document_id != self._document_id:
            raise ConfigError(
                f"{self._directory} on {platform.node()} is not the directory that was planned: mount it on each "
                "machine that runs tasks, or drop the option serveAddress=off, and run the write again"
            )
        return part_of

    def latest(self, application: str) -> int | None:
        """Return the version that an application has committed last."""
        return self._commits.latest(application)

    def stage_into(
        self, batches: Iterable[tuple[str, Sequence[bytes], Mapping[int, bytes]]], application: str, version: int
    ) -> tuple[str, ...]:
        """Stage batches, each for a queue, of payloads with encoded headers; return the names of all parts.

        Those of each queue are in order.

        Raises as ``LocalParts.stage``; ConfigError or QueueNotFoundError for a name of no queue. After any exception
        nothing stays staged.
        """
        part_of = self._part_of(application, version)
        try:
            for name, payloads, headers in batches:
                self._add(name, payloads, headers, part_of)
            return tuple(part_name(name, each) for name, staging in self._staging.items() for each in staging.finish())
        except BaseException:
            for staging in self._staging.values():
                staging.give_up()
            raise

    def _add(self, name: str, payloads: Sequence[bytes], headers: Mapping[int, bytes], part_of: PartOf) -> None:
        staging = self._staging.get(name) or self._open(name, part_of)
        self._begun.pop(name, None)
        while len(self._begun) >= _BEGUN_MAX:  # the one that has waited longest; more of it is another part
            oldest = next(iter(self._begun))
            self._staging[oldest].prepare()
            del self._begun[oldest]
        self._begun[name] = None
        staging.add(payloads, headers)

    def _open(self, name: str, part_of: PartOf) -> Staging:
        check_queue_name(name)
        path = self._directory / name
        try:
            _, queue_id, _ = open_directory(self._storage, path, create=self._create, writable=self._create)
        except QueueNotFoundError as error:
            raise QueueNotFoundError(
                f"the column `{self._column}` is {name!r}, and {self._directory} has no queue of that name: correct "
                "the value, or say option('create', 'true') to make one",
                path=str(path),
            ) from error
        parts = self._opened.enter_context(closing(LocalParts(path, queue_id, self._storage)))
        staging = parts.begin(part_of.application, part_of.version, part_of)
        self._staging[name] = staging
        return staging

    def close(self) -> None:
        """Close the files that were looked at."""
        self._opened.close()

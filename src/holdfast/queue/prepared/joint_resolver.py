"""Decides joint commits for the owner of the write side: several prepared transactions as one. docs/transactions.md.

The document ``prepared/joint.json`` lists the transactions of each application's latest commit. Once it is durable they
are committed, and each is put into the log by itself. After a crash the next opening continues. Parts of a commit over
several queues follow the document that is beside these.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from holdfast.errors import (
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    FencedError,
    HoldfastError,
    PoisonedError,
    ShutDown,
    StorageError,
    TransactionNotFoundError,
    TransactionStateError,
)
from holdfast.persistence.filesystem.layout import check_name, list_batch_files
from holdfast.persistence.filesystem.poison import commit_unknown
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.outcomes.joint_file import JointCommit
from holdfast.persistence.outcomes.shared_joint_file import shared_joint_file
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.prepared.prepared_transactions import Found, find_batches, find_transaction

logger = logging.getLogger("holdfast")

VERSION_MAX = 2**63 - 1


class JointResolver:
    """Commits, aborts and finishes transactions that were prepared as parts.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with its write side.
    resolver : PreparedResolver
        Settles each part.
    """

    def __init__(self, handle: QueueHandle, resolver: PreparedResolver) -> None:
        self._handle = handle
        self._resolver = resolver
        self._file = handle.joint_file()

    def commit(self, application: str, version: int, ids: Sequence[str], *, is_remembered: bool) -> None:
        """Commit parts as one, once: see ``JointCommits.commit``."""
        self._handle.require_batches().make_directory()
        part_of = check_part_of(application, version)
        self._finish_all(each.application for each in self._file.pending() if each.application != application)
        with self._resolver.deciding_alone(_turn_of(application)):
            known = self._publish_latest(application)  # also before another commit takes its place
            if known is None or not known.covers(part_of):
                parts = tuple((each, self._find_part(each, part_of)) for each in dict.fromkeys(ids))
                self._handle.require_write_side().flush()  # else earlier puts could be lost, and this not
                now = self._handle.clock.time_ns()
                known = self._file.decide(JointCommit(application, version, now, parts, is_remembered))
                self._check_owner()
                self._publish(known)
            trouble = f"files of {_text(part_of)} in {self._handle.path} are not removed yet"
            follow_up(trouble, self._let_go_of, application, known.version)
            if not is_remembered:
                self._file.forget(application)

    def _check_owner(self) -> None:
        """Raise CommitUnknownError if another owner has opened the queue: it may not know this commit."""
        try:
            self._handle.require_write_side().check_fence()
        except FencedError as error:
            raise commit_unknown("committing jointly", self._handle.directory.joint, error) from error

    def abort(self, application: str, version: int) -> None:
        """Abort parts that were not committed: see ``JointCommits.abort``."""
        self._handle.require_write_side()
        check_part_of(application, version)
        with self._resolver.deciding_alone(_turn_of(application)), self._for_good():
            self._publish_latest(application)  # in the order of its parts
            self._let_go([each for each in self._parts() if _is_of(each, application, version)])
            shared = [each for each in self._parts(is_shared=True) if _is_of(each, application, version)]
            self._settle_shared(application, shared, lets_go=True)

    def collect(self, older_than_seconds: float, id_prefix: str) -> None:
        """Abort parts that have waited for so long: see ``JointCommits.collect``."""
        self._handle.require_write_side()
        check_age(older_than_seconds)
        self._handle.require_batches().prepared.removals.check()
        oldest_ns = self._handle.clock.time_ns() - int(older_than_seconds * 1e9)
        for found in [*self._parts(), *self._parts(is_shared=True)]:
            is_old = found.timestamp_ns <= oldest_ns and found.id.startswith(id_prefix)
            if is_old and (part_of := found.part_of) is not None:
                with self._resolver.deciding_alone(_turn_of(part_of.application)), self._for_good():
                    if part_of.is_shared and self._decides_elsewhere(part_of):
                        continue  # as if the queue was moved alone: what was decided may be found yet
                    if part_of.is_shared:
                        self._settle_shared(part_of.application, [found], lets_go=True)
                    else:
                        self._publish_latest(part_of.application)
                        self._let_go([found])

    def _decides_elsewhere(self, part_of: PartOf) -> bool:
        """Whether the document that decides a part over several queues is not where the part says."""
        return shared_joint_file(self._handle.storage, self._handle.clock, self._handle.real_path, part_of) is None

    @contextmanager
    def _for_good(self) -> Iterator[None]:
        """Refuse if aborted parts may come back, because their removal is not known to be durable."""
        removals = self._handle.require_batches().prepared.removals
        removals.check()
        try:
            yield
        except StorageError as error:
            if removals.cause is None or isinstance(error, CommitUnknownError | PoisonedError):
                raise
            raise commit_unknown("aborting jointly", self._handle.directory.prepared, error) from error

    def resume(self) -> None:
        """Finish the commits that a crash has interrupted. A failure is logged, and retried the next time."""
        if self._handle.write_side is None:
            return
        try:
            pending = [each.application for each in self._file.pending()]
            waiting = [each.part_of.application for each in self._parts() if each.part_of is not None]
            waiting += [each.part_of.application for each in self._parts(is_shared=True) if each.part_of is not None]
        except HoldfastError as error:
            logger.error("joint commits of %s cannot be checked: %s", self._handle.path, error)
            return
        self._finish_all(pending + waiting)

    def _finish_all(self, applications: Iterable[str]) -> None:
        for application in dict.fromkeys(applications):
            try:
                self._finish(application)
            except (HoldfastError, ShutDown) as error:
                logger.error("a joint commit of %s is not finished: %s", self._handle.path, error)

    def _finish(self, application: str) -> None:
        """Put the latest commit of an application into the log, and abort the parts that it leaves out."""
        with self._resolver.deciding_alone(_turn_of(application)):
            known = self._publish_latest(application)
            if known is not None:
                self._let_go_of(application, known.version)
            shared = [each for each in self._parts(is_shared=True) if _is_of(each, application, VERSION_MAX)]
            self._settle_shared(application, shared, lets_go=False)

    def _let_go_of(self, application: str, version: int) -> None:
        """Abort the parts that a commit leaves out."""
        self._let_go([each for each in self._parts() if _is_of(each, application, version)])

    def _publish_latest(self, application: str) -> JointCommit | None:
        known = self._file.find(application)
        if known is not None:
            self._publish(known)
        return known

    # -- Parts -------------------------------------------------------------------------------------------------------

    def _find_part(self, transaction_id: str, part_of: PartOf) -> bytes:
        """Return the nonce of a part that can be committed."""
        with storage_errors("looking for a prepared transaction", self._handle.path):
            found = find_transaction(self._handle, transaction_id)
        if found is None:
            raise TransactionNotFoundError(
                f"no transaction {transaction_id!r} is prepared in {self._handle.path}; nothing was committed",
                id=transaction_id,
            )
        batch = found.batch
        damage = found.damage if batch is None else self._handle.require_batches().damage(batch)
        if damage:
            raise CorruptionError(
                f"transaction {transaction_id} is damaged ({damage[0].reason}); nothing was committed. Abort it, and "
                "put its messages again",
                path=str(damage[0].path),
                position=damage[0].position,
            )
        if found.part_of != part_of:
            raise TransactionStateError(
                f"transaction {transaction_id} was not prepared as a part of {_text(part_of)}; nothing was committed",
                transaction=transaction_id,
                state="prepared",
            )
        return found.nonce

    def _parts(self, *, is_shared: bool = False) -> list[Found]:
        """Return the waiting parts of all applications: of this queue's own commits, or of those over several."""
        with storage_errors("looking for prepared transactions", self._handle.path):
            found = list(find_batches(self._handle))
        return [each for each in found if each.part_of is not None and each.part_of.is_shared == is_shared]

    def _publish(self, commit: JointCommit) -> None:
        """Put the missing parts of a commit into the log, and note that all of them are there."""
        if not commit.parts:
            return
        with storage_errors("looking for prepared transactions", self._handle.path):
            waiting = set(list_batch_files(self._handle.storage, self._handle.directory))
        for transaction_id, nonce in commit.parts:
            if transaction_id in waiting:
                self._publish_part(commit, transaction_id, nonce)
        self._handle.require_batches().prepared.sync()
        self._file.finished(commit)

    def _publish_part(self, commit: JointCommit, transaction_id: str, nonce: bytes) -> None:
        cause: CorruptionError | None = None
        try:
            if self._resolver.settle(transaction_id, nonce):
                return
        except CorruptionError as error:
            cause = error
        raise CorruptionError(
            f"transaction {transaction_id} is damaged, a part of {_text(PartOf(commit.application, commit.version))}, "
            "which is decided. To give it up, abort it with force=True, and commit again: its messages are lost",
            path=str(self._handle.directory.batch_file(transaction_id)),
        ) from cause

    def _settle_shared(self, application: str, parts: Sequence[Found], *, lets_go: bool) -> None:
        """Settle parts of an application as the documents beside the queues have decided.

        ``lets_go``: abort those that are undecided. None of them is decided meanwhile, because the lock is held.
        """
        by_document: dict[PartOf, list[Found]] = {}
        for found in parts:
            assert found.part_of is not None
            by_document.setdefault(replace(found.part_of, version=0), []).append(found)
        for document, waiting in by_document.items():
            file = shared_joint_file(self._handle.storage, self._handle.clock, self._handle.real_path, document)
            if file is None:  # it was deleted, so no commit can name them any more
                self._let_go(waiting if lets_go else [])
                continue
            if not lets_go and not _covered(file.find(application), waiting):
                continue
            with file.locked() as decided:
                known = decided.find(application)
                covered = _covered(known, waiting)
                if known is not None:
                    self._publish_shared(known, covered)
                if lets_go:
                    self._let_go([each for each in waiting if each not in covered])

    def _publish_shared(self, commit: JointCommit, covered: Sequence[Found]) -> None:
        """Put parts into the log in the order of their commit, and abort those that it leaves out."""
        order = {nonce: place for place, (_, nonce) in enumerate(commit.parts)}
        committed = sorted((each for each in covered if each.nonce in order), key=lambda each: order[each.nonce])
        for each in committed:
            self._publish_part(commit, each.id, each.nonce)
        for each in covered:
            if each.nonce not in order:
                self._resolver.settle(each.id, each.nonce)
        self._handle.require_batches().prepared.sync()

    def _let_go(self, parts: Sequence[Found]) -> None:
        for found in parts:
            self._resolver.settle(found.id, found.nonce, lets_go=True)


def check_part_of(application: str, version: int) -> PartOf:
    """Return the joint commit of a part; raises ConfigError for invalid names and versions."""
    check_name(application, "application")
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= VERSION_MAX:
        raise ConfigError(f"a version is a whole number from 0 to {VERSION_MAX}, not {version!r}")
    return PartOf(application, version)


def check_age(older_than_seconds: float) -> float:
    """Return for how long a part may wait; raises ConfigError for anything else."""
    if not 0 <= older_than_seconds < float("inf"):
        raise ConfigError(f"older_than_seconds is a number of seconds from 0, not {older_than_seconds!r}")
    return older_than_seconds


def _turn_of(application: str) -> str:
    return f"application {application}"  # which no transaction's id can be


def _is_of(found: Found, application: str, version: int) -> bool:
    part_of = found.part_of
    return part_of is not None and part_of.application == application and part_of.version <= version


def _covered(commit: JointCommit | None, parts: Sequence[Found]) -> list[Found]:
    """Return the parts whose outcome a commit has decided."""
    if commit is None:
        return []
    return [each for each in parts if each.part_of is not None and commit.covers(each.part_of)]


def _text(part_of: PartOf) -> str:
    return f"commit {part_of.version} of {part_of.application}"

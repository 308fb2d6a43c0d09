"""Serves requests to the owner of the write side, one round at a time. docs/format.md, "Requests".

A batch goes into the log with a commit record, which names the request's file; several share one sync. Then it is
answered, and its file removed. The next owner after a crash in between finds the commit record in the log, and redoes
those two steps (``persistence/outcomes/redo.py``). A request that was taken, and is not in the log, is served again.

A refusal removes the file before it is answered, so that it cannot be committed any more.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from holdfast.errors import (
    CommitUnknownError,
    CorruptionError,
    Full,
    HoldfastError,
    ShutDown,
    TransactionStateError,
    UsageError,
)
from holdfast.persistence.exchange.mailbox import ANSWERS, Answer, Answers
from holdfast.persistence.exchange.requests import (
    ABORT_PREPARED,
    ASK_OUTCOME,
    BATCH,
    CLAIMED,
    COMMIT_PREPARED,
    PREPARE,
    VERB,
    RequestedBatch,
    RequestName,
    check_asker,
    clear_abandoned,
    list_requests,
    move,
    read_batch,
    read_verb,
)
from holdfast.persistence.filesystem.layout import check_name
from holdfast.persistence.filesystem.storage import MISSING, storage_error, storage_errors
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import ANSWER_DONE, ANSWER_ERROR, ANSWER_NO_ROOM
from holdfast.persistence.log.pending_commit_records import Needs, OwnFile
from holdfast.persistence.segment.batch_file_reader import BatchSummary, read_summary, verify_batch
from holdfast.queue.engine.coordinators import Outcome
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.joint_commits import COMMIT as COMMIT_JOINTLY
from holdfast.queue.prepared.joint_commits import JOINT_VERBS, obey_jointly
from holdfast.queue.prepared.joint_resolver import JointResolver
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.protocol.error_text import as_text
from holdfast.queue.verbs.verb_log import Asker, holder_of, logged

logger = logging.getLogger("holdfast")

ROUND_MAX = 256
"""Requests that share one sync: what comes later waits for the next round, and its answers, not for ever."""

REFUSALS = (HoldfastError, Full, ShutDown)
"""What may be answered instead of offsets."""


class RequestDesk:
    """Serves requests for the owner of the write side; for one thread at a time.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with its write side.
    resolver : PreparedResolver
        Decides prepared transactions.
    """

    def __init__(self, handle: QueueHandle, resolver: PreparedResolver) -> None:
        self._handle = handle
        self._storage = handle.storage
        self._directory = handle.directory
        self._write_side = handle.require_write_side()
        self._batches = handle.require_batches()
        self._resolver = resolver
        self._joint = JointResolver(handle, resolver)
        self._answers = Answers(handle.storage, handle.directory.requests)
        self._takes_over = True
        self._has_cleared = False
        self._told: set[RequestName] = set()
        self._seen: set[RequestName] = set()

    def clear(self) -> None:
        """Remove leftovers of dead processes, and close their mailboxes."""
        with storage_errors("clearing", self._directory.requests):
            self._answers.keep(clear_abandoned(self._storage, self._directory))
        self._has_cleared = True

    def find(self, names: Sequence[str]) -> list[RequestName]:
        """Return those of the names in ``requests/`` that wait for the owner of the write side."""
        kinds = (BATCH, PREPARE, VERB, CLAIMED) if self._takes_over else (BATCH, PREPARE, VERB)
        found = [name for each in names if (name := RequestName.parse(each)) is not None]
        return [name for name in found if name.kind in kinds]

    def serve(self, names: Sequence[str] | None = None) -> bool:
        """Serve what waits now; return whether there was anything new: failed requests are tried again later.

        ``names`` are those in ``requests/``, just cleared and listed.

        Raises
        ------
        StorageError
            ``requests/`` cannot be read or written. Its requests still wait.
        """
        if not self._has_cleared:
            self.clear()
        with storage_errors("serving requests", self._directory.requests):
            if names is None:
                names = list_requests(self._storage, self._directory.requests)
            found = self.find(names)
            round_max = len(found) if self._takes_over else ROUND_MAX
            self._takes_over = False  # of those taken by earlier owners; requests taken from here on are in progress
            if not found:
                self._seen.clear()
                return False
            appended: list[tuple[RequestName, CommitRecord | None, range]] = []
            for name in found[:round_max]:
                try:
                    self._follow(name, appended)
                except OSError as error:  # the others are not held up, and appended batches are settled
                    logger.error("request %s of %s waits: %s", name, self._handle.path, error)
            self._settle(appended)
            self._answers.keep({each.removesuffix(ANSWERS) for each in names if each.endswith(ANSWERS)})
            self._told.intersection_update(found)
            known, self._seen = self._seen, set(found[:round_max])
        return not self._seen <= known

    def _follow(self, name: RequestName, appended: list[tuple[RequestName, CommitRecord | None, range]]) -> None:
        if name.kind in (VERB, PREPARE):
            self._obey(name)
            return
        if name in self._told and not self._write_side.has_space_for_one():
            return
        claimed = name.as_kind(CLAIMED)
        if name.kind == BATCH and not move(self._storage, name.path(self._directory), claimed.path(self._directory)):
            return  # withdrawn
        try:
            batch = self._read(claimed)
            if name.kind == CLAIMED and batch.dedup_id and self._answers.is_done(name.mailbox, name.number):
                self._remove(name)  # was put before, and so has no record in the log
                return
            committed = self._commit(batch)
        except CommitUnknownError as error:  # its file stays: the log says, once this is reopened
            self._answer_error(claimed, error)
        except REFUSALS as error:
            self._refuse(claimed, error)
        else:
            if committed is None:
                self._let_wait(claimed)
            else:
                offsets, is_new = committed
                appended.append((claimed, batch.summary.commit_record if is_new else None, offsets))

    # -- Batches -----------------------------------------------------------------------------------------------------

    def _read(self, claimed: RequestName) -> RequestedBatch:
        path = claimed.path(self._directory)
        try:
            return read_batch(self._storage, path, self._handle.queue_id, claimed, self._batches.copy_bytes_max)
        except OSError as error:
            raise storage_error(error, "reading a request", path) from error

    def _commit(self, batch: RequestedBatch) -> tuple[range, bool] | None:
        """Put a batch into the log, or make its file a part of the log; None if there is no space now.

        The second value is false if its message was put before: then nothing was done.
        """
        if batch.payloads is not None:
            commit_record = batch.summary.commit_record
            return self._write_side.append_requested(batch.payloads, batch.headers, commit_record, batch.dedup_id)
        try:
            self._write_side.wait_for_space(batch.summary.message_count, batch.summary.frames_bytes, 0)
        except Full:
            return None
        return self._adopt(batch.summary), True

    def _adopt(self, batch: BatchSummary) -> range:
        with storage_errors("reading a request", batch.path):
            damage = [each for each in verify_batch(self._storage, batch.path, self._handle.queue_id) if each.offsets]
            if damage:
                raise CorruptionError(f"{batch.path} is damaged ({damage[0].reason})", path=str(batch.path))
            file = self._storage.open(batch.path)
        try:
            return self._write_side.adopt(file, batch)
        finally:
            file.close()

    def _let_wait(self, claimed: RequestName) -> None:
        """Give a request back: from here on it may be withdrawn again."""
        waiting = claimed.as_kind(BATCH)
        move(self._storage, claimed.path(self._directory), waiting.path(self._directory))
        if waiting not in self._told:
            self._told.add(waiting)
            self._answers.write(claimed.mailbox, Answer(claimed.number, ANSWER_NO_ROOM))

    def _settle(self, appended: list[tuple[RequestName, CommitRecord | None, range]]) -> None:
        """Make appended or remembered messages durable, answer the request, and remove its files."""
        if not appended:
            return
        new = [offsets.stop for _, commit_record, offsets in appended if commit_record is not None]
        try:
            if new:
                self._write_side.settle(max(new), len(new))
            if len(new) < len(appended):
                self._write_side.confirm(max(offsets.stop for _, _, offsets in appended))
        except HoldfastError as error:
            for name, _, _ in appended:
                self._answer_error(name, error)
            return
        for name, commit_record, offsets in appended:
            try:
                self._answers.write(name.mailbox, Answer(name.number, ANSWER_DONE, offsets))
                if self._remove(name) and commit_record is not None:
                    needs = Needs(frozenset({OwnFile.REQUESTS}))
                    self._write_side.pending_commit_records.applied(commit_record.nonce, needs)
            except OSError as error:
                logger.warning("request %s is committed, and the next opening answers it: %s", name, error)
        self._write_side.end_commit_records_if_many()

    # -- Verbs -------------------------------------------------------------------------------------------------------

    def _obey(self, name: RequestName) -> None:
        """Perform a verb, unclaimed: doing it twice changes nothing, and a client that misses an answer asks again."""
        try:
            offsets = self._decide(name) if name.kind == VERB else self._prepare(name)
        except REFUSALS as error:
            self._refuse(name, error)
        except OSError as error:
            if not isinstance(error, MISSING):
                self._refuse(name, storage_error(error, "reading a request", name.path(self._directory)))
        except Exception as error:  # a bug must not leave all others unanswered
            logger.exception("request %s of %s", name, self._handle.path)
            self._refuse(name, CommitUnknownError(f"the owner failed ({error!r}): look what has been done"))
        else:
            self._remove(name)
            self._answers.write(name.mailbox, Answer(name.number, ANSWER_DONE, offsets))

    def _decide(self, name: RequestName) -> range:
        """Decide a prepared transaction, or several jointly."""
        fields = read_verb(self._storage, name.path(self._directory))
        if fields.get("verb") == COMMIT_JOINTLY:  # an application's, each time
            obey_jointly(self._joint, fields)
            return range(0)
        if fields.get("verb") in JOINT_VERBS:
            details = {key: value for key, value in fields.items() if key != "verb"}
            obey = partial(obey_jointly, self._joint, fields)
            logged(self._handle.path, fields["verb"], details, self._asker(name), obey)
            return range(0)
        verb, transaction_id, force = fields.get("verb"), str(fields.get("id")), bool(fields.get("force"))
        try:
            nonce = bytes.fromhex(fields["nonce"]) if "nonce" in fields else None
        except (TypeError, ValueError):
            raise UsageError(f"{fields['nonce']!r} names no transaction") from None
        details = {"id": transaction_id, "force": force}
        if verb == COMMIT_PREPARED:
            commit = partial(self._resolver.commit, transaction_id, force=force, nonce=nonce)
            return logged(self._handle.path, verb, details, self._asker(name), commit)
        if verb == ABORT_PREPARED:
            abort = partial(self._resolver.abort, transaction_id, force=force, nonce=nonce)
            logged(self._handle.path, verb, details, self._asker(name), abort)
            return range(0)
        if verb == ASK_OUTCOME and nonce is not None:
            return self._verdict(transaction_id, nonce)
        raise UsageError(f"this version knows no verb {verb!r}")

    def _asker(self, name: RequestName) -> Asker:
        return holder_of(self._storage, self._directory.requests, name.mailbox)

    def _verdict(self, transaction_id: str, nonce: bytes) -> range:
        outcome = self._resolver.outcome(transaction_id, nonce)
        if outcome is Outcome.IN_DOUBT:
            raise TransactionStateError(
                f"transaction {transaction_id} is not decided", transaction=transaction_id, state="prepared"
            )
        return range(outcome is Outcome.COMMITTED)

    def _prepare(self, name: RequestName) -> range:
        """Take a batch, which is on the disk already, into ``prepared/``: its new name makes it prepared."""
        path = name.path(self._directory)
        check_asker(self._storage, path)
        summary = read_summary(self._storage, path, self._handle.queue_id)
        check_name(summary.commit_record.id, "transaction")  # it becomes the name of a file
        self._resolver.make_ready(summary.commit_record.id, puts=True, part_of=summary.commit_record.part_of)
        self._write_side.wait_for_space(summary.message_count, summary.frames_bytes, 0)
        self._batches.take_over(path)
        return range(0)

    # -- Answering ---------------------------------------------------------------------------------------------------

    def _refuse(self, name: RequestName, error: Exception) -> None:
        """Answer with an error; nothing was done, and nothing will be."""
        if self._remove(name):
            self._answer_error(name, error)
        else:
            text = f"refused ({error}), and the request cannot be removed: a later owner may take it"
            self._answer_error(name, CommitUnknownError(text))

    def _answer_error(self, name: RequestName, error: Exception) -> None:
        self._answers.write(name.mailbox, Answer(name.number, ANSWER_ERROR, text=as_text(error)))

    def _remove(self, name: RequestName) -> bool:
        path = name.path(self._directory)
        try:
            self._storage.remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("%s cannot be removed: %s", path, error)
            return False
        return True

    # -- Ending ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the mailboxes; waiting requests keep waiting for the next owner."""
        self._answers.close()

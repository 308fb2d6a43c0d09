"""Prepared transactions of clients: prepares them, and decides them, alone or jointly. docs/transactions.md.

Each verb may come twice, from a client that got no answer. What was done before is found in ``prepared/``, in a vote,
in the log, or in the outcome log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from holdfast.errors import CommitUnknownError, Full, HoldfastError, PoisonedError, TransactionStateError, UsageError
from holdfast.persistence.filesystem.storage import MISSING, storage_errors
from holdfast.persistence.format.commit_record import Participant
from holdfast.persistence.outcomes.redo import OWN
from holdfast.persistence.segment.batch_file_reader import BatchSummary
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.engine.coordinators import Coordinator
from holdfast.queue.owner.owned_queue import Committing, OwnedQueue, check_headers
from holdfast.queue.prepared.prepared_transactions import Found, find_prepared, find_transaction
from holdfast.queue.prepared.reservations import check_transaction_id
from holdfast.queue.prepared.sent_again import SentAgain
from holdfast.queue.protocol.messages import Prepare
from holdfast.queue.protocol.prepared_verbs import (
    AbortJointly,
    AbortPrepared,
    AskOutcome,
    Begin,
    Collect,
    CommitJointly,
    CommitPrepared,
    End,
    Follow,
    HasSpace,
    Resolve,
    read_prepared_verb,
)
from holdfast.queue.transactions.branch import Branch
from holdfast.queue.verbs.verb_log import logged

Fields = dict[str, Any]
Result = TypeVar("Result")


def perform_on_prepared(queue: OwnedQueue, session: int, fields: Fields) -> Fields:
    """Perform one of ``PREPARED_VERBS`` for a session, 0 for one of this process; return its result.

    Raises
    ------
    UsageError
        Not such fields; nothing was done.
    HoldfastError, queue.ShutDown
        As the verb itself.
    """
    verb = read_prepared_verb(fields)
    match verb:
        case Begin():
            queue.coordinating.begin(session, verb.nonce)
            return {}
        case End():
            queue.coordinating.end(session, verb.nonce, is_followed=verb.is_followed)
            return {}
        case CommitJointly() | AbortJointly() | Collect():
            _perform_jointly(queue, session, verb, fields)
            return {}
        case _:
            return _of_anyone(queue, session, verb)


def _of_anyone(
    queue: OwnedQueue, session: int, verb: HasSpace | CommitPrepared | AbortPrepared | Resolve | Follow | AskOutcome
) -> Fields:
    """Perform a verb that has to do with the session only for the log."""
    match verb:
        case HasSpace():
            return _has_space(queue, verb)
        case CommitPrepared():
            return _commit(queue, session, verb)
        case AbortPrepared():
            return _abort(queue, session, verb)
        case Follow():
            return _follow(queue, verb)
        case AskOutcome():
            return {"outcome": _coordinator(queue).outcome(verb.nonce).value}
        case _:
            return _resolve(queue)


def _perform_jointly(
    queue: OwnedQueue, session: int, verb: CommitJointly | AbortJointly | Collect, fields: Fields
) -> None:
    resolver = queue.joint_resolver
    match verb:
        case CommitJointly():
            resolver.commit(verb.application, verb.version, verb.ids, is_remembered=verb.is_remembered)
        case AbortJointly():
            _logged(queue, session, fields, partial(resolver.abort, verb.application, verb.version))
        case _:
            _logged(queue, session, fields, partial(resolver.collect, verb.older_than_seconds, verb.id_prefix))


def _has_space(queue: OwnedQueue, asked: HasSpace) -> Fields:
    try:
        queue.write_side.wait_for_space(asked.count, asked.size_bytes, 0)
    except Full:
        return {"has_space": False}
    return {"has_space": True}


# -- Preparing -------------------------------------------------------------------------------------------------------


def prepare(queue: OwnedQueue, asked: Prepare, payloads: Sequence[bytes]) -> None:
    """Make a transaction durable and undecided: the vote, and then its puts. Closing the queue waits for it.

    Raises
    ------
    TransactionStateError
        The id is in doubt already, or the part was aborted meanwhile; nothing was done.
    StaleReceiptError, HoldfastError
        As ``Transaction.prepare``.
    """
    queue.handle.calls.run(lambda: _prepare(queue, asked, payloads))


def _prepare(queue: OwnedQueue, asked: Prepare, payloads: Sequence[bytes]) -> None:
    transaction_id = check_transaction_id(asked.id, queue.handle.queue_id)
    check_headers(asked.headers, payloads)
    if payloads and (asked.coordinator is not None or asked.is_staged):
        raise UsageError("a prepare whose puts another queue decides, or that has a file, brings none along")
    known = SentAgain(queue.handle, queue.resolver.memory)
    try:
        deliveries = queue.find(asked.group, asked.receipts, "commit") if asked.receipts else []
        staged = _staged(queue, asked)
    except HoldfastError as error:  # what is prepared is neither in hand nor staged any more
        if asked.is_staged and known.lacks_puts(transaction_id, asked.nonce):
            _prepare_the_rest(queue, asked)
            return
        if known.was_prepared(transaction_id, asked.nonce):
            return
        if asked.coordinator is not None and isinstance(error.__cause__, MISSING):
            raise _aborted(queue, transaction_id) from error
        raise
    if not asked.receipts and not asked.is_staged and known.has_puts(transaction_id, asked.nonce):
        return  # it only puts what it brings along, so nothing above is missing the second time
    if asked.coordinator is None:
        queue.resolver.make_ready(
            transaction_id,
            puts=bool(payloads) or asked.is_staged or not deliveries,
            part_of=None if staged is None else staged.commit_record.part_of,
            is_new=transaction_id == asked.nonce.hex(),
            group=asked.group,
        )
    _make_durable(queue, asked, payloads, deliveries, staged)


def _prepare_the_rest(queue: OwnedQueue, asked: Prepare) -> None:
    """Prepare the puts of a part that has voted: an earlier owner was killed between the two.

    The queue that decides may commit it yet: so the vote alone is not an abort, as it is if this queue decides.
    """
    staged = _staged(queue, asked)
    assert staged is not None, "it puts"
    queue.handle.require_batches().prepare_staged(staged)


def _aborted(queue: OwnedQueue, transaction_id: str) -> TransactionStateError:
    """Return the error for a part that an earlier owner has prepared, and whose deciding queue was asked since."""
    return TransactionStateError(
        f"transaction {transaction_id} was aborted in {queue.handle.path}: its owner has ended, and so has the one "
        "that was to decide it",
        transaction=transaction_id,
        state="aborted",
    )


def _staged(queue: OwnedQueue, asked: Prepare) -> BatchSummary | None:
    if not asked.is_staged:
        return None
    voters = (Participant(OWN, queue.handle.queue_id, asked.group),) if asked.receipts else ()
    return queue.handle.require_batches().staged_summary(asked.id, asked.nonce, voters, _decider(asked))


def _make_durable(
    queue: OwnedQueue,
    asked: Prepare,
    payloads: Sequence[bytes],
    deliveries: list[Delivery],
    staged: BatchSummary | None,
) -> None:
    handle = queue.handle_of(asked.group) if deliveries else queue.handle
    branch = Branch(handle, Committing(), asked.nonce, 0)
    _coordinator(queue).begin(asked.nonce)  # a vote whose puts are not there yet is not taken for aborted
    try:
        if deliveries:
            branch.ack(deliveries)
        if staged is not None:
            branch.prepare_staged(asked.id, _decider(asked), staged)
        else:
            branch.load(payloads, asked.headers)
            branch.prepare(asked.id, _decider(asked))
    except (CommitUnknownError, PoisonedError):
        branch.forget()
        raise
    except BaseException:
        # interrupted behind its puts, it is prepared: without its vote they could be committed alone
        if not any(each.nonce == asked.nonce and each.batch is not None for each in _found(queue, asked.id)):
            branch.abort_prepared()
        raise
    finally:
        _coordinator(queue).end(asked.nonce)
        branch.hand_back()
        branch.discard()


def _coordinator(queue: OwnedQueue) -> Coordinator:
    coordinator = queue.handle.coordinator
    assert coordinator is not None, "an owner has the write side"
    return coordinator


def _decider(asked: Prepare) -> Participant | None:
    return None if asked.coordinator is None else Participant(*asked.coordinator)


# -- Deciding --------------------------------------------------------------------------------------------------------


def _commit(queue: OwnedQueue, session: int, asked: CommitPrepared) -> Fields:
    _open_groups(queue, _found(queue, asked.id))
    commit = partial(queue.resolver.commit, asked.id, force=asked.force, nonce=asked.nonce)
    offsets = commit() if asked.nonce is not None else _logged(queue, session, _named("commit_prepared", asked), commit)
    return {"first": offsets.start, "count": len(offsets)}


def _abort(queue: OwnedQueue, session: int, asked: AbortPrepared) -> Fields:
    _open_groups(queue, _found(queue, asked.id))
    abort = partial(queue.resolver.abort, asked.id, force=asked.force, nonce=asked.nonce)
    if asked.nonce is not None:
        abort()
    else:
        _logged(queue, session, _named("abort_prepared", asked), abort)
    return {}


def _follow(queue: OwnedQueue, asked: Follow) -> Fields:
    _open_groups(queue, _found(queue, asked.id))
    offsets = queue.resolver.follow(asked.id, asked.nonce, is_committed=asked.is_committed)
    return {"first": offsets.start, "count": len(offsets)}


def _resolve(queue: OwnedQueue) -> Fields:
    queue.joint_resolver.resume()
    with storage_errors("looking for prepared transactions", queue.handle.path):
        found = find_prepared(queue.handle)
    _open_groups(queue, found)
    queue.resolver.resolve()
    return {}


def _found(queue: OwnedQueue, transaction_id: str) -> list[Found]:
    with storage_errors("looking for a prepared transaction", queue.handle.path):
        found = find_transaction(queue.handle, transaction_id)
    return [] if found is None else [found]


def _open_groups(queue: OwnedQueue, found: Collection[Found]) -> None:
    """Open the groups that hold messages: before any transaction is locked, which opening a group may wait for."""
    for group in {group for each in found for group, _ in each.votes}:
        with suppress(HoldfastError):  # deciding says why
            queue.group(group)


def _named(verb: str, asked: CommitPrepared | AbortPrepared) -> Fields:
    return {"verb": verb, "id": asked.id, "force": asked.force}


def _logged(queue: OwnedQueue, session: int, fields: Fields, do: Callable[[], Result]) -> Result:
    """Perform what a person or a tool has asked for, and log it."""
    details = {name: value for name, value in fields.items() if name != "verb"}
    return logged(queue.handle.path, fields["verb"], details, queue.asker(session), do)

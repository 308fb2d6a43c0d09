"""What others decide: what a joint commit says of one of its parts. docs/transactions.md, "Joint commits"."""

from __future__ import annotations

from holdfast.errors import TransactionStateError
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.outcomes.joint_file import JointFile
from holdfast.persistence.outcomes.redo import other_root
from holdfast.queue.engine.coordinators import Outcome
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.prepared_transactions import Found


def joint_file(sides: QueueHandle) -> JointFile:
    """Return the memory of joint commits; who does not own the write side reads it."""
    if sides.batches is not None:
        return sides.batches.joint
    return JointFile(sides.storage, sides.directory.joint, is_owner=False)


def verdict_of_part(sides: QueueHandle, found: Found) -> Outcome:
    """Return what became of a part: in doubt until a commit of its version, or of a later one, was decided."""
    assert found.part_of is not None
    commit = joint_file(sides).find(found.part_of.application)
    if commit is None or not commit.covers(found.part_of):
        return Outcome.IN_DOUBT
    return Outcome.COMMITTED if commit.commits(found.part_of, found.nonce) else Outcome.ABORTED


def check_may_prepare(sides: QueueHandle, transaction_id: str, part_of: PartOf) -> None:
    """Refuse a part of what was committed before; raises TransactionStateError."""
    commit = joint_file(sides).find(part_of.application)
    if commit is not None and commit.covers(part_of):
        raise TransactionStateError(
            f"transaction {transaction_id} comes too late: {part_of.application} has committed version "
            f"{commit.version}, and this is a part of version {part_of.version}",
            transaction=transaction_id,
            state="committed",
        )


def decided_elsewhere(sides: QueueHandle, found: Found) -> TransactionStateError:
    """Return the error for who wants to decide what a joint commit, or another queue, decides."""
    part_of, decider = found.part_of, found.decider
    if part_of is not None:
        who = f"is a part of version {part_of.version} of {part_of.application}: joint_commits decides it"
    else:
        assert decider is not None, "then whoever calls decides"
        where = other_root(sides.path, decider)
        who = f"is decided by the log of {where}: open that queue, and this one follows it"
    return TransactionStateError(
        f"transaction {found.id} {who}; force=True decides it alone, and may break all-or-nothing",
        transaction=found.id,
        state="prepared",
    )

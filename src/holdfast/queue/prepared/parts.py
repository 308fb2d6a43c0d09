"""Parts of joint commits: the document that decides a part, and what it says of it. docs/transactions.md."""

from __future__ import annotations

from holdfast.errors import TransactionStateError
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.outcomes.joint_file import JointCommit
from holdfast.persistence.outcomes.shared_joint_file import shared_joint_file
from holdfast.queue.engine.coordinators import Outcome
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.prepared_transactions import Found


def outcome_of_part(handle: QueueHandle, found: Found) -> Outcome:
    """Return the outcome of a part: in doubt until a commit of its version, or of a later one, was decided."""
    assert found.part_of is not None
    commit = latest_commit(handle, found.part_of)
    if commit is None or not commit.covers(found.part_of):
        return Outcome.IN_DOUBT
    return Outcome.COMMITTED if commit.commits(found.part_of, found.nonce) else Outcome.ABORTED


def latest_commit(handle: QueueHandle, part_of: PartOf) -> JointCommit | None:
    """Return the latest joint commit of a part's application, by the document that decides the part."""
    if not part_of.is_shared:
        return handle.joint_file().find(part_of.application)
    file = shared_joint_file(handle.storage, handle.clock, handle.real_path, part_of)
    return None if file is None else file.find(part_of.application)


def check_may_prepare(handle: QueueHandle, transaction_id: str, part_of: PartOf) -> None:
    """Refuse a part of a version that was committed before; raises TransactionStateError."""
    commit = latest_commit(handle, part_of)
    if commit is not None and commit.covers(part_of):
        raise TransactionStateError(
            f"transaction {transaction_id} is too late: {part_of.application} has committed version "
            f"{commit.version}, and this is a part of version {part_of.version}",
            transaction=transaction_id,
            state="committed",
        )
